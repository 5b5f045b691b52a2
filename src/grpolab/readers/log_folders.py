"""Find the logs of runs in folders that other programs left, and group the runs into arms and seeds."""

from __future__ import annotations

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from grpolab.bounded import read_mapping
from grpolab.errors import RequestError, listing, near_matches, printable
from grpolab.identity import dotted
from grpolab.readers.log_tables import runs_of_chart

LOGS = {".log", ".txt", ".out", ".jsonl", ".json", ".csv", ".tsv", ".ipynb"}  # a page must be named: most are prose
CONFIGS = ("config.yaml", "config.json", "args.json", "training_args.json", ".hydra/config.yaml")
NO_LOGS = {"trainer_state.json", "timing.jsonl", "wandb-summary.json", "wandb-metadata.json", "requirements.txt"}
NO_LOGS.update(CONFIGS)
MOST_FILES = 50_000  # with folders
# Config keys about places, times and logging, whose differences make no arm.
PLACES = re.compile(
    r"(^|[._])(_wandb|hub_.*|wandb_.*|run_?(name|id)?|.*name_?dir|(output|log|logging|save|local|cache|default|ckpt|"
    r"checkpoint|rollout_data|validation_data)_?(local_)?(dir|path|file)|experiment_name|project(_name)?|group_name|"
    r"host(name)?|.*port|(save|test|eval|logging)_(freq|steps|strategy|total_limit)|.*time(stamp)?|date|resume.*|local_rank|process_index|pid|report_to|logger)([._]|$)"
)
SEED = re.compile(r"(?:^|[._/])seed$")
SEED_IN_NAME = re.compile(r"[-_. ]*(?<![a-zA-Z])(?:seed|s)[-_=]?(\d{1,9})(?![a-zA-Z\d])", re.IGNORECASE)


@dataclass(frozen=True)
class FoundLog:
    """A run's log, or its run folder if it is one of ours."""

    name: str  # of the run
    folder: str  # that was asked for
    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)  # beside the log, dotted; empty if there is none
    config_file: Path | None = None
    charts: tuple[Path, ...] = ()  # CSV files with columns of this run and of others, if it is read from such


def find_all(folders: Iterable[str]) -> list[FoundLog]:
    """Return the logs in folders, with the charts of a run joined. Raises RequestError if there is none."""
    logs = list(join_charts(log for folder in dict.fromkeys(folders) for log in find_logs(folder)))
    if not logs:
        why = "no trainer_state.json, console's output, .csv or .jsonl is there"
        raise RequestError(f"FOLDER={listing(list(folders), 3)} holds no log of a run: {why}")
    return logs


def find_logs(folder: str) -> Iterator[FoundLog]:
    """Yield the logs in a folder, or the one that a file is; of checkpoints the last one's. Raises RequestError."""
    root = Path(folder)
    if not root.exists():
        raise RequestError(f"FOLDER={folder} is not there{near_files(root)}")
    files = [root] if root.is_file() else sorted(islice(root.rglob("*"), MOST_FILES + 1))
    if len(files) > MOST_FILES:
        raise RequestError(
            f"FOLDER={folder} holds more than {MOST_FILES} files and folders: give folders below it, one by one"
        )
    run_folders = {file.parent for file in files if file.name == "journal.jsonl"}
    states: dict[Path, Path] = {}  # run's folder -> its last trainer_state.json
    for file in files:
        if file.name == "trainer_state.json":
            run = file.parent.parent if _is_checkpoint(file) else file.parent
            states[run] = max(states.get(run, file), file, key=_step_of_checkpoint)
    for run in sorted(run_folders | states.keys()):
        is_below = run != root and run.is_relative_to(root)  # the run of a checkpoint that was asked for is above
        name = str(run.relative_to(root)) if is_below else run.resolve().name
        is_ours = run in run_folders
        yield FoundLog(name, folder, run) if is_ours else FoundLog(name, folder, states[run], *find_config(states[run]))
    logs = [file for file in files if file == root or _is_log(file)]
    beside = Counter(log.parent for log in logs)
    taken = run_folders | states.keys()
    for log in logs:
        if not taken.isdisjoint((log.parent, *log.parent.parents)):
            continue
        of_chart = runs_of_chart(log) if log.suffix == ".csv" else []
        yield from (FoundLog(run, folder, log, charts=(log,)) for run in of_chart)
        if not of_chart:
            name = log.stem if log == root else str(log.relative_to(root).with_suffix(""))
            is_alone = beside[log.parent] == 1 if log != root else None
            yield FoundLog(name, folder, log, *find_config(log, is_alone))


def near_files(path: Path) -> str:
    """Return ' (did you mean log.jsonl?)' for a mistyped path, by the names in its folder."""
    return near_matches(path.name, os.listdir(path.parent) if path.parent.is_dir() else ())


def _is_log(file: Path) -> bool:
    return file.suffix in LOGS and file.name not in NO_LOGS and file.is_file()


def join_charts(logs: Iterable[FoundLog]) -> Iterator[FoundLog]:
    """Yield the logs, those last that are charts: of one run in several charts of a folder, one log."""
    joined: dict[tuple[Path, str], FoundLog] = {}
    for log in logs:
        key = log.path.parent, log.name
        if not log.charts:
            yield log
        elif key in joined:
            joined[key] = replace(joined[key], charts=(*joined[key].charts, *log.charts))
        else:
            joined[key] = log
    yield from joined.values()


def _is_checkpoint(state: Path) -> bool:
    return state.parent.name.startswith("checkpoint-")


def _step_of_checkpoint(state: Path) -> float:
    """Return the step of a trainer_state.json; infinity for the one beside the checkpoints, which is the last."""
    step = state.parent.name.removeprefix("checkpoint-")
    return float(step) if step.isdecimal() and _is_checkpoint(state) else math.inf


def find_config(
    log: Path, is_alone: bool | None = None, given: Path | None = None
) -> tuple[dict[str, Any], Path | None]:
    """Return the config with the log's name or, if the log is alone, with a usual name; and its file.

    A model's does not count. `is_alone`: no other log lies in the folder; None: look. A trainer_state.json always is.
    `given` is taken as it is. Raises RequestError if that is no config.
    """
    if given:
        return _read_config(given), given
    folder = log.parent.parent if _is_checkpoint(log) else log.parent
    if is_alone is None:
        is_alone = log.name == "trainer_state.json" or {log, *filter(_is_log, folder.iterdir())} == {log}
    names = [f"{log.stem}{end}" for end in (".yaml", ".yml", ".json") if end != log.suffix]
    for file in (folder / name for name in (*names, *(CONFIGS if is_alone else ()))):
        with suppress(RequestError):
            config = _read_config(file)
            if not {"architectures", "model_type", "log_history"} & config.keys():
                return config, file
    return {}, None


def _read_config(file: Path) -> dict[str, Any]:
    """Return the values in a config, dotted, without what W&B puts around them. Raises RequestError."""
    config = read_mapping(str(file))
    wandb = {key: part["value"] for key, part in config.items() if isinstance(part, dict) and "value" in part}
    return dict(dotted(config | wandb))


def group_runs(
    runs: Sequence[FoundLog], folders_of_arms: Mapping[str, Sequence[str]]
) -> tuple[list[str], list[int], bool, list[str]]:
    """Return each run's arm and seed, whether arms are paired by seed, and how that was decided, in sentences.

    Without `folders_of_arms`, arms are what differs between the configs (seeds and places apart), or the names without
    their seeds, or the first folders below the one that was asked for, or the folders that were.
    Runs whose seeds do not tell them apart are numbered within an arm.
    """
    arms, how = _choose_arms(runs, folders_of_arms)
    seeds = [_seed_of(run) for run in runs]
    seeds_of, numbered = defaultdict[str, list[int | None]](list), list[int]()
    for arm, seed in zip(arms, seeds, strict=True):
        numbered.append(len(seeds_of[arm]))
        seeds_of[arm].append(seed)
    first, *others = map(set, seeds_of.values())
    known = [seed for seed in seeds if seed is not None]
    twice, why = [pair for pair, n in Counter(zip(arms, seeds, strict=True)).items() if n > 1], ""
    if len(known) < len(runs):
        known, why = numbered, f"{len(runs) - len(known)} of {len(runs)} runs do not say their seed; they are numbered"
    elif twice:
        known, why = numbered, f"{twice[0][0]} has several runs with seed {twice[0][1]}; they are numbered"
    elif any(len(first & other) < 2 for other in others):
        why = "the arms do not share two seeds"
    pairing = [f"unpaired: {why}"] if why else ["paired by seed"] if others else []
    return arms, known, not why, [f"arms: {how}", *pairing]


def _choose_arms(runs: Sequence[FoundLog], folders_of_arms: Mapping[str, Sequence[str]]) -> tuple[list[str], str]:
    if folders_of_arms:
        arm_of = {folder: arm for arm, folders in folders_of_arms.items() for folder in folders}
        return [arm_of[run.folder] for run in runs], "as told by --arm"
    ways = []
    if all(run.config for run in runs) and (by_config := _name_differences([run.config for run in runs])):
        ways.append((by_config, "what differs between the configs, seeds and places apart"))
    if all(SEED_IN_NAME.search(run.name) for run in runs):
        bare = [re.sub("/+", "/", SEED_IN_NAME.sub("", run.name)).strip("-_./ ") for run in runs]
        by_name = [name or Path(run.folder).name for name, run in zip(bare, runs, strict=True)]
        ways.append((by_name, "the names of the runs without their seeds"))
    below = [Path(run.name).parts[0] for run in runs]
    if len({run.folder for run in runs}) == 1 < len(set(below)) and all("/" in run.name for run in runs):
        ways.append((below, f"the first folders below {printable(runs[0].folder)}"))
    folders = [Path(run.folder).name or run.folder for run in runs]
    if len(set(folders)) < len({run.folder for run in runs}):
        folders = [run.folder for run in runs]
    ways.append((folders, "the folders that were named" if len(set(folders)) > 1 else "all runs are one"))
    # A key that differs in every run (such as an id that PLACES does not know) must not make an arm of each.
    return next((way for way in ways if len(set(way[0])) < len(runs)), ways[0])


def _name_differences(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return for each config the values that differ, as `beta=0.04, epsilon=0.2`; nothing if all are equal."""
    keys = sorted({key for config in configs for key in config if not PLACES.search(key) and not SEED.search(key)})
    differ = [key for key in keys if len({str(config.get(key)) for config in configs}) > 1]
    last = {key: key.rpartition(".")[2] for key in differ}
    times = Counter(last.values())
    short = {key: key if times[last[key]] > 1 else last[key] for key in differ}
    words = [", ".join(f"{short[key]}={printable(str(config.get(key))[:40])}" for key in differ) for config in configs]
    return words if differ else []


def _seed_of(run: FoundLog) -> int | None:
    for key in sorted((key for key in run.config if SEED.search(key)), key=len):
        if str(run.config[key]).isdecimal():
            return int(run.config[key])
    in_name = SEED_IN_NAME.findall(run.name)
    return int(in_name[-1]) if in_name else None
