"""The warm start's one step: next-token loss on demonstrations, prompts left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.optim import AdamW

from grpolab.learn import seeds
from grpolab.learn.policy import Policy, completion_logits
from grpolab.learn.rollout import prompt_rows
from grpolab.learn.tasks.base import Example, Task
from grpolab.learn.tokenizer import prompt_tensors, target_tensors

DRAWS = 32  # uniform numbers that a demonstration may use


def demonstrations(
    task: Task, examples: Sequence[Example], seed: int, step: int, batch_size: int
) -> tuple[list[str], list[str]]:
    """Prompts and targets of a warm-start batch; drawn with replacement, by seed and step alone."""
    chosen_B = (seeds.uniforms(seed, "warm_start/examples", step, np.arange(batch_size)) * len(examples)).astype(int)
    draws_BU = seeds.uniforms(seed, "warm_start/targets", step, np.arange(batch_size)[:, None], np.arange(DRAWS))
    rows = [examples[index] for index in chosen_B]
    targets = [task.demonstration(example, draws_U) for example, draws_U in zip(rows, draws_BU, strict=True)]
    return [example.prompt for example in rows], targets


def make_supervised_optimizer(policy: Policy, learning_rate: float) -> AdamW:
    """AdamW with torch's betas (.9, .999): a constant rate and no weight decay."""
    return AdamW(list(policy.weights().values()), lr=learning_rate, weight_decay=0.0, fused=True)


def supervised_step(policy: Policy, optimizer: AdamW, prompts: list[str], targets: list[str], chat: bool) -> float:
    """One optimiser step on mean negative log-likelihood of target and end tokens, in nat; returns the loss."""
    read = prompt_tensors(policy.tokenizer, prompts, chat, policy.device)
    tokens_BT, mask_BT = target_tensors(policy.tokenizer, targets, policy.device)
    logits_BTV = completion_logits(policy, read, prompt_rows(read, 1), tokens_BT)
    log_probs_BT = logits_BTV.log_softmax(-1).gather(-1, tokens_BT[..., None]).squeeze(-1)
    loss = -log_probs_BT[mask_BT].mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.weights().values(), 1.0)
    optimizer.step()
    return loss.item()
