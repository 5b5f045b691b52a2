"""Jobs as Slurm jobs, through submitit: one array for all that is ready at a time. `cluster: local` is a rehearsal.

A run that is pre-empted, or whose time is up, leaves with a checkpoint and waits in the queue again.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpolab.errors import near_matches
from grpolab.paths import Results
from grpolab.run.memory import cores
from grpolab.settings.run import SlurmLauncher
from grpolab.sweep.cluster import Cluster, Probe, Task
from grpolab.sweep.engine import Death, WorkerStartError
from grpolab.sweep.pool import environment

QUEUE_SECONDS = 5.0  # between two looks into the queue
COMMAND_SECONDS = 60.0  # most that Slurm may take for an answer
# What comes of the job itself, or has used up its attempts: it would come again.
FINAL_STATES = {"TIMEOUT", "OUT_OF_MEMORY"}


class SlurmEngine(Cluster):
    """The launcher `slurm`."""

    settings: SlurmLauncher

    def __init__(self, results: Results, settings: SlurmLauncher, jobs: int | None, threads: int, logs: Path) -> None:
        here = settings.cluster == "local"  # submitit starts there whatever it is given
        super().__init__(results, settings, jobs or (cores() if here else settings.most_at_once), logs)
        self._here, self._environment = here, environment(threads)
        self._queue, self._asked = set[str](), float("-inf")

    def connect(self) -> None:
        """Find submitit, and Slurm with the partition that is asked for."""
        self._submitit = importlib.import_module("submitit")  # by name: it is no dependency of the package
        if self._here:
            return
        try:
            known = {name.rstrip("*") for name in self._slurm("sinfo", "--noheader", "--format=%P").split()}
        except WorkerStartError as error:
            raise self.refusal(f"no Slurm answers here ({error}): call from a node where sinfo works") from error
        partition = self.settings.partition
        if partition and not set(partition.split(",")) <= known:
            near = near_matches(partition, known)
            have = ", ".join(sorted(known))
            raise self.refusal(f"machine.launcher.partition={partition} is unknown{near}: have {have}")

    def disconnect(self) -> None:
        """Nothing is held."""

    def probe(self, probe: Probe) -> list[Any]:
        """To whichever node Slurm chooses."""
        return self.submit([probe])

    def submit(self, tasks: Sequence[Task | Probe]) -> list[Any]:
        """One array."""
        settings, setup = self.settings, [f"export {name}={value}" for name, value in self._environment.items()]
        executor = self._submitit.AutoExecutor(
            self.logs,
            cluster=settings.cluster,
            slurm_max_num_timeout=settings.requeues,
            local_max_num_timeout=settings.requeues,
        )
        executor.update_parameters(
            name="grpolab",
            timeout_min=settings.timeout_minutes,
            mem_gb=settings.memory_gib,
            cpus_per_task=settings.cpus,
            gpus_per_node=settings.gpus,
            slurm_partition=settings.partition,
            slurm_array_parallelism=len(tasks),
            slurm_additional_parameters=settings.options,
            # The -P of `paths.PYTHON`, of a command that is submitit's.
            slurm_setup=[*setup, "export PYTHONSAFEPATH=1"],
            local_setup=[*setup, "export PYTHONSAFEPATH=1"],
        )
        errors = self._submitit.core.utils
        try:
            with executor.batch():
                handles = [executor.submit(task) for task in tasks]
        except (errors.FailedJobError, errors.FailedSubmissionError, OSError, subprocess.SubprocessError) as error:
            raise WorkerStartError(f"sbatch refuses: {' '.join(str(error).split())[-300:]}") from error
        self._asked = time.monotonic()  # they may not be in the queue yet
        self._queue |= {handle.job_id for handle in handles}
        return handles

    def ended(self, handle: Any) -> Any:
        """What it returned, or why it died: also where it is in the queue no longer, and has left no answer."""
        if not handle.paths.result_pickle.exists():
            if self._is_queued(handle) or handle.paths.result_pickle.exists():
                return None
            state = "" if self._here else self._state(handle.job_id)
            says = f"Slurm job {handle.job_id} has ended without an answer" + (f", {state}" if state else "")
            return Death(f"{says}: see {handle.paths.stderr}", again=state not in FINAL_STATES)
        error = handle.exception()
        return handle.result() if error is None else Death(_last_line(str(error)))

    def cancel(self, handles: Sequence[Any], waiting_only: bool = False) -> None:
        """Slurm itself knows which ones wait."""
        if self._here:
            for handle in [] if waiting_only else handles:
                handle.cancel()
        elif handles:
            only = ["--state=PENDING"] if waiting_only else []
            subprocess.run(["scancel", *only, *(handle.job_id for handle in handles)], check=False, capture_output=True)

    def _is_queued(self, handle: Any) -> bool:
        if self._here:
            return not handle.done()
        if time.monotonic() - self._asked > QUEUE_SECONDS:
            self._asked = time.monotonic()
            try:  # array elements one by one, their names as submitit has them
                listing = self._slurm("squeue", "--me", "--noheader", "--array", "--format=%A %F_%K")
            except WorkerStartError:  # the controller restarts: what was there is there
                return True
            self._queue = set(listing.split())
        return handle.job_id in self._queue

    def _state(self, job_id: str) -> str:
        try:
            found = re.search(r"JobState=(\w+)", self._slurm("scontrol", "show", "job", job_id))
        except WorkerStartError:
            return ""
        return found[1] if found else ""

    def _slurm(self, *command: str) -> str:
        """What a command of Slurm prints. Raises WorkerStartError."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True)
        except subprocess.CalledProcessError as error:
            raise WorkerStartError(" ".join(str(error.stderr).split())[:200]) from error
        except (OSError, subprocess.SubprocessError) as error:
            raise WorkerStartError(str(error)) from error
        return done.stdout


def _last_line(text: str) -> str:
    """The error at the end of a trace that submitit quotes."""
    lines = [line for line in text.splitlines() if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return lines[-1] if lines else text.partition("\n")[0]
