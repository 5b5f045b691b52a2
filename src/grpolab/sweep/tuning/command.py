"""`grpolab tune STUDY`: check all that can be known to be wrong, do the trials that are missing, write what came out.

Exit codes: 0 every arm has its trials, 1 something failed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning

from grpolab.errors import RequestError
from grpolab.paths import Results, read_json
from grpolab.settings import RunSettings
from grpolab.sweep.launch import interruptible, mirrored
from grpolab.sweep.machine import slots
from grpolab.sweep.plan import Plan
from grpolab.sweep.pool import WORKER_COMMAND, Pool, WorkerStartError
from grpolab.sweep.progress import print_table
from grpolab.sweep.request import Request
from grpolab.sweep.tuning.arms import Arms
from grpolab.sweep.tuning.progress import TuningProgress, values_line
from grpolab.sweep.tuning.running import Score
from grpolab.sweep.tuning.storage import Owner, check_uri, default_uri, is_there, open_storage
from grpolab.sweep.tuning.trials import ArmTrials
from grpolab.sweep.tuning.tuner import Tuner
from grpolab.sweep.wording import duration

Draw = Callable[[Results, str], None]
WhySame = Callable[[RunSettings, RunSettings], list[str] | None]


def tune(
    arms: Arms,
    score: Score,
    draw: Draw,
    tuned: Path,
    jobs: int | None = None,
    storage: str | None = None,
    command: Sequence[str] = WORKER_COMMAND,
) -> int:
    """Do what is left of a study's tuning on `jobs` workers, and `draw` what came out; the exit code.

    The best values go into the file `tuned` when every arm has its trials.

    Raises RequestError before anything starts, KeyboardInterrupt (also on SIGTERM) after the workers have ended.
    """
    base = [cell for arm in arms.names for cell in arms.cells(arm, 0, {})]
    request = Request([Plan(arms.study.model_copy(update={"name": arms.plan_name}), arms.tuning.seeds, base)])
    results, name = request.results, arms.study.name
    folder = results.studies / name / "tuning"
    uri = storage or default_uri(folder)
    jobs = check_uri(uri, jobs)
    if jobs == 1 and uri.startswith("sqlite:///") and (others := Owner(folder).others()):
        raise RequestError(f"--storage {uri} serves one command at a time, and {others[0]} is at work on it")
    settings = [cell.settings for cell in base]
    uses_gpu = any(one.resolved().device == "cuda" for one in settings)
    places = slots(jobs, uses_gpu, max(one.machine.threads for one in settings), results.studies / arms.plan_name)
    with _quiet(), interruptible():
        trials = _open_trials(arms, uri, parallel=len(places) > 1)
        tuner = Tuner(arms, trials, results, score, folder, len(places))
        places = places[: tuner.open_trials()]
        _say_plan(arms, trials, uri, len(places))
        tuner.book.write()
        with mirrored(results, request.tracking_uri, arms.plan_name), tuner.owner.at_work():
            if places:
                _run(tuner, Pool(places, results, command))
            if tuner.book.is_done():
                place = uri.replace(f"{results.root}/", "")  # where the results lie is this machine's
                written = tuner.book.write_tuned(tuned, place)
                print(f"tuned values: {tuned}" if written else "no tuned values: an arm has no complete trial")
            draw(results, name)
        return _conclude(tuner, trials)


def check_effects(arms: Arms, why_same: WhySame) -> None:
    """Raises RequestError for each key that an arm does not use: `why_same` says why two runs are one function."""
    problems = []
    for arm in arms.names:
        for key, (first, *others) in arms.corners(arm):
            reasons = [why_same(first, other) for other in others]
            if all(reason is not None for reason in reasons):
                problems.append(f"tuning: arm {arm} makes no use of {key}: {'; '.join(reasons[0] or [])}")
    if problems:
        raise RequestError(problems)


def _open_trials(arms: Arms, uri: str, parallel: bool) -> list[ArmTrials]:
    """The trials of each arm. Raises RequestError where the storage has those of another study."""
    existed = is_there(uri)
    storage = open_storage(uri)
    if existed and not uri.startswith(("postgresql", "mysql")):
        names = {study.study_name.rpartition("/")[0] for study in storage.get_all_studies()}
        if names and arms.study.name not in names:
            raise RequestError(f"--storage {uri} holds the tuning of {', '.join(sorted(names))}: name another one")
    return [ArmTrials(storage, arms, arm, parallel) for arm in arms.names]


def _run(tuner: Tuner, pool: Pool) -> None:
    tuner.leave = pool.leave
    progress = TuningProgress(tuner)
    try:
        with pool:
            pool.run(tuner, progress)
    except WorkerStartError as error:
        print(error)
    if progress.busy_seconds:
        share = tuner.seconds / progress.busy_seconds
        print(
            f"{progress.ended} trials: {duration(progress.busy_seconds)} of workers; the tuner itself took"
            f" {tuner.seconds:.1f} s, {share:.1%} of that; pruning saved {progress.saved:.0%} of the optimiser steps"
        )


def _say_plan(arms: Arms, trials: Sequence[ArmTrials], uri: str, workers: int) -> None:
    rows = [
        [arm.arm, ", ".join(arm.space), str(arm.tuning.trials), str(arm.taken() - len(arm.running()))] for arm in trials
    ]
    print_table(("arm", "keys", "trials", "done"), rows)
    tuning = arms.tuning
    how = f"sampler {tuning.sampler}, pruner {tuning.pruner.name}, seeds {', '.join(map(str, tuning.seeds))}"
    print(f"{how}; storage {uri}; workers: {workers}" if workers else "0 trials to do: every arm has its own")


def _conclude(tuner: Tuner, trials: Sequence[ArmTrials]) -> int:
    """Say the best values, and what is missing; the exit code."""
    found = read_json(tuner.book.file) or {}
    entries = {(entry["arm"], entry["number"]): entry for entry in found["trials"]}
    for arm in trials:
        for number in found["best"][arm.arm]:
            entry = entries[arm.arm, number]
            scores = ", ".join(f"{metric} {score['mean']:.4g}" for metric, score in entry["scores"].items())
            print(f"best of {arm.arm}: trial {number}: {values_line(entry['values'])}: {scores}")
        if failed := tuner.failed[arm.arm]:
            print(f"{arm.arm}: {failed} trials failed; the same command makes up for them")
    return 0 if tuner.book.is_done() else 1


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna says every trial, and that parts of it may change."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield
