"""outcome.json: how a run ended, written last. Light: the parent of a sweep writes it for a worker that died."""

from __future__ import annotations

import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from grpolab.errors import RequestError
from grpolab.identity import is_library
from grpolab.paths import read_json, write_json_atomic
from grpolab.vocabulary import FAILED


@dataclass(frozen=True)
class Outcome:
    """The file's keys; what is not known is None."""

    outcome: str  # of the vocabulary
    reason: str | None  # where it did not run to its last rollout step; the first line says it all
    rollout_steps: int  # that were finished
    optimizer_steps: int | None = None
    completions: int | None = None
    final: dict[str, float] = field(default_factory=dict)  # metrics of the last finite evaluation
    policy_sha256: str | None = None
    journal_sha256: str | None = None
    seconds: float | None = None
    error: str | None = None  # traceback


def conclude(folder: Path, outcome: Outcome) -> dict[str, Any]:
    """Write a run's outcome, and return what was written."""
    record = asdict(outcome)
    write_json_atomic(folder / "outcome.json", record)
    (folder / "running.json").unlink(missing_ok=True)
    return record


def record_failure(folder: Path, reason: str, rollout_steps: int, error: str | None = None) -> dict[str, Any]:
    """Write down that a run failed, unless it reached an outcome of its own; the outcome that stands."""
    standing = read_json(folder / "outcome.json")
    return standing or conclude(folder, Outcome(FAILED, reason, rollout_steps, error=error))


def reason_of(error: BaseException) -> str:
    """The error in words; where code of the user's raised it, with the place in front."""
    said = str(error) if isinstance(error, RequestError) else f"{type(error).__name__}: {error}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}: {said}" if frames else said


def _is_users(file: str) -> bool:
    return not file.startswith("<") and not is_library(Path(file))
