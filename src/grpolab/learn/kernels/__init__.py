"""Objective kernels: the loss of a token (or sequence) before averaging. Their names stand in `grpolab/registry.py`."""
