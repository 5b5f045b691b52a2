"""The trials: where Optuna keeps them, how they are asked for and told, and the files that are made from them."""

from __future__ import annotations

import json
import os
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from grpolab import RESULTS_VERSION
from grpolab.errors import RequestError
from grpolab.paths import Results, plain, read_json, write_json_atomic, write_text_atomic
from grpolab.run.folder import exclusive, is_held
from grpolab.sweep.jobs import commit
from grpolab.sweep.ledger import Record
from grpolab.sweep.plan import Plan
from grpolab.sweep.tuning.arms import TRIAL, WATCHED, Arms, Point, override, point_of, pruner, sampler, suggest

JOURNAL = "journal:"
DATABASES = ("sqlite:///", "postgresql", "mysql")

# States of a trial, in trials.json.
COMPLETE, PRUNED, DIVERGED, FAILED, RUNNING = "complete", "pruned", "diverged", "failed", "running"
TOLD = {COMPLETE: TrialState.COMPLETE, DIVERGED: TrialState.COMPLETE, PRUNED: TrialState.PRUNED}
OWNER, RECORD, IDENTITY = "owner", "record", "identity"  # attributes in the storage

TRIALS_FORMAT = 1
HEAD = "# Written by `grpolab tune {study}`: each arm's best values. A study names them in a level: `tuned={study}`.\n"


# ----------------------------------------------------------------------------------------------------------------------
# Where the trials are: a journal file, or a database by its URI. Everything else is made from it.


class JournalFile(JournalFileBackend):
    """Optuna's journal without its flush to the disk at every line, which takes as long as an evaluation.

    A kill loses nothing. What a power cut takes is told again from the run folders, which are flushed. Optuna's own
    locks outlive a killed holder by half a minute; this one dies with it.
    """

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._lock_file = file, file.with_name(f"{file.name}.lock")
        super().__init__(str(file))
        with exclusive(self._lock_file):  # half a line, onto which the next one would be written
            whole = file.read_bytes().rfind(b"\n") + 1
            if whole < file.stat().st_size:
                os.truncate(file, whole)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append in one piece."""
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with exclusive(self._lock_file), self._file.open("ab") as opened:
            opened.write(lines.encode())


def default_uri(folder: Path) -> str:
    """A journal in the tuning's own folder."""
    return f"{JOURNAL}{folder / 'storage.journal'}"


def check_uri(uri: str, jobs: int | None) -> int | None:
    """How many trials may run at once: `jobs`, or what the storage bears where that is None. Raises RequestError."""
    if not uri.startswith((JOURNAL, *DATABASES)) or uri in (JOURNAL, "sqlite:///"):
        raise RequestError(f"--storage {uri} is no storage: use journal:FILE, sqlite:///FILE, postgresql://, mysql://")
    if not uri.startswith("sqlite:///"):
        return jobs
    if jobs not in (None, 1):
        raise RequestError(
            f"--jobs {jobs} is more than --storage {uri} can serve: SQLite serves 1 trial at a time, a journal or a"
            " database server many"
        )
    return 1


def open_storage(uri: str) -> BaseStorage:
    """The storage at a checked URI, made where there is none. Raises RequestError where it cannot be opened."""
    try:
        if not uri.startswith(JOURNAL):
            return RDBStorage(uri)
        return JournalStorage(JournalFile(Path(uri.removeprefix(JOURNAL))))
    except (OSError, ValueError, KeyError, ImportError, SQLAlchemyError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise RequestError(f"--storage {uri} cannot be opened: {reason}") from error


def is_there(uri: str) -> bool:
    """Whether the file of a storage exists; a server is asked when it is opened."""
    return not uri.startswith((JOURNAL, "sqlite:///")) or Path(uri.partition(":")[2].removeprefix("///")).exists()


class Owner:
    """A command that does trials: a file whose lock it holds as long as it lives, on whatever machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "commands"
        self.name = f"{socket.gethostname()}-{os.getpid()}"

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Be alive; what dead commands left is removed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in self.folder.iterdir():
            if not is_held(file):
                file.unlink(missing_ok=True)
        mine = self.folder / self.name
        with exclusive(mine):
            try:
                yield
            finally:
                mine.unlink(missing_ok=True)

    def is_dead(self, name: str | None) -> bool:
        """Whether nobody does the trials of that owner any more but we ourselves; None: it died before it signed."""
        return name is None or name == self.name or not is_held(self.folder / name)

    def others(self) -> list[str]:
        """Other commands that are at work on this tuning."""
        with suppress(FileNotFoundError):
            return sorted(file.name for file in self.folder.iterdir() if file.name != self.name and is_held(file))
        return []


# ----------------------------------------------------------------------------------------------------------------------
# The trials of one arm: asked for, reported, told. One Optuna study each, `<study>/<arm>`.


class ArmTrials:
    """The trials of an arm."""

    def __init__(self, storage: BaseStorage, arms: Arms, arm: str, parallel: bool) -> None:
        """Raises RequestError where the storage has another tuning of that name."""
        self.arm, self.space, self.tuning, self._parallel = arm, arms.tuning.space_of(arm), arms.tuning, parallel
        settings = arms.settings(arm, {})
        self.seed_steps = settings.planned_steps
        first = max(self.tuning.pruner.after, settings.evaluation.every)
        self.name, self._storage = f"{arms.study.name}/{arm}", storage
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            self.study = optuna.create_study(
                storage=storage,
                study_name=self.name,
                directions=[objective.direction for objective in self.tuning.objectives],
                pruner=pruner(self.tuning.pruner, first, self.seed_steps * len(self.tuning.seeds)),
                load_if_exists=True,
            )
        identity, there = plain(arms.identity(arm)), self.study.user_attrs.get(IDENTITY)
        if there is None and not self.all():
            self.study.set_user_attr(IDENTITY, identity)
        elif there != identity:
            keys = sorted(key for key in identity if (there or {}).get(key) != identity[key])
            raise RequestError(
                f"the storage holds another tuning under the name {self.name}: {', '.join(keys)} changed since; name"
                " another --storage, or move that one away"
            )

    def all(self) -> list[FrozenTrial]:
        """Every trial, by number."""
        return self.study.get_trials(deepcopy=False)

    def drawn(self) -> list[FrozenTrial]:
        """Trials that have all their values: others were being asked for when their command died."""
        return [trial for trial in self.all() if self.space.keys() <= trial.params.keys()]

    def taken(self) -> int:
        """Trials that count towards the budget: finished, or on their way. A failed one is made up for."""
        return sum(trial.state != TrialState.FAIL for trial in self.all())

    def running(self) -> list[FrozenTrial]:
        """Trials on their way, whoever does them."""
        return [trial for trial in self.all() if trial.state == TrialState.RUNNING]

    def ask(self, owner: str) -> ArmTrial:
        """A new trial. Who asks has the tuning's lock, so that its number is known before."""
        self.study.sampler = self._sampler(len(self.all()), "")
        return self._sign(self.study.ask(), owner)

    def adopt(self, trial: FrozenTrial, owner: str) -> ArmTrial:
        """A trial that a dead command has left; it goes on as if nothing had been."""
        self.study.sampler = self._sampler(trial.number, "")
        study_id = self._storage.get_study_id_from_name(self.name)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        return self._sign(optuna.trial.Trial(self.study, trial_id), owner)

    def _sign(self, trial: optuna.Trial, owner: str) -> ArmTrial:
        """Write the owner down, and draw the values that the trial lacks."""
        trial.set_user_attr(OWNER, owner)
        together = self.study.sampler
        for key, values in self.space.items():
            if self.tuning.sampler != "cmaes":  # which draws all keys at once
                self.study.sampler = self._sampler(trial.number, key)
            suggest(trial, key, values)
        self.study.sampler = together
        return ArmTrial(self, trial)

    def _sampler(self, number: int, key: str) -> optuna.samplers.BaseSampler:
        return sampler(self.tuning, self.space, number, key, self._parallel)


class ArmTrial:
    """One trial on its way."""

    def __init__(self, arm: ArmTrials, trial: optuna.Trial) -> None:
        self.arm, self._trial = arm, trial
        self.number = trial.number
        self.point: Point = point_of(trial.params, arm.space)
        told = arm.all()[self.number].intermediate_values  # by a command that died
        self._told, self._last_told = set(told), max(told, default=-1)

    @property
    def record(self) -> Record | None:
        """What a command that died before it could tell had found."""
        return self._trial.user_attrs.get(RECORD)

    @property
    def started(self) -> datetime | None:
        """When it was asked for."""
        return self._trial.datetime_start

    def is_pruned(self, step: int, value: float, judged: bool = True) -> bool:
        """Report a value, in the direction of the objective; where it is to be `judged`, ask the pruner."""
        if step not in self._told:
            self._trial.report(value, step)
        return judged and step >= self._last_told and self._trial.should_prune()

    def tell(self, record: Record) -> None:
        """End the trial; the record first, so that a kill in between changes nothing."""
        self._trial.set_user_attr(RECORD, record)
        state = TOLD.get(record["state"], TrialState.FAIL)
        metrics = [objective.metric for objective in self.arm.tuning.objectives]
        means = (
            [float(record["scores"][metric]["mean"]) for metric in metrics] if state == TrialState.COMPLETE else None
        )
        self.arm.study.tell(self.number, means, state, skip_if_finished=True)


# ----------------------------------------------------------------------------------------------------------------------
# What a tuning writes: its runs' plan, trials.json and conf/tuned/<study>.yaml, all made from the storage.


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
        drawn = [(arm, trial) for arm in self._trials for trial in arm.drawn()]
        if len(drawn) == self._planned:
            return
        self._planned = len(drawn)
        cells = []
        for arm, trial in drawn:
            with suppress(RequestError):  # values that do not fit together have no run
                cells += self._arms.cells(arm.arm, trial.number, point_of(trial.params, arm.space))
        study = self._arms.study
        numbers: dict[str, list[str]] = {str(number): [] for number in sorted({trial.number for _, trial in drawn})}
        factors = {study.compare: study.factors[study.compare], TRIAL: numbers}
        nothing: dict[str, Any] = {"hypotheses": [], "placebo": [], "figures": []}
        planned = study.model_copy(update={"name": self._arms.plan_name, "factors": factors, **nothing})
        document = Plan(planned, self._arms.tuning.seeds, cells).document(self._created, self._commit or "")
        write_json_atomic(self._plan_file, document, durable=False)

    def document(self) -> Record:
        """trials.json."""
        entries = [_entry(arm, trial) for arm in self._trials for trial in arm.drawn()]
        tuning, study = self._arms.tuning, self._arms.study
        finished = [entry for entry in entries if "optimizer_steps" in entry]
        levels = self._arms.levels(self._arms.names[0])
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
            "levels": {name: level for name, level in levels.items() if name != study.compare},
            "sampler": {"name": tuning.sampler, "seed": tuning.sampler_seed},
            "pruner": {**tuning.pruner.model_dump(), "metric": WATCHED},
            "objectives": [objective.model_dump() for objective in tuning.objectives],
            "trials_per_arm": tuning.trials,
            "seeds": tuning.seeds,
            "evaluation_seeds": study.seed_list,
            "rollout_steps": self._trials[0].seed_steps,
            "optimizer_steps": {
                "full": sum(entry["optimizer_steps"]["full"] for entry in finished),
                "run": sum(entry["timing"]["optimizer_steps"] for entry in finished),
            },
            "best": {arm.arm: self._best([e for e in entries if e["arm"] == arm.arm]) for arm in self._trials},
            "trials": entries,
        }

    def is_done(self) -> bool:
        """Whether every arm has had its trials."""
        return all(arm.taken() - len(arm.running()) >= arm.tuning.trials for arm in self._trials)

    def _best(self, entries: Sequence[Record]) -> list[int]:
        """Numbers of the complete trials that nothing beats; of one objective the first best, of several the front.

        The front begins with its best by the first objective. A trial is beaten by one that is as good in all and
        better in one.
        """
        signs = {goal.metric: 1 if goal.direction == "maximize" else -1 for goal in self._arms.tuning.objectives}
        scores = {
            entry["number"]: [sign * entry["scores"][metric]["mean"] for metric, sign in signs.items()]
            for entry in entries
            if entry["state"] == COMPLETE
        }
        front = [
            number
            for number, mine in scores.items()
            if not any(
                other != mine and all(theirs >= ours for theirs, ours in zip(other, mine, strict=True))
                for other in scores.values()
            )
        ]
        front.sort(key=lambda number: [-score for score in scores[number]])
        return front[:1] if len(signs) == 1 else front

    def write_tuned(self, file: Path, storage: str) -> bool:
        """The best values of each arm and where they are from; False where an arm has no complete trial."""
        document = self.document()
        if not all(document["best"].values()):
            return False
        entries = {(entry["arm"], entry["number"]): entry for entry in document["trials"]}
        chosen = {arm.arm: entries[arm.arm, document["best"][arm.arm][0]] for arm in self._trials}
        kept = ("study", "commit", "results_version", "levels", "sampler", "pruner", "objectives")
        tuned = {
            **{key: document[key] for key in (*kept, "trials_per_arm", "seeds")},
            "storage": storage,
            "arms": {
                arm.arm: {
                    "overrides": [override(key, value) for key, value in chosen[arm.arm]["values"].items()],
                    "trial": chosen[arm.arm]["number"],
                    "storage_study": arm.name,
                    "scores": chosen[arm.arm]["scores"],
                    "optimizer_steps": chosen[arm.arm]["optimizer_steps"]["decided"],
                }
                for arm in self._trials
            },
        }
        text = yaml.safe_dump(plain(tuned), sort_keys=False, width=120)
        write_text_atomic(file, HEAD.format(study=self._arms.study.name) + text)
        return True


def _entry(arm: ArmTrials, trial: FrozenTrial) -> Record:
    """A trial in trials.json."""
    head = {"arm": arm.arm, "number": trial.number, "values": point_of(trial.params, arm.space)}
    record: Mapping[str, Any] | None = trial.user_attrs.get(RECORD)
    if record is not None:
        return {**head, **record}
    state = RUNNING if trial.state == TrialState.RUNNING else FAILED
    return {**head, "state": state, "reason": None, "scores": {}, "intermediate": {}, "signatures": {}}
