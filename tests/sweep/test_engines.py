"""What Ray and Slurm share, with a cluster that does its tasks in this process: neither needs to be installed."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Sequence
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
from grpolab.sweep import cluster
from grpolab.sweep.cluster import TAKEN, Cluster, NodeJob, program
from grpolab.sweep.compose import compose
from grpolab.sweep.engine import Death
from grpolab.sweep.help import help_text
from grpolab.sweep.jobs import Job, Request, Schedule
from grpolab.sweep.multirun import cell_of
from grpolab.sweep.plan import plans

RAY = RayLauncher(name="ray", address=None, cpus=1, gpus=0, retries=2, answer_seconds=5)
DONE = {"outcome": "completed", "reason": None, "seconds": 0.1}
LOST = Death("the node is gone", again=True)
RUNNING = "it runs"


class Here(Cluster):
    """Does a task when it is submitted. `accidents`: by label, what happens instead at the first attempt, and so on."""

    def __init__(self, results: Results, **accidents: list[Any]) -> None:
        super().__init__(results, RAY, 2, 1, results.root / "logs")
        self.accidents, self.submitted = accidents, list[str]()
        self.cancelled: list[Any] = []
        self.is_connected = False

    def connect(self) -> None:
        self.is_connected = True

    def disconnect(self) -> None:
        self.is_connected = False

    def submit_probe(self, probe: Callable[[], Any], logs: Path) -> list[Any]:
        return [probe()]

    def submit(self, tasks: Sequence[Any], logs: Path) -> list[Any]:
        return [self._do(task) for task in tasks]

    def _do(self, task: NodeJob) -> Any:
        self.submitted.append(task.job.label)
        left = self.accidents.get(task.job.label)
        accident = left.pop(0) if left else None
        return accident(task) if callable(accident) else accident or task()

    def result_of(self, handle: Any) -> Any:
        return None if handle == RUNNING and handle not in self.cancelled else LOST if handle == RUNNING else handle

    def cancel(self, handle: Any) -> None:
        self.cancelled.append(handle)


class Elsewhere(Host):
    """Another machine."""

    def holder(self) -> dict[str, Any]:
        return super().holder() | {"host": "elsewhere"}


class Events:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.heard.append((name, *(getattr(part, "label", part) for part in given)))

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [event[1:] for event in self.heard if event[0] == name]


def job(label: str, root: Path, warm_start: str | None = None) -> Job:
    limits = dict.fromkeys(("cell_timeout_seconds", "hang_seconds", "memory_mib"))
    settings = {"machine": {"results": str(root), **limits}}
    kind = "warm_start" if label == "w" else "run"
    return Job(kind, signature(label), label, settings, 1.0, 5, warm_start and signature(warm_start))


def signature(label: str) -> str:
    return label.replace("w", "f") * 16


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "TICK_SECONDS", 0.001)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The labels of the jobs that were really done, in order; a node's work is to write an outcome."""
    order: list[str] = []

    def do_job(kind: str, name: str, values: Any, *_: Any) -> dict[str, Any]:
        results = Results.open(values["machine"]["results"])
        folder = results.run(name) if kind == "run" else results.warm_start(name)
        order.append("w" if kind == "warm_start" else name[0])
        write_json_atomic(folder / "outcome.json", DONE)
        return DONE

    monkeypatch.setattr(cluster, "do_job", do_job)
    return order


def test_each_job_is_done_once_and_its_warm_start_before(tmp_path: Path, done: list[str]) -> None:
    jobs = [job("a", tmp_path, "w"), job("b", tmp_path, "w"), job("c", tmp_path), job("w", tmp_path)]
    events = Events()
    Here(Results.open(tmp_path)).run(Schedule(jobs), events)
    assert sorted(done) == sorted(name for name, _ in events.of("finished")) == ["a", "b", "c", "w"]
    assert done.index("w") < min(done.index("a"), done.index("b"))
    assert {slot for _, slot in events.of("started")} <= {0, 1}, "never more are out than there are places"


def test_a_lost_job_is_done_again_as_often_as_the_launcher_says(tmp_path: Path, done: list[str]) -> None:
    results = Results.open(tmp_path)
    engine, events, node = Here(results), Events(), Elsewhere()
    node.session = engine.session

    def lose_with_its_lease(task: NodeJob) -> Death:
        assert Lease(results.run(task.job.signature), node).attempt()
        return LOST

    engine.accidents = {"a": [lose_with_its_lease, LOST], "b": [LOST, LOST, LOST], "c": [Death("crashed")]}
    engine.run(Schedule([job(label, tmp_path) for label in "abc"]), events)
    assert [engine.submitted.count(label) for label in "abc"] == [3, 1 + RAY.retries, 1], "a crash would come again"
    assert done == ["a"], "the lease of the process that is gone holds nobody up"
    outcomes = [read_json(results.run(signature(label)) / "outcome.json") or {} for label in "abc"]
    assert [outcome["outcome"] for outcome in outcomes] == ["completed", "failed", "failed"]
    assert outcomes[1]["reason"] == "the node is gone"
    assert len(events.of("returned")) == 2 + RAY.retries


def test_a_job_that_another_process_has_begun_ends_at_once_and_its_outcome_is_waited_for(
    tmp_path: Path, done: list[str]
) -> None:
    folder = Results.open(tmp_path).run(signature("a"))

    def begun_meanwhile(task: NodeJob) -> Any:
        lease = Lease(folder, Elsewhere())
        assert lease.attempt()
        answer = task()
        lease.release()
        write_json_atomic(folder / "outcome.json", DONE)
        assert answer == TAKEN
        return answer

    engine, events = Here(Results.open(tmp_path), a=[begun_meanwhile]), Events()
    engine.run(Schedule([job("a", tmp_path)]), events)
    assert (engine.submitted, done, events.of("finished")) == (["a"], [], [("a", DONE)])


def test_an_outcome_that_was_written_before_the_death_stands(tmp_path: Path, done: list[str]) -> None:
    def die_late(task: NodeJob) -> Death:
        task()
        return LOST

    engine, events = Here(Results.open(tmp_path), a=[die_late]), Events()
    engine.run(Schedule([job("a", tmp_path)]), events)
    ((_, outcome),) = events.of("finished")
    assert (engine.submitted, outcome["outcome"]) == (["a"], "completed")


def test_a_run_that_is_told_to_leave_is_cancelled_and_missing(tmp_path: Path) -> None:
    engine, events = Here(Results.open(tmp_path), a=[RUNNING]), Events()
    follow = engine._follow

    def leave_first(submitted: Any) -> None:
        engine.leave(submitted.job.signature)
        follow(submitted)

    engine._follow = leave_first  # type: ignore[method-assign]
    engine.run(Schedule([job("a", tmp_path)]), events)
    ((_, outcome),) = events.of("finished")
    assert (outcome["outcome"], engine.submitted) == ("missing", ["a"])


def test_a_run_that_passes_a_limit_is_cancelled_and_failed(tmp_path: Path) -> None:
    slow, folder = job("a", tmp_path), Results.open(tmp_path).run(signature("a"))
    slow.settings["machine"]["cell_timeout_seconds"] = 1e-9

    def begin(task: NodeJob) -> str:
        write_json_atomic(folder / "running.json", {"rollout_step": 1})
        return RUNNING

    engine, events = Here(Results.open(tmp_path), a=[begin]), Events()
    engine.run(Schedule([slow]), events)
    ((_, outcome),) = events.of("finished")
    assert (outcome["outcome"], "machine.cell_timeout_seconds" in outcome["reason"]) == ("failed", True)
    assert events.of("stepped") == [("a", 1)]


def test_an_interrupted_command_cancels_all_that_is_out_and_ends_their_leases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results.open(tmp_path)
    engine, node = Here(results, w=[RUNNING]), Elsewhere()
    node.session = engine.session

    def begin(task: NodeJob) -> str:
        assert Lease(results.run(task.job.signature), node).attempt()
        return RUNNING

    def interrupt(_submitted: Any) -> None:
        raise KeyboardInterrupt

    engine.accidents["a"] = [begin]
    monkeypatch.setattr(engine, "_follow", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.run(Schedule([job("a", tmp_path), job("w", tmp_path)]), Events())
    assert engine.cancelled == [RUNNING, RUNNING]
    assert not job("a", tmp_path).is_taken(results)


def differ(monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], Any]) -> None:
    """Have a node's program differ from the driver's, which is asked first."""
    asked = [program(), program()]
    change(asked[1])
    monkeypatch.setattr(cluster, "program", lambda: asked.pop(0))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("commit", "0" * 40, "commit is 0000"),
        ("results_version", 0, "results_version is 0, and here"),
        ("torch", "1.0", "torch is 1.0, and here"),
    ],
)
def test_a_node_with_another_program_is_refused_and_nothing_is_left(
    key: str, value: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    differ(monkeypatch, lambda there: there.update({key: value}))
    check_refusal(Here(Results.open(tmp_path)), says, tmp_path)


@pytest.mark.parametrize(
    ("place", "folder", "says"),
    [
        ("/nowhere", None, "machine.results must be on a shared file system"),
        (None, "/nowhere", "there is no /nowhere, the working directory"),
    ],
)
def test_a_node_that_does_not_share_a_folder_is_refused(
    place: str | None, folder: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = cluster.probe_node
    monkeypatch.setattr(
        cluster, "probe_node", lambda p, f, expected: probe(Path(place) if place else p, folder or f, expected)
    )
    check_refusal(Here(Results.open(tmp_path)), says, tmp_path)


def test_a_node_whose_clock_is_off_is_refused(tmp_path: Path) -> None:
    class Late(Here):
        def submit_probe(self, probe: Callable[[], Any], logs: Path) -> list[Any]:
            return [probe() | {"time": time.time() - 60}]

    check_refusal(Late(Results.open(tmp_path)), "the clock is off by 60 s", tmp_path)


def test_nodes_that_do_not_answer_in_time_are_refused(tmp_path: Path) -> None:
    class Silent(Here):
        def submit_probe(self, probe: Callable[[], Any], logs: Path) -> list[Any]:
            return [RUNNING]

    engine = Silent(Results.open(tmp_path))
    engine.settings = RAY.model_copy(update={"answer_seconds": 0.01})
    check_refusal(engine, "1 of 1 nodes have not answered within answer_seconds=0.01", tmp_path)


def check_refusal(engine: Here, says: str, root: Path) -> None:
    before = sorted(root.rglob("*"))
    with pytest.raises(RequestError, match=r"machine\.launcher\.name=ray: ") as refused, engine:
        pass
    assert says in str(refused.value)
    assert sorted(root.rglob("*")) == before
    assert not engine.is_connected


def test_like_nodes_are_taken(tmp_path: Path) -> None:
    with Here(Results.open(tmp_path)) as engine:
        assert engine.is_connected
    assert not engine.is_connected
    assert not list(tmp_path.glob(".probe-*"))


def test_a_launcher_is_no_part_of_what_a_run_is() -> None:
    shared = ["launcher=ray", "machine.launcher.cpus=0.5"]
    assert resolve_run(compose(shared)).identity() == resolve_run(compose([])).identity()
    assert cell_of(compose(shared), shared).variant == cell_of(compose([]), []).variant
    for wrong in ("machine.launcher.cpus=0", "machine.launcher.partition=gpu"):
        with pytest.raises(RequestError, match=wrong.partition("=")[0]):
            compose(["launcher=ray", wrong])
    page = help_text(["machine.launcher"])
    assert all(f"machine.launcher.{key} " in page for key in ("address", "retries", "partition", "requeues"))


def test_what_is_not_installed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    absent = {"ray", "submitit"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in absent else find(name, *more))
    for launcher, package in (("ray", "ray"), ("slurm", "submitit")):
        (problem,) = preflight.check(compose([f"launcher={launcher}", "device=cpu"]), Results.open(tmp_path))
        assert f"launcher={launcher} needs the package {package}" in problem


def test_a_gpu_is_asked_for_in_both_places_or_in_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *given: object())
    (problem,) = preflight.check(compose(["launcher=ray", "device=cuda"]), Results.open(tmp_path))
    assert "machine.launcher.gpus=0 does not go with device=cuda" in problem
    asked = compose(["launcher=ray", "device=cuda", "machine.launcher.gpus=0.25"])
    assert preflight.check(asked, Results.open(tmp_path)) == [], "no GPU is needed on the machine that asks"


def test_a_single_run_has_no_launcher_and_a_job_names_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_check_launcher", lambda settings: [])
    shared = [f"machine.results={tmp_path}", "machine.tracking_uri=null", "launcher=slurm", "device=auto"]
    with pytest.raises(RequestError, match="launcher=slurm is for several runs"):
        train(cell_of(compose(shared), shared), "adhoc", shared)
    jobs = Request(plans("smoke", shared)).jobs()
    assert {job.settings["device"] for job in jobs} <= {"cpu", "cuda"}
    assert json.dumps(jobs[0].settings), "plain values: they go to other machines"
