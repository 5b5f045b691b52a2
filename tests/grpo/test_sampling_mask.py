"""Sampling from the likely tokens alone: the tokens that transformers keeps, and what the trainer makes of them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import gradient_of, records, run_folder, tiny_policy, tiny_settings
from torch import Tensor
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from grpolab.grpo import model
from grpolab.grpo.batch import TrainingBatch, prompt_tensors
from grpolab.grpo.decoding import prompt_rows, sample, sampling_noise
from grpolab.grpo.model import Policy, token_log_probs
from grpolab.grpo.sampling_mask import likely_tokens, log_mass, pack, unpack
from grpolab.paths import Results
from grpolab.run.train import run
from grpolab.settings.resolved import Resolved

TEXTS, GROUP, LENGTH = ["1+2=", "1234567+89=", "7="], 8, 5
NUCLEUS = tiny_settings(top_p=0.6, keep_sampling_mask=True)


@pytest.mark.parametrize("rules", [*itertools.product((None, 4), (None, 0.7), (None, 0.2))], ids=str)
def test_the_tokens_that_may_be_sampled_are_those_of_transformers(rules: tuple[Any, Any, Any]) -> None:
    logits_BV = 3 * torch.randn(64, 33, generator=torch.Generator().manual_seed(0))
    scores_BV = logits_BV
    for value, warper in zip(rules, (TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper), strict=True):
        scores_BV = scores_BV if value is None else warper(value)(torch.empty(0), scores_BV)
    log_probs_BV = logits_BV.log_softmax(-1)
    kept_BV = likely_tokens(tiny_settings(top_k=rules[0], top_p=rules[1], min_p=rules[2]), log_probs_BV)
    assert kept_BV.equal(scores_BV > -torch.inf)
    renormalised_BV = (log_probs_BV - log_mass(log_probs_BV, kept_BV)).masked_fill(~kept_BV, -torch.inf)
    torch.testing.assert_close(renormalised_BV, scores_BV.log_softmax(-1))


def test_kept_tokens_are_packed_without_loss() -> None:
    for vocabulary in (1, 8, 13, 33):
        kept_BV = torch.rand(5, vocabulary) < 0.5
        packed_BC = pack(kept_BV)
        assert packed_BC.shape == (5, -(-vocabulary // 8))
        assert unpack(packed_BC, vocabulary).equal(kept_BV)


def sharp_policy() -> Policy:
    """Random weights, enlarged so that the distribution is far from even."""
    policy = tiny_policy()
    with torch.no_grad():
        policy.model.lm_head.weight *= 20
    return policy


def sampled(policy: Policy, truncation: Resolved | None) -> TrainingBatch:
    prompts = prompt_tensors(policy.tokenizer, TEXTS, False, policy.device)
    noise_BT = sampling_noise(0, "rollout", 0, len(TEXTS), GROUP, LENGTH)
    completions = sample(policy, prompts, GROUP, noise_BT, truncation=truncation)
    return TrainingBatch.of(prompts, prompt_rows(prompts, GROUP), completions)


@pytest.mark.parametrize("most_logits", [model.MOST_LOGITS, 100], ids=["at once", "in chunks"])
@pytest.mark.parametrize("break_even", [None, 200.0], ids=["plain", "tree"])
def test_the_trainer_computes_the_log_probs_of_the_truncated_sampler(
    break_even: float | None, most_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = replace(sharp_policy(), break_even=break_even)
    monkeypatch.setattr(model, "MOST_LOGITS", most_logits)
    batch = sampled(policy, NUCLEUS).with_trees(len(TEXTS) * GROUP, break_even)
    whole = replace(batch, kept_BTC=None)
    for rows in (batch, batch.rows(torch.arange(4, 20))):
        found_BT = token_log_probs(policy, rows)[0].detach()
        torch.testing.assert_close(found_BT[rows.mask_BT], rows.sampler_log_probs_BT[rows.mask_BT], rtol=0, atol=1e-5)
    (log_probs_BT, entropy_BT), (whole_BT, whole_entropy_BT) = (
        token_log_probs(policy, batch),
        token_log_probs(policy, whole),
    )
    lost_BT = (log_probs_BT - whole_BT)[batch.mask_BT]
    assert lost_BT.min() >= 0
    assert lost_BT.max() > 0.1
    assert entropy_BT.equal(whole_entropy_BT)
    log_probs_BT[batch.mask_BT].sum().backward()
    assert gradient_of(policy).isfinite().all()


def expected_score(policy: Policy, told: bool) -> tuple[Tensor, Tensor]:
    """Sum of p(a) grad log pi(a) over the tokens that may come first, and the gradient of the log of their mass."""
    prompts = prompt_tensors(policy.tokenizer, ["1+2="], False, policy.device)
    truncated = sample(policy, prompts, 1, torch.full((1, 1), 0.5), truncation=NUCLEUS)
    assert truncated.kept_BTC is not None
    tokens_B = unpack(truncated.kept_BTC[0], policy.vocabulary)[0].nonzero().squeeze(1)
    assert 1 < len(tokens_B) < policy.vocabulary
    rows = {name: value.expand(len(tokens_B), *value.shape[1:]) for name, value in truncated.tensors().items()}
    completions = type(truncated)(**{**rows, "tokens_BT": tokens_B[:, None]})
    batch = TrainingBatch.of(prompts, torch.zeros(len(tokens_B), dtype=torch.long), completions)
    p_B = token_log_probs(policy, batch)[0].detach().exp().squeeze(1)
    torch.testing.assert_close(p_B.sum(), torch.tensor(1.0))
    whole = replace(batch, kept_BTC=None)
    (p_B * token_log_probs(policy, batch if told else whole)[0].squeeze(1)).sum().backward()
    score = gradient_of(policy).clone()
    policy.model.zero_grad()
    token_log_probs(policy, whole)[0].logsumexp(0).sum().backward()
    return score, gradient_of(policy)


def test_without_the_mask_the_expected_score_is_the_gradient_of_the_mass_that_was_left() -> None:
    """The bias of training on truncated samples as if they were whole, exactly; with the mask there is none."""
    score, of_mass = expected_score(sharp_policy(), told=True)
    assert of_mass.norm() > 0.1
    assert score.norm() < 1e-5 * of_mass.norm()
    score, of_mass = expected_score(sharp_policy(), told=False)
    torch.testing.assert_close(score, of_mass, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_a_log_prob_among_kept_tokens() -> None:
    kept_BV = torch.tensor([[True, True, False, False, True]] * 2)

    def among_kept(logits_BV: Tensor) -> Tensor:
        log_probs_BV = logits_BV.log_softmax(-1)
        return (log_probs_BV - log_mass(log_probs_BV, kept_BV))[:, 1]

    assert torch.autograd.gradcheck(among_kept, torch.randn(2, 5, dtype=torch.double, requires_grad=True))


@pytest.mark.parametrize("told", [True, False])
def test_a_run_measures_what_the_trainer_is_not_told(told: bool, results: Results) -> None:
    settings = tiny_settings(top_p=0.8, keep_sampling_mask=told, num_minibatches=2, rollout_steps=2, beta=0.1)
    outcome = run(settings, results)
    assert outcome["outcome"] == "completed", outcome["error"]
    for record in records(run_folder(settings, results), "rollout"):
        assert record["gap/first_pass"] == 0
        assert 0.8 <= record["sampling/kept_mass"] < 1
        assert record["gap/sampler_trainer"] < 1e-4 if told else record["gap/sampler_trainer"] > 0.05


def test_a_mask_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="keep_sampling_mask=true has nothing to keep: it needs top_k, top_p or min_p"):
        tiny_settings(keep_sampling_mask=True)
    with pytest.raises(ValueError, match="less than 1"):
        tiny_settings(top_p=1.0)
