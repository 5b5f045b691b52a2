"""Figures of the sampler as another policy: how far it is from the trainer, on which tokens, and what that leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from grpolab.report.figures import panels
from grpolab.report.figures.panels import GEOMETRIC, MEAN, Drawing, NotDrawnError, Sheet
from grpolab.report.journals import collapse_place, has_collapsed
from grpolab.report.load import StudyRuns
from grpolab.report.stability import after_first_step
from grpolab.report.statistics.intervals import geometric_band, share_band
from grpolab.report.style import QUIET
from grpolab.vocabulary import COMPLETED, DIVERGED, GAP_EDGES


def draw_mismatch_kl(study: StudyRuns) -> Drawing:
    """How far the policy that sampled a batch is from the one that trains on it, before its first update. First the KL
    divergence (estimator k3): `gap/k3` where runs record it, else that of the first update, where the old log-probs are
    the sampler's own. Then the largest difference of a token's log-probs in the batch, and the tokens that a rejection
    left out. Log scale; rollout steps without any are left out.
    """
    kl, gap = "KL(sampler || trainer)\n(nat per token)", "largest gap of a token's\nlog-prob (nat)"
    updates = study.updates if "iteration" in study.updates else study.updates.iloc[:0]
    first = updates[~after_first_step(updates)]
    largest = study.rollouts.reindex(columns=["gap/sampler_trainer", "gap/first_pass"]).max(axis=1)
    rows: dict[str, tuple[str | pd.DataFrame, str]] = {
        kl: (study.rollouts, "gap/k3") if _is_recorded(study.rollouts, "gap/k3") else (first, "kl_old/k3"),
        gap: (study.rollouts.assign(gap=largest), "gap"),
        "rejected\n(share of tokens)": (study.updates, "rejection/tokens"),
    }
    known = {row: of for row, of in rows.items() if isinstance(of[0], pd.DataFrame) and _is_recorded(*of)}
    if not known:
        raise NotDrawnError("needs runs whose sampler differs from the trainer, and diagnostics.mismatch=true")
    sheet = panels.draw_curves(study, known, height=1.6, log=True)
    for (row, facet), panel in sheet.grid.items():
        panels.set_log_axis(panel, "y", panels.write_short)
        if not panel.lines:
            sheet.write_lack(panel, "nothing recorded, or no mismatch", facet=facet, row=row)
    return sheet.finish(GEOMETRIC)


def _is_recorded(table: pd.DataFrame, metric: str) -> bool:
    return metric in table and bool((table[metric] > 0).any())


# Middles of the bins of a token's probability, in the logarithm; the first one a decade below its edge.
MIDDLES = np.sqrt(np.array([GAP_EDGES[0] / 10, *GAP_EDGES]) * np.array([*GAP_EDGES, 1.0]))


def draw_ratio_by_probability(study: StudyRuns) -> Drawing:
    """How far trainer and sampler are apart on a token, by the probability that the sampler gave it: mean of
    |log(trainer / sampler)| and the mean ratio trainer / sampler, over the tokens of all rollout steps that have a
    histogram. Bins with fewer than 20 tokens of a run are left out.
    """
    if "gap/count" not in study.histograms:
        raise NotDrawnError("needs diagnostics.mismatch=true and diagnostics.histogram_every above 0")
    rows = {"mean of\n|log(trainer / sampler)|": "abs_log_ratio", "mean of\ntrainer / sampler": "ratio"}
    sheet = Sheet(study, rows, height=1.7)
    for row, name in rows.items():
        for panel, facet, arm, records in sheet.by_arm(row, study.histograms.dropna(subset=["gap/count"])):
            by_seed = {seed: _by_bin(of, name) for seed, of in records.groupby("seed")}
            values_XS = pd.DataFrame(by_seed, index=MIDDLES).dropna(how="all")
            sheet.draw_means(panel, values_XS, sheet.styles[arm], geometric_band, metric=name, facet=facet, arm=arm)
    for (row, _), panel in sheet.grid.items():
        panels.set_log_axis(panel, "x", panels.write_short)
        panels.set_log_axis(panel, "y", panels.write_short)
        if rows[row] == "ratio":
            panel.axhline(1, color=QUIET, linewidth=0.6, zorder=0)
    sheet.label_x("probability of the token, by the sampler")
    sheet.draw_legend()
    return sheet.finish("geometric mean over seeds, 95% t-interval of the logarithms")


FEWEST = 20  # tokens of a run in a bin


def _by_bin(records: pd.DataFrame, name: str) -> np.ndarray[Any, Any]:
    """Return a run's mean over the tokens of each bin; NaN where there are too few, or none differs."""
    counts, sums = (np.sum([*records[f"gap/{of}"]], axis=0, dtype=float) for of in ("count", name))
    return np.where((counts >= FEWEST) & (sums > 0), sums / np.maximum(counts, 1), np.nan)


def draw_ess_before_collapse(study: StudyRuns) -> Drawing:
    """Effective sample size of {of}, as a share of the batch: 1 where all of them are equal. First of the
    runs that were lost, by the rollout steps before the evaluation at which the score had collapsed, or before the run
    diverged; then of the others, by the steps before their end.
    """
    by_sequence = _is_recorded(study.rollouts, "gap/ess_sequence")
    metric, table = ("gap/ess_sequence", study.rollouts) if by_sequence else ("ratio/ess", study.updates)
    if not _is_recorded(table, metric):
        raise NotDrawnError("no run here has recorded an effective sample size")
    found = [(cell.signature, *_end_of(study, cell)) for cell in study.done.itertuples()]
    ends = pd.DataFrame(found, columns=["signature", "end", "lost"])
    if not ends["lost"].any():
        raise NotDrawnError("no run here has collapsed or diverged")
    table = table.merge(ends, on="signature")
    table["before"] = table["rollout_step"] - table["end"]
    table = table[table["before"] <= 0]
    rows = {"lost runs": True, "other runs": False}
    sheet = Sheet(study, rows, height=1.6)
    for row, lost in rows.items():
        for panel, facet, arm, records in sheet.by_arm(row, table[table["lost"] == lost]):
            values_XS = panels.pivot_seeds(records, "before", metric, "mean" if by_sequence else "min")
            look = sheet.styles[arm]
            sheet.draw_means(panel, values_XS, look, share_band, metric=metric, facet=facet, arm=arm, row=row)
        for panel in sheet.row(row):
            panel.set(ylim=(0, 1.02), ylabel=f"effective samples,\n{row}")
    for (row, facet), panel in sheet.grid.items():
        if not panel.lines:
            sheet.write_lack(panel, f"no {row.removesuffix('s')} here", facet=facet, row=row)
    sheet.label_x("rollout steps before the end")
    sheet.draw_legend()
    of = "the weights trainer / sampler of whole sequences" if by_sequence else "the token ratios of the loss"
    return sheet.finish(MEAN, of=of)


def _end_of(study: StudyRuns, cell: Any) -> tuple[int, bool]:
    """Return the rollout step at which a run was lost, or else its last one, and whether it was lost."""
    courses = pd.DataFrame(study.of_cell("evaluations", cell)).sort_values("rollout_step")
    score_E, last = courses[study.metric].to_numpy(float), int(study.of_cell("rollouts", cell)["rollout_step"].max())
    if cell.outcome == COMPLETED and has_collapsed(score_E, study.thresholds):
        return int(courses["rollout_step"].iloc[collapse_place(score_E, study.thresholds)]), True
    return last, cell.outcome == DIVERGED
