"""Single runs: completions with reward, advantage and clipped ratios (`grpolab show`), two runs compared (`diff`)."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

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
from grpolab.vocabulary import DAMAGED

WIDTH = 110
CLIP_MARKS = {"low": "v", "high": "^", "": ""}
UNITS = {"sequence": "sequence", "sequence_token": "sequence", "segment": "segment"}  # by ratio level above the token


def find_run(results: Results, name: str) -> Path:
    """Return the run folder that a signature, the beginning of one, or a path names.

    Raises RequestError where there is none, or more than one.
    """
    if os.path.isfile(os.path.join(name, "settings.yaml")):  # False too where the name is too long for a path
        return Path(name).resolve()
    folders = sorted(file.parent for file in results.runs.glob("*/settings.yaml") if file.parent.name.startswith(name))
    if len(folders) == 1 and name:
        return folders[0]
    if folders and name:
        few = ", ".join(folder.name for folder in folders[:6])
        raise RequestError(f"run {name} is not one but {len(folders)}: {few}")
    raise RequestError(
        f"run {name} is unknown in {results.runs}: give a signature ({SIGNATURE_LENGTH} hex digits, or as many as are"
        " enough) or a run folder; `grpolab status --json` lists them"
    )


def show(results: Results, name: str, step: int | None, prompts: int) -> str:
    """Write the completions of a rollout step: reward parts, advantage, and the ratio that the clip saw with its mark.

    That ratio is each token's, or that of a sequence or segment, with the tokens' own beside it. Of the first `prompts`
    prompts; `step` None is the last step that was kept. Raises RequestError.
    """
    folder = find_run(results, name)
    kept = sorted(int(file.stem.removeprefix("step_")) for file in folder.glob("samples/step_*.parquet"))
    if not kept:
        raise RequestError(f"run {name} kept no completions: diagnostics.samples_every was 0, or it has not begun")
    step, steps = kept[-1] if step is None else step, ", ".join(map(str, kept))
    if step not in kept:
        raise RequestError(f"--step {step} was not kept: have {steps}")
    level = str(_settings_of(folder).get("importance_sampling_level"))
    legend = f"{UNITS.get(level, 'token')}:ratio in the last pass over the batch; ^ clipped above, v clipped below"
    lines = [f"run {folder.name}, rollout step {step} (kept: {steps})", legend]
    if level in UNITS:
        lines.append("it is the geometric mean of its tokens' ratios, which stand beside it and are not clipped")
    tokens = read_samples(folder / "samples" / f"step_{step:06d}.parquet")
    for _, of_prompt in tokens[tokens["prompt_index"] < prompts].groupby("prompt_index"):
        lines.append(f"\nprompt {of_prompt['prompt'].iloc[0]!r}")
        for sample, rows in of_prompt.groupby("sample"):
            first = rows.iloc[0]
            parts = [f"{key.removeprefix('reward_')} {number(first[key])}" for key in rows if key.startswith("reward_")]
            scores = f"reward {number(first['reward'])} ({', '.join(parts)}), advantage {signed(first['advantage'])}"
            lines.append(f"  {sample}: {first['completion']!r}  {scores}")
            for text in _ratios(rows, level):
                lines.append(textwrap.fill(text, WIDTH, initial_indent=" " * 5, subsequent_indent=" " * 5))
    return "\n".join(lines)


def _ratios(rows: pd.DataFrame, level: str) -> Iterator[str]:
    """Write the ratios of one completion: of its tokens, or of each sequence or segment with its tokens."""
    if level not in UNITS:
        yield "  ".join(f"{row.token}:{row.ratio:.3f}{CLIP_MARKS[row.clipped]}" for row in rows.itertuples())
        return
    segment = (rows["position"].diff() > 1).cumsum() if level == "segment" else pd.Series(0, rows.index)
    for _, unit in rows.groupby(segment):
        with np.errstate(divide="ignore"):  # a ratio of 0
            ratio = np.exp(np.log(unit["ratio"].to_numpy(dtype=np.float64)).mean())
        marks = [CLIP_MARKS[clipped] for clipped in unit["clipped"]]
        shared = marks[0] if len(set(marks)) == 1 else ""  # tokens may differ in their advantages
        tokens = (
            f"{row.token}:{row.ratio:.3f}{'' if shared else mark}"
            for row, mark in zip(unit.itertuples(), marks, strict=True)
        )
        yield f"{UNITS[level]}:{ratio:.5f}{shared}  of tokens: {'  '.join(tokens)}"


def diff(results: Results, first: str, second: str) -> str:
    """Write the settings and final metrics in which two runs differ, and the paired effect where a study has both.

    Raises RequestError where a name is no run.
    """
    a, b = find_run(results, first), find_run(results, second)
    if a == b:
        return f"{first} and {second} are the same run: {a.name}"
    left, right = _settings_of(a), _settings_of(b)
    outcomes = [outcome_or_damage(run) or {} for run in (a, b)]
    finals = [outcome.get("final") or {} for outcome in outcomes]
    rows: list[tuple[str, object, object]] = [("setting", a.name, b.name)]
    rows += [(key, left.get(key, NONE), right.get(key, NONE)) for key in dict.fromkeys([*left, *right])]
    rows = [row for row in rows if row[1] != row[2]]
    first_outcome, second_outcome = (outcome.get("outcome", NONE) for outcome in outcomes)
    rows.append(("\noutcome", first_outcome, second_outcome))
    for metric in METRICS:
        if any(final.get(metric) is not None for final in finals):
            rows.append((metric, number(finals[0].get(metric)), number(finals[1].get(metric))))
    lines = [f"{key:<34} {value!s:<20} {other}" for key, value, other in rows]
    damage = [str(outcome["reason"]) for outcome in outcomes if outcome.get("outcome") == DAMAGED]
    return "\n".join([*lines, *damage, *_paired_effects(results, a.name, b.name)])


def _settings_of(folder: Path) -> dict[str, Any]:
    """Return dotted settings of a run, and the hash of each data or code file that they name."""
    settings = dict(dotted(read_settings(folder)))
    content = read_provenance(folder).get("content") or {}
    return settings | {f"content of {key}": short_hash(value) for key, value in content.items()}


def _paired_effects(results: Results, a: str, b: str) -> Iterator[str]:
    """Yield a sentence for each study that has both runs, as different variants."""
    # Imported here, because `show` needs no statistics.
    from grpolab.report.journals import read_runs
    from grpolab.report.load import study_of
    from grpolab.report.measures import at, measure
    from grpolab.report.statistics.tests import paired_difference

    for file in sorted(results.studies.glob("*/plan.json")):
        plan = read_plan(file)
        lefts, rights = ({cell["variant"] for cell in plan["cells"] if cell["signature"] == run} for run in (a, b))
        for left, right in product(lefts, rights):
            if left == right:
                continue
            cells = [cell for cell in plan["cells"] if cell["variant"] in (left, right)]
            runs = read_runs(results, {cell["signature"] for cell in cells})
            study = study_of(results, {**plan, "cells": cells}, runs)
            scores = measure(study, "final_score")
            place = study.cells.drop_duplicates("variant").set_index("variant")[["facet", "arm"]].T
            effect = paired_difference(at(scores, *place[right]), at(scores, *place[left]))
            yield (
                f"\nstudy {plan['study']}: final_score of {right} minus {left}, paired over {count(effect.n, 'seed')}:"
                f" {estimate(*effect[:3], signed)}, {p_equals(effect.p)}"
            )
