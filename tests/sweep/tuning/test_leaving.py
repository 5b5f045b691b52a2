"""A real worker that is to leave a run: it takes the next job, and the run can be trained to its end later, exactly."""

import json

import pytest

from grpolab.paths import Results
from grpolab.run.train import run
from grpolab.run.warm_start import ensure
from grpolab.sweep.jobs import Request, Schedule
from grpolab.sweep.plan import plans
from grpolab.sweep.pool import Pool, slots

TINY = [
    *("task.length=3", "model.hidden_size=16", "model.layers=1", "prompts_per_step=2", "num_generations=4"),
    *("warm_start.max_steps=4", "warm_start.check_every=2", "warm_start.check_items=20", "evaluation.items=20"),
    *("rollout_steps=6", "evaluation.every=1", "machine.tracking_uri=null"),
]


class Leaver:
    """Has the first run left after its second step."""

    def __init__(self, pool: Pool, leave: bool) -> None:
        self.pool, self.leave = pool, leave
        self.left: str | None = None
        self.outcomes: dict[str, str] = {}
        self.workers: set[int] = set()

    def started(self, job, slot):
        self.workers.add(self.pool.workers[0].process.pid)

    def stepped(self, job, step):
        if job.kind == "run" and self.leave and self.left in (None, job.signature) and step >= 2:
            self.left = job.signature
            self.pool.leave(job.signature)

    def finished(self, job, outcome):
        self.outcomes[job.signature] = outcome["outcome"]

    def returned(self, job, reason):
        raise AssertionError(reason)

    def note(self, text):
        raise AssertionError(text)


def train(root, leave: bool) -> tuple[Results, Leaver]:
    request = Request(plans("smoke", [*TINY, f"machine.results={root}"], seeds=[0]))
    with Pool(slots(1, uses_gpu=False, threads=1, logs=root), request.results) as pool:
        leaver = Leaver(pool, leave)
        pool.run(Schedule(request.jobs()), leaver)
    return request.results, leaver


@pytest.mark.slow
def test_a_run_that_is_left_has_no_outcome_and_goes_on_bit_for_bit(tmp_path):
    results, leaver = train(tmp_path / "left", leave=True)
    folder = results.run(leaver.left)
    assert sorted(leaver.outcomes.values()) == ["completed", "completed", "missing"]  # a warm start and two runs
    assert len(leaver.workers) == 1, "the worker lives on"
    assert not (folder / "outcome.json").exists()
    begun = (folder / "journal.jsonl").read_bytes()
    assert 2 <= begun.count(b'"kind":"rollout"') < 6

    train(tmp_path / "left", leave=False)
    straight = Results.open(tmp_path / "straight")  # in this process
    for cell in plans("smoke", TINY, seeds=[0])[0].cells:
        ensure(cell.settings, straight)
        assert run(cell.settings, straight)["outcome"] == "completed"
    assert (folder / "journal.jsonl").read_bytes().startswith(begun)
    for name in leaver.outcomes:
        if results.run(name).exists():
            journals = [(one.run(name) / "journal.jsonl").read_bytes() for one in (results, straight)]
            weights = [json.loads((one.run(name) / "outcome.json").read_text()) for one in (results, straight)]
            assert journals[0] == journals[1]
            assert weights[0]["policy_sha256"] == weights[1]["policy_sha256"]
