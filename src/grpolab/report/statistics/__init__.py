"""Statistics for a handful of seeds: pure functions on arrays, each with its source.

Dimension letters: S seeds, T tasks, A arms, X points, L levels, R replicates; a function states the shapes it takes.
Arms share warm start, prompts and noise with their seed, so differences are taken seed by seed.

A number that does not exist is NaN (the interval of one seed, the rate of no runs). TooFewError is raised where a
number would say more than the data do; the report prints its text.
"""
