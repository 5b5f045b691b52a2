"""Prompts and answers from elsewhere: files, data sets, reasoning-gym, what counts as an answer, and who judges it.

A run names one of these tasks, and `registry.py` loads it by that name: the core is read without this room.
"""
