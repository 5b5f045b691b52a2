"""What happens to workers: killed, crashed, frozen, too slow, too large, before a full or read-only disk.

In all: a fault costs one cell at most, nothing is lost, the exit code and the sentence are right.
"""

import json
from collections import Counter

import pytest

from grpolab.run.folder import record_failure

REASONS = {
    "kill": "worker died (signal 9), perhaps out of memory",
    "stop": "worker died (exit code 0)",
    "crash": "worker died (signal 11)",
    "exit": "worker died (exit code 3)",
    "freeze": "no sign of life for 2 s (machine.hang_seconds)",
    "fail": "MemoryError: ",
}


def seeds_begun(jobs):
    return Counter(job[2] for job in jobs if job[0] == "run")


@pytest.mark.parametrize("misdeed", ["kill", "stop", pytest.param("freeze", marks=pytest.mark.slow)])
def test_a_kill_from_outside_and_a_silence_are_tried_once_more(misdeed, fake_sweep, capsys):
    code, jobs = fake_sweep("smoke", "machine.hang_seconds=2", misdeeds={"1": [misdeed]}, jobs=1)
    assert code == 0
    assert seeds_begun(jobs) == {"0": 2, "1": 4}
    said = capsys.readouterr().out
    assert f"smoke symmetric/sorting, seed 1: {REASONS[misdeed]}; it is tried again" in said
    assert "4 runs: 4 completed" in said


@pytest.mark.slow
def test_a_second_kill_is_the_cells_outcome_and_can_be_retried(fake_sweep, capsys):
    code, jobs = fake_sweep(misdeeds={"1": ["kill", "kill"]}, jobs=1)
    assert code == 1
    assert Counter(outcome["outcome"] for outcome in fake_sweep.outcomes()) == {"completed": 2, "failed": 2}
    assert {outcome["reason"] for outcome in fake_sweep.outcomes()} == {None, REASONS["kill"]}
    assert seeds_begun(jobs) == {"0": 2, "1": 4}
    said = capsys.readouterr().out
    assert "4 runs: 2 completed, 2 failed" in said
    assert said.count("failed: smoke symmetric/sorting, seed 1") == 2, "as it happens, and at the end"

    assert fake_sweep() == (1, []), "a failure is not retried unasked"
    code, jobs = fake_sweep(retry_failed=True)
    assert code == 0
    assert [job[2] for job in jobs] == ["1", "1"]
    kept = list(fake_sweep.root.glob("runs/*/outcome.failed-1.json"))
    assert [json.loads(file.read_text())["reason"] for file in kept] == [REASONS["kill"]] * 2


@pytest.mark.parametrize("misdeed", ["crash", "exit", "fail"])
def test_what_a_cell_does_to_itself_is_its_outcome_at_once(misdeed, fake_sweep):
    code, jobs = fake_sweep(misdeeds={"1": [misdeed]}, jobs=1)
    assert code == 1
    assert {outcome["reason"] for outcome in fake_sweep.outcomes()} == {None, REASONS[misdeed]}
    assert seeds_begun(jobs) == {"0": 2, "1": 2}


@pytest.mark.slow
def test_a_second_silence_is_the_cells_outcome(fake_sweep):
    code, jobs = fake_sweep("smoke", "machine.hang_seconds=2", misdeeds={"1": ["freeze", "freeze"]}, jobs=2)
    assert code == 1
    assert {outcome["reason"] for outcome in fake_sweep.outcomes()} == {None, REASONS["freeze"]}
    assert seeds_begun(jobs) == {"0": 2, "1": 4}


def test_a_cell_that_takes_too_long_fails_and_its_retry_goes_on(fake_sweep):
    code, jobs = fake_sweep("smoke", "machine.cell_timeout_seconds=0.2", seconds=30, seeds=[0], jobs=2)
    assert code == 1
    assert [job[0] for job in jobs].count("asked-to-stop") == 2, "so that they leave a checkpoint"
    reasons = [outcome["reason"] for outcome in fake_sweep.outcomes()]
    assert reasons == ["longer than machine.cell_timeout_seconds=0.2"] * 2
    assert [outcome["rollout_steps"] for outcome in fake_sweep.outcomes()] == [1, 1], "so far it was"
    assert fake_sweep(retry_failed=True, seeds=[0])[0] == 0


def test_a_worker_that_grows_too_large_costs_its_cell(fake_sweep):
    code, jobs = fake_sweep("smoke", "machine.memory_mib=250", misdeeds={"1": ["eat"]}, jobs=1)
    assert code == 1
    reasons = {outcome["reason"] for outcome in fake_sweep.outcomes() if outcome["reason"]}
    assert len(reasons) <= 2
    assert all(r.startswith("the worker used ") and r.endswith("more than machine.memory_mib=250") for r in reasons)
    assert seeds_begun(jobs) == {"0": 2, "1": 2}, "it would grow again"


def test_a_full_disk_is_no_cells_outcome_and_ends_the_handing_out(fake_sweep, capsys):
    code, jobs = fake_sweep(misdeeds={"0": ["fill_disk"]}, jobs=1)
    assert code == 1
    assert seeds_begun(jobs) == {"0": 1}
    assert fake_sweep.outcomes() == []
    said = capsys.readouterr().out
    assert "missing: smoke symmetric/sorting, seed 0: /data/journal.jsonl: No space left on device" in said
    assert "the disk is full: 3 further jobs are not started" in said
    assert "4 runs: 4 missing" in said
    code, jobs = fake_sweep()
    assert (code, len(fake_sweep.outcomes())) == (0, 4), "resumed without --retry-failed"


def test_a_read_only_run_folder_costs_only_its_cell(fake_sweep, capsys):
    code, jobs = fake_sweep(misdeeds={"1": ["meet_read_only"]}, jobs=1)
    assert code == 1
    assert seeds_begun(jobs) == {"0": 2, "1": 2}
    assert [outcome["outcome"] for outcome in fake_sweep.outcomes()] == ["completed"] * 2
    assert "missing: smoke symmetric/sorting, seed 1: /data/run: Read-only file system" in capsys.readouterr().out


def test_a_failure_that_cannot_be_written_down_costs_only_its_cell(fake_sweep, capsys, monkeypatch):
    def refuse(folder, *_):
        raise OSError(30, "Read-only file system", str(folder / "outcome.json"))

    monkeypatch.setattr("grpolab.sweep.engine.record_failure", refuse)
    assert fake_sweep(misdeeds={"1": ["crash"]}, jobs=1)[0] == 1
    assert len(fake_sweep.outcomes()) == 2
    assert capsys.readouterr().out.count("outcome.json: Read-only file system") == 2


@pytest.mark.slow
@pytest.mark.parametrize("misdeed", ["kill", "freeze"])
def test_a_warm_start_is_tried_twice_and_then_fails_its_cells(misdeed, fake_sweep):
    limit = "machine.hang_seconds=2"
    code, jobs = fake_sweep("smoke", limit, misdeeds={"warm_start": [misdeed, misdeed]}, seeds=[0])
    assert code == 1
    assert [job[0] for job in jobs] == ["warm_start", "warm_start"]
    reason = f"its warm start failed: {REASONS[misdeed]}"
    assert [outcome["reason"] for outcome in fake_sweep.outcomes()] == [reason] * 2

    code, jobs = fake_sweep("smoke", limit, misdeeds={"warm_start": [misdeed]}, seeds=[1])
    assert code == 0, "the second attempt is good"


def test_a_warm_start_before_a_full_disk_leaves_its_cells_without_outcome(fake_sweep, capsys):
    code, _ = fake_sweep(misdeeds={"warm_start": ["fill_disk"]}, seeds=[0], jobs=1)
    assert (code, fake_sweep.outcomes()) == (1, [])
    assert "its warm start failed: /data/journal.jsonl: No space left on device" in capsys.readouterr().out


def test_an_outcome_that_was_written_before_the_death_stands(fake_sweep):
    _, jobs = fake_sweep(seeds=[1])
    assert record_failure(fake_sweep.results.run(jobs[-1][1]), "worker died (signal 9)", 3)["outcome"] == "completed"
    assert {outcome["outcome"] for outcome in fake_sweep.outcomes()} == {"completed"}


def test_each_slot_has_its_gpu_and_keeps_it_after_a_death(fake_sweep, monkeypatch):
    monkeypatch.setattr("grpolab.sweep.engine.gpus", lambda: ["4", "7"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    code, jobs = fake_sweep("smoke", "device=cuda", misdeeds={"0": ["crash"]}, seconds=0.3, jobs=2)
    assert code == 1
    gpus = {pid: gpu for *_, pid, gpu in jobs}
    assert set(gpus.values()) == {"4", "7"}
    assert len(gpus) >= 3, "a crashed worker was replaced"
    assert all(len({gpu for *_, other, gpu in jobs if other == pid}) == 1 for pid in gpus)
