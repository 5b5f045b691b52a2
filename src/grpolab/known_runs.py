"""What has been read of finished runs, kept so that no command reads it twice: results/known_runs.json.

The run folders are the truth, and this is a cache: what is kept of a run counts while each of its files has the size
and the times that it had when it was read. The file may be deleted at any time; if it is damaged, or another version of
the program wrote it, it is as if there were none.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from grpolab.content import SETTLED_SECONDS, file_sha256
from grpolab.paths import Results, write_atomic
from grpolab.records import outcome_or_damage
from grpolab.run_files import JOURNAL, TIMING, Record, read_bytes
from grpolab.vocabulary import RESULTS

OF_A_RUN = ("outcome.json", "provenance.json", JOURNAL, TIMING)  # the files that status and report read
State = list[Any]  # of files: what `os.stat` says of each, None for an absent one


def state_of_files(*files: str | Path) -> State:
    """Return size, number and times of each file: a file that was changed, replaced or restored has another state."""
    states: State = []
    for file in files:
        try:
            found = os.stat(file)
            states.append([found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns])
        except (OSError, ValueError):
            states.append(None)
    return states


@cache
def program_sha256() -> str:
    """Return a hash of this program's source and tables: another one may read other things out of the same files."""
    whole = hashlib.sha256()
    for file in sorted(path for path in Path(__file__).parent.rglob("*.*") if path.suffix in (".py", ".yaml", ".csv")):
        whole.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


class KeptFile:
    """A JSON object in a file that counts only as this program wrote it, for these `words`."""

    def __init__(self, file: Path, words: str = "") -> None:
        self.file, self._key = file, f"{program_sha256()} {words}\n".encode()

    def read(self) -> Record:
        """Return the object; an empty one if there is none, or not the whole of it, or it has another key."""
        with suppress(OSError, ValueError, RecursionError):
            digest, _, content = (read_bytes(self.file) or b"").partition(b"\n")
            if digest.decode() == hashlib.sha256(self._key + content).hexdigest():
                kept: Record = json.loads(content)
                return kept
        return {}

    def state(self) -> State:
        """Return the state of the file; another one may hold another object."""
        return [*state_of_files(self.file), self._key.decode()]

    def write(self, kept: Record) -> None:
        """Keep an object, if the disk lets it."""
        content = json.dumps(kept, separators=(",", ":")).encode()
        with suppress(OSError):
            digest = hashlib.sha256(self._key + content).hexdigest().encode()
            write_atomic(self.file, digest + b"\n" + content, durable=False)


_READ: dict[Path, tuple[State, dict[str, Record]]] = {}  # what this process has read of each file, and its state then


class KnownRuns:
    """What has been read of the finished runs in a results folder; all instances of a process share it."""

    def __init__(self, results: Results) -> None:
        self._results, self._file = results, KeptFile(results.root / "known_runs.json")
        state = self._file.state()
        if _READ.get(self._file.file, (None,))[0] != state:
            _READ[self._file.file] = state, self._file.read()
        self._runs, self._has_new = _READ[self._file.file][1], False

    def outcome(self, signature: str) -> Record | None:
        """Return what `records.outcome_or_damage` returns of the run's folder."""
        found: Record | None = self._read(signature)["outcome"]
        return found

    def sha256(self, signature: str) -> list[str]:
        """Return the hash of each file `OF_A_RUN`; in its place the name of the error if it cannot be read."""
        known = self._read(signature)
        if "sha256" not in known:
            known["sha256"] = [content_sha256(file) for file in self._files(signature)]
        hashes: list[str] = known["sha256"]
        return hashes

    def derived(self, signature: str, name: str, make: Callable[[Path], Any]) -> Any:
        """Return what `make` makes of the folder, something that JSON can hold and that OF_A_RUN alone decide."""
        known = self._read(signature)
        if name not in known:
            known[name] = make(self._results.run(signature))
            self._has_new |= self._runs.get(signature) is known
        return known[name]

    def save(self) -> None:
        """Keep what is new for the next command."""
        if self._has_new and self._results.is_ours and self._results.runs.is_dir():
            there, kept = set(os.listdir(self._results.runs)), KnownRuns(self._results)._runs  # others may have written
            for name, known in self._runs.items():
                other = kept.get(name, known)
                kept[name] = {**other, **known} if other["state"] == known["state"] else known
            for name in kept.keys() - there:
                del kept[name]
            self._file.write(kept)
            self._runs, _READ[self._file.file] = kept, (self._file.state(), kept)
        self._has_new = False

    def _files(self, signature: str) -> list[str]:
        folder = self._results.run(signature)
        return [f"{folder}/{name}" for name in OF_A_RUN]

    def _read(self, signature: str) -> Record:
        """Return what is known of a run; read it if that is not of its files as they are now."""
        files = self._files(signature)
        state, known = state_of_files(*files), self._runs.get(signature)
        if known and known["state"] == state:
            return known
        began, outcome = time.time(), outcome_or_damage(self._results.run(signature))
        known = {"state": state, "outcome": outcome}
        if outcome and outcome["outcome"] in RESULTS:
            known["sha256"] = [content_sha256(file) for file in files]
            changed = max((times[-1] for times in state if times), default=0) / 1e9
            if state_of_files(*files) == state and began - changed > SETTLED_SECONDS:
                self._runs[signature], self._has_new = known, True
        return known


class Copied:
    """What the tracking store holds of a study, so that a pass asks it for no run that is complete.

    It counts while the store's file has the state in which the last pass left it; a server is asked each time. What
    another program changes in the store during a pass that writes goes unseen here; `grpolab track verify` sees it.
    """

    def __init__(self, kept: KeptFile, state: State | None) -> None:
        known = kept.read() if state else {}
        self._kept = kept
        self.state = state if known.get("state") == state else None  # of the store; None: it must be asked
        self.who: dict[str, list[str]] = known["who"] if self.state else {}  # run id -> variant, seed, signature
        # Run id -> `mark_of` what it was made equal to.
        self.complete: dict[str, str] = known["complete"] if self.state else {}
        self.is_new = False  # True: more is complete than was read

    def keep(self, state: State | None) -> None:
        """Keep it for the next pass, with the state in which this one leaves the store."""
        if state and (self.is_new or state != self.state):
            self._kept.write({"who": self.who, "complete": self.complete, "state": state})


def mark_of(folder: Path, cell: Record, *others: Any) -> str:
    """Return a hash of all that a cell's run in the store is made from, without reading the files of its folder."""
    of_cell = [cell.get(key) for key in ("variant", "seed", "signature", "levels", "task_title")]
    whole = [of_cell, cell["settings"].get("task"), others, state_of_files(*(f"{folder}/{name}" for name in OF_A_RUN))]
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()


def content_sha256(file: str | Path) -> str:
    """Return the hash of a file's content; the name of the error if it cannot be read."""
    try:
        return file_sha256(Path(file))
    except OSError as error:
        return type(error).__name__
