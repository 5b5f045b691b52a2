"""Diagnoses of many runs: a report's section on lost runs and on causes, and a file for the tracking store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import Any

import pandas as pd

from grpolab.doctor.causes import Finding
from grpolab.doctor.evidence import TABLES, Evidence
from grpolab.doctor.page import find_causes
from grpolab.doctor.run_folder import PLANTED
from grpolab.known_runs import KnownRuns
from grpolab.paths import Results, write_json_atomic
from grpolab.report.journals import column, largest
from grpolab.report.load import StudyRuns
from grpolab.report.measures import keep_of_run, kept_quantities, stability_table
from grpolab.report.text import count, markdown_table, number, spans
from grpolab.run_files import Record

ENDED = ("collapsed", "diverged", "stopped")  # the labels that make a run `lost`
EFFECT = "destroyed_policy"  # this cause says that nearly all skill is lost, not why
UNKNOWN = "no cause that the doctor knows"
ASSESSED = ("final_score", "gain", "lost", "collapsed")  # numbers of a run that the tracking store gets


@dataclass(frozen=True)
class Examined:
    """A run with the report's labels (`stability_table`) and the doctor's findings."""

    arm: str
    seed: int
    run: str  # what `grpolab diagnose` calls it
    lost: str  # one of ENDED, or empty
    course: str  # start, peak and end of its score
    findings: tuple[Finding, ...]

    @property
    def cause(self) -> str:
        """The first cause in words; empty if there is none, or only EFFECT."""
        first = self.findings[0].cause if self.findings else EFFECT
        return "" if first == EFFECT else first.replace("_", " ")


def section(parts: Sequence[StudyRuns]) -> str:
    """Return the section about the runs of some studies, from their journals alone; empty if nothing was run."""
    runs: dict[str, Examined] = {}
    for part in parts:  # a run that several studies share is counted once
        causes = {signature: findings for signature, findings in causes_of(part).items() if signature not in runs}
        runs |= {run.run: run for run in examined(part, causes, f"{part.name}: " if len(parts) > 1 else "")}
    return write([*runs.values()]) if runs else ""


@lru_cache(maxsize=32)
def causes_of(part: StudyRuns) -> dict[str, tuple[Finding, ...]]:
    """Return the findings of each run of a study by signature, which are kept from one command to the next.

    Cached: section and tracking store both need them.
    """
    tables = {name: getattr(part, name).groupby("signature") for name in TABLES.values()}
    numbers, causes, known = kept_quantities(part), dict[str, tuple[Finding, ...]](), KnownRuns(part.results)
    columns = part.done.filter(like="setting/").rename(columns=lambda name: name.removeprefix("setting/"))
    for cell, of_run in zip(part.done.itertuples(), columns.to_dict("records"), strict=True):
        is_whole = cell.signature in tables["updates"].indices
        settings = of_run | {"evaluation.items": getattr(cell, "evaluation_items", None)}
        facts = {
            "state": cell.outcome,
            "settings": {key: value for key, value in settings.items() if pd.notna(value) and key not in PLANTED},
            "numbers": {} if is_whole else numbers.get(cell.signature, {}),
            "thresholds": part.thresholds,
            "metric": part.metric,
        }
        find = partial(_find, tables, cell.signature, facts)
        records = keep_of_run(part, known, cell, "causes", (is_whole, facts), find)
        of_json = [record | {key: tuple(record[key]) for key in ("evidence", "instead")} for record in records]
        causes[cell.signature] = tuple(Finding(**record) for record in of_json)
    known.save()
    return causes


def _find(tables: Mapping[str, Any], signature: str, facts: Record) -> list[Record]:
    """Return the findings of a run as records that JSON can hold."""
    rows = {
        name: of.get_group(signature).dropna(axis=1, how="all") if signature in of.indices else pd.DataFrame()
        for name, of in tables.items()
    }
    return [asdict(replace(finding, words={})) for finding in find_causes(Evidence(run=signature, **rows, **facts))]


def examined(part: StudyRuns, causes: Mapping[str, tuple[Finding, ...]], prefix: str = "") -> Iterator[Examined]:
    """Yield the runs of a study whose signature is in `causes`, with the study's own labels and numbers."""
    for cell, labels in zip(part.done.itertuples(), stability_table(part).to_dict("records"), strict=True):
        if cell.signature in causes:
            peak = largest(column(part.of_cell("evaluations", cell), part.metric))
            yield Examined(
                arm=f"{prefix}{cell.variant}",
                seed=cell.seed,
                run=cell.signature,
                lost=next((label for label in ENDED if labels[label]), ""),
                course=f"{number(labels['start'])}, {number(peak)}, {number(labels['final_score'])}",
                findings=causes[cell.signature],
            )


def write(runs: Sequence[Examined]) -> str:
    """Write the section in Markdown: counts of lost runs, then a row for each arm with a lost run or a cause."""
    lost = [run for run in runs if run.lost]
    known, ill = sum(bool(run.cause) for run in lost), sum(bool(run.cause) and not run.lost for run in runs)
    ended = ", ".join(f"{n} {label}" for label in ENDED if (n := sum(run.lost == label for run in lost)))
    head = (
        "## Diagnosis\n\nFrom the journals alone (`grpolab diagnose RUN` looks at completions and weights too):"
        f" {len(lost):,} of {count(len(runs), 'run')} are lost{f' ({ended})' if ended else ''}: {known} with a cause"
        f" that the doctor knows, {len(lost) - known} without. Of the other {len(runs) - len(lost):,}, {ill} have a"
        f" cause of trouble and {len(runs) - len(lost) - ill:,} have none that is known. Numbers before a colon are"
        " seeds."
    )
    arms = dict.fromkeys(run.arm for run in runs if run.lost or run.cause)
    rows = [_row(arm, [run for run in runs if run.arm == arm]) for arm in arms]
    return f"{head}\n\n{markdown_table(pd.DataFrame(rows))}" if rows else head


def _row(arm: str, runs: Sequence[Examined]) -> dict[str, str]:
    """Return an arm's row: the seeds of each cause, evidence from one of its runs, and each lost run's scores."""
    by_cause: dict[str, list[Examined]] = {}
    for run in sorted((run for run in runs if run.lost or run.cause), key=lambda run: run.seed):
        by_cause.setdefault(run.cause or UNKNOWN, []).append(run)
    causes = sorted(by_cause.items(), key=lambda of: -len(of[1]))
    lost = sorted((run for run in runs if run.lost), key=lambda run: run.seed)
    courses = (f"{run.seed}: {run.course}{'' if run.lost == ENDED[0] else f' ({run.lost})'}" for run in lost)
    evidence = (
        f"{run.seed} ({run.run}, {run.findings[0].confidence}): {'; '.join(run.findings[0].evidence)}"
        for run in (of[0] for _, of in causes)
        if run.cause
    )
    return {
        "arm": arm,
        "lost": f"{len(lost)} of {len(runs)}",
        "seeds by cause": "; ".join(f"{spans(run.seed for run in of)}: {cause}" for cause, of in causes),
        "start, peak and end of the lost": "; ".join(courses),
        "evidence": ". ".join(evidence),
    }


def assess(results: Results, studies: Sequence[StudyRuns]) -> None:
    """Write each study's assessment: label, cause and numbers of every run, which the tracking store copies."""
    for study in studies:
        if not len(study.done) or not results.plan(study.name).is_file():  # committed runs are not tracked
            continue
        rows = stability_table(study).to_dict("records")
        runs = {
            run.run: {
                "metrics": {name: float(row[name]) for name in ASSESSED if math.isfinite(row[name])},
                "tags": {"lost": run.lost or "no", "cause": run.cause or "none known"},
            }
            for run, row in zip(examined(study, causes_of(study)), rows, strict=True)
        }
        write_json_atomic(results.assessment(study.name), runs)
