"""The settings of which samples train: what is sampled again, dropped or masked before the loss sees it.

An empty key switches its rule off and is no part of a run's signature. The rules are in `grpo/prompts.py`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, FiniteFloat

from grpolab.settings import Count, NonNegative, Settings, Switch, setting
from grpolab.settings.objective import ObjectiveSettings

REWARD = "reward"  # the weighted sum of all reward parts


class GroupFilter(Settings):
    """Groups whose completions all have the same value do not train (DAPO's dynamic sampling, or only dropped)."""

    metric: str = setting(
        "What must differ within a group: a part that reward.weights names, or `reward`, their weighted sum."
    )
    max_batches: Count = setting(
        "Most batches of prompts_per_step prompts that a rollout step samples until it has as many groups that differ;"
        " 1: groups are dropped, and none is sampled in their place."
    )


class DifficultyPool(Settings):
    """Prompts whose last group had a mean reward in one range (prime-rl)."""

    at_most: FiniteFloat = setting("Largest mean reward of the pool; prompts above the last pool's are in that one.")
    weight: NonNegative = setting("How often each of its prompts is drawn; a prompt that was not sampled yet weighs 1.")


class SelectionSettings(ObjectiveSettings):
    """The objective, and which samples reach it."""

    filter_groups: GroupFilter | None = setting("Rule that leaves out groups without a difference; empty: all train.")
    mask_truncated_completions: Switch = setting(
        "Completions without an end token count in their group's advantages, and no token of them in the loss."
    )

    train_generations: Annotated[int, Field(ge=2)] | None = setting(
        "So many completions of each group train, those whose rewards vary most (PODS); empty: all."
    )
    # Rules of which prompts are sampled, by what their last groups were; at most one of them.
    pass_rate_cap: Annotated[float, Field(gt=0, le=1)] | None = setting(
        "A prompt whose group was right at least so often is not sampled again (ScaleRL: 0.9); empty: all are."
    )
    revisit_equal_groups: Annotated[float, Field(gt=0, lt=1)] | None = setting(
        "Probability of sampling a prompt again, to the power of how many of its last groups in a row had equal rewards"
        " (GRESO, with one fixed probability); a batch passes over at most an epoch of prompts. Empty: 1."
    )
    difficulty_pools: Annotated[list[DifficultyPool], Field(min_length=1)] | None = setting(
        "Prompts are drawn with replacement, as often as their pool says; empty: each once an epoch."
    )

    @property
    def prompt_rules(self) -> list[str]:
        """Name the rules that choose prompts by what their last groups were."""
        names = ("pass_rate_cap", "revisit_equal_groups", "difficulty_pools")
        return [name for name in names if getattr(self, name) is not None]

    @property
    def refills(self) -> bool:
        """Return True if a rollout step may sample more than one batch, so that its cost is not known before."""
        return self.filter_groups is not None and self.filter_groups.max_batches > 1
