"""A study as tidy tables: its plan, its cells with their outcomes, and the journals of its runs.

The plan lists all cells (one planned run each), so a missing one is noticed. Runs are read from their folders, or from
the committed outcome (results/reference/, written by `export.py`). For every run, that has the outcome, evaluations,
rollout steps, and the numbers that tables and claims need; for runs in committed figures (`shown:` of the collection),
also the updates. So a fresh clone reports the same claims without training, and draws these figures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import feather

from grpolab import records
from grpolab.errors import Damaged, RequestError
from grpolab.identity import in_words
from grpolab.known_runs import KnownRuns, content_sha256
from grpolab.paths import Results, write_atomic
from grpolab.quantities import Thresholds
from grpolab.report.journals import FORMAT, columns_of, frame_of
from grpolab.report.plans import Plan, plans_of
from grpolab.report.text import count, listing
from grpolab.run_files import JOURNAL, TIMING, Record, read_bytes
from grpolab.vocabulary import BROKEN_OFF, DAMAGED, MISSING, RESULTS, UNFINISHED

TABLES = ("updates", "rollouts", "evaluations", "histograms", "timings")
NUMBERS = "numbers"
KIND_OF_CPU = ("cpu", "cpu_capability", "mkl", "float32")  # these decide the bits of a run's numbers
NOT_RECORDED = "not recorded"
CACHE = "journal.arrow"
HASH = 16  # hex digits of a hash that tells two runs apart; the folder of a run has the whole
# Nullable integers: beside a missing cell, version 1 must not become 1.0.
_COUNTS = ("rollout_steps", "optimizer_steps", "threads", "results_version", "evaluation_items")
# Tables by name, each with a column `signature`. `outcomes`: a row for each run with an outcome, with parts of its
# provenance. TABLES: a row for each record in the journals and timings of runs whose outcome is a result.
# `numbers`: `measures.run_numbers` of the runs whose records the committed outcome does not keep.
Runs = dict[str, pd.DataFrame]
KEYS = ["facet", "arm", "seed"]  # the index of a run's numbers within a study
_CELL_KEYS = ["study", "variant", "arm", "facet", "seed"]  # columns of a cell that every record of its run has too


@dataclass(frozen=True, eq=False)
class StudyRuns:
    """The runs of one study. Each table has the columns study, variant, arm, facet, seed, signature, `factor/<name>`.

    `arm` is the level of the compared factor; `facet` joins the levels of all other factors: arms are compared within a
    facet. `cells` has one row per planned cell: its outcome (`missing` if it has none), its settings as
    `setting/<key>`, and its provenance. `evaluations` repeats the last finite evaluation of a run that broke off up
    to its planned end, with `carried` set. `numbers` holds `measures.run_numbers` of runs whose records the committed
    outcome does not keep. `single_seeds`: figures show a thin line for each seed too. `note_on_labels`: the sentence
    about confirmatory claims that ends every caption.
    """

    results: Results
    plan: Plan
    cells: pd.DataFrame
    updates: pd.DataFrame
    rollouts: pd.DataFrame
    evaluations: pd.DataFrame
    histograms: pd.DataFrame
    timings: pd.DataFrame
    numbers: pd.DataFrame
    single_seeds: bool = False
    note_on_labels: str = ""

    @property
    def name(self) -> str:
        return self.plan["study"]

    @property
    def metric(self) -> str:
        """The evaluation metric that decides; empty if the plan has none."""
        return self.plan.get("primary_metric", "")

    @property
    def score_name(self) -> str:
        """The evaluation metric in words."""
        words = {"eval/reward": "held-out reward", "reward/mean": "training reward"}
        return words.get(self.metric, "accuracy")

    @property
    def is_found(self) -> bool:
        """True if other programs made the runs: they have no warm start, and no hypothesis."""
        return bool(self.plan.get("found"))

    @property
    def baseline(self) -> str:
        """The arm that all others are compared with."""
        return self.plan["baseline"]

    @property
    def is_paired(self) -> bool:
        """True if runs of one seed share their noise; runs of other frameworks may not even record their seed."""
        return bool(self.plan.get("paired", True))

    @property
    def thresholds(self) -> Thresholds:
        return Thresholds(**self.plan.get("stability", {}))

    @property
    def arms(self) -> list[str]:
        """Levels of the compared factor, in the order of the study file."""
        return list(self.plan["factors"][self.plan["compare"]])

    @property
    def facets(self) -> list[str]:
        """Combinations of the other factors' levels that have a cell, in the order of the plan."""
        return list(dict.fromkeys(self.cells["facet"]))

    @property
    def facet_factors(self) -> str:
        """Names of the factors that a facet joins, e.g. `task/regime`."""
        return "/".join(factor for factor in self.plan["factors"] if factor != self.plan["compare"])

    @property
    def tasks(self) -> pd.Series:
        """The task of each cell; several levels of a factor may be one task of other sizes."""
        return self.cells.get("factor/task", self.cells.get("setting/task"))

    def places(self, without: str | None = None) -> list[str]:
        """Return for each cell the joined levels of the factors that are neither compared, nor the task, nor `without`.

        Tasks are compared within a place.
        """
        others = [f for f in self.plan["factors"] if f not in (self.plan["compare"], "task", without)]
        return ["/".join(row) for row in self.cells[[f"factor/{f}" for f in others]].to_numpy(dtype=str)]

    @cached_property
    def done(self) -> pd.DataFrame:
        """Cells with a result: completed, diverged or stopped."""
        return self.cells[self.cells["outcome"].isin(RESULTS)]

    @cached_property
    def absent(self) -> pd.DataFrame:
        """Cells without a result: missing, failed or damaged."""
        return self.cells[~self.cells["outcome"].isin(RESULTS)]

    def by_arm(self, table: str | pd.DataFrame, facet: str) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield the arms that have rows in a table of this facet, each with its rows, in the study file's order."""
        frame: pd.DataFrame = getattr(self, table) if isinstance(table, str) else table
        of_arm = dict(iter(frame[frame["facet"] == facet].groupby("arm", sort=False)))
        yield from ((arm, of_arm[arm]) for arm in self.arms if arm in of_arm)

    def of_cell(self, table: str, cell: Any) -> dict[str, NDArray]:
        """Return one cell's rows of the columns of a table that are no names; frames of runs are slow to make."""
        columns, rows = self._by_cell[table]
        return {name: of[rows.get((cell.variant, cell.seed), [])] for name, of in columns.items()}

    @cached_property
    def _by_cell(self) -> dict[str, tuple[dict[str, NDArray], dict[tuple[str, int], NDArray]]]:
        """Each table without the names that `cells` has too, and the row indices of each cell in it."""
        names = {*_CELL_KEYS, "signature", *self.cells.filter(like="factor/")} - {"seed"}
        tables = {name: getattr(self, name) for name in TABLES}
        columns = {name: {key: of[key].to_numpy() for key in of if key not in names} for name, of in tables.items()}
        return {name: (columns[name], of.groupby(["variant", "seed"]).indices) for name, of in tables.items()}


def load(results: Results, name: str, unfinished: bool = False) -> list[StudyRuns]:
    """Load a study, preceded by the studies that it includes (it then has no cells of its own).

    With `unfinished` also what its runs without an outcome have written so far.

    Plans and runs are those of this folder, else those of the committed outcome. Raises RequestError if neither knows
    the study, or if seeds that chose its tuned values are to judge them.
    """
    plans = plans_of(results, name)
    for plan in plans:
        for tuning in plan.get("tuned", []):
            if mixed := [cell["seed"] for cell in plan["cells"] if cell["seed"] in tuning["seeds"]]:
                seeds, cells = listing([str(seed) for seed in sorted({*mixed})]), count(len(mixed), "cell")
                raise RequestError(
                    f"study={plan['study']}: seed {seeds} of {cells} chose the values of tuned={tuning['study']}, so it"
                    " cannot judge them: sweep it with other seeds"
                )
    runs = read_all(results, dict.fromkeys(cell["signature"] for plan in plans for cell in plan["cells"]), unfinished)
    return [study_of(results, plan, runs) for plan in plans]


def read_runs(results: Results, signatures: Iterable[str], unfinished: bool = False) -> Runs:
    """Read the runs that have an outcome. One whose files do not match it gets the outcome `damaged` and no records.

    With `unfinished` also those that have only a journal, up to its last whole line, as an outcome of this name.
    """
    outcomes: list[dict[str, Any]] = []
    journals: dict[str, pa.Table] = {}
    known = KnownRuns(results)
    for signature in signatures:
        folder, outcome = results.run(signature), known.outcome(signature)
        if outcome is None and unfinished and (folder / JOURNAL).is_file():
            outcome = {"outcome": UNFINISHED}
        if outcome is None:
            continue
        try:
            if outcome["outcome"] == DAMAGED:
                raise Damaged(outcome["reason"])
            row = known.derived(signature, "row", partial(_outcome_row, outcome))
            if outcome["outcome"] == UNFINISHED:
                journals[signature] = _read_so_far(folder)
            elif outcome["outcome"] in RESULTS:
                journals[signature] = read_journal(folder, known.sha256(signature)[2:], results.is_ours)
        except Damaged as damage:
            row = _outcome_row({"outcome": DAMAGED, "reason": str(damage)})
        outcomes.append({"signature": signature, **row})
    known.save()
    frame = pd.DataFrame(outcomes, columns=None if outcomes else ["signature", *_outcome_row({})])
    runs = {"outcomes": frame.astype({column: "Int64" for column in _COUNTS if column in frame})}
    runs |= {NUMBERS: pd.DataFrame(columns=["signature"])}
    names = [pa.array([name] * len(journal), pa.string()) for name, journal in journals.items()]
    named = [of.add_column(0, "signature", name) for of, name in zip(journals.values(), names, strict=True)]
    whole = pa.concat_tables(named, promote_options="permissive") if named else columns_of([{"kind": ""}])
    whole = whole.combine_chunks()  # a chunk of each run makes the choice of a kind six times as slow
    return runs | {table: _of_kind(whole, table.removesuffix("s")) for table in TABLES}


def _outcome_row(outcome: Record, folder: Path | None = None) -> dict[str, Any]:
    """Return what a report needs of outcome.json, and of the provenance.json in `folder`. Raises Damaged."""
    provenance = records.read_provenance(folder) if folder else {}
    warm_start, dataset = provenance.get("warm_start") or {}, provenance.get("dataset") or {}
    diff = provenance.get("diff") or ""
    touched = sorted(set(re.findall(r"^diff --git a/(experiments/\S+)", diff, re.MULTILINE)))  # uncommitted changes
    from_outcome = ("outcome", "reason", "rollout_steps", "optimizer_steps", "seconds")
    from_provenance = ("began", "commit", "dirty", "lock_sha256", "python", "threads", "results_version")
    return {
        **{key: outcome.get(key) for key in from_outcome},
        **{key: (outcome.get(key) or "")[:HASH] or None for key in ("journal_sha256", "policy_sha256")},
        **{key: provenance.get(key) for key in from_provenance},
        "hardware": json.dumps(provenance.get("hardware") or {}, sort_keys=True),
        **({"content": in_words(content)} if (content := provenance.get("content")) else {}),
        **({"touched": " ".join(touched)} if touched else {}),
        "warm_start": warm_start.get("signature"),
        "warm_start_accuracy": warm_start.get("accuracy"),
        "warm_start_seconds": warm_start.get("seconds"),
        "evaluation_items": dataset.get("evaluation_items"),
    }


def _of_kind(whole: pa.Table, kind: str) -> pd.DataFrame:
    """Return the records of one kind, without the columns that none of them has."""
    rows = whole.filter(pa.compute.equal(whole["kind"], kind))
    kept = [name for name in rows.column_names if name != "kind" and rows[name].null_count < len(rows)]
    return frame_of(rows.select(kept))


def read_journal(folder: Path, digests: Sequence[str] = (), keep: bool = True) -> pa.Table:
    """Read a run's journal and timing as one table: a row per record, with its `kind` (`timing` for the latter).

    It is parsed once and then read from journal.arrow, a cache that is used only if it was made from the same bytes.
    No cache is written to a read-only folder, or without `keep`. `digests`: of both files, where they are known.
    """
    files = [folder / JOURNAL, folder / TIMING]
    key = " ".join((FORMAT, *(digests or map(content_sha256, files)))).encode()
    with suppress(OSError, pa.ArrowInvalid):  # no cache, or half of one
        cached = feather.read_table(folder / CACHE, memory_map=True)
        if (cached.schema.metadata or {}).get(b"key") == key:
            return cached.replace_schema_metadata()
    lines, timing = (records.parse_lines(read_bytes(file) or b"", file) for file in files)
    try:
        table = columns_of([*lines, *({"kind": "timing", **row} for row in timing)])
    except Damaged as damage:
        raise Damaged(f"{folder}: {damage}") from damage
    if keep:
        with suppress(OSError), BytesIO() as file:
            feather.write_feather(table.replace_schema_metadata({"key": key}), file, compression="lz4")
            write_atomic(folder / CACHE, file.getvalue(), durable=False)
    return table


def _read_so_far(folder: Path) -> pa.Table:
    """Read the journal of a run that may still train; a line that is half written is left out. Raises Damaged."""
    content = read_bytes(folder / JOURNAL) or b""
    return columns_of(records.parse_lines(content[: content.rfind(b"\n") + 1], folder / JOURNAL))


def read_all(results: Results, signatures: Iterable[str], unfinished: bool = False) -> Runs:
    """Read the runs among `signatures` that have an outcome: from their folders, the others from the reference."""
    wanted = list(signatures)
    committed = _of_reference(results, wanted)
    if unfinished and any((results.run(signature) / JOURNAL).is_file() for signature in committed):
        committed = set()  # they are trained again
    runs = read_runs(results, (signature for signature in wanted if signature not in committed), unfinished)
    if not committed:
        return runs
    return {table: _joined(frame, _read_table(results, table, committed)) for table, frame in runs.items()}


def _read_table(results: Results, table: str, signatures: Iterable[str]) -> pd.DataFrame:
    return pd.read_parquet(results.reference / f"{table}.parquet", filters=[("signature", "in", list(signatures))])


def _of_reference(results: Results, wanted: Sequence[str]) -> set[str]:
    """Return the runs that are read from the reference: those without a folder.

    If there are such runs, those whose folder is from another kind of CPU are read from the reference too: other
    rounding makes a run a different sample, and arms of one seed are compared with each other.
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
    """Return True if a run folder is from another kind of CPU; False if it is damaged, which its reader reports."""
    with suppress(Damaged):
        provenance = records.read_provenance(results.run(signature))
        return kind_of_cpu(json.dumps(provenance.get("hardware") or {})) != kind
    return False


def kind_of_cpu(hardware: str) -> str:
    """Describe the part of the hardware (JSON of provenance.json) that decides the bits of a run's numbers."""
    machine = json.loads(hardware)
    # Runs of older programs have no `float32`.
    return ", ".join(f"{key} {machine[key]}" for key in KIND_OF_CPU) if "float32" in machine else NOT_RECORDED


def _joined(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Join the rows of both; a table without rows says nothing about the columns of the other."""
    frames = [frame for frame in (first, second) if len(frame)]
    return pd.concat(frames, ignore_index=True) if frames else first


def study_of(results: Results, plan: Plan, runs: Runs) -> StudyRuns:
    """Join a plan's cells with the records of their runs. Raises RequestError if the runs are of several programs."""
    cells = _make_cells(plan).merge(runs["outcomes"], on="signature", how="left")
    cells["outcome"] = cells["outcome"].fillna(MISSING)
    _refuse_mixture(plan, cells[cells["outcome"].isin(RESULTS)])
    keys = cells[[*_CELL_KEYS, "signature", *(c for c in cells if c.startswith("factor/"))]]
    tables = {table: keys.merge(runs[table], on="signature") for table in TABLES}
    tables["evaluations"] = _carry_forward(tables["evaluations"], cells, plan.get("primary_metric", ""))
    numbers = runs[NUMBERS][runs[NUMBERS]["signature"].isin(cells["signature"])]
    return StudyRuns(results, plan, cells, **tables, numbers=numbers)


def _make_cells(plan: Plan) -> pd.DataFrame:
    """Return one row per planned cell."""
    study, compare = plan["study"], plan.get("compare")
    numbers = {"inf": np.inf, "-inf": -np.inf, "nan": np.nan}  # JSON has no such numbers
    rows = [
        {"study": study, "variant": cell["variant"], "arm": cell["levels"][compare]}
        | {"facet": "/".join(level for factor, level in cell["levels"].items() if factor != compare)}
        | {key: cell[key] for key in ("seed", "signature")}
        | {"planned_steps": cell["rollout_steps"]}
        | {"task_title": cell.get("task_title") or cell["settings"].get("task")}
        | {f"factor/{factor}": level for factor, level in cell["levels"].items()}
        | {
            f"setting/{key}": numbers.get(value, value) if isinstance(value, str) else value
            for key, value in cell["settings"].items()
        }
        for cell in plan["cells"]
    ]
    return pd.DataFrame(rows, columns=None if rows else [*_CELL_KEYS, "signature"])


def _refuse_mixture(plan: Plan, done: pd.DataFrame) -> None:
    """Raise RequestError if runs are from different versions of the program, which alone could make them differ."""
    for column, name in (("results_version", "results_version"), ("lock_sha256", "lock file (lock_sha256)")):
        if column not in done:  # runs of other frameworks record neither
            continue
        runs = {str(value)[:12]: list(names) for value, names in done.groupby(column)["signature"].unique().items()}
        if len(runs) > 1:
            kinds = ", ".join(f"{value} ({count(len(names), 'run')})" for value, names in runs.items())
            fewest = listing(min(runs.values(), key=len), 2)
            raise RequestError(
                f"study={plan['study']} mixes runs of more than one {name}: {kinds}, which cannot be compared: delete"
                f" the run folders of all but one ({fewest}) and run"
                f" `grpolab sweep {plan.get('file', plan['study'])}` again"
            )


def _carry_forward(evaluations: pd.DataFrame, cells: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Keep evaluations with a finite `metric`; repeat the last one of a run that broke off up to its planned end.

    One that completed early has used up its budget (`max_completions`, `max_seconds`): its own last ones are its score.
    """
    if metric not in evaluations:
        return evaluations.assign(carried=False)
    # Others' runs may not say how many completions a step has, nor how many were sampled.
    prompts, group = (cells.get(f"setting/{key}", np.nan) for key in ("prompts_per_step", "num_generations"))
    batch = cells[["variant", "seed"]].assign(batch=prompts * group)
    finite = evaluations[np.isfinite(evaluations[metric])].merge(batch, on=["variant", "seed"], how="left")
    if "completions" not in finite:
        finite["completions"] = finite["rollout_step"] * finite["batch"]
    finite = finite.assign(carried=False)
    last = finite.sort_values("rollout_step").drop_duplicates(["variant", "seed"], keep="last")
    broken = cells.loc[cells["outcome"].isin(BROKEN_OFF), ["variant", "seed", "planned_steps"]]
    last = last.merge(broken, on=["variant", "seed"])
    grid = finite[["facet", "rollout_step"]].drop_duplicates().rename(columns={"rollout_step": "later"})
    later = pd.concat([last.merge(grid, on="facet"), last.assign(later=last["planned_steps"])])
    later = later.query("rollout_step < later <= planned_steps").drop_duplicates(["variant", "seed", "later"])
    sampled = later["completions"] + (later["later"] - later["rollout_step"]) * later["batch"]
    carried = later.assign(rollout_step=later["later"], completions=sampled, carried=True)[finite.columns]
    whole = pd.concat([finite, carried]).drop(columns="batch")
    return whole.sort_values(["variant", "seed", "rollout_step"], ignore_index=True)
