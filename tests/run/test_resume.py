"""A run that was stopped, killed or torn goes on as if nothing had happened, to the last bit."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import run_folder, tiny_parts, tiny_settings

from grpolab.paths import Results
from grpolab.run import checkpoint
from grpolab.run.train import Interrupted, run
from grpolab.settings.resolved import Resolved

STEPS = 5
AXES: dict[str, Any] = {
    **{"rollout_steps": STEPS, "num_minibatches": 2, "num_iterations": 1, "beta": 0.1, "lr_scheduler_type": "cosine"},
    **{"warm_start": {"max_steps": 2}, "machine": {"checkpoint_seconds": 0.0}},
}


def outputs(settings: Resolved, results: Results) -> dict[str, bytes]:
    """Every file that a resumed run must have equal to the uninterrupted one's."""
    folder = run_folder(settings, results)
    names = ["journal.jsonl", "policy.safetensors", "evaluation_items.json", "settings.yaml"]
    names += sorted(str(path.relative_to(folder)) for path in (folder / "samples").iterdir())
    return {name: (folder / name).read_bytes() for name in names}


def recoveries(folder: Path) -> list[str]:
    """What recovery.jsonl says."""
    return [json.loads(line)["what"] for line in (folder / "recovery.jsonl").read_text().splitlines()]


def stop_after(steps: int, settings: Resolved, results: Results) -> Path:
    """Run until `steps` rollout steps are done; returns the run's folder, which has no outcome."""
    done = [0]
    with pytest.raises(Interrupted):
        run(settings, results, on_step=done.append, stop=lambda: done[-1] >= steps)
    assert done[-1] == steps
    folder = run_folder(settings, results)
    assert not (folder / "outcome.json").exists()
    return folder


@pytest.fixture(scope="module")
def settings() -> Resolved:
    return tiny_settings(**AXES)


@pytest.fixture(scope="module")
def straight(settings: Resolved, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the uninterrupted run leaves."""
    results = Results.open(tmp_path_factory.mktemp("straight"))
    assert run(settings, results)["outcome"] == "completed"
    return outputs(settings, results)


@pytest.fixture
def goes_on(settings: Resolved, straight: dict[str, bytes], results: Results) -> Callable[[], list[int]]:
    """Run what is left; fail unless the run ends as the uninterrupted one; return the steps that were done."""

    def finish() -> list[int]:
        seen: list[int] = []
        assert run(settings, results, on_step=seen.append)["outcome"] == "completed"
        assert outputs(settings, results) == straight
        return seen

    return finish


@pytest.mark.parametrize("stops", [[1], [3], [STEPS], [1, 2, 4]], ids=str)
def test_a_stopped_run_goes_on(
    stops: list[int], settings: Resolved, results: Results, goes_on: Callable[[], list[int]]
) -> None:
    for steps in stops:
        stop_after(steps, settings, results)
    assert goes_on() == list(range(stops[-1] + 1, STEPS + 1))  # nothing is done twice


CARRIED: dict[str, dict[str, Any]] = {
    "stale batches": {"staleness": 2, "old_log_probs": "sampler"},
    "stale batches with greedy baselines": {"staleness": 1, "advantage_estimator": "given", "beta": 0.1},
    "the place in the prompts and stale batches of a filter": {
        **{"filter_groups": {"metric": "reward", "max_batches": 3}, "staleness": 1},
        **{"advantage_estimator": "given", "num_minibatches": 2},
    },
    "a sampler with older weights": {"sampler_refresh": 3, "old_log_probs": "sampler"},
    "an interpolated policy": {"staleness": 3, "old_log_probs": "interpolated", "num_minibatches": 2},
    "a rounded and noisy sampler": {"sampler_dtype": "int8", "sampler_noise": 0.2, "sampler_refresh": 2},
    "what was seen of each prompt": {"revisit_equal_groups": 0.5, "train_generations": 2, "staleness": 1},
    "every prompt's rewards": {
        **{"advantage_history": "smooth", "filter_groups": {"metric": "reward", "max_batches": 2}, "staleness": 1},
        **{"prompts_per_step": 16, "train_generations": 3},
    },
    "the tokens that stale batches were sampled from": {"top_p": 0.7, "keep_sampling_mask": True, "staleness": 1},
    "an adaptive entropy bonus": {
        "entropy_coef": 0.1,
        "adaptive_entropy": {"target": 2.0, "step": 0.05, "least": 0.0, "most": 1.0},
    },
    "the last gradient": {"diagnostics": {"gradient_cosine": True}},
}


@pytest.mark.parametrize("what", CARRIED)
def test_what_a_run_carries_from_step_to_step_goes_on_too(what: str, tmp_path: Path) -> None:
    settings = tiny_settings(rollout_steps=STEPS, **CARRIED[what])
    whole, broken = (Results.open(tmp_path / name) for name in ("whole", "broken"))
    run(settings, whole)
    for steps in (1, 2):
        stop_after(steps, settings, broken)
    run(settings, broken)
    assert outputs(settings, broken) == outputs(settings, whole)


def test_what_was_written_after_the_checkpoint_is_cut_off_and_what_a_killed_writer_left_is_swept_away(
    settings: Resolved, results: Results, goes_on: Callable[[], list[int]]
) -> None:
    folder = stop_after(2, settings, results)
    for name in ("journal.jsonl", "timing.jsonl"):
        with (folder / name).open("a") as file:
            file.write('{"kind":"update","rollout_step":2,"itera')
    for name in ("checkpoint/new.part", "samples/.step_000004.parquet.7.part", ".outcome.json.7.part"):
        (folder / name).write_bytes(b"half")
    goes_on()
    assert list(folder.rglob("*.part")) == []
    timing = [json.loads(line) for line in (folder / "timing.jsonl").read_text().splitlines()]
    assert [row["rollout_step"] for row in timing] == list(range(STEPS))


def torn(content: bytes, how: str) -> bytes:
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    return {"cut": content[:middle], "empty": b"", "head": content[:10], "flipped": flipped}[how]


@pytest.mark.parametrize("how", ["cut", "empty", "head", "flipped"])
def test_a_torn_checkpoint_is_passed_over_for_the_one_before(
    how: str, settings: Resolved, results: Results, goes_on: Callable[[], list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stop_after(3, settings, results)
    latest = folder / "checkpoint" / "latest.pt"
    assert (folder / "checkpoint" / "previous.pt").exists()
    latest.write_bytes(torn(latest.read_bytes(), how))
    state = tiny_parts(**{**AXES, "warm_start": {"max_steps": 0}}).state
    assert checkpoint.restore_state(folder / "checkpoint", state)[0]["journal_bytes"] > 0
    assert (state.rollout_step, state.optimizer_step) == (2, 4)
    assert goes_on() == [3, 4, 5]
    says = "checkpoint/latest.pt cannot be used: its checksum is wrong: the run goes on from rollout step 2"
    assert capsys.readouterr().err == f"run {folder.name}: {says}\n"
    assert recoveries(folder) == [says]


def test_without_a_sound_checkpoint_a_run_begins_again(
    settings: Resolved, results: Results, goes_on: Callable[[], list[int]]
) -> None:
    folder = stop_after(3, settings, results)
    for path in (folder / "checkpoint").iterdir():
        path.write_bytes(torn(path.read_bytes(), "cut"))
    assert goes_on() == [1, 2, 3, 4, 5]
    (said,) = recoveries(folder)
    assert re.fullmatch("checkpoint/latest.pt .*; checkpoint/previous.pt .*: the run begins anew", said)


def test_a_timing_file_that_lost_lines_costs_no_step(
    settings: Resolved, results: Results, goes_on: Callable[[], list[int]]
) -> None:
    file = stop_after(3, settings, results) / "timing.jsonl"
    file.write_bytes(file.read_bytes()[:-5])
    assert goes_on() == [4, 5]
    assert [json.loads(line)["rollout_step"] for line in file.read_text().splitlines()] == [0, 1, 3, 4]


@pytest.mark.parametrize(("lines_lost", "starts_at"), [(1, 2), (10**9, 0)])
@pytest.mark.parametrize("how", ["shorter", "zeros"])
def test_a_journal_that_lost_lines_is_not_padded(
    how: str, lines_lost: int, starts_at: int, settings: Resolved, results: Results, goes_on: Callable[[], list[int]]
) -> None:
    """Where the checkpoint's part of it is not there, an older one that it still holds, or the start, takes over."""
    folder = stop_after(3, settings, results)
    lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    kept = b"".join(lines[:-lines_lost])
    lost = sum(map(len, lines)) - len(kept)
    (folder / "journal.jsonl").write_bytes(kept + (b"\0" * lost if how == "zeros" else b""))
    assert goes_on() == list(range(starts_at + 1, STEPS + 1))
    assert "of journal.jsonl are not what they were" in recoveries(folder)[0]


def test_a_finished_run_is_returned_as_it_stands(settings: Resolved, results: Results) -> None:
    first = run(settings, results)
    folder = run_folder(settings, results)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    seen: list[int] = []
    assert run(settings, results, on_step=seen.append) == first
    assert seen == []
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


# A process that imports once, also what a run imports on its way, then lets forks of itself do the run. Each kills
# itself at the n-th moment at which a file is about to be flushed to disk or renamed, n as it is told.
VICTIM = """
import os, pathlib, signal, sys
import pandas, pyarrow.parquet
from grpolab.paths import Results
from grpolab.run.assembly import assemble
from grpolab.run.train import run
from grpolab.settings.resolved import Resolved
settings, results = Resolved.model_validate_json(sys.argv[1]), Results.open(sys.argv[2])
assemble(settings)
left = 0
def fatal(call):
    def wrapped(*arguments):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)
    return wrapped
os.fsync, pathlib.Path.replace = fatal(os.fsync), fatal(pathlib.Path.replace)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        left = int(line)
        run(settings, results)
        os._exit(0)
    print(os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)
"""

# They hit the warm start twice, the first settings file, the first checkpoint, one before it has a name and one between
# its two renames, samples, evaluations and, at last, the outcome.
MOMENTS = (2, 5, 6, 13, 19, 14, 11, 12, 19)


def test_a_run_that_is_killed_at_any_moment_ends_as_the_straight_one(
    settings: Resolved, results: Results, goes_on: Callable[[], list[int]]
) -> None:
    """kill -9, again and again: in the warm start, in an evaluation, in a checkpoint, before the outcome."""
    command = [sys.executable, "-c", VICTIM, settings.model_dump_json(), str(results.root)]
    kills = 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdin is not None
        assert victim.stdout is not None
        for moment in MOMENTS:
            victim.stdin.write(f"{moment}\n")
            victim.stdin.flush()
            kills += victim.stdout.readline() == f"{signal.SIGKILL.value}\n"
        victim.stdin.close()
    assert kills >= 7
    goes_on()
