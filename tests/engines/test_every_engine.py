"""One tiny study through every engine, equal to the bit. `make test-all WHAT=engines` installs what it needs."""

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from grpolab.paths import Results, project_root
from grpolab.studies.sweep import sweep
from grpolab.sweep.plan import plans

pytestmark = [pytest.mark.optional, pytest.mark.timeout(900)]

# Two arms of a tiny model, looked at after five and ten seeds, and two values of a key to choose from.
STUDY = {
    "question": "Does everything that a command does go over an engine?",
    "overrides": [
        *("task=addition", "task.digits=1", "reward.weights={correct: 1.0, format: 1.0}", "warm_start.max_steps=0"),
        *("model.hidden_size=16", "model.layers=1", "model.heads=2", "model.intermediate_size=32"),
        *("max_completion_length=3", "prompts_per_step=4", "num_generations=4", "rollout_steps=4"),
        *("learning_rate=0.01", "evaluation.every=2", "evaluation.items=20"),
    ],
    "factors": {"clip": {"symmetric": [], "no_clip": ["kernel=ratio"]}},
    "compare": "clip",
    "baseline": "symmetric",
    "seeds": 2,
    "primary_metric": "eval/accuracy_expected",
    "hypotheses": [
        {
            **{"id": "H", "says": "Accuracy ends lower.", "metric": "final_score", "direction": "less"},
            **{"contrast": {"of": "no_clip", "minus": "symmetric"}, "budget": "rollouts", "source": "none"},
        }
    ],
    "figures": ["F1"],
    "tuning": {
        "space": {"learning_rate": {"choices": [1.0e-4, 1.0e-3]}},
        "sampler": "grid",
        "trials": 2,
        "seeds": [1000],
        "objectives": [{"metric": "final_score", "direction": "maximize"}],
        "pruner": {"name": "none"},
    },
}
SLURM = Path(__file__).parent / "slurm_here.sh"
CLUSTER = """
import signal, sys, time
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
second = cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
sys.stdin.readline()
cluster.remove_node(second, allow_graceful=False)
print("killed", flush=True)
sys.stdin.readline()
cluster.shutdown()
"""
# Where `shut` lies beside it, a process waits in its second rollout step, and says so.
REWARD = """
import os, time
from pathlib import Path

HERE = Path(__file__).parent
scored = 0


def score(prompt, answer, completion):
    global scored
    scored += 1
    end = time.monotonic() + 300
    while scored > 300 and (HERE / "shut").exists():
        (HERE / f"waits-{os.getpid()}").touch()
        assert time.monotonic() < end, "nobody opened the gate"
        time.sleep(0.05)
    return float(answer == completion)
"""


class Gate:
    """Holds runs in their second rollout step, in whichever process they are."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "rewards.py").write_text(REWARD)
        reward = [f"reward.function={folder / 'rewards.py'}:score", "reward.weights={correct: 1.0}"]
        self.overrides = [*reward, "machine.tracking_uri=null"]

    def shut(self):
        for file in self.folder.glob("waits-*"):
            file.unlink()
        (self.folder / "shut").touch()

    def open(self):
        (self.folder / "shut").unlink(missing_ok=True)

    def waiting(self):
        """How many runs have come to it."""
        return len(list(self.folder.glob("waits-*")))


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    """One for all, since its path is part of each run's settings."""
    return Gate(tmp_path_factory.mktemp("gate"))


def through(root, gate, *overrides, jobs=None):
    """What the study comes to: the hashes of each run's journal and weights."""
    asked = plans("smoke", [f"machine.results={root}", *gate.overrides, *overrides])
    assert sweep(asked, jobs, report=False) == 0
    files = [file for name in ("journal.jsonl", "policy.safetensors") for file in Results(root).runs.glob(f"*/{name}")]
    assert len(files) == 2 * sum(len(plan.cells) for plan in asked)
    return {f"{file.parent.name}/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def once(is_so, do):
    """Do something as soon as something is so."""

    def watch():
        while not is_so():
            time.sleep(0.1)
        do()

    threading.Thread(target=watch, daemon=True).start()


@pytest.fixture(scope="module")
def local(tmp_path_factory, gate):
    gate.open()
    return through(tmp_path_factory.mktemp("local"), gate, jobs=1)


def test_two_workers_here(local, gate, tmp_path):
    assert through(tmp_path, gate, jobs=2) == local


@pytest.fixture
def cluster():
    """A Ray of two nodes, its address on standard output; a line on standard input kills the second."""
    pytest.importorskip("ray")
    environment, pipe = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}, subprocess.PIPE
    words = [sys.executable, "-c", CLUSTER]
    process = subprocess.Popen(words, env=environment, start_new_session=True, stdin=pipe, stdout=pipe, text=True)
    yield process
    process.communicate("\n\n", timeout=60)


def test_ray_of_which_a_node_is_killed(local, cluster, gate, tmp_path):
    """While each node has a run that has done a step."""
    address, stdin, stdout = cluster.stdout.readline().strip(), cluster.stdin, cluster.stdout
    said_so = []

    def kill():
        stdin.write("\n")
        stdin.flush()
        said_so.append(stdout.readline())
        gate.open()

    gate.shut()
    once(lambda: gate.waiting() == 2, kill)
    assert through(tmp_path, gate, "launcher=ray", f"machine.launcher.address={address}") == local
    assert said_so == ["killed\n"]


def test_submitit_on_this_machine(local, gate, tmp_path):
    pytest.importorskip("submitit")
    assert through(tmp_path, gate, "launcher=slurm", "machine.launcher.cluster=local", jobs=2) == local


@pytest.mark.slow
def test_slurm_of_which_a_job_is_preempted(local, gate, tmp_path, monkeypatch):
    """Minutes: Slurm holds a job that it has requeued for two."""
    pytest.importorskip("submitit")
    if os.geteuid() or not all(map(shutil.which, ("slurmctld", "slurmd", "munged", "sbatch"))):
        pytest.skip("needs root and Debian's slurmctld, slurmd, slurm-client and munge")
    slurm, root = tmp_path / "slurm", tmp_path / "results"
    monkeypatch.setenv("SLURM_CONF", str(slurm / "slurm.conf"))
    requeued = []

    def preempt():
        listing = subprocess.run(["squeue", "-rht", "R", "-o", "%i"], capture_output=True, text=True, check=True)
        requeued.extend(listing.stdout.split()[:1])
        subprocess.run(["scancel", "--signal", signal.Signals.SIGUSR2.name[3:], *requeued], check=True)
        gate.open()

    gate.shut()
    subprocess.run([SLURM, "start", slurm], check=True)
    try:
        once(gate.waiting, preempt)
        options = ["launcher=slurm", "machine.launcher.partition=first", "machine.launcher.memory_gib=1"]
        assert through(root, gate, *options) == local
    finally:
        subprocess.run([SLURM, "stop", slurm], check=True)
    said = "".join(file.read_text() for file in (root / "studies").rglob(f"{requeued[0]}_0_log.out"))
    assert f"Requeued job {requeued[0]}" in said
    assert socket.gethostname() in said


@pytest.fixture(params=["ray", "submitit"])
def engine(request):
    """Overrides that choose an engine: a Ray of two nodes, or submitit's local executor."""
    pytest.importorskip(request.param)
    if request.param == "submitit":
        return ["launcher=slurm", "machine.launcher.cluster=local"]
    ray = request.getfixturevalue("cluster")
    return ["launcher=ray", f"machine.launcher.address={ray.stdout.readline().strip()}"]


def command(*words, folder=None):
    """`grpolab`, as a process of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, "-m", "grpolab", *words], cwd=folder, **pipes)


def said(*words, folder=None):
    """What a command prints that ends well."""
    process = command(*words, folder=folder)
    text = process.communicate(timeout=600)[0]
    assert process.returncode == 0, text
    return text


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_command_that_ends_is_given_again(number, engine, local, gate, tmp_path):
    words = [f"machine.results={tmp_path}", *gate.overrides, *engine]
    gate.shut()
    sweeping = command("sweep", "smoke", *words)
    deadline = time.monotonic() + 300
    while not gate.waiting() and sweeping.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert gate.waiting(), sweeping.communicate()[0]
    assert "running" in said("status", "smoke", f"--results={tmp_path}")
    sweeping.send_signal(number)
    gate.open()
    text = sweeping.communicate(timeout=120)[0]
    assert "Traceback" not in text
    assert sweeping.returncode == (-number if number == signal.SIGKILL else 130), text
    assert not list(Results(tmp_path).runs.glob("*/leave"))
    assert through(tmp_path, gate, *engine) == local


@pytest.mark.slow
def test_ray_that_the_command_starts_itself(local, gate, tmp_path):
    pytest.importorskip("ray")
    assert through(tmp_path, gate, "launcher=ray") == local


@pytest.mark.slow
def test_looks_events_and_tuning(engine, tmp_path):
    (tmp_path / "experiments").mkdir()
    shutil.copytree(project_root() / "conf", tmp_path / "conf")
    (tmp_path / "experiments" / "mine.yaml").write_text(yaml.safe_dump(STUDY))

    def all_of_it(root, *overrides):
        """What the looks said, and the trials of the tuning."""
        words = [f"machine.results={root}", "machine.tracking_uri=null", *overrides]
        looked = said("sweep", "mine", "--until-decided", "--max-seeds=10", "--json-lines", *words, folder=tmp_path)
        events = [json.loads(line) for line in looked.splitlines() if line.startswith("{")]
        said("tune", "mine", *words, folder=tmp_path)
        trials = json.loads(Results(root).trials("mine").read_text())["trials"]
        looks = [{**event, "time": None} for event in events if event["event"] in ("look", "end")]
        return looks, trials

    looks, trials = all_of_it(tmp_path / "there", *engine)
    assert [event.get("seeds") for event in looks] == [5, 10, None]
    assert (looks, trials) == all_of_it(tmp_path / "here")
