"""Replaying what other frameworks computed: their inputs through our code, their outputs compared with ours.

One module a framework: its functions by name, each a few lines that translate options and call the dialect or the core.
"""
