"""Tables of a study: final scores, stability and clip fractions, as numbers (CSV) and for reading (Markdown, LaTeX)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grpolab.paths import write_text_atomic
from grpolab.report.claims import Claim
from grpolab.report.load import Study
from grpolab.report.measures import (
    at,
    clip_ceiling,
    difference,
    mean_interval,
    means_after_first_step,
    measure,
    run_means,
)
from grpolab.report.stability import stability_table
from grpolab.report.statistics.intervals import interquartile_range, sd_interval, share_interval, t_interval, worst_mean
from grpolab.report.statistics.looks import ALPHA, LOOKS
from grpolab.report.statistics.tests import wilson
from grpolab.report.text import (
    NONE,
    OF_MEANS,
    OF_SHARES,
    bounds,
    estimate,
    latex_table,
    markdown_table,
    number,
    percent,
    probability,
    signed,
)
from grpolab.vocabulary import MARGIN_FACTOR, MARGIN_OF_GAIN

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Table:
    """`numbers` at full precision, one row per variant; `shown` the same as strings for a reader."""

    name: str
    caption: str
    numbers: pd.DataFrame
    shown: pd.DataFrame

    @property
    def said(self) -> Table | None:
        """Without the columns that show nothing; None where none is left besides the arms and their runs."""
        kept = self.shown.loc[:, (self.shown.astype(str) != NONE).any()]
        return replace(self, shown=kept) if set(kept) - {"arm", "n"} else None

    def write(self, folder: Path) -> list[Path]:
        """`folder`/name.csv, .md and .tex."""
        texts = {
            "csv": self.numbers.to_csv(index=False, float_format="%.6g"),
            "md": f"{self.caption}\n\n{markdown_table(self.shown)}\n",
            "tex": latex_table(self.shown, self.caption) + "\n",
        }
        for suffix, text in texts.items():
            write_text_atomic(folder / f"{self.name}.{suffix}", text)
        return [folder / f"{self.name}.{suffix}" for suffix in texts]


def tables(study: Study) -> list[Table]:
    """All tables of a study."""
    return [scores(study), dispersion(study), stability(study), clipping(study)]


def verdicts(claims: Sequence[Claim]) -> Table:
    """Every claim that was tested, decided; a row each."""
    shown = [
        {
            "claim": f"{claim.study} {claim.id}",
            "says": claim.says,
            "of": claim.contrast + (f" in {claim.where}" if claim.where else ""),
            "metric": claim.metric,
            "effect [interval of the decision]": claim.size,
            "seeds": claim.n,
            "Holm p": probability(claim.adjusted_p),
            "q": probability(claim.q),
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
        " claimed), `negligible` (inside the margin), `inconclusive`, `void` (nothing to tell apart). Over all tasks"
        " together, the seed being the unit; effects and intervals at the level of the decision, and of each task."
        " Of a score the accuracies come first (`baseline` -> `arm`, and the start of both), then the difference; over"
        " tasks it is their mean with weights of 1 / margin, as it is decided. A share of the gain is of the same"
        " seeds' gain, and only where that is surely above 0."
        " p: repeated, then Holm's over the hypotheses of a study; q: Benjamini and Hochberg's over all studies."
        f" Margin: {MARGIN_OF_GAIN:g} of the baseline's gain for a score, a factor of {MARGIN_FACTOR:g} for a ratio,"
        " unless a study says another; with less than about 1.5 sd no difference is called negligible with"
        f" {LOOKS[-1]} seeds. Confirmatory: its runs began after it was registered; exploratory: all others."
    )
    return Table("verdicts", caption, _numbers(claims), pd.DataFrame(shown))


def checks(claims: Sequence[Claim]) -> Table:
    """What holds by construction, and pairs of arms that are one function: no findings, so they are listed apart."""
    keys = ("says", "contrast", "size", "verdict")
    shown = [{"check": f"{claim.study} {claim.id}"} | {key: getattr(claim, key) for key in keys} for claim in claims]
    caption = "What must hold by construction: checks of the program, in each seed and task; they count as no finding."
    return Table("checks", caption, _numbers(claims), pd.DataFrame(shown))


def described(claims: Sequence[Claim]) -> Table:
    """Hypotheses that a collection does not decide: effects alone."""
    keys = ("says", "contrast", "metric", "size")
    shown = [{"claim": f"{claim.study} {claim.id}"} | {key: getattr(claim, key) for key in keys} for claim in claims]
    caption = (
        "Hypotheses that this collection does not decide: mean effects with ordinary 95% intervals, as description."
        " `claims` decides them, with seeds of its own."
    )
    return Table("described", caption, _numbers(claims), pd.DataFrame(shown))


def _numbers(claims: Sequence[Claim]) -> pd.DataFrame:
    """Everything but the sentences, with one column for each task's effect where there are any."""
    rows = [{key: value for key, value in vars(claim).items() if key not in ("tasks", "sentence")} for claim in claims]
    for row, claim in zip(rows, claims, strict=True):
        row["flags"] = "; ".join(claim.flags)
        row["tasks"] = "; ".join(f"{task.task} {task.text}" for task in claim.tasks)
    return pd.DataFrame(rows)


def scores(study: Study) -> Table:
    """Final score, gain and paired difference to the baseline, with t-intervals: description, no verdict."""
    final, gain = measure(study, "final_score"), measure(study, "gain")
    rows, shown = [], []
    for facet, arm in _variants(study):
        score, gained = mean_interval(study, "final_score", at(final, facet, arm)), t_interval(at(gain, facet, arm))
        minus = difference(study, final, facet, arm, study.baseline)
        names = {"facet": facet, "arm": arm, "n": score.n}
        rows.append(
            names
            | {"final_score": score.mean, "final_low": score.low, "final_high": score.high}
            | {"gain": gained.mean, "gain_low": gained.low, "gain_high": gained.high}
            | {"difference": minus.effect, "difference_low": minus.low, "difference_high": minus.high}
            | {"pairs": minus.n if study.is_paired else 0}
        )
        compared = "baseline" if arm == study.baseline else estimate(*minus[:3], signed)
        estimates = {"final score": estimate(*score[:3]), "gain over start": estimate(*gained[:3], signed)}
        shown.append(names | estimates | ({f"minus {study.baseline}": compared} if len(study.arms) > 1 else {}))
    caption = (
        f"final score (`{study.metric}`, mean of the last quarter of the evaluations), gain over the"
        f" {'warm ' if study.score_name == 'accuracy' else ''}start, and difference to the baseline"
        f" {'paired by seed' if study.is_paired else '(Welch, unpaired)'}; mean over seeds [95% interval: {OF_MEANS};"
        " description, not corrected]."
    )
    return _table(study, "scores", caption, rows, shown)


def dispersion(study: Study) -> Table:
    """How much the runs of an arm differ: spread over seeds, the worst fifth, and how much a run wavers by itself."""
    final, area, jitter = (measure(study, metric) for metric in ("final_score", "mean_score", "jitter"))
    titles = ("IQR", "mean of the worst fifth", "mean over all evaluations", "jitter within a run")
    rows, shown = [], []
    for facet, arm in _variants(study):
        scores_S = at(final, facet, arm).dropna()
        names, spread = {"facet": facet, "arm": arm, "n": len(scores_S)}, sd_interval(scores_S)
        values = {
            "iqr": interquartile_range(scores_S.to_numpy()) if len(scores_S) else np.nan,
            "worst_fifth": worst_mean(scores_S),
            "mean_score": float(at(area, facet, arm).mean()),
            "jitter": float(at(jitter, facet, arm).mean()),
        }
        rows.append(names | {"sd": spread.mean, "sd_low": spread.low, "sd_high": spread.high} | values)
        written = dict(zip(titles, map(number, values.values()), strict=True))
        shown.append(names | {"sd over seeds": estimate(*spread[:3])} | written)
    caption = (
        "dispersion of the final score over seeds (standard deviation [95% chi² interval], interquartile"
        " range, mean of the worst fifth of the runs), mean over all evaluations (area under the curve), and jitter"
        " (interquartile range of a run's first differences)."
    )
    return _table(study, "dispersion", caption, rows, shown)


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


def stability(study: Study) -> Table:
    """Rates of the labels (collapsed, diverged, ...), and the worst or mean of each stability quantity over seeds."""
    runs = stability_table(study)
    rows, shown = [], []
    for facet, arm in _variants(study):
        of_arm = runs[(runs["facet"] == facet) & (runs["arm"] == arm)]
        n = len(of_arm)
        counts = {label: int(of_arm[label].sum()) if n else 0 for label in _LABELS}
        # A log of others says neither who ended a run, nor its evaluation items.
        unknown = () if study.score_name == "accuracy" else ("stopped", "below_start")
        known = {label: 0 if label in unknown else n for label in _LABELS}
        rates = {label: wilson(labelled, known[label]) for label, labelled in counts.items()}
        values = {name: summary(of_arm[name]) if n else np.nan for name, (_, summary, _) in _STABILITY.items()}
        names, collapse = {"facet": facet, "arm": arm, "n": n}, rates["collapsed"]
        rows.append(
            names
            | {label: rate.mean for label, rate in rates.items()}
            | {f"{label}_{end}": getattr(rate, end) for label, rate in rates.items() for end in ("low", "high")}
            | values
        )
        shown.append(
            names
            | {title: f"{counts[label]}/{n}" if known[label] else NONE for label, title in _LABELS.items()}
            | {"collapse rate, 95%": bounds(collapse.low, collapse.high)}
            | {title: form(values[name]) for name, (title, _, form) in _STABILITY.items()}
        )
    caption = "stability per variant over its seeds; the collapse rate with its Wilson interval."
    return _table(study, "stability", caption, rows, shown)


def clipping(study: Study) -> Table:
    """Clip fractions per variant: over all updates, and over those that can clip (all but the first on each batch)."""
    columns = {
        "clip/active": ("clipped, all updates", run_means(study, "clip/active")),
        "ceiling": ("its ceiling", clip_ceiling(study)),
        "clip/out_of_range": ("out of range", run_means(study, "clip/out_of_range")),
        "clip/capped": ("capped, gradient kept", run_means(study, "clip/capped")),
        "low_nz": ("below, after first, A≠0", means_after_first_step(study, "clip/active_low_nz")),
        "high_nz": ("above, after first, A≠0", means_after_first_step(study, "clip/active_high_nz")),
        "cf/token_0.2": ("token ratio at .2 would clip", run_means(study, "cf/token_0.2")),
        "cf/sequence_0.2": ("sequence ratio at .2 would clip", run_means(study, "cf/sequence_0.2")),
    }
    rows, shown = [], []
    for facet, arm in _variants(study):
        names = {"facet": facet, "arm": arm, "n": max(len(at(values, facet, arm)) for _, values in columns.values())}
        means = {name: share_interval(at(values, facet, arm)) for name, (_, values) in columns.items()}
        ends = ("mean", "low", "high")
        rows.append(names | {f"{name} {end}": getattr(mean, end) for name, mean in means.items() for end in ends})
        shown.append(names | {columns[name][0]: estimate(*mean[:3], percent) for name, mean in means.items()})
    caption = (
        "share of tokens that clipping silenced, or would have; mean over seeds [95%"
        f" interval: {OF_SHARES}]."
        " `after first`: without the first optimiser step on each batch; `A≠0`: among tokens with an advantage."
    )
    return _table(study, "clipping", caption, rows, shown)


def _variants(study: Study) -> Iterator[tuple[str, str]]:
    """Every planned (facet, arm), the arms of a facet together."""
    planned = set(zip(study.cells["facet"], study.cells["arm"], strict=True))
    yield from ((facet, arm) for facet in study.facets for arm in study.arms if (facet, arm) in planned)


def _table(study: Study, name: str, caption: str, rows: Rows, shown: Rows) -> Table:
    """`facet` is shown under the names of its factors, and not where there is only the compared factor."""
    numbers, texts, facets = pd.DataFrame(rows), pd.DataFrame(shown), study.facet_factors
    texts = texts.rename(columns={"facet": facets}) if facets else texts.drop(columns="facet")
    return Table(name, f"{study.name}: {caption}", numbers, texts)
