"""The report of a tuning, from its trials.json: its budget, Optuna's plots of each arm, every trial."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

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
from grpolab.report import tuned_values
from grpolab.report.load import StudyRuns
from grpolab.report.style import QUIET, Manifest, save
from grpolab.report.tables import Table
from grpolab.report.text import NONE, begun, count, listing, markdown_table, number, percent
from grpolab.run_files import Record, read_object
from grpolab.vocabulary import COMPLETE, DIVERGED, FAILED, PRUNED, RUNNING

FORMAT = 1
ENDED = (COMPLETE, PRUNED, DIVERGED)  # a failed trial is made up for, so it is no part of the budget
FEWEST = 5  # complete trials: importances of fewer fit noise
STATES = {COMPLETE: TrialState.COMPLETE, PRUNED: TrialState.PRUNED}


# --- the trials -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TrialTable:
    """A study's trials: the document trials.json, and one row per trial that has ended.

    Columns: arm, number, state, reason, full/decided/run (optimiser steps: of all seeds without pruning, up to the
    decision, really done), values by key, scores by objective (NaN: none) and signatures by seed.
    """

    document: Record
    trials: pd.DataFrame

    @property
    def arms(self) -> list[str]:
        """The arms that were tuned, in the order of the study file."""
        return list(self.document["arms"])

    @property
    def metrics(self) -> list[str]:
        """The objectives; the first decides where one number is asked for."""
        return [goal["metric"] for goal in self.document["objectives"]]

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
        directions = [goal["direction"] for goal in self.document["objectives"]]
        study, steps = optuna.create_study(study_name=arm, directions=directions), self.document["rollout_steps"]
        for trial in self.of(arm, *ENDED).itertuples():
            curves = [points for _, points in sorted(trial.intermediate.items())]
            seen = {n * steps + at: value for n, curve in enumerate(curves) for at, value in curve}
            values = [trial.scores[metric] for metric in self.metrics] if trial.state == COMPLETE else None
            kept = {"params": trial.values, "distributions": space, "values": values, "intermediate_values": seen}
            study.add_trial(create_trial(state=STATES.get(trial.state, TrialState.FAIL), **kept))
        return study


def load_trials(results: Results, study: str) -> TrialTable:
    """Read the trials of a study. Raises RequestError where it has not been tuned here, or by another format."""
    path = results.trials(study)
    document = read_object(path)
    if document is None:
        raise RequestError(f"study={study} has no trials in {path}: run `grpolab tune {study}` first")
    if document.get("format") != FORMAT:
        raise RequestError(f"{path} has format {document.get('format')}, this program reads format {FORMAT}")
    columns = ["arm", "number", "state", "reason", "full", "decided", "run", "values", "scores"]
    rows = [
        trial
        | trial["optimizer_steps"]
        | {"run": trial["timing"]["optimizer_steps"], "reason": trial["reason"] or ""}
        | {"scores": {metric: _finite(score["mean"]) for metric, score in trial["scores"].items()}}
        for trial in document["trials"]
        if trial["state"] != RUNNING
    ]
    return TrialTable(document, pd.DataFrame(rows, columns=[*columns, "intermediate", "signatures"]))


def _finite(value: Any) -> float:
    """Return a mean as a number; infinities stand as strings, what is not there as null: both are NaN here."""
    return float(value) if value is not None and math.isfinite(float(value)) else math.nan


def budget(tuning: TrialTable) -> Table:
    """Per arm: its trials by how they ended, the optimiser steps that pruning saved, the best trial and its score."""
    document, metric = tuning.document, tuning.metrics[0]
    numbers, shown, asked = list[Record](), list[Record](), document["trials_per_arm"]
    for arm in tuning.arms:
        ended = tuning.of(arm, *ENDED)
        states = {state: len(tuning.of(arm, state)) for state in (COMPLETE, PRUNED, DIVERGED, FAILED)}
        full, decided, run = ended[["full", "decided", "run"]].sum().astype(int)
        saved = 1 - decided / full if full else np.nan
        # With several objectives the file lists the arm's front, and first of it the trial that is used.
        best = next(iter(document["best"].get(arm, [])), np.nan)
        score = next((scores[metric] for scores in ended.loc[ended["number"] == best, "scores"]), np.nan)
        numbers.append(
            {"arm": arm, "trials": len(ended), "asked": asked, **states, "full": full, "decided": decided, "run": run}
            | {"saved": saved, "best": best, "score": score}
        )
        shown.append(
            {"arm": arm, "trials": f"{len(ended)} of {asked}", **states}
            | {"optimiser steps": f"{decided:,} of {full:,}", "saved": percent(saved)}
            | {"best trial": NONE if np.isnan(best) else f"{best:.0f}", metric: number(score)}
        )
    caption = (
        f"{document['study']}: {asked} trials for every arm ({document['sampler']['name']}, pruner"
        f" {document['pruner']['name']}). `saved`: share of the optimiser steps that pruned trials did not need."
    )
    return Table("tuning_budget", caption, pd.DataFrame(numbers), pd.DataFrame(shown))


def every_trial(tuning: TrialTable) -> Table:
    """Every trial: its values, scores and end."""
    keys = list(dict.fromkeys(key for arm in tuning.document["arms"].values() for key in arm["space"]))
    rows = [
        {"arm": trial.arm, "trial": trial.number, **{key: trial.values.get(key) for key in keys}}
        | {metric: trial.scores.get(metric, np.nan) for metric in tuning.metrics}
        | {"state": trial.state, "reason": trial.reason, "steps": trial.decided}
        for trial in tuning.trials.itertuples()
    ]
    numbers = pd.DataFrame(rows, columns=["arm", "trial", *keys, *tuning.metrics, "state", "reason", "steps"])
    shown = numbers.astype(dict.fromkeys(keys, object)).replace("", NONE)
    for name in (*keys, *tuning.metrics):
        shown[name] = [number(value) if isinstance(value, float) else str(value) for value in numbers[name]]
    caption = f"{tuning.document['study']}: every trial; scores are means over the tuning seeds."
    return Table("tuning_trials", caption, numbers, shown)


def sentences(tuning: TrialTable) -> Iterator[str]:
    """Say what was tried, whether every arm had the same, what pruning saved, and what went wrong."""
    document, asked = tuning.document, tuning.document["trials_per_arm"]
    seeds = ", ".join(map(str, document["seeds"]))
    where = "".join(f", {factor} {level}" for factor, level in document["levels"].items())
    goals = " and ".join(f"{goal['direction']} `{goal['metric']}`" for goal in document["objectives"])
    yield (
        f"`{document['study']}` was tuned to {goals}: {count(asked, 'trial')} for each of"
        f" {count(len(tuning.arms), 'arm')} ({document['sampler']['name']}, sampler seed"
        f" {document['sampler']['seed']}{where}), each judged by seeds {seeds}, which no evaluation may use."
    )
    of_arm = {arm: len(tuning.of(arm, *ENDED)) for arm in tuning.arms}
    short = [f"`{arm}` {n}" for arm, n in of_arm.items() if n != asked]
    yield f"The budget is not spent yet: {', '.join(short)}." if short else "Every arm had exactly its budget."
    ended = tuning.trials[tuning.trials["state"].isin(ENDED)]
    if pruned := (ended["state"] == PRUNED).sum():
        full, decided = ended["full"].sum(), ended["decided"].sum()
        yield (
            f"The pruner `{document['pruner']['name']}` stopped {pruned} of {count(len(ended), 'trial')}; the trials"
            f" took {decided:,} of {full:,} optimiser steps: {percent(1 - decided / full)} saved."
        )
    for state in (DIVERGED, FAILED):
        of_state = tuning.trials[tuning.trials["state"] == state].itertuples()
        if named := [f"`{trial.arm}` trial {trial.number} ({trial.reason})" for trial in of_state]:
            yield f"{count(len(named), 'trial')} {state}: {listing(named, 4)}."


# --- Optuna's plots -------------------------------------------------------------------------------------------------


Layout: TypeAlias = Literal["constrained", "tight"]


def draw_trials(tuning: TrialTable) -> Iterator[tuple[Figure, Manifest]]:
    """Draw Optuna's plots of a tuning: the history of all arms, and of each arm what its keys do to the score."""
    metric, document, pruner = tuning.metrics[0], tuning.document, tuning.document["pruner"]
    studies = {arm: tuning.optuna_study(arm) for arm in tuning.arms if len(tuning.of(arm, COMPLETE))}
    options: Record = {"target": lambda trial: trial.values[0], "target_name": metric}
    if studies:
        caption = "Score of each complete trial in the order of asking, and the best so far."
        history = _plot(plots.plot_optimization_history, list(studies.values()), **options)
        yield history, _manifest(tuning, "trial_history", list(studies), caption)
    for arm, study in studies.items():
        space, complete = document["arms"][arm]["space"], len(tuning.of(arm, COMPLETE))
        if complete > 1:
            # One panel shares a grid with its colour bar, which the constrained layout cannot divide.
            layout: Layout = "constrained" if len(space) > 1 else "tight"
            figure = _plot(plots.plot_slice, study, layout=layout, params=list(space), **options)
            for key, panel in zip(sorted(space), figure.axes, strict=False):
                panel.xaxis.set_minor_formatter(NullFormatter())  # on a short logarithmic axis they overlap
                common = document["arms"][arm]["common"].get(key)
                if isinstance(common, float) and "choices" not in space[key]:  # choices are places, not numbers
                    panel.axvline(common, color=QUIET, linestyle=":")
            caption = f"`{arm}`: scores of complete trials along each key; dotted: the common value."
            yield figure, _manifest(tuning, f"{arm}_key_slices", [arm], caption)
        if pruner["name"] not in ("none", "wilcoxon"):
            seen = f"the mean of the last {pruner.get('window', 1)} evaluations of `{pruner['metric']}`"
            caption = f"`{arm}`: what the pruner saw, {seen}, the seeds of a trial one after the other."
            figure = _plot(plots.plot_intermediate_values, study)
            yield figure, _manifest(tuning, f"{arm}_trial_curves", [arm], caption)
        if len(space) > 1 and complete >= FEWEST:
            caption = f"`{arm}`: share of the score's variance that each key explains alone (fANOVA, seed 0)."
            evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
            figure = _plot(plots.plot_param_importances, study, evaluator=evaluator, **options)
            yield figure, _manifest(tuning, f"{arm}_key_importance", [arm], caption)
        if len(tuning.metrics) > 1:
            caption = f"`{arm}`: {' against '.join(tuning.metrics)}; red: trials that nothing beats in all."
            figure = _plot(plots.plot_pareto_front, study, target_names=tuning.metrics)
            yield figure, _manifest(tuning, f"{arm}_trial_front", [arm], caption)


def _plot(plot: Callable[..., Any], *arguments: Any, layout: Layout = "constrained", **options: Any) -> Figure:
    """Return the figure of one of Optuna's plots, which change matplotlib's style for good and warn at each call."""
    with matplotlib.rc_context(), warnings.catch_warnings(action="ignore"):
        figure = np.ravel(plot(*arguments, **options))[0].figure
        figure.set_layout_engine(layout)
    pyplot.close(figure)  # it stays as an object, without a window of pyplot
    return figure


def _manifest(tuning: TrialTable, name: str, arms: list[str], caption: str) -> Manifest:
    """Return the manifest of a figure of trials; `diverged` and `failed` name trials."""
    document, trials = tuning.document, [trial for trial in tuning.trials.itertuples() if trial.arm in arms]
    diverged, failed = (
        [f"{trial.arm} trial {trial.number}" for trial in trials if trial.state == state]
        for state in (DIVERGED, FAILED)
    )
    numbers = [{"arm": t.arm, "trial": t.number, "state": t.state, "values": t.values} | t.scores for t in trials]
    record: Record = (
        {"figure": name, "study": document["study"], "caption": caption, "alt": caption, "numbers": numbers}
        | {"statistic": "scores are means over the tuning seeds", "seeds": list(document["seeds"])}
        | {"commits": [document["commit"]] if document["commit"] else []}
        | {"results_versions": [document["results_version"]], "locks": []}  # a tuning's document does not say
        | {"signatures": sorted({signature for trial in trials for signature in trial.signatures.values()})}
        | {"diverged": diverged, "stopped": [], "missing": [], "failed": failed}
    )
    return Manifest(**record)


# --- pages ----------------------------------------------------------------------------------------------------------


class Section(NamedTuple):
    """A study's text about tuning, its pictures, and the tunings whose trials are in another results folder."""

    blocks: list[str]
    pictures: list[Path]
    elsewhere: list[str]


def join_sections(sections: Sequence[Section]) -> str:
    """Join the sections of several studies under one heading; empty where none has anything."""
    blocks = [block for section in sections for block in section.blocks]
    if elsewhere := list(dict.fromkeys(name for section in sections for name in section.elsewhere)):
        files = ", ".join(f"`conf/tuned/{name}.yaml`" for name in elsewhere)
        blocks.append(f"Tuned values are those of {files}; the trials behind them are not in this results folder.")
    return "\n\n".join(["## Tuning", *blocks]) if blocks else ""


class _Writer:
    """Writes figures and tables below `output`, and returns how a report there shows them."""

    def __init__(self, output: Path, inner: Path = Path()) -> None:
        self.output, self.inner, self.pictures = output, inner, list[Path]()

    def figure(self, picture: Figure, manifest: Manifest) -> str:
        name = f"{manifest.study}_{manifest.figure}"
        path = save(picture, self.output / "figures" / self.inner / name)[0]
        manifest.write(path.with_suffix(".json"))
        self.pictures.append(path)
        words = f"**{manifest.figure}.** {manifest.caption} {begun(manifest.statistic)}."
        return f"![{manifest.study} {manifest.figure}]({path.relative_to(self.output)})\n\n{words}"

    def table(self, table: Table) -> str:
        table.write(self.output / "tables" / self.inner)
        return f"{table.caption}\n\n{markdown_table(table.shown)}"

    def blocks(self, tuning: TrialTable) -> list[str]:
        """Write one tuning: sentences, budget, figures, every trial."""
        said, figures = sentences(tuning), [self.figure(*drawn) for drawn in draw_trials(tuning)]
        trials = f"every trial ({count(len(tuning.trials), 'trial')})"
        rows = f"<details><summary>{trials}</summary>\n\n{self.table(every_trial(tuning))}\n\n</details>"
        return ["\n".join(f"- {sentence}" for sentence in said), self.table(budget(tuning)), *figures, rows]


def make_section(study: StudyRuns, output: Path, inner: Path = Path()) -> Section:
    """Write what a study's report says about tuning: nothing where it neither was tuned nor names tuned values.

    Figures and tables go to `output`/figures/`inner` and `output`/tables/`inner`.
    """
    writer, blocks, elsewhere = _Writer(output, inner), list[str](), list[str]()
    if rows := tuned_values.compare(study) if len(study.done) else []:
        blocks.append("\n".join(f"- {sentence}" for sentence in tuned_values.sentences(rows)))
        blocks += [writer.figure(*tuned_values.draw(study, rows)), writer.table(tuned_values.table(study, rows))]
    for name in dict.fromkeys([*(tuning["study"] for tuning in study.plan.get("tuned", [])), study.name]):
        if study.results.trials(name).is_file():
            blocks += writer.blocks(load_trials(study.results, name))
        elif name != study.name:
            elsewhere.append(name)
    return Section(blocks, writer.pictures, elsewhere)


def write(results: Results, study: str, say: Callable[[str], None] = lambda line: None) -> Path:
    """Draw the trials of a study and write their report; return the path of report.md.

    Raises RequestError when the study has not been tuned.
    """
    tuning, output = load_trials(results, study), results.output(f"{study}.tuning")
    say(f"drawing the trials of {study}")
    text = "\n\n".join([f"# Tuning of {study}", *_Writer(output).blocks(tuning)])
    write_text_atomic(output / "report.md", f"{text}\n")
    return output / "report.md"
