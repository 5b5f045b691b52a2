"""All rules, and what they find in a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from grpolab.errors import RequestError
from grpolab.report.columns import column
from grpolab.report.diagnosis import breakdown, first_pass, metric, notes, old_policy, signal, step, trust
from grpolab.report.diagnosis.evidence import Evidence
from grpolab.report.diagnosis.finding import Diagnosis, Finding
from grpolab.report.diagnosis.logs import Row, evidence_of, read_log, recognised
from grpolab.report.diagnosis.names import NAMES, NEEDED
from grpolab.report.diagnosis.read import read_run
from grpolab.report.text import count
from grpolab.vocabulary import METRICS

Rule = Callable[[Evidence], Finding | None]

# One rule for each cause, under its name.
RULES: tuple[Rule, ...] = (
    old_policy.aliased_old_policy,
    old_policy.resynchronised_old_policy,
    old_policy.recomputed_old_log_probs,
    signal.constant_reward,
    signal.overscaled_advantages,
    signal.weak_signal,
    step.frozen_parameters,
    step.low_precision_weights,
    step.gradient_clipping,
    step.endless_warmup,
    step.tiny_learning_rate,
    trust.strong_kl,
    trust.tiny_epsilon,
    breakdown.unclipped,
    first_pass.dropout,
    first_pass.visible_padding,
    first_pass.temperature_mismatch,
    first_pass.mask_mismatch,
    first_pass.precision_mismatch,
    breakdown.kl_overflow,
    breakdown.unbounded_cell,
    breakdown.collapse,
    breakdown.entropy_explosion,
    breakdown.entropy_collapse,
    breakdown.length_blow_up,
    signal.starving_variance,
    metric.padding_in_clip_metric,
)
NOTES: tuple[Callable[[Evidence], str | None], ...] = (notes.no_reuse, notes.zero_first_loss)


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
    """The causes in a run's evidence, best first, and what only looks odd."""
    found = [finding for rule in RULES if (finding := rule(run))]
    said = {note.__name__: text for note in NOTES if (text := note(run))}
    open_question = notes.undecided(run)
    unknown = (*([open_question] if open_question else []), *_not_looked_at(run), *run.unknown)
    causes = tuple(sorted(found, key=lambda one: one.rank))
    return Diagnosis(run.run, run.state, causes, said, unknown, breakdown.fall(run))


def _not_looked_at(run: Evidence) -> Iterator[str]:
    """What a column would show that is missing or holds values that are not finite, one sentence each."""
    for name, what in NEEDED.items():
        table = {"update": run.updates, "rollout": run.rollouts, "evaluation": run.evaluations}[METRICS[name].kind]
        values = column(table, name)
        odd = run.not_finite.get(name, int((~np.isfinite(values)).sum()))
        if not len(values) and not odd:
            yield f"{what}: {name} is missing"
        elif odd:
            yield f"{what}: {name} is not finite in {count(odd, 'record')}"
    if not breakdown.has_score(run):
        yield "whether accuracy or reward fell: eval/accuracy_expected and reward/mean are missing or not finite"
