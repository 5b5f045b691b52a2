"""Rules about what a run is made of: groups that teach nothing, a model that brings dropout along, a planted fault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from grpolab.lint.rule import rule
from grpolab.paths import read_json
from grpolab.settings import PretrainedModel, RunSettings

GROUP_BASELINES = {"group_mean", "leave_one_out", "length_weighted", "second_best"}
MOST_EQUAL = 0.5  # share of groups without a difference that is worth a word


@rule("warning", "num_generations")
def zero_variance_groups(settings: RunSettings) -> Iterator[str]:
    """A reward of 0 or 1 and a small group: at least half the groups are all right or all wrong, with advantage 0."""
    binary = settings.reward.function is None and [*settings.reward.weights] == ["correct"]
    if not binary or settings.advantage_estimator not in GROUP_BASELINES:
        return
    # Convex in the accuracy p: prompts that differ in difficulty have at least the share of their mean.
    p = settings.warm_start.target_accuracy if settings.warm_start.max_steps else 0.5
    group = settings.num_generations
    equal = p**group + (1 - p) ** group
    if equal >= MOST_EQUAL:
        start = f"at the warm start's accuracy of {p:g}" if settings.warm_start.max_steps else "at any accuracy"
        yield (
            f"num_generations={group} and a reward of 0 or 1: {start} at least {equal:.0%} of the groups have equal"
            " rewards, and teach nothing"
        )


@rule("note", "model.path")
def dropout_is_off(settings: RunSettings) -> Iterator[str]:
    """The pretrained model's config has dropout. It is never applied here, because the ratio of the first pass would
    not be 1; a trainer that leaves it on computes something else.
    """
    if isinstance(settings.model, PretrainedModel) and (found := dropout_of(settings.model.path)):
        yield f"config.json of model.path={settings.model.path} has {found}: dropout stays off here, in every forward"


@rule("warning", "fault")
def planted_fault(settings: RunSettings) -> Iterator[str]:
    """The loop is broken on purpose (conf/fault/), for the doctor to find: the run shows nothing else."""
    if settings.fault:
        yield f"fault={settings.fault} is planted: the loop is broken on purpose, for `grpolab diagnose` to find"


def dropout_of(model: str) -> str:
    """The dropout rates above 0 in the config of a model's local folder, `attention_dropout=0.1`; else empty."""
    config = read_json(Path(model) / "config.json") or {}
    rates = {name: value for name, value in config.items() if "drop" in name and isinstance(value, int | float)}
    return ", ".join(f"{name}={value:g}" for name, value in rates.items() if value > 0)
