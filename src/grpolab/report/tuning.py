"""Tuning in a report: budget, chosen values, Optuna's plots, every trial; each arm at common and at tuned values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import optuna
import pandas as pd
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial
from optuna.visualization import matplotlib as plots

from grpolab.errors import RequestError
from grpolab.paths import Results, write_text_atomic
from grpolab.report import text
from grpolab.report.load import StudyRuns
from grpolab.report.measures import at, mean_interval, measure
from grpolab.report.statistics.intervals import Interval
from grpolab.report.statistics.tests import Difference, holm, paired_difference
from grpolab.report.style import QUIET, Manifest, save
from grpolab.report.tables import Table
from grpolab.report.text import NONE, OF_MEANS, begun, count, estimate, listing, number, percent
from grpolab.run_files import Record, read_object
from grpolab.vocabulary import COMPLETE, DIVERGED, FAILED, PRUNED, RUNNING

FORMAT = 1
ENDED = (COMPLETE, PRUNED, DIVERGED)  # another trial replaces a failed one, so the budget leaves it out
STATES = {COMPLETE: TrialState.COMPLETE, PRUNED: TrialState.PRUNED}
COMMON, TUNED = "common", "tuned"
EDGE = 0.05  # share of a range: if the best value is so close to an end, a better one may lie beyond


# --- the trials -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TrialTable:
    """A study's trials: the document trials.json, and one row per trial that has ended.

    Columns: arm, number, state, reason, full/decided (optimiser steps: of all seeds without pruning, up to the
    decision), values by key, score (NaN: none) and signatures by seed.
    """

    document: Record
    trials: pd.DataFrame

    @property
    def arms(self) -> list[str]:
        """The arms that were tuned, in the order of the study file."""
        return list(self.document["arms"])

    @property
    def metric(self) -> str:
        """The number that decides."""
        return str(self.document["objectives"][0]["metric"])

    def of(self, arm: str, *states: str) -> pd.DataFrame:
        """Return the trials of an arm that are in one of some states."""
        return self.trials[(self.trials["arm"] == arm) & self.trials["state"].isin(states)]

    def optuna_study(self, arm: str) -> optuna.Study:
        """Return the arm's trials as an Optuna study in memory, for Optuna's plots; diverged ones have no value."""
        space: dict[str, BaseDistribution] = {
            key: CategoricalDistribution(bounds["choices"])
            if "choices" in bounds
            else FloatDistribution(bounds["low"], bounds["high"], log=bool(bounds.get("log")))
            for key, bounds in self.document["arms"][arm]["space"].items()
        }
        study = optuna.create_study(study_name=arm, direction=self.document["objectives"][0]["direction"])
        for trial in self.of(arm, *ENDED).itertuples():
            state, value = STATES.get(trial.state, TrialState.FAIL), trial.score if trial.state == COMPLETE else None
            study.add_trial(create_trial(state=state, params=trial.values, distributions=space, value=value))
        return study


def load_trials(results: Results, study: str) -> TrialTable:
    """Read the trials of a study. Raises RequestError if it has not been tuned here, or by another format."""
    path = results.trials(study)
    document = read_object(path)
    if document is None:
        raise RequestError(f"study={study} has no trials in {path}: run `grpolab tune {study}` first")
    if document.get("format") != FORMAT:
        raise RequestError(f"{path} has format {document.get('format')}, this program reads format {FORMAT}")
    metric = document["objectives"][0]["metric"]
    rows = [
        trial
        | trial["optimizer_steps"]
        | {"reason": trial["reason"] or "", "score": _finite(trial["scores"].get(metric, {}).get("mean"))}
        for trial in document["trials"]
        if trial["state"] != RUNNING
    ]
    columns = ["arm", "number", "state", "reason", "full", "decided", "values", "score", "signatures"]
    return TrialTable(document, pd.DataFrame(rows, columns=columns))


def _finite(value: Any) -> float:
    """Return a mean as a number; NaN for an infinity (a string in JSON) and for a missing value (null)."""
    return float(value) if value is not None and math.isfinite(float(value)) else math.nan


def shown_value(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)


def is_at_edge(bounds: Record, value: Any) -> bool:
    """Return True if a value is at an end of its range, beyond which a better one may lie."""
    if "choices" in bounds:
        numbers = sorted(choice for choice in bounds["choices"] if type(choice) in (int, float))
        return bool(numbers) and value in (numbers[0], numbers[-1])
    scale = math.log if bounds.get("log") else float
    low, high, at = scale(bounds["low"]), scale(bounds["high"]), scale(value)
    return min(at - low, high - at) < EDGE * (high - low)


def budget(tuning: TrialTable) -> Table:
    """List for each arm its trials by how they ended, the steps that pruning saved, and the chosen values."""
    document, rows = tuning.document, []
    for arm in tuning.arms:
        ended, space = tuning.of(arm, *ENDED), document["arms"][arm]["space"]
        full, decided = ended[["full", "decided"]].sum().astype(int)
        best = ended[ended["number"].isin(document["best"].get(arm, [])[:1])].to_dict("records")
        values = best[0]["values"] if best else {}
        row: Record = {"arm": arm, "trials": len(ended), "asked": document["trials_per_arm"]}
        row |= {state: len(tuning.of(arm, state)) for state in (COMPLETE, PRUNED, DIVERGED, FAILED)}
        row |= {"full": full, "decided": decided, "saved": 1 - decided / full if full else math.nan}
        row |= {"best": best[0]["number"] if best else NONE, tuning.metric: best[0]["score"] if best else math.nan}
        row["values"] = ", ".join(f"{key}={shown_value(value)}" for key, value in values.items())
        row["at_edge"] = ", ".join(key for key, value in values.items() if is_at_edge(space[key], value))
        rows.append(row)
    numbers = pd.DataFrame(rows)
    formats = {"saved": percent, tuning.metric: number, "values": lambda text: text or NONE}
    shown = numbers.assign(**{name: numbers[name].map(as_text) for name, as_text in formats.items()})
    names = {"full": "optimiser steps", "decided": "needed", "best": "best trial", "at_edge": "at an edge"}
    caption = (
        f"{document['study']}: {document['trials_per_arm']} trials for every arm ({document['sampler']['name']}, pruner"
        f" {document['pruner']['name']}). `saved`: share of the optimiser steps that pruned trials did not need."
        " A value at an edge of its space may be better beyond: widen the space and tune again."
    )
    return Table("tuning_budget", caption, numbers, shown.rename(columns=names))


def every_trial(tuning: TrialTable) -> Table:
    """Every trial: its values, score and end."""
    keys = list(dict.fromkeys(key for arm in tuning.document["arms"].values() for key in arm["space"]))
    rows = [
        {"arm": trial.arm, "trial": trial.number, **{key: trial.values.get(key) for key in keys}}
        | {tuning.metric: trial.score, "state": trial.state, "reason": trial.reason, "steps": trial.decided}
        for trial in tuning.trials.itertuples()
    ]
    numbers = pd.DataFrame(rows, columns=["arm", "trial", *keys, tuning.metric, "state", "reason", "steps"])
    shown = numbers.astype(dict.fromkeys(keys, object)).replace("", NONE)
    for name in (*keys, tuning.metric):
        shown[name] = numbers[name].map(shown_value)
    caption = f"{tuning.document['study']}: every trial; scores are means over the tuning seeds."
    return Table("tuning_trials", caption, numbers, shown)


def sentences(tuning: TrialTable) -> Iterator[str]:
    """Say what was tried, whether every arm had the same, and what went wrong."""
    document, asked, goal = tuning.document, tuning.document["trials_per_arm"], tuning.document["objectives"][0]
    seeds = ", ".join(map(str, document["seeds"]))
    where = "".join(f", {factor} {level}" for factor, level in document["levels"].items())
    yield (
        f"`{document['study']}` was tuned to {goal['direction']} `{goal['metric']}`: {count(asked, 'trial')} for each"
        f" of {count(len(tuning.arms), 'arm')} ({document['sampler']['name']}, sampler seed"
        f" {document['sampler']['seed']}{where}), each judged by seeds {seeds}, which no evaluation may use."
    )
    of_arm = {arm: len(tuning.of(arm, *ENDED)) for arm in tuning.arms}
    short = [f"`{arm}` {n}" for arm, n in of_arm.items() if n != asked]
    yield f"The budget is not spent yet: {', '.join(short)}." if short else "Every arm had exactly its budget."
    for state in (DIVERGED, FAILED):
        of_state = tuning.trials[tuning.trials["state"] == state].itertuples()
        if named := [f"`{trial.arm}` trial {trial.number} ({trial.reason})" for trial in of_state]:
            yield f"{count(len(named), 'trial')} {state}: {listing(named, 4)}."


# --- Optuna's plots -------------------------------------------------------------------------------------------------


def draw_trials(tuning: TrialTable) -> Iterator[tuple[Figure, Manifest]]:
    """Draw Optuna's plots of a tuning: the history of all arms, and of each arm the score along each key."""
    options: Record = {"target": lambda trial: trial.value, "target_name": tuning.metric}
    studies = {arm: tuning.optuna_study(arm) for arm in tuning.arms if len(tuning.of(arm, COMPLETE))}
    if studies:
        caption = "Score of each complete trial in the order of asking, and the best so far."
        history = _plot(plots.plot_optimization_history, list(studies.values()), **options)
        yield history, _manifest(tuning, "trial_history", list(studies), caption)
    for arm, study in studies.items():
        space, common = tuning.document["arms"][arm]["space"], tuning.document["arms"][arm]["common"]
        if len(tuning.of(arm, COMPLETE)) < 2:
            continue
        figure = _plot(plots.plot_slice, study, params=list(space), **options)
        # One panel shares a grid with its colour bar, which the constrained layout cannot divide.
        figure.set_layout_engine("constrained" if len(space) > 1 else "tight")
        for key, panel in zip(sorted(space), figure.axes, strict=False):
            panel.xaxis.set_minor_formatter(NullFormatter())  # on a short logarithmic axis they overlap
            if isinstance(common.get(key), float) and "choices" not in space[key]:  # choices are places, not numbers
                panel.axvline(common[key], color=QUIET, linestyle=":")
        caption = f"`{arm}`: scores of complete trials along each key; dotted: the common value."
        yield figure, _manifest(tuning, f"{arm}_key_slices", [arm], caption)


def _plot(plot: Callable[..., Any], *arguments: Any, **options: Any) -> Figure:
    """Return the figure of one of Optuna's plots, which change matplotlib's style for good and warn at each call."""
    with matplotlib.rc_context(), warnings.catch_warnings(action="ignore"):
        figure: Figure = np.ravel(plot(*arguments, **options))[0].figure
    pyplot.close(figure)  # it stays as an object, without a window of pyplot
    return figure


def _manifest(tuning: TrialTable, name: str, arms: list[str], caption: str) -> Manifest:
    """Return the manifest of a figure of trials; `diverged` and `failed` name trials."""
    document, trials = tuning.document, tuning.trials[tuning.trials["arm"].isin(arms)]
    labels = trials["arm"] + " trial " + trials["number"].astype(str)
    numbers = trials[["arm", "number", "state", "values", "score"]].rename(columns={"number": "trial"})
    record: Record = (
        {"figure": name, "study": document["study"], "caption": caption, "alt": caption}
        | {"statistic": "scores are means over the tuning seeds", "seeds": list(document["seeds"])}
        | {"commits": [document["commit"]] if document["commit"] else []}
        | {"results_versions": [document["results_version"]], "locks": []}  # a tuning's document does not say
        | {"signatures": sorted({signature for of in trials["signatures"] for signature in of.values()})}
        | {state: labels[trials["state"] == state].tolist() for state in (DIVERGED, FAILED)}
        | {"stopped": [], "missing": [], "numbers": numbers.to_dict("records")}
    )
    return Manifest(**record)


# --- common and tuned values ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ArmAtBoth:
    """One arm at common and at tuned values, at one setting of the other factors."""

    place: str
    arm: str
    scores: dict[str, pd.Series]  # {COMMON: by seed, TUNED: by seed}
    means: dict[str, Interval]
    gain: Difference  # tuned - common
    lead: dict[str, Difference]  # arm - baseline
    overrides: str


def compare_values(study: StudyRuns) -> list[ArmAtBoth]:
    """Compare each arm at common and at tuned values, for each setting of the other factors that has both.

    A factor with a level that names a tuning has the tuned values; its first level without one has the common values.
    """
    final, compared = measure(study, "final_score"), study.plan["compare"]
    rows: list[ArmAtBoth] = []
    for tuning in study.plan.get("tuned", []):
        factor = tuning["factor"]
        if factor in (None, compared):
            continue
        tuned = [other["level"] for other in study.plan["tuned"] if other["factor"] == factor]
        common = next((level for level in study.plan["factors"][factor] if level not in tuned), None)
        rest = [f"factor/{name}" for name in study.plan["factors"] if name not in (factor, compared)]
        cells = study.cells[["facet", f"factor/{factor}", *rest]].drop_duplicates()
        facets = {(level, " · ".join(levels)): facet for facet, level, *levels in cells.itertuples(index=False)}
        for level, where in facets:
            if level != tuning["level"] or (common, where) not in facets:
                continue
            pair = {COMMON: facets[common, where], TUNED: facets[level, where]}
            scores = {arm: {end: at(final, facet, arm) for end, facet in pair.items()} for arm in study.arms}
            place = " · ".join(filter(None, [where, level if len(tuned) > 1 else ""]))
            for arm, ends in scores.items():
                means = {end: mean_interval(study, "final_score", values) for end, values in ends.items()}
                lead = {end: paired_difference(ends[end], scores[study.baseline][end]) for end in ends}
                gain = paired_difference(ends[TUNED], ends[COMMON])
                overrides = ", ".join(tuning["arms"].get(arm, {}).get("overrides", []))
                rows.append(ArmAtBoth(place, arm, ends, means, gain, lead, overrides))
    return rows


def values_table(study: StudyRuns, rows: list[ArmAtBoth]) -> Table:
    """Scores at both values, their paired difference (Holm over the arms), and each arm's lead over the baseline."""
    numbers, shown = [], []
    for row, p in zip(rows, holm([row.gain.p for row in rows]), strict=True):
        estimates = {f"score_{end}": mean[:3] for end, mean in row.means.items()} | {"gain": row.gain[:3]}
        estimates |= {f"lead_{end}": lead[:3] for end, lead in row.lead.items()}
        ends = {name + end: of[n] for name, of in estimates.items() for n, end in enumerate(("", "_low", "_high"))}
        leads = {
            f"minus {study.baseline}, {end}": NONE if row.arm == study.baseline else estimate(*lead[:3], text.signed)
            for end, lead in row.lead.items()
        }
        numbers.append(
            {"where": row.place, "arm": row.arm, "tuned_values": row.overrides, "pairs": row.gain.n}
            | {**ends, "p": row.gain.p, "p_holm": p}
        )
        shown.append(
            {"where": row.place, "arm": row.arm, "tuned values": row.overrides, "seeds": row.gain.n}
            | {end: estimate(*mean[:3]) for end, mean in row.means.items()}
            | {"tuned minus common": estimate(*row.gain[:3], text.signed), "Holm p": text.probability(p), **leads}
        )
    caption = (
        f"{study.name}: final score (`{study.metric}`) of each arm at common and at tuned values, on seeds that chose"
        f" neither; differences are paired by seed; mean [95% interval: {OF_MEANS}]."
    )
    hidden = [] if any(row.place for row in rows) else ["where"]
    return Table("tuned_values", caption, pd.DataFrame(numbers), pd.DataFrame(shown).drop(columns=hidden))


def values_sentences(rows: Sequence[ArmAtBoth]) -> Iterator[str]:
    """Say what tuning changes in each arm."""
    for where in dict.fromkeys(row.place for row in rows):
        here = [row for row in rows if row.place == where and row.gain.n]
        if here:
            place = f" in {where}" if where else ""
            gains = "; ".join(f"`{row.arm}` {estimate(*row.gain[:3], text.signed)}" for row in here)
            yield f"Tuned minus common values{place}, paired by seed: {gains}."


# --- pages ----------------------------------------------------------------------------------------------------------


class Section(NamedTuple):
    """A study's text about tuning, its pictures, and the tunings whose trials are in another results folder."""

    blocks: list[str]
    pictures: list[Path]
    elsewhere: list[str]


def join_sections(sections: Sequence[Section]) -> str:
    """Join the sections of several studies under one heading; empty if none has anything."""
    blocks = [block for section in sections for block in section.blocks]
    if elsewhere := list(dict.fromkeys(name for section in sections for name in section.elsewhere)):
        files = ", ".join(f"`conf/tuned/{name}.yaml`" for name in elsewhere)
        blocks.append(f"Tuned values are those of {files}; the trials behind them are not in this results folder.")
    return "\n\n".join(["## Tuning", *blocks]) if blocks else ""


def make_section(study: StudyRuns, output: Path, inner: Path = Path()) -> Section:
    """Write what a study's report says about tuning: nothing if it neither was tuned nor names tuned values.

    Figures and tables go to `output`/figures/`inner` and `output`/tables/`inner`.
    """
    section = Section([], [], [])
    if rows := compare_values(study) if len(study.done) else []:
        section.blocks.append(text.bullets(values_sentences(rows)))
        section.blocks.append(values_table(study, rows).write(output / "tables" / inner))
    for name in dict.fromkeys([*(tuning["study"] for tuning in study.plan.get("tuned", [])), study.name]):
        if study.results.trials(name).is_file():
            _write_tuning(load_trials(study.results, name), section, output, inner)
        elif name != study.name:
            section.elsewhere.append(name)
    return section


def _write_tuning(tuning: TrialTable, section: Section, output: Path, inner: Path = Path()) -> None:
    """Write one tuning into a section: sentences, budget, figures, every trial."""
    tables = output / "tables" / inner
    section.blocks.append(text.bullets(sentences(tuning)))
    section.blocks.append(budget(tuning).write(tables))
    for picture, manifest in draw_trials(tuning):
        path = save(picture, output / "figures" / inner / f"{manifest.study}_{manifest.figure}")[0]
        manifest.write(path.with_suffix(".json"))
        section.pictures.append(path)
        words = f"**{manifest.figure}.** {manifest.caption} {begun(manifest.statistic)}."
        section.blocks.append(f"![{manifest.study} {manifest.figure}]({path.relative_to(output)})\n\n{words}")
    title = f"every trial ({count(len(tuning.trials), 'trial')})"
    rows = every_trial(tuning).write(tables)
    section.blocks.append(f"<details><summary>{title}</summary>\n\n{rows}\n\n</details>")


def write(results: Results, study: str, say: Callable[[str], None] = lambda line: None) -> Path:
    """Draw the trials of a study and write their report; return the path of report.md.

    Raises RequestError when the study has not been tuned.
    """
    output, section = results.output(f"{study}.tuning"), Section([], [], [])
    tuning = load_trials(results, study)
    say(f"drawing the trials of {study}")
    _write_tuning(tuning, section, output)
    write_text_atomic(output / "report.md", "\n\n".join([f"# Tuning of {study}", *section.blocks]) + "\n")
    return output / "report.md"
