"""Tracking, seen from a command: where the MLflow store is, whether it can be used, and the process that writes to it.

The run folders are the truth. MLflow is their mirror: it may lag, be out of reach or be rebuilt, and nothing is lost or
written twice. Training never writes to MLflow and never waits for it; one process per command does
(`python -m grpolab.run.tracking`, see `__main__`). Nothing here imports mlflow, so that a command starts fast.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

from grpolab.credentials import password_problem
from grpolab.errors import RequestError
from grpolab.paths import PYTHON, Results

AUTO = "auto"
SCHEMES = ("sqlite", "http", "https", "postgresql", "mysql", "mssql", "databricks")
SQLITE = "sqlite:///"
ANSWER_SECONDS = 45.0  # most that a command waits for a server or a database before it starts; MLflow's import is in it
MIGRATIONS = "store/db_migrations/versions"  # where MLflow keeps the steps from one version of its tables to the next
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
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


def set_environment() -> None:
    """Set `ENVIRONMENT`, where the user has not, before mlflow is imported."""
    os.environ.update({**ENVIRONMENT, **os.environ})


def store_uri(setting: str | None, results: Results) -> str | None:
    """The URI that `machine.tracking_uri` means: `auto` is SQLite in the results folder; None: no tracking."""
    if setting == AUTO:
        return sqlite_uri(results.store)
    return setting or None


def sqlite_uri(file: Path) -> str:
    """The URI of an SQLite file. Its path is decoded where it is opened, so `a%20b` would be the folder `a b`."""
    return SQLITE + re.sub("[%?:]", lambda char: f"%{ord(char[0]):02X}", str(file.resolve()))


def sqlite_file(uri: str) -> Path | None:
    """The file of an SQLite store; None for every other kind of store."""
    return Path(unquote(uri.removeprefix(SQLITE))) if uri.startswith(SQLITE) else None


def is_server(uri: str) -> bool:
    """Whether MLflow's server stands before the database."""
    return uri.startswith(("http", "databricks"))


def check_store(uri: str) -> None:
    """Refuse, before anything starts, a store that can be known not to open without asking a server.

    Raises RequestError.
    """
    file = sqlite_file(uri)
    problem = password_problem(uri)
    if problem is None and not _is_well_formed(uri):
        problem = (
            "is no MLflow store: use auto, sqlite:///FILE, http(s)://HOST:PORT, the URI of a database"
            " (postgresql, mysql, mssql)"
        )
    if problem is None and file and (reason := _sqlite_problem(file)):
        problem = f"cannot be opened: {reason}; name another store"
    if problem:
        raise _refusal(uri, problem)


def check_answer(uri: str) -> None:
    """Refuse, before anything starts, a server or a database that does not answer now, or not as MLflow's would.

    Once a command has started, training goes on without it and the mirror catches up. A process asks, so that the wait
    has an end whatever hangs, and the command keeps nothing of mlflow in memory. Raises RequestError.
    """
    if sqlite_file(uri):
        return
    command = [*PYTHON, "-m", __name__, "--check", "--uri", uri]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        raise _refusal(uri, f"cannot be used: no answer within {ANSWER_SECONDS:.0f} s; name another store") from None
    if asked.returncode:
        reason = (asked.stderr.strip().splitlines() or ["the process that asked it was killed"])[-1]
        raise _refusal(uri, f"cannot be used: {reason}; name another store")


def _refusal(uri: str, problem: str) -> RequestError:
    return RequestError(f"machine.tracking_uri={uri} {problem}, or leave it empty to switch tracking off")


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
                versions = connection.execute(VERSION).fetchall() if "alembic_version" in tables else []
        except (OSError, sqlite3.DatabaseError) as error:
            return None if "locked" in str(error) else str(error)  # a lock passes; the mirror waits for it
        if problem := tables_problem(tables, [version for (version,) in versions]):
            return problem
    try:
        with tempfile.TemporaryFile(dir=file.parent):  # SQLite keeps its write-ahead log beside the file
            return None
    except OSError as error:
        return f"its folder cannot be written ({error.strerror})"


VERSION = "select version_num from alembic_version"


def tables_problem(tables: Collection[str], versions: list[str]) -> str | None:
    """Why MLflow as it is installed could not use a database with these tables; `versions`: what `VERSION` answers.

    Left to MLflow, an older database would be changed by the first look at it.
    """
    if not tables:
        return None
    if "experiments" not in tables:
        return "it is the database of another program"
    spec = importlib.util.find_spec("mlflow")  # which imports nothing
    assert spec
    assert spec.origin
    steps = "".join(file.read_text() for file in (Path(spec.origin).parent / MIGRATIONS).glob("*.py"))
    known = set(re.findall(r'^revision = "(\w+)"', steps, re.MULTILINE))
    newest = known - set(re.findall(r'^down_revision = "(\w+)"', steps, re.MULTILINE))
    if set(versions) <= newest:  # none: it was killed while it was made, and MLflow goes on
        return None
    here = f"MLflow {importlib.metadata.version('mlflow')}"
    if set(versions) <= known:
        return f"its tables are of an older version than {here}: back it up, and `mlflow db upgrade` brings them up"
    return f"its tables are of a newer version than {here}"


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
        command = [*PYTHON, "-m", __name__, "--results", str(results.root), "--uri", uri, *["--repair"] * repair]
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
