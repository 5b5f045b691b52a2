"""The parts of a run before its first rollout step: task, policy, learner, evaluator and state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from grpolab.grpo.evaluation import Evaluator
from grpolab.grpo.loading import make_policy
from grpolab.grpo.loss import CORE, LossRecipe
from grpolab.grpo.processes import ALONE, Processes
from grpolab.grpo.prompts import PromptStream
from grpolab.grpo.rewards import make_score
from grpolab.grpo.rollout import Collector
from grpolab.grpo.sampler import own_sampler
from grpolab.grpo.step import EntropyControl, Learner, LearnerState, make_optimizer
from grpolab.registry import ADAPTERS, ENGINES, FAULTS, FRAMEWORKS, LOGGED_METRICS, SHARD, resolve
from grpolab.run.warm_start import TRAINING_ITEMS
from grpolab.settings.resolved import Resolved
from grpolab.tasks import make_task
from grpolab.tasks.base import content_hash


@dataclass(frozen=True)
class RunParts:
    """The parts that the training loop works with."""

    settings: Resolved
    learner: Learner
    evaluator: Evaluator
    state: LearnerState
    dataset: dict[str, Any]  # content hashes and sizes, for provenance


def assemble(settings: Resolved, weights: Mapping[str, Tensor] | None = None, processes: Processes = ALONE) -> RunParts:
    """Make a run's parts, with the weights of its warm start. Raises RequestError for a user's code or model."""
    task = make_task(settings.task)
    policy = make_policy(settings, task)
    if weights is not None:
        policy.load_weights(weights)
    if settings.sort_by_prompt and policy.break_even is not None:  # not in `make_policy`: the warm start stays as it is
        policy = replace(policy, by_prompt=True)
    if settings.lora:
        policy = resolve(ADAPTERS)(policy, settings.lora, settings.seed)
    needs_reference = settings.beta > 0 or settings.diagnostics.kl_ref_every > 0
    reference, optimizer = policy.frozen_copy() if needs_reference else None, make_optimizer(policy, settings)
    if settings.shard_weights and processes.size > 1:
        policy, optimizer = resolve(SHARD)(policy, optimizer, processes)
    score, chat = make_score(settings.reward, task), getattr(task, "chat", False)
    train = task.examples("train", TRAINING_ITEMS)
    held_out = task.examples("evaluation", settings.evaluation.items)
    engine = resolve(ENGINES[settings.sampler_engine])(settings, processes) if settings.sampler_engine else None
    logs_frameworks = settings.framework or settings.diagnostics.clip_conventions
    learner = Learner(
        settings=settings,
        objective=settings.objective,
        collector=Collector(settings, train, score, reference, chat, processes, engine),
        recipe=loss_recipe(settings.framework),
        processes=processes,
        framework_metrics=partial(resolve(LOGGED_METRICS), settings) if logs_frameworks else lambda update: {},
    )
    size, samples, length = settings.evaluation.batch_size, settings.evaluation.samples, settings.max_completion_length
    how = size, samples, length, settings.seed, processes
    others = [
        Evaluator(
            replace(policy, stop=()), other, other.score, other.examples("evaluation", settings.evaluation.items), *how
        )
        for other in map(make_task, (settings.other_tasks or {}).values())
    ]
    evaluator = Evaluator(policy, task, score, held_out, *how, others)
    dataset: dict[str, Any] = {}
    for split, examples in (("train", train), ("evaluation", held_out)):
        dataset |= {f"{split}_sha256": content_hash(tuple(examples)), f"{split}_items": len(examples)}
    entropy = EntropyControl(settings.entropy_coef or 0.0) if settings.adaptive_entropy else None
    sampler = own_sampler(policy, settings)
    stream = PromptStream(settings, len(train))
    state = LearnerState(policy, optimizer, stream, entropy=entropy, sampler=sampler)
    if settings.fault:
        learner = resolve(FAULTS[settings.fault]).plant(learner, state)
    return RunParts(settings, learner, evaluator, state, dataset)


def loss_recipe(framework: str | None) -> LossRecipe:
    """Return the steps of the loss as a framework computes them; the core's own for None."""
    recipe: LossRecipe = resolve(FRAMEWORKS[framework]) if framework else CORE
    return recipe
