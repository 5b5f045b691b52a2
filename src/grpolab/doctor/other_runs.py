"""Runs of other frameworks, found in folders, as a study: grouped into arms and seeds, read by the doctor's reader.

A log holds no evaluation of ours, so the score is the training reward: the log of a run is cut into SPANS equal pieces,
and the mean reward of a piece stands where an evaluation does. Everything else follows the rules of any report.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grpolab.bounded import read_mapping
from grpolab.doctor import section
from grpolab.doctor.evidence import REWARD as SCORE
from grpolab.doctor.evidence import SPANS, TABLES, Evidence, least_fall, pieces, read_run
from grpolab.doctor.logs import read_log
from grpolab.doctor.page import examine
from grpolab.errors import RequestError, printable
from grpolab.framework_names import LOG_NAMES
from grpolab.identity import dotted
from grpolab.paths import Results
from grpolab.report.journals import NUMBERS, column
from grpolab.report.load import StudyRuns, study_of
from grpolab.report.text import count, listing, markdown_table, number
from grpolab.vocabulary import COMPLETED, DIVERGED, MISSING, POSITIONS

SCORED = f"score: the mean training reward; a log is cut into {SPANS} equal pieces, which stand for evaluations"
FIGURES = ["D2", "F27", "F16"]
# What tables and figures show, as far as a log has it.
SHOWN = (
    *(SCORE, "length/mean", "truncation/share", "zero_variance/share", "entropy/behaviour", "grad_norm"),
    *("clip/active", "ratio/token_max", "kl_ref/k3"),
)
LOGS = {".log", ".txt", ".out", ".jsonl", ".json", ".csv", ".tsv"}
CONFIGS = ("config.yaml", "config.json", "args.json", "training_args.json", ".hydra/config.yaml")
NO_RUN = {"wandb-summary.json", "wandb-metadata.json", "requirements.txt", "timing.jsonl"}
MOST_FILES = 50_000  # with folders
SHORT = 0.9  # of the longest run: a log that ends before is said to
# Keys that say where and when a run was, and not what it is.
PLACES = re.compile(
    r"(^|[._])(_wandb|hub_.*|wandb_.*|run_?(name|id)?|.*name_?dir|(output|log|logging|save|local|cache|default|ckpt|"
    r"checkpoint|rollout_data|validation_data)_?(local_)?(dir|path|file)|experiment_name|project(_name)?|group_name|"
    r"host(name)?|.*port|(save|test|eval|logging)_(freq|steps|strategy|total_limit)|.*time(stamp)?|date|resume.*|local_rank|process_index|pid|report_to|logger)([._]|$)"
)
SEED = re.compile(r"(?:^|[._/])seed$")
SEED_IN_NAME = re.compile(r"[-_. ]*(?<![a-zA-Z])(?:seed|s)[-_=]?(\d{1,9})(?![a-zA-Z\d])", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class FoundRun:
    """A run as it was found: what it is called, the folder that was asked for, its config, dotted, and its numbers."""

    name: str
    folder: str
    config: Mapping[str, Any]
    evidence: Evidence
    arm: str = ""
    seed: int | None = None


@dataclass(frozen=True, eq=False)
class OtherRuns:
    """A study of found runs; `notes` are sentences about what was found and how it was grouped, `lacks` what is not."""

    study: StudyRuns
    runs: list[FoundRun]
    notes: list[str] = field(default_factory=list)
    lacks: list[str] = field(default_factory=list)


# --- finding ---------------------------------------------------------------------------------------------------------


def find(framework: str | None, folders: Sequence[str]) -> tuple[list[FoundRun], list[str]]:
    """Every run in these folders (or files), of the framework or of any, and a sentence about files that are none.

    Raises RequestError where a folder is not there, or none of them holds a log.
    """
    runs, refused = [], list[str]()
    for folder in dict.fromkeys(folders):
        root = Path(folder)
        if not root.exists():
            raise RequestError(f"FOLDER={folder} is not there")
        files = [root] if root.is_file() else list(islice(root.rglob("*"), MOST_FILES + 1))
        if len(files) > MOST_FILES:
            raise RequestError(
                f"FOLDER={folder} holds more than {MOST_FILES} files and folders: give folders below it, one by one"
            )
        logs = Counter(file.parent for file in files if _is_log(file))
        for name, log in _logs(root, sorted(files)):
            try:
                evidence = read_run(log) if log.is_dir() else read_log(framework, log)
            except RequestError as refusal:
                refused.append(str(refusal))
                continue
            beside = _config_beside(root, log, logs)
            if framework not in (None, evidence.framework):
                refused.append(f"FILE={name} is the folder of a run of {evidence.framework}")
                continue
            config = evidence.settings if log.is_dir() else {**evidence.config, **beside}
            runs.append(FoundRun(printable(name), folder, dict(config), evidence))
    if not runs:
        why = f": {refused[0]}" if refused else ": no trainer_state.json, console's output, .csv or .jsonl is there"
        more = f" ({count(len(refused) - 1, 'file')} more like it)" if len(refused) > 1 else ""
        raise RequestError(f"FOLDER={listing(list(folders), 3)} holds no log of a run{why}{more}")
    notes = [f"{count(len(refused), 'file')} left out, the first because {refused[0]}"] if refused else []
    return runs, notes


def only_run(framework: str | None, folder: str) -> Evidence:
    """The evidence of the one run that a folder holds, such as a trainer's with its checkpoints.

    Raises RequestError where it holds none that can be read, or several.
    """
    runs, _ = find(framework, [folder])
    if len(runs) > 1:
        names = listing([str(Path(folder, run.name)) for run in runs], 4)
        raise RequestError(
            f"FOLDER={folder} holds {len(runs)} runs: `grpolab diagnose` reads one of {names},"
            f" `grpolab report --from {runs[0].evidence.framework} {folder}` all of them"
        )
    return replace(runs[0].evidence, run=runs[0].name)


def _logs(root: Path, files: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """The logs among the files of a folder, each with the name of its run: of a trainer's checkpoints the last."""
    own = {file.parent for file in files if file.name == "journal.jsonl"}
    states: dict[Path, Path] = {}
    for file in files:
        if file.name == "trainer_state.json":
            is_checkpoint = file.parent.name.startswith("checkpoint-")
            run = file.parent.parent if is_checkpoint else file.parent
            states[run] = max(states.get(run, file), file, key=_progress)
    for folder in sorted(own | states.keys()):
        is_below = folder != root and folder.is_relative_to(root)  # what holds a checkpoint is above, if that was named
        name = str(folder.relative_to(root)) if is_below else folder.resolve().name
        yield name, folder if folder in own else states[folder]
    taken = own | states.keys()
    for file in files:
        if _is_log(file) and taken.isdisjoint((file.parent, *file.parent.parents)):
            yield (file.stem if file == root else str(file.relative_to(root).with_suffix(""))), file


def _is_log(file: Path) -> bool:
    """Whether a file may be one, by its name; a trainer_state.json is known before."""
    return file.suffix in LOGS and file.name not in {*CONFIGS, *NO_RUN, "trainer_state.json"} and file.is_file()


def _progress(state: Path) -> float:
    """How late in its run a trainer_state.json was written; that beside the checkpoints is the last."""
    step = state.parent.name.removeprefix("checkpoint-")
    return float(step) if step.isdecimal() and state.parent.name.startswith("checkpoint-") else np.inf


def _config_beside(root: Path, log: Path, logs: Mapping[Path, int]) -> dict[str, Any]:
    """The config that lies beside a log, dotted: under the log's name, or under one of CONFIGS; a model's is none.

    `logs`: how many a folder has.
    """
    folder = log.parent.parent if log.parent.name.startswith("checkpoint-") else log.parent
    is_alone = log.name == "trainer_state.json" or logs[folder] == 1
    names = [f"{log.stem}{end}" for end in (".yaml", ".yml", ".json") if end != log.suffix]
    for name in [*names, *(CONFIGS if is_alone and not root.is_file() else ())]:
        try:
            config = read_mapping(str(folder / name))
        except RequestError:
            continue
        if not {"architectures", "model_type", "log_history"} & config.keys():
            wandb = {
                key: value["value"] for key, value in config.items() if isinstance(value, dict) and "value" in value
            }
            return dict(dotted(config | wandb))
    return {}


# --- arms and seeds --------------------------------------------------------------------------------------------------


def group(runs: Sequence[FoundRun], told: Mapping[str, Sequence[str]]) -> tuple[list[FoundRun], bool, list[str]]:
    """The runs with their arm and seed; whether the arms are paired by seed; how it was decided, in sentences.

    `told`: arm -> its folders. Else arms are what differs between the configs (seeds and places apart), what is left of
    the names without their seeds, or the folders that were asked for.
    """
    arms, how = _arms(runs, told)
    seeds = [_seed(run) for run in runs]
    twice = [pair for pair, n in Counter(zip(arms, seeds, strict=True)).items() if n > 1 and pair[1] is not None]
    notes = [f"arms: {how}"]
    of_arm: dict[str, set[int | None]] = {}
    for arm, seed in zip(arms, seeds, strict=True):
        of_arm.setdefault(arm, set()).add(seed)
    per_arm = [*of_arm.values()]
    paired = False
    if None in seeds:
        notes.append(
            f"unpaired: {count(seeds.count(None), 'run')} of {len(runs)} do not say their seed; they are numbered"
        )
    elif twice:
        notes.append(f"unpaired: {twice[0][0]} has several runs with seed {twice[0][1]}; they are numbered")
    elif len(per_arm) > 1 and min(len(per_arm[0] & other) for other in per_arm[1:]) < 2:
        notes.append("unpaired: the arms do not share two seeds")
    else:
        paired = True
        notes += ["paired by seed"] if len(per_arm) > 1 else []
    placed, taken = [], Counter[str]()
    are_known = not twice and None not in seeds
    for run, arm, seed in zip(runs, arms, seeds, strict=True):
        placed.append(replace(run, arm=arm, seed=seed if are_known else taken[arm]))
        taken[arm] += 1
    return placed, paired, notes


def _arms(runs: Sequence[FoundRun], told: Mapping[str, Sequence[str]]) -> tuple[list[str], str]:
    """The arm of each run, and what told it."""
    if told:
        of_folder = {folder: arm for arm, folders in told.items() for folder in folders}
        return [of_folder[run.folder] for run in runs], "as told by --arm"
    named = [SEED_IN_NAME.sub("", run.name).strip("-_./ ") or Path(run.folder).name for run in runs]
    ways = []
    if all(run.config for run in runs) and (by_config := _by_config([run.config for run in runs])):
        ways.append((by_config, "what differs between the configs, seeds and places apart"))
    if all(SEED_IN_NAME.search(run.name) for run in runs):
        ways.append((named, "the names of the runs without their seeds"))
    folders = [Path(run.folder).name or run.folder for run in runs]
    is_told_apart = len(set(folders)) == len({run.folder for run in runs})
    by_folder = folders if is_told_apart else [run.folder for run in runs]
    ways.append((by_folder, "the folders that were named" if len(set(by_folder)) > 1 else "all runs are one"))
    # A key that differs in every run (an id that nobody knows here) must not make an arm of each.
    return next((way for way in ways if len(set(way[0])) < len(runs)), ways[0])


def _by_config(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """`beta=0.04, epsilon=0.2` of what differs for each config; empty where nothing does."""
    keys = sorted({key for config in configs for key in config if not PLACES.search(key) and not SEED.search(key)})
    differ = [key for key in keys if len({str(config.get(key)) for config in configs}) > 1]
    last = Counter(key.rpartition(".")[2] for key in differ)
    names = {key: key if last[key.rpartition(".")[2]] > 1 else key.rpartition(".")[2] for key in differ}
    words = [", ".join(f"{names[key]}={printable(str(config.get(key))[:40])}" for key in differ) for config in configs]
    return words if differ else []


def _seed(run: FoundRun) -> int | None:
    """By its config, else by its name."""
    for key in sorted((key for key in run.config if SEED.search(key)), key=len):
        if str(run.config[key]).isdecimal():
            return int(run.config[key])
    found = SEED_IN_NAME.findall(run.name)
    return int(found[-1]) if found else None


# --- a study ---------------------------------------------------------------------------------------------------------


def study(
    results: Results, name: str, found: Iterable[FoundRun], told: Mapping[str, Sequence[str]], baseline: str | None
) -> OtherRuns:
    """The study that these runs are.

    Raises RequestError where they are of several frameworks, or `baseline` is no arm.
    """
    runs, paired, notes = group(list(found), told)
    frameworks = Counter(run.evidence.framework for run in runs)
    if len(frameworks) > 1:
        kinds = " and ".join(f"{framework} ({count(n, 'run')})" for framework, n in frameworks.items())
        raise RequestError(f"the runs are of {kinds}, whose numbers are defined differently: report each by itself")
    arms = sorted(dict.fromkeys(run.arm for run in runs)) if not told else list(dict.fromkeys(run.arm for run in runs))
    baseline = baseline or arms[0]
    if baseline not in arms:
        raise RequestError(f"--baseline={baseline} is none of the arms: {listing(arms)}")
    arms = [baseline, *(arm for arm in arms if arm != baseline)]
    tables = {name: [_of(run, name) for run in runs] for name in TABLES.values()}
    plan = {
        "study": name,
        "question": f"{count(len(runs), 'run')} of {next(iter(frameworks))}, as their logs show them.",
        "includes": [],
        "compare": "arm",
        "baseline": baseline,
        "primary_metric": SCORE,
        "paired": paired,
        "factors": {"arm": arms},
        "placebo": [],
        "hypotheses": [],
        "figures": FIGURES if len(arms) > 1 else [figure for figure in FIGURES if figure != "F27"],
        "stability": {"collapse_drop": least_fall([run.evidence.rollouts for run in runs])},
        "seeds": sorted({run.seed for run in runs if run.seed is not None}),
        "cells": [_cell(run) for run in runs],
    }
    outcomes = pd.DataFrame([{"signature": _signature(run), "outcome": _outcome(run)} for run in runs])
    none = pd.DataFrame(columns=["signature", *POSITIONS])
    frames = {name: pd.concat(frames, ignore_index=True) for name, frames in tables.items()}
    read = study_of(
        results,
        plan,
        {
            "outcomes": outcomes.assign(evaluation_items=np.nan, hardware=None),
            NUMBERS: pd.DataFrame(columns=["signature"]),
            **{table: frame if "signature" in frame else none for table, frame in frames.items()},
            "evaluations": _evaluations(runs),
            "histograms": none,
            "timings": none,
        },
    )
    return OtherRuns(read, runs, notes, list(_lacks(runs)))


def _signature(run: FoundRun) -> str:
    return f"{run.folder}: {run.name}"


def _cell(run: FoundRun) -> dict[str, Any]:
    unknown = dict.fromkeys(("num_iterations", "num_minibatches", "max_grad_norm", "num_generations"), np.nan)
    words = {"task": "unknown", "kernel": "unknown", "importance_sampling_level": "unknown"}
    return {
        "variant": run.arm,
        "levels": {"arm": run.arm},
        "seed": run.seed,
        "signature": _signature(run),
        "rollout_steps": _last_step(run),
        "settings": {**unknown, **words, **run.evidence.settings},
    }


def _of(run: FoundRun, table: str) -> pd.DataFrame:
    """The rows of a run's table, under its signature."""
    rows: pd.DataFrame = getattr(run.evidence, table)
    return rows.assign(signature=_signature(run)) if len(rows) else rows


def _evaluations(runs: Sequence[FoundRun]) -> pd.DataFrame:
    """The pieces of each run's log, in the place of evaluations."""
    rows = [(*piece, _signature(run)) for run in runs for piece in pieces(run.evidence.rollouts)]
    return pd.DataFrame(rows, columns=["rollout_step", SCORE, "signature"]).astype({SCORE: float})


def _last_step(run: FoundRun) -> int:
    tables = (run.evidence.updates, run.evidence.rollouts)
    return max((int(table["rollout_step"].max()) for table in tables if len(table)), default=0)


def _outcome(run: FoundRun) -> str:
    """Diverged: loss or gradient is not finite in the last row that a log has. Whether it was to go on, none says."""
    odd = [step for name in ("loss", "grad_norm") for step in run.evidence.not_finite.get(name, ())]
    if not len(run.evidence.updates) and not len(run.evidence.rollouts):
        return MISSING
    return DIVERGED if odd and max(odd) >= _last_step(run) else COMPLETED


def _lacks(runs: Sequence[FoundRun]) -> Iterator[str]:
    """What a reader would look for and these logs do not hold."""
    yield (
        "held-out evaluations: the score is the training reward, whose noise is that of a batch, and a policy that"
        " learns to please the reward alone scores well"
    )
    theirs = {ours: name for name, ours in reversed(LOG_NAMES.get(runs[0].evidence.framework, {}).items())}
    for metric in SHOWN:
        without = [
            run for run in runs if not any(len(column(getattr(run.evidence, name), metric)) for name in TABLES.values())
        ]
        if without:
            called = f" (`{theirs[metric]}`)" if metric in theirs else ""
            which = "no log" if len(without) == len(runs) else f"{len(runs) - len(without)} of {len(runs)} logs only"
            yield f"`{metric}`{called} is in {which}"
    steps = {run.name: _last_step(run) for run in runs}
    longest = max(steps.values())
    short = [f"{name} ({step})" for name, step in steps.items() if step < SHORT * longest]
    if short:
        yield (
            f"{count(len(short), 'log')} of {len(runs)} did not get to the longest one's step {longest}:"
            f" {listing(short, 3)}; scores are of different amounts of training there"
        )
    if going := [run.name for run in runs if run.evidence.state.startswith(("still going", "unfinished"))]:
        yield f"the end of {count(len(going), 'run')}: {listing(going, 3)} may still train"
    few = [arm for arm, n in Counter(run.arm for run in runs).items() if n < 2]
    if few:
        yield f"a second seed of {listing(few, 4)}: one run has no interval, and decides nothing"
    if damaged := [run.name for run in runs if any("half written" in sentence for sentence in run.evidence.unknown)]:
        yield f"lines that cannot be read, half written or cut off: {listing(damaged, 4)}"


def write(
    results: Results,
    name: str,
    found: Sequence[FoundRun],
    notes: Sequence[str],
    told: Mapping[str, Sequence[str]],
    baseline: str | None,
    output: Path,
) -> Path:
    """The report of found runs in `output`: the path of report.md. Raises RequestError as `study`."""
    from grpolab.report.page import write_found  # here: who only finds runs need not wait for what draws

    read = study(results, name, found, told, baseline)
    drop = f"a fall of {number(read.study.thresholds.collapse_drop)} or more may be a collapse: less is noise"
    said = "\n".join(f"- {note}" for note in (*notes, *read.notes, f"{SCORED}; {drop}"))
    runs = f"## The runs that were found\n\n{said}\n\n{markdown_table(_table(read))}"
    # As the study sees them: by the training reward, and the fall that is more than noise in all of its runs.
    as_seen = {
        _signature(run): replace(run.evidence, thresholds=read.study.thresholds, metric=SCORE) for run in read.runs
    }
    causes = {signature: examine(run).findings for signature, run in as_seen.items()}
    diagnosis = section.write([*section.examined(read.study, causes)])
    return write_found(read.study, output, runs, read.lacks, diagnosis)


def _table(found: OtherRuns) -> pd.DataFrame:
    """The runs as they were grouped, for a reader."""
    place = {arm: number for number, arm in enumerate(found.study.arms)}
    rows = [
        {
            "arm": run.arm,
            "seed": run.seed,
            "run": f"{run.folder}: {run.name}",
            "rows": len(run.evidence.rollouts) or len(run.evidence.updates),
            "last step": _last_step(run),
            "last reward": number([np.nan, *(reward for _, reward in pieces(run.evidence.rollouts))][-1]),
        }
        for run in sorted(found.runs, key=lambda run: (place[run.arm], run.seed or 0))
    ]
    return pd.DataFrame(rows)
