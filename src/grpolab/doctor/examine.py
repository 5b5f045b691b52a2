"""All rules, and what they find in a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from grpolab.doctor import learning, ratio
from grpolab.doctor.evidence import Diagnosis, Evidence, Finding
from grpolab.doctor.read import NAMES, NEEDED, Row, evidence_of, read_log, read_run, recognised
from grpolab.errors import RequestError
from grpolab.report.journals import column
from grpolab.report.text import count
from grpolab.vocabulary import METRICS

Rule = Callable[[Evidence], Finding | None]

# One rule for each cause, under its name.
RULES: tuple[Rule, ...] = (
    ratio.aliased_old_policy,
    ratio.resynchronised_old_policy,
    ratio.recomputed_old_log_probs,
    learning.constant_reward,
    learning.overscaled_advantages,
    learning.weak_signal,
    ratio.frozen_parameters,
    ratio.low_precision_weights,
    ratio.gradient_clipping,
    ratio.endless_warmup,
    ratio.tiny_learning_rate,
    ratio.strong_kl,
    ratio.tiny_epsilon,
    learning.unclipped,
    ratio.dropout,
    ratio.visible_padding,
    ratio.temperature_mismatch,
    ratio.mask_mismatch,
    ratio.precision_mismatch,
    learning.kl_overflow,
    learning.unbounded_cell,
    learning.collapse,
    learning.entropy_explosion,
    learning.entropy_collapse,
    learning.length_blow_up,
    learning.starving_variance,
    learning.padding_in_clip_metric,
)
NOTES: tuple[Callable[[Evidence], str | None], ...] = (learning.no_reuse, learning.zero_first_loss)


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
    open_question = learning.undecided(run)
    unknown = (*([open_question] if open_question else []), *_not_looked_at(run), *run.unknown)
    causes = tuple(sorted(found, key=lambda one: one.rank))
    return Diagnosis(run.run, run.state, causes, said, unknown, learning.fall(run))


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
    if not learning.has_score(run):
        yield "whether accuracy or reward fell: eval/accuracy_expected and reward/mean are missing or not finite"
