"""What a language model needs that a tiny one does not: adapters, and a folder that others can read."""
