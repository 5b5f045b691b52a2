"""Tracking, seen from a command: where the MLflow store is, whether it can be used, and the process that writes to it.

The run folders are the truth. MLflow is their mirror: it may lag, be out of reach or be rebuilt, and nothing is lost or
written twice. Training never writes to MLflow and never waits for it; one process per command does
(`python -m grpolab.run.tracking`, see `__main__`). Nothing here imports mlflow, so that a command starts fast.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from grpolab.errors import RequestError
from grpolab.paths import Results

AUTO = "auto"
SCHEMES = ("sqlite", "http", "https", "postgresql", "mysql", "mssql", "databricks")
SQLITE = "sqlite:///"
# Read by mlflow when it is imported or used: no telemetry, no tracebacks beside our one sentence, a server that is down
# is given up on within seconds, no request is sent again (a run whose answer got lost would be made twice), and no
# connection is kept to an SQLite file that may be gone.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool",
}


def set_environment() -> None:
    """Set `ENVIRONMENT`, where the user has not, before mlflow is imported."""
    os.environ.update({**ENVIRONMENT, **os.environ})


def store_uri(setting: str | None, results: Results) -> str | None:
    """The URI that `machine.tracking_uri` means: `auto` is SQLite in the results folder; None: no tracking."""
    if setting == AUTO:
        return f"{SQLITE}{results.store.resolve()}"
    return setting or None


def sqlite_file(uri: str) -> Path | None:
    """The file of an SQLite store; None for every other kind of store."""
    return Path(uri.removeprefix(SQLITE)) if uri.startswith(SQLITE) else None


def check_store(uri: str) -> None:
    """Refuse, before anything starts, a store that can be known not to open.

    A server that does not answer is no reason: training goes on without it and the mirror catches up.
    Raises RequestError.
    """
    file = sqlite_file(uri)
    if not _is_well_formed(uri):
        problem = (
            "is no MLflow store: use auto, sqlite:///FILE, http(s)://HOST:PORT, the URI of a database"
            " (postgresql, mysql, mssql)"
        )
    elif file and (reason := _sqlite_problem(file)):
        problem = f"cannot be opened: {reason}; name another store"
    else:
        return
    raise RequestError(f"machine.tracking_uri={uri} {problem}, or leave it empty to switch tracking off")


def _is_well_formed(uri: str) -> bool:
    scheme, _, rest = uri.partition("://")
    if scheme.startswith("sqlite"):  # in memory, or with options behind a `?`, the file would be another one
        return uri.startswith(SQLITE) and rest != "/" and not {"?", ":"} & set(rest)
    if scheme in ("http", "https"):
        try:
            return bool(urlsplit(uri).hostname) and urlsplit(uri).port != 0
        except ValueError:  # the port is no number
            return False
    return scheme == "databricks" or (scheme.partition("+")[0] in SCHEMES and bool(rest))


def _sqlite_problem(file: Path) -> str | None:
    """Why MLflow could not keep its store in this file, which is left as it was; None where it could."""
    if file.exists():
        try:
            file.open("r+b").close()
            with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
                tables = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
        except (OSError, sqlite3.DatabaseError) as error:
            return None if "locked" in str(error) else str(error)  # a lock passes; the mirror waits for it
        if tables and "experiments" not in tables:
            return "it is the database of another program"
    try:
        with tempfile.TemporaryFile(dir=file.parent):  # SQLite keeps its write-ahead log beside the file
            return None
    except OSError as error:
        return f"its folder cannot be written ({error.strerror})"


class MirrorProcess:
    """The one process of a command that writes to the store, from its start until `close`.

    It has a session of its own: Ctrl-C in the terminal does not reach it, so that its last pass is made. It ends when
    its standard input does, so also after a kill -9 of the command.
    """

    def __init__(
        self,
        results: Results,
        uri: str,
        studies: Iterable[str],
        say: Callable[[str], object] = lambda sentence: None,
        repair: bool = False,
    ) -> None:
        """`say` hears, from a thread, when the store can no longer be used, and when it can again."""
        command = [sys.executable, "-m", __name__, "--results", str(results.root), "--uri", uri, *["--repair"] * repair]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        self._process = subprocess.Popen(
            [*command, *studies],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, args=(say,), daemon=True)
        self._listener.start()

    def _listen(self, say: Callable[[str], object]) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            say(line.rstrip())

    def close(self) -> str | None:
        """Let it bring everything up to date, summaries included, and end.

        Returns None, or one sentence about what could not be written; the run folders still hold it.
        """
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
        self._listener.join()
        self._stderr.seek(0)
        errors = self._stderr.read().decode(errors="replace").strip().splitlines()
        self._stderr.close()
        return (errors or ["the tracking process was killed"])[-1] if self._process.returncode else None


def synchronise(results: Results, uri: str, studies: Iterable[str], repair: bool = False) -> str | None:
    """Bring the store up to date once, e.g. after a report was written; returns what `MirrorProcess.close` does.

    `repair`: look at every point, and make runs again that differ from their folder.
    """
    return MirrorProcess(results, uri, studies, repair=repair).close()
