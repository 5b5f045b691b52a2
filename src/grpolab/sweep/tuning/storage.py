"""The trials of one arm in the storage: asked for, reported, told. One Optuna study each, `<study>/<arm>`."""

from __future__ import annotations

import json
import os
import socket
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock, get_lock_file
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from grpolab import RESULTS_VERSION
from grpolab.errors import RequestError
from grpolab.identity import plain
from grpolab.paths import Results, read_json, write_json_atomic, write_text_atomic
from grpolab.run.folder import exclusive, is_held
from grpolab.sweep.plan import Cell, Plan
from grpolab.sweep.request import commit
from grpolab.sweep.tuning.arms import TRIAL, Arms, Point, override
from grpolab.sweep.tuning.sampling import point_of, pruner, sampler, suggest

# States of a trial, in trials.json.
COMPLETE, PRUNED, DIVERGED, FAILED, RUNNING = "complete", "pruned", "diverged", "failed", "running"
TOLD = {COMPLETE: TrialState.COMPLETE, DIVERGED: TrialState.COMPLETE, PRUNED: TrialState.PRUNED}
OWNER, RECORD, IDENTITY = "owner", "record", "identity"  # attributes in the storage

Record = dict[str, Any]


class ArmTrials:
    """The trials of an arm."""

    def __init__(self, storage: BaseStorage, arms: Arms, arm: str, parallel: bool) -> None:
        """Raises RequestError where the storage has another tuning of that name."""
        self.arm, self.space, self.tuning, self._parallel = arm, arms.space(arm), arms.tuning, parallel
        settings = arms.settings(arm, {})
        self.seed_steps = settings.planned_steps
        first = max(self.tuning.pruner.after, settings.evaluation.every)
        self.name = f"{arms.study.name}/{arm}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            self._study = optuna.create_study(
                storage=storage,
                study_name=self.name,
                directions=[objective.direction for objective in self.tuning.objectives],
                pruner=pruner(self.tuning.pruner, first, self.seed_steps * len(self.tuning.seeds)),
                load_if_exists=True,
            )
        self._claim(plain(arms.identity(arm)))

    def _claim(self, identity: Record) -> None:
        there = self._study.user_attrs.get(IDENTITY)
        if there is None and not self.all():
            self._study.set_user_attr(IDENTITY, identity)
        elif there != identity:
            keys = sorted(key for key in identity if (there or {}).get(key) != identity[key])
            raise RequestError(
                f"the storage holds another tuning under the name {self.name}: {', '.join(keys)} changed since; name"
                " another --storage, or move that one away"
            )

    def all(self) -> list[FrozenTrial]:
        """Every trial, by number."""
        return self._study.get_trials(deepcopy=False)

    def taken(self) -> int:
        """Trials that count towards the budget: finished, or on their way. A failed one is made up for."""
        return sum(trial.state != TrialState.FAIL for trial in self.all())

    def running(self) -> list[FrozenTrial]:
        """Trials on their way, whoever does them."""
        return [trial for trial in self.all() if trial.state == TrialState.RUNNING]

    def ask(self, owner: str) -> ArmTrial:
        """A new trial. Who asks has the tuning's lock, so that its number is known before."""
        self._study.sampler = sampler(self.tuning, self.space, len(self.all()), "", self._parallel)
        return self._owned(self._study.ask(), owner)

    def adopt(self, trial: FrozenTrial, owner: str) -> ArmTrial:
        """A trial that a dead command has left; it goes on as if nothing had been."""
        self._study.sampler = sampler(self.tuning, self.space, trial.number, "", self._parallel)
        return self._owned(optuna.trial.Trial(self._study, trial._trial_id), owner)

    def _owned(self, trial: optuna.Trial, owner: str) -> ArmTrial:
        trial.set_user_attr(OWNER, owner)
        together = self._study.sampler
        for key, values in self.space.items():
            if self.tuning.sampler != "cmaes":  # which draws all keys at once
                self._study.sampler = sampler(self.tuning, self.space, trial.number, key, self._parallel)
            suggest(trial, key, values)
        self._study.sampler = together
        return ArmTrial(self, self._study, trial)


class ArmTrial:
    """One trial on its way."""

    def __init__(self, arm: ArmTrials, study: optuna.Study, trial: optuna.Trial) -> None:
        self.arm, self._study, self._trial = arm, study, trial
        self.number = trial.number
        self.point: Point = point_of(trial.params, arm.space)
        told = self._frozen().intermediate_values  # by a command that died
        self._told, self._last_told = set(told), max(told, default=-1)

    def _frozen(self) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[self.number]

    @property
    def record(self) -> Record | None:
        """What a command that died before it could tell had found."""
        return self._trial.user_attrs.get(RECORD)

    @property
    def started(self) -> datetime | None:
        """When it was asked for."""
        return self._trial.datetime_start

    def is_hopeless(self, step: int, value: float, judged: bool = True) -> bool:
        """Report a value, in the direction of the objective; where it is to be `judged`, ask the pruner."""
        if step not in self._told:
            self._trial.report(value, step)
        return judged and step >= self._last_told and self._trial.should_prune()

    def tell(self, record: Record) -> None:
        """End the trial; the record first, so that a kill in between changes nothing."""
        self._trial.set_user_attr(RECORD, record)
        state = TOLD.get(record["state"], TrialState.FAIL)
        means = (
            [float(record["scores"][one.metric]["mean"]) for one in self.arm.tuning.objectives]
            if state == TrialState.COMPLETE
            else None
        )
        self._study.tell(self.number, means, state, skip_if_finished=True)


# ----------------------------------------------------------------------------------------------------------------------
# What a tuning writes: its runs' plan, trials.json and conf/tuned/<study>.yaml, all made from the storage.


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


# ----------------------------------------------------------------------------------------------------------------------
# Where Optuna keeps the trials: a journal file, or a database by its URI. Everything else is made from it.


JOURNAL = "journal:"
DATABASES = ("sqlite:///", "postgresql", "mysql")


class FlockedFile(BaseJournalFileLock):
    """Optuna's own locks outlive a killed holder by half a minute; this one dies with it."""

    def __init__(self, path: Path) -> None:
        self._path, self._held = path, ExitStack()

    def acquire(self) -> bool:
        """Wait for it."""
        self._held.enter_context(exclusive(self._path))
        return True

    def release(self) -> None:
        """Give it back."""
        self._held.close()


class JournalFile(JournalFileBackend):
    """Optuna's journal without its flush to the disk at every line, which takes as long as an evaluation.

    A kill loses nothing. What a power cut takes is told again from the run folders, which are flushed.
    """

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._flock = file, FlockedFile(file.with_name(f"{file.name}.lock"))
        super().__init__(str(file), self._flock)
        with get_lock_file(self._flock):  # half a line, onto which the next one would be written
            whole = file.read_bytes().rfind(b"\n") + 1
            if whole < file.stat().st_size:
                os.truncate(file, whole)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append in one piece."""
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with get_lock_file(self._flock), self._file.open("ab") as opened:
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
        own = self.folder / self.name
        with exclusive(own):
            try:
                yield
            finally:
                own.unlink(missing_ok=True)

    def is_dead(self, name: str | None) -> bool:
        """Whether nobody does the trials of that owner any more but we ourselves; None: it died before it signed."""
        return name is None or name == self.name or not is_held(self.folder / name)

    def others(self) -> list[str]:
        """Other commands that are at work on this tuning."""
        with suppress(FileNotFoundError):
            return sorted(one.name for one in self.folder.iterdir() if one.name != self.name and is_held(one))
        return []
