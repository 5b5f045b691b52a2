"""The engines for other machines, Ray and Slurm: the job that a node does, and the loop that hands jobs out.

Machines share only the results folder, where the command reads each run's progress. The cluster itself is asked only
whether a task has ended, and to cancel one; a cancelled run can continue from its last checkpoint. Ray and submitit are
imported by name, because the package does not depend on them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from grpolab import RESULTS_VERSION, __version__
from grpolab.errors import RequestError, near_matches
from grpolab.paths import Results, commit, read_json
from grpolab.run.lease import HERE, end_of_session
from grpolab.run.memory import cores
from grpolab.run_files import Record
from grpolab.settings.run import RayLauncher, SlurmLauncher
from grpolab.sweep import engine
from grpolab.sweep.engine import TICK_SECONDS, Death, Listener, WorkerStartError
from grpolab.sweep.jobs import RUN, Job, Schedule
from grpolab.sweep.ledger import last_row
from grpolab.sweep.worker import LEFT, do_job
from grpolab.vocabulary import MISSING

TAKEN = {"outcome": MISSING, "reason": "another command does it"}
CLOCK_SECONDS = 5.0  # most that machines' clocks may differ, because runs record when they began and ended
CANCEL_SECONDS = 45.0  # until a cancelled task has ended: Slurm kills after 30 s
MOST_REFUSALS, REFUSAL_SECONDS = 10, 30.0  # of submissions in a row, and between two
# Ray sends no statistics, waits for its own slow start on a busy machine, and does not repeat each warning.
RAY_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "error"}
RAY_ENVIRONMENT |= {"RAY_agent_register_timeout_ms": "120000"}
CONNECT_SECONDS = 10.0  # to a Ray at an address
QUEUE_SECONDS = 5.0  # between two looks into the queue
COMMAND_SECONDS = 60.0  # most that Slurm may take for an answer
FINAL_STATES = {"TIMEOUT", "OUT_OF_MEMORY"}  # another attempt would end in the same way


class NodeError(Exception):
    """A node whose program or machine differs, so that it would train something else than this one."""


@dataclass(frozen=True)
class NodeJob:
    """A job to be pickled and called on a node, where it does what a worker of this machine would do."""

    job: Job
    folder: str  # the command's working directory: relative paths in the settings start there
    mark: Path  # a file beside the logs, named by the session of the command
    expected: dict[str, Any]  # `describe_program` of the command's machine
    sent: float  # unix seconds on its clock

    def __call__(self) -> Record:
        """Return the job's outcome; TAKEN if another process has begun it since. Raises NodeError."""
        if problem := self.find_problem():
            raise NodeError(f"on node {socket.gethostname()} {problem}")
        os.chdir(self.folder)
        HERE.session = self.mark.name
        if self.job.is_taken(Results.open(self.job.settings["machine"]["results"])):
            return TAKEN
        return do_job(self.job.kind, self.job.signature, self.job.settings, lambda step: None, lambda: False)

    def find_problem(self) -> str | None:
        """Return what differs on this node from the command's machine."""
        if not Path(self.folder).is_dir():
            return f"there is no {self.folder}, the working directory of this command, which must be shared too"
        if not self.mark.exists():
            return f"{self.mark.parent} is another folder than here: machine.results must be on a shared file system"
        if (behind := self.sent - time.time()) > CLOCK_SECONDS:
            return f"the clock is {behind:.0f} s behind: runs are dated by it, and {CLOCK_SECONDS:g} s are allowed"
        for key, value in describe_program().items():
            if value != self.expected[key]:
                return f"{key} is {value}, and here {self.expected[key]}: they must be the same"
        return None

    def checkpoint(self) -> Any:
        """Return what submitit queues again after a pre-emption."""
        return importlib.import_module("submitit.helpers").DelayedSubmission(self)


def describe_program() -> dict[str, Any]:
    """Return what must be equal on all machines, so that one program trains all runs of a study."""
    return {
        "grpolab": __version__,
        "commit": commit(Path(__file__).parents[3]),
        "results_version": RESULTS_VERSION,
        "torch": importlib.metadata.version("torch"),
    }


class Submitted(engine.Assignment):
    """A job that was submitted to the cluster; `began` and `last_heard` are infinite while it is queued."""

    def __init__(self, job: Job, handle: Any, slot: int, progress: Record | None) -> None:
        super().__init__(job)
        self.began = self.last_heard = float("inf")
        self.handle, self.slot = handle, slot
        self.progress = progress  # last read from its folder; at first, what an earlier session left there
        self.end: Death | None = None  # why it is cancelled


class Cluster(engine.Engine):
    """An engine that sends jobs to a cluster, each of whose nodes is checked when it begins a job."""

    def __init__(
        self, results: Results, settings: RayLauncher | SlurmLauncher, jobs: int | None, threads: int, logs: Path
    ) -> None:
        super().__init__(results, jobs or 1, attempts=1 + settings.retries)
        self.settings, self.jobs, self.logs = settings, jobs, logs
        self.variables = engine.worker_environment(threads)
        self.session = f".session-{uuid.uuid4().hex}"
        self._submitted: dict[str, Submitted] = {}  # by signature
        self._left: set[str] = set()  # signatures of the runs that were told to leave
        self._refusals, self._not_before = 0, 0.0

    @abstractmethod
    def connect(self) -> None:
        """Reach the cluster and set `places`. Raises RequestError."""

    def disconnect(self) -> None:
        """Release what `connect` took."""

    @abstractmethod
    def submit(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Submit tasks; return a handle for each. Raises WorkerStartError if the cluster refuses them."""

    @abstractmethod
    def result_of(self, handle: Any) -> Any:
        """Return what a task returned, or its Death; None while it waits or runs."""

    @abstractmethod
    def cancel(self, handle: Any) -> None:
        """End a task at once."""

    def refusal(self, sentence: str) -> RequestError:
        return RequestError(f"machine.launcher.name={self.settings.name}: {sentence}")

    def __enter__(self) -> Self:
        try:
            self.connect()
        except BaseException:
            self.disconnect()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def run(self, schedule: Schedule, listener: Listener) -> None:
        """Do every job. Interrupted, cancel what runs and what waits in the queue.

        Raises RequestError if a node cannot begin its job.
        """
        self.schedule, self.listener = schedule, listener
        self.logs.mkdir(parents=True, exist_ok=True)
        mark = self.logs / self.session
        mark.touch()
        try:
            self._expected = describe_program()
            while schedule:
                self._hand_out(mark)
                time.sleep(TICK_SECONDS)
                for submitted in list(self._submitted.values()):
                    self._follow(submitted)
        finally:
            self._cancel_all()
            mark.unlink()

    def leave(self, signature: str) -> None:
        """Cancel a run; it can go on from its last checkpoint."""
        if signature in self._submitted:
            self._left.add(signature)
            self.cancel(self._submitted[signature].handle)

    def _hand_out(self, mark: Path) -> None:
        jobs = list[Job]()
        if time.monotonic() >= self._not_before:
            while len(self._submitted) + len(jobs) < self.places and (job := self.next_job()):
                self.schedule.hand_out(job)
                jobs.append(job)
        if not jobs:
            if not self._submitted:
                self.say_waiting()
            return
        before = [self._progress(job) for job in jobs]
        try:
            handles = self.submit([NodeJob(job, os.getcwd(), mark, self._expected, time.time()) for job in jobs])
            self._refusals = 0
        except WorkerStartError as error:
            self._refusals += 1
            if self._refusals == MOST_REFUSALS:
                raise
            for job in jobs:
                self.schedule.put_back(job)
            self._not_before = time.monotonic() + REFUSAL_SECONDS
            self.listener.note(f"{error}; tried again in {REFUSAL_SECONDS:.0f} s")
            return
        free = sorted(set(range(self.places)) - {submitted.slot for submitted in self._submitted.values()})
        for job, handle, slot, progress in zip(jobs, handles, free, before, strict=False):
            self._submitted[job.signature] = Submitted(job, handle, slot, progress)

    def _progress(self, job: Job) -> Record | None:
        """Return what a job's folder says of its progress: a run's heartbeat, a warm start's last step."""
        folder = job.folder(self.results)
        return read_json(folder / "running.json") if job.kind == RUN else last_row(folder / "journal.jsonl")

    def _follow(self, submitted: Submitted) -> None:
        """Read a job's progress; handle its end, or cancel it if it has passed a limit."""
        job, result, progress = submitted.job, self.result_of(submitted.handle), self._progress(submitted.job)
        folder = job.folder(self.results)
        if progress and progress != submitted.progress:
            ahead = progress.get("time", 0.0) - time.time()
            if ahead > CLOCK_SECONDS and submitted.began == float("inf"):  # its first sign of life
                late = f"{ahead:.0f} s ahead: runs are dated by it, and {CLOCK_SECONDS:g} s are allowed"
                raise self.refusal(f"on node {progress['host']} the clock is {late}")
            submitted.progress = progress
            self._hear(submitted)
            step = int(progress["rollout_step" if job.kind == RUN else "step"])
            if step > submitted.step:
                submitted.step = step
                self.listener.stepped(job, step)
        if result is None:
            passed = submitted.passed_limit(lambda: (last_row(folder / "timing.jsonl") or {}).get("system/rss_mib"))
            if passed and submitted.end is None:
                submitted.end = passed
                self.cancel(submitted.handle)
            return
        del self._submitted[job.signature]
        if result == TAKEN:
            self.schedule.put_back(job)
            return
        if isinstance(result, Death):
            end_of_session(folder, self.session)  # its process is gone, whatever its lease says
            left = LEFT if job.signature in self._left else None
            if (outcome := job.outcome(self.results) or left) is None:
                if submitted.began == float("inf") and not (result.again or submitted.end):
                    raise self.refusal(f"{job.label} could not begin: {result.reason}")
                self._hear(submitted)
                self.handle_death(job, submitted.end or result, submitted.step)
                return
            result = outcome
        self._hear(submitted)
        self._left.discard(job.signature)
        self.finish(job, result, submitted.step)

    def _hear(self, submitted: Submitted) -> None:
        now = time.monotonic()
        if submitted.began > now:
            submitted.began = now
            self.listener.started(submitted.job, submitted.slot)
        submitted.last_heard = now

    def _cancel_all(self) -> None:
        """Cancel all submitted jobs and end their leases, so that the same command can be repeated at once."""
        running, deadline = list(self._submitted.values()), time.monotonic() + CANCEL_SECONDS
        for submitted in running:
            self.cancel(submitted.handle)
        while running and time.monotonic() < deadline:
            for submitted in [one for one in running if self.result_of(one.handle) is not None]:
                end_of_session(submitted.job.folder(self.results), self.session)
                running.remove(submitted)
            time.sleep(TICK_SECONDS)


class RayEngine(Cluster):
    """The launcher `ray`. Ray itself reads the token of a cluster that asks for one (RAY_AUTH_TOKEN)."""

    settings: RayLauncher
    _ray: Any = None
    _temporary: str | None = None

    def connect(self) -> None:
        for name, value in RAY_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self._ray = ray = importlib.import_module("ray")
        address, options = self.settings.address, dict[str, Any]()
        if address is None:
            self._temporary = tempfile.mkdtemp(prefix="grpolab-ray-")
            options = {"num_cpus": cores(), "include_dashboard": False, "_temp_dir": self._temporary}
        host, _, port = (address or "").rpartition(":")
        environment = {"env_vars": self.variables}
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            if host and port.isdecimal() and "://" not in host:  # Ray would try for minutes
                socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
            options["address"] = address or "local"
            ray.init(log_to_driver=False, logging_level="ERROR", runtime_env=environment, **options)
        except Exception as error:
            problem = "no Ray could be started here"
            if address:
                problem = f"cannot join machine.launcher.address={address} (its token is RAY_AUTH_TOKEN)"
            raise self.refusal(f"{problem}: {_first_line(error)}") from error
        finally:
            for number, handler in handlers.items():  # Ray sets its own
                signal.signal(number, handler)
        sizes = {"CPU": self.settings.cpus, "GPU": self.settings.gpus}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        # Runs that fit on a node at a time.
        rooms = [min(int(node.get(kind, 0) / size + 1e-9) for kind, size in sizes.items() if size) for node in nodes]
        if not any(rooms):
            have = "; ".join(", ".join(f"{node.get(kind, 0):g} {kind}" for kind in sizes) for node in nodes)
            needed = f"machine.launcher.cpus={sizes['CPU']:g} and machine.launcher.gpus={sizes['GPU']:g}"
            raise self.refusal(f"no node has {needed}: they have {have}")
        self.places = self.jobs or sum(rooms)
        options = {"num_cpus": self.settings.cpus, "num_gpus": self.settings.gpus, "max_retries": 0}
        self._call = ray.remote(**options)(lambda task: task())

    def disconnect(self) -> None:
        if self._ray:
            self._ray.shutdown()
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def submit(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Submit each as a Ray task; Ray reuses its worker processes, so each imports everything only once."""
        try:
            return [self._call.remote(task) for task in tasks]
        except self._ray.exceptions.RayError as error:
            raise WorkerStartError(f"Ray takes no task: {_first_line(error)}") from error

    def result_of(self, handle: Any) -> Any:
        """Return the result or the death of a task; a lost node or a killed process is not the job's fault."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(handle, timeout=0)
        except errors.GetTimeoutError:
            return None
        except errors.RayTaskError as error:
            return Death(_first_line(error.cause or error))
        except errors.RayError as error:
            return Death(f"worker died ({_first_line(error)})", again=True)

    def cancel(self, handle: Any) -> None:
        self._ray.cancel(handle, force=True)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


class SlurmEngine(Cluster):
    """The launcher `slurm`."""

    settings: SlurmLauncher

    def connect(self) -> None:
        self._submitit = importlib.import_module("submitit")
        self._queue, self._read_at = set[str](), float("-inf")
        self._is_local = self.settings.cluster == "local"
        # submitit's local executor starts at once whatever it is given.
        self.places = self.jobs or (cores() if self._is_local else self.settings.most_at_once)
        if self._is_local:
            return
        try:
            known = {name.rstrip("*") for name in _slurm("sinfo", "--noheader", "--format=%P").split()}
        except WorkerStartError as error:
            raise self.refusal(f"no Slurm answers here ({error}): call from a node where sinfo works") from error
        if (partition := self.settings.partition) and not set(partition.split(",")) <= known:
            near, have = near_matches(partition, known), ", ".join(sorted(known))
            raise self.refusal(f"machine.launcher.partition={partition} is unknown{near}: have {have}")

    def submit(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        settings, requeues = self.settings, self.settings.requeues
        executor = self._submitit.AutoExecutor(
            self.logs, cluster=settings.cluster, slurm_max_num_timeout=requeues, local_max_num_timeout=requeues
        )
        # PYTHONSAFEPATH is the -P of `paths.PYTHON`, in a command that submitit writes.
        setup = [f"export {name}={value}" for name, value in {**self.variables, "PYTHONSAFEPATH": "1"}.items()]
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
        of_submitit = self._submitit.core.utils.FailedJobError, self._submitit.core.utils.FailedSubmissionError
        try:
            with executor.batch():
                handles = [executor.submit(task) for task in tasks]
        except (*of_submitit, OSError, subprocess.SubprocessError) as error:
            raise WorkerStartError(f"sbatch refuses: {' '.join(str(error).split())[-300:]}") from error
        self._read_at = time.monotonic()  # they may not be in the queue yet
        self._queue |= {handle.job_id for handle in handles}
        return handles

    def result_of(self, handle: Any) -> Any:
        """Return a job's result or its Death; a job that left the queue without a result is dead too."""
        answer = handle.paths.result_pickle
        if not answer.exists():
            if self._is_queued(handle) or answer.exists():
                return None
            reason = f"Slurm job {handle.job_id} has ended without an answer ({handle.state})"
            return Death(f"{reason}: see {handle.paths.stderr}", again=handle.state not in FINAL_STATES)
        error = handle.exception()
        return handle.result() if error is None else Death(_last_error(str(error)))

    def cancel(self, handle: Any) -> None:
        """Cancel a queued or running job; Slurm sends a running one SIGTERM first, and kills it after 30 seconds."""
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
