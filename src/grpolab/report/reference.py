"""The committed reference outcome: plans and compact tables under results/reference/.

A fresh clone redraws every reference figure from it without training. It holds what figures, tables and claims read,
in float32, and nothing that a machine would write differently twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from grpolab.errors import RequestError
from grpolab.paths import REFERENCE_STUDY, Results, write_json_atomic
from grpolab.peer_metrics import CLIP_METRIC, convention
from grpolab.report.runs import TABLES, Runs, read_runs
from grpolab.vocabulary import METRICS, POSITIONS

# Of the other tables everything is kept; updates and histograms are the bulk.
_UPDATE_METRICS = (
    *("clip/out_of_range", "clip/active", "clip/active_low", "clip/active_high", "clip/outer", "clip/capped"),
    *("clip/active_nz", "clip/active_low_nz", "clip/active_high_nz"),
    *("cf/token_0.2", "cf/sequence_0.2", "cf/token_0.28", "cf/sequence_0.02", "cf/sequence_0.0003"),
    *("grad_norm", "kl_old/k3", "ratio/ess", "ratio/token_max", "ratio/sequence_max"),
    *(convention(framework) for framework in CLIP_METRIC),
)
_HISTOGRAM_PREFIXES = ("excess/", "position/", "position_end/")


def has_reference(results: Results, study: str) -> bool:
    """Whether the committed reference knows the study."""
    return _plan_path(results, study).is_file()


def read_reference_plan(results: Results, study: str) -> dict[str, Any]:
    """The plan of a study of the reference."""
    return json.loads(_plan_path(results, study).read_text())


def read_reference_runs(results: Results, signatures: Iterable[str]) -> Runs:
    """The runs among `signatures` that the reference holds."""
    wanted = list(signatures)
    return Runs(
        **{
            table: pd.read_parquet(_table_path(results, table), filters=[("signature", "in", wanted)])
            for table in ("outcomes", *TABLES)
        }
    )


def export_reference(results: Results) -> list[Path]:
    """Write results/reference/ from the run folders of the reference study; the files written.

    Raises RequestError when the study has not been planned here, or a cell has no outcome: a reference with holes would
    be taken for the truth.
    """
    plans = _plans(results)
    signatures = dict.fromkeys(cell["signature"] for plan in plans for cell in plan["cells"])
    runs = read_runs(results, signatures)
    missing = len(signatures) - len(runs.outcomes)
    if missing:
        raise RequestError(f"study={REFERENCE_STUDY}: {missing} of {len(signatures)} runs have no outcome yet")
    for plan in plans:
        write_json_atomic(_plan_path(results, plan["study"]), plan)
    asked = {hypothesis["metric"] for plan in plans for hypothesis in plan.get("hypotheses", [])}
    for table in ("outcomes", *TABLES):
        _write_table(_table_path(results, table), _compact(table, getattr(runs, table), asked))
    return sorted(path for path in results.reference.rglob("*") if path.is_file())


def _plans(results: Results) -> list[dict[str, Any]]:
    if not results.plan(REFERENCE_STUDY).is_file():
        raise RequestError(f"study={REFERENCE_STUDY} has not been planned in {results.root}: run `make sweep` first")
    whole = json.loads(results.plan(REFERENCE_STUDY).read_text())
    return [whole, *(json.loads(results.plan(part).read_text()) for part in whole["includes"])]


def _compact(table: str, frame: pd.DataFrame, asked: set[str]) -> pd.DataFrame:
    """The columns that are kept of a table; `asked` are the metrics that hypotheses name."""
    if table == "updates":
        keep = {*POSITIONS, "signature", *_UPDATE_METRICS, *(asked & METRICS.keys())}
        return frame[[column for column in frame if column in keep]]
    if table == "histograms":
        return frame[[column for column in frame if "/" not in column or column.startswith(_HISTOGRAM_PREFIXES)]]
    return frame


def _write_table(path: Path, frame: pd.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    fields = [pa.field(f.name, pa.list_(pa.float32()) if pa.types.is_list(f.type) else f.type) for f in table.schema]
    part = path.with_suffix(".part")
    pq.write_table(table.cast(pa.schema(fields)), part, compression="zstd", compression_level=19)
    part.replace(path)


def _plan_path(results: Results, study: str) -> Path:
    return results.reference / "plans" / f"{study}.json"


def _table_path(results: Results, table: str) -> Path:
    return results.reference / f"{table}.parquet"
