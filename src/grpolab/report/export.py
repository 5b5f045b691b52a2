"""Write the committed outcome: plans and compact tables of studies under results/reference/ (`load.py` reads)."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from grpolab.errors import RequestError
from grpolab.meanings import CLIP_METRIC, METRICS, POSITIONS, convention
from grpolab.paths import Results, write_json_atomic
from grpolab.report.journals import at_quarters
from grpolab.report.load import NUMBERS, TABLES, read_all, study_of
from grpolab.report.measures import run_numbers
from grpolab.report.plans import Plan, read_plan
from grpolab.report.statistics.looks import LOOKS
from grpolab.study_names import not_planned
from grpolab.vocabulary import CONFIRMATION_SEEDS, DAMAGED, LEVELS, QUANTILES, SIGNS, TUNING_SEEDS, quantile_metric

# Metrics of the updates that are kept. Updates and histograms are the bulk.
_UPDATE_METRICS = (
    *("clip/out_of_range", "clip/active", "clip/active_low", "clip/active_high", "clip/outer", "clip/capped"),
    *("clip/active_nz", "clip/active_low_nz", "clip/active_high_nz"),
    *("cf/token_0.2", "cf/sequence_0.2", "cf/token_0.28", "cf/sequence_0.02", "cf/sequence_0.0003"),
    *("p_old/up_clipped", "p_old/down_clipped", "p_old/all"),
    *("grad_norm", "kl_old/k3", "ratio/ess", "ratio/token_mean", "ratio/sequence_mean_pos", "ratio/sequence_mean_neg"),
    *(f"ratio/{level}_{end}" for level in LEVELS for end in ("min", "max")),
    *(convention(framework) for framework in CLIP_METRIC),
)
# Metrics of the rollout steps that are kept of later seeds where a committed figure shows the first look's.
_ROLLOUT_METRICS = {
    *("reward/mean", "reward/correct", "entropy/behaviour", "length/mean", "truncation/share", "zero_variance/share"),
}
# Figures that are drawn from evaluations and `numbers` alone: a study that shows only these keeps no journals.
_OF_NUMBERS = {
    *("F13", "F21", "F24", "F25", "F26", "F27", "F28", "F32", "F34", "F35", "F36", "F37", "F39", "F44"),
}
# Kept only of the updates at the ends of a run's quarters.
_QUARTER_METRICS = [quantile_metric(level, q, sign) for level in LEVELS for q in QUANTILES for sign in SIGNS]
_OF_WHOLE = ("updates", "histograms", "timings")
_HISTOGRAM_PREFIXES = ("excess/", "position/", "position_end/", "probability/")


def export_reference(results: Results, study: str, append: bool = False) -> list[Path]:
    """Write results/reference/ from the runs of a study, in place of what was there; return the files.

    `append` keeps the committed runs, which need no folder, and adds the study's seeds that are finished in every
    variant. If a committed collection has `shown`, it also decides which of the added runs are kept whole. Of a run
    that no shown figure draws, the outcome, the evaluations and `run_numbers` stay: about 330 bytes. Of one that tunes,
    only the score and what hypotheses name: about 200.

    Raises RequestError if the study has not been planned here, a run is damaged, a cell has no outcome (a reference
    with holes would be taken for the truth), or the committed runs have another results_version or lock file.
    """
    if not results.plan(study).is_file():
        raise not_planned(results, study)
    whole = read_plan(results.plan(study))
    plans = [whole, *(read_plan(results.plan(part)) for part in whole["includes"])]
    committed = [read_plan(file) for file in sorted(results.reference.glob("plans/*.json"))] if append else []
    collections = {plan["study"]: plan for plan in (*committed, whole)}.values()
    shown = [name for plan in collections for name in plan.get("shown", ())]
    runs = read_all(results, _signatures([*committed, *plans]))
    outcomes = runs["outcomes"]
    if len(damaged := outcomes[outcomes["outcome"] == DAMAGED]):
        reasons = [f"run {run.signature} is damaged: {run.reason}" for run in damaged.itertuples()]
        advice = f"study={study}: nothing was written; `grpolab sweep {study} --retry-failed` trains them anew"
        raise RequestError([*reasons, advice])
    if append:
        plans = _append(committed, [_keep_finished(plan, set(outcomes["signature"])) for plan in plans])
    signatures = _signatures(plans)
    runs = {table: frame[frame["signature"].isin(signatures)] for table, frame in runs.items()}
    if append:
        _refuse_mixture(runs["outcomes"])
    elif missing := len(signatures) - len(outcomes):
        of = f"study={study}: {missing} of {len(signatures)} runs"
        raise RequestError(f"{of} have no outcome yet: --append keeps the seeds that are finished")
    whole_runs = _choose_whole_runs(shown, plans)
    if append:  # runs whose updates only the reference has keep them
        folders = {name for name in signatures if (results.run(name) / "outcome.json").is_file()}
        whole_runs |= set(runs["updates"]["signature"]) - folders
    hypotheses = [hypothesis for plan in plans for hypothesis in plan.get("hypotheses", [])]
    metrics = {of["metric"] for hypothesis in hypotheses for of in (hypothesis, hypothesis["provided"]) if of}
    drawn = whole_runs.union(*(_signatures([plan]) for plan in _drawn(shown, plans)))
    numbers = [run_numbers(study_of(results, plan, runs), metrics) for plan in plans if plan["cells"]]
    runs[NUMBERS] = pd.concat(numbers, ignore_index=True).drop_duplicates(["signature", "thresholds"])
    tables = {table: _compact(table, runs[table], metrics, whole_runs, drawn) for table in ("outcomes", *TABLES)}
    tuning = range(TUNING_SEEDS, CONFIRMATION_SEEDS)
    tune = {cell["signature"] for plan in plans for cell in plan["cells"] if cell["seed"] in tuning}
    decide = {"signature", "thresholds", *POSITIONS, *metrics, *(f"mean {name}" for name in metrics)}
    decide |= {plan["primary_metric"] for plan in plans if plan.get("primary_metric")}
    for table in ("evaluations", NUMBERS):
        tables[table] = _keep_of(runs[table], ~runs[table]["signature"].isin(tune), decide)
    for file in results.reference.glob("plans/*.json"):
        file.unlink()
    for plan in plans:
        write_json_atomic(results.committed_plan(plan["study"]), _pack_plan(plan))
    for table, frame in tables.items():
        _write_table(results.reference / f"{table}.parquet", frame)
    return sorted(path for path in results.reference.rglob("*") if path.is_file())


def _signatures(plans: Sequence[Plan]) -> list[str]:
    return list(dict.fromkeys(cell["signature"] for plan in plans for cell in plan["cells"]))


def _keep_finished(plan: Plan, done: set[str]) -> Plan:
    """Return the plan with only those seeds that have an outcome in every variant."""
    unfinished = {cell["seed"] for cell in plan["cells"] if cell["signature"] not in done}
    cells = [cell for cell in plan["cells"] if cell["seed"] not in unfinished]
    seeds = {"seeds": [seed for seed in plan["seeds"] if seed not in unfinished]} if plan["cells"] else {}
    return {**plan, "cells": cells, **seeds}


def _append(committed: Sequence[Plan], plans: Sequence[Plan]) -> list[Plan]:
    """Add plans to the committed ones. A collection names its studies without a finished seed under `waiting`.

    Raises RequestError if there is nothing to add, or if a setting has changed since: all seeds of a variant share it.
    """
    if not any(plan["cells"] for plan in plans):
        name = plans[0]["study"]
        raise RequestError(f"study={name}: no seed has an outcome in every variant yet, so --append adds nothing")
    merged = {plan["study"]: plan for plan in plans}
    for old in committed:
        new = merged.setdefault(old["study"], old)
        if old["cells"]:
            _refuse_changed(old, new)
            cells = {(cell["variant"], cell["seed"]): cell for cell in [*old["cells"], *new["cells"]]}
            seeds = sorted({*old["seeds"], *new["seeds"]})
            merged[old["study"]] = {**new, "cells": list(cells.values()), "seeds": seeds}
    begun = {name for name, plan in merged.items() if plan["cells"]}
    for name, plan in merged.items():
        if parts := [*plan["includes"], *plan.get("waiting", [])]:
            waiting = [part for part in parts if part not in begun]
            merged[name] = {**plan, "includes": [part for part in parts if part in begun], "waiting": waiting}
    return [plan for plan in merged.values() if plan["cells"] or "waiting" in plan]


def _refuse_changed(old: Plan, new: Plan) -> None:
    """Raise RequestError with the first setting of a variant that differs between two plans of one study."""
    before, after = (
        {cell["variant"]: {**cell["settings"], "rollout_steps": cell["rollout_steps"]} for cell in plan["cells"]}
        for plan in (old, new)
    )
    for variant, settings in after.items():
        for key, value in settings.items():
            if key != "seed" and (kept := before.get(variant, {}).get(key, value)) != value:
                raise RequestError(
                    f"study={old['study']}: {key}={value} in variant {variant}, and {kept} in the committed outcome:"
                    " without --append it is replaced"
                )


def _refuse_mixture(outcomes: pd.DataFrame) -> None:
    """Raise RequestError if the runs have more than one results_version or lock file."""
    for column in ("results_version", "lock_sha256"):
        kinds = sorted({str(value)[:12] for value in outcomes[column].dropna()})
        if len(kinds) > 1:
            mixed = f"runs of {column} {' and '.join(kinds)}"
            raise RequestError(f"the committed outcome would mix {mixed}: without --append it is replaced")


def _choose_whole_runs(shown: list[str], plans: Sequence[Plan]) -> set[str]:
    """Return the runs that are kept whole: all, or those of the first look in studies that have a shown figure."""
    if not shown:
        return set(_signatures(plans))
    first = {plan["study"]: sorted(plan["seeds"])[: plan.get("looks", LOOKS)[0]] for plan in plans if plan["cells"]}
    drawn = _drawn(shown, plans)
    return {cell["signature"] for plan in drawn for cell in plan["cells"] if cell["seed"] in first[plan["study"]]}


def _drawn(shown: list[str], plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans of studies with a shown figure that is drawn from journals."""
    studies = {study for study, _, figure in (name.partition(".") for name in shown) if figure not in _OF_NUMBERS}
    return [plan for plan in plans if plan["study"] in studies]


def _pack_plan(plan: Plan) -> Plan:
    """Write a plan's cells as variants with their runs (seed -> signature); `settings` are those that all share."""
    by_text = dict[str, dict[str, Any]]()
    for cell in plan["cells"]:
        shared = {key: value for key, value in cell.items() if key not in ("seed", "signature")}
        shared["settings"] = {key: value for key, value in cell["settings"].items() if key != "seed"}
        variant = by_text.setdefault(json.dumps(shared, sort_keys=True), {**shared, "runs": {}})
        variant["runs"][str(cell["seed"])] = cell["signature"]
    variants = list(by_text.values())
    first, *others = [variant["settings"] for variant in variants] or [{}]
    common = {key: value for key, value in first.items() if all((key, value) in of.items() for of in others)}
    for variant in variants:
        variant["settings"] = {key: value for key, value in variant["settings"].items() if key not in common}
    rest = {key: value for key, value in plan.items() if key != "cells"}
    return {**rest, "settings": common, "variants": variants}


def _keep_of(frame: pd.DataFrame, whole: pd.Series, columns: Container[str]) -> pd.DataFrame:
    """Return a table in which rows outside of `whole` keep these columns alone."""
    return frame.assign(**{str(name): frame[name].where(whole) for name in frame if name not in columns})


def _compact(table: str, frame: pd.DataFrame, metrics: set[str], whole_runs: set[str], drawn: set[str]) -> pd.DataFrame:
    """Return the kept part of a table: `metrics` are those that hypotheses name.

    `drawn`: runs of studies with a shown figure that is drawn from journals; of them `whole_runs` keep more.
    """
    if table == "rollouts":
        frame = frame[frame["signature"].isin(drawn)]
        return _keep_of(frame, frame["signature"].isin(whole_runs), {*POSITIONS, "signature", *_ROLLOUT_METRICS})
    if table in _OF_WHOLE:
        frame = frame[frame["signature"].isin(whole_runs)]
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
    single = {f.name: pa.list_(pa.float32()) for f in table.schema if pa.types.is_list(f.type)}
    single |= {f.name: pa.float32() for f in table.schema if pa.types.is_float64(f.type)}
    fields = [pa.field(f.name, single.get(f.name, f.type)) for f in table.schema]
    part = path.with_suffix(".part")
    # Bytes of the same weight side by side: a quarter smaller than dictionaries, and nothing is lost.
    floats = [f.name for f in fields if pa.types.is_float32(f.type)]
    others = [f.name for f in fields if f.name not in floats]
    packed = {"compression": "zstd", "compression_level": 19, "use_byte_stream_split": floats, "use_dictionary": others}
    pq.write_table(table.cast(pa.schema(fields)), part, **packed)
    part.replace(path)
