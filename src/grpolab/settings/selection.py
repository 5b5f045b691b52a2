"""The settings of which samples train: what is sampled again, dropped or masked before the loss sees it.

An empty key switches its rule off and is no part of a run's signature. The rules are in `grpo/selection.py`.
"""

from __future__ import annotations

from grpolab.settings import Count, Settings, Switch, setting
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


class SelectionSettings(ObjectiveSettings):
    """The objective, and which samples reach it."""

    filter_groups: GroupFilter | None = setting("Rule that leaves out groups without a difference; empty: all train.")
    mask_truncated_completions: Switch = setting(
        "Completions without an end token count in their group's advantages, and no token of them in the loss."
    )

    @property
    def refills(self) -> bool:
        """Return True if a rollout step may sample more than one batch, so that its cost is not known before."""
        return self.filter_groups is not None and self.filter_groups.max_batches > 1
