"""The screen of a study for a terminal: computed once for what lies on the disk, and from then on read.

What it was computed from is known by content, never by times: plans, run folders, the committed reference, the registry
at the commits of its runs, and this program. Where any of it is another, it is computed again.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from grpolab.paths import Results, read_json, write_json_atomic
from grpolab.report.plans import plans_of
from grpolab.report.registered import registry_at

if TYPE_CHECKING:
    from grpolab.report.load import Study

OF_A_RUN = ("outcome.json", "provenance.json", "journal.jsonl", "timing.jsonl")  # what of its folder a report reads
COMPUTED_BY = ("numpy", "pandas", "pyarrow", "scipy")


def screen(results: Results, name: str) -> str:
    """The screen of a study as text; draws nothing. Raises RequestError as `page.write`."""
    state, kept = state_of(results, name), read_json(_file(results, name)) or {}
    match kept:
        case {"state": known, "registered": dict(lines), "text": str(text)}:
            if known == state and lines == _registered(lines):
                return text
    from grpolab.report import brief
    from grpolab.report.claims import decide
    from grpolab.report.load import load

    studies = load(results, name)
    return keep(results, name, state, studies, brief.screen(studies, decide(studies)))


def keep(results: Results, name: str, state: str, studies: Sequence[Study], markdown: str) -> str:
    """The screen as text, kept for the next who asks; `state` is that from before its studies were loaded.

    Not kept where that has changed since, nor in a folder that cannot be written or is a reference alone.
    """
    from grpolab.report.brief import plain

    text = plain(f"{studies[-1].plan['question']}\n\n{markdown}")
    commits = {commit for study in studies if "commit" in study.done for commit in study.done["commit"].dropna()}
    if (results.root / "format.json").is_file() and state_of(results, name) == state:
        with suppress(OSError):
            record = {"state": state, "registered": _registered(sorted(commits)), "text": text}
            write_json_atomic(_file(results, name), record, durable=False)
    return text


def state_of(results: Results, name: str) -> str:
    """A hash of all that the screen is computed from but the registry. Raises RequestError for an unknown study."""
    plans = plans_of(results, name)
    signatures = dict.fromkeys(cell["signature"] for plan in plans for cell in plan["cells"])
    files = [
        *(path for plan in plans for path in (results.plan(plan["study"]), results.committed_plan(plan["study"]))),
        *(results.run(signature) / file for signature in signatures for file in OF_A_RUN),
        *sorted(results.reference.glob("*.parquet")),
        *sorted(Path(__file__).parents[1].rglob("*.py")),
    ]
    whole = hashlib.sha256(repr([str(results.root), sys.version, *map(version, COMPUTED_BY)]).encode())
    for path in files:
        try:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            content = type(error).__name__
        whole.update(f"{path.name} {content}\n".encode())
    return whole.hexdigest()


def _registered(commits: Iterable[str]) -> dict[str, str]:
    """What the registry said at some commits, which git may learn or forget."""
    lines = {commit: "\n".join(sorted(registry_at(commit))) for commit in commits}
    return {commit: hashlib.sha256(text.encode()).hexdigest() for commit, text in lines.items()}


def _file(results: Results, name: str) -> Path:
    return results.screens / f"{name}.json"
