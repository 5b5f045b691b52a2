"""What a tuning found: its trials as figures, tables and sentences, and each arm at common and at tuned values."""
