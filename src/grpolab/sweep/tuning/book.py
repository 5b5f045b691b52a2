"""What a tuning writes: its runs' plan, trials.json and conf/tuned/<study>.yaml, all made from the storage."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from optuna.trial import FrozenTrial, TrialState

from grpolab import RESULTS_VERSION
from grpolab.errors import RequestError
from grpolab.identity import plain
from grpolab.paths import Results, read_json, write_json_atomic, write_text_atomic
from grpolab.sweep.plan import Cell, Plan
from grpolab.sweep.request import commit
from grpolab.sweep.tuning.arms import TRIAL, Arms, Point, override
from grpolab.sweep.tuning.sampling import point_of
from grpolab.sweep.tuning.trials import COMPLETE, FAILED, RECORD, RUNNING, ArmTrials, Record

TRIALS_FORMAT = 1
HEAD = "# Written by `grpolab tune {study}`: each arm's best values. A study names them in a level: `tuned={study}`.\n"


class Book:
    """Keeps the files up to date. Who writes has the tuning's lock."""

    def __init__(self, arms: Arms, trials: Sequence[ArmTrials], results: Results, folder: Path) -> None:
        self._arms, self._trials, self.file = arms, trials, folder / "trials.json"
        self._plan_file = results.plan(arms.plan_name)
        before = read_json(self._plan_file) or {}
        self._created = before.get("created") or datetime.now(UTC).isoformat(timespec="seconds")
        self._commit = commit()
        self._planned = 0
        self._common = {arm: arms.common(arm) for arm in arms.names}

    def write(self) -> None:
        """The plan and trials.json, as the storage is now."""
        self.write_plan()
        write_json_atomic(self.file, self.document(), durable=False)

    def write_plan(self) -> None:
        """plan.json of the trials' runs, where it has grown: an ordinary one, by which they are seen and kept."""
        drawn = [(arm.arm, trial.number, self._point(arm, trial)) for arm in self._trials for trial in _drawn(arm)]
        if len(drawn) == self._planned:
            return
        self._planned = len(drawn)
        cells = [cell for one in drawn for cell in self._cells(*one)]
        study, tuning = self._arms.study, self._arms.tuning
        trials: dict[str, list[str]] = {str(number): [] for number in sorted({number for _, number, _ in drawn})}
        factors = {study.compare: study.factors[study.compare], TRIAL: trials}
        nothing: dict[str, Any] = {"hypotheses": [], "placebo": [], "figures": []}
        planned = study.model_copy(update={"name": self._arms.plan_name, "factors": factors, **nothing})
        document = Plan(planned, tuning.seeds, cells).document(self._created, self._commit or "")
        write_json_atomic(self._plan_file, document, durable=False)

    def document(self) -> Record:
        """trials.json."""
        entries = [self._entry(arm, trial) for arm in self._trials for trial in _drawn(arm)]
        tuning, study = self._arms.tuning, self._arms.study
        finished = [entry for entry in entries if "optimizer_steps" in entry]
        return {
            "format": TRIALS_FORMAT,
            "study": study.name,
            "question": study.question,
            "results_version": RESULTS_VERSION,
            "created": self._created,
            "commit": self._commit,
            "done": self.is_done(),
            "arms": {
                arm.arm: {
                    "space": {key: values.model_dump(exclude_none=True) for key, values in arm.space.items()},
                    "common": self._common[arm.arm],
                }
                for arm in self._trials
            },
            "compare": study.compare,
            "levels": {name: level for name, level in self._levels().items() if name != study.compare},
            "sampler": {"name": tuning.sampler, "seed": tuning.sampler_seed},
            "pruner": {**tuning.pruner.model_dump(), "metric": "eval/accuracy_expected"},
            "objectives": [one.model_dump() for one in tuning.objectives],
            "trials_per_arm": tuning.trials,
            "seeds": tuning.seeds,
            "evaluation_seeds": study.seed_list,
            "rollout_steps": self._trials[0].seed_steps,
            "optimizer_steps": {
                "full": sum(entry["optimizer_steps"]["full"] for entry in finished),
                "run": sum(entry["timing"]["optimizer_steps"] for entry in finished),
            },
            "best": {arm.arm: self.best([one for one in entries if one["arm"] == arm.arm]) for arm in self._trials},
            "trials": entries,
        }

    def is_done(self) -> bool:
        """Whether every arm has had its trials."""
        return all(arm.taken() - len(arm.running()) >= arm.tuning.trials for arm in self._trials)

    def best(self, entries: Sequence[Record]) -> list[int]:
        """Numbers of the complete trials that nothing beats; of one objective the first best, of several the front.

        The front begins with its best by the first objective.
        """
        signs = {one.metric: 1 if one.direction == "maximize" else -1 for one in self._arms.tuning.objectives}
        scores = {
            entry["number"]: [sign * entry["scores"][metric]["mean"] for metric, sign in signs.items()]
            for entry in entries
            if entry["state"] == COMPLETE
        }
        front = [number for number, own in scores.items() if not any(_beats(other, own) for other in scores.values())]
        front.sort(key=lambda number: [-score for score in scores[number]])
        return front[:1] if len(signs) == 1 else front

    def write_tuned(self, file: Path, storage: str) -> bool:
        """The best values of each arm and where they are from; False where an arm has no complete trial."""
        document = self.document()
        if not all(document["best"].values()):
            return False
        entries = {(entry["arm"], entry["number"]): entry for entry in document["trials"]}
        kept = ("study", "commit", "results_version", "levels", "sampler", "pruner", "objectives")
        tuned = {
            **{key: document[key] for key in (*kept, "trials_per_arm", "seeds")},
            "storage": storage,
            "arms": {
                arm.arm: self._chosen(arm, entries[arm.arm, document["best"][arm.arm][0]]) for arm in self._trials
            },
        }
        text = yaml.safe_dump(plain(tuned), sort_keys=False, width=120)
        write_text_atomic(file, HEAD.format(study=self._arms.study.name) + text)
        return True

    def _chosen(self, arm: ArmTrials, entry: Record) -> Record:
        return {
            "overrides": [override(key, value) for key, value in entry["values"].items()],
            "trial": entry["number"],
            "storage_study": arm.name,
            "scores": entry["scores"],
            "optimizer_steps": entry["optimizer_steps"]["decided"],
        }

    def _entry(self, arm: ArmTrials, trial: FrozenTrial) -> Record:
        """A trial in trials.json."""
        head = {"arm": arm.arm, "number": trial.number, "values": self._point(arm, trial)}
        if RECORD in trial.user_attrs:
            return {**head, **trial.user_attrs[RECORD]}
        state = RUNNING if trial.state == TrialState.RUNNING else FAILED
        return {**head, "state": state, "reason": None, "scores": {}, "intermediate": {}, "signatures": {}}

    def _levels(self) -> dict[str, str]:
        return self._arms.levels(self._arms.names[0])

    def _point(self, arm: ArmTrials, trial: FrozenTrial) -> Point:
        return point_of(trial.params, arm.space)

    def _cells(self, arm: str, number: int, point: Point) -> list[Cell]:
        try:
            return self._arms.cells(arm, number, point)
        except RequestError:  # values that do not fit together have no run
            return []


def _drawn(arm: ArmTrials) -> list[FrozenTrial]:
    """Trials that have all their values: others were being asked for when their command died."""
    return [trial for trial in arm.all() if arm.space.keys() <= trial.params.keys()]


def _beats(other: Sequence[float], own: Sequence[float]) -> bool:
    """Whether a trial is as good in all and better in one."""
    return other != own and all(theirs >= ours for theirs, ours in zip(other, own, strict=True))
