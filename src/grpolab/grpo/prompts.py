"""Which prompts are sampled, and which of their completions train.

The stream of all epochs, the rules that choose from it by what was seen before (at most one of them is on), and pure
functions of rewards and lengths, one row for each group, which `Collector` applies. `settings/selection.py` switches
all of them on. Letters of shapes: N training prompts, P prompts of a batch, each with a group of G completions.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpolab import seeds
from grpolab.registry import SMOOTHING, resolve
from grpolab.settings.resolved import Resolved
from grpolab.settings.selection import REWARD, DifficultyPool


@dataclass
class PromptStream:
    """The place of the next prompt in the stream of all epochs, and what was seen of each prompt: state of a run."""

    settings: Resolved
    size: int  # training prompts
    place: int = 0
    # By index of a training prompt, where a rule chooses prompts by it: the pass rate of its last group, that group's
    # mean reward, or how many of its last groups in a row had equal rewards.
    seen: dict[int, float] = field(default_factory=dict)
    rewards: dict[int, list[float]] = field(default_factory=dict)  # what `advantage_history` keeps of a prompt's

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run cannot recompute."""
        return {"place": self.place, "seen": self.seen, "rewards": self.rewards}

    def next_places(self) -> list[int]:
        """Return the places of the next batch's prompts, without those that a rule passes over, and go on behind them.

        Chance passes over at most an epoch of places for a batch; then they are taken as they come, because every
        prompt's groups may have been equal so often that no place would ever be taken.
        """
        settings, count, places = self.settings, self.settings.prompts_per_step, list[int]()
        if settings.difficulty_pools:
            self.place += count
            return self._drawn_from_pools(settings.difficulty_pools, np.arange(self.place - count, self.place))
        cap, again = settings.pass_rate_cap, settings.revisit_equal_groups
        if cap is not None and sum(rate >= cap for rate in self.seen.values()) == self.size:
            cap = None  # no prompt is left
        may_pass_over = self.size
        while len(places) < count:
            place, last = self.place, self.seen.get(self._index(self.place), 0.0)
            self.place += 1
            if cap is not None and last >= cap:
                continue
            if again and may_pass_over and seeds.uniforms(settings.seed, "equal groups", place) >= again**last:
                may_pass_over -= 1
                continue
            places.append(place)
        return places

    def _drawn_from_pools(self, pools: Sequence[DifficultyPool], numbers: NDArray[np.int64]) -> list[int]:
        """Draw prompts by their pools; a place of the first epoch stands for its prompt."""
        scores_N = [self.seen.get(self._index(place)) for place in range(self.size)]
        weights_N = pool_weights(scores_N, pools)
        draws = seeds.uniforms(self.settings.seed, "difficulty pools", numbers) * weights_N.sum()
        return np.searchsorted(weights_N.cumsum(), draws, side="right").clip(max=self.size - 1).tolist()

    def see(self, places: Sequence[int], values: Callable[[str], Tensor]) -> None:
        """Keep what the rule asks of each group; `values` returns a part of the reward, or `reward` itself, (P, G)."""
        settings = self.settings
        if not settings.prompt_rules:
            return
        values_PG = values("correct" if settings.pass_rate_cap is not None else REWARD)
        differ_P, means_P = differs(values_PG).tolist(), values_PG.nanmean(1).tolist()
        for place, differ, mean in zip(places, differ_P, means_P, strict=True):
            index = self._index(place)
            if settings.revisit_equal_groups is not None:
                self.seen[index] = 0.0 if differ else self.seen.get(index, 0.0) + 1
            elif not math.isnan(mean):  # a group without a score tells nothing
                self.seen[index] = mean

    def with_rewards(self, places: Sequence[int], rewards_PG: Tensor) -> Tensor:
        """Add each group's rewards to its prompt's, and return what these are with them for each completion, (B, 4)."""
        with_visit, rows_B4 = resolve(SMOOTHING["with_visit"]), list[list[float]]()
        for place, rewards_G in zip(places, rewards_PG, strict=True):
            index = self._index(place)
            self.rewards[index] = with_visit(self.rewards.get(index), rewards_G, self.settings.scale_rewards)
            rows_B4 += [self.rewards[index]] * len(rewards_G)
        return torch.tensor(rows_B4, dtype=torch.double)

    def metrics(self) -> dict[str, float]:
        """Return how many training prompts the rule knows; empty if there is none."""
        metrics = {"prompts/seen": len(self.seen) / self.size} if self.settings.prompt_rules else {}
        if (cap := self.settings.pass_rate_cap) is not None:
            metrics["prompts/left_out"] = sum(rate >= cap for rate in self.seen.values()) / self.size
        return metrics

    def _index(self, place: int) -> int:
        return prompt_index(self.settings.seed, self.size, place)


def prompt_index(seed: int, size: int, place: int) -> int:
    """Return the number of the training prompt at a place of the stream: a permutation that is new in every epoch."""
    epoch, position = divmod(place, size)
    return _epoch_order(seed, epoch, size)[position]


@lru_cache(maxsize=4)  # every rollout step asks for its epoch's
def _epoch_order(seed: int, epoch: int, size: int) -> list[int]:
    return seeds.permutation(seed, "prompts", epoch, size).tolist()


def pool_weights(scores_N: Sequence[float | None], pools: Sequence[DifficultyPool]) -> NDArray[np.float64]:
    """Return how often each prompt is drawn, (N,): the weight of its pool; 1 where it was not sampled yet.

    prime-rl's `DifficultyPoolSampler` (559b447, orchestrator/curriculum/samplers/pool.py): `at_most` belongs to the
    pool, and the last pool has all that is above it. Its defaults: .25, .75, 1.0 with weights .2, 1, .2.
    """
    ends, weights = [pool.at_most for pool in pools], [pool.weight for pool in pools]
    places = (None if score is None else min(bisect_left(ends, score), len(ends) - 1) for score in scores_N)
    return np.array([1.0 if place is None else weights[place] for place in places])


def differs(values_PG: Tensor) -> Tensor:
    """Find the groups in which a value differs, shape (P,), bool: the others have nothing to be compared with.

    DAPO (2503.14476, sec. 3.2 and eq. 11: 0 < right completions < G). verl's `filter_groups` asks for a standard
    deviation above 0 of any metric (verl-recipe 59fa05c, dapo/dapo_ray_trainer.py). Its deviation of equal fractions
    may be rounding and not 0, and here they are equal. A value that is NaN is not compared.
    """
    missing_PG = values_PG.isnan()
    least_P = values_PG.masked_fill(missing_PG, torch.inf).amin(1)
    return values_PG.masked_fill(missing_PG, -torch.inf).amax(1) > least_P


def most_varied(rewards_PG: Tensor, count: int) -> Tensor:
    """Find the `count` completions of each group whose rewards have the largest variance, (P, G), bool.

    PODS (2504.13818, max-variance down-sampling): some of the least and some of the largest rewards. Of choices with
    equal variance it is the one with the most large rewards; a reward that is NaN counts as its group's mean.
    """
    mean_P1 = rewards_PG.nanmean(1, keepdim=True).nan_to_num()
    ordered_PG, order_PG = rewards_PG.where(~rewards_PG.isnan(), mean_P1).double().sort(dim=1, stable=True)
    G, numbers_G = rewards_PG.shape[1], torch.arange(rewards_PG.shape[1])
    choices_CG = torch.stack([(numbers_G < low) | (numbers_G >= G - count + low) for low in range(count + 1)])
    variances_PC = torch.stack([ordered_PG[:, kept_G].var(1, correction=0) for kept_G in choices_CG], 1)
    best_P = (variances_PC >= variances_PC.amax(1, keepdim=True) - 1e-12).int().argmax(1)
    return torch.zeros_like(rewards_PG, dtype=torch.bool).scatter(1, order_PG, choices_CG[best_P])


def overlong(lengths_PG: Tensor, longest: int, buffer: float) -> Tensor:
    """Return DAPO's soft punishment, (P, G): 0 until `buffer` tokens before `longest`, then linearly down to -1 there.

    2503.14476, eq. 13, L_cache = `buffer`; TRL `get_soft_overlong_punishment`; verl `overlong_buffer`, whose
    `penalty_factor` is the weight of the part.
    """
    return ((longest - buffer - lengths_PG) / buffer).clamp(-1, 0)
