"""Pages of invented studies, as `grpolab report` writes them. No number here is a result."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from report_results import HYPOTHESES, cells_of, write_run, write_study

from grpolab.look import document
from grpolab.look.page import application, embed
from grpolab.paths import Results
from grpolab.report import html, page
from grpolab.report.claims import decide
from grpolab.report.load import load

STUDY = "clip_range"
FACTORS = {"clip": ["symmetric", "clip_higher", "no_clip"], "task": ["addition", "sorting"]}
SAMPLED_STEPS = (0, 4, 8)
GROUPS = {"16+51=": [["6", "7"], ["6", "8"], ["7", "6", "7"]], "2+2=": [["4"], ["5"], ["\n", "4"]]}


def write_samples(folder: Path, step: int, groups: dict[str, list[list[str]]]) -> None:
    """Keep groups of completions, each a list of tokens, as the recorder does; the first of a group is right."""
    rows = []
    for place, (prompt, completions) in enumerate(groups.items()):
        for sample, tokens in enumerate(completions):
            of_completion = {"prompt_index": place, "sample": sample, "prompt": prompt, "completion": "".join(tokens)}
            of_completion |= {"reward": float(sample == 0), "reward_correct": float(sample == 0)}
            of_completion |= {"advantage": 1.25 if sample == 0 else -0.625}
            for position, token in enumerate(tokens):
                ratio = 1 + 0.03 * step * (1 - sample) + 0.01 * position
                clipped = "high" if ratio > 1.2 else "low" if ratio < 0.8 else ""
                numbers = {"old_log_prob": -0.1 * (position + 1), "ratio": ratio, "entropy": 0.2 + 0.1 * position}
                rows.append(of_completion | numbers | {"position": position, "token": token, "clipped": clipped})
    pd.DataFrame(rows).assign(gap=0.001).to_parquet(folder / "samples" / f"step_{step:06}.parquet")


def small_study(root: Path) -> Results:
    """Three arms on two tasks with three seeds, of which one run diverged; every run kept completions."""
    factor = {"id": "H7", "says": "A higher bound clips less.", "metric": "clip/active", "scale": "log"}
    claims = [*HYPOTHESES, HYPOTHESES[0] | factor | {"contrast": {"of": "clip_higher", "minus": "symmetric"}}]
    results = write_study(root, STUDY, FACTORS, figures=["F1"], looks=[3], hypotheses=claims)
    *_, last = cells_of(results)
    write_run(results, last, "diverged", last_step=6)
    for cell in cells_of(results):
        for step in SAMPLED_STEPS:
            write_samples(results.run(cell["signature"]), step, GROUPS)
    return results


def write_page(results: Results, study: str = STUDY) -> Path:
    """Write the report of a study with its figures, and return its HTML file."""
    page.write(results, study, application=lambda studies, claims: application(studies, claims, datetime.now(UTC)))
    return results.output(study) / "report.html"


def document_of(results: Results, study: str = STUDY) -> document.Document:
    """The document of a study's page."""
    studies = load(results, study)
    return document.make(studies, decide(studies), datetime.now(UTC))


def write_numbers(numbers: document.Document, file: Path, text: str = "# Page\n") -> str:
    """Write a page of a document, without figures, and return its address."""
    file.write_text(html.from_markdown(text, file.parent, application=embed(numbers)))
    return file.as_uri()


def multiplied(numbers: document.Document, runs: int, studies: int) -> document.Document:
    """The same runs again and again, as further seeds of equal studies, until there are so many."""
    (study,) = numbers["studies"]
    large = numbers | {"runs": [], "studies": [], "samples": []}
    for part in range(studies):
        cells: list[Sequence[int]] = []
        while len(cells) < runs // studies:
            more = 1 + max((seed for *_, seed in cells), default=-1)
            for run, arm, facet, seed in study["cells"]:
                cells.append([len(large["runs"]), arm, facet, more + seed])
                large["runs"].append(copy.copy(numbers["runs"][run]) | {"signature": f"{len(large['runs']):016x}"})
        large["studies"].append(study | {"name": f"{STUDY}_{part}", "cells": cells})
    return large
