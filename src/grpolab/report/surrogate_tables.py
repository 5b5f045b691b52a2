"""Compute the tables behind the analytic figures with our own surrogates; the one file of the report with torch.

The objective against the ratio (F9), its weight on the gradient over old and new probability (F10), and the surrogates
between the policy before an update and the one after it (F11), from the first steps of finished runs.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import torch
from pydantic import ValidationError
from torch import Tensor

from grpolab.errors import RequestError
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.batch import TrainingBatch
from grpolab.grpo.kl import exact_kl
from grpolab.grpo.loss import LossInputs, policy_loss, surrogate
from grpolab.grpo.model import Policy, prefix_places
from grpolab.grpo.step import Diverged, Learner
from grpolab.identity import in_words, unrecorded
from grpolab.paths import Results, write_csv_atomic
from grpolab.records import read_provenance, read_settings
from grpolab.run import preflight, warm_start
from grpolab.run.assembly import assemble
from grpolab.run.provenance import set_up_torch
from grpolab.settings.objective import Objective
from grpolab.settings.resolved import Resolved

Rows = list[dict[str, str | float]]
SIGNS = (1.0, -1.0)


def rule(
    kernel: str,
    epsilon: float = 0.2,
    epsilon_high: float = 0.2,
    delta: float | None = None,
    options: Mapping[str, float] = MappingProxyType({}),
) -> Objective:
    """Return a surrogate with its range and options, for sequences of one token."""
    return Objective.of(
        "token", kernel, epsilon, epsilon_high, delta, "min_positive", "sequence_mean", 0.0, kernel_options=options
    )


CURVES = {
    "no clip": rule("ratio"),
    "clip 0.2 / 0.2": rule("clipped"),
    "clip 0.2 / 0.28": rule("clipped", 0.2, 0.28),
    "lower clip only": rule("clipped", 0.2, math.inf),
    "clip 0.2 / 0.2, delta 2": rule("clipped", delta=2.0),
    "cispo, cap 1.28": rule("cispo", 1.0, 0.28),
    "sapo": rule("sapo", options={"temperature_positive": 1.0, "temperature_negative": 1.05}),
    "gmpo, one token": rule("gmpo", 0.4, 0.4),
}
# Rules that depend on the old probability, beside rules that depend on the ratio alone.
SURFACES = {
    **{name: CURVES[name] for name in ("no clip", "clip 0.2 / 0.2", "cispo, cap 1.28")},
    "aspo, cap 3": rule("aspo", options={"cap": 3.0}),
    "sapo": CURVES["sapo"],
    "dppo, TV 0.2": rule("dppo_tv", options={"cap": math.inf}),
}


def curve_table(points: int = 301, largest: float = 3.0) -> Rows:
    """Return one row per curve, advantage (+1, -1) and ratio, for a token of old probability .25.

    Columns: the objective (minus the loss), and its weight, d objective / d log-prob.
    """
    rows: Rows = []
    ratios_N = torch.linspace(0.01, largest, points, dtype=torch.double)
    old_N = torch.full_like(ratios_N, 0.25)
    for curve, objective in CURVES.items():
        for advantage in SIGNS:
            objective_N, weight_N = objective_and_weight(objective, advantage, old_N.log(), (ratios_N * old_N).log())
            rows += [
                {"curve": curve, "advantage": advantage, "ratio": r, "objective": o, "weight": w}
                for r, o, w in zip(ratios_N.tolist(), objective_N.tolist(), weight_N.tolist(), strict=True)
            ]
    return rows


def surface_table(points: int = 40) -> Rows:
    """Return one row per rule, advantage (+1, -1), old and new probability: the weight, d objective / d log-prob.

    The probabilities are the middles of `points` equal parts of (0, 1); weights have six digits.
    """
    rows: Rows = []
    middles_N = (torch.arange(points, dtype=torch.double) + 0.5) / points
    old_N, new_N = torch.cartesian_prod(middles_N, middles_N).T
    for name, objective in SURFACES.items():
        for advantage in SIGNS:
            _, weight_N = objective_and_weight(objective, advantage, old_N.log(), new_N.log())
            rows += [
                {"rule": name, "advantage": advantage, "old": old, "new": new, "weight": float(f"{weight:.6g}")}
                for old, new, weight in zip(old_N.tolist(), new_N.tolist(), weight_N.tolist(), strict=True)
            ]
    return rows


def objective_and_weight(objective: Objective, advantage: float, old_N: Tensor, new_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return objective and its derivative by the log-prob for sequences of one token, from log-probs; (N,) each."""
    new_N1, old_N1 = new_N[:, None].requires_grad_(), old_N[:, None]
    mask_N1 = torch.ones_like(old_N1, dtype=torch.bool)
    inputs = LossInputs(new_N1, old_N1, torch.full_like(old_N1, advantage), mask_N1, Totals.of(mask_N1))
    log_ratio_N1 = new_N1 - old_N1
    objective_N1 = -surrogate(objective, inputs, log_ratio_N1, log_ratio_N1.exp()).loss
    (weight_N1,) = torch.autograd.grad(objective_N1.sum(), new_N1)
    return objective_N1.detach()[:, 0], weight_N1[:, 0]


# The table behind F11, as PPO (1707.06347), figure 2: weights between (and beyond) two policies, the update's batch,
# ratios to the policy before. Every draw has its own seed, so that a run's first steps can be repeated in memory.

ALPHAS = [step / 5 for step in range(11)]  # 0: before the update; 1: after it; then as far again
BATCHES = 4  # of each run
DIGITS = 7


def extend_table(results: Results, signatures: Sequence[str], progress: Callable[[str], None]) -> Path:
    """Add the runs that the table lacks, one after the other; return its path.

    Raises RequestError where a run cannot be replayed.
    """
    path = results.surrogate
    rows: Rows = list(csv.DictReader(path.open())) if path.is_file() else []
    missing = [signature for signature in signatures if signature not in {row["signature"] for row in rows}]
    for done, signature in enumerate(missing, start=1):
        rows += update_rows(results, signature)
        if rows:  # none where the run diverged in its first rollout step
            write_csv_atomic(path, rows)
        progress(f"run {done}/{len(missing)}: {signature}")
    return path


def update_rows(results: Results, signature: str) -> Rows:
    """Return surrogates and KL along a run's first updates: signature, rollout_step and columns of `interpolate`."""
    return [
        {"signature": signature, "rollout_step": step, **{key: round(value, DIGITS) for key, value in point.items()}}
        for step, (learner, before, after, batch) in enumerate(first_updates(results, signature))
        for point in interpolate(learner, before, after, batch, ALPHAS)
    ]


def first_updates(results: Results, signature: str) -> Iterator[tuple[Learner, Policy, Policy, TrainingBatch]]:
    """Repeat a run's first BATCHES rollout steps: the policy before and after each, and the batch between them.

    Fewer where the run is shorter or diverges. The policy after is trained on in the next step.
    """
    settings = _settings(results.run(signature), results)
    set_up_torch(settings)
    parts = assemble(settings, warm_start.ensure(settings, results))
    learner, state, policy = parts.learner, parts.state, parts.state.policy
    for step in range(min(BATCHES, settings.planned_steps)):
        before = policy.frozen_copy()
        batch = learner.collect(state).batch
        minibatches, tokens = learner.minibatches(policy, batch, step), int(batch.mask_BT.sum())
        try:
            for _ in range(settings.num_iterations):
                minibatches = [learner.update(state, minibatch, tokens).batch for minibatch in minibatches]
        except Diverged:
            return
        state.rollout_step = step + 1
        yield learner, before, policy, batch


def _settings(folder: Path, results: Results) -> Resolved:
    """Return a run's settings. Raises RequestError where they, its data or its device are not here any more."""
    written = read_settings(folder)
    unset = dict.fromkeys(Resolved.model_fields)  # keys that are younger than the run
    try:
        settings = Resolved.model_validate({**unset, **written})
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        raise RequestError(f"run {folder.name}: {key} of its settings.yaml is not allowed: {problem['msg']}") from error
    content = read_provenance(folder).get("content") or {}
    problems = preflight.check(settings, results)
    if (now := settings.content()) != content or unrecorded(written, content):
        problems.append(f"what it was trained on was {in_words(content) or 'not recorded'}, now it is {in_words(now)}")
    if problems:
        raise RequestError(f"run {folder.name} cannot be replayed: {problem}" for problem in problems)
    return settings


@torch.no_grad()
def interpolate(
    learner: Learner, before: Policy, after: Policy, batch: TrainingBatch, alphas: Sequence[float]
) -> list[dict[str, float]]:
    """Return one row per alpha: L_CPI, L_CLIP and the exact KL(before || there) at before + alpha (after - before).

    L_CPI and L_CLIP are at the run's ratio level, clip range and aggregation, whatever kernel it trains with, without
    KL and other terms. The batch's advantages are used, its old log-probs are computed from `before`. Neither policy is
    changed.
    """
    trained = learner.settings.objective
    axes = {name: getattr(trained, name) for name in ("importance_sampling_level", "epsilon", "epsilon_high")}
    l_cpi = Objective.of(
        **axes, kernel="ratio", delta=None, loss_form="min_positive", aggregation=trained.aggregation, beta=0.0
    )
    l_clip = l_cpi.but(kernel="clipped", delta=trained.delta, dual_clip=trained.dual_clip)

    def log_probs(policy: Policy, micro: TrainingBatch) -> tuple[Tensor, Tensor]:
        """Return log-probs over the vocabulary, (B, T, V), and of the tokens, (B, T)."""
        places, place_BT = prefix_places(policy, micro)
        all_BTV = places.log_probs_NV[place_BT]
        return all_BTV, all_BTV.gather(-1, micro.tokens_BT[..., None]).squeeze(-1)

    old: list[Tensor] = []  # of the tokens under `before`, a micro-batch each
    new: list[list[Tensor]] = [[] for _ in alphas]
    kl = [0.0] * len(alphas)
    there, end = before.frozen_copy(), after.weights()
    for micro in batch.micro_batches(learner.settings.forward_size, before.reach):
        before_BTV, old_BT = log_probs(before, micro)
        old.append(old_BT)
        for at, alpha in enumerate(alphas):
            there.load_weights({name: torch.lerp(w, end[name], alpha) for name, w in before.weights().items()})
            there_BTV, there_BT = log_probs(there, micro)
            new[at].append(there_BT)
            kl[at] += exact_kl(before_BTV, there_BTV)[micro.mask_BT].double().sum().item()
    inputs = LossInputs(
        log_probs_BT=torch.cat(old),
        old_log_probs_BT=torch.cat(old),
        advantages=batch.advantages_B[:, None],
        mask_BT=batch.mask_BT,
        totals=Totals.of(batch.mask_BT, learner.settings.max_completion_length),
    )
    rows = []
    for at, alpha in enumerate(alphas):
        there_now = replace(inputs, log_probs_BT=torch.cat(new[at]))
        cpi, clip = (-policy_loss(objective, there_now).total.item() for objective in (l_cpi, l_clip))
        rows.append({"alpha": alpha, "l_cpi": cpi, "l_clip": clip, "kl": kl[at] / inputs.totals.tokens})
    return rows
