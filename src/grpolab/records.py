"""Read finished runs and plans: one reader for each kind of file, which checks the content (as in `run_files.py`).

A caller that reads many runs skips damaged ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from grpolab.bounded import read_own_mapping
from grpolab.content import file_sha256
from grpolab.errors import Damaged, RequestError
from grpolab.paths import SIGNATURE, STUDY_NAME
from grpolab.quantities import Thresholds
from grpolab.run_files import (
    COUNT,
    EACH,
    JOURNAL,
    NONE,
    NUMBER,
    TEXT,
    TIMING,
    WARM_START,
    WEIGHTS,
    Record,
    Shape,
    check_shape,
    first_line,
    parse_object,
    read_bytes,
    read_object,
    read_outcome,
    weights_sha256,
)
from grpolab.vocabulary import DAMAGED, RESULTS

# A count is written as an integer, any other threshold as a number.
THRESHOLDS = {field.name: (int,) if isinstance(field.default, int) else (int, float) for field in fields(Thresholds)}
_PROVENANCE: Shape = {
    "warm_start?": (NONE, {f"{key}?": shape for key, shape in WARM_START.items()}),
    "content?": (NONE, {EACH: dict}),
    **dict.fromkeys(("dataset?", "hardware?", "framework?"), (dict, NONE)),
    **dict.fromkeys(("diff?", "commit?", "lock_sha256?", "python?"), TEXT),
    **{"results_version?": COUNT, "threads?": COUNT, "dirty?": bool},
}
_NAMES: Shape = [str]
_SCALAR: Shape = (int, float, bool, NONE, str)
_SETTINGS: Shape = {  # of a cell, those that a report computes with
    **dict.fromkeys(("num_iterations?", "num_minibatches?", "prompts_per_step?", "num_generations?"), int),
    **dict.fromkeys(("epsilon?", "epsilon_high?", "max_grad_norm?", "model?"), _SCALAR),
    **dict.fromkeys(("kernel?", "task?", "importance_sampling_level?"), str),
}
_PLAN: Shape = {
    **{"includes": _NAMES, "commit?": TEXT, "seeds?": [int], "looks?": [int], "hypotheses?": [dict]},
    **dict.fromkeys(("study?", "file?", "question?", "title?", "compare?", "baseline?", "primary_metric?"), str),
    **dict.fromkeys(("figures?", "primary?", "shown?", "said?"), _NAMES),
    **{"factors?": {EACH: _NAMES}, "placebo?": [_NAMES], "stability?": {EACH: (int, float)}},
    "registered?": (NONE, {EACH: {"line": str, "seeds": [int], "looks": [int], "margins": {EACH: NUMBER}}}),
    "withdrawn?": [{"withdraws": str, "seeds": [int], "hypotheses": [str], "reason": str, "said": str}],
    "cells": [
        {
            **{"variant": str, "seed": int, "signature": str, "rollout_steps?": int},
            **{"levels?": {EACH: str}, "settings?": _SETTINGS},
        }
    ],
}


def read_result(folder: Path) -> Record | None:
    """Read an outcome; if it is a result, check its journal against its hash, its provenance and its timing.

    Other programs may write an outcome without a hash; its journal is not checked. Raises Damaged.
    """
    outcome = read_outcome(folder)
    if outcome and outcome["outcome"] in RESULTS:
        journal, recorded = folder / JOURNAL, outcome.get("journal_sha256")
        try:
            if recorded is not None and file_sha256(journal) != recorded:
                raise Damaged(f"{journal} is not the journal that outcome.json was written for (journal_sha256)")
        except OSError as error:
            raise Damaged(f"{journal} cannot be read: {error.strerror}") from error
        provenance = read_provenance(folder)
        items = (provenance.get("dataset") or {}).get("evaluation_items")
        if provenance and "framework" not in provenance and not isinstance(items, int):  # TRL's runs are not reported
            raise Damaged(f"{folder / 'provenance.json'} does not say how many items were evaluated")
        read_lines(folder / TIMING)
    return outcome


def outcome_or_damage(folder: Path) -> Record | None:
    """Read a result; for a damaged run return the outcome `damaged` with the reason."""
    try:
        return read_result(folder)
    except Damaged as damage:
        return {"outcome": DAMAGED, "reason": str(damage)}


def check_policy(folder: Path, outcome: Record) -> None:
    """Raise Damaged if the weights of a run are not those that its outcome names."""
    recorded = outcome.get("policy_sha256")
    if recorded is not None and (folder / WEIGHTS).exists() and weights_sha256(folder / WEIGHTS) != recorded:
        raise Damaged(f"{folder / WEIGHTS} has not the weights that outcome.json was written for (policy_sha256)")


def read_provenance(folder: Path) -> Record:
    """Read provenance.json; empty for a run that failed before it. Raises Damaged."""
    path = folder / "provenance.json"
    return check_shape(read_object(path) or {}, _PROVENANCE, path)


def read_settings(folder: Path) -> Record:
    """Read a run's settings; empty if it has none yet. Raises Damaged."""
    path = folder / "settings.yaml"
    if not os.path.lexists(path):
        return {}
    try:
        return read_own_mapping(str(path))
    except RequestError as error:
        raise Damaged(str(error)) from error


def read_plan(path: Path) -> Record | None:
    """Read a study's plan, also one packed for the reference; None if there is none. Raises Damaged."""
    if (plan := read_object(path)) is None:
        return None
    variants = plan.pop("variants", None)
    if variants is not None:
        common = plan.pop("settings", {})
        try:
            plan["cells"] = [_cell(variant, common, seed) for variant in variants for seed in variant["runs"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Damaged(f"{path} is no plan: its variants cannot be read ({first_line(error)})") from error
    for problem in _problems(check_shape(plan, _PLAN, path)):
        raise Damaged(f"{path} {problem}")
    return plan


def _problems(plan: Record) -> Iterator[str]:
    """Yield what is wrong with a plan whose values have the right types."""
    for name in (plan.get("study", "a"), *plan["includes"]):
        if not STUDY_NAME.fullmatch(name):
            yield f"names the study {name!r}, which is no name of a study"
    for name, value in plan.get("stability", {}).items():
        if type(value) not in THRESHOLDS.get(name, ()) or not value >= 0:
            yield f"is damaged: its stability.{name:.60} is {value!r:.60}"
    if any(len(pair) != 2 for pair in plan.get("placebo", [])):
        yield f"is damaged: its placebo={plan['placebo']!r:.60} is no list of pairs"
    runs = set()
    for cell in plan["cells"]:
        if not SIGNATURE.fullmatch(cell["signature"]):
            yield f"names the run {cell['signature']!r}, which is no signature"
        if (run := (cell["variant"], cell["seed"])) in runs:
            yield f"has two cells of variant {run[0]!r:.60} and seed {run[1]}"
        runs.add(run)


def _cell(variant: Record, common: Record, seed: str) -> Record:
    shared = {key: value for key, value in variant.items() if key != "runs"}
    settings = {**common, **variant["settings"], "seed": int(seed)}
    return {**shared, "seed": int(seed), "signature": variant["runs"][seed], "settings": settings}


def read_lines(path: Path) -> list[Record]:
    """Read the records of a finished journal; empty without a file. Raises Damaged, with the line."""
    return parse_lines(read_bytes(path) or b"", path)


def parse_lines(content: bytes, path: Path) -> list[Record]:
    """Parse the records in a journal's bytes. Raises Damaged, with the line."""
    return [parse_object(line, f"{path}, line {number}") for number, line in enumerate(content.splitlines(), start=1)]
