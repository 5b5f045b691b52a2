"""Jobs as Slurm jobs, through submitit: one array for all that is ready at a time. `cluster: local` is a rehearsal.

submitit puts a run that is pre-empted, or whose time is up, into the queue again; it goes on from its last checkpoint.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from grpolab.errors import near_matches
from grpolab.run.memory import cores
from grpolab.settings.run import SlurmLauncher
from grpolab.sweep.cluster import Cluster
from grpolab.sweep.engine import Death, WorkerStartError, worker_environment

QUEUE_SECONDS = 5.0  # between two looks into the queue
COMMAND_SECONDS = 60.0  # most that Slurm may take for an answer
FINAL_STATES = {"TIMEOUT", "OUT_OF_MEMORY"}  # another attempt would end in the same way


class SlurmEngine(Cluster):
    """The launcher `slurm`."""

    settings: SlurmLauncher

    def connect(self) -> None:
        """Find submitit, and Slurm with the partition that is asked for."""
        self._submitit = importlib.import_module("submitit")  # by name: the package does not depend on it
        self._queue, self._read_at = set[str](), float("-inf")
        self._is_local = self.settings.cluster == "local"
        # submitit's local executor starts at once whatever it is given.
        self.places = self.jobs or (cores() if self._is_local else self.settings.most_at_once)
        partition = self.settings.partition
        if self._is_local:
            return
        try:
            known = {name.rstrip("*") for name in _slurm("sinfo", "--noheader", "--format=%P").split()}
        except WorkerStartError as error:
            raise self.refusal(f"no Slurm answers here ({error}): call from a node where sinfo works") from error
        if partition and not set(partition.split(",")) <= known:
            near, have = near_matches(partition, known), ", ".join(sorted(known))
            raise self.refusal(f"machine.launcher.partition={partition} is unknown{near}: have {have}")

    def submit(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Submit one array."""
        settings, requeues = self.settings, self.settings.requeues
        executor = self._submitit.AutoExecutor(
            self.logs, cluster=settings.cluster, slurm_max_num_timeout=requeues, local_max_num_timeout=requeues
        )
        # PYTHONSAFEPATH is the -P of `paths.PYTHON`, in a command that submitit writes.
        variables = worker_environment(self.threads) | {"PYTHONSAFEPATH": "1"}
        setup = [f"export {name}={value}" for name, value in variables.items()]
        executor.update_parameters(
            name="grpolab",
            timeout_min=settings.timeout_minutes,
            mem_gb=settings.memory_gib,
            cpus_per_task=settings.cpus,
            gpus_per_node=settings.gpus,
            slurm_partition=settings.partition,
            slurm_array_parallelism=len(tasks),
            slurm_additional_parameters=settings.options,
            slurm_setup=setup,
            local_setup=setup,
        )
        errors = self._submitit.core.utils
        try:
            with executor.batch():
                handles = [executor.submit(task) for task in tasks]
        except (errors.FailedJobError, errors.FailedSubmissionError, OSError, subprocess.SubprocessError) as error:
            raise WorkerStartError(f"sbatch refuses: {' '.join(str(error).split())[-300:]}") from error
        self._read_at = time.monotonic()  # they may not be in the queue yet
        self._queue |= {handle.job_id for handle in handles}
        return handles

    def result_of(self, handle: Any) -> Any:
        """Return the result or the death of a job; dead is also one that left the queue without an answer."""
        answer = handle.paths.result_pickle
        if not answer.exists():
            if self._is_queued(handle) or answer.exists():
                return None
            reason = (
                f"Slurm job {handle.job_id} has ended without an answer ({handle.state}): see {handle.paths.stderr}"
            )
            return Death(reason, again=handle.state not in FINAL_STATES)
        error = handle.exception()
        return handle.result() if error is None else Death(_last_error(str(error)))

    def cancel(self, handle: Any) -> None:
        """End a job, in the queue too; Slurm asks a running one first, and kills it after half a minute."""
        handle.cancel(check=False)

    def _is_queued(self, handle: Any) -> bool:
        if self._is_local:
            return not handle.done()
        if time.monotonic() - self._read_at > QUEUE_SECONDS:
            self._read_at = time.monotonic()
            try:  # elements of an array one by one, named as submitit names them
                listing = _slurm("squeue", "--me", "--noheader", "--array", "--format=%A %F_%K")
            except WorkerStartError:  # the controller restarts: what was in the queue still is
                return True
            self._queue = set(listing.split())
        return handle.job_id in self._queue


def _slurm(*command: str) -> str:
    """Return what a command of Slurm prints. Raises WorkerStartError."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = " ".join(str(getattr(error, "stderr", None) or error).split())
        raise WorkerStartError(said[:200]) from error
    return done.stdout


def _last_error(text: str) -> str:
    """Return the error at the end of a traceback that submitit quotes."""
    lines = [line for line in text.splitlines() if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return lines[-1] if lines else text.partition("\n")[0]
