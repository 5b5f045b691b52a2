"""The sampler draws from the policy that the trainer differentiates, and a draw depends on its own noise alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tiny import tiny_policy
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel

from grpolab import seeds
from grpolab.grpo import decoding, model
from grpolab.grpo.batch import Completions, Prompts, TrainingBatch, prompt_tensors
from grpolab.grpo.decoding import inverse_cdf, prompt_rows, sample, sampling_noise
from grpolab.grpo.loading import find_break_even
from grpolab.grpo.model import Policy, prefix_places, token_log_probs

LENGTH, GROUP = 6, 12
EVEN = ["1+2=", "3+4=", "9+9="]
RAGGED = ["1+2=", "1234567+89=", "7="]
even_and_ragged = pytest.mark.parametrize("texts", [EVEN, RAGGED], ids=["even", "ragged"])


def prompts_of(policy: Policy, texts: list[str]) -> Prompts:
    return prompt_tensors(policy.tokenizer, texts, False, policy.device)


def sampled(policy: Policy, texts: list[str], length: int = LENGTH, seed: int = 0) -> Completions:
    noise_BT = sampling_noise(seed, "rollout", 0, len(texts), GROUP, length)
    return sample(policy, prompts_of(policy, texts), GROUP, noise_BT)


def assert_same(found: Completions, expected: Completions, tolerance: float = 1e-5) -> None:
    assert torch.equal(found.tokens_BT, expected.tokens_BT)
    assert torch.equal(found.mask_BT, expected.mask_BT)
    torch.testing.assert_close(found.log_probs_BT, expected.log_probs_BT, rtol=0, atol=tolerance)


def scaled_policy(head: float = 20.0, temperature: float = 1.0) -> Policy:
    """Random weights, enlarged so that the distribution is far from even; with 0 every token is as likely."""
    policy = tiny_policy(temperature=temperature)
    with torch.no_grad():
        policy.model.lm_head.weight *= head
    return policy


def absolute_policy(head: float, temperature: float) -> Policy:
    """A model with absolute positions, which a wrong position cannot hide from; a Llama's are relative."""
    policy = tiny_policy(temperature=temperature)
    config = GPT2Config(vocab_size=len(policy.tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config).eval()
        model.transformer.wpe.weight *= 50
        model.transformer.wte.weight *= head
    return replace(policy, model=model)


def alone(policy: Policy, prompt: str, tokens: list[int]) -> Tensor:
    """Log-probs of a completion, by one plain forward of transformers: no cache, no padding, no batch."""
    ids = policy.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits_LV = policy.model(torch.tensor([ids + tokens])).logits[0, len(ids) - 1 : -1]
    log_probs_TV = (logits_LV / policy.temperature).log_softmax(-1)
    return log_probs_TV.gather(1, torch.tensor(tokens)[:, None]).squeeze(1)


@pytest.mark.parametrize("break_even", [None, 1e9], ids=["each completion", "prefix tree"])
@pytest.mark.parametrize("make", [scaled_policy, absolute_policy], ids=["llama", "gpt2"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@even_and_ragged
def test_sampler_trainer_and_a_plain_forward_agree(
    texts: list[str], temperature: float, make: Callable[[float, float], Policy], break_even: float | None
) -> None:
    policy = make(20.0, temperature)
    prompts, found = prompts_of(policy, texts), sampled(policy, texts)
    assert (prompts.mask_PL is None) == (texts is EVEN)
    batch = TrainingBatch.of(prompts, prompt_rows(prompts, GROUP), found)
    batch = batch.with_trees(len(batch), break_even)
    assert (batch.tree is None) == (break_even is None)
    trained_BT, entropy_BT = token_log_probs(policy, batch)
    places, place_BT = prefix_places(policy, batch)
    log_probs_BTV = places.log_probs_NV[place_BT]
    assert (trained_BT - found.log_probs_BT)[found.mask_BT].abs().max() <= 1e-5
    assert trained_BT[found.mask_BT].exp().std() > 0.05
    for row, (tokens_T, mask_T) in enumerate(zip(found.tokens_BT, found.mask_BT, strict=True)):
        expected_T = alone(policy, texts[row // GROUP], tokens_T[mask_T].tolist())
        torch.testing.assert_close(found.log_probs_BT[row][mask_T], expected_T, rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy_BT, -(log_probs_BTV.exp() * log_probs_BTV).sum(-1))
    assert not entropy_BT.requires_grad
    assert trained_BT.requires_grad


def test_a_prompt_alone_is_the_prompt_in_a_padded_batch() -> None:
    policy, together = scaled_policy(), sampled(scaled_policy(), RAGGED)
    noise_PGT = sampling_noise(0, "rollout", 0, 3, GROUP, LENGTH).view(3, GROUP, LENGTH)
    for index, text in enumerate(RAGGED):
        single = sample(policy, prompts_of(policy, [text]), GROUP, noise_PGT[index])
        rows, T = slice(index * GROUP, (index + 1) * GROUP), single.tokens_BT.shape[1]
        tensors = (together.tokens_BT, together.mask_BT, together.log_probs_BT)
        assert_same(Completions(*(tensor[rows, :T] for tensor in tensors)), single)
        assert not together.mask_BT[rows, T:].any()


def test_inverse_cdf_draws_from_the_distribution() -> None:
    probabilities_V = torch.tensor([0.0, 0.3, 0.001, 0.0, 0.199, 0.45, 0.05, 0.0])
    uniforms_N = torch.from_numpy(seeds.uniforms(0, "rollout", np.arange(50_000)))
    chosen_N = inverse_cdf(probabilities_V.log().expand(len(uniforms_N), -1), uniforms_N)
    counts = torch.bincount(chosen_N, minlength=8).double()
    possible_V = probabilities_V > 0
    assert counts[~possible_V].sum() == 0
    expected = probabilities_V[possible_V].double() * len(uniforms_N)
    assert stats.chisquare(counts[possible_V], expected, sum_check=False).pvalue > 1e-3


def test_the_whole_numbers_of_a_gpu_choose_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    log_probs_NV = (4 * torch.randn(2000, 300, generator=torch.Generator().manual_seed(0))).log_softmax(-1)
    log_probs_NV[0, 1:] = -torch.inf
    uniforms_N = torch.from_numpy(seeds.uniforms(0, "rollout", np.arange(2000)))
    uniforms_N[:3] = torch.tensor([1 - 2.0**-53, 0.0, 1 - 2.0**-53], dtype=torch.double)
    expected_N = inverse_cdf(log_probs_NV, uniforms_N)
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    assert inverse_cdf(log_probs_NV, uniforms_N).equal(expected_N)


def test_end_ends_and_what_follows_is_padding() -> None:
    policy = scaled_policy(0.0)  # so that noise chooses tokens by name
    V, end, pad = len(policy.tokenizer), policy.end, policy.pad
    wanted_BT = torch.tensor([[7, 8, end, 9, 9], [end, 9, 9, 9, 9], [7, pad, 8, 9, end], [7, 7, 7, 7, 7]])
    found = sample(policy, prompts_of(policy, ["1+2=", "3+4="]), 2, (wanted_BT.double() + 0.5) / V)
    expected = [[7, 8, end, pad, pad], [end, pad, pad, pad, pad], [7, pad, 8, 9, end], [7, 7, 7, 7, 7]]
    assert found.tokens_BT.tolist() == expected
    assert found.mask_BT.sum(1).tolist() == [3, 1, 5, 5]  # the end token inside, a sampled padding token too
    assert (found.mask_BT.long().diff(dim=1) <= 0).all()
    assert (found.log_probs_BT[~found.mask_BT] == 0).all()
    torch.testing.assert_close(found.log_probs_BT[found.mask_BT].exp(), torch.full((14,), 1 / V))


@even_and_ragged
def test_a_cache_with_room_gives_the_same_completions_bit_for_bit(
    texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are split, end and leave; the room is filled more than once."""
    dense = sampled(scaled_policy(), texts)
    monkeypatch.setattr(model, "LARGE_CACHE", 0)
    monkeypatch.setattr(model, "SPARE_COLUMNS", 2)
    assert LENGTH > 2 * model.SPARE_COLUMNS
    assert_same(sampled(scaled_policy(), texts), dense, tolerance=0.0)


class Questions(TorchDispatchMode):
    """Counts what makes a program wait for a GPU: values and sizes that are asked of tensors."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += any(name in str(function) for name in ("local_scalar", "is_nonzero", "unique"))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("length", [9, 40])
@even_and_ragged
def test_a_gpu_is_asked_every_few_tokens_and_the_completions_are_the_same(
    texts: list[str], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each completion then has a row of its own, and the last to end decides how wide they are."""
    policy = scaled_policy()
    policy = replace(policy, break_even=find_break_even(policy))
    expected = sampled(policy, texts, length, seed=3)
    assert not expected.mask_BT.all()
    monkeypatch.setattr(Policy, "on_gpu", True)
    with Questions() as questions:
        found = sampled(policy, texts, length, seed=3)
    assert questions.count <= 8
    assert_same(found, expected)


def test_a_gpu_stops_at_the_next_question(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, decoded = scaled_policy(0.0), list[int]()
    noise_BT = torch.full((4, 50), (policy.end + 0.5) / len(policy.tokenizer), dtype=torch.double)
    noise_BT[1, 0] = 0.99
    monkeypatch.setattr(Policy, "on_gpu", True)
    monkeypatch.setattr(decoding, "ASK_EVERY", 3)
    through = decoding.decode_hidden
    monkeypatch.setattr(decoding, "decode_hidden", lambda *args: decoded.append(1) or through(*args))
    assert sample(policy, prompts_of(policy, ["1+2=", "3+4="]), 2, noise_BT).tokens_BT.shape == (4, 2)
    assert len(decoded) == 2
