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
