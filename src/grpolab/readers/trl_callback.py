"""A run folder of ours while TRL trains: `trainer.add_callback(RunFolder("results"))`, and nothing else changes.

What TRL logs becomes journal rows in our vocabulary, so that `grpolab diagnose RUN` reads the run at any moment and
`grpolab report --from trl results/runs` compares several. Completions, weights and evaluations stay TRL's.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from transformers import TrainerCallback, TrainerControl, TrainerState

from grpolab.errors import Damaged
from grpolab.framework_names import LOG_NAMES, TRL_NAMES
from grpolab.identity import signature
from grpolab.meanings import METRICS
from grpolab.paths import Results, plain, write_json_atomic, write_text_atomic
from grpolab.run.folder import Heartbeat, Journal, Outcome, conclude, line
from grpolab.run.lease import Lease, LeaseLost
from grpolab.run.provenance import installed_version, of_program
from grpolab.run.watch import Tail
from grpolab.terminal import say
from grpolab.vocabulary import COMPLETED, DIVERGED

# Arguments that have the same name in TRL and here.
SAME = ("beta", "num_iterations", "max_grad_norm", "loss_type", "epsilon", "epsilon_high", "delta")
SETTINGS = TRL_NAMES | {name: name for name in (*SAME, "importance_sampling_level", "lr_scheduler_type")}
# Arguments that say where a run is kept and shown, or how often it is: they do not make it another run.
PLACES = re.compile(r"(hub|push|logging|save|report|resume|disable_tqdm|output_dir|run_name|local_rank|log_).*|.*token")
held: dict[Path, Lease] = {}  # by run folder: interrupted training that continues in this process still has its lease
FRESH = "reward"  # TRL logs it only for a fresh batch


class RunFolder(TrainerCallback):
    """Writes `results/runs/<signature>/`: settings, provenance, journal and timing while TRL trains, its outcome last.

    `results` is a results folder, a relative one below the working folder, as for everything in a training script;
    `name` tells runs apart whose arguments are the same, such as those of two reward functions. A run is never written
    over: one that is trained again gets a number behind its signature. Where training begins, a line on stderr says
    where it is written, and what reads it. Where the disk refuses, a sentence says so and training goes on. Of several
    processes the first one writes. Raises RequestError if `results` cannot be used.
    """

    def __init__(self, results: str | Path = "results", name: str = "") -> None:
        self.results, self.name = Results.open(Path.cwd() / Path(results).expanduser()), name
        self.folder: Path | None = None  # of the run that is written
        self._began = time.perf_counter()
        self._last: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Begin a folder; go on in that of the run that is resumed, from the checkpoint's step."""
        if not state.is_world_process_zero:
            return
        options = {key: value for key, value in args.to_sanitized_dict().items() if not key.endswith("token")}
        kept = {key: value for key, value in options.items() if not PLACES.fullmatch(key)}
        model = getattr(getattr(given.get("model"), "config", None), "_name_or_path", "")
        identity = signature({"framework": "trl", "name": self.name, "model": model, **plain(kept)})
        try:
            self.folder = folder = self._place(identity, state.global_step > 0)
            held[folder].keep()
            journal = folder / "journal.jsonl"
            kept_rows = (row for row in Tail(journal).read() if row["optimizer_step"] < state.global_step)
            self._journal = Journal(
                journal, sum(len(line(row)) for row in kept_rows)
            )  # what is behind is trained again
            self._timing = Journal(folder / "timing.jsonl", sys.maxsize if state.global_step else 0)
            settings = {ours: getattr(args, theirs) for theirs, ours in SETTINGS.items() if hasattr(args, theirs)}
            settings |= {"num_minibatches": _minibatches(args)}
            settings = {key: _as_written(value) for key, value in settings.items()} | {"model": {"path": model}}
            write_text_atomic(folder / "settings.yaml", yaml.safe_dump(settings, sort_keys=False))
            framework = {"name": "trl", "version": installed_version("trl"), "arguments": options}
            write_json_atomic(folder / "provenance.json", {**of_program(), "framework": framework, "name": self.name})
            self._beat = Heartbeat(folder, _rollout_step(args, state.max_steps) + 1)
            self._beat.beat(_rollout_step(args, state.global_step + 1), time.time())
            where = shlex.quote(str(folder))
            say(f"this run is written to {folder}: `grpolab diagnose {where}` reads it", error=True)
        except (OSError, LeaseLost, Damaged) as error:
            self._give_up(error)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **given: Any) -> None:
        """Write a row for the update, and one for the rollout if the batch is new; skip evaluations and summaries."""
        logs = logs or {}
        if not self.folder or "loss" not in logs or "train_runtime" in logs or state.global_step < 1:
            return
        rows: dict[str, dict[str, float]] = {"update": {}, "rollout": {}}
        for theirs, ours in reversed(LOG_NAMES["trl"].items()):  # of two names of one metric the first counts
            if ours in METRICS and isinstance(logs.get(theirs), int | float):
                rows[METRICS[ours].kind][ours] = float(logs[theirs])
        number, step = state.global_step - 1, _rollout_step(args, state.global_step)
        within = divmod(number % (args.num_iterations * _minibatches(args)), _minibatches(args))
        is_each = args.logging_steps == 1  # else a row is a mean over several updates
        place = dict(zip(("iteration", "minibatch"), within, strict=True)) if is_each else {}
        self._last = logs
        try:
            self._journal.append(kind="update", rollout_step=step, **place, optimizer_step=number, **rows["update"])
            if FRESH in logs:
                self._journal.append(kind="rollout", rollout_step=step, optimizer_step=number, **rows["rollout"])
            elapsed = {"seconds/elapsed": time.perf_counter() - self._began}
            self._timing.append(rollout_step=step, time_ms=int(time.time() * 1000), **elapsed)
            self._journal.flush()
            self._timing.flush()
            self._beat.beat(step + 1, time.time())
        except (OSError, LeaseLost) as error:
            self._give_up(error)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Write the outcome: the run diverged if its last loss or gradient norm is not finite."""
        if not self.folder:
            return
        odd = [name for name in ("loss", "grad_norm") if not math.isfinite(float(self._last.get(name, 0)))]
        reason = f"{odd[0]} is not finite in the last log" if odd else None
        if not odd and state.global_step < state.max_steps:
            reason = f"training was ended at optimiser step {state.global_step} of {state.max_steps}"
        try:
            self._journal.close()
            self._timing.close()
            outcome = Outcome(
                outcome=DIVERGED if odd else COMPLETED,
                reason=reason,
                rollout_steps=_rollout_step(args, state.global_step) + 1 if state.global_step else 0,
                optimizer_steps=state.global_step,
                journal_sha256=self._journal.sha256,
                seconds=time.perf_counter() - self._began,
            )
            conclude(self.folder, outcome)
            held.pop(self.folder).release()
        except (OSError, LeaseLost) as error:
            self._give_up(error)

    def _place(self, identity: str, is_resumed: bool) -> Path:
        """Return a new folder for this run, or the unfinished folder of the run that is resumed."""
        number = 1
        while True:
            folder = self.results.run(identity if number == 1 else f"{identity}-{number}")
            if not folder.exists() or (is_resumed and not (folder / "outcome.json").exists()):
                if folder in held:
                    held.pop(folder).release()
                if (lease := Lease(folder)).attempt():
                    held[folder] = lease
                    return folder
            number += 1

    def _give_up(self, error: Exception) -> None:
        say(f"{self.folder} is not written any more, training goes on: {error}", error=True)
        if self.folder in held:
            held.pop(self.folder).release()
        self.folder = None


def _minibatches(args: Any) -> int:
    """Return the optimiser steps of one pass over a batch of completions."""
    return max(1, args.steps_per_generation // args.gradient_accumulation_steps)


def _rollout_step(args: Any, optimizer_steps: int) -> int:
    return (optimizer_steps - 1) // (args.num_iterations * _minibatches(args))


def _as_written(value: Any) -> Any:
    return value if value is None or type(value) in (bool, int, float, str) else str(getattr(value, "value", value))
