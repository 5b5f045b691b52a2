"""Held-out accuracy. Where the right answer is unique, expected sampled accuracy is exact: no sampling noise at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from grpolab.grpo.batch import Prompts, decode, prompt_tensors, target_tensors
from grpolab.grpo.model import Policy, plain_logits
from grpolab.grpo.rewards import Score
from grpolab.grpo.rollout import sample, sampling_noise
from grpolab.tasks.base import Example, Task


@dataclass(frozen=True)
class Evaluation:
    """Metrics of kind `evaluation`, and the score of each item (expected accuracy, or mean over its samples)."""

    metrics: dict[str, float]
    scores_I: list[float]


@dataclass(frozen=True)
class Evaluator:
    """Evaluation prompts, tokenised once. `seed` and `length` matter only where answers are sampled."""

    task: Task
    score: Score
    examples_I: Sequence[Example]
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    chat: bool
    batch_size: int
    samples: int
    length: int
    seed: int

    def __call__(self, policy: Policy) -> Evaluation:
        """Evaluate the policy as it is."""
        return self._exact(policy) if self.task.unique_answer else self._sampled(policy)

    @cached_property
    def _batches(self) -> list[Sequence[Example]]:
        starts = range(0, len(self.examples_I), self.batch_size)
        return [self.examples_I[start : start + self.batch_size] for start in starts]

    @cached_property
    def _prompts(self) -> list[Prompts]:
        """The batches' prompts."""
        return [
            prompt_tensors(self.tokenizer, [e.prompt for e in examples], self.chat, self.device)
            for examples in self._batches
        ]

    @cached_property
    def _answers(self) -> list[tuple[Tensor, Tensor]]:
        """The batches' right answers as tokens and mask, (B, T) each."""
        return [target_tensors(self.tokenizer, [e.answer for e in examples], self.device) for examples in self._batches]

    @torch.inference_mode()
    def _exact(self, policy: Policy) -> Evaluation:
        """Product of the right answer's token probabilities, and whether greedy decoding gives it: one forward."""
        expected, greedy = [], []
        for prompts, (tokens_BT, mask_BT) in zip(self._prompts, self._answers, strict=True):
            logits_BTV = plain_logits(policy, prompts, tokens_BT)
            log_probs_BT = logits_BTV.log_softmax(-1).gather(-1, tokens_BT[..., None]).squeeze(-1)
            expected.append(torch.where(mask_BT, log_probs_BT, 0.0).double().sum(1).exp())
            greedy.append(((logits_BTV.argmax(-1) == tokens_BT) | ~mask_BT).all(1))
        expected_I, greedy_I = torch.cat(expected), torch.cat(greedy)
        metrics = {
            "eval/accuracy_expected": expected_I.mean().item(),
            "eval/accuracy_greedy": greedy_I.double().mean().item(),
        }
        return Evaluation(metrics, expected_I.tolist())

    def _sampled(self, policy: Policy) -> Evaluation:
        """Mean over `samples` completions of each item, with noise that is the same at every evaluation of a seed."""
        noise_IKT = sampling_noise(self.seed, "evaluation", 0, len(self.examples_I), self.samples, self.length).view(
            len(self.examples_I), self.samples, self.length
        )
        scores, lengths = [], []
        pieces = zip(self._batches, self._prompts, noise_IKT.split(self.batch_size), strict=True)
        for examples, prompts, noise_BKT in pieces:
            completions = sample(policy, prompts, self.samples, noise_BKT.reshape(-1, self.length))
            if not completions.log_probs_BT.isfinite().all():  # what was drawn from not-a-number is no answer
                return Evaluation({"eval/accuracy_expected": math.nan}, [])
            texts = decode(policy.tokenizer, completions.tokens_BT, completions.mask_BT)
            repeated = [example for example in examples for _ in range(self.samples)]
            scores += [self.score(example, text)["correct"] for example, text in zip(repeated, texts, strict=True)]
            lengths.append(completions.mask_BT.sum(1))
        right_IK = torch.tensor(scores, dtype=torch.double).view(-1, self.samples)
        lengths_N = torch.cat(lengths).double()
        metrics = {
            "eval/accuracy_expected": right_IK.mean().item(),
            "eval/pass_at_k": (right_IK > 0.5).any(1).double().mean().item(),
            "eval/length_mean": lengths_N.mean().item(),
            "eval/length_std": lengths_N.std().item(),
        }
        return Evaluation(metrics, right_IK.mean(1).tolist())
