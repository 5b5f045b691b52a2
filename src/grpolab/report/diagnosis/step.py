"""Rules: there is a gradient, but no step, or hardly any."""

from __future__ import annotations

import numpy as np

from grpolab.report.columns import column
from grpolab.report.diagnosis.evidence import Evidence, Floats, largest, middle
from grpolab.report.diagnosis.finding import Finding
from grpolab.report.diagnosis.thresholds import (
    FEW_MOVED,
    FLOAT32_SPACING,
    MOST,
    ON_GRID,
    SMALL_FRACTION,
    STILL_REACH,
    WARM,
)
from grpolab.report.text import count, listing, number, percent


def frozen_parameters(run: Evidence) -> Finding | None:
    """The weights stay bit for bit what they were, though gradient and learning rate ask for more than rounding."""
    steps = run.steps[(run.steps["norm"] > 0) & (run.steps["rate"] * step_fraction(run) > FLOAT32_SPACING)]
    if steps.empty or _is_coarse(run):
        return None
    if (steps["step_norm"] == 0).mean() < MOST:
        return _partly_frozen(run)
    evidence = (
        f"the weights did not change at all in {count(int((steps['step_norm'] == 0).sum()), 'rollout step')}"
        f" of {len(steps)} that had a gradient",
        f"gradient norm {number(steps['norm'].median())} (median), learning rate"
        f" {number(largest(run.updates, 'learning_rate'))}",
    )
    return Finding("frozen_parameters", "certain", evidence)


def _partly_frozen(run: Evidence) -> Finding | None:
    """Some tensors stayed what they were, though the others made full steps; the policy hardly moved."""
    still = run.weights.still if run.weights else ()
    if not still or not run.is_still or not step_fraction(run) >= SMALL_FRACTION:
        return None
    evidence = (f"{count(len(still), 'tensor')} did not change at all from start to end: {listing(still)}",)
    return Finding("frozen_parameters", "likely", evidence, ("tiny_learning_rate",))


def low_precision_weights(run: Evidence) -> Finding | None:
    """The weights are bfloat16 numbers, and few of them moved."""
    if not run.weights or not _is_coarse(run) or not (run.weights.moved < FEW_MOVED or run.is_still):
        return None
    evidence = (
        f"{percent(run.weights.on_grid)} of the weights are bfloat16 numbers: .4 to .8% of their size apart",
        f"{percent(1 - run.weights.moved)} of them are at the end what they were at the start",
        f"a learning rate of {number(largest(run.updates, 'learning_rate'))} is the most that a step adds to a weight",
    )
    return Finding("low_precision_weights", "certain", evidence)


def gradient_clipping(run: Evidence) -> Finding | None:
    """The clipped gradient of a weight is below Adam's epsilon, the unclipped one is not."""
    norms = column(run.updates, "grad_norm")
    clipped, whole = step_fraction(run), step_fraction(run, norms)
    if not run.is_still or not clipped < SMALL_FRACTION <= whole:
        return None
    limit = float(run.settings["max_grad_norm"])
    evidence = (
        f"max_grad_norm={limit:g} cuts {percent(float(np.mean(norms > limit)))} of the gradients; their norm is"
        f" {number(float(np.median(norms)))} (median) before",
        f"Adam then takes about {percent(clipped)} of its full step, adam_epsilon being {_epsilon(run):g}",
    )
    return Finding("gradient_clipping", "certain", evidence)


def endless_warmup(run: Evidence) -> Finding | None:
    """The learning rate rises to the end and stays far below its peak."""
    rates = column(run.updates, "learning_rate")
    warm_up = run.settings.get("warmup_steps", 0)
    if not run.is_still or not warm_up or not len(rates) or rates.max() >= WARM * run.settings["learning_rate"]:
        return None
    evidence = (
        f"warmup_steps={warm_up}, and the run took {count(len(rates), 'optimiser step')}",
        f"the learning rate came to {number(rates.max())} of a peak of {number(run.settings['learning_rate'])}",
        f"|ratio - 1| stayed below {number(_reach(run))}",
    )
    return Finding("endless_warmup", "certain", evidence)


def tiny_learning_rate(run: Evidence) -> Finding | None:
    """Gradients are there and nothing shrinks the steps but the learning rate itself; the ratio never went far."""
    rates = column(run.updates, "learning_rate")
    shrunk = (frozen_parameters, low_precision_weights, endless_warmup)
    full = step_fraction(run) >= SMALL_FRACTION
    if not run.is_still or run.has_moved or _reach(run) >= STILL_REACH or not len(rates) or not full:
        return None
    if any(rule(run) for rule in shrunk):
        return None
    evidence = (
        f"the learning rate is {number(rates.max())} at most, and |ratio - 1| stayed below {number(_reach(run))}",
        f"gradient norm {number(middle(run.updates, 'grad_norm'))} (median), and Adam took its full step",
    )
    return Finding("tiny_learning_rate", "likely", evidence)


def step_fraction(run: Evidence, norms: Floats | None = None) -> float:
    """The share of Adam's full step that gradients of these norms (given: the clipped ones) leave; NaN without any.

    Adam divides a weight's gradient g by about |g| + epsilon; |g| is taken as the norm spread over all weights. Where
    their number is not known the whole norm is, which no weight's gradient can exceed. Gradients of 0 say nothing.
    """
    norms = run.clipped_norm if norms is None else norms
    positive = norms[norms > 0]
    if not len(positive):
        return np.nan
    each = float(np.median(positive)) / np.sqrt(run.weights.count if run.weights else 1)
    return each / (each + _epsilon(run))


def _epsilon(run: Evidence) -> float:
    return float(run.settings.get("adam_epsilon", 1e-8))


def _is_coarse(run: Evidence) -> bool:
    return run.weights is not None and run.weights.on_grid >= ON_GRID


def _reach(run: Evidence) -> float:
    return float(run.reach.max()) if len(run.reach) else np.nan
