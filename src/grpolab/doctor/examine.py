"""All questions and causes, and what they find in a run: `diagnose`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from grpolab.doctor.breakdown import TRAINING_GOES_WRONG, fall, has_score
from grpolab.doctor.causes import Confidence, Finding
from grpolab.doctor.evidence import Evidence, distance_from_one, middle
from grpolab.doctor.first_pass import FIRST_RATIO_IS_NOT_ONE
from grpolab.doctor.misleading import METRIC_MISLEADS, NOTES
from grpolab.doctor.ratio_is_one import RATIO_IS_ONE
from grpolab.doctor.read import NAMES, Row, evidence_of, read_log, read_run, recognised
from grpolab.errors import RequestError
from grpolab.report.journals import column
from grpolab.report.text import count, number
from grpolab.vocabulary import METRICS

QUESTIONS = (RATIO_IS_ONE, FIRST_RATIO_IS_NOT_ONE, TRAINING_GOES_WRONG, METRIC_MISLEADS)
CAUSES = {cause.name: cause for question in QUESTIONS for cause in question.causes}


@dataclass(frozen=True)
class Note:
    """What only looks odd in one run."""

    name: str
    says: str
    evidence: str


@dataclass(frozen=True)
class Diagnosis:
    """What a run's numbers say: causes, best first, what only looks odd, and whether the run ended with less.

    No cause means that no rule fits, which is not that nothing is wrong: `fall` and `unknown` say more.
    """

    run: str
    state: str  # how the run ended, or that it has not
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]
    unknown: tuple[str, ...]  # what could not be looked at, one sentence each
    fall: str | None  # that accuracy (or reward, where only that is there) fell, with the numbers


def diagnose(folder: Path) -> Diagnosis:
    """The causes in a run folder. Raises RequestError where its settings cannot be read."""
    return examine(read_run(folder))


def diagnose_log(framework: str, path: Path) -> Diagnosis:
    """The causes in a log file of another framework. Raises RequestError where it cannot be read as one."""
    return examine(read_log(framework, path))


def diagnose_rows(run: str, rows: Sequence[Row]) -> Diagnosis:
    """The causes in the metrics of a run that was tracked elsewhere, whose framework its names tell.

    Raises RequestError where no name is known.
    """
    framework = recognised([name for row in rows for name in row])
    if framework is None:
        raise RequestError(f"run {run} holds no metric of an update that the doctor knows ({', '.join(NAMES)})")
    return examine(evidence_of(framework, run, rows))


def examine(run: Evidence) -> Diagnosis:
    """The causes in a run's evidence, surest first (among equals the one that explains the others), and the rest."""
    findings = [finding for cause in CAUSES.values() if (finding := cause.rule(run))]
    findings.sort(key=lambda finding: get_args(Confidence).index(finding.confidence))
    notes = tuple(Note(note.__name__, says, text) for note, says in NOTES.items() if (text := note(run)))
    unknown = (*_undecided(run), *_not_looked_at(run), *run.unknown)
    return Diagnosis(run.run, run.state, tuple(findings), notes, unknown, fall(run))


def _undecided(run: Evidence) -> Iterator[str]:
    """Where the log says that nothing is clipped, and not why: the readings that it leaves open."""
    clipped = column(run.updates, "clip/active")
    if not len(clipped) or clipped.max() > 0 or len(distance_from_one(run.updates)) or run.updates_per_batch == 1:
        return
    rate, norm = middle(run.updates, "learning_rate"), middle(run.updates, "grad_norm")
    yield (
        f"why the clip fraction is 0 in all {count(len(clipped), 'row')}: one update per batch (then it is normal), an"
        " old policy that follows the live one, or steps too small to matter; the log has neither the ratio nor the"
        f" updates per batch (learning rate {number(rate)}, gradient norm {number(norm)}, medians)"
    )


# Metric -> what cannot be said without it, or where it is not finite.
NEEDED = {
    "loss": "the loss",
    "grad_norm": "the gradient's size: a weak signal, gradient clipping, spikes",
    "ratio/token_max": "how far the ratio is from 1",
    "ratio/token_max_neg": "large ratios of tokens with A < 0",
    "clip/active": "the clip fraction",
    "cf/token_0.2": "what the usual clip range would have clipped: too small an epsilon, or no clip",
    "kl_old/k3": "what makes the ratio differ from 1 on the first pass: dropout, padding, temperature, mask, precision",
    "weights/step_norm": "whether the weights move: frozen parameters and low precision",
    "zero_variance/share": "groups with equal rewards: a constant reward, and starving variance",
    "entropy/behaviour": "whether the entropy fell or grew",
    "truncation/share": "whether completions grow until they are cut off",
    "reward/mean": "whether the reward fell",
}


def _not_looked_at(run: Evidence) -> Iterator[str]:
    """What a column would show that is missing or holds values that are not finite, one sentence each."""
    for name, what in NEEDED.items():
        values = column(run.updates if METRICS[name].kind == "update" else run.rollouts, name)
        odd = run.not_finite.get(name, int((~np.isfinite(values)).sum()))
        if odd:
            yield f"{what}: {name} is not finite in {count(odd, 'record')}"
        elif not len(values):
            yield f"{what}: {name} is missing"
    if not has_score(run):
        yield "whether accuracy or reward fell: eval/accuracy_expected and reward/mean are missing or not finite"
