"""Prompts and answers that are not ours: files, data sets, reasoning-gym, what counts as the answer of a text, and who judges it.

A run names one of these tasks, and `registry.py` loads it by that name: the core is read without this room.
"""
