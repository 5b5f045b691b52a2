"""The report of a tuning, and the section on tuning in a study's report: sentences, tables, figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from grpolab.paths import Results, write_text_atomic
from grpolab.report.load import StudyRuns
from grpolab.report.style import Manifest, paper_style, save
from grpolab.report.tables import Table
from grpolab.report.text import NONE, begun, count, listing, markdown_table, number, percent
from grpolab.report.tuning import figures, values
from grpolab.report.tuning.trials import Tuning, load_trials, mean_of
from grpolab.vocabulary import COMPLETE, DIVERGED, FAILED, PRUNED

_ENDED = (COMPLETE, PRUNED, DIVERGED)  # a failed trial is made up for, so it is no part of the budget


def budget(tuning: Tuning) -> Table:
    """Per arm: its trials by how they ended, whether it got the budget, and the optimiser steps that pruning saved."""
    rows, asked, metric = [], tuning.document["trials_per_arm"], tuning.objectives[0]
    for arm in tuning.arms:
        ended, best, done = tuning.of(arm, *_ENDED), tuning.best(arm)[:1], tuning.scored(arm, metric)
        full, decided, run = ended[["full", "decided", "run"]].sum().astype(int)
        rows.append(
            {"arm": arm, "trials": len(ended), "asked": asked}
            | {state: len(tuning.of(arm, state)) for state in (COMPLETE, PRUNED, DIVERGED, FAILED)}
            | {"pruned_share": len(tuning.of(arm, PRUNED)) / len(ended) if len(ended) else np.nan}
            | {"full": full, "decided": decided, "run": run, "saved": 1 - decided / full if full else np.nan}
            | {"best": best[0] if best else np.nan, "score": done.loc[done["number"].isin(best), "score"].mean()}
        )
    numbers = pd.DataFrame(rows)
    shown = numbers[["arm"]].assign(
        **{"trials": [f"{row.trials} of {asked}" for row in numbers.itertuples()]},
        **{state: numbers[state] for state in (COMPLETE, PRUNED, DIVERGED, FAILED)},
        **{"pruned share": numbers["pruned_share"].map(percent)},
        **{"optimiser steps": [f"{row.decided:,} of {row.full:,}" for row in numbers.itertuples()]},
        **{"saved": numbers["saved"].map(percent)},
        **{"best trial": [NONE if np.isnan(best) else f"{best:.0f}" for best in numbers["best"]]},
        **{metric: numbers["score"].map(number)},
    )
    caption = (
        f"{tuning.study}: {asked} trials for every arm ({tuning.document['sampler']['name']}, pruner"
        f" {tuning.document['pruner']['name']}). `saved`: optimiser steps after a trial was decided, of those that"
        " its seeds would have taken."
    )
    return Table("tuning_budget", caption, numbers, shown)


def trials(tuning: Tuning) -> Table:
    """Every trial: its values, scores and end."""
    names, rows, shown = [key.name for key in tuning.all_keys()], [], []
    for trial in tuning.trials.itertuples():
        head = {"arm": trial.arm, "trial": trial.number}
        values = {name: trial.values.get(name) for name in names}
        scores = {metric: mean_of(trial.scores, metric) for metric in tuning.objectives}
        rows.append(head | values | scores | {"state": trial.state, "reason": trial.reason, "steps": trial.decided})
        words = {name: f"{value:.3g}" if isinstance(value, float) else str(value) for name, value in values.items()}
        best = " (best)" if trial.number in tuning.best(trial.arm)[:1] else ""
        shown.append(
            head
            | {name: NONE if values[name] is None else word for name, word in words.items()}
            | {metric: number(score) for metric, score in scores.items()}
            | {"state": trial.state + best, "reason": trial.reason or NONE, "optimiser steps": f"{trial.decided:,}"}
        )
    columns = ["arm", "trial", *names, *tuning.objectives, "state", "reason"]
    caption = f"{tuning.study}: every trial; scores are means over the tuning seeds."
    return Table(
        "tuning_trials",
        caption,
        pd.DataFrame(rows, columns=[*columns, "steps"]),
        pd.DataFrame(shown, columns=[*columns, "optimiser steps"]),
    )


class Section(NamedTuple):
    """What one study has to say about tuning, the pictures in it, and tunings whose trials are elsewhere."""

    blocks: list[str]
    pictures: list[Path]
    elsewhere: list[str]


def of_all(sections: Sequence[Section]) -> str:
    """The section on tuning of a report over several studies, under one heading; empty where none has anything."""
    blocks = [block for section in sections for block in section.blocks]
    if elsewhere := list(dict.fromkeys(name for section in sections for name in section.elsewhere)):
        files = ", ".join(f"`conf/tuned/{name}.yaml`" for name in elsewhere)
        blocks.append(f"Tuned values are those of {files}; the trials behind them are not in this results folder.")
    return "\n\n".join(["## Tuning", *blocks]) if blocks else ""


class _Writer:
    """Writes figures and tables below `output`, and says how a report there shows them."""

    def __init__(self, output: Path, inner: Path = Path()) -> None:
        self.output, self.inner = output, inner
        self.pictures: list[Path] = []

    def figure(self, picture: Figure, manifest: Manifest) -> str:
        stem = self.output / "figures" / self.inner / f"{manifest.study}_{manifest.figure}"
        path = save(picture, stem)[0]
        manifest.write(path.with_suffix(".json"))
        self.pictures.append(path)
        words = f"**{manifest.figure}.** {manifest.caption} {begun(manifest.statistic)}."
        return f"![{manifest.study} {manifest.figure}]({path.relative_to(self.output)})\n\n{words}"

    def table(self, table: Table) -> str:
        table.write(self.output / "tables" / self.inner)
        return f"{table.caption}\n\n{markdown_table(table.shown)}"

    def blocks(self, tuning: Tuning) -> Iterator[str]:
        """One tuning: sentences, budget, figures, every trial."""
        yield "\n".join(f"- {sentence}" for sentence in sentences(tuning))
        yield self.table(budget(tuning))
        for figure in figures.FIGURES:
            if drawn := figures.draw(tuning, figure):
                yield self.figure(*drawn)
        rows = count(len(tuning.trials), "trial")
        yield f"<details><summary>every trial ({rows})</summary>\n\n{self.table(trials(tuning))}\n\n</details>"


def section(study: StudyRuns, output: Path, inner: Path = Path()) -> Section:
    """What a study's report says about tuning; nothing where the study neither was tuned nor names tuned values.

    Figures and tables go to `output`/figures/`inner` and `output`/tables/`inner`.
    """
    writer, blocks, elsewhere = _Writer(output, inner), list[str](), list[str]()
    if rows := values.compare(study) if len(study.done) else []:  # common against tuned values
        with paper_style():
            drawn = values.draw(study, rows)
        blocks.append("\n".join(f"- {sentence}" for sentence in values.sentences(rows)))
        blocks += [writer.figure(*drawn), writer.table(values.table(study, rows))]
    for name in dict.fromkeys([*(tuning["study"] for tuning in study.plan.get("tuned", [])), study.name]):
        if study.results.trials(name).is_file():
            blocks += writer.blocks(load_trials(study.results, name))
        elif name != study.name:
            elsewhere.append(name)
    return Section(blocks, writer.pictures, elsewhere)


def write(results: Results, study: str, say: Callable[[str], None] = lambda line: None) -> Path:
    """Draw the trials of a study and write their report, as they stand; the path of report.md.

    Raises RequestError when the study has not been tuned.
    """
    tuning, output = load_trials(results, study), results.output(f"{study}.tuning")
    say(f"drawing the trials of {study}")
    blocks = [f"# Tuning of {study}", *_Writer(output).blocks(tuning)]
    write_text_atomic(output / "report.md", "\n\n".join(blocks) + "\n")
    return output / "report.md"


def sentences(tuning: Tuning) -> Iterator[str]:
    """What was tried, whether every arm had the same, what pruning saved, and what went wrong."""
    document, asked = tuning.document, tuning.document["trials_per_arm"]
    seeds = ", ".join(map(str, document["seeds"]))
    where = "".join(f", {factor} {level}" for factor, level in document["levels"].items())
    goals = " and ".join(f"{goal['direction']} `{goal['metric']}`" for goal in document["objectives"])
    yield (
        f"`{tuning.study}` was tuned to {goals}: {count(asked, 'trial')} for each of {count(len(tuning.arms), 'arm')}"
        f" ({document['sampler']['name']}, sampler seed {document['sampler']['seed']}{where}), each judged by seeds"
        f" {seeds}, which no evaluation may use."
    )
    of_arm = {arm: len(tuning.of(arm, *_ENDED)) for arm in tuning.arms}
    short = [f"`{arm}` {n}" for arm, n in of_arm.items() if n != asked]
    yield f"The budget is not spent yet: {', '.join(short)}." if short else "Every arm had exactly its budget."
    ended = tuning.trials[tuning.trials["state"].isin(_ENDED)]
    if pruned := (ended["state"] == PRUNED).sum():
        full, decided = ended["full"].sum(), ended["decided"].sum()
        cut = ", what divergence cut short included" if (ended["state"] == DIVERGED).any() else ""
        late = (ended["run"] - ended["decided"]).clip(lower=0).sum()
        also = f" ({late:,} more were done before the runs stopped)" if late else ""
        yield (
            f"The pruner `{document['pruner']['name']}` stopped {pruned} of {count(len(ended), 'trial')}; the"
            f" trials took {decided:,} of {full:,} optimiser steps{also}: {percent(1 - decided / full)} saved{cut}."
        )
    for state in (DIVERGED, FAILED):
        of_state = tuning.trials[tuning.trials["state"] == state].itertuples()
        if named := [f"`{trial.arm}` trial {trial.number} ({trial.reason})" for trial in of_state]:
            yield f"{count(len(named), 'trial')} {state}: {listing(named, 4)}."
