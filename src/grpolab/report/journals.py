"""Journals as columns: parsed once, then read from a cache beside them for as long as they do not change.

Metrics are float32: a quarter of the memory of Python's numbers, and what the committed reference holds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from grpolab.paths import write_atomic
from grpolab.vocabulary import POSITIONS

CACHE = "journal.arrow"
# Columns that count or name; every other number is a metric.
_EXACT = {*POSITIONS, "time_ms"}
_FORMAT = " ".join(("1", *sorted(_EXACT)))  # raise the number when the same journal becomes other columns


def read_journal(folder: Path) -> pa.Table:
    """A run's journal and timing as one table: a row per record with its `kind` (of the latter: timing).

    What journal.arrow holds is used only where it was made from these very bytes. A folder that cannot be written has
    no cache.
    """
    texts = {name: _bytes(folder / f"{name}.jsonl") for name in ("journal", "timing")}
    key = hashlib.sha256(b"\0".join((_FORMAT.encode(), *texts.values()))).hexdigest()
    cached = _read_cache(folder / CACHE, key)
    if cached is not None:
        return cached
    timing = [{"kind": "timing", **record} for record in _records(texts["timing"])]
    table = columns([*_records(texts["journal"]), *timing])
    with suppress(OSError):
        _write_cache(folder / CACHE, key, table)
    return table


def join(journals: dict[str, pa.Table], kind: str) -> pa.Table:
    """The records of one kind of many runs, by signature; a column that none of them has is left out."""
    rows = [table.filter(pa.compute.equal(table["kind"], kind)) for table in journals.values()]
    named = [
        table.add_column(0, "signature", pa.array([signature] * len(table), pa.string()))
        for signature, table in zip(journals, rows, strict=True)
    ]
    whole = pa.concat_tables(named, promote_options="permissive") if named else columns([])
    return whole.select([name for name in whole.column_names if name != "kind" and _is_filled(whole[name])])


def _is_filled(column: pa.ChunkedArray) -> bool:
    return column.null_count < len(column)


def _bytes(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def _records(text: bytes) -> Iterable[dict[str, Any]]:
    return map(json.loads, text.splitlines())


def columns(records: list[dict[str, Any]]) -> pa.Table:
    """Records as columns, in the order in which they first appear."""
    names = dict.fromkeys(name for record in records for name in record)
    return pa.table({name: _column(name, [record.get(name) for record in records]) for name in names})


def _column(name: str, values: list[Any]) -> pa.Array:
    """One column: the strings "inf", "-inf" and "nan" become numbers, lists stay lists."""
    if name in _EXACT:
        return pa.array(values)
    if any(isinstance(value, list) for value in values):
        return pa.array([None if value is None else np.array(value, np.float32) for value in values])
    return pa.array(np.array(values, dtype=np.float64).astype(np.float32), from_pandas=True)


def _read_cache(file: Path, key: str) -> pa.Table | None:
    """None where there is no cache, or one of something else."""
    try:
        with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
            same = reader.schema.metadata[b"key"] == key.encode()
            return reader.read_all().replace_schema_metadata() if same else None
    except (OSError, pa.ArrowInvalid):
        return None


def _write_cache(file: Path, key: str, table: pa.Table) -> None:
    keyed = table.replace_schema_metadata({"key": key})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, keyed.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(keyed)
    write_atomic(file, sink.getvalue().to_pybytes(), durable=False)
