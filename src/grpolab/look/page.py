"""What a report's HTML holds besides its text: the numbers, and the program that shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from grpolab.doctor.causes import Finding
from grpolab.look import document
from grpolab.report.claims import Claim
from grpolab.report.load import StudyRuns

WEB = Path(__file__).parent / "web"


def application(
    studies: Sequence[StudyRuns],
    claims: Sequence[Claim],
    now: datetime,
    causes: Mapping[str, tuple[Finding, ...]] | None = None,
) -> str:
    """Return the elements that make a report answer to the hand: its document as JSON, style and program.

    `causes`: the findings of each run, by signature, where the doctor has seen more than the study's tables.
    """
    return embed(document.make(studies, claims, now, causes=causes))


def embed(numbers: document.Document) -> str:
    """Return the elements of a document; the program and its style are files of this package (`web/bundle.py`)."""
    style, program = ((WEB / f"bundle.{end}").read_text(encoding="utf-8") for end in ("css", "js"))
    return (
        f'<script type="application/json" id="data">{document.to_json(numbers)}</script>\n'
        f"<style>\n{style}</style>\n<script>\n{program}</script>"
    )
