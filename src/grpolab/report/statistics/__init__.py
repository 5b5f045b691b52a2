"""Statistics for a handful of seeds: pure functions on arrays, each with its source.

Dimension letters: S seeds, T tasks, A arms, X points, L levels, R replicates; a function states the shapes it takes.
Arms share warm start, prompts and noise with their seed, so differences are taken seed by seed.

A number that does not exist is NaN (the interval of one seed, the rate of no runs). TooFewError is raised if a number
would claim more than the data support; the report prints its text.
"""
