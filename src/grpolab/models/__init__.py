"""What a language model needs that a tiny one does not: adapters, an engine that samples, a folder that others read."""
