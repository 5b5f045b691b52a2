"""The screen of a study (the first page of its report) for a terminal: computed once, then kept in a file.

It is computed again if the content of a plan, a run folder, the committed outcome (results/reference/), the registry at
the commits of its runs, or this program has changed. Times of files do not matter, except that a run whose files keep
them is not read again (`known_runs.py`).

The committed outcome has its screens too, so that a fresh clone answers at once. They are used while no cell of the
study has a run folder here; `tests/report/test_screen.py` checks that they are what this program computes.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpolab.known_runs import KnownRuns, content_sha256, program_sha256
from grpolab.paths import Results, read_json, write_json_atomic
from grpolab.report.plans import find_elsewhere, plans_of
from grpolab.report.registered import has_history, registry_at

if TYPE_CHECKING:
    from grpolab.report.load import StudyRuns

COMPUTED_BY = ("numpy", "pandas", "pyarrow", "scipy")


def screen(results: Results, name: str) -> str:
    """Return the screen of a study as text; draw nothing. Raises RequestError as `page.write`."""
    if _is_as_committed(results, name) and (text := _read(_committed_file(results, name), committed_state(results))):
        return text
    state = state_of(results, name)
    return _read(_file(results, name), state) or keep(results, name, state, *_compute(results, name))


def _compute(results: Results, name: str) -> tuple[Sequence[StudyRuns], str]:
    """Load a study and decide its claims; return its runs and its screen in Markdown."""
    from grpolab.report import brief
    from grpolab.report.claims import decide, decide_elsewhere
    from grpolab.report.load import load

    studies = load(results, name)
    return studies, brief.screen(studies, decide(studies), decide_elsewhere(results, studies))


def _read(file: Path, state: str) -> str | None:
    """Return the screen that a file keeps, or None if it was computed from another state."""
    match read_json(file) or {}:
        case {"state": known, "registered": dict(lines), "text": str(text)}:
            return text if known == state and (lines == _registered(lines) or not has_history()) else None
    return None


def _is_as_committed(results: Results, name: str) -> bool:
    """Return True if only the committed outcome has the study: no plan and no run of it is here."""
    if results.plan(name).exists() or not results.committed_plan(name).is_file():
        return False
    return not any(
        results.run(cell["signature"]).exists() for plan in plans_of(results, name) for cell in plan["cells"]
    )


def committed_state(results: Results) -> str:
    """Return a hash of the committed outcome: its plans and tables."""
    return _hash_of(sorted([*results.reference.glob("plans/*.json"), *results.reference.glob("*.parquet")]))


def write_committed(results: Results) -> list[Path]:
    """Write the screen of every committed study beside the committed outcome; return the files."""
    from grpolab.report.plans import outcome_at

    alone, state, files = outcome_at(results.reference), committed_state(results), list[Path]()
    for plan in sorted(results.reference.glob("plans/*.json")):
        files.append(_committed_file(results, plan.stem))
        write_json_atomic(files[-1], _record(state, *_compute(alone, plan.stem)))
    return files


def _record(state: str, studies: Sequence[StudyRuns], markdown: str) -> dict[str, Any]:
    """Return what is kept of a screen."""
    from grpolab.report.brief import strip_markdown

    commits = {commit for study in studies if "commit" in study.done for commit in study.done["commit"].dropna()}
    text = strip_markdown(f"{studies[-1].plan['question']}\n\n{markdown}")
    return {"state": state, "registered": _registered(sorted(commits)), "text": text}


def keep(results: Results, name: str, state: str, studies: Sequence[StudyRuns], markdown: str) -> str:
    """Return the screen as text, and keep it for the next call; `state` was taken before its studies were loaded.

    It is not kept if the state has changed meanwhile, or if the folder is read-only or only a reference.
    """
    record = _record(state, studies, markdown)
    if (results.root / "format.json").is_file() and state_of(results, name) == state:
        with suppress(OSError):
            write_json_atomic(_file(results, name), record, durable=False)
    return str(record["text"])


def state_of(results: Results, name: str) -> str:
    """Return a hash of all that the screen is computed from, except the registry. Raises RequestError as `plans_of`."""
    plans = plans_of(results, name)
    plans += [plan for other in find_elsewhere(results, plans) for plan in plans_of(results, other)]
    signatures = dict.fromkeys(cell["signature"] for plan in plans for cell in plan["cells"])
    files = [
        *sorted([*results.studies.glob("*/plan.json"), *results.reference.glob("plans/*.json")]),  # others' share runs
        *sorted(results.reference.glob("*.parquet")),
    ]
    known = KnownRuns(results)
    runs = [known.sha256(signature) for signature in signatures]
    known.save()
    program = [program_sha256(), sys.version, *map(version, COMPUTED_BY)]
    return _hash_of(files, repr([str(results.root), program, runs]))


def _hash_of(files: Iterable[Path], words: str = "") -> str:
    """Return a hash of some words and of the names and contents of files; an unreadable file has no content."""
    whole = hashlib.sha256(words.encode())
    for path in files:
        whole.update(f"{path.name} {content_sha256(path)}\n".encode())
    return whole.hexdigest()


def _registered(commits: Iterable[str]) -> dict[str, str]:
    """Return commit -> hash of the registry there; it is read each time, because git may gain or lose a commit."""
    lines = {commit: "\n".join(sorted(registry_at(commit))) for commit in commits}
    return {commit: hashlib.sha256(text.encode()).hexdigest() for commit, text in lines.items()}


def _file(results: Results, name: str) -> Path:
    return results.screens / f"{name}.json"


def _committed_file(results: Results, name: str) -> Path:
    return results.reference / "screens" / f"{name}.json"
