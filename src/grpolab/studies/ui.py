"""`grpolab ui`: links to MLflow's pages of a study, and the server that shows them on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from grpolab.errors import RequestError
from grpolab.paths import PYTHON, Results
from grpolab.records import read_plan
from grpolab.run.tracking import HOST, PORT, check_store, is_server, set_environment, sqlite_file, synchronise
from grpolab.study_names import not_planned
from grpolab.terminal import say

PORTS_TRIED = 50
# Without job execution and with one worker the server has 2 processes and 0.5 GB instead of 14 and 2.7 GB.
# PYTHONSAFEPATH: the processes that it starts import nothing from the working directory.
ENVIRONMENT = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONSAFEPATH": "1"}
# Without `workflowType` MLflow 3.17 opens its pages for GenAI.
CHARTS = "runs?workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey=by_variant"


def serve(results: Results, uri: str, study: str, port: int = PORT, say: Callable[[str], object] = say) -> None:
    """Print the links to a study's charts, and show the store until Ctrl-C. Raises RequestError if there is none."""
    check_store(uri)
    plan, file = read_plan(results.plan(study)), sqlite_file(uri)
    if plan is None:
        raise not_planned(results, study)
    if file and not file.exists():
        raise RequestError(f"there is no tracking store at {file}: `grpolab sweep` or `track sync {study}` makes it")
    set_environment()
    from grpolab.run.tracking.store import UNUSABLE, Store, describe_failure  # MLflow's environment is set now

    is_local = not is_server(uri)
    root = f"http://{HOST}:{free_port(port)}" if is_local else uri.rstrip("/")
    try:
        store = Store(uri, results)
        if is_local and store.find_misplaced() and (problem := synchronise(results, uri, [study])):
            say(problem)
        for name in plan["includes"] or [study]:
            experiment = store.client.get_experiment_by_name(name)
            link = f"{root}/#/experiments/{experiment.experiment_id}/{CHARTS}" if experiment else ""
            say(f"{name}, charts: {link}" if link else f"{name}: not tracked yet (`grpolab track sync {name}`)")
    except UNUSABLE as error:
        raise RequestError(f"{root} does not answer: {describe_failure(error)}") from error
    if is_local:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` ends the server as Ctrl-C does
        say("MLflow's pages answer in some seconds; Ctrl-C ends the server.")
        with suppress(KeyboardInterrupt), start_server(uri, int(root.rpartition(":")[2])) as process:
            process.wait()


def free_port(port: int) -> int:
    """Return the first free port from `port` on."""
    for candidate in range(port, port + PORTS_TRIED):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, candidate))
            return candidate
    raise RequestError(f"port={port}: no free port from there to {port + PORTS_TRIED - 1}")


@contextmanager
def start_server(uri: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run MLflow's server during the block. Raises RequestError if the server fails before the block ends."""
    where = ["--backend-store-uri", uri, "--host", HOST, "--port", str(port), "--workers", "1"]
    command, environment = [*PYTHON, "-m", "mlflow", "ui", *where], {**os.environ, **ENVIRONMENT}
    # In an empty folder, because uvicorn imports from there; in its own session, so that its processes end together.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, cwd=folder, start_new_session=True
        )
        try:
            yield process
            if process.poll():
                output.seek(0)
                lines = output.read().decode(errors="replace").strip().splitlines() or ["it was killed"]
                raise RequestError(f"MLflow's server has ended: {lines[-1]}")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
