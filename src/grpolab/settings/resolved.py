"""Resolve a run: fill in settings that follow from others, and name it by its signature. Training takes `Resolved`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

from grpolab.errors import RequestError
from grpolab.identity import STEPS, dotted, identified, keys_with_content, signature
from grpolab.registry import CONTENT_OF, SURROGATES, resolve
from grpolab.settings.objective import Objective
from grpolab.settings.run import RunSettings, device_here

# All that a warm start depends on. Reward and evaluation are not among it, so that arms that differ in them share one.
OF_WARM_START = {
    "task",
    "other_tasks",
    "model",
    "warm_start",
    "max_completion_length",
    "temperature",
    "device",
    "dtype",
    "head_dtype",
}


class Resolved(RunSettings):
    """One run with all settings filled in, so that two ways to write the same run are equal. Made by `resolve_run`."""

    @cached_property
    def signature(self) -> str:
        """Return the name of the run's folder. It is computed once, from data and code as they are at that moment."""
        return signature(self.identity())

    @cached_property
    def warm_start_signature(self) -> str:
        """Return the name of its warm start's folder."""
        return signature(self.warm_start_identity())

    @property
    def objective(self) -> Objective:
        """Return the settings of the loss, where beta is 0 if the KL is in the reward or in the advantage."""
        axes = {name: getattr(self, name) for name in Objective.model_fields}
        beta = self.beta if self.kl_placement == "loss" else 0.0
        return Objective.model_construct(**{**axes, "beta": beta, "entropy_coef": self.entropy_coef or 0.0})

    def content(self) -> dict[str, Any]:
        """Return hashes of the data, user code and local model that the settings name, by key; empty if they name none.

        Content that cannot be read gets a mark instead of a hash, and `run.preflight` reports it.
        """
        named = self.model_dump(include={"task", "reward", "model", *STEPS})
        if not keys_with_content(named):
            return {}
        content: dict[str, Any] = resolve(CONTENT_OF)(named)
        if "kernel" in content:  # a record that names its function
            function = {"kernel": SURROGATES[self.kernel].function}
            content["kernel"] |= {"function": resolve(CONTENT_OF)(function)["kernel"]}
        return content

    def identity(self) -> dict[str, Any]:
        """Return what the signature hashes: content, and all settings except empty ones and those of the machine.

        Because empty keys are left out, a new setting that is off does not change the signatures of old runs.
        """
        return identified(self.model_dump(exclude={"machine"}, exclude_none=True), self.content())

    def warm_start_identity(self) -> dict[str, Any]:
        """Return what its warm start's signature is made of."""
        values = self.model_dump(include=OF_WARM_START, exclude={"task": {"evaluation_file"}}, exclude_none=True)
        return identified(values, self.content())

    @classmethod
    def as_planned(cls, values: Mapping[str, Any], **signatures: str) -> Self:
        """Rebuild a run that another process has resolved, and keep the signatures that it computed."""
        settings = cls.model_validate(values)
        settings.__dict__.update(signatures)
        return settings

    def refuse_change(self, *, of_warm_start: bool = False) -> None:
        """Raise RequestError if data or code has changed since the signature was computed.

        Called once, after the run or its warm start has read its files and before it trains.
        """
        if of_warm_start:
            planned, now = self.warm_start_signature, signature(self.warm_start_identity())
        else:
            planned, now = self.signature, signature(self.identity())
        if now == planned:
            return
        values = dict(dotted(self.model_dump()))
        named = [f"{key}={values.get(key, '...')}" for key in self.content()]  # the settings that name content
        changed = " or ".join(named) or "the program or its environment"
        raise RequestError(f"{changed} has changed since run {planned} was planned: the same command plans it anew")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy, which has signatures of its own."""
        copy = super().model_copy(update=update, deep=deep)
        for name in ("signature", "warm_start_signature"):
            copy.__dict__.pop(name, None)
        return copy


def resolve_run(composed: RunSettings) -> Resolved:
    """Return the resolved run of composed settings on this machine. Raises TypeError if they are resolved already."""
    if isinstance(composed, Resolved):
        raise TypeError("these settings are resolved already")
    warm_start = composed.warm_start
    seed = composed.seed if warm_start.seed is None else warm_start.seed
    filled = {
        **composed.resolved_axes(),
        "min_lr_ratio": None if composed.lr_scheduler_type == "constant" else composed.min_lr_ratio or None,
        "rollout_steps": composed.planned_steps,
        "max_completions": composed.max_completions if composed.refills else None,
        "max_optimizer_steps": None,
        "micro_batch_size": composed.forward_size,
        "sampler_refresh": None if composed.sampler_refresh == 1 else composed.sampler_refresh,
        "data_parallel": None if composed.data_parallel == 1 else composed.data_parallel,
        "warm_start": warm_start.model_copy(update={"seed": seed}),
        "model": composed.model.pinned(),
        "task": composed.task.pinned() if composed.task.name == "dataset" else composed.task,
        "device": device_here(composed.device),
    }
    values = {name: getattr(composed, name) for name in RunSettings.model_fields}
    return Resolved.model_construct(**{**values, **filled})
