"""Runs of any MLflow store, also one that other programs wrote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from mlflow import MlflowClient
from mlflow.entities import Run

from grpolab.errors import RequestError
from grpolab.run.database import reason_of
from grpolab.run.tracking import sqlite_file
from grpolab.run.tracking.store import MOST_RUNS, UNUSABLE


def read_runs(uri: str, run_id: str | None = None) -> Iterator[tuple[Run, list[dict[str, float]]]]:
    """Yield one or every run of any MLflow store, with its metrics as one row a step. Raises RequestError."""
    file = sqlite_file(uri)
    if file and not file.is_file():  # MLflow would create one
        raise RequestError(f"the tracking store {file} is not there")
    try:
        client = MlflowClient(uri)
        if run_id:
            runs = [client.get_run(run_id)]
        else:
            ids = [experiment.experiment_id for experiment in client.search_experiments()]
            runs = client.search_runs(ids, max_results=MOST_RUNS, order_by=["attributes.start_time"]) if ids else []
        for run in runs:
            rows: dict[int, dict[str, float]] = defaultdict(dict)
            for name in run.data.metrics:
                for metric in client.get_metric_history(run.info.run_id, name):
                    rows[metric.step] |= {"step": metric.step, name: metric.value}
            yield run, [rows[step] for step in sorted(rows)]
    except UNUSABLE as error:
        failure = f"run {run_id} cannot be read from {uri}" if run_id else f"{uri} is no store that MLflow opens"
        raise RequestError(f"{failure}: {reason_of(error)}") from error
