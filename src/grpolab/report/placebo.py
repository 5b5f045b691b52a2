"""Arms that are the same function: their runs are equal to the bit or not, without statistics."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from grpolab.report.load import Study


class Bits(NamedTuple):
    """How many pairs of runs are `equal`, which are `different`, how many are `planned`, and `what` was compared."""

    equal: int
    different: list[str]
    planned: int
    what: str


def compare_bits(study: Study, first: str, second: str) -> Bits:
    """Journals and weights of two arms, by their hashes.

    The journals of two dialects differ in any case: each has its framework's metrics.
    """
    keys, hashes, what = ["facet", "seed"], ["journal_sha256", "policy_sha256"], "whole journal and final weights"
    planned = int((study.cells["arm"] == first).sum())
    if "setting/framework" in study.cells:
        pair = study.cells[study.cells["arm"].isin((first, second))]
        if pair["setting/framework"].nunique(dropna=False) > 1:
            hashes, what = hashes[1:], "final weights"
    if study.done.empty:
        return Bits(0, [], planned, what)
    sides = [study.done[study.done["arm"] == arm].set_index(keys)[hashes] for arm in (first, second)]
    pairs: pd.DataFrame = sides[0].join(sides[1], suffixes=("_first", "_second"), how="inner")
    same = np.logical_and.reduce([pairs[f"{name}_first"] == pairs[f"{name}_second"] for name in hashes])
    different = [f"{facet} seed {seed}" for facet, seed in pairs.index[~same]]
    return Bits(int(same.sum()), different, planned, what)
