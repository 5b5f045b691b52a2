"""One run: training loop, warm start, checkpoints, journal, provenance, tracking. It knows of no other run."""
