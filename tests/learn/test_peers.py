"""Our loss and its gradient are those of DeepSpeed-Chat, ROLL and TRL, in float64, on their own outputs."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from grpolab.learn.advantages import group_advantages
from grpolab.learn.aggregation import Totals, aggregate
from grpolab.learn.objective import Objective, policy_loss
from grpolab.paths import project_root

CONF = project_root() / "conf"
ROLL_AGGREGATION = {"token-mean": "token_mean_minibatch", "seq-mean-token-mean": "sequence_mean"}
PLAIN = Objective("token", "clipped", 0.2, 0.2, None, "min_positive", "sequence_mean", 0.0)

PEERS = json.loads(lzma.decompress((Path(__file__).parents[1] / "vectors" / "peers.json.xz").read_bytes()))

# Cases in which a framework's definition is not ours, by the beginning or the end of the variant's name.
NOT_OURS = {
    "": {"per_token_advantages"},  # an advantage is a number per sequence here
    "deepspeed_chat": {"whole_batch_masked"},  # 0/0: NaN there, 0 here
    "roll__rlvr": {"all_masked_row"},  # its numbers of sequences leave the empty row out, ours count it
    "__token-mean": {"dirty_padding"},  # ROLL does not mask this numerator: garbage there, invisible here
}


def preset(loss_type: str) -> dict[str, Any]:
    """Kernel and aggregation of a `loss_type`, from the file that users choose it by."""
    values = yaml.safe_load((CONF / "loss_type" / f"{loss_type}.yaml").read_text())
    return {key: values[key] for key in ("kernel", "aggregation")}


def objective_of(framework: str, options: dict[str, Any]) -> Objective:
    """The point in our space of losses that the framework's options name."""
    if framework == "deepspeed_chat":
        return replace(
            PLAIN,
            epsilon=options["cliprange"],
            epsilon_high=options["cliprange"],
            loss_form="max_negative",
            aggregation="token_mean_minibatch",
        )
    if framework == "roll":
        ranged = options["use_pg_clip_range"]
        return replace(
            PLAIN,
            importance_sampling_level={"token": "token", "seq": "sequence"}[options["importance_sampling"]],
            epsilon=options["pg_clip_low"] if ranged else options["pg_clip"],
            epsilon_high=options["pg_clip_high"] if ranged else options["pg_clip"],
            aggregation=ROLL_AGGREGATION[options["loss_agg_mode"]],
        )
    effective, loss_type = options["effective"], options.get("loss_type", "grpo")
    above = effective["epsilon_high"] - (
        1 if loss_type == "cispo" else 0
    )  # TRL caps CISPO's weight at the number itself
    return replace(
        PLAIN,
        **preset(loss_type),
        importance_sampling_level=options.get("importance_sampling_level", "token"),
        epsilon=effective["epsilon_low"],
        epsilon_high=above,
        delta=options.get("delta"),
        beta=effective["beta"],
    )


def totals_of(mask_BT: Tensor, options: dict[str, Any]) -> Totals:
    """TRL divides by its accumulation steps what it computes for one micro-batch of them."""
    effective = options.get("effective", {})
    accumulated = effective.get("gradient_accumulation_steps", 1)
    items = options.get("num_items_in_batch")
    generated = items if isinstance(items, int) else int(mask_BT.sum())
    return Totals(
        sequences=len(mask_BT) * accumulated,
        tokens=int(mask_BT.sum()),
        rollout_tokens=generated * accumulated / effective.get("steps_per_generation", 1),
        max_completion_length=effective.get("max_completion_length", 16),
        micro_batches=accumulated,
    )


def accident(variant: str, sequences: int) -> float:
    """What a framework adds to its denominator: it divides by sequences + 1e-8."""
    return sequences / (sequences + 1e-8) if variant.endswith("__seq-mean-token-mean") else 1.0


@pytest.mark.parametrize("loss_form", ["min_positive", "max_negative"])
@pytest.mark.parametrize("variant", PEERS["losses"])
def test_loss_and_gradient_of(variant: str, loss_form: Any) -> None:
    file = PEERS["losses"][variant]
    objective = replace(objective_of(file["framework"], file["options"]), loss_form=loss_form)
    left_out = set().union(
        *(names for part, names in NOT_OURS.items() if variant.startswith(part) or variant.endswith(part))
    )
    compared = [name for name in file["cases"] if name not in left_out]
    assert len(compared) >= 17
    for name in compared:
        given, expected = PEERS["inputs"][name], file["cases"][name]
        tensors = {key: torch.tensor(value, dtype=torch.double) for key, value in given.items()}
        log_probs_BT = tensors["logprobs"].requires_grad_()
        mask_BT = tensors["mask"].bool()
        totals = totals_of(mask_BT, file["options"])
        loss = policy_loss(
            objective,
            log_probs_BT=log_probs_BT,
            old_log_probs_BT=tensors["old_logprobs"],
            advantages_B=tensors["seq_advantages"],
            mask_BT=mask_BT,
            totals=totals,
            reference_log_probs_BT=tensors["ref_logprobs"] if objective.beta else None,
        )
        total = loss.total * accident(variant, len(mask_BT))
        (gradient_BT,) = torch.autograd.grad(total, log_probs_BT)
        terms = loss.kernel.loss.detach().abs() + (objective.beta * loss.kl_ref_BT.detach() if objective.beta else 0)
        scale = aggregate(objective.aggregation, terms, mask_BT, totals).item()
        assert abs(total.item() - expected["loss"]) <= 1e-9 * max(abs(expected["loss"]), scale), name
        expected_BT = torch.tensor(expected["gradient"], dtype=torch.double)
        assert (gradient_BT - expected_BT).abs().max() <= 1e-9 * expected_BT.abs().max(), name


def test_no_token_at_all_is_a_loss_of_zero() -> None:
    """The one definition of DeepSpeed-Chat's that is not followed: its mean over nothing is NaN."""
    expected = PEERS["losses"]["deepspeed_chat__actor_loss_fn__eps0.2"]["cases"]["whole_batch_masked"]
    assert expected["loss"] != expected["loss"]
    given = {k: torch.tensor(v, dtype=torch.double) for k, v in PEERS["inputs"]["whole_batch_masked"].items()}
    mask_BT = given["mask"].bool()
    for aggregation in ("sequence_mean", "token_mean_minibatch", "token_mean_rollout", "token_mean_microbatch"):
        loss = policy_loss(
            replace(PLAIN, aggregation=aggregation),
            log_probs_BT=given["logprobs"],
            old_log_probs_BT=given["old_logprobs"],
            advantages_B=given["seq_advantages"],
            mask_BT=mask_BT,
            totals=totals_of(mask_BT, {}),
        )
        assert loss.total == 0


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_of_trl(scale: str) -> None:
    cases = PEERS["advantages"][f"trl__adv__sum_then_normalize__{scale}"]["cases"]
    compared = [name for name in cases if name != "unscorable_nan"]  # a reward is always a number here
    assert len(compared) == 12
    for name in compared:
        case = cases[name]
        rewards_B = torch.tensor(case["rewards"], dtype=torch.double)
        found_B = group_advantages(rewards_B, case["group_size"], scale, 1e-4)
        expected_B = torch.tensor(case["advantages"], dtype=torch.double)
        # TRL's Bessel factor is float32: 1e-8 relative.
        torch.testing.assert_close(found_B, expected_B, rtol=1e-7, atol=1e-7 * rewards_B.abs().max().item(), msg=name)
