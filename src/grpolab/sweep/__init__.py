"""Many runs: a study becomes cells, cells become runs on worker processes. Never imports torch or MLflow."""
