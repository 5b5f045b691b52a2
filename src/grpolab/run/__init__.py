"""Exactly one run: loop, warm start, checkpoint, journal, provenance, mirror. It knows of no other run."""
