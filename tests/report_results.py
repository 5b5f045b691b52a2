"""A small results folder with invented journals, for the tests of the report room only. No number here is a result."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from grpolab.meanings import CLIP_METRIC, convention
from grpolab.paths import Results, write_json_atomic
from grpolab.report.load import StudyRuns
from grpolab.report.style import Manifest
from grpolab.vocabulary import EXCESS_EDGES, LEVELS, QUANTILES, SIGNS, quantile_metric

ROLLOUT_STEPS = 12
TOKENS = 400
FACTORS = {"clip": ["symmetric", "clip_higher", "no_clip"], "task": ["addition"], "regime": ["healthy", "stressed"]}
HYPOTHESES = [
    {
        "id": "H6",
        "says": "Without clipping, accuracy is lower.",
        "metric": "final_score",
        "contrast": {"of": "no_clip", "minus": "symmetric"},
        **{"trend": None, "range_over": None, "where": {}, "provided": None, "direction": "less", "scale": "linear"},
        **{"beyond": 0.0, "margin": None, "by_construction": False, "budget": "rollouts", "source": "invented"},
    }
]


def write_study(
    root: Path,
    name: str = "clip_range",
    factors: dict[str, list[str]] | None = None,
    seeds: int | Sequence[int] = 3,
    num_iterations: int = 2,
    trained: bool = True,
    **changes: Any,
) -> Results:
    """A planned and, if `trained`, finished study: plan.json and a run folder per cell. `changes` replace plan keys."""
    results, factors = Results.open(root), factors or FACTORS
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    compare = next(iter(factors))
    cells = [
        _cell(name, dict(zip(factors, levels, strict=True)), seed, num_iterations)
        for levels in itertools.product(*factors.values())
        for seed in seeds
    ]
    plan = {
        **{"format": 1, "study": name, "question": "Does the report say what the journals say?", "results_version": 1},
        **{"created": "2026-01-01T00:00:00", "commit": "c0ffee", "includes": [], "factors": factors, "placebo": []},
        **{"compare": compare, "baseline": factors[compare][0], "primary_metric": "eval/accuracy_expected"},
        **{"hypotheses": HYPOTHESES if compare == "clip" else [], "figures": []},
        "stability": {"score_tail": 0.1},  # of the few evaluations here the last one
        **{"seeds": list(seeds), "cells": cells},
    }
    write_json_atomic(results.plan(name), {**plan, **changes})
    for cell in cells if trained else ():
        write_run(results, cell)
    return results


def cells_of(results: Results, name: str = "clip_range") -> list[dict[str, Any]]:
    """The cells of a plan, as it stands in the file."""
    return json.loads(results.plan(name).read_text())["cells"]


def change(path: Path, **keys: Any) -> None:
    """Other values of some keys in a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def whole_of(results: Results, name: str, parts: list[str], **keys: Any) -> None:
    """Plan a collection of studies."""
    plan = {"format": 1, "study": name, "question": "Whole?", "includes": parts, "figures": [], "cells": []}
    write_json_atomic(results.plan(name), plan | keys)


def series_of(manifest: Manifest, **labels: Any) -> dict[str, Any]:
    """The one series of a manifest that has these labels."""
    (series,) = (numbers for numbers in manifest.numbers if labels.items() <= numbers.items())
    return series


CURVE = (0, 3, 6, 9, 12)  # rollout steps of evaluations


def with_curves(study: StudyRuns, accuracy: Callable[[Any], list[float] | None]) -> StudyRuns:
    """The study with other evaluations: `accuracy(cell)` is a run's curve over CURVE; None: it has not run."""
    curves = {cell.Index: accuracy(cell) for cell in study.cells.itertuples()}
    outcomes = ["missing" if curve is None else "completed" for curve in curves.values()]
    cells = study.cells.assign(outcome=outcomes, evaluation_items=2000)
    rows = [
        study.cells.loc[[index] * len(CURVE)].assign(
            rollout_step=CURVE, completions=[128 * step for step in CURVE], carried=False, **{study.metric: curve}
        )
        for index, curve in curves.items()
        if curve is not None
    ]
    return dataclasses.replace(study, cells=cells, evaluations=pd.concat(rows, ignore_index=True))


def texts_of(picture: Figure) -> list[str]:
    """What is written in the panels of a figure, without line breaks."""
    return [" ".join(text.get_text().split()) for panel in picture.axes for text in panel.texts]


def _cell(study: str, levels: dict[str, str], seed: int, num_iterations: int) -> dict[str, Any]:
    arm, variant = next(iter(levels.values())), "/".join(levels.values())
    settings = {
        **{"kernel": "ratio" if arm == "no_clip" else "clipped", "epsilon": 0.2},
        "epsilon_high": {"clip_higher": 0.28, "lower_only": "inf"}.get(arm, 0.2),
        "importance_sampling_level": "sequence" if arm == "sequence" else "token",
        **{"num_iterations": int(arm) if arm.isdigit() else num_iterations, "num_minibatches": 1},
        **{"num_generations": 8, "prompts_per_step": 16, "max_completion_length": 4},
        "learning_rate": 3e-4 if levels.get("regime") == "stressed" else 1.5e-4,
        "task": levels.get("task", "addition"),
    }
    signature = hashlib.sha256(f"{study}/{variant}/{seed}".encode()).hexdigest()[:16]
    place = {"variant": variant, "levels": levels, "seed": seed, "signature": signature}
    return {**place, "rollout_steps": ROLLOUT_STEPS, "settings": settings}


def write_run(
    results: Results, cell: dict[str, Any], outcome: str = "completed", last_step: int = ROLLOUT_STEPS
) -> None:
    """A run folder as the contract has it; a diverged run stops at `last_step` with a non-finite gradient."""
    folder = results.run(cell["signature"])
    folder.mkdir(parents=True, exist_ok=True)
    records = list(_journal(cell, last_step))
    if outcome == "diverged":
        records.append({**_update(cell, np.random.default_rng(0), last_step, 0), "grad_norm": "inf", "loss": "nan"})
    journal = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
    (folder / "journal.jsonl").write_text(journal)
    timing = [
        {"rollout_step": s, "time_ms": 1_700_000_000_000 + s}
        | {"seconds/rollout": 0.1, "seconds/update": 0.3, "seconds/elapsed": 0.5 * (s + 1)}
        for s in range(last_step)
    ]
    (folder / "timing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in timing))
    _write_samples(folder)
    provenance = {
        **{"commit": "c0ffee", "dirty": False, "lock_sha256": "10c4", "python": "3.11", "threads": 1},
        **{"results_version": 1, "hardware": {"cores": 2}, "packages": {"torch": "2"}},
        "warm_start": {"signature": f"warm{cell['seed']}", "accuracy": 0.3},
        "dataset": {"evaluation_items": 2000},
    }
    write_json_atomic(folder / "provenance.json", provenance)
    record = {
        **{"outcome": outcome, "reason": None, "rollout_steps": last_step, "optimizer_steps": 2 * last_step},
        **{"completions": 128 * last_step, "seconds": 6.0, "error": None},
        "final": next({**r, "kind": None} for r in reversed(records) if r["kind"] == "evaluation"),
        "journal_sha256": hashlib.sha256(journal.encode()).hexdigest(),
        "policy_sha256": hashlib.sha256(cell["variant"].encode()).hexdigest(),
    }
    write_json_atomic(folder / "outcome.json", record)


def rewrite(journal: Path, text: str) -> None:
    """Another journal of a run, as if it had been trained so: its hash in outcome.json too."""
    journal.write_text(text)
    change(journal.with_name("outcome.json"), journal_sha256=hashlib.sha256(text.encode()).hexdigest())


def _journal(cell: dict[str, Any], last_step: int) -> Any:
    rng = np.random.default_rng(int(cell["signature"][:8], 16))
    slope = -0.2 if "no_clip/addition/stressed" in cell["variant"] else 0.2
    for step in range(last_step + 1):
        score = 0.3 + slope * step / ROLLOUT_STEPS + 0.01 * rng.standard_normal()
        if step % 3 == 0:
            yield {**_place("evaluation", step), "completions": 128 * step, "eval/accuracy_expected": score}
        if step == last_step:
            return
        for iteration in range(cell["settings"]["num_iterations"]):
            yield _update(cell, rng, step, iteration)
        yield _histogram(rng, step, iteration)
        yield {
            **_place("rollout", step),
            **{"completions": 128 * (step + 1), "reward/mean": score, "reward/correct": score},
            **{"zero_variance/share": 0.2, "zero_variance/all_right": 0.15, "zero_variance/all_wrong": 0.05},
            **{f"length/{of}_{value}": 5.0 + step / 10 for of in ("right", "wrong") for value in ("mean", "p95")},
            **{"gap/sampler_trainer": 1e-6},
            **({"kl_ref/exact": 0.01 * (step + 1)} if step % 4 == 3 else {}),
            **{"entropy/behaviour": 0.5 - 0.01 * step, "entropy/behaviour_p80": 0.9, "truncation/share": 0.0},
        }


def _place(kind: str, step: int) -> dict[str, Any]:
    return {"kind": kind, "rollout_step": step, "optimizer_step": 2 * step}


def _update(cell: dict[str, Any], rng: np.random.Generator, step: int, iteration: int) -> dict[str, Any]:
    low = 0.0 if iteration == 0 or cell["settings"]["kernel"] == "ratio" else 0.02 + 0.005 * float(rng.random())
    return {
        **_place("update", step),
        **{"iteration": iteration, "minibatch": 0, "loss": 0.0, "grad_norm": 1 + float(rng.random()) / (1 + iteration)},
        **{"clip/active_low": low, "clip/active_high": low / 2, "clip/active": 1.5 * low, "clip/out_of_range": 2 * low},
        **{"clip/active_low_nz": low, "clip/active_high_nz": low / 2, "clip/active_nz": 1.5 * low},
        **{"ratio/token_max": 1.0 + iteration, "ratio/sequence_max": 1.0, "ratio/ess": 0.9, "kl_old/k3": 0.01},
        **({"p_old/up_clipped": 0.3, "p_old/down_clipped": 0.4} if low else {}),
        "p_old/all": 0.8,
        **{"cf/token_0.2": 1.5 * low, "cf/sequence_0.2": low},
        **_ratios(step, iteration),
        **{convention(name): 1.5 * low for name in CLIP_METRIC},
        **{convention("slime"): low, convention("prime_rl"): low, convention("roll"): 100 * low},
    }


def _ratios(step: int, iteration: int) -> dict[str, float]:
    """Symmetric about 1 in logarithms, and wider from pass to pass and from step to step."""
    width = 0.1 * iteration * (1 + step)
    quantiles = {
        quantile_metric(level, name, sign): float(np.exp(2 * width * (at - 0.5)))
        for (name, at), level, sign in itertools.product(QUANTILES.items(), LEVELS, SIGNS)
    }
    means = {"ratio/token_mean": 1.0, "ratio/sequence_mean_pos": 1 + width, "ratio/sequence_mean_neg": 1 - width / 4}
    return {**quantiles, **means, "ratio/token_min": 1 / (1 + iteration), "ratio/sequence_min": 0.9**iteration}


def _histogram(rng: np.random.Generator, step: int, iteration: int) -> dict[str, Any]:
    bins = len(EXCESS_EDGES) + 2
    counts = {
        f"excess/{level}_{sign}": rng.multinomial(TOKENS // 2, np.full(bins, 1 / bins)).tolist()
        for level in ("token", "sequence")
        for sign in ("pos", "neg")
    }
    fields = {"count": [128, 128, 128, 16], "abs_log_ratio": [9, 8, 7, 1], "active": [6, 5, 4, 1]}
    positions = {f"{name}/{field}": of for name in ("position", "position_end") for field, of in fields.items()}
    probability = {"probability/counts": [0, 10, 0, 0, 0, 0, 0, 0, 30 - step, 60 + step]}
    return {**_place("histogram", step), "iteration": iteration, "minibatch": 0, **counts, **positions, **probability}


def _write_samples(folder: Path) -> None:
    """The token `7` clipped above twice and below once, `=` clipped below once, `+` never."""
    marks = [("7", "high"), ("7", "high"), ("7", "low"), ("7", ""), ("=", "low"), ("+", ""), ("+", "")]
    (folder / "samples").mkdir(exist_ok=True)
    table = pd.DataFrame(marks, columns=["token", "clipped"])
    table.to_parquet(folder / "samples" / "step_000000.parquet")
