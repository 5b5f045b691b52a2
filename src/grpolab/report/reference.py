"""Read the committed outcome: plans and compact tables of studies under results/reference/ (`export.py` writes it).

Of every run it holds the outcome, the evaluations, the rollout steps, and the numbers that tables and claims need; of
those that a committed figure shows (`shown:` of the collection) the updates too, in float32. A fresh clone says the
same of the claims without training, and draws these figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd

from grpolab import records
from grpolab.errors import Damaged, RequestError
from grpolab.paths import Results
from grpolab.report.journals import Runs, kind_of_cpu, read_runs
from grpolab.report.plans import read_plan


def outcome_at(folder: Path) -> Results:
    """Return a results folder, or an exported reference. Raises RequestError where the folder is neither."""
    results = Results(folder)
    results.is_ours = False
    if (folder / "plans").is_dir():
        results.reference = folder  # that part is there alone, and the folder itself is it
    elif not (folder / "format.json").is_file():
        raise RequestError(f"FOLDER={folder} is no results folder (no format.json), no exported reference (no plans/)")
    return results


def studies_of(results: Results) -> list[str]:
    """List studies, collections left out, that are planned in a results folder or that its reference holds."""
    files = [*results.studies.glob("*/plan.json"), *results.reference.glob("plans/*.json")]
    return sorted({plan["study"] for plan in map(read_plan, files) if plan["cells"]})


def read_all(results: Results, signatures: Iterable[str]) -> Runs:
    """Read the runs among `signatures` that have an outcome: from their folders, the others from the reference."""
    wanted = list(signatures)
    committed = _of_reference(results, wanted)
    runs = read_runs(results, (signature for signature in wanted if signature not in committed))
    if not committed:
        return runs
    return {table: _joined(frame, _read_table(results, table, committed)) for table, frame in runs.items()}


def _read_table(results: Results, table: str, signatures: Iterable[str]) -> pd.DataFrame:
    return pd.read_parquet(results.reference / f"{table}.parquet", filters=[("signature", "in", list(signatures))])


def _of_reference(results: Results, wanted: Sequence[str]) -> set[str]:
    """Return the runs that are read from the reference: those without a folder.

    Where there are such, so are those whose folder is of another kind of CPU. Its rounding makes a run another draw of
    the seed, and arms of one seed are compared with each other.
    """
    here = {signature for signature in wanted if (results.run(signature) / "outcome.json").is_file()}
    if not (results.reference / "outcomes.parquet").is_file() or here >= set(wanted):
        return set()
    hardware = _read_table(results, "outcomes", wanted).set_index("signature")["hardware"]
    absent = set(hardware.index) - here
    if not absent:
        return set()
    both = here.intersection(hardware.index)
    return absent | {name for name in both if _is_of_another_cpu(results, name, kind_of_cpu(hardware[name]))}


def _is_of_another_cpu(results: Results, signature: str, kind: str) -> bool:
    """Return whether a run folder is of another kind of CPU. False for a damaged one: its reader names the damage."""
    with suppress(Damaged):
        provenance = records.read_provenance(results.run(signature))
        return kind_of_cpu(json.dumps(provenance.get("hardware") or {})) != kind
    return False


def _joined(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Join the rows of both; a table without rows says nothing about the columns of the other."""
    frames = [frame for frame in (first, second) if len(frame)]
    return pd.concat(frames, ignore_index=True) if frames else first
