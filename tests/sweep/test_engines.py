"""What Ray and Slurm share, with a cluster that does its tasks in this process: neither needs to be installed."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grpolab.errors import RequestError
from grpolab.paths import Results, read_json, write_json_atomic
from grpolab.run import preflight
from grpolab.run.lease import Host, Lease
from grpolab.settings.resolved import resolve_run
from grpolab.settings.run import RayLauncher
from grpolab.studies.train import train
from grpolab.sweep import cluster, worker
from grpolab.sweep.cluster import TAKEN, Cluster, Probe, Task, program
from grpolab.sweep.compose import compose
from grpolab.sweep.engine import Death
from grpolab.sweep.help import help_text
from grpolab.sweep.jobs import Job, Request, Schedule
from grpolab.sweep.multirun import cell_of
from grpolab.sweep.plan import plans
from grpolab.sweep.worker import LEFT

RAY = RayLauncher(name="ray", address=None, cpus=1, gpus=0, retries=2, answer_seconds=5)
DONE = {"outcome": "completed", "reason": None, "seconds": 0.1}


class Here(Cluster):
    """Does a task when it is handed over. `accidents`: what happens instead, by label, one after the other."""

    def __init__(self, results: Results, places: int = 2, **accidents: list[Any]) -> None:
        super().__init__(results, RAY, places, results.root / "logs")
        self.accidents, self.handed, self.cancelled = accidents, list[str](), list[tuple[int, bool]]()
        self.connected = False

    def connect(self) -> None:
        self.connected = True

    def disconnect(self) -> None:
        self.connected = False

    def probe(self, probe: Probe) -> list[Any]:
        return [probe()]

    def submit(self, tasks: Sequence[Any]) -> list[Any]:
        return [self._do(task) for task in tasks]

    def _do(self, task: Task) -> Any:
        self.handed.append(task.job.label)
        left = self.accidents.get(task.job.label)
        accident = left.pop(0) if left else None
        return accident(task) if callable(accident) else accident or task()

    def ended(self, handle: Any) -> Any:
        return None if handle == "goes on" else handle

    def cancel(self, handles: Sequence[Any], waiting_only: bool = False) -> None:
        self.cancelled.append((len(handles), waiting_only))

    def wait(self, handles: Sequence[Any]) -> None:
        time.sleep(0.001)


class Elsewhere(Host):
    """Another machine."""

    def holder(self) -> dict[str, Any]:
        return super().holder() | {"host": "elsewhere"}


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.what: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.what.append((name, *(getattr(part, "label", part) for part in given)))

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [told[1:] for told in self.what if told[0] == name]


def job(label: str, root: Path, warm_start: str | None = None) -> Job:
    limits = dict.fromkeys(("cell_timeout_seconds", "hang_seconds", "memory_mib"))
    settings = {"machine": {"results": str(root), **limits}}
    behind = warm_start and name_of(warm_start)
    return Job("warm_start" if label == "w" else "run", name_of(label), label, settings, 1.0, 5, behind)


def name_of(label: str) -> str:
    """A signature that says which job's it is."""
    return label.replace("w", "f") * 16


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The labels of the jobs that were really done, in order; a node's work is to write an outcome."""
    order: list[str] = []

    def do(kind: str, name: str, values: Any, on_step: Any, stop: Any) -> dict[str, Any]:
        results = Results.open(values["machine"]["results"])
        folder = results.run(name) if kind == "run" else results.warm_start(name)
        order.append("w" if kind == "warm_start" else name[0])
        write_json_atomic(folder / "outcome.json", DONE)
        return DONE

    monkeypatch.setattr(cluster, "do", do)
    return order


def test_each_job_is_done_once_and_its_warm_start_before(tmp_path: Path, done: list[str]) -> None:
    jobs = [job("a", tmp_path, "w"), job("b", tmp_path, "w"), job("c", tmp_path), job("w", tmp_path)]
    engine, heard = Here(Results.open(tmp_path)), Heard()
    engine.run(Schedule(jobs), heard)
    assert sorted(done) == ["a", "b", "c", "w"]
    assert done.index("w") < min(done.index("a"), done.index("b"))
    assert sorted(name for name, _ in heard.of("finished")) == ["a", "b", "c", "w"]
    assert {slot for _, slot in heard.of("started")} <= {0, 1}, "never more are out than there are places"


def test_a_lost_job_is_done_again_as_often_as_the_launcher_says(tmp_path: Path, done: list[str]) -> None:
    lost, results = Death("the node is gone", again=True), Results.open(tmp_path)
    engine, heard = Here(results), Heard()
    node = Elsewhere()
    node.session = engine.session

    def lost_on_the_way(task: Task) -> Death:
        assert Lease(results.run(task.job.signature), node).attempt()
        return lost

    engine.accidents = {"a": [lost_on_the_way, lost], "b": [lost, lost, lost], "c": [Death("crashed")]}
    engine.run(Schedule([job(label, tmp_path) for label in "abc"]), heard)
    assert engine.handed.count("a") == 3
    assert engine.handed.count("b") == 1 + RAY.retries
    assert engine.handed.count("c") == 1, "what is the job's own doing would come again"
    assert done == ["a"], "the lease of the process that is no more holds nobody up"
    outcomes = {label: read_json(results.run(name_of(label)) / "outcome.json") for label in "abc"}
    assert [(outcome or {})["outcome"] for outcome in outcomes.values()] == ["completed", "failed", "failed"]
    assert (outcomes["b"] or {})["reason"] == "the node is gone"
    assert len(heard.of("returned")) == 2 + RAY.retries


def test_a_duplicate_in_the_queue_ends_at_once_and_its_outcome_is_waited_for(tmp_path: Path, done: list[str]) -> None:
    results = Results.open(tmp_path)

    def begun_meanwhile(task: Task) -> Any:
        lease = Lease(results.run(name_of("a")), Elsewhere())
        assert lease.attempt()
        answer = task()
        lease.release()
        write_json_atomic(results.run(name_of("a")) / "outcome.json", DONE)
        assert answer == TAKEN
        return answer

    engine, heard = Here(results, a=[begun_meanwhile]), Heard()
    engine.run(Schedule([job("a", tmp_path)]), heard)
    assert (engine.handed, done) == (["a"], [])
    assert heard.of("finished") == [("a", DONE)]


def test_a_run_leaves_where_its_folder_says_so_and_only_for_its_own_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.0)
    results = Results.open(tmp_path)
    engine, asked = Here(results), list[bool]()
    note = results.run(name_of("a")) / cluster.LEAVE

    def do(kind: str, name: str, values: Any, on_step: Any, stop: Any) -> dict[str, Any]:
        asked.append(stop())
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text("another session")
        asked.append(stop())
        engine._out[name_of("a")] = cluster.Out(job("a", tmp_path), None, 0, None)
        engine.leave(name_of("a"))
        asked.append(stop())
        return LEFT

    monkeypatch.setattr(cluster, "do", do)
    assert Task(job("a", tmp_path), str(tmp_path), engine.session)() is LEFT
    assert asked == [False, False, True]
    assert not note.exists()


def test_an_interrupted_command_asks_runs_to_leave_and_takes_back_what_waits(tmp_path: Path) -> None:
    results = Results.open(tmp_path)

    class Interrupted(Here):
        def wait(self, handles: Sequence[Any]) -> None:
            if self.cancelled:
                self.ended = lambda handle: LEFT  # type: ignore[method-assign]
                seen.append((results.run(name_of("a")) / cluster.LEAVE).read_text())
            else:
                raise KeyboardInterrupt

    seen: list[str] = []
    engine = Interrupted(results, a=["goes on"], w=["goes on"])
    with pytest.raises(KeyboardInterrupt):
        engine.run(Schedule([job("a", tmp_path), job("w", tmp_path)]), Heard())
    assert seen == [engine.session]
    assert engine.cancelled == [(1, True), (1, False)], "waiting runs, and warm starts, which have no checkpoint"
    assert not (results.run(name_of("a")) / cluster.LEAVE).exists()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"nonce": None}, "is not the folder that it is here: machine.results must be on a file system that all share"),
        ({"folder": False}, "the working directory of this command, which must be shared too"),
        ({"program": {**program(), "commit": "0" * 40}}, f"commit is {'0' * 40}, and here {program()['commit']}"),
        ({"program": {**program(), "results_version": 0}}, "results_version is 0, and here"),
        ({"time": 0.0}, "the clock is off by 1"),
        ({"node": "which-wrote-nothing"}, "does not appear here: machine.results must be shared"),
    ],
)
def test_a_node_that_differs_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], says: str
) -> None:
    monkeypatch.setattr(cluster, "VISIBLE_SECONDS", 0.0)
    results = Results.open(tmp_path)

    class Different(Here):
        def probe(self, probe: Probe) -> list[Any]:
            return [probe() | changed]

    before, engine = sorted(tmp_path.rglob("*")), Different(results)
    with pytest.raises(RequestError, match=r"machine\.launcher\.name=ray: on node ") as refused, engine:
        pass
    assert says in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before
    assert not engine.connected


def test_nodes_that_do_not_answer_in_time_are_refused(tmp_path: Path) -> None:
    class Silent(Here):
        settings = RAY

        def probe(self, probe: Probe) -> list[Any]:
            self.settings = RAY.model_copy(update={"answer_seconds": 0.01})
            return ["goes on"]

    engine = Silent(Results.open(tmp_path))
    with (
        pytest.raises(RequestError, match=r"1 of 1 nodes that were asked have not answered within answer_seconds"),
        engine,
    ):
        pass
    assert engine.cancelled == [(1, False)]


def test_like_nodes_are_taken(tmp_path: Path) -> None:
    with Here(Results.open(tmp_path)) as engine:
        assert engine.connected
    assert not engine.connected
    assert not list(tmp_path.glob(".probe-*"))


def test_a_launcher_is_no_part_of_what_a_run_is() -> None:
    shared = ["launcher=ray", "machine.launcher.cpus=0.5"]
    assert resolve_run(compose(shared)).identity() == resolve_run(compose([])).identity()
    assert cell_of(compose(shared), shared).variant == cell_of(compose([]), []).variant
    launcher = compose([*shared, "machine.launcher.address=10.0.0.1:6379"]).machine.launcher
    assert launcher == RAY.model_copy(
        update={"cpus": 0.5, "address": "10.0.0.1:6379", "retries": 3, "answer_seconds": 120}
    )
    with pytest.raises(RequestError, match=r"machine\.launcher\.cpus=0 is not allowed"):
        compose(["launcher=ray", "machine.launcher.cpus=0"])
    with pytest.raises(RequestError, match=r"machine\.launcher\.partition is unknown"):
        compose(["launcher=ray", "machine.launcher.partition=gpu"])


def test_help_says_what_each_key_of_a_launcher_is() -> None:
    page = help_text(["machine.launcher"])
    for key in ("address", "retries", "partition", "requeues", "options"):
        assert f"machine.launcher.{key} " in page


def test_what_is_not_installed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    absent = {"ray", "submitit"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in absent else find(name, *more))
    for launcher, package in (("ray", "ray"), ("slurm", "submitit")):
        (problem,) = preflight.check(compose([f"launcher={launcher}", "device=cpu"]), Results.open(tmp_path))
        assert problem == f"launcher={launcher} needs the package {package}: `make extras WHAT=engines` installs it"


def test_a_gpu_is_asked_for_in_both_places_or_in_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *given: object())
    wrong = preflight.check(compose(["launcher=ray", "device=cuda"]), Results.open(tmp_path))
    assert ["machine.launcher.gpus=0 does not go with device=cuda" in problem for problem in wrong] == [True]
    asked = compose(["launcher=ray", "device=cuda", "machine.launcher.gpus=0.25"])
    assert preflight.check(asked, Results.open(tmp_path)) == [], "no GPU is needed on the machine that asks"


def test_a_single_run_has_no_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_launcher", lambda settings: [])
    shared = [f"machine.results={tmp_path}", "machine.tracking_uri=null", "launcher=slurm"]
    with pytest.raises(RequestError, match="launcher=slurm is for several runs"):
        train(cell_of(compose(shared), shared), "adhoc", shared)
    assert Request(plans("smoke", shared)).launcher is not None


def test_a_job_names_the_device_that_auto_is_here(tmp_path: Path) -> None:
    shared = [f"machine.results={tmp_path}", "machine.tracking_uri=null", "device=auto"]
    jobs = Request(plans("smoke", shared)).jobs()
    assert {job.settings["device"] for job in jobs} <= {"cpu", "cuda"}
    assert json.dumps(jobs[0].settings), "plain values: they go to other machines"
    assert worker.LEFT["outcome"] == "missing"
