"""Every verdict of the committed reference a second time, from plans and values, by scipy and statsmodels alone.

Nothing that decides is imported but what is tested: levels, tests, Holm's counts and intervals are written again.
"""

from functools import lru_cache
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.multivariate import test_mvmean as hotelling

from grpolab.paths import Results, project_root
from grpolab.report import measures
from grpolab.report.claims import decide
from grpolab.report.load import load

LOOKS = (5, 10, 15, 20)
SHARES = (1 / 16, 3 / 16, 5 / 16, 7 / 16)  # of .05, for the looks; they sum to 1
by_cell = lru_cache(maxsize=None)(measures.by_cell)


def questions(study):
    """What a study asks: its hypotheses for each combination of open levels, with values by seed, task and arm."""
    for asked in (h for h in study.plan["hypotheses"] if not h["by_construction"]):
        cells = study.cells.assign(value=by_cell(study, asked["metric"]), gain=by_cell(study, "gain"))
        cells["task"] = cells["factor/task" if "task" in study.plan["factors"] else "setting/task"]
        if study.plan["compare"] == "task":  # tasks are the arms: a seed has one number over all of them
            cells["task"] = "all tasks"
        for factor, chosen in asked["where"].items():
            cells = cells[cells[f"factor/{factor}"] == chosen]
        arms = asked["trend"] or [arm for arm in asked["contrast"].values() if arm]
        open_ = [f for f in study.plan["factors"] if f not in (study.plan["compare"], "task", asked["range_over"])]
        cells["where"] = cells[[f"factor/{f}" for f in open_]].agg("/".join, axis=1) if open_ else ""
        for where, here in cells.groupby("where", sort=False):
            tasks = [t for t, of in here.groupby("task", sort=False) if set(arms) <= set(of["arm"])]
            values = here.pivot_table(
                index="seed", columns=["task", "arm"], values="value", aggfunc=np.ptp if asked["range_over"] else "max"
            )
            values = values.reindex(columns=pd.MultiIndex.from_product([tasks, arms])).dropna()
            values_STA = values.to_numpy().reshape(len(values), len(tasks), len(arms))
            first = here[here["seed"].isin(values.index[: LOOKS[0]])]
            gains = first[first["arm"] == study.baseline].groupby("task")["gain"].mean().reindex(tasks).to_numpy()
            margin = asked["margin"]
            if asked["scale"] == "log":
                margin = np.log(margin or 1.1)
            elif margin is None and asked["metric"] in ("final_score", "mean_score", "gain") and not asked["trend"]:
                margin = np.where(gains > 0, 0.15 * gains, np.nan)
            margin_T = np.full(len(tasks), np.nan) if margin is None else np.broadcast_to(margin, len(tasks))
            if entry := study.plan["registered"].get(asked["id"]):  # constants, fixed before
                kept = entry["margins"]
                margin_T = np.array([kept["/".join(filter(None, (where, task)))] for task in tasks], dtype=float)
            holds = True
            if asked["provided"]:
                of = first[first["arm"] == asked["provided"]["of"]]
                means = by_cell(study, asked["provided"]["metric"])[of.index].groupby(of["task"]).mean()
                holds = (means > asked["provided"]["above"]).all()
            same = len(arms) > 1 and len(values) > 0 and (values_STA == values_STA[..., :1]).all()
            yield asked | {"where": where, "values": values_STA, "margin": margin_T, "void": same or not holds}


def differences(question, n):
    values_STA = np.log(question["values"][:n]) if question["scale"] == "log" else question["values"][:n]
    return values_STA[..., 0] - values_STA[..., 1] if values_STA.shape[2] > 1 else values_STA[..., 0]


def in_margins(question, n):
    return differences(question, n) / (question["margin"] if np.isfinite(question["margin"]).all() else 1.0)


def disagreement(question, n):
    if question["values"].shape[1] < 2 or question["metric"] == "lost" or question["trend"]:
        return np.nan
    d_ST = in_margins(question, n)
    return stats.ttest_rel(*d_ST.T).pvalue if d_ST.shape[1] == 2 else hotelling(d_ST[:, 1:] - d_ST[:, :1]).pvalue


def as_far(distribution, found):
    """Two-sided p of a sum, from the values that each of its terms may have."""
    total = {0.0: 1.0}
    for values in distribution:
        sums = [(a + b, p / len(values)) for a, p in total.items() for b in values]
        total = pd.DataFrame(sums).groupby(0)[1].sum().to_dict()
    tails = [sum(p for x, p in total.items() if side * (x - found) <= 1e-9) for side in (1, -1)]
    return min(1.0, 2 * min(tails))


def p_values(question, n):
    """p of a direction, p of the margin, and whether the direction is the claimed one."""
    values_STA, sign = question["values"][:n], -1 if question["direction"] == "less" else 1
    if question["metric"] == "lost":  # Fisher's, of seeds: here all tasks of a seed are lost, or none
        assert (values_STA == values_STA[:, :1]).all()
        of, minus = values_STA[:, 0].sum(axis=0)
        return stats.fisher_exact([[of, minus], [n - of, n - minus]]).pvalue, 1.0, sign * (of - minus) > 0
    if question["trend"]:  # Page's, the levels of a seed in the same order in all its tasks
        ranks_SL, place_L = stats.rankdata(values_STA, axis=2).sum(axis=1), np.arange(values_STA.shape[2])
        found = (ranks_SL @ place_L).sum()
        orders = [[float(np.dot(order, place_L)) for order in permutations(ranks)] for ranks in ranks_SL]
        return as_far(orders, found), 1.0, sign * (found - sum(map(np.mean, orders))) > 0
    y_S, has_margin = in_margins(question, n).mean(axis=1), np.isfinite(question["margin"]).all()
    if len(np.unique(y_S.round(9))) < 4:
        above, below = (sign * y_S > 0).sum(), (sign * y_S < 0).sum()
        return stats.binomtest(above, above + below).pvalue, 1.0, above > below
    beyond = np.log(question["beyond"] or 1) if question["scale"] == "log" else question["beyond"]
    assert beyond == 0 or not has_margin or np.ptp(question["margin"]) == 0
    towards = t_of(sign * y_S - beyond / (question["margin"][0] if has_margin else 1))
    direction_p, claimed = 2 * stats.t.sf(abs(towards), n / 2), towards > 0
    if question["direction"] == "equal":
        outside = t_of(np.sign(y_S.mean()) * y_S - 1)
        direction_p, claimed = 2 * stats.t.sf(outside, n / 2) if outside > 0 else 1.0, False
    tasks = [t_of(1 + side * d_S) for d_S in in_margins(question, n).T for side in (1, -1)]  # each from both margins
    return direction_p, stats.t.sf(min(tasks), n / 2) if has_margin else 1.0, claimed


def t_of(values_S):
    return values_S.mean() / stats.sem(values_S)


def verdicts(asked):
    """The hypotheses of one study, look after look."""
    rows = [{"verdict": "void" if question["void"] else "inconclusive", "n": 0, "r": 1.0} for question in asked]
    directions = margins = 0
    for look, n in enumerate(LOOKS):
        left = [(q, row) for q, row in zip(asked, rows, strict=True) if row["verdict"] == "inconclusive"]
        left = [(q, row, *p_values(q, n)) for q, row in left if len(q["values"]) >= n]
        while left:
            of_direction, of_margin = 0.05 / (len(asked) - directions), 0.05 / max(len(asked) - margins, 1)
            for question, row, direction_p, margin_p, _ in left:
                r, r_margin = (min(p / SHARES[look], 1.0) for p in (direction_p, margin_p))
                own = r_margin if question["direction"] == "equal" else r
                row.update(n=n, look=look, p=r, q=own, a=of_direction, by_margin=False, r_margin=r_margin)
            turned = [entry for entry in left if entry[1]["p"] <= of_direction]
            inside = [entry for entry in left if entry[1]["r_margin"] <= of_margin] if not turned else []
            for _, row, _, _, claimed in turned:
                row.update(verdict="supported" if claimed else "opposite", q=row["p"])
            for question, row, *_ in inside:
                row.update(verdict="supported" if question["direction"] == "equal" else "negligible", by_margin=True)
                row.update(p=row["r_margin"], a=of_margin)
            if not turned and not inside:
                break
            directions, margins = directions + len(turned), margins + len(inside)
            left = [entry for entry in left if entry[1]["verdict"] == "inconclusive"]
    return rows


def estimate(values_S, row, tasks=1):
    """Mean and interval at the level that was left for the decision; without one where few values differ."""
    if len(np.unique(values_S.round(12))) < 4:
        return [values_S.mean(), np.nan, np.nan]
    level = SHARES[row["look"]] * row["a"] * (2 if row["by_margin"] else 1 / tasks)
    return [values_S.mean(), *stats.t.interval(1 - level, row["n"] / 2, values_S.mean(), stats.sem(values_S))]


# Small studies that ask for trends, means, logarithms, equality, lost runs and conditions; `claims` holds them all.
FEW = ("num_iterations", "collapse", "importance_weights")


@pytest.mark.parametrize(("names", "least"), [(FEW, 12), pytest.param(["claims"], 99, marks=pytest.mark.slow)])
def test_every_verdict_of_the_reference_is_found_again(names, least):
    committed = Results(project_root() / "results")
    reference = [study for name in names for study in load(committed, name) if study.plan["cells"]]
    claims = [claim for claim in decide(reference) if claim.is_finding]
    asked = [list(questions(study)) for study in reference]
    rows = [row for of_study in asked for row in verdicts(of_study)]
    shares = iter(multipletests([row["q"] for row in rows if row["n"]], method="fdr_bh")[1])
    assert len(claims) == len(rows) >= least
    for claim, question, row in zip(claims, [q for of_study in asked for q in of_study], rows, strict=True):
        assert (claim.id, claim.where) == (question["id"], question["where"])
        assert (claim.verdict, claim.n) == (row["verdict"], row["n"]), claim.sentence
        if not row["n"]:
            continue
        numbers = [claim.p, claim.adjusted_p, claim.q]
        expected = [row["p"], min(1.0, row["p"] * 0.05 / row["a"]), next(shares)]
        if question["metric"] != "lost" and not question["trend"]:
            d_ST, y_S = differences(question, row["n"]), in_margins(question, row["n"]).mean(axis=1)
            has_margin = np.isfinite(question["margin"]).all()
            numbers += [claim.effect, claim.low, claim.high, claim.disagreement]
            expected += estimate(y_S, row) if has_margin else [np.nan] * 3
            expected += [disagreement(question, row["n"])]
            of_tasks = np.array([estimate(d_S, row, d_ST.shape[1]) for d_S in d_ST.T]).ravel()
            numbers += [number for task in claim.tasks for number in (task.effect, task.low, task.high)]
            expected += list(np.exp(of_tasks) if question["scale"] == "log" else of_tasks)
        assert numbers == pytest.approx(expected, rel=1e-6, abs=1e-12, nan_ok=True), claim.sentence
