"""What Ray and Slurm share, with a cluster that does its tasks in this process: neither needs to be installed."""

import importlib.util
import json
import time
from dataclasses import replace

import pytest

from grpolab.cli.help import help_text
from grpolab.errors import RequestError
from grpolab.paths import Results, read_json, write_json_atomic
from grpolab.run import preflight
from grpolab.run.lease import Host, Lease
from grpolab.settings.resolved import resolve_run
from grpolab.settings.run import RayLauncher
from grpolab.studies.command_line import cell_of
from grpolab.studies.train import train
from grpolab.sweep import cluster
from grpolab.sweep.cluster import TAKEN, Cluster, NodeError, describe_program
from grpolab.sweep.compose import compose
from grpolab.sweep.engine import Death
from grpolab.sweep.jobs import Job, Request, Schedule
from grpolab.sweep.plan import plans

RAY = RayLauncher(name="ray", address=None, cpus=1, gpus=0, retries=2)
DONE = {"outcome": "completed", "reason": None, "seconds": 0.1}
LOST = Death("the node is gone", again=True)
RUNNING = "it runs"


class Here(Cluster):
    """Does a task when it is submitted. `accidents`: by label, what happens instead at the first attempt, and so on."""

    def __init__(self, root, **accidents):
        super().__init__(Results.open(root), RAY, 2, 1, root / "logs")
        self.accidents, self.submitted, self.cancelled = accidents, [], []

    def connect(self):
        """Nothing."""

    def submit(self, tasks):
        return [self._do(task) for task in tasks]

    def _do(self, task):
        self.submitted.append(task.job.label)
        left = self.accidents.get(task.job.label)
        accident = left.pop(0) if left else None
        try:
            return accident(task) if callable(accident) else accident or task()
        except NodeError as error:
            return Death(f"NodeError: {error}")

    def result_of(self, handle):
        return None if handle == RUNNING and handle not in self.cancelled else LOST if handle == RUNNING else handle

    def cancel(self, handle):
        self.cancelled.append(handle)

    def elsewhere(self):
        """A process of this command on another machine."""
        node = Elsewhere()
        node.session = self.session
        return node


class Elsewhere(Host):
    def holder(self):
        return super().holder() | {"host": "elsewhere"}


class Events:
    """A listener that keeps what it hears."""

    def __init__(self):
        self.heard = []

    def __getattr__(self, name):
        return lambda *given: self.heard.append((name, *(getattr(part, "label", part) for part in given)))

    def of(self, name):
        return [event[1:] for event in self.heard if event[0] == name]


def job(label, root, warm_start=None):
    limits = dict.fromkeys(("cell_timeout_seconds", "hang_seconds", "memory_mib"))
    settings, kind = {"machine": {"results": str(root), **limits}}, "warm_start" if label == "w" else "run"
    return Job(kind, signature(label), label, settings, 1.0, 5, warm_start and signature(warm_start))


def signature(label):
    return label.replace("w", "f") * 16


def run(engine, *jobs):
    """Have an engine do some jobs, and return what was heard."""
    events = Events()
    engine.run(Schedule(jobs), events)
    assert not list(engine.logs.glob(".session*")), "nothing is left"
    return events


def begins(root, label, beat=None):
    """A task that shows its first step, and goes on."""

    def begin(task):
        write_json_atomic(Results(root).run(signature(label)) / "running.json", beat or {"rollout_step": 1})
        return RUNNING

    return begin


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(cluster, "TICK_SECONDS", 0.001)


@pytest.fixture
def done(monkeypatch):
    """The labels of the jobs that were really done, in order; a node's work is to write an outcome."""
    order = []

    def do_job(kind, name, values, *_):
        results = Results.open(values["machine"]["results"])
        order.append("w" if kind == "warm_start" else name[0])
        folder = results.run(name) if kind == "run" else results.warm_start(name)
        write_json_atomic(folder / "outcome.json", DONE)
        return DONE

    monkeypatch.setattr(cluster, "do_job", do_job)
    return order


def test_each_job_is_done_once_and_its_warm_start_before(tmp_path, done):
    jobs = [job("a", tmp_path, "w"), job("b", tmp_path, "w"), job("c", tmp_path), job("w", tmp_path)]
    with Here(tmp_path) as engine:
        events = run(engine, *jobs)
    assert sorted(done) == sorted(name for name, _ in events.of("finished")) == ["a", "b", "c", "w"]
    assert done.index("w") < min(done.index("a"), done.index("b"))
    assert {slot for _, slot in events.of("started")} <= {0, 1}, "never more are out than there are places"


def test_a_lost_job_is_done_again_as_often_as_the_launcher_says(tmp_path, done):
    engine = Here(tmp_path, b=[LOST, LOST, LOST])

    def lose_with_its_lease(task):
        assert Lease(engine.results.run(task.job.signature), engine.elsewhere()).attempt()
        return LOST

    def crash(task):
        begins(tmp_path, "c")(task)
        return Death("crashed")

    engine.accidents |= {"a": [lose_with_its_lease, LOST], "c": [crash]}
    events = run(engine, *(job(label, tmp_path) for label in "abc"))
    assert [engine.submitted.count(label) for label in "abc"] == [3, 1 + RAY.retries, 1], "a crash would come again"
    assert done == ["a"], "the lease of the process that is gone holds nobody up"
    outcomes = [read_json(engine.results.run(signature(label)) / "outcome.json") or {} for label in "abc"]
    assert [outcome["outcome"] for outcome in outcomes] == ["completed", "failed", "failed"]
    assert outcomes[1]["reason"] == "the node is gone"
    assert len(events.of("returned")) == 2 + RAY.retries


def test_a_job_that_another_process_has_begun_ends_at_once_and_its_outcome_is_waited_for(tmp_path, done):
    folder = Results.open(tmp_path).run(signature("a"))

    def begun_meanwhile(task):
        lease = Lease(folder, Elsewhere())
        assert lease.attempt()
        assert task() == TAKEN
        lease.release()
        write_json_atomic(folder / "outcome.json", DONE)
        return TAKEN

    engine = Here(tmp_path, a=[begun_meanwhile])
    events = run(engine, job("a", tmp_path))
    assert (engine.submitted, done, events.of("finished")) == (["a"], [], [("a", DONE)])


def test_an_outcome_that_was_written_before_the_death_stands(tmp_path, done):
    engine = Here(tmp_path, a=[lambda task: task() and LOST])
    ((_, outcome),) = run(engine, job("a", tmp_path)).of("finished")
    assert (engine.submitted, outcome["outcome"]) == (["a"], "completed")


def test_a_run_that_is_told_to_leave_is_cancelled_and_missing(tmp_path, monkeypatch):
    engine = Here(tmp_path, a=[RUNNING])
    follow = engine._follow

    def leave_first(submitted):
        engine.leave(submitted.job.signature)
        follow(submitted)

    monkeypatch.setattr(engine, "_follow", leave_first)
    ((_, outcome),) = run(engine, job("a", tmp_path)).of("finished")
    assert (outcome["outcome"], engine.submitted) == ("missing", ["a"])


def test_a_run_that_passes_a_limit_is_cancelled_and_failed(tmp_path):
    slow = job("a", tmp_path)
    slow.settings["machine"]["cell_timeout_seconds"] = 1e-9
    events = run(Here(tmp_path, a=[begins(tmp_path, "a")]), slow)
    ((_, outcome),) = events.of("finished")
    assert (outcome["outcome"], "machine.cell_timeout_seconds" in outcome["reason"]) == ("failed", True)
    assert events.of("stepped") == [("a", 1)]


def test_an_interrupted_command_cancels_all_that_is_out_and_ends_their_leases(tmp_path, monkeypatch):
    engine = Here(tmp_path, w=[RUNNING])

    def begin(task):
        assert Lease(engine.results.run(task.job.signature), engine.elsewhere()).attempt()
        return RUNNING

    def interrupt(_submitted):
        raise KeyboardInterrupt

    engine.accidents["a"] = [begin]
    monkeypatch.setattr(engine, "_follow", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.run(Schedule([job("a", tmp_path), job("w", tmp_path)]), Events())
    assert engine.cancelled == [RUNNING, RUNNING]
    assert not job("a", tmp_path).is_taken(engine.results)


def unlike(**changes):
    """A task on a node that is unlike this machine."""

    def begin(task):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cluster, "describe_program", lambda: describe_program() | changes)
            return task()

    return begin


@pytest.mark.parametrize(
    ("begin", "says"),
    [
        (unlike(commit="0" * 40), "commit is 0000"),
        (unlike(results_version=0), "results_version is 0, and here"),
        (unlike(torch="1.0"), "torch is 1.0, and here"),
        (lambda task: replace(task, sent=task.sent + 60)(), "the clock is 60 s behind"),
        (lambda task: replace(task, mark=task.mark / "x")(), "machine.results must be on a shared file"),
        (lambda task: replace(task, folder="/nowhere")(), "there is no /nowhere, the working directory"),
        (Death("ModuleNotFoundError: no grpolab"), "a could not begin: ModuleNotFoundError"),
    ],
)
def test_a_node_that_differs_ends_the_command_and_nothing_is_done(tmp_path, done, begin, says):
    with pytest.raises(RequestError, match=r"machine\.launcher\.name=ray: a could not begin: ") as refused:
        run(Here(tmp_path, a=[begin]), job("a", tmp_path))
    assert says in str(refused.value)
    assert done == []
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["format.json", "logs"]


def test_a_node_whose_clock_is_ahead_ends_the_command(tmp_path):
    beat = {"rollout_step": 1, "host": "far", "time": time.time() + 60}
    with pytest.raises(RequestError, match=r"machine\.launcher\.name=ray: on node far the clock is \d+ s ahead"):
        run(Here(tmp_path, a=[begins(tmp_path, "a", beat)]), job("a", tmp_path))


def test_a_launcher_is_no_part_of_what_a_run_is():
    shared = ["launcher=ray", "machine.launcher.cpus=0.5"]
    assert resolve_run(compose(shared)).identity() == resolve_run(compose([])).identity()
    assert cell_of(compose(shared), shared).variant == cell_of(compose([]), []).variant
    for wrong in ("machine.launcher.cpus=0", "machine.launcher.partition=gpu"):
        with pytest.raises(RequestError, match=wrong.partition("=")[0]):
            compose(["launcher=ray", wrong])
    page = help_text(["machine.launcher"])
    assert all(f"machine.launcher.{key} " in page for key in ("address", "retries", "partition", "requeues"))


def test_what_is_not_installed_is_refused(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    absent = {"ray", "submitit"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in absent else find(name, *more))
    for launcher, package in (("ray", "ray"), ("slurm", "submitit")):
        (problem,) = preflight.check(compose([f"launcher={launcher}", "device=cpu"]), Results.open(tmp_path))
        assert f"launcher={launcher} needs the package {package}" in problem


def test_a_gpu_is_asked_for_in_both_places_or_in_none(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda *given: object())
    (problem,) = preflight.check(compose(["launcher=ray", "device=cuda"]), Results.open(tmp_path))
    assert "machine.launcher.gpus=0 does not go with device=cuda" in problem
    both = compose(["launcher=ray", "device=cuda", "machine.launcher.gpus=0.25"])
    assert preflight.check(both, Results.open(tmp_path)) == [], "no GPU is needed on the machine that asks"


def test_a_single_run_has_no_launcher_and_a_job_names_the_device(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "_check_launcher", lambda settings: [])
    shared = [f"machine.results={tmp_path}", "machine.tracking_uri=null", "launcher=slurm", "device=auto"]
    with pytest.raises(RequestError, match="launcher=slurm is for several runs"):
        train(cell_of(compose(shared), shared), "adhoc", shared)
    jobs = Request(plans("smoke", shared)).jobs()
    assert {job.settings["device"] for job in jobs} <= {"cpu", "cuda"}
    assert json.dumps(jobs[0].settings), "plain values: they go to other machines"
