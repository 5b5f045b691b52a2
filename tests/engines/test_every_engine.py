"""The same tiny study through every engine, to the bit the same. `make test-engines` installs what it needs."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpolab.paths import Results, read_json
from grpolab.sweep.launch import sweep
from grpolab.sweep.plan import plans

pytestmark = [pytest.mark.optional, pytest.mark.timeout(900)]

SLURM = Path(__file__).parent / "slurm_here.sh"
CLUSTER = """
import signal, sys, time
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
second = cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
sys.stdin.readline()
cluster.remove_node(second, allow_graceful=False)
sys.stdin.readline()
cluster.shutdown()
"""


def through(root: Path, *overrides: str, jobs: int | None = None) -> dict[str, str]:
    """What the study comes to: the hashes of each run's journal and weights."""
    asked = plans("smoke", [f"machine.results={root}", "machine.tracking_uri=null", *overrides])
    assert sweep(asked, lambda results, study: None, jobs) == 0
    files = [file for name in ("journal.jsonl", "policy.safetensors") for file in Results(root).runs.glob(f"*/{name}")]
    assert len(files) == 2 * sum(len(plan.cells) for plan in asked)
    assert not list(root.glob(".probe-*"))
    return {f"{file.parent.name}/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def once(is_so: Callable[[], Any], do: Callable[[], Any]) -> threading.Thread:
    """Do something as soon as something is so."""

    def watch() -> None:
        while not is_so():
            time.sleep(0.1)
        do()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def running(root: Path) -> list[Path]:
    """The runs that have done a step and are not done yet."""
    beats = [(file.parent, read_json(file)) for file in Results(root).runs.glob("*/running.json")]
    return [folder for folder, beat in beats if beat and beat["rollout_step"] > 0]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return through(tmp_path_factory.mktemp("local"), jobs=1)


def test_two_workers_here(local: dict[str, str], tmp_path: Path) -> None:
    assert through(tmp_path, jobs=2) == local


@pytest.fixture
def cluster() -> Iterator[subprocess.Popen[str]]:
    """A Ray of two nodes, its address on standard output; a line on standard input kills the second."""
    pytest.importorskip("ray")
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", CLUSTER], env=environment, start_new_session=True, **pipes)
    yield process
    process.communicate("\n\n", timeout=60)


def test_ray_of_which_a_node_is_killed(local: dict[str, str], cluster: subprocess.Popen[str], tmp_path: Path) -> None:
    assert cluster.stdin
    assert cluster.stdout
    address, stdin = cluster.stdout.readline().strip(), cluster.stdin

    def kill() -> None:
        stdin.write("\n")
        stdin.flush()

    killing = once(lambda: len(running(tmp_path)) == 2, kill)
    assert through(tmp_path, "launcher=ray", f"machine.launcher.address={address}") == local
    killing.join(1)
    assert not killing.is_alive(), "no node was killed while two runs were on their way"


def test_submitit_on_this_machine(local: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    assert through(tmp_path, "launcher=slurm", "machine.launcher.cluster=local", jobs=2) == local


@pytest.mark.slow
def test_slurm_of_which_a_job_is_preempted(
    local: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minutes: Slurm holds a job that it has requeued for two."""
    pytest.importorskip("submitit")
    if os.geteuid() or not all(map(shutil.which, ("slurmctld", "slurmd", "munged", "sbatch"))):
        pytest.skip("needs root and Debian's slurmctld, slurmd, slurm-client and munge")
    slurm, root = tmp_path / "slurm", tmp_path / "results"
    monkeypatch.setenv("SLURM_CONF", str(slurm / "slurm.conf"))
    requeued: list[str] = []

    def preempt() -> None:
        listing = subprocess.run(["squeue", "-rht", "R", "-o", "%i"], capture_output=True, text=True, check=True)
        requeued.extend(listing.stdout.split()[:1])
        subprocess.run(["scancel", "--signal", signal.Signals.SIGUSR2.name[3:], *requeued], check=True)

    subprocess.run([SLURM, "start", slurm], check=True)
    try:
        once(lambda: running(root), preempt)
        options = ["launcher=slurm", "machine.launcher.partition=first", "machine.launcher.memory_gib=1"]
        assert through(root, *options) == local
    finally:
        subprocess.run([SLURM, "stop", slurm], check=True)
    said = "".join(file.read_text() for file in (root / "studies").rglob(f"{requeued[0]}_0_log.out"))
    assert f"Requeued job {requeued[0]}" in said
    assert socket.gethostname() in said
