"""A PostgreSQL server of its own, from Debian's packages: made in a folder, on a loopback port, gone afterwards."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOST = "127.0.0.1"
PASSWORD = "sUp3rs3cret-pg"
PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


class Postgres:
    """The server; its user is `lab`, who has the password `PASSWORD` and may make databases."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder.parent / "postgres.log"
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port: int = probe.getsockname()[1]
        self.address = f"{HOST}:{self.port}"
        # PostgreSQL refuses to run as root.
        self._user = {"user": "postgres", "group": "postgres"} if os.getuid() == 0 else {}
        if self._user:
            shutil.chown(folder.parent, "postgres", "postgres")
        secret = folder.parent / "password"
        secret.write_text(PASSWORD)
        if self._user:
            shutil.chown(secret, "postgres")
        self._do("initdb", "-D", str(folder), "-U", "lab", "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync")
        secret.unlink()
        self.start()

    def _do(self, program: str, *arguments: str) -> None:
        command = [str(PROGRAMS[-1] / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder.parent, **self._user)  # type: ignore[call-overload]

    def start(self) -> None:
        """And wait until it answers."""
        options = f"-h {HOST} -p {self.port} -k {self.folder.parent} -c fsync=off"
        self._do("pg_ctl", "-D", str(self.folder), "-l", str(self.log), "-w", "-o", options, "start")

    def kill(self) -> None:
        """SIGQUIT, which asks nobody: connections break, and what was not committed is lost."""
        pid = int((self.folder / "postmaster.pid").read_text().splitlines()[0])
        os.kill(pid, signal.SIGQUIT)
        while (self.folder / "postmaster.pid").exists():
            time.sleep(0.05)

    def _ask(self, program: str, database: str, *options: str) -> str:
        """What a client answers, as the user `lab`."""
        where = ["-h", HOST, "-p", str(self.port), "-U", "lab", "-d", database]
        command, environment = [str(PROGRAMS[-1] / program), *where, *options], {**os.environ, "PGPASSWORD": PASSWORD}
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()

    def query(self, statement: str, database: str = "postgres") -> str:
        return self._ask("psql", database, "-v", "ON_ERROR_STOP=1", "-Atc", statement)

    def database(self, name: str) -> str:
        """The URI of a new, empty database."""
        self.query(f"create database {name}")
        return f"postgresql://lab@{self.address}/{name}"

    def dump(self, database: str) -> str:
        """All that is in a database."""
        said = self._ask("pg_dump", database)
        return re.sub(r"^\\(un)?restrict .*", "", said, flags=re.MULTILINE)  # a word that is another one each time


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server in a folder of its own below /tmp, where its user may go."""
    with tempfile.TemporaryDirectory(prefix="grpolab-postgres-") as folder:
        server = Postgres(Path(folder) / "data")
        try:
            yield server
        finally:
            if (server.folder / "postmaster.pid").exists():
                server.kill()
