"""Jobs as tasks of a Ray cluster: one that is there, or one that is started on this machine and ends with the sweep."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpolab.paths import Results
from grpolab.run.memory import cores
from grpolab.settings.run import RayLauncher
from grpolab.sweep.cluster import Cluster, Probe, Task
from grpolab.sweep.engine import TICK_SECONDS, Death, WorkerStartError
from grpolab.sweep.pool import environment

# Ray tells nobody that it runs, waits for its own slow start on a busy machine, and does not repeat each warning.
SURROUNDINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_BACKEND_LOG_LEVEL": "error",
}
CONNECT_SECONDS = 10.0


class RayEngine(Cluster):
    """The launcher `ray`. The token of a cluster that asks for one is Ray's own business (RAY_AUTH_TOKEN)."""

    settings: RayLauncher

    def __init__(self, results: Results, settings: RayLauncher, jobs: int | None, threads: int, logs: Path) -> None:
        super().__init__(results, settings, jobs or 1, logs)
        self._jobs, self._environment = jobs, environment(threads)
        self._ray: Any = None
        self._temporary: str | None = None

    def connect(self) -> None:
        """Start a Ray here, or join the one at `address`."""
        for name, value in SURROUNDINGS.items():
            os.environ.setdefault(name, value)
        self._ray = ray = importlib.import_module("ray")  # by name: it is no dependency of the package
        address = self.settings.address
        if address is None:
            self._temporary = tempfile.mkdtemp(prefix="grpolab-ray-")
            cluster = {"num_cpus": cores(), "include_dashboard": False, "_temp_dir": self._temporary}
        else:
            self._reach(address)
            cluster = {}
        # What Ray says of a lost node, forty lines, would stand in the middle of the table: `ended` says it in one.
        loud: Any = importlib.import_module("ray._private.worker")
        loud.print_to_stdstream = lambda *args, **kwargs: None
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={"env_vars": self._environment},
                **cluster,
            )
        except Exception as error:
            where = (
                f"no cluster at machine.launcher.address={address} lets this command in (its token is RAY_AUTH_TOKEN)"
                if address
                else "none could be started here"
            )
            raise self.refusal(f"{where}: {_first_line(error)}") from error
        finally:
            for number, handler in handlers.items():  # Ray puts its own there
                signal.signal(number, handler)
        self._nodes = [node for node in ray.nodes() if node["Alive"]]
        room = sum(self._room(node["Resources"]) for node in self._nodes)
        if not room:
            asked = f"machine.launcher.cpus={self.settings.cpus:g} and machine.launcher.gpus={self.settings.gpus:g}"
            have = "; ".join(
                f"{node['Resources'].get(kind, 0):g} {kind}" for node in self._nodes for kind in ("CPU", "GPU")
            )
            raise self.refusal(f"no node has {asked}: they have {have}")
        self.places = self._jobs or room
        options = {"num_cpus": self.settings.cpus, "num_gpus": self.settings.gpus, "max_retries": 0}
        self._do = ray.remote(**options)(_call)

    def disconnect(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self._ray:
            self._ray.shutdown()
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def probe(self, probe: Probe) -> list[Any]:
        """To each node; it waits for no place."""
        affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        return [
            self._do.options(num_cpus=0, num_gpus=0, scheduling_strategy=affinity(node["NodeID"], soft=False)).remote(
                probe
            )
            for node in self._nodes
            if self._room(node["Resources"])
        ]

    def submit(self, tasks: Sequence[Task | Probe]) -> list[Any]:
        """A Ray task each; a process of Ray's does one after the other, so that imports are paid once."""
        try:
            return [self._do.remote(task) for task in tasks]
        except self._ray.exceptions.RayError as error:
            raise WorkerStartError(f"Ray takes no task: {_first_line(error)}") from error

    def ended(self, handle: Any) -> Any:
        """What it returned, or why it died; a lost node and a killed process are not the job's own doing."""
        done, _ = self._ray.wait([handle], timeout=0)
        if not done:
            return None
        errors = self._ray.exceptions
        try:
            return self._ray.get(handle)
        except errors.RayTaskError as error:
            return Death(_first_line(error.cause or error))
        except errors.RayError as error:
            return Death(f"worker died ({_first_line(error)})", again=True)

    def cancel(self, handles: Sequence[Any], waiting_only: bool = False) -> None:
        """Ray interrupts a task that has begun meanwhile as Ctrl-C would."""
        for handle in handles:
            self._ray.cancel(handle, force=not waiting_only)

    def wait(self, handles: Sequence[Any]) -> None:
        """Until a task has ended, or a tick."""
        if handles:
            self._ray.wait(list(handles), timeout=TICK_SECONDS)
        else:
            super().wait(handles)

    def _room(self, resources: dict[str, float]) -> int:
        """Runs that fit on a node at a time."""
        asked = {"CPU": self.settings.cpus, "GPU": self.settings.gpus}
        return min(int(resources.get(kind, 0) / amount + 1e-9) for kind, amount in asked.items() if amount)

    def _reach(self, address: str) -> None:
        """Raises RequestError where nobody listens at `host:port`: Ray itself would try for minutes."""
        host, _, port = address.rpartition(":")
        if host and port.isdecimal() and "://" not in address:
            try:
                socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
            except OSError as error:
                raise self.refusal(f"nobody answers at machine.launcher.address={address}: {error}") from error


def _call(task: Task | Probe) -> Any:
    return task()


def _first_line(error: BaseException) -> str:
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}"
