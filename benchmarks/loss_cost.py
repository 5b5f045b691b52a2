"""Measure what loss and metrics cost beside the forward and backward pass: `make bench WHAT=loss [--rounds N]`.

One minibatch of the tiny model (135k parameters) on its second pass, so that ratios differ from 1. The cases take
turns, each with a pass of its own before it, which fills the caches: loss and metrics are printed right after it (`at
once`) and repeated (`again`). README.md here has the bound.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported

if TYPE_CHECKING:
    from torch import Tensor

    from grpolab.grpo.model import Policy
    from grpolab.grpo.step import Learner, Update

SHAPE = ["task=addition", "prompts_per_step=4", "num_generations=8", "max_completion_length=16", "evaluation.items=50"]
OFF = ["diagnostics.quantiles=false", "diagnostics.counterfactual=false"]
CONVENTIONS = "every framework's clip fraction"  # ten other losses: not by default
CASES = {  # line of the table -> overrides
    "default": [],
    "quantiles off": OFF[:1],
    "counterfactual off": OFF[1:],
    "both off": OFF,
    "dialect=trl": ["dialect=trl"],
    "dialect=verl": ["dialect=verl"],
    CONVENTIONS: ["diagnostics.clip_conventions=true"],
}
WARM_UP = 6  # rounds at most
MOST_SHARE = 0.05


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args(arguments).rounds
    torch.set_num_threads(1)
    timed = {}
    for name, overrides in CASES.items():
        learner, policy, update = second_pass(overrides)
        loss, metrics = partial(loss_and_gradient, learner, update), partial(learner.metrics, update)
        timed[name] = [partial(forward_and_backward, policy, update), loss, loss, metrics, metrics]
    print(f"{'32 x 16 tokens':<34}{'pass':>10}{'loss':>8}{'metrics':>10}{'both again':>13}{'at once':>10}")
    worst = 0.0
    for name, (of_pass, *others) in in_turns(timed, rounds).items():
        first_loss, loss_share, first_metrics, metrics_share = (part / of_pass for part in others)
        again, at_once = loss_share + metrics_share, first_loss + first_metrics
        shares = f"{loss_share:>8.1%}{metrics_share:>10.1%}{again:>13.1%}{at_once:>10.1%}"
        print(f"{name:<34}{1000 * of_pass:>7.2f} ms{shares}")
        if name != CONVENTIONS:
            worst = max(worst, again)
    return int(worst > MOST_SHARE)


def second_pass(overrides: Sequence[str]) -> tuple[Learner, Policy, Update]:
    """Return a run's first minibatch after its second optimiser step."""
    import torch

    from grpolab.run.assembly import assemble
    from grpolab.settings.resolved import resolve_run
    from grpolab.sweep.compose import compose

    settings = resolve_run(compose([*SHAPE, "reward.weights.format=1.0", *overrides]))
    parts = assemble(settings)
    learner, state = parts.learner, parts.state
    rollout = learner.collector.rollout(state.policy, 0)
    full = replace(rollout.batch, mask_BT=torch.ones_like(rollout.batch.mask_BT))
    tokens = full.mask_BT.numel()
    (batch,) = learner.minibatches(state.policy, full, 0)
    batch = learner.update(state, batch, tokens).batch
    return learner, state.policy, learner.update(state, batch, tokens)


def forward_and_backward(policy: Policy, update: Update) -> None:
    """Compute log-probs and entropy of the minibatch, and a gradient of the weights."""
    from grpolab.grpo.model import token_log_probs

    log_probs_BT, _ = token_log_probs(policy, update.batch)
    log_probs_BT.backward(update.batch.mask_BT.to(log_probs_BT.dtype))


def loss_and_gradient(learner: Learner, update: Update) -> Tensor | None:
    """Compute the loss from the log-probs, and its gradient there."""
    from grpolab.grpo.loss import policy_loss

    leaf_BT = update.inputs.log_probs_BT.detach().requires_grad_()
    policy_loss(update.objective, replace(update.inputs, log_probs_BT=leaf_BT), learner.recipe).total.backward()
    return leaf_BT.grad


def in_turns(timed: dict[str, list[Callable[[], object]]], rounds: int) -> dict[str, list[float]]:
    """Return the median CPU seconds of each call; another process disturbs them less than wall time."""
    warm_up = min(WARM_UP, rounds)
    marks: dict[str, list[list[float]]] = {name: [] for name in timed}
    for _ in range(warm_up + rounds):
        for name, calls in timed.items():
            marks[name].append([time.process_time()])
            for call in calls:
                call()
                marks[name][-1].append(time.process_time())
    return {name: np.median(np.diff(of[warm_up:]), axis=0).tolist() for name, of in marks.items()}


if __name__ == "__main__":
    sys.exit(main())
