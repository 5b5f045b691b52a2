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
from grpolab.run.folder import exclusive
from grpolab.run.tracking import check_store, set_environment, sqlite_file, sqlite_uri
from grpolab.run.tracking.pages import EVERY_VARIANT, EXPERIMENTS, address, report_address, views
from grpolab.terminal import say

HOST = "127.0.0.1"
PORTS_TRIED = 50
START_SECONDS = 120.0
# Without job execution and with one worker the server is 2 processes and 0.5 GB instead of 14 and 2.7 GB.
# What it starts itself imports nothing from the working directory either.
ENVIRONMENT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PYTHONSAFEPATH": "1",
}


def serve(results: Results, uri: str, study: str, port: int = 5000, say: Callable[[str], None] = say) -> None:
    """Show the store at `uri`, say the link to the study's charts, and stay until Ctrl-C.

    A store that is a server already is only linked to. Raises RequestError when there is nothing to show.
    """
    check_store(uri)
    if uri.startswith("http"):
        _say_links(uri.rstrip("/"), results, study, say)
        return
    _refuse_without_runs(results, study)
    file = sqlite_file(uri)
    if file and not file.exists():
        raise RequestError(f"there is no tracking store at {file} yet: `grpolab track sync {study}` creates it")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` ends the server as Ctrl-C does
    if problem := _bring_home(results, uri):
        say(problem)
    chosen = free_port(port)
    if chosen != port:
        say(f"port {port} is taken, using {chosen}")
    with _server(uri, chosen) as process:
        _say_links(f"http://{HOST}:{chosen}", results, study, say)
        say(f"All experiments: http://{HOST}:{chosen}/{EXPERIMENTS} (without the link: `Model training`, top left)")
        say("Ctrl-C ends the server.")
        with suppress(KeyboardInterrupt):
            process.wait()


def _refuse_without_runs(results: Results, study: str) -> None:
    """Raise RequestError where the study is not planned, or nothing of it has begun: its pages would be empty."""
    plan = read_plan(results.plan(study))
    if plan is None:
        raise results.not_planned(study)
    plans = [plan, *(read_plan(results.plan(part)) or {"cells": []} for part in plan["includes"])]
    if not any(results.run(cell["signature"]).is_dir() for part in plans for cell in part["cells"]):
        named = plan.get("file", study)
        raise RequestError(f"study {study} has no run in {results.runs} yet: run `grpolab sweep {named}` first")


def free_port(port: int) -> int:
    """The first port from `port` on that nobody listens to."""
    for candidate in range(port, port + PORTS_TRIED):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, candidate))
                return candidate
            except OSError:
                continue
    raise RequestError(f"port={port}: no free port from there to {port + PORTS_TRIED - 1}")


def _say_links(root: str, results: Results, study: str, say: Callable[[str], None]) -> None:
    """The study's report, and its charts, the arms at each combination of the other factors first.

    Of a collection the charts of each study that it includes.
    """
    if place := _report(root, study):
        say(f"{study}, report: {root}/{report_address(*place)}")
    for name in (read_plan(results.plan(study)) or {}).get("includes") or [study]:
        experiment, plan = _experiment_id(root, name), read_plan(results.plan(name))
        if experiment is None and plan is None:
            raise results.not_planned(name)
        if experiment is None:
            say(f"{name}: not tracked yet (`grpolab track sync {name}`)")
            continue
        for view in views(plan) if plan else [EVERY_VARIANT]:
            say(f"{name}, {view.title}: {root}/{address(experiment, view.key)}")


def _bring_home(results: Results, uri: str) -> str | None:
    """As the mirror does where the results folder was moved; else artefacts would be shown of where it was."""
    set_environment()
    from grpolab.run.tracking.mirror import lock_of  # mlflow, whose environment is set now
    from grpolab.run.tracking.places import bring_home

    with exclusive(lock_of(results, uri)):
        return bring_home(uri, results.artifacts.resolve(), repair=False)


def _report(root: str, study: str) -> tuple[str, str] | None:
    """Experiment and summary run of the study, asked of the server; None where it has no report yet."""
    set_environment()
    from grpolab.run.tracking.store import summary_of

    return summary_of(root, study)


def _experiment_id(root: str, name: str) -> str | None:
    """Asked of the server, so that nothing is opened for writing; None where it has no such experiment."""
    set_environment()
    from grpolab.run.tracking.store import experiment_id  # mlflow, whose environment is set now

    return experiment_id(root, name)


@contextmanager
def _server(uri: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """MLflow's server, ready; it ends with the block, however that is left."""
    file = sqlite_file(uri)
    store = sqlite_uri(file) if file else uri
    where = ["--backend-store-uri", store, "--host", HOST, "--port", str(port), "--workers", "1"]
    command, environment = [*PYTHON, "-m", "mlflow", "ui", *where], {**os.environ, **ENVIRONMENT}
    # In an empty folder: uvicorn imports from where it is started, whatever Python is told.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryDirectory() as folder:
        # In a session of its own: it starts processes, and they end as one group.
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, cwd=folder, start_new_session=True
        )
        try:
            if not _ready(process, port):
                output.seek(0)
                lines = output.read().decode(errors="replace").strip().splitlines()
                raise RequestError(f"MLflow's pages could not be started: {lines[-1] if lines else 'no answer'}")
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def _ready(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=5):
                return True
        except OSError:
            time.sleep(0.2)
    return False
