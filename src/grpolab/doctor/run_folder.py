"""Read a run folder as evidence; of a damaged one, the part that is intact."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from grpolab.doctor.evidence import TABLES, Evidence, Weights
from grpolab.errors import Damaged, RequestError
from grpolab.identity import dotted
from grpolab.paths import Results, read_json
from grpolab.records import check_policy, read_lines, read_provenance, read_result, read_settings
from grpolab.report.journals import make_frame, read_samples
from grpolab.report.text import count
from grpolab.run_files import TIMING, WEIGHTS, read_outcome

Content = TypeVar("Content")

PLANTED = ("fault", "reward.function")  # settings that name a planted fault, hidden so that the doctor must find it
MOST_SAMPLES = 12  # tables of completions that are read, evenly spread over the run
SAMPLE_COLUMNS = ["prompt_index", "sample", "reward", "advantage", "position", "old_log_prob", "ratio", "clipped"]
MOST_WEIGHTS = 1_000_000  # weights of a tensor that are compared, so that a large model is read quickly


def read_run(folder: Path) -> Evidence:
    """Return the evidence in a run folder. Raises RequestError if its settings cannot be read."""
    try:
        if not (settings := dict(dotted(read_settings(folder)))):
            raise Damaged(f"{folder / 'settings.yaml'} is not there, or says nothing")
    except Damaged as wrong:
        raise RequestError(f"run {folder.name}: settings.yaml cannot be read: {wrong}") from wrong
    damages: dict[str, None] = {}  # sentences, each once

    def read(content: Callable[..., Content], *arguments: Any) -> Content | None:
        try:
            return content(folder, *arguments)
        except Damaged as damage:
            damages[str(damage)] = None
            return None

    if outcome := read(read_outcome):
        read(read_result)
    tables, torn, not_finite = _read_journal(folder / "journal.jsonl", is_running=outcome is None)
    samples, unreadable = _read_kept_samples(folder)
    provenance = read(read_provenance) or {}
    weights = read(_read_final_weights, outcome, provenance.get("warm_start") or {}) if outcome else None
    return Evidence(
        run=folder.name,
        state=_describe_state(folder, outcome, len(tables["rollouts"]), bool(damages)),
        settings={key: value for key, value in settings.items() if key not in PLANTED},
        samples=samples,
        weights=weights,
        unknown=(*damages, *torn, *unreadable, *([] if weights else ["the weights: they are kept when a run ends"])),
        not_finite=not_finite,
        framework=(provenance.get("framework") or {}).get("name", "grpolab"),  # `RunFolder` writes one for TRL
        seconds=_read_seconds(folder),
        **tables,
    )


def _read_seconds(folder: Path) -> float:
    times = list[Any]()
    with suppress(Damaged):  # `read_result` says so of a run that has ended
        times = [line.get("seconds/elapsed") for line in read_lines(folder / TIMING)]
    return max((time for time in times if isinstance(time, int | float)), default=np.nan)


def _describe_state(folder: Path, outcome: Mapping[str, Any] | None, rollouts: int, is_damaged: bool) -> str:
    steps, beat = count(rollouts, "rollout step"), read_json(folder / "running.json")
    damage = "; damaged: its files are not those that it ended with, and no report counts it" if is_damaged else ""
    if outcome:
        reason = f": {outcome['reason']}" if outcome.get("reason") else ""
        return f"{outcome.get('outcome')} after {steps}{reason}{damage}"
    if beat is None:
        return f"unfinished after {steps}: this is a diagnosis of what there is{damage}"
    return f"still going, after {steps} of {beat.get('rollout_steps')}: this is a diagnosis so far{damage}"


def _read_journal(path: Path, is_running: bool) -> tuple[dict[str, pd.DataFrame], list[str], dict[str, list[int]]]:
    """Return the tables up to the first damaged line, what cannot be read, and the steps where a metric is not finite.

    `report/journals.py` reads journals faster, and refuses a damaged one.
    """
    records: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES.values()}
    not_finite: dict[str, list[int]] = defaultdict(list)
    torn: list[str] = []
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        lines, torn = [], ["the journal: there is none"]
    for number, line in enumerate(lines, start=1):
        if is_running and number == len(lines) and not line.endswith(b"\n"):
            break  # it is being written
        try:
            record = json.loads(line)
            kind = record.pop("kind")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            torn = [f"the journal from line {number} of {len(lines)} on: the line is damaged"]
            break
        if kind in TABLES:
            records[TABLES[kind]].append(record)
            for name, value in record.items():
                if isinstance(value, str):  # "nan", "inf"
                    not_finite[name].append(int(record.get("rollout_step", 0)))
    try:
        return {name: make_frame(rows) for name, rows in records.items()}, torn, not_finite
    except Damaged as damage:
        return {name: make_frame([]) for name in records}, [str(damage)], {}


def _read_kept_samples(folder: Path) -> tuple[pd.DataFrame, list[str]]:
    """Return a table of the kept completions, a row per token with its `rollout_step`, and what cannot be read."""
    files = sorted(folder.glob("samples/step_*.parquet"))
    if not files:
        return pd.DataFrame(), ["advantages and single tokens: diagnostics.samples_every kept none"]
    frames, problems = [], []
    for file in sorted({files[round(place)] for place in np.linspace(0, len(files) - 1, MOST_SAMPLES)}):
        try:
            frame = read_samples(file, SAMPLE_COLUMNS)
            frames.append(frame.assign(rollout_step=int(file.stem.removeprefix("step_"))))
        except Damaged as damage:
            problems.append(str(damage))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(), problems


def _read_final_weights(folder: Path, outcome: Mapping[str, Any], warm_start: Mapping[str, Any]) -> Weights | None:
    """Compare a run's final weights with its warm start's. Raises Damaged if their hash is not the outcome's."""
    check_policy(folder, dict(outcome))
    signature = warm_start.get("signature")
    start = Results(folder.parents[1]).warm_start(signature) / WEIGHTS if signature else folder / "no warm start"
    return compare_weights(folder / WEIGHTS, start)


def compare_weights(end: Path, start: Path) -> Weights | None:
    """Compare the weights in `end` with those in `start`, if that exists; None if `end` cannot be read."""
    try:
        after = _read_tensors(end)
        before = _read_tensors(start) if start.is_file() else {}
    except (OSError, SafetensorError):
        return None
    changed = {name: values != before[name][1] for name, (_, values) in after.items() if name in before}
    values = np.concatenate([values for _, values in after.values()])
    return Weights(
        count=sum(size for size, _ in after.values()),
        on_grid=float(((values.view(np.uint32) & 0xFFFF) == 0).mean()),  # bfloat16 is the upper half of a float32
        moved=float(np.concatenate(list(changed.values())).mean()) if changed else np.nan,
        still=tuple(name for name, differs in changed.items() if not differs.any()),
    )


def _read_tensors(path: Path) -> dict[str, tuple[int, NDArray]]:
    """Return each tensor's number of weights, and the first of them, flat and in float32."""
    tensors = {}
    with safe_open(path, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118  (not a mapping)
            part = file.get_slice(name)
            shape = part.get_shape() or [1]
            rows = min(shape[0], max(1, MOST_WEIGHTS // max(1, int(np.prod(shape[1:])))))
            tensors[name] = int(np.prod(shape)), np.asarray(part[:rows], dtype=np.float32).ravel()
    return tensors
