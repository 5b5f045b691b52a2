"""Statistics for a handful of seeds: pure functions on arrays, each with its source and what it refuses.

Dimension letters: S seeds, T tasks, A arms, X points, L levels, R replicates. Arms share warm start, prompts and noise
with their seed, so differences are taken seed by seed.

Where a gap is an honest answer (a band with one seed, a rate without runs), the result is NaN. Where a number would say
more than the data do, TooFewError is raised; its text is the sentence for the report.
"""
