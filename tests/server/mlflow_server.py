"""`mlflow server` as a process that can be killed and started again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from fake_runs import wait_for_server

from grpolab.studies import ui


class MlflowServer:
    """`mlflow server` on a database, with its artefacts in a folder."""

    def __init__(self, database: str, folder: Path) -> None:
        self.port = ui.free_port(46_000)
        self.uri = f"http://{ui.HOST}:{self.port}"
        self._folder = folder
        where = ["--backend-store-uri", database, "--artifacts-destination", str(folder / "remote")]
        address = ["--host", ui.HOST, "--port", str(self.port), "--workers", "1"]
        self._command = [sys.executable, "-m", "mlflow", "server", *where, *address]
        self.start()

    def start(self) -> None:
        """And wait until it answers."""
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        environment = {**os.environ, **ui.ENVIRONMENT}
        self._process = subprocess.Popen(self._command, env=environment, cwd=self._folder, **quiet)
        wait_for_server(self._process, self.port)

    def kill(self) -> None:
        """With -9, all of its processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
