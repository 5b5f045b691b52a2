"""The warm start: supervised training to a target of sampled accuracy, once per seed, shared by all arms of that seed.

Without a target it takes all its steps. A step is next-token loss on demonstrations, prompts left out.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.optim import AdamW

from grpolab import seeds
from grpolab.errors import Damaged
from grpolab.grpo.batch import Chat, text_tensors
from grpolab.grpo.evaluation import Evaluator
from grpolab.grpo.loading import make_policy
from grpolab.grpo.model import Policy, apply_to_tokens, text_places, token_log_prob
from grpolab.paths import Results, json_bytes, write_new
from grpolab.run.checkpoint import save_weights
from grpolab.run.folder import Journal
from grpolab.run.lease import Lease, LeaseLost, leased
from grpolab.run.provenance import set_up_torch
from grpolab.run_files import WEIGHTS, read_warm_start
from grpolab.settings.resolved import Resolved
from grpolab.tasks import make_task
from grpolab.tasks.base import Example, Task
from grpolab.terminal import say
from grpolab.vocabulary import COMPLETED, LOW_START

OnStep = Callable[[int], None]  # called with the number of finished steps
DRAWS = 32  # uniform numbers that a demonstration may use
TRAINING_ITEMS = 10**9  # all of them


@dataclass(frozen=True)
class WarmStart:
    """A finished warm start, as its outcome.json has it."""

    folder: Path
    signature: str
    sha256: str  # of the weights
    accuracy: float | None  # sampled, on training prompts; None if the settings ask for no step
    steps: int
    seconds: float

    def weights(self) -> dict[str, Tensor] | None:
        """Load the weights; None if the warm start has no step and the model is used as it is."""
        return load_file(self.folder / WEIGHTS) if self.steps else None

    def as_outcome(self, target: float | None) -> dict[str, Any]:
        """Return the outcome as a sweep shows it, with a `reason` if the accuracy is far below the target."""
        reason = None
        if target is not None and self.accuracy is not None and self.accuracy < LOW_START * target:
            reason = f"accuracy {self.accuracy:.3f}, its target is {target:g}: its runs may learn nothing"
        return {"outcome": COMPLETED, "reason": reason, "accuracy": self.accuracy, "seconds": self.seconds}


def ensure(settings: Resolved, results: Results, on_step: OnStep = lambda step: None) -> WarmStart:
    """Return the warm start of these settings; make it if it is absent or damaged. Safe in many processes at once.

    Its folder's name hashes everything that it depends on, so making it again gives the same weights. Raises
    RequestError if data or code has changed.
    """
    name = settings.warm_start_signature
    folder = results.warm_start(name)
    while (made := _find(folder, name)) is None:
        with suppress(LeaseLost), leased(folder) as lease:  # waits for another process that makes it
            if _find(folder, name, loud=True) is None:
                (folder / "outcome.json").unlink(missing_ok=True)  # of a damaged one
                _make(settings, lease, on_step)
    return made


def _find(folder: Path, name: str, loud: bool = False) -> WarmStart | None:
    """Return the warm start in the folder; None if there is none or it is damaged; if `loud`, print why."""
    try:
        made = read_warm_start(folder)
        if made and made["signature"] != name:
            raise Damaged(f"{folder / 'outcome.json'} is that of {made['signature']}")
    except Damaged as damage:
        if loud:
            say(f"warm start {name} is damaged and made anew: {damage}", error=True, flush=True)
        return None
    return WarmStart(folder, **made) if made else None


def _make(settings: Resolved, lease: Lease, on_step: OnStep) -> None:
    started, folder, steps = time.monotonic(), lease.folder, settings.warm_start.max_steps
    set_up_torch(settings)
    task = make_task(settings.task)
    policy = make_policy(settings, task)
    examples = task.examples("train", TRAINING_ITEMS) if steps else []
    settings.refuse_change(of_warm_start=True)
    accuracy = None
    if steps:
        journal = Journal(folder / "journal.jsonl")
        accuracy, steps = _train(settings, task, examples, policy, journal, lease.checked(on_step))
        journal.close()
        lease.check()
        save_weights(folder / WEIGHTS, policy.weights())
    made = {"signature": settings.warm_start_signature, "sha256": policy.fingerprint(), "accuracy": accuracy}
    lease.check()
    outcome = {**made, "steps": steps, "seconds": time.monotonic() - started}
    write_new(folder / "outcome.json", json_bytes(outcome))


def _train(
    settings: Resolved, task: Task, examples: Sequence[Example], policy: Policy, journal: Journal, on_step: OnStep
) -> tuple[float, int]:
    """Train until a check passes the target, or all steps; leave the weights closest to the target in `policy`.

    Return their accuracy and step.
    """
    warm, length = settings.warm_start, settings.max_completion_length
    seed, target = warm.seed or 0, warm.target_accuracy
    # Checks use training prompts: held-out ones must not choose weights. They use the task's own score, because arms
    # with different rewards share the warm start, and the warm start's batch size, because it is part of its identity.
    items = examples[: warm.check_items]
    check = Evaluator(policy, task, task.score, items, warm.batch_size, samples=1, length=length, seed=seed)
    optimizer = make_supervised_optimizer(policy, warm.learning_rate)
    best: tuple[float, float, int, dict[str, Tensor]] | None = None  # distance, accuracy, step, weights
    taught = [(task, examples)]
    for other in map(make_task, (settings.other_tasks or {}).values()):
        taught.append((other, other.examples("train", TRAINING_ITEMS)))
    for step in range(1, warm.max_steps + 1):
        in_turn, its_examples = taught[(step - 1) % len(taught)]
        prompts, targets = demonstrations(in_turn, its_examples, seed, step, warm.batch_size)
        chat = getattr(in_turn, "chat", False)
        loss = supervised_step(policy, optimizer, prompts, targets, chat, warm.micro_batch_size)
        on_step(step)
        due = target is not None and step % warm.check_every == 0
        if not due and step != warm.max_steps:
            journal.append(step=step, loss=loss)
            continue
        accuracy = check().metrics["eval/accuracy_expected"]
        journal.append(step=step, loss=loss, accuracy=accuracy)
        journal.flush()  # for a process that watches
        if target is None:
            return accuracy, step
        distance = abs(accuracy - target)
        if best is None or distance < best[0]:
            best = distance, accuracy, step, copy.deepcopy(policy.weights())
        if accuracy >= target:
            break
    assert best is not None
    policy.load_weights(best[3])
    return best[1], best[2]


def demonstrations(
    task: Task, examples: Sequence[Example], seed: int, step: int, batch_size: int
) -> tuple[list[str], list[str]]:
    """Draw prompts and targets of a warm-start batch, with replacement, by seed and step alone."""
    index_B = (seeds.uniforms(seed, "warm_start/examples", step, np.arange(batch_size)) * len(examples)).astype(int)
    draws_BU = seeds.uniforms(seed, "warm_start/targets", step, np.arange(batch_size)[:, None], np.arange(DRAWS))
    rows = [examples[index] for index in index_B]
    targets = [task.demonstration(example, draws_U) for example, draws_U in zip(rows, draws_BU, strict=True)]
    return [example.prompt for example in rows], targets


def make_supervised_optimizer(policy: Policy, learning_rate: float) -> AdamW:
    """Return AdamW with torch's betas (.9, .999), a constant rate and no weight decay."""
    return AdamW(list(policy.weights().values()), lr=learning_rate, weight_decay=0.0, fused=True)


def supervised_step(
    policy: Policy,
    optimizer: AdamW,
    prompts: Sequence[str],
    targets: Sequence[str],
    chat: Chat,
    micro_batch_size: int | None = None,
) -> float:
    """Take a step on the mean negative log-likelihood of all target and end tokens, in nat; return the loss."""
    size = micro_batch_size or len(prompts)
    slices = [slice(start, start + size) for start in range(0, len(prompts), size)]
    micros = [text_tensors(policy.tokenizer, prompts[rows], targets[rows], chat, policy.device) for rows in slices]
    tokens = [int(texts.answer_BC.sum()) for texts in micros]
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for texts, count in zip(micros, tokens, strict=True):
        places, place_BT = text_places(policy, texts)
        answer_BT, tokens_BT = texts.answer_BC[:, texts.first :], texts.tokens_BC[:, texts.first :]
        (log_probs_BT,) = apply_to_tokens(
            lambda *tensors: (token_log_prob(*tensors),), place_BT, tokens_BT, answer_BT, places
        )
        loss = -log_probs_BT[answer_BT].mean() * (count / sum(tokens))
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(policy.weights().values(), 1.0)
    optimizer.step()
    return total
