"""Single runs: completions with reward, advantage and clipped ratios (`grpolab show`), two runs compared (`diff`)."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from grpolab.errors import RequestError
from grpolab.identity import SIGNATURE_LENGTH, dotted, short_hash
from grpolab.meanings import METRICS
from grpolab.paths import Results
from grpolab.records import outcome_or_damage, read_provenance, read_settings
from grpolab.report.journals import read_samples
from grpolab.report.plans import read_plan
from grpolab.report.text import NONE, count, estimate, number, p_equals, signed
from grpolab.run_files import Record
from grpolab.vocabulary import DAMAGED

WIDTH = 110
CLIP_MARKS = {"low": "v", "high": "^", "": ""}
_OF_COMPLETION = ["prompt_index", "prompt", "sample", "completion", "reward", "advantage"]
_OF_TOKEN = ["token", "ratio", "clipped"]
UNITS = {"sequence": "sequence", "sequence_token": "sequence", "segment": "segment"}  # by ratio level above the token


def find_run(results: Results, name: str) -> Path:
    """Return the run folder for a signature, its first digits, or a path. Raises RequestError if there is none."""
    if os.path.isfile(os.path.join(name, "settings.yaml")):  # False too for a name that is too long for a path
        return Path(name).resolve()
    known = {file.parent.name: file.parent for file in results.runs.glob("*/settings.yaml")}
    names = sorted(run for run in known if name and run.startswith(name))
    if len(names) == 1:
        return known[names[0]]
    if names:
        raise RequestError(f"run {name} is not one but {len(names)}: {', '.join(names[:6])}")
    raise RequestError(
        f"run {name} is unknown in {results.runs}: give a signature ({SIGNATURE_LENGTH} hex digits, or as many as are"
        " enough) or a run folder; `grpolab status --json` lists them"
    )


def show(results: Results, name: str, step: int | None, prompts: int) -> tuple[Record, str]:
    """Describe completions of a rollout step: reward parts, advantage, and the clipped ratio, marked if it was clipped.

    As a record for a program, and in words.

    The ratio is per token, or per sequence or segment with its tokens' ratios after it. `prompts`: how many prompts;
    `step` None: the last step that was kept. Raises RequestError.
    """
    folder = find_run(results, name)
    kept = sorted(int(file.stem.removeprefix("step_")) for file in folder.glob("samples/step_*.parquet"))
    if not kept:
        raise RequestError(f"run {name} kept no completions: diagnostics.samples_every was 0, or it has not begun")
    step, steps = kept[-1] if step is None else step, ", ".join(map(str, kept))
    if step not in kept:
        raise RequestError(f"--step {step} was not kept: have {steps}")
    level = str(read_settings(folder).get("importance_sampling_level"))
    lines = [f"run {folder.name}, rollout step {step} (kept: {steps})"]
    lines += [f"{UNITS.get(level, 'token')}:ratio in the last pass over the batch; ^ clipped above, v clipped below"]
    if level in UNITS:
        lines.append("it is the geometric mean of its tokens' ratios, which stand beside it and are not clipped")
    tokens, completions = read_samples(folder / "samples" / f"step_{step:06d}.parquet"), list[Record]()
    for _, of_prompt in tokens[tokens["prompt_index"] < prompts].groupby("prompt_index"):
        lines.append(f"\nprompt {of_prompt['prompt'].iloc[0]!r}")
        for sample, rows in of_prompt.groupby("sample"):
            first = rows.iloc[0]
            rewards = {key.removeprefix("reward_"): first[key] for key in rows if key.startswith("reward_")}
            of_whole = {key: first[key] for key in _OF_COMPLETION}
            completions.append(of_whole | {"rewards": rewards, "tokens": rows[_OF_TOKEN].to_dict("records")})
            parts = ", ".join(f"{key} {number(value)}" for key, value in rewards.items())
            scores = f"reward {number(first['reward'])} ({parts}), advantage {signed(first['advantage'])}"
            lines.append(f"  {sample}: {first['completion']!r}  {scores}")
            for text in _ratios(rows, level):
                lines.append(textwrap.fill(text, WIDTH, initial_indent=" " * 5, subsequent_indent=" " * 5))
    record = {"run": folder.name, "step": step, "kept": kept, "ratio": UNITS.get(level, "token")}
    return record | {"completions": completions}, "\n".join(lines)


def _ratios(rows: pd.DataFrame, level: str) -> Iterator[str]:
    """Yield the ratios of one completion: all of its tokens, or each sequence or segment with its tokens."""
    segment = (rows["position"].diff() > 1).cumsum() if level == "segment" else pd.Series(0, rows.index)
    for _, unit in rows.groupby(segment):
        marks = unit["clipped"].map(CLIP_MARKS)
        is_shared = level in UNITS and marks.nunique() == 1  # tokens may differ in their advantages
        shown = zip(unit["token"], unit["ratio"], marks, strict=True)
        tokens = "  ".join(f"{token}:{ratio:.3f}{'' if is_shared else mark}" for token, ratio, mark in shown)
        if level in UNITS:
            with np.errstate(divide="ignore"):  # a ratio of 0
                mean = np.exp(np.log(unit["ratio"].to_numpy(dtype=np.float64)).mean())
            tokens = f"{UNITS[level]}:{mean:.5f}{marks.iloc[0] if is_shared else ''}  of tokens: {tokens}"
        yield tokens


def diff(results: Results, first: str, second: str) -> tuple[Record, str]:
    """Describe the settings and final metrics in which two runs differ, and their effect in studies that have both.

    As a record for a program, and in words. Raises RequestError if a name is no run.
    """
    folders = [find_run(results, name) for name in (first, second)]
    names = [folder.name for folder in folders]
    if folders[0] == folders[1]:
        return {"runs": names}, f"{first} and {second} are the same run: {names[0]}"
    settings = [dict(dotted(read_settings(folder))) for folder in folders]
    for of_run, folder in zip(settings, folders, strict=True):
        content = read_provenance(folder).get("content") or {}  # hashes of the data and code files that settings name
        of_run |= {f"content of {key}": short_hash(value) for key, value in content.items()}
    outcomes = [outcome_or_damage(folder) or {} for folder in folders]
    finals = [outcome.get("final") or {} for outcome in outcomes]
    pairs = {key: [of_run.get(key, NONE) for of_run in settings] for key in settings[0] | settings[1]}
    differ = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    ends = [outcome.get("outcome", NONE) for outcome in outcomes]
    measured = [metric for metric in METRICS if any(final.get(metric) is not None for final in finals)]
    rows = [("setting", *names), *((key, *pair) for key, pair in differ.items()), ("\noutcome", *ends)]
    rows += [(metric, *(number(final.get(metric)) for final in finals)) for metric in measured]
    lines = [f"{key:<34} {value!s:<20} {other}" for key, value, other in rows]
    damage = [str(outcome["reason"]) for outcome in outcomes if outcome.get("outcome") == DAMAGED]
    effects = list(_paired_effects(results, *names))
    said = [
        f"\nstudy {effect['study']}: final_score of {effect['of']} minus {effect['minus']}, paired over"
        f" {count(effect['n'], 'seed')}: {estimate(effect['effect'], effect['low'], effect['high'], signed)},"
        f" {p_equals(effect['p'])}"
        for effect in effects
    ]
    final = {metric: [of_run.get(metric) for of_run in finals] for metric in measured}
    record = {"runs": names, "settings": differ, "outcomes": ends, "final": final, "effects": effects}
    return record, "\n".join([*lines, *damage, *said])


def _paired_effects(results: Results, first: str, second: str) -> Iterator[Record]:
    """Yield the paired difference of final scores in each study that has both runs, as different variants."""
    # Imported here, because `show` needs no statistics.
    from grpolab.report.load import read_runs, study_of
    from grpolab.report.measures import at, measure
    from grpolab.report.statistics.tests import paired_difference

    for file in sorted(results.studies.glob("*/plan.json")):
        plan = read_plan(file)
        variants = ({cell["variant"] for cell in plan["cells"] if cell["signature"] == run} for run in (first, second))
        for left, right in product(*variants):
            if left == right:
                continue
            cells = [cell for cell in plan["cells"] if cell["variant"] in (left, right)]
            runs = read_runs(results, {cell["signature"] for cell in cells})
            study = study_of(results, {**plan, "cells": cells}, runs)
            scores = measure(study, "final_score")
            place = study.cells.drop_duplicates("variant").set_index("variant")[["facet", "arm"]].T
            effect = paired_difference(at(scores, *place[right]), at(scores, *place[left]))
            numbers = dict(zip(("effect", "low", "high"), effect[:3], strict=True))
            yield {"study": plan["study"], "of": right, "minus": left, **numbers, "n": effect.n, "p": effect.p}
