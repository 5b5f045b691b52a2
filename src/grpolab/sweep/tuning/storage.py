"""Where Optuna keeps the trials: a journal file, or a database by its URI. Everything else is made from it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock, get_lock_file
from sqlalchemy.exc import SQLAlchemyError

from grpolab.errors import RequestError
from grpolab.run.locks import exclusive, is_held

JOURNAL = "journal:"
DATABASES = ("sqlite:///", "postgresql", "mysql")


class FlockedFile(BaseJournalFileLock):
    """Optuna's own locks outlive a killed holder by half a minute; this one dies with it."""

    def __init__(self, path: Path) -> None:
        self._path, self._held = path, ExitStack()

    def acquire(self) -> bool:
        """Wait for it."""
        self._held.enter_context(exclusive(self._path))
        return True

    def release(self) -> None:
        """Give it back."""
        self._held.close()


class JournalFile(JournalFileBackend):
    """Optuna's journal without its flush to the disk at every line, which takes as long as an evaluation.

    A kill loses nothing. What a power cut takes is told again from the run folders, which are flushed.
    """

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._flock = file, FlockedFile(file.with_name(f"{file.name}.lock"))
        super().__init__(str(file), self._flock)
        with get_lock_file(self._flock):  # half a line, onto which the next one would be written
            whole = file.read_bytes().rfind(b"\n") + 1
            if whole < file.stat().st_size:
                os.truncate(file, whole)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append in one piece."""
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with get_lock_file(self._flock), self._file.open("ab") as opened:
            opened.write(lines.encode())


def default_uri(folder: Path) -> str:
    """A journal in the tuning's own folder."""
    return f"{JOURNAL}{folder / 'storage.journal'}"


def check_uri(uri: str, jobs: int | None) -> int | None:
    """How many trials may run at once: `jobs`, or what the storage bears where that is None. Raises RequestError."""
    if not uri.startswith((JOURNAL, *DATABASES)) or uri in (JOURNAL, "sqlite:///"):
        raise RequestError(f"--storage {uri} is no storage: use journal:FILE, sqlite:///FILE, postgresql://, mysql://")
    if not uri.startswith("sqlite:///"):
        return jobs
    if jobs not in (None, 1):
        raise RequestError(
            f"--jobs {jobs} is more than --storage {uri} can serve: SQLite serves 1 trial at a time, a journal or a"
            " database server many"
        )
    return 1


def open_storage(uri: str) -> BaseStorage:
    """The storage at a checked URI, made where there is none. Raises RequestError where it cannot be opened."""
    try:
        if not uri.startswith(JOURNAL):
            return RDBStorage(uri)
        return JournalStorage(JournalFile(Path(uri.removeprefix(JOURNAL))))
    except (OSError, ValueError, KeyError, ImportError, SQLAlchemyError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise RequestError(f"--storage {uri} cannot be opened: {reason}") from error


def is_there(uri: str) -> bool:
    """Whether the file of a storage exists; a server is asked when it is opened."""
    return not uri.startswith((JOURNAL, "sqlite:///")) or Path(uri.partition(":")[2].removeprefix("///")).exists()


class Owner:
    """A command that does trials: a file whose lock it holds as long as it lives, on whatever machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "commands"
        self.name = f"{socket.gethostname()}-{os.getpid()}"

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Be alive; what dead commands left is removed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in self.folder.iterdir():
            if not is_held(file):
                file.unlink(missing_ok=True)
        own = self.folder / self.name
        with exclusive(own):
            try:
                yield
            finally:
                own.unlink(missing_ok=True)

    def is_dead(self, name: str | None) -> bool:
        """Whether nobody does the trials of that owner any more but we ourselves; None: it died before it signed."""
        return name is None or name == self.name or not is_held(self.folder / name)

    def others(self) -> list[str]:
        """Other commands that are at work on this tuning."""
        with suppress(FileNotFoundError):
            return sorted(one.name for one in self.folder.iterdir() if one.name != self.name and is_held(one))
        return []
