"""Tensors: tasks, policy, rollouts, losses, one update. No disk, no Hydra, no MLflow, no global randomness."""
