"""Write the committed outcome: plans and compact tables of studies under results/reference/ (`reference.py` reads)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from grpolab.errors import RequestError
from grpolab.meanings import CLIP_METRIC, METRICS, POSITIONS, convention
from grpolab.paths import Results, write_json_atomic
from grpolab.report.journals import NUMBERS, TABLES, at_quarters
from grpolab.report.load import study_of
from grpolab.report.measures import run_numbers
from grpolab.report.plans import Plan, read_plan
from grpolab.report.reference import read_all
from grpolab.report.statistics.looks import LOOKS
from grpolab.study_names import not_planned
from grpolab.vocabulary import DAMAGED, LEVELS, QUANTILES, SIGNS, quantile_metric

# Metrics of the updates that are kept. Updates and histograms are the bulk; of the other tables everything is kept.
_UPDATE_METRICS = (
    *("clip/out_of_range", "clip/active", "clip/active_low", "clip/active_high", "clip/outer", "clip/capped"),
    *("clip/active_nz", "clip/active_low_nz", "clip/active_high_nz"),
    *("cf/token_0.2", "cf/sequence_0.2", "cf/token_0.28", "cf/sequence_0.02", "cf/sequence_0.0003"),
    *("p_old/up_clipped", "p_old/down_clipped", "p_old/all"),
    *("grad_norm", "kl_old/k3", "ratio/ess", "ratio/token_mean", "ratio/sequence_mean_pos", "ratio/sequence_mean_neg"),
    *(f"ratio/{level}_{end}" for level in LEVELS for end in ("min", "max")),
    *(convention(framework) for framework in CLIP_METRIC),
)
# Metrics of the rollout steps that are kept of runs that no committed figure shows.
_ROLLOUT_METRICS = {
    *("reward/mean", "reward/correct", "entropy/behaviour", "length/mean", "truncation/share", "zero_variance/share"),
}
# Kept only of the updates at the ends of a run's quarters.
_QUARTER_METRICS = [quantile_metric(level, q, sign) for level in LEVELS for q in QUANTILES for sign in SIGNS]
_OF_SHOWN = ("updates", "histograms", "timings")
_HISTOGRAM_PREFIXES = ("excess/", "position/", "position_end/", "probability/")


def export_reference(results: Results, study: str, append: bool = False) -> list[Path]:
    """Write results/reference/ from the runs of a study, in place of what was there; return the files.

    `append`: keep what is there, and add the seeds of the study that are finished in every variant; runs that are there
    need no folder any more. A collection there that has `shown` decides for the added runs too which are kept whole.

    Raises RequestError when the study has not been planned here, a run is damaged, a cell has no outcome (a reference
    with holes would be taken for the truth), or what is there is of another results_version or lock file.
    """
    if not results.plan(study).is_file():
        raise not_planned(results, study)
    whole = read_plan(results.plan(study))
    plans = [whole, *(read_plan(results.plan(part)) for part in whole["includes"])]
    runs = read_all(results, dict.fromkeys(cell["signature"] for plan in plans for cell in plan["cells"]))
    _refuse_damaged(runs["outcomes"], study)
    done = set(runs["outcomes"]["signature"])
    kept = [read_plan(file) for file in results.reference.glob("plans/*.json")] if append else []
    shown: list[str] = next((plan["shown"] for plan in (whole, *kept) if plan.get("shown")), [])
    if append:
        finished = [_finished_seeds(plan, done) for plan in plans]
        if not any(plan["cells"] for plan in finished):
            raise RequestError(f"study={study}: no seed has an outcome in every variant yet, so --append adds nothing")
        plans = _begun(_with_committed(results, finished))
    signatures = dict.fromkeys(cell["signature"] for plan in plans for cell in plan["cells"])
    whole_runs = _kept_whole(shown, plans)
    if append:
        runs = read_all(results, signatures)
        _refuse_damaged(runs["outcomes"], study)
        _refuse_mixture(runs["outcomes"])
        # Runs whose updates only the reference has keep them.
        folders = {name for name in signatures if (results.run(name) / "outcome.json").is_file()}
        whole_runs |= set(runs["updates"]["signature"]) - folders
    elif missing := len(signatures) - len(done):
        raise RequestError(
            f"study={study}: {missing} of {len(signatures)} runs have no outcome yet: --append keeps the seeds that"
            " are finished"
        )
    hypotheses = [hypothesis for plan in plans for hypothesis in plan.get("hypotheses", [])]
    metrics = {of["metric"] for hypothesis in hypotheses for of in (hypothesis, hypothesis["provided"]) if of}
    tables = {table: _compact(table, runs[table], metrics, whole_runs) for table in ("outcomes", *TABLES)}
    for table in _OF_SHOWN:
        tables[table] = tables[table][tables[table]["signature"].isin(whole_runs)]
    numbers = [run_numbers(study_of(results, plan, runs), metrics) for plan in plans if plan["cells"]]
    of_run = ["signature", "thresholds", "metric"]
    tables[NUMBERS] = pd.concat(numbers, ignore_index=True).drop_duplicates(of_run)
    for file in results.reference.glob("plans/*.json"):
        file.unlink()
    for plan in plans:
        write_json_atomic(results.committed_plan(plan["study"]), pack_plan(plan))
    for table, frame in tables.items():
        _write_table(results.reference / f"{table}.parquet", frame)
    return sorted(path for path in results.reference.rglob("*") if path.is_file())


def pack_plan(plan: Plan) -> Plan:
    """Write a plan's cells as variants, each with its runs, seed -> signature, so that shared keys stand there once.

    The settings that all variants share stand under `settings`.
    """
    variants = dict[str, dict[str, Any]]()
    for cell in plan["cells"]:
        shared = {key: value for key, value in cell.items() if key not in ("seed", "signature")}
        shared["settings"] = {key: value for key, value in cell["settings"].items() if key != "seed"}
        variant = variants.setdefault(json.dumps(shared, sort_keys=True), {**shared, "runs": {}})
        variant["runs"][str(cell["seed"])] = cell["signature"]
    rest = {key: value for key, value in plan.items() if key != "cells"}
    kept = list(variants.values())
    first = kept[0]["settings"] if kept else {}
    common = {
        key: value
        for key, value in first.items()
        if all(key in of["settings"] and of["settings"][key] == value for of in kept)
    }
    for variant in kept:
        variant["settings"] = {key: value for key, value in variant["settings"].items() if key not in common}
    return {**rest, "settings": common, "variants": kept}


def _kept_whole(shown: list[str], plans: list[Plan]) -> set[str]:
    """Return the runs that are kept whole: all, or those of the first look in studies that have a shown figure."""
    studies = {name.partition(".")[0] for name in shown}
    kept = set[str]()
    for plan in (plan for plan in plans if plan["cells"]):
        first = sorted(plan["seeds"])[: plan.get("looks", LOOKS)[0]]
        some = {cell["signature"] for cell in plan["cells"] if plan["study"] in studies and cell["seed"] in first}
        kept |= some if studies else {cell["signature"] for cell in plan["cells"]}
    return kept


def _finished_seeds(plan: Plan, done: set[str]) -> Plan:
    """Return the plan without the seeds of which a variant has no outcome yet; a collection has no cells, and stays."""
    if not plan["cells"]:
        return plan
    open_ = {cell["seed"] for cell in plan["cells"] if cell["signature"] not in done}
    cells = [cell for cell in plan["cells"] if cell["seed"] not in open_]
    return {**plan, "cells": cells, "seeds": [seed for seed in plan["seeds"] if seed not in open_]}


def _with_committed(results: Results, plans: list[Plan]) -> list[Plan]:
    """Add committed cells to the plans of the same names, and the other plans of the reference as they are."""
    new = {plan["study"]: plan for plan in plans}
    for file in sorted(results.reference.glob("plans/*.json")):
        kept = read_plan(file)
        plan = new.setdefault(kept["study"], kept)
        if kept["cells"]:  # a collection has none
            _refuse_changed(kept, plan)
            cells = {(cell["variant"], cell["seed"]): cell for cell in [*kept["cells"], *plan["cells"]]}
            seeds = sorted({*kept["seeds"], *plan["seeds"]})
            new[kept["study"]] = {**plan, "cells": list(cells.values()), "seeds": seeds}
    return list(new.values())


def _refuse_changed(kept: Plan, plan: Plan) -> None:
    """Raise RequestError with the first key that has changed since: all seeds of a variant have the same settings."""
    then = {cell["variant"]: cell for cell in kept["cells"]}
    for cell in plan["cells"]:
        old, new = (
            {**of["settings"], "rollout_steps": of["rollout_steps"], "seed": 0}
            for of in (then.get(cell["variant"], cell), cell)
        )
        for key in old.keys() & new.keys():
            if old[key] != new[key]:
                raise RequestError(
                    f"study={kept['study']}: {key}={new[key]} in variant {cell['variant']}, and {old[key]} in the"
                    " committed outcome: without --append it is replaced"
                )


def _begun(plans: list[Plan]) -> list[Plan]:
    """Return the plans without studies that have no finished seed; a collection names these under `waiting`."""
    collections = {plan["study"] for plan in plans if plan["includes"]}
    begun = {plan["study"] for plan in plans if plan["cells"]}
    kept = []
    for plan in plans:
        if plan["study"] in collections:
            every = [*plan["includes"], *plan.get("waiting", [])]
            waiting = [part for part in every if part not in begun]
            kept.append({**plan, "includes": [part for part in every if part in begun], "waiting": waiting})
        elif plan["cells"]:
            kept.append(plan)
    return kept


def _refuse_damaged(outcomes: pd.DataFrame, study: str) -> None:
    """Raise RequestError with every run that is damaged."""
    damaged = outcomes[outcomes["outcome"] == DAMAGED]
    if len(damaged):
        raise RequestError(
            [
                *(f"run {run.signature} is damaged: {run.reason}" for run in damaged.itertuples()),
                f"study={study}: nothing was written; `grpolab sweep {study} --retry-failed` trains them anew",
            ]
        )


def _refuse_mixture(outcomes: pd.DataFrame) -> None:
    """Raise RequestError where the runs are not of one results_version and one lock file."""
    for column in ("results_version", "lock_sha256"):
        kinds = sorted({str(value)[:12] for value in outcomes[column].dropna()})
        if len(kinds) > 1:
            raise RequestError(
                f"the committed outcome would mix runs of {column} {' and '.join(kinds)}: without --append it is"
                " replaced"
            )


def _compact(table: str, frame: pd.DataFrame, metrics: set[str], whole_runs: set[str]) -> pd.DataFrame:
    """Return the kept part of a table; `metrics` are those that hypotheses name, and `whole_runs` keep more."""
    if table == "rollouts":
        of_whole = frame["signature"].isin(whole_runs)
        rare = frame.columns.difference([*POSITIONS, "signature", *_ROLLOUT_METRICS, *metrics])
        return frame.assign(**{str(name): frame[name].where(of_whole) for name in rare})
    if table == "updates":
        keep = {*POSITIONS, "signature", *_UPDATE_METRICS, *_QUARTER_METRICS, *(metrics & METRICS.keys())}
        quarters = frame.index.isin(at_quarters(frame).index)
        rare = {column: frame[column].where(quarters) for column in frame if column in _QUARTER_METRICS}
        return frame[[column for column in frame if column in keep]].assign(**rare)
    if table == "histograms":
        return frame[[column for column in frame if "/" not in column or column.startswith(_HISTOGRAM_PREFIXES)]]
    return frame


def _write_table(path: Path, frame: pd.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    fields = [pa.field(f.name, pa.list_(pa.float32()) if pa.types.is_list(f.type) else f.type) for f in table.schema]
    part = path.with_suffix(".part")
    # Bytes of the same weight side by side: a quarter smaller than dictionaries, and nothing is lost.
    floats = [f.name for f in fields if pa.types.is_float32(f.type)]
    others = [f.name for f in fields if f.name not in floats]
    packed = {"compression": "zstd", "compression_level": 19, "use_byte_stream_split": floats, "use_dictionary": others}
    pq.write_table(table.cast(pa.schema(fields)), part, **packed)
    part.replace(path)
