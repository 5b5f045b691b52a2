"""GRPO Lab: which part of GRPO matters, answered with tracked, paired, reproducible ablations."""

__version__ = "0.1.0"

# Part of every run's signature. Raise it whenever a change of code changes what a run computes
# (tests/test_golden_run.py fails and says so); old runs are then kept but never reused.
RESULTS_VERSION = 3

# The layout of results/: raised when files in it move or change shape, so that an older folder is refused.
FOLDER_FORMAT = 1
