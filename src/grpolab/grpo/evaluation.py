"""Held-out accuracy. If only one answer is right, its probability is the expected accuracy, without sampling noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor

from grpolab.grpo.batch import Chat, Prompts, Texts, decode, prompt_tensors, text_tensors
from grpolab.grpo.decoding import sample, sampling_noise
from grpolab.grpo.model import Policy, apply_to_tokens, text_places, token_log_prob
from grpolab.grpo.prefix_tree import PrefixTree
from grpolab.grpo.processes import ALONE, Processes
from grpolab.grpo.rewards import Score
from grpolab.registry import MAJORITY, resolve
from grpolab.tasks.base import Example, Task
from grpolab.vocabulary import PASS_AT

T = TypeVar("T")


@dataclass(frozen=True)
class Evaluation:
    """Metrics of kind `evaluation`, and the score of each item (expected accuracy, or mean over its samples)."""

    metrics: dict[str, float]
    scores_I: list[float]


@dataclass(frozen=True)
class Evaluator:
    """Evaluates the policy's current weights, pass@k to k = `samples`. `length`, `seed`: only if it samples."""

    policy: Policy
    task: Task
    score: Score
    examples_I: Sequence[Example]
    batch_size: int
    samples: int
    length: int
    seed: int
    processes: Processes = ALONE  # they share the batches
    others: Sequence[Evaluator] = ()  # of other tasks

    def __call__(self) -> Evaluation:
        """Evaluate the policy on all items, and the mean accuracy over other tasks."""
        evaluation = self._exact() if self.task.unique_answer else self._sampled()
        if not self.others:
            return evaluation
        accuracies = [other().metrics["eval/accuracy_expected"] for other in self.others]
        mean = {"eval/other_accuracy": sum(accuracies) / len(accuracies)}
        return replace(evaluation, metrics=evaluation.metrics | mean)

    def _batches(self, items: Sequence[T]) -> list[Sequence[T]]:
        return [items[start : start + self.batch_size] for start in range(0, len(items), self.batch_size)]

    @cached_property
    def _order_I(self) -> list[int]:
        """Indices of the items sorted by prompt, so that prompts with a common prefix are neighbours."""
        return sorted(range(len(self.examples_I)), key=lambda item: self.examples_I[item].prompt)

    @property
    def _chat(self) -> Chat:
        return getattr(self.task, "chat", False)

    @cached_property
    def _texts(self) -> list[tuple[Texts, PrefixTree | None]]:
        """The sorted items with their right answers, tokenised, in batches with their prefix trees; made once."""
        policy, made = self.policy, []
        for batch in self._batches([self.examples_I[item] for item in self._order_I]):
            prompts, answers = zip(*batch, strict=True)
            texts = text_tensors(policy.tokenizer, prompts, answers, self._chat, policy.device)
            made.append((texts, texts.tree(policy.break_even)))
        return made

    @cached_property
    def _prompts(self) -> list[Prompts]:
        tokenizer, device = self.policy.tokenizer, self.policy.device
        batches = self._batches([example.prompt for example in self.examples_I])
        return [prompt_tensors(tokenizer, prompts, self._chat, device) for prompts in batches]

    @torch.inference_mode()
    def _exact(self) -> Evaluation:
        """Score by one forward pass: the product of the right answer's token probabilities, and the greedy answer."""
        computed = []
        for texts, tree in self.processes.share(self._texts):
            places, place_BT = text_places(self.policy, texts, tree)
            tokens_BT, answer_BT = texts.tokens_BC[:, texts.first :], texts.answer_BC[:, texts.first :]
            log_probs_BT, greedy_BT = apply_to_tokens(_log_prob_and_greedy, place_BT, tokens_BT, answer_BT, places)
            expected_B = torch.where(answer_BT, log_probs_BT, 0.0).double().sum(1).exp()
            computed.append((expected_B, (greedy_BT | ~answer_BT).all(1)))
        batches = zip(*self.processes.gather(computed), strict=True)
        expected_I, greedy_I = (torch.cat(pieces) for pieces in batches)  # in the order of the texts
        expected_I[self._order_I] = expected_I.clone()
        expected, greedy = expected_I.mean().item(), greedy_I.double().mean().item()
        metrics = {"eval/accuracy_expected": expected, "eval/accuracy_greedy": greedy}
        passes = {f"eval/pass_at_{k}": (1 - (1 - expected_I) ** k).mean().item() for k in PASS_AT if k <= self.samples}
        return Evaluation(metrics | passes, expected_I.tolist())

    def _sampled(self) -> Evaluation:
        """Score `samples` completions of each item; every evaluation of a seed samples with the same noise."""
        items = len(self.examples_I)
        noise_NT = sampling_noise(self.seed, "evaluation", 0, items, self.samples, self.length)
        batches = list(zip(self._prompts, noise_NT.split(self.batch_size * self.samples), strict=True))
        computed = []
        for prompts, noise_BT in self.processes.share(batches):
            completions = sample(self.policy, prompts, self.samples, noise_BT)
            texts = decode(self.policy.tokenizer, completions.tokens_BT, completions.mask_BT, self.policy.stop)
            finite = bool(completions.log_probs_BT.isfinite().all())
            computed.append((finite, texts, completions.mask_BT.sum(1)))
        are_finite, texts_of, lengths = zip(*self.processes.gather(computed), strict=True)
        if not all(are_finite):  # tokens that were sampled from NaN log-probs are no answer
            return Evaluation({"eval/accuracy_expected": math.nan}, [])
        repeated = [example for example in self.examples_I for _ in range(self.samples)]
        answered = list(zip(repeated, chain(*texts_of), strict=True))
        scores = self.processes.from_first(lambda: [self.score(*answer)["correct"] for answer in answered])
        right_IK = torch.tensor(scores, dtype=torch.double).view(-1, self.samples)
        counts_I = (right_IK > 0.5).sum(1).tolist()
        lengths_N = torch.cat(lengths).double()
        metrics = {
            "eval/accuracy_expected": right_IK.mean().item(),
            "eval/pass_at_k": (right_IK > 0.5).any(1).double().mean().item(),
            "eval/length_mean": lengths_N.mean().item(),
            "eval/length_std": lengths_N.std().item() if len(lengths_N) > 1 else 0.0,
            **{f"eval/pass_at_{k}": pass_at(k, self.samples, counts_I) for k in PASS_AT if k <= self.samples},
        }
        if self.samples > 1 and (answer_of := getattr(self.task, "final_answer", None)):
            answers_N = [answer_of(completion) for _, completion in answered]
            metrics["eval/maj_at_k"] = resolve(MAJORITY)(answers_N, right_IK.tolist())
        return Evaluation(metrics, right_IK.mean(1).tolist())


def pass_at(k: int, samples: int, counts_I: Sequence[int]) -> float:
    """Estimate the share of items with a right one among k completions, from how many of `samples` are right of each.

    The mean of 1 - C(n - c, k) / C(n, k), which has no bias (Chen et al., 2107.03374, eq. 1); k <= samples.
    """
    missed = [math.comb(samples - count, k) / math.comb(samples, k) for count in counts_I]
    return 1 - sum(missed) / len(missed)


def _log_prob_and_greedy(place_Y: Tensor, tokens_Y: Tensor, log_probs_NV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-prob of each token, and whether it is the most likely one, (Y,) each."""
    return token_log_prob(place_Y, tokens_Y, log_probs_NV), log_probs_NV.argmax(-1)[place_Y] == tokens_Y
