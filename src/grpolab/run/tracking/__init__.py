"""Tracking, for commands: the URI of the MLflow store, and the one process that writes to it.

The run folders are the truth and MLflow is their mirror: it may lag, be unreachable or be rebuilt. Training never waits
for it. This module does not import mlflow, which takes seconds.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote

from grpolab.credentials import HTTP_USER, USER
from grpolab.errors import RequestError
from grpolab.paths import PYTHON, Results
from grpolab.terminal import say

Say = Callable[[str], object]
SQLITE = "sqlite:///"
HOST, PORT = "127.0.0.1", 5000  # of MLflow's pages on this machine
# An SQLite store in memory, or with options after a `?`, would not be this file.
WELL_FORMED = re.compile(
    r"sqlite:///[^?:]*[^?:/]|https?://[^/:]+(:[0-9]+)?(/.*)?|(postgresql|mysql|mssql)(\+\w+)?://.+"
)
OPTION = re.compile(r"(?:password|passwd|pwd|token|secret)\w*(?:=|%3D)[^&;%\s]+", re.IGNORECASE)  # of a URI
ANSWER_SECONDS = 45.0  # how long a command waits for a server or a database, the import of mlflow included
# Read by mlflow. Requests are not repeated, because a run would be created twice if only the answer was lost.
# Connections to an SQLite file are not kept, because the file may be replaced.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


def set_environment() -> None:
    """Set `ENVIRONMENT` before mlflow is imported; the user's own values win."""
    os.environ.update({**ENVIRONMENT, **os.environ})


def store_uri(setting: str | None, results: Results) -> str | None:
    """Return the URI of `machine.tracking_uri`: `auto` is SQLite in the results folder, None means no tracking."""
    return sqlite_uri(results.store) if setting == "auto" else setting or None


def sqlite_uri(file: Path) -> str:
    """Return the URI of an SQLite file, with `%`, `?` and `:` encoded: `a%20b` would otherwise mean `a b`."""
    return SQLITE + re.sub("[%?:]", lambda char: f"%{ord(char[0]):02X}", str(file.resolve()))


def sqlite_file(uri: str) -> Path | None:
    """Return the file of an SQLite store; None for any other store."""
    return Path(unquote(uri.removeprefix(SQLITE))) if uri.startswith(SQLITE) else None


def is_server(uri: str) -> bool:
    """Return True for an MLflow server, False for a database that is opened directly."""
    return uri.startswith("http")


def password_problem(uri: str) -> str | None:
    """Return why a URI with a password or a token is refused; None if it has none."""
    if not any(pattern.search(uri) for pattern in (USER, HTTP_USER, OPTION)):
        return None
    return (
        "has a password in it, which would be written down with every run: leave it to the environment"
        " (for a server MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and _PASSWORD; for PostgreSQL PGPASSWORD)"
    )


def check_store(uri: str) -> None:
    """Raise RequestError for a store that cannot work, as far as that is known without asking a server."""
    file, problem = sqlite_file(uri), password_problem(uri)
    if problem is None and not WELL_FORMED.fullmatch(uri):
        problem = "is no MLflow store: use auto, sqlite:///FILE, http(s)://HOST:PORT or the URI of a database"
    if problem is None and file and (reason := _find_sqlite_problem(file)):
        problem = f"cannot be opened: {reason}; name another store"
    if problem:
        raise _refusal(uri, problem)


def check_answer(uri: str) -> None:
    """Raise RequestError, before a command starts, if its server or database does not answer."""
    if sqlite_file(uri):
        return
    # Another process asks, so that the wait can be ended and this one does not load mlflow.
    command, reason = [*PYTHON, "-m", __name__, json.dumps({"uri": uri})], None
    try:
        answer = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS)
        if answer.returncode:
            reason = (answer.stderr.strip().splitlines() or ["the process that asked was killed"])[-1]
    except subprocess.TimeoutExpired:
        reason = f"no answer within {ANSWER_SECONDS:.0f} s"
    if reason:
        raise _refusal(uri, f"cannot be used: {reason}; name another store")


def _refusal(uri: str, problem: str) -> RequestError:
    return RequestError(f"machine.tracking_uri={uri} {problem}, or leave it empty to switch tracking off")


def _find_sqlite_problem(file: Path) -> str | None:
    """Return why MLflow cannot keep its tables in this file, or None; the file is not changed."""
    try:
        if file.exists():
            file.open("r+b").close()
            with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
                tables = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
            if tables and "experiments" not in tables:
                return "it is the database of another program"
        with tempfile.TemporaryFile(dir=file.parent):  # SQLite keeps its write-ahead log beside the file
            return None
    except (OSError, sqlite3.DatabaseError) as error:
        return None if "locked" in str(error) else str(error)  # the mirror waits for a lock


class MirrorProcess:
    """The process that writes to the store while a command runs, until `close`.

    It has its own session, so Ctrl-C does not stop its last pass. It ends when its standard input is closed, which also
    happens when the command is killed.
    """

    def __init__(
        self, results: Results, uri: str, studies: Sequence[str], say: Say = say, rebuild: bool = False
    ) -> None:
        """Start it. `say` is called from a thread when the store fails, and when it works again."""
        arguments = {"results": str(results.root), "uri": uri, "studies": studies, "rebuild": rebuild}
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        self._process = subprocess.Popen(
            [*PYTHON, "-m", __name__, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, args=(say,), daemon=True)
        self._listener.start()

    def _listen(self, say: Say) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            say(line.rstrip())

    def close(self) -> str | None:
        """Wait until the store is up to date. Return None, or one sentence about what could not be written."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
        self._listener.join()
        self._stderr.seek(0)
        errors = self._stderr.read().decode(errors="replace").strip().splitlines()
        self._stderr.close()
        return (errors or ["the tracking process was killed"])[-1] if self._process.returncode else None


def synchronise(results: Results, uri: str, studies: Sequence[str], rebuild: bool = False) -> str | None:
    """Bring the store up to date once; with `rebuild`, make it anew. Return what `MirrorProcess.close` returns."""
    return MirrorProcess(results, uri, studies, rebuild=rebuild).close()
