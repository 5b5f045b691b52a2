"""What a tracking store holds of one run, whoever logged it."""

from __future__ import annotations

import os
from collections import defaultdict

from grpolab.errors import RequestError
from grpolab.run.tracking import ENVIRONMENT, sqlite_file

Row = dict[str, float]


def logged(uri: str, run_id: str) -> tuple[dict[str, str], list[Row]]:
    """Its tags, and its metrics as rows in the order of their steps, each with its `step`.

    Raises RequestError where the store has no such run, or does not answer.
    """
    os.environ.update(ENVIRONMENT)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    file = sqlite_file(uri)
    if file and not file.is_file():  # MLflow would make one
        raise RequestError(f"--uri={uri}: there is no such file")
    client = MlflowClient(uri)
    rows: dict[int, Row] = defaultdict(dict)
    try:
        run = client.get_run(run_id)
        for name in run.data.metrics:
            for point in client.get_metric_history(run_id, name):
                rows[point.step][name] = point.value
    except MlflowException as error:
        raise RequestError(f"run {run_id} cannot be read from {uri}: {str(error).splitlines()[0]}") from error
    return dict(run.data.tags), [{"step": step, **rows[step]} for step in sorted(rows)]
