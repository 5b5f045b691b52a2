"""A run's moving parts, put together from its settings and its warm start."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from grpolab.frameworks.base import clip_conventions, metrics_of, recipe_of
from grpolab.frameworks.names import CLIP_METRIC, convention
from grpolab.grpo.evaluation import Evaluator
from grpolab.grpo.loss import Objective
from grpolab.grpo.model import make_policy
from grpolab.grpo.rewards import make_score
from grpolab.grpo.rollout import Collector
from grpolab.grpo.step import EntropyControl, Learner, LearnerState, Update, make_optimizer
from grpolab.registry import FAULTS, resolve
from grpolab.run.warm_start import TRAINING_ITEMS, WarmStart
from grpolab.settings.run import RunSettings
from grpolab.tasks import make_task
from grpolab.tasks.base import content_hash


@dataclass(frozen=True)
class Parts:
    """What the loop works with."""

    settings: RunSettings  # resolved
    learner: Learner
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
    learner = Learner(
        settings=settings,
        objective=Objective.of(settings),
        collector=Collector(settings=settings, examples=train, score=score, reference=reference, chat=chat),
        recipe=recipe_of(settings.framework),
        framework_metrics=partial(framework_metrics, settings),
    )
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
    if settings.fault:
        learner = resolve(FAULTS[settings.fault]).plant(learner, state)
    return Parts(settings, learner, evaluator, state, dataset)


@torch.no_grad()
def framework_metrics(settings: RunSettings, update: Update) -> dict[str, float]:
    """What frameworks log of an optimiser step, by journal name.

    The run's own framework's, and the clip fraction by each framework's definition where the diagnostics ask for it.
    """
    framework = settings.framework
    logged = metrics_of(framework, update.objective, update.inputs, update.whole_loss) if framework else {}
    metrics = {f"{framework}/{name}": value for name, value in logged.items()}
    if settings.diagnostics.clip_conventions:
        shares = clip_conventions(update.objective, update.inputs)
        if framework and (name := CLIP_METRIC.get(framework)) in logged:
            shares[framework] = logged[name]
        metrics |= {convention(name): share for name, share in shares.items()}
    return metrics
