"""Make the interactive part of a report's HTML: its numbers, and the program that shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from grpolab.doctor.causes import Finding
from grpolab.doctor.evidence import Evidence
from grpolab.doctor.other_runs import FoundRun, make_study
from grpolab.doctor.page import Diagnosis, text
from grpolab.look import document
from grpolab.paths import SIGNATURE, Results
from grpolab.readers.log_folders import FoundLog
from grpolab.records import read_settings
from grpolab.report import html
from grpolab.report.claims import Claim
from grpolab.report.load import StudyRuns, read_runs, study_of

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


def of_run(results: Results, run: Evidence, diagnosis: Diagnosis, now: datetime) -> str:
    """Return the page of one run, of ours or of another framework: its diagnosis, its curves, its kept completions."""
    study = _study_of_run(results, run)
    causes = dict.fromkeys(study.cells["signature"], diagnosis.findings)
    words = text(diagnosis).replace("```", "` ` `")
    markdown = f"# Diagnosis of {run.run}\n\n```\n{words}\n```\n"
    return html.from_markdown(markdown, Path(), application=application([study], [], now, causes))


def _study_of_run(results: Results, run: Evidence) -> StudyRuns:
    """Return a run as a study with one cell."""
    folder = results.run(run.run) if SIGNATURE.fullmatch(run.run) else None
    if not folder or not folder.is_dir():
        found = FoundRun(FoundLog(run.run, "", Path(run.run)), run)
        return make_study(results, run.run, [found], {}, None)[0]
    settings = read_settings(folder)
    cell = {
        **{"variant": run.run, "levels": {"run": run.run}, "seed": settings.get("seed", 0), "signature": run.run},
        **{"rollout_steps": settings.get("rollout_steps", 0), "settings": run.settings},
    }
    plan = {
        **{"study": run.run, "question": "One run.", "compare": "run", "baseline": run.run, "cells": [cell]},
        **{"factors": {"run": [run.run]}, "primary_metric": "eval/accuracy_expected", "includes": []},
    }
    return study_of(results, plan, read_runs(results, [run.run], unfinished=True))
