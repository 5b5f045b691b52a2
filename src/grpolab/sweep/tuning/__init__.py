"""`grpolab tune`: the best values of each arm, by Optuna over ordinary runs. Optuna is imported here alone."""
