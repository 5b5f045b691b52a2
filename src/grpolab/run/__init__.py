"""Exactly one run: the loop, the warm start, checkpoint, journal, provenance and the mirror. It knows of no other run."""
