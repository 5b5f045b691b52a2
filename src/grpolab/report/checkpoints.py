"""Four moments of every run, for what would be too much to keep of every update."""

from __future__ import annotations

import pandas as pd

QUARTERS = 4


def at_quarters(updates: pd.DataFrame) -> pd.DataFrame:
    """The last update of the rollout steps that end the quarters of each run, as far as it went; index as it was.

    With a column `quarter`, from 1. A run of fewer than four rollout steps has no row for some quarters.
    """
    last = updates.groupby(["signature", "rollout_step"], sort=False).tail(1)
    runs = last.groupby("signature")["rollout_step"]
    place, steps = runs.cumcount() + 1, runs.transform("size")
    quarter = QUARTERS * place // steps
    return last.assign(quarter=quarter)[quarter > QUARTERS * (place - 1) // steps]
