"""`grpolab tune`: the best values of each arm, found with Optuna's ask and tell over runs by signature.

A trial is the study's arm with the values that a sampler suggests, run with each tuning seed: ordinary runs in
results/runs/, done by the workers of a sweep. What is tuned, and how, stands in the study file (`tuning:`, see
`settings.py`). Optuna is imported by this package alone.
"""
