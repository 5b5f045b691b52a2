"""Jobs as tasks of a Ray cluster: an existing one, or one that is started here and ends with the sweep."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from grpolab.run.memory import cores
from grpolab.settings.run import RayLauncher
from grpolab.sweep.cluster import Cluster
from grpolab.sweep.engine import Death, WorkerStartError, worker_environment

# Ray sends no statistics, waits for its own slow start on a busy machine, and does not repeat each warning.
RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_BACKEND_LOG_LEVEL": "error",
}
CONNECT_SECONDS = 10.0


class RayEngine(Cluster):
    """The launcher `ray`. Ray itself reads the token of a cluster that asks for one (RAY_AUTH_TOKEN)."""

    settings: RayLauncher
    _ray: Any = None
    _temporary: str | None = None

    def connect(self) -> None:
        for name, value in RAY_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self._ray = ray = importlib.import_module("ray")  # by name: the package does not depend on it
        address, options = self.settings.address, dict[str, Any]()
        if address is None:
            self._temporary = tempfile.mkdtemp(prefix="grpolab-ray-")
            options = {"num_cpus": cores(), "include_dashboard": False, "_temp_dir": self._temporary}
        host, _, port = (address or "").rpartition(":")
        environment = {"env_vars": worker_environment(self.threads)}
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
        """Submit a Ray task each; a process of Ray's does one after another and pays for its imports once."""
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
