"""Report on runs of other frameworks: their logs as a study with arms and seeds, and a diagnosis.

The score is what every log holds of evaluations, accuracy before reward. Else it is the training reward: the log is cut
into SPANS equal pieces, and each one's mean reward serves as an evaluation. Everything else is as in any report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grpolab.doctor import section
from grpolab.doctor.causes import Finding
from grpolab.doctor.evidence import EVALUATED, REWARD, SPANS, TABLES, Evidence, least_fall, pieces, to_evidence
from grpolab.doctor.page import find_causes
from grpolab.doctor.run_folder import read_run
from grpolab.errors import RequestError, printable
from grpolab.framework_names import LOG_NAMES
from grpolab.meanings import POSITIONS
from grpolab.paths import Results
from grpolab.readers.log_folders import FoundLog, find_all, find_config, group_runs
from grpolab.readers.logs import read_charts, read_log
from grpolab.report.journals import column
from grpolab.report.load import NUMBERS, StudyRuns, study_of
from grpolab.report.text import bullets, count, listing, markdown_table, number
from grpolab.vocabulary import COMPLETED, DIVERGED, MISSING

FIGURES = ["D2", "F27", "F16"]
# Metrics that tables and figures show where a log has them.
SHOWN = (
    *(REWARD, "length/mean", "truncation/share", "zero_variance/share", "entropy/behaviour", "grad_norm"),
    *("clip/active", "ratio/token_max", "kl_ref/k3"),
)
UNKNOWN_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("num_iterations", "num_minibatches", "max_grad_norm", "num_generations"), np.nan),
    **dict.fromkeys(("task", "kernel", "importance_sampling_level"), "unknown"),
}
SHORT = 0.9  # of the longest run's steps; the report names logs that end earlier
Arms = Mapping[str, Sequence[str]]  # -> folders, as --arm says them


@dataclass(frozen=True, eq=False)
class FoundRun:
    """A run of another framework: its log, its numbers, and its place in the study."""

    log: FoundLog
    evidence: Evidence
    arm: str = ""
    seed: int = 0

    @property
    def signature(self) -> str:
        """Its name in the study's tables."""
        return f"{self.log.folder}: {self.log.name}"

    @property
    def last_step(self) -> int:
        """The last rollout step that it logged."""
        tables = (self.evidence.updates, self.evidence.rollouts)
        return max((int(table["rollout_step"].max()) for table in tables if len(table)), default=0)

    @property
    def outcome(self) -> str:
        """Diverged if loss or gradient is not finite in the last row, else completed: a log does not tell its end."""
        odd = [step for name in ("loss", "grad_norm") for step in self.evidence.not_finite.get(name, ())]
        if not len(self.evidence.updates) and not len(self.evidence.rollouts):
            return MISSING
        return DIVERGED if odd and max(odd) >= self.last_step else COMPLETED


def find_runs(
    framework: str | None, logs: Sequence[FoundLog], config: Path | None = None
) -> tuple[list[FoundRun], list[str]]:
    """Return the runs of a framework (None: any) that these logs are of, and what was left out. Raises RequestError.

    `config` is the file of their settings; None: of each what lies beside its log.
    """
    runs, refused = [], list[str]()
    for log in logs:
        try:
            theirs = None
            if not log.path.is_dir():
                theirs = read_charts(framework, log.name, log.charts) if log.charts else read_log(framework, log.path)
                beside = find_config(log.path, given=config) if config else (log.config, log.config_file)
                theirs = theirs.with_config(*beside)
            evidence = to_evidence(theirs) if theirs else read_run(log.path)
        except RequestError as refusal:
            refused.append(str(refusal))
            continue
        if framework not in (None, evidence.framework):
            refused.append(f"FILE={log.name} is the folder of a run of {evidence.framework}")
            continue
        written = theirs.config if theirs else evidence.settings
        runs.append(FoundRun(replace(log, name=printable(log.name), config=dict(written)), evidence))
    if not runs:
        more = f" ({count(len(refused) - 1, 'file')} more like it)" if len(refused) > 1 else ""
        folders = listing(list(dict.fromkeys(log.folder for log in logs)), 3)
        raise RequestError(f"FOLDER={folders} holds no log of a run: {refused[0]}{more}")
    readings = dict.fromkeys(text for run in runs for text in run.evidence.readings)
    notes = [text for text in readings if text.startswith("by likeness")]
    if refused:
        notes.append(f"{count(len(refused), 'file')} left out, the first because {refused[0]}")
    return runs, notes


def find_only_run(framework: str | None, folder: str, config: Path | None) -> Evidence:
    """Return the evidence of the only run in a folder. Raises RequestError if the folder holds none or several."""
    runs, _ = find_runs(framework, find_all([folder]), config)
    if len(runs) > 1:
        named = [f"{run.log.path} --run '{run.log.name}'" for run in runs if run.log.charts]
        names = listing(named or [str(Path(folder, run.log.name)) for run in runs], 4)
        of = runs[0].evidence.framework
        source = of if of in LOG_NAMES and not named else "wandb-export"
        raise RequestError(
            f"FOLDER={folder} holds {len(runs)} runs: `grpolab diagnose` reads one of {names},"
            f" `grpolab report --from {source} {folder}` all of them"
        )
    return replace(runs[0].evidence, run=runs[0].log.name)


def make_study(
    results: Results, name: str, runs: Sequence[FoundRun], folders_of_arms: Arms, baseline: str | None
) -> tuple[StudyRuns, list[FoundRun], list[str]]:
    """Return the study of these runs, the runs with arm and seed, and how they were grouped. Raises RequestError."""
    frameworks = Counter(run.evidence.framework for run in runs)
    if len(frameworks) > 1:
        kinds = " and ".join(f"{framework} ({count(n, 'run')})" for framework, n in frameworks.items())
        raise RequestError(f"the runs are of {kinds}, whose numbers are defined differently: report each by itself")
    arm_of_run, seeds, is_paired, grouping = group_runs([run.log for run in runs], folders_of_arms)
    placed = [replace(run, arm=arm, seed=seed) for run, arm, seed in zip(runs, arm_of_run, seeds, strict=True)]
    arms = list(dict.fromkeys(arm_of_run)) if folders_of_arms else sorted(set(arm_of_run))
    baseline = baseline or arms[0]
    if baseline not in arms:
        raise RequestError(f"--baseline={baseline} is none of the arms: {listing(arms)}")
    metric = score_of(runs)
    logs = [run.evidence.rollouts if metric == REWARD else run.evidence.evaluations for run in runs]
    plan = {
        **{"study": name, "found": True, "includes": [], "placebo": [], "hypotheses": [], "primary_metric": metric},
        "question": f"{count(len(runs), 'run')} of {next(iter(frameworks))}, as their logs show them.",
        **{"compare": "arm", "baseline": baseline, "paired": is_paired},
        "factors": {"arm": [baseline, *(arm for arm in arms if arm != baseline)]},
        "figures": FIGURES if len(arms) > 1 else [figure for figure in FIGURES if figure != "F27"],
        "stability": {"collapse_drop": least_fall(logs, metric)},
        "seeds": sorted({run.seed for run in placed}),
        "cells": [
            {
                **{"variant": run.arm, "levels": {"arm": run.arm}, "seed": run.seed, "signature": run.signature},
                **{"rollout_steps": run.last_step, "settings": {**UNKNOWN_SETTINGS, **run.evidence.settings}},
            }
            for run in placed
        ],
    }
    return study_of(results, plan, _tables(placed, metric)), placed, grouping


def score_of(runs: Sequence[FoundRun]) -> str:
    """Return the runs' score: a held-out metric that every run evaluated at least twice, else the training reward."""
    for metric in EVALUATED:
        if all(len(column(run.evidence.evaluations, metric)) > 1 for run in runs):
            return metric
    return REWARD


def _tables(runs: Sequence[FoundRun], metric: str) -> dict[str, pd.DataFrame]:
    """Return the runs' records as tables for a report; without evaluations mean rewards of pieces of the logs serve."""
    none = pd.DataFrame(columns=["signature", *POSITIONS])

    def join(table: str) -> pd.DataFrame:
        frames = [getattr(run.evidence, table).assign(signature=run.signature) for run in runs]
        return pd.concat([frame for frame in frames if len(frame)] or [none], ignore_index=True)

    tables = {"histograms": none, "timings": none, NUMBERS: none[["signature"]]}
    tables |= {table: join(table) for table in ("updates", "rollouts")}
    if metric == REWARD:
        rows = [(*piece, run.signature) for run in runs for piece in pieces(run.evidence.rollouts)]
        evaluations = pd.DataFrame(rows, columns=["rollout_step", REWARD, "signature"]).astype({REWARD: float})
    else:
        evaluations = join("evaluations").dropna(subset=[metric])
    ends = [{"signature": run.signature, "outcome": run.outcome, "rollout_steps": run.last_step} for run in runs]
    return tables | {
        "evaluations": evaluations,
        "outcomes": pd.DataFrame(ends).assign(evaluation_items=np.nan, hardware=None),
    }


def find_gaps(runs: Sequence[FoundRun]) -> Iterator[str]:
    """Yield a sentence for each thing that a reader may expect and these logs lack."""
    if score_of(runs) == REWARD:
        yield (
            "held-out evaluations in every log: the score is the training reward, whose noise is that of a batch, and a"
            " policy that learns to please the reward alone scores well"
        )
    theirs = {ours: name for name, ours in reversed(LOG_NAMES.get(runs[0].evidence.framework, {}).items())}
    for metric in SHOWN:
        n = sum(any(len(column(getattr(run.evidence, name), metric)) for name in TABLES.values()) for run in runs)
        if n < len(runs):
            name = f" (`{theirs[metric]}`)" if metric in theirs else ""
            yield f"`{metric}`{name} is in {f'{n} of {len(runs)} logs only' if n else 'no log'}"
    longest = max(run.last_step for run in runs)
    if short := [f"{run.log.name} ({run.last_step})" for run in runs if run.last_step < SHORT * longest]:
        yield (
            f"{count(len(short), 'log')} of {len(runs)} did not get to the longest one's step {longest}:"
            f" {listing(short, 3)}; scores are of different amounts of training there"
        )
    if going := [run.log.name for run in runs if run.evidence.state.startswith(("still going", "unfinished"))]:
        yield f"the end of {count(len(going), 'run')}: {listing(going, 3)} may still train"
    if few := [arm for arm, n in Counter(run.arm for run in runs).items() if n < 2]:
        yield f"a second seed of {listing(few, 4)}: one run has no interval, and decides nothing"
    if torn := [run.log.name for run in runs if any("half written" in sentence for sentence in run.evidence.unknown)]:
        yield f"lines that cannot be read, half written or cut off: {listing(torn, 4)}"


def write_report(
    results: Results,
    runs: Sequence[FoundRun],
    notes: Sequence[str],
    arms: Arms,
    baseline: str | None,
    output: Path,
    application: Callable[[StudyRuns, Mapping[str, tuple[Finding, ...]]], str],
    draws: bool,
) -> Path:
    """Write the report of found runs; return the path of report.md. Raises RequestError as `make_study`.

    `application` gets the study and the findings of each run, and returns what report.html holds besides the text.
    `draws`: with figures, PNG and PDF, and tables in LaTeX.
    """
    from grpolab.report.page import write_found  # imported late: what is refused need not wait for it

    study, placed, grouping = make_study(results, output.name, runs, arms, baseline)
    if not draws:  # which takes longer than all else
        study = replace(study, plan=study.plan | {"figures": []})
    start = f"evaluations: {study.metric} is "  # and then the names that a log has for it
    readings = {text for run in runs for text in run.evidence.readings if text.startswith(start)}
    names = sorted({text.removeprefix(start).rpartition(": ")[0] for text in readings})
    score = f"{study.metric}, evaluated while training: {listing(names, 3)}"
    if study.metric == REWARD:
        score = f"the mean training reward; a log is cut into {SPANS} equal pieces, which stand for evaluations"
    fall = f"a fall of {number(study.thresholds.collapse_drop)} or more may be a collapse: less is noise"
    sentences = bullets([*notes, *grouping, f"score: {score}; {fall}"])
    rows = [
        {
            **{"arm": run.arm, "seed": run.seed, "run": run.signature},
            "rows": len(run.evidence.rollouts) or len(run.evidence.updates),
            "last step": run.last_step,
            "last reward": number([np.nan, *(reward for _, reward in pieces(run.evidence.rollouts))][-1]),
        }
        for run in sorted(placed, key=lambda run: (study.arms.index(run.arm), run.seed))
    ]
    table = f"## The runs that were found\n\n{sentences}\n\n{markdown_table(pd.DataFrame(rows))}"
    # Judged as in the study: by the training reward, and by a threshold of collapse for all of its runs.
    seen = {run.signature: replace(run.evidence, thresholds=study.thresholds, metric=study.metric) for run in placed}
    causes = {signature: find_causes(run) for signature, run in seen.items()}
    diagnosis = section.write([*section.examined(study, causes)])
    lacks = list(find_gaps(placed))
    return write_found(study, output, table, lacks, diagnosis, application(study, causes))
