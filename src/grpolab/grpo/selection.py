"""Which samples train: pure functions of rewards and lengths, one row for each group of completions.

`Collector` in `rollout.py` applies them; `settings/selection.py` switches them on. Letters of shapes: P prompts, of
which each has a group of G completions.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
