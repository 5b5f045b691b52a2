"""A hypothesis with the numbers that it is about: one question for each combination of levels that it leaves open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from grpolab.quantities import LABELS
from grpolab.report.load import Study
from grpolab.report.measures import measure
from grpolab.report.text import number
from grpolab.vocabulary import DIVERGED, RESULTS

Hypothesis = dict[str, Any]  # as the plan has it


@dataclass(frozen=True)
class Question:
    """A hypothesis in one facet. `values_SA`: a row for each seed that all arms share, a column for each arm.

    A run that diverged or was stopped counts with what it has; `diverged` says how many there are. `valueless` seeds
    have all runs, but one that ended before its metric could be measured. `void` says why nothing can be decided.
    """

    hypothesis: Hypothesis
    facet: str
    values_SA: pd.DataFrame
    diverged: int
    valueless: int
    void: str

    @property
    def test(self) -> str:
        """What decides it. Plans of older programs do not say: they had three tests, and a rule for each."""
        if "test" in self.hypothesis:
            return self.hypothesis["test"]
        if self.hypothesis["metric"] in LABELS:
            return "fisher"
        return "equivalence" if self.direction == "equal" else "paired_t"

    @property
    def direction(self) -> str:
        """less, greater or equal."""
        return self.hypothesis["direction"]

    @property
    def margin(self) -> float:
        """By more than this, or within this, on the scale on which it is tested."""
        margin = self.hypothesis["margin"]
        return float(np.log(margin)) if self.test == "paired_log_t" else margin

    @property
    def null(self) -> float:
        """The effect that lies between claimed and not claimed; `equal` has two, and says so itself."""
        return -self.margin if self.direction == "less" else self.margin

    @property
    def of(self) -> pd.Series:
        """The first arm's values by seed."""
        return self.values_SA.iloc[:, 0]

    @property
    def minus(self) -> pd.Series:
        """The second arm's, or 0."""
        return self.values_SA.iloc[:, 1] if self.values_SA.shape[1] > 1 else 0 * self.of

    @property
    def contrast(self) -> str:
        """`a - b`, `a / b`, `a` or `a, b, c`."""
        between = {"page": ", ", "paired_log_t": " / "}.get(self.test, " - ")
        return between.join(self.values_SA.columns)

    @property
    def measured(self) -> str:
        """The metric, or its range over a factor."""
        factor = self.hypothesis.get("range_over")
        return (
            f"the range over {factor} of `{self.hypothesis['metric']}`" if factor else f"`{self.hypothesis['metric']}`"
        )

    @property
    def seeds(self) -> int:
        """From how many shared seeds on it may be decided; plans of older programs do not say."""
        return self.hypothesis.get("seeds", 2)


def arms_of(hypothesis: Hypothesis) -> list[str]:
    """The arms that a hypothesis compares, in its order."""
    contrast = hypothesis.get("contrast")
    return [arm for arm in contrast.values() if arm is not None] if contrast else hypothesis["trend"]


def questions(study: Study) -> Iterator[Question]:
    """Every hypothesis of the study, once for each facet that it is about and that has all its arms."""
    for hypothesis in study.plan.get("hypotheses", []):
        arms, varied = arms_of(hypothesis), hypothesis.get("range_over")
        cells = _cells(study, hypothesis)
        for facet, own in cells.groupby("place", sort=False):
            planned = own[own["arm"].isin(arms)]
            if set(planned["arm"]) == set(arms):
                yield _question(hypothesis, str(facet), planned, arms, bool(varied), _void(hypothesis, study, own))


def _cells(study: Study, hypothesis: Hypothesis) -> pd.DataFrame:
    """The cells that its `where` leaves, with the metric as `value`, and as `place` what is not compared."""
    cells = study.cells
    for factor, level in (hypothesis.get("where") or {}).items():
        cells = cells[cells[f"factor/{factor}"] == level]
    inside = (study.plan["compare"], hypothesis.get("range_over"))
    outer = [f"factor/{factor}" for factor in study.plan["factors"] if factor not in inside]
    places = ["/".join(levels) for levels in cells[outer].to_numpy(dtype=str)]
    return cells.assign(place=places, value=_measured(study, cells, hypothesis["metric"]))


def _measured(study: Study, cells: pd.DataFrame, metric: str) -> np.ndarray:
    """The metric's value of each cell's run; NaN where there is none."""
    values = measure(study, metric)
    return values.reindex(pd.MultiIndex.from_frame(cells[list(values.index.names)])).to_numpy()


def _question(
    hypothesis: Hypothesis, facet: str, cells: pd.DataFrame, arms: list[str], is_range: bool, void: str
) -> Question:
    if hypothesis.get("test") == "paired_log_t":  # a negative number has no logarithm
        cells = cells.assign(value=cells["value"].where(cells["value"] >= 0))
    each = cells.groupby(["seed", "arm"])["value"].agg(_range if is_range else _only).unstack().reindex(columns=arms)
    there = cells["outcome"].isin(RESULTS).groupby(cells["seed"]).all()
    values_SA = each.dropna()
    return Question(
        hypothesis=hypothesis,
        facet=facet,
        values_SA=values_SA,
        diverged=int((cells["outcome"] == DIVERGED)[cells["seed"].isin(values_SA.index)].sum()),
        valueless=int(there.sum()) - len(values_SA),
        void=void,
    )


def _only(values: pd.Series) -> float:
    return float(values.iloc[0])


def _range(values: pd.Series) -> float:
    """Largest minus smallest; NaN where a level has no value, because the range would be too small."""
    return float(values.max() - values.min()) if values.notna().all() else np.nan


def _void(hypothesis: Hypothesis, study: Study, cells: pd.DataFrame) -> str:
    """Why the test would say nothing: the condition of the hypothesis, where it does not hold."""
    condition = hypothesis.get("provided")
    if not condition:
        return ""
    mean = pd.Series(_measured(study, cells[cells["arm"] == condition["of"]], condition["metric"])).mean()
    if mean > condition["above"]:
        return ""
    found = f"`{condition['metric']}` of {condition['of']} is {'not measured' if np.isnan(mean) else number(mean)}"
    return f"its condition fails: {found}, not above {condition['above']:g}"
