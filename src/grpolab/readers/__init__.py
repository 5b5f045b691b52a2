"""Other people's configs and scripts, read without running anything, as settings of ours."""
