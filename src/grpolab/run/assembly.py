"""A run's moving parts, put together from its settings and its warm start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grpolab.learn.collector import Collector
from grpolab.learn.evaluation import Evaluator
from grpolab.learn.learner import EntropyControl, Learner, LearnerState
from grpolab.learn.objective import Objective
from grpolab.learn.policy import make_policy
from grpolab.learn.rewards import make_score
from grpolab.learn.steps import Steps
from grpolab.learn.tasks import content_hash, make_task
from grpolab.learn.update import make_optimizer
from grpolab.registry import FAULTS, resolve
from grpolab.run.warm_start import TRAINING_ITEMS, WarmStart
from grpolab.settings import RunSettings


@dataclass(frozen=True)
class Parts:
    """What the loop works with."""

    settings: RunSettings  # resolved
    learner: Learner
    steps: Steps  # of the learner; a planted fault replaces some
    evaluator: Evaluator
    state: LearnerState
    dataset: dict[str, Any]  # content hashes and sizes, for provenance


def assemble(settings: RunSettings, warm: WarmStart) -> Parts:
    """Everything as it is before the first rollout step; `settings` are resolved.

    Raises RequestError where a user's task, reward or model cannot be used.
    """
    task = make_task(settings.task)
    policy = make_policy(settings, task)
    weights = warm.weights()
    if weights is not None:
        policy.load_weights(weights)
    score = make_score(settings.reward, task)
    chat = getattr(task, "chat", False)
    train = task.examples("train", TRAINING_ITEMS)
    held_out = task.examples("evaluation", settings.evaluation.items)
    needs_reference = settings.beta > 0 or settings.diagnostics.kl_ref_every > 0
    reference = policy.frozen_copy() if needs_reference else None
    collector = Collector(settings=settings, examples=train, score=score, reference=reference, chat=chat)
    learner = Learner(settings=settings, objective=Objective.of(settings), collector=collector)
    evaluator = Evaluator(
        task=task,
        score=score,
        examples_I=held_out,
        tokenizer=policy.tokenizer,
        device=policy.device,
        chat=chat,
        batch_size=settings.evaluation.batch_size,
        samples=settings.evaluation.samples,
        length=settings.max_completion_length,
        seed=settings.seed,
    )
    dataset = {
        "train_sha256": content_hash(train),
        "train_items": len(train),
        "evaluation_sha256": content_hash(held_out),
        "evaluation_items": len(held_out),
    }
    entropy = EntropyControl(settings.entropy_coef or 0.0) if settings.adaptive_entropy else None
    state = LearnerState(policy, make_optimizer(policy, settings), entropy=entropy)
    steps = resolve(FAULTS[settings.fault])(learner, state) if settings.fault else Steps.of(learner)
    return Parts(settings, learner, steps, evaluator, state, dataset)
