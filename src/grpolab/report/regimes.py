"""Whether an ablation compares something: does its baseline learn, does clipping act, does its absence hurt?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from grpolab.paths import Results
from grpolab.records import read_plan
from grpolab.report.load import Study, load
from grpolab.report.measures import at, mean_interval, means_after_first_step, measure
from grpolab.report.statistics.intervals import Interval, t_interval
from grpolab.report.text import count, estimate, markdown_table, number, percent, signed
from grpolab.vocabulary import REGIMES

CONCERNED = (REGIMES, "clip_range", "loss_type")  # of these the user's own runs are asked too
FREE_LENGTH = "filler_sorting"  # the task whose answers may have any length
# What a regime must offer.
LEAST_GAIN, LEAST_CLIPPED, LEAST_LENGTH_STD = 0.1, 0.01, 1.0
SETTINGS = ("learning_rate", "num_iterations", "num_generations", "epsilon", "epsilon_high", "max_completion_length")

HEAD = f"""# Regimes

If the baseline of an ablation does not learn, differences between its arms are noise; if clipping never acts, there is
nothing to compare. A regime is a learning rate: `healthy` (the task's own) or `stressed` (twice that). They were chosen
on the seeds below, which also give margins and decide no hypothesis. Asked of each:

1. at the healthy learning rate the baseline's mean gain in expected accuracy is at least {LEAST_GAIN}, with a 95%
   t-interval above 0;
2. there, after the first optimiser step on a batch, clipping zeroes the gradient of at least {LEAST_CLIPPED:.0%} of the
   tokens with a non-zero advantage at the lower bound, and of at least {LEAST_CLIPPED:.0%} at the upper: where that is
   not met, nothing is claimed of the side that hardly acts;
3. at the stressed learning rate every unclipped run is lost (it collapses, diverges or is stopped early) and no run
   of the baseline is;
4. in the task `{FREE_LENGTH}`, where the policy chooses how long to answer, the baseline's completions still differ in
   length at the end: their standard deviation over the items of the last evaluation is above {LEAST_LENGTH_STD:.0f}
   token. Otherwise nothing could be said about length.

`experiments/{REGIMES}.yaml` trains them, `conf/run.yaml` and `conf/task/` have the settings, and `grpolab regimes`
prints this page."""


@dataclass(frozen=True)
class Condition:
    """One condition of HEAD in one place; `met` is None where no run tells. `measured`: with what is asked."""

    number: int
    met: bool | None
    measured: str
    meaning: str  # of one that is not met

    @property
    def verdict(self) -> str:
        """`1 met`."""
        return f"{self.number} {'not known' if self.met is None else 'met' if self.met else 'NOT met'}"


def page(results: Results) -> str:
    """`docs/regimes.md`, all numbers from the runs. Raises RequestError where the study was never planned."""
    study = load(results, REGIMES)[-1]
    settings = study.cells.drop_duplicates("facet").set_index("facet")[[f"setting/{name}" for name in SETTINGS]]
    settings = settings.map(lambda value: number(value) if isinstance(value, float) else str(value))
    settings.columns = pd.Index(SETTINGS)
    failed = [f"- {sentence}" for sentence in unmet([study])]
    return "\n\n".join(
        [
            HEAD,
            f"Seeds: {', '.join(map(str, sorted(study.done['seed'].unique())))}. Baseline: `{study.baseline}`.",
            markdown_table(pd.DataFrame([_row(study, facet) for facet in study.facets])),
            *(["\n".join(failed)] if failed else []),
            "Settings of each row, as the study's plan records them:",
            markdown_table(settings.rename_axis(study.facet_factors).reset_index()),
        ]
    )


def unmet(studies: Sequence[Study]) -> list[str]:
    """A sentence for each precondition that the runs of these studies fail, with what that means for what they say."""
    concerned = [study for study in studies if study.name in CONCERNED]
    conditions = [condition for study in concerned for facet in study.facets for condition in _conditions(study, facet)]
    failed = [condition for condition in conditions if condition.met is False]
    return [f"{condition.verdict}: {condition.measured}; {condition.meaning}." for condition in failed]


def unmet_of(results: Results, name: str) -> list[str]:
    """`unmet` of a study that is planned here, or of those that it includes. Raises RequestError as `load`."""
    plan = read_plan(results.plan(name)) or {"includes": []}
    parts = [part for part in (*plan["includes"], name) if part in CONCERNED]
    return unmet([load(results, part)[-1] for part in parts])


def _row(study: Study, facet: str) -> dict[str, str]:
    """One regime: what the conditions ask for."""
    start = mean_interval(study, "start", at(measure(study, "start"), facet, study.baseline))
    lost = {arm: at(measure(study, "lost"), facet, arm) for arm in (study.baseline, _unclipped(study))}
    low, high = _clipped(study, facet)
    return {
        study.facet_factors: facet,
        "start": number(start.mean),
        "gain of the baseline [95%]": estimate(*_gain(study, facet)[:3], signed),
        "clipped at the lower bound": percent(low),
        "at the upper": percent(high),
        **{f"`{arm}` lost": f"{int(runs.sum())} of {len(runs)}" for arm, runs in lost.items()},
        "conditions": ", ".join(condition.verdict for condition in _conditions(study, facet)),
    }


def _conditions(study: Study, facet: str) -> list[Condition]:
    """3 of a stressed regime; else 1 and 2 where an arm is unclipped, and 4 where lengths are free."""
    base, no_clip = study.baseline, _unclipped(study)
    cells = study.cells[study.cells["facet"] == facet]
    free = (cells["setting/task"] == FREE_LENGTH).all() and "eval/length_std" in study.evaluations
    lengths = [_free_length(study, facet)] if free else []
    if not no_clip:
        return lengths
    if "factor/regime" in cells and not (cells["factor/regime"] == "healthy").all():
        # Whether each run collapsed, diverged or was early-stopped.
        lost, lost_base = (at(measure(study, "lost"), facet, arm) > 0 for arm in (no_clip, base))
        collapse = Condition(
            3,
            bool(lost.all() and not lost_base.any()) if len(lost) and len(lost_base) else None,
            f"in {facet} {int(lost.sum())} of {count(len(lost), 'run')} of `{no_clip}` and {int(lost_base.sum())} of"
            f" {len(lost_base)} of `{base}` are lost (asked: all, and none)",
            "what is said there of training without clipping is not about the regime that it is meant for",
        )
        return [collapse]
    gain, (low, high) = _gain(study, facet), _clipped(study, facet)
    learns = Condition(
        1,
        gain.mean >= LEAST_GAIN and gain.low > 0 if gain.n else None,
        f"in {facet} the baseline `{base}` gains {estimate(*gain[:3], signed)} ({count(gain.n, 'seed')};"
        f" asked: {LEAST_GAIN} or more, the interval above 0)",
        "arms are compared there with one that is not shown to learn, and differences between them may be noise",
    )
    clips = Condition(
        2,
        None if pd.isna(low) else min(low, high) >= LEAST_CLIPPED,
        f"in {facet} clipping in `{base}` silences {percent(low)} of the tokens below its range and"
        f" {percent(high)} above (asked: {LEAST_CLIPPED:.0%} each)",
        "arms that differ in a clip range that hardly acts are one arm under two names",
    )
    return [learns, clips, *lengths]


def _unclipped(study: Study) -> str:
    """The arm without clipping; empty where the study has none."""
    arms = study.cells.loc[study.cells["setting/kernel"] == "ratio", "arm"]
    return str(arms.iloc[0]) if len(arms) else ""


def _gain(study: Study, facet: str) -> Interval:
    return t_interval(at(measure(study, "gain"), facet, study.baseline))


def _clipped(study: Study, facet: str) -> list[float]:
    """Mean share of the baseline's tokens with an advantage that clipping silences, below and above its range."""
    sides = (means_after_first_step(study, f"clip/active_{side}_nz") for side in ("low", "high"))
    return [float(at(shares, facet, study.baseline).mean()) for shares in sides]


def _free_length(study: Study, facet: str) -> Condition:
    runs = study.done[(study.done["facet"] == facet) & (study.done["arm"] == study.baseline)]
    evaluations = study.evaluations[study.evaluations["signature"].isin(runs["signature"])]
    last = evaluations.sort_values("rollout_step").groupby("signature")["eval/length_std"].last().astype("float64")
    return Condition(
        4,
        bool((last > LEAST_LENGTH_STD).all()) if len(last) else None,
        f"in {facet} the lengths of `{study.baseline}` have standard deviations of {number(last.min())} to"
        f" {number(last.max())} tokens at the end of {count(len(last), 'run')} (asked: above {LEAST_LENGTH_STD:.0f})",
        "claims about length are void where lengths are all the same",
    )
