"""Tables of a study: final scores, stability and clip fractions, as numbers (CSV) and for reading (Markdown, LaTeX)."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grpolab.paths import write_text_atomic
from grpolab.report import measures
from grpolab.report.claims import Claim
from grpolab.report.load import StudyRuns
from grpolab.report.statistics.intervals import interquartile_range, sd_interval, share_interval, t_interval, worst_mean
from grpolab.report.statistics.looks import ALPHA, LOOKS
from grpolab.report.statistics.tests import wilson
from grpolab.report.text import NONE, OF_MEANS, OF_SHARES, bounds, estimate, markdown_table, number, percent, signed
from grpolab.report.text import probability as p_value
from grpolab.vocabulary import MARGIN_FACTOR, MARGIN_OF_GAIN

Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """`numbers` at full precision, one row per variant; `shown` the same as strings for a reader."""

    name: str
    caption: str
    numbers: pd.DataFrame
    shown: pd.DataFrame

    @property
    def without_empty_columns(self) -> Table | None:
        """The table without empty columns; None if only the arms and their runs are left."""
        kept = self.shown.loc[:, (self.shown.astype(str) != NONE).any()]
        return replace(self, shown=kept) if set(kept) - {"arm", "n"} else None

    @property
    def markdown(self) -> str:
        """The caption, and below it the table as a reader sees it."""
        return f"{self.caption}\n\n{markdown_table(self.shown)}"

    def _repr_html_(self) -> str:
        """Return the table with its caption as HTML, for notebooks."""
        return f"<p>{html.escape(self.caption)}</p>{self.shown.to_html(index=False)}"

    def write(self, folder: Path, in_latex: bool = True) -> str:
        """Write `folder`/name.csv, .md and .tex (which needs the LaTeX package booktabs); return its Markdown."""
        texts = {"csv": self.numbers.to_csv(index=False, float_format="%.6g"), "md": f"{self.markdown}\n"}
        if in_latex:
            style = self.shown.replace("`", "", regex=True).style.hide(axis="index").format(escape="latex")
            caption = re.sub(r"([%_&#$])", r"\\\1", self.caption.replace("`", ""))
            texts["tex"] = style.format_index(escape="latex", axis="columns").to_latex(hrules=True, caption=caption)
        for suffix, text in texts.items():
            write_text_atomic(folder / f"{self.name}.{suffix}", text)
        return self.markdown


def tables(study: StudyRuns) -> list[Table]:
    """Make all tables of a study."""
    return [scores(study), dispersion(study), stability(study), clipping(study)]


def verdicts(claims: Sequence[Claim]) -> Table:
    """List the verdict on every tested claim, one row each."""
    shown = [
        {
            "claim": f"{claim.study} {claim.id}",
            "kind": f"{claim.kind}: {claim.because}" if claim.because else claim.kind,
            "says": claim.says,
            "of": claim.contrast + (f" in {claim.where}" if claim.where else ""),
            "metric": claim.metric,
            "effect [interval of the decision]": claim.size,
            "rollouts to the same accuracy": claim.rollouts or NONE,
            "margin": _margins(claim),
            "seeds": claim.n,
            "Holm p": p_value(claim.adjusted_p),
            "q": p_value(claim.q),
            "margin / sd": number(claim.margin_sds),
            "verdict": claim.found,
            "label": claim.label,
            "flags": "; ".join(claim.flags) or NONE,
        }
        for claim in claims
    ]
    caption = (
        f"Hypotheses of the study files, decided at planned looks (at most {ALPHA:.0%} of studies with a wrong"
        " direction, and as many with a wrong 'negligible'): `supported`, `opposite` (the other side of what is"
        " claimed), `negligible` (inside the margin), `inconclusive`, `void` (nothing to tell apart), `not run` (no run"
        " has finished). Over all tasks together, the seed being the unit; effects and intervals at the level of the"
        " decision, and of each task."
        " Of a score the accuracies come first (`baseline` -> `arm`, and the start of both), then the difference; over"
        " tasks it is their mean with weights of 1 / margin, as it is decided. A share of the gain is of the same"
        " seeds' gain, and only where that is surely above 0. Rollouts: the share of its own that the better arm needs"
        " to get where the other one ends (evaluations, medians over seeds); beside a margin, the share that the last"
        " such gain takes the baseline."
        " p: repeated, then Holm's over the hypotheses of a study; q: Benjamini and Hochberg's over all studies."
        f" Margin: {MARGIN_OF_GAIN:g} of the baseline's gain for a score, a factor of {MARGIN_FACTOR:g} for a ratio,"
        " unless a study says another; with less than about 1.5 sd no difference is called negligible with"
        f" {LOOKS[-1]} seeds. Confirmatory: each of its runs' commits has its registration; exploratory: all others."
    )
    return Table("verdicts", caption, _numbers_of(claims), pd.DataFrame(shown))


def _margins(claim: Claim) -> str:
    """Write the margin of a score in each task, with the share of the baseline's last rollouts that gain as much."""
    question = claim.question
    if question is None or not question.last_margin or not question.has_margins:
        return NONE
    margins = zip(question.tasks, question.margin_T, strict=True)
    return ", ".join(f"{task} {number(margin)} ({question.last_margin[task]:.0%})" for task, margin in margins)


def checks(claims: Sequence[Claim]) -> Table:
    """List the checks: hypotheses that hold by construction, and pairs of arms that compute the same function."""
    caption = "What must hold by construction: checks of the program, in each seed and task; they count as no finding."
    return _listed("checks", caption, claims, "check", ("says", "contrast", "size", "verdict"))


def described(claims: Sequence[Claim]) -> Table:
    """List the effects of the hypotheses that a collection describes without deciding them."""
    caption = (
        "Hypotheses that this collection does not decide: mean effects with ordinary 95% intervals, as description."
        " `claims` decides them, with seeds of its own."
    )
    return _listed("described", caption, claims, "claim", ("says", "contrast", "metric", "size"))


def _listed(name: str, caption: str, claims: Sequence[Claim], title: str, keys: Sequence[str]) -> Table:
    shown = [{title: f"{claim.study} {claim.id}"} | {key: getattr(claim, key) for key in keys} for claim in claims]
    return Table(name, caption, _numbers_of(claims), pd.DataFrame(shown))


def _numbers_of(claims: Sequence[Claim]) -> pd.DataFrame:
    """Return every field of the claims except their sentences; lists are joined into text."""
    rows = []
    for claim in claims:
        row = {key: value for key, value in vars(claim).items() if key not in ("tasks", "sentence", "question")}
        tasks = "; ".join(f"{task.task} {task.text}" for task in claim.tasks)
        rows.append(row | {"flags": "; ".join(claim.flags), "also": " ".join(claim.also), "tasks": tasks})
    return pd.DataFrame(rows)


def scores(study: StudyRuns) -> Table:
    """Give final score, gain and paired difference to the baseline, with t-intervals: description, no verdict."""
    final, gain = measures.measure(study, "final_score"), measures.measure(study, "gain")

    def row(facet: str, arm: str) -> tuple[int, Row, Row]:
        score = measures.mean_interval(study, "final_score", measures.at(final, facet, arm))
        gained = t_interval(measures.at(gain, facet, arm))
        minus = measures.difference(study, final, facet, arm, study.baseline)
        numbers = (
            {"final_score": score.mean, "final_low": score.low, "final_high": score.high}
            | {"gain": gained.mean, "gain_low": gained.low, "gain_high": gained.high}
            | {"difference": minus.effect, "difference_low": minus.low, "difference_high": minus.high}
            | {"pairs": minus.n if study.is_paired else 0}
        )
        shown = {"final score": estimate(*score[:3]), "gain over start": estimate(*gained[:3], signed)}
        if len(study.arms) > 1:
            compared = "baseline" if arm == study.baseline else estimate(*minus[:3], signed)
            shown[f"minus {study.baseline}"] = compared
        return score.n, numbers, shown

    caption = (
        f"final score (`{study.metric}`, mean of the last quarter of the evaluations), gain over the"
        f" {'' if study.is_found else 'warm '}start, and difference to the baseline"
        f" {'paired by seed' if study.is_paired else '(Welch, unpaired)'}; mean over seeds [95% interval: {OF_MEANS};"
        " description, not corrected]."
    )
    return _table(study, "scores", caption, row)


def dispersion(study: StudyRuns) -> Table:
    """Give the spread between an arm's runs, the mean of its worst fifth, and the fluctuation within a run."""
    final, area, jitter = (measures.measure(study, metric) for metric in ("final_score", "mean_score", "jitter"))
    titles = ("IQR", "mean of the worst fifth", "mean over all evaluations", "jitter within a run")

    def row(facet: str, arm: str) -> tuple[int, Row, Row]:
        scores_S = measures.at(final, facet, arm).dropna()
        spread, iqr = sd_interval(scores_S), interquartile_range(scores_S.to_numpy())
        means = [float(measures.at(values, facet, arm).mean()) for values in (area, jitter)]
        values = {"iqr": iqr, "worst_fifth": worst_mean(scores_S), "mean_score": means[0], "jitter": means[1]}
        written = dict(zip(titles, map(number, values.values()), strict=True))
        numbers = {"sd": spread.mean, "sd_low": spread.low, "sd_high": spread.high} | values
        return len(scores_S), numbers, {"sd over seeds": estimate(*spread[:3])} | written

    caption = (
        "dispersion of the final score over seeds (standard deviation [95% chi² interval], interquartile"
        " range, mean of the worst fifth of the runs), mean over all evaluations (area under the curve), and jitter"
        " (interquartile range of a run's first differences)."
    )
    return _table(study, "dispersion", caption, row)


# Columns of the stability table that are shown: (title, how seeds become one number, how it is written).
_STABILITY: dict[str, tuple[str, Callable, Callable[[float], str]]] = {
    "drawdown": ("drawdown, largest", np.max, number),
    "spikes_per_100": ("spikes per 100 steps", np.mean, number),
    "grad_norm_max": ("gradient norm, largest", np.max, number),
    "clipped_gradients": ("updates above max_grad_norm", np.mean, number),
    "ratio_max": ("token ratio, largest", np.max, number),
    "ess_min": ("ESS, smallest", np.min, number),
    "kl_old": ("KL(old, new) per batch", np.mean, number),
    "entropy_drop": ("entropy drop (nat)", np.mean, signed),
    "entropy_last": ("entropy at the end (nat)", np.mean, number),
    "starvation": ("zero-variance groups", np.mean, number),
    "truncation": ("truncated", np.mean, number),
}
_LABELS = {"collapsed": "collapsed", "diverged": "diverged", "stopped": "stopped", "below_start": "below start"}


def stability(study: StudyRuns) -> Table:
    """Give rates of the labels (collapsed, diverged, ...), and the worst or mean of each stability quantity."""
    runs = measures.stability_table(study)

    def row(facet: str, arm: str) -> tuple[int, Row, Row]:
        of_arm = runs[(runs["facet"] == facet) & (runs["arm"] == arm)]
        n = len(of_arm)
        counts = {label: int(of_arm[label].sum()) if n else 0 for label in _LABELS}
        # Logs of other frameworks record neither who ended a run, nor its evaluation items.
        unknown = ("stopped", "below_start") if study.is_found else ()
        known = {label: 0 if label in unknown else n for label in _LABELS}
        rates = {label: wilson(labelled, known[label]) for label, labelled in counts.items()}
        values = {name: summary(of_arm[name]) if n else np.nan for name, (_, summary, _) in _STABILITY.items()}
        collapse = rates["collapsed"]
        numbers = (
            {label: rate.mean for label, rate in rates.items()}
            | {f"{label}_{end}": getattr(rate, end) for label, rate in rates.items() for end in ("low", "high")}
            | values
        )
        shown = (
            {title: f"{counts[label]}/{n}" if known[label] else NONE for label, title in _LABELS.items()}
            | {"collapse rate, 95%": bounds(collapse.low, collapse.high)}
            | {title: form(values[name]) for name, (title, _, form) in _STABILITY.items()}
        )
        return n, numbers, shown

    caption = "stability per variant over its seeds; the collapse rate with its Wilson interval."
    return _table(study, "stability", caption, row)


def clipping(study: StudyRuns) -> Table:
    """Give clip fractions over all updates, and over those that can clip (all but the first on each batch)."""
    columns = {
        "clip/active": ("clipped, all updates", measures.run_means(study, "clip/active")),
        "ceiling": ("its ceiling", measures.clip_ceiling(study)),
        "clip/out_of_range": ("out of range", measures.run_means(study, "clip/out_of_range")),
        "clip/capped": ("capped, gradient kept", measures.run_means(study, "clip/capped")),
        "low_nz": ("below, after first, A≠0", measures.means_after_first_step(study, "clip/active_low_nz")),
        "high_nz": ("above, after first, A≠0", measures.means_after_first_step(study, "clip/active_high_nz")),
        "cf/token_0.2": ("token ratio at .2 would clip", measures.run_means(study, "cf/token_0.2")),
        "cf/sequence_0.2": ("sequence ratio at .2 would clip", measures.run_means(study, "cf/sequence_0.2")),
    }

    def row(facet: str, arm: str) -> tuple[int, Row, Row]:
        means = {name: share_interval(measures.at(values, facet, arm)) for name, (_, values) in columns.items()}
        ends = ("mean", "low", "high")
        numbers = {f"{name} {end}": getattr(mean, end) for name, mean in means.items() for end in ends}
        shown = {columns[name][0]: estimate(*mean[:3], percent) for name, mean in means.items()}
        return max(len(measures.at(values, facet, arm)) for _, values in columns.values()), numbers, shown

    caption = (
        "share of tokens that clipping silenced, or would have; mean over seeds [95%"
        f" interval: {OF_SHARES}]."
        " `after first`: without the first optimiser step on each batch; `A≠0`: among tokens with an advantage."
    )
    return _table(study, "clipping", caption, row)


def _table(study: StudyRuns, name: str, caption: str, row: Callable[[str, str], tuple[int, Row, Row]]) -> Table:
    """Make a table with a row for every planned facet and arm; `row` returns its n, its numbers and its strings.

    The column `facet` has its factors' names as title; it is left out if there is only the compared factor.
    """
    numbers, shown, facets = list[Row](), list[Row](), study.facet_factors
    for facet, arm in _variants(study):
        n, values, words = row(facet, arm)
        numbers.append({"facet": facet, "arm": arm, "n": n} | values)
        shown.append(({facets: facet} if facets else {}) | {"arm": arm, "n": n} | words)
    return Table(name, f"{study.name}: {caption}", pd.DataFrame(numbers), pd.DataFrame(shown))


def _variants(study: StudyRuns) -> Iterator[tuple[str, str]]:
    """Yield every planned (facet, arm), the arms of a facet together."""
    planned = set(zip(study.cells["facet"], study.cells["arm"], strict=True))
    yield from ((facet, arm) for facet in study.facets for arm in study.arms if (facet, arm) in planned)
