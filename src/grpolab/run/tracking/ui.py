"""`grpolab ui`: MLflow's pages on this machine, and the link to a study's charts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from grpolab.errors import RequestError
from grpolab.paths import PYTHON, Results
from grpolab.records import read_plan
from grpolab.run.tracking import check_store, set_environment, sqlite_file, synchronise
from grpolab.study_names import not_planned
from grpolab.terminal import say

HOST = "127.0.0.1"
PORTS_TRIED = 50
START_SECONDS = 120.0
# Without job execution and with one worker the server is 2 processes and 0.5 GB instead of 14 and 2.7 GB.
# What it starts itself imports nothing from the working directory either.
ENVIRONMENT = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONSAFEPATH": "1"}


def serve(results: Results, uri: str, study: str, port: int = 5000, say: Callable[[str], object] = say) -> None:
    """Show the store, print a study's links, and stay until Ctrl-C. Raises RequestError if there is nothing to show."""
    check_store(uri)
    plan = read_plan(results.plan(study))
    if plan is None:
        raise not_planned(results, study)
    set_environment()
    parts = plan["includes"] or [study]
    if uri.startswith("http"):
        _print_links(uri.rstrip("/"), study, parts, say)
        return
    cells = [cell for part in parts for cell in (read_plan(results.plan(part)) or {"cells": []})["cells"]]
    if not any(results.run(cell["signature"]).is_dir() for cell in cells):
        raise RequestError(f"study {study} has no run in {results.runs} yet: run `grpolab sweep {study}` first")
    file = sqlite_file(uri)
    if file and not file.exists():
        raise RequestError(f"there is no tracking store at {file}: run `grpolab track sync {study}`")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` ends the server as Ctrl-C does
    if _is_misplaced(uri, results) and (problem := synchronise(results, uri, [study])):
        say(problem)
    free = free_port(port)
    if free != port:
        say(f"port {port} is taken, using {free}")
    with _server(uri, free) as process:
        _print_links(f"http://{HOST}:{free}", study, parts, say)
        say("Ctrl-C ends the server.")
        with suppress(KeyboardInterrupt):
            process.wait()


def _is_misplaced(uri: str, results: Results) -> bool:
    from grpolab.run.tracking.store import Store

    return Store(uri, results).find_misplaced() is not None


def free_port(port: int) -> int:
    """Return the first port from `port` on that nobody listens to."""
    for candidate in range(port, port + PORTS_TRIED):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, candidate))
            return candidate
    raise RequestError(f"port={port}: no free port from there to {port + PORTS_TRIED - 1}")


def _print_links(root: str, study: str, parts: list[str], say: Callable[[str], object]) -> None:
    """Print the links to a study's report and charts; of a collection, to the charts of each part."""
    from mlflow import MlflowClient  # its environment is set now

    from grpolab.run.tracking import pages
    from grpolab.run.tracking.store import UNUSABLE, describe_failure

    client = MlflowClient(root)
    try:
        for name in dict.fromkeys((study, *parts)):
            if (experiment := client.get_experiment_by_name(name)) is None:
                say(f"{name}: not tracked yet (`grpolab track sync {name}`)")
                continue
            number = experiment.experiment_id
            runs = client.search_runs([number], f"attributes.run_name = '{pages.SUMMARY}'") if name == study else []
            if runs:
                say(f"{name}, report: {root}/{pages.report_address(number, runs[0].info.run_id)}")
            if name in parts:
                say(f"{name}, charts: {root}/{pages.charts_address(number)}")
    except UNUSABLE as error:
        raise RequestError(f"{root} does not answer: {describe_failure(error)}") from error


@contextmanager
def _server(uri: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start MLflow's server and wait until it answers; it ends with the block."""
    where = ["--backend-store-uri", uri, "--host", HOST, "--port", str(port), "--workers", "1"]
    # In an empty folder, because uvicorn imports from where it is started; in a session of its own, to end as a group.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [*PYTHON, "-m", "mlflow", "ui", *where],
            stdout=output,
            stderr=output,
            env={**os.environ, **ENVIRONMENT},
            cwd=folder,
            start_new_session=True,
        )
        try:
            if not _is_ready(process, port):
                output.seek(0)
                lines = output.read().decode(errors="replace").strip().splitlines() or ["no answer"]
                raise RequestError(f"MLflow's pages could not be started: {lines[-1]}")
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def _is_ready(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=5):
            return True
        time.sleep(0.2)
    return False
