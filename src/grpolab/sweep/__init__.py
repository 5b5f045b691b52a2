"""Many runs: a study is expanded into cells, and workers train a run for each. Never imports torch or MLflow."""
