"""A study as tidy tables: its plan, its cells with their outcomes, and the journals of its runs.

The plan says which cells there ought to be, so what is missing is known without asking anybody else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from grpolab.errors import RequestError
from grpolab.paths import Results
from grpolab.report.reference import has_reference, read_reference_plan, read_reference_runs
from grpolab.report.runs import TABLES, Runs, read_runs
from grpolab.vocabulary import MISSING, RESULTS

Plan = dict[str, Any]
# What of a cell stands beside every record of its run.
_CELL_KEYS = ["study", "variant", "arm", "facet", "seed"]


@dataclass(frozen=True, eq=False)
class Study:
    """One study. Each table has the columns study, variant, arm, facet, seed, signature and `factor/<name>`.

    `arm` is the level of the factor that the study compares; `facet` joins the levels of all other factors: arms are
    compared within a facet. `cells` has one row per planned cell with its outcome (`missing` where it has none), its
    settings as `setting/<key>`, and its provenance. `evaluations` carries the last finite evaluation of a run that
    ended early (it diverged, was stopped, or its time was up) forward to its planned end, in rows with `carried` set.
    """

    results: Results
    plan: Plan
    cells: pd.DataFrame
    updates: pd.DataFrame
    rollouts: pd.DataFrame
    evaluations: pd.DataFrame
    histograms: pd.DataFrame
    timings: pd.DataFrame

    @property
    def name(self) -> str:
        """The study's name."""
        return self.plan["study"]

    @property
    def metric(self) -> str:
        """The evaluation metric that its question is about."""
        return self.plan.get("primary_metric", "")

    @property
    def baseline(self) -> str:
        """The arm that all others are compared with."""
        return self.plan["baseline"]

    @property
    def arms(self) -> list[str]:
        """Levels of the compared factor, in the order of the study file."""
        return list(self.plan["factors"][self.plan["compare"]])

    @property
    def facets(self) -> list[str]:
        """Combinations of the other factors' levels that have a cell, in the order of the plan."""
        return list(dict.fromkeys(self.cells["facet"]))

    @property
    def facet_factors(self) -> str:
        """Names of the factors that a facet joins, e.g. `task/regime`."""
        return "/".join(factor for factor in self.plan["factors"] if factor != self.plan["compare"])

    @property
    def done(self) -> pd.DataFrame:
        """Cells with a result: completed, diverged or stopped."""
        return self.cells[self.cells["outcome"].isin(RESULTS)]

    @property
    def absent(self) -> pd.DataFrame:
        """Cells without a result: missing or failed."""
        return self.cells[~self.cells["outcome"].isin(RESULTS)]

    def by_arm(self, table: str, facet: str) -> Iterator[tuple[str, pd.DataFrame]]:
        """The arms that have rows in a table of this facet, with those rows, in the order of the study file."""
        frame: pd.DataFrame = getattr(self, table)
        here = frame[frame["facet"] == facet]
        yield from ((arm, here[here["arm"] == arm]) for arm in self.arms if (here["arm"] == arm).any())

    def of_cell(self, table: str, cell: Any) -> pd.DataFrame:
        """The rows of a table that belong to one row of `cells`."""
        frame: pd.DataFrame = getattr(self, table)
        return frame[(frame["variant"] == cell.variant) & (frame["seed"] == cell.seed)]


def load(results: Results, name: str) -> list[Study]:
    """The study `name`, preceded by the studies that it includes (it then has no cells of its own).

    Reads the run folders where the study has been planned here, else the committed reference.

    Raises RequestError when neither knows the study.
    """
    local = results.plan(name).is_file()
    if not local and not has_reference(results, name):
        raise RequestError(f"study={name} has no plan in {results.studies}: run `grpolab sweep {name}` first")
    read_plan = _read_plan if local else read_reference_plan
    plan = read_plan(results, name)
    plans = [*(read_plan(results, part) for part in plan["includes"]), plan]
    signatures = dict.fromkeys(cell["signature"] for each in plans for cell in each["cells"])
    runs = (read_runs if local else read_reference_runs)(results, signatures)
    return [study_of(results, each, runs) for each in plans]


def _read_plan(results: Results, name: str) -> Plan:
    path = results.plan(name)
    if not path.is_file():
        raise RequestError(f"study={name} has no plan in {results.studies}: run `grpolab sweep {name}` first")
    return json.loads(path.read_text())


def study_of(results: Results, plan: Plan, runs: Runs) -> Study:
    """Join a plan's cells with what their runs left behind."""
    cells = _cells(plan).merge(runs.outcomes, on="signature", how="left")
    cells["outcome"] = cells["outcome"].fillna(MISSING)
    keys = cells[[*_CELL_KEYS, "signature", *(c for c in cells if c.startswith("factor/"))]]
    tables = {table: keys.merge(getattr(runs, table), on="signature") for table in TABLES}
    tables["evaluations"] = _carry_forward(tables["evaluations"], cells, plan.get("primary_metric", ""))
    return Study(results, plan, cells, **tables)


def _cells(plan: Plan) -> pd.DataFrame:
    """One row per planned cell."""
    rows = [
        {
            "study": plan["study"],
            "variant": cell["variant"],
            "arm": cell["levels"][plan["compare"]],
            "facet": "/".join(level for factor, level in cell["levels"].items() if factor != plan["compare"]),
            "seed": cell["seed"],
            "signature": cell["signature"],
            "planned_steps": cell["rollout_steps"],
            **{f"factor/{factor}": level for factor, level in cell["levels"].items()},
            **{f"setting/{key}": _number(value) for key, value in cell["settings"].items()},
        }
        for cell in plan["cells"]
    ]
    return pd.DataFrame(rows, columns=None if rows else ["study", "variant", "arm", "facet", "seed", "signature"])


def _number(value: Any) -> Any:
    return float(value) if value in ("inf", "-inf", "nan") else value


def _carry_forward(evaluations: pd.DataFrame, cells: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Evaluations whose `metric` is finite; the last of a run that ended early is repeated up to its planned end."""
    if metric not in evaluations:
        return evaluations.assign(carried=False)
    finite = evaluations[np.isfinite(evaluations[metric])].assign(carried=False)
    carried = []
    for cell in cells[cells["outcome"].isin(RESULTS)].itertuples():
        own = finite[(finite["variant"] == cell.variant) & (finite["seed"] == cell.seed)]
        last = own.nlargest(1, "rollout_step")
        if own["rollout_step"].max() < cell.planned_steps:
            grid = set(finite.loc[finite["facet"] == cell.facet, "rollout_step"]) | {cell.planned_steps}
            later = [step for step in grid if step > own["rollout_step"].max()]
            carried += [last.assign(rollout_step=step, carried=True) for step in later]
    return pd.concat([finite, *carried]).sort_values(["variant", "seed", "rollout_step"], ignore_index=True)
