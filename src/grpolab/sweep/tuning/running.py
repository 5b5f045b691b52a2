"""A trial on its way: what its runs' folders say, and how it ends. It is a function of those and of the storage alone.

So it does not matter whether a run is going on, was done long ago, or was left half done: the same evaluations are
judged in the same order.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from grpolab.identity import plain
from grpolab.paths import Results, read_json
from grpolab.run.tracking.folder import Tail
from grpolab.sweep.plan import Cell
from grpolab.sweep.status import last_row
from grpolab.sweep.tuning.pruning import WATCHED
from grpolab.sweep.tuning.trials import COMPLETE, DIVERGED, FAILED, PRUNED, ArmTrial, Record
from grpolab.sweep.wording import first_line
from grpolab.vocabulary import DIVERGED as RUN_DIVERGED
from grpolab.vocabulary import FAILED as RUN_FAILED

# The stability quantities of a finished run.
Score = Callable[[Results, Cell], Mapping[str, float]]
EVALUATIONS = b'{"kind":"evaluation"'


class RunningTrial:
    """The runs of a trial, one seed after the other."""

    def __init__(self, trial: ArmTrial, cells: Sequence[Cell], results: Results, score: Score) -> None:
        self.trial, self.cells, self._results, self._score = trial, cells, results, score
        self.tuning = trial.arm.tuning
        self.state: str | None = (trial.record or {}).get("state")  # None until it ends
        self.reason: str | None = None
        self._index = self._begun = self._decided = 0  # seeds that are done, and begun; optimiser steps up to here
        self._worst = [-math.inf if one.direction == "maximize" else math.inf for one in self.tuning.objectives]
        self._scores: dict[int, list[float]] = {}  # by seed, one for each objective
        self._smoothed: dict[int, list[tuple[int, float]]] = {}
        if cells:
            self._open()

    @property
    def cell(self) -> Cell:
        """The run that it waits for."""
        return self.cells[self._index]

    @property
    def label(self) -> str:
        """`token trial 3`."""
        return f"{self.trial.arm.arm} trial {self.trial.number}"

    def advance(self) -> bool:
        """Read what is there; whether the trial has ended."""
        while self.state is None:
            outcome = read_json(self._results.run(self.cell.signature) / "outcome.json")  # before the journal
            self._watch()
            if self.state is not None or outcome is None:
                break
            self._finish_seed(outcome)
        return self.state is not None

    def fail(self, reason: str) -> None:
        """End it as failed."""
        self.state, self.reason = FAILED, reason

    def tell(self) -> Record:
        """Tell the storage how it ended; the record."""
        record = self.trial.record or plain(self._record())
        self.trial.tell(record)
        return record

    def _open(self) -> None:
        folder = self._results.run(self.cell.signature)
        self._begun += 1
        self._journal = Tail(folder / "journal.jsonl", EVALUATIONS)
        self._evaluations: dict[int, float] = {}

    def _watch(self) -> None:
        """Judge the evaluations that are new."""
        settings = self.cell.settings
        for record in self._journal.read():
            step, seed = record["rollout_step"], settings.seed
            if step in self._evaluations:  # the journal was cut back, and grew again
                continue
            self._evaluations[step] = record[WATCHED]
            value = statistics.fmean(list(self._evaluations.values())[-self.tuning.pruner.window :])
            self._smoothed.setdefault(seed, []).append((step, value))
            if self._judges_runs and step and self._is_hopeless(step, value):
                updates = settings.num_iterations * settings.num_minibatches
                self._decided += step * updates
                reason = f"{self.tuning.pruner.name}: accuracy {value:.3f} at rollout step {step} of seed {seed}"
                self.state, self.reason = PRUNED, reason
                return

    @property
    def _judges_runs(self) -> bool:
        return self.tuning.pruner.name not in ("none", "wilcoxon") and len(self.tuning.objectives) == 1

    def _is_hopeless(self, step: int, value: float) -> bool:
        planned = self.cell.settings.planned_steps
        at_end = step == planned and self._index == len(self.cells) - 1
        judged = step >= self.tuning.pruner.after and not at_end
        larger_is_better = self.tuning.objectives[0].direction == "maximize"
        return self.trial.is_hopeless(self._index * planned + step, value if larger_is_better else -value, judged)

    def _finish_seed(self, outcome: Record) -> None:
        seed = self.cell.settings.seed
        self._decided += outcome["optimizer_steps"] or 0
        if outcome["outcome"] == RUN_FAILED:
            self.fail(f"seed {seed}: {first_line(outcome)}")
        elif outcome["outcome"] == RUN_DIVERGED:
            self._scores[seed] = self._worst
            self.state, self.reason = DIVERGED, f"seed {seed}: {first_line(outcome)}"
        else:
            self._see_scores(seed)

    def _see_scores(self, seed: int) -> None:
        quantities = self._score(self._results, self.cell)
        values = [float(quantities[objective.metric]) for objective in self.tuning.objectives]
        if unknown := [one.metric for one in self.tuning.objectives if math.isnan(quantities[one.metric])]:
            self.fail(f"seed {seed}: nothing to compute {', '.join(unknown)} from")
            return
        self._scores[seed] = values
        self._index += 1
        if self._index == len(self.cells):
            self.state = COMPLETE
        elif self.tuning.pruner.name == "wilcoxon" and self.trial.is_hopeless(self._index - 1, values[0]):
            self.state, self.reason = PRUNED, f"wilcoxon: worse than the best trial after {self._index} seeds"
        else:
            self._open()

    def _means(self) -> list[float]:
        return [statistics.fmean(values) for values in zip(*self._scores.values(), strict=True)]

    def _record(self) -> Record:
        """Its entry in trials.json, but for what the storage knows itself."""
        begun = self.cells[: self._begun]
        known = {COMPLETE: self._means, DIVERGED: lambda: self._worst}
        means = known.get(str(self.state), lambda: [None for _ in self.tuning.objectives])()
        spent = [self._spent(cell) for cell in begun]
        return {
            "state": self.state,
            "reason": self.reason,
            "scores": {
                objective.metric: {"mean": mean, "seeds": {seed: own[at] for seed, own in self._scores.items()}}
                for at, (objective, mean) in enumerate(zip(self.tuning.objectives, means, strict=True))
            },
            "intermediate": self._smoothed,
            "signatures": {cell.settings.seed: cell.signature for cell in begun},
            "optimizer_steps": {
                "full": sum(cell.settings.optimizer_steps for cell in self.cells),
                "decided": self._decided,
            },
            "timing": {
                "started": _iso(self.trial.started),
                "ended": datetime.now(UTC).isoformat(timespec="seconds"),
                "seconds": round(sum(seconds for _, seconds in spent), 3),
                "optimizer_steps": sum(steps for steps, _ in spent),
            },
        }

    def _spent(self, cell: Cell) -> tuple[int, float]:
        """Optimiser steps and seconds that a run has had, whoever did them."""
        folder, settings = self._results.run(cell.signature), cell.settings
        outcome = read_json(folder / "outcome.json") or {}
        if outcome.get("optimizer_steps") is not None:
            return outcome["optimizer_steps"], outcome["seconds"]
        row: dict[str, Any] = last_row(folder / "timing.jsonl") or {}
        steps = (row.get("rollout_step", -1) + 1) * settings.num_iterations * settings.num_minibatches
        return steps, row.get("seconds/elapsed", 0.0)


def _iso(moment: datetime | None) -> str | None:
    """The storage's times are local, without a zone."""
    return moment.astimezone(UTC).isoformat(timespec="seconds") if moment else None
