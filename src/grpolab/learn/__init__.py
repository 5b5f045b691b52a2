"""Tensors: tasks, policy, rollouts, the loss algebra, one update. No disk, no Hydra, no MLflow, no global randomness."""
