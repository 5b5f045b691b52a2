"""What a run survives: a full disk, a folder made read-only, a clock that is set, numbers that are not finite, code of
the user's that raises, SIGTERM. (kill -9, torn journals and damaged checkpoints: `tests/run/test_resume.py`.)
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tiny import records, run_folder, tiny_parts, tiny_settings

from grpolab.grpo import step as step_module
from grpolab.paths import DISK_ERRORS, Results, plain
from grpolab.run import checkpoint
from grpolab.run.folder import Journal
from grpolab.run.train import run
from grpolab.settings.resolved import Resolved

STEPS = 5


def settings_of(**changes: Any) -> Resolved:
    """A run that writes a checkpoint at every rollout boundary."""
    return tiny_settings(rollout_steps=STEPS, **{"machine": {"checkpoint_seconds": 0.0}, **changes})


def sums(outcome: dict[str, Any]) -> tuple[str, str, str]:
    """What a disturbed run must have equal to the straight one."""
    return outcome["outcome"], outcome["journal_sha256"], outcome["policy_sha256"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome of the undisturbed run."""
    return run(settings_of(), Results.open(tmp_path_factory.mktemp("straight")))


# --- the disk ---------------------------------------------------------------------------------------------------------

# In a mount namespace of its own, so that disks can be really full, and without root's right to write everywhere. For
# each fault: run into it at the fourth rollout step, look at what is left, mend it, go on.
DISK = """
import json, os, subprocess, sys, traceback
from pathlib import Path
from grpolab.paths import Results
from grpolab.run.train import run
from grpolab.settings.resolved import Resolved
settings, disk = Resolved.model_validate_json(sys.argv[1]), Path(sys.argv[2])

def fill(leave):
    with (disk / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(file.tell() - leave)

def attempt(fault, mend):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)], check=True)
    results = Results.open(disk)
    folder = results.run(settings.signature)
    try:
        run(settings, results, on_step=lambda step: fault() if step == 4 else None)
        error = where = None
    except OSError as raised:
        error, where = raised.errno, [frame.name for frame in traceback.extract_tb(raised.__traceback__)]
    left = [sorted(path.name for path in (folder / "checkpoint").iterdir()), (folder / "outcome.json").exists()]
    mend()
    steps = []
    outcome = run(settings, results, on_step=steps.append)
    recovered = (folder / "recovery.jsonl").exists()
    subprocess.run(["umount", str(disk)], check=True)
    return {"errno": error, "where": where, "left": left, "steps": steps, "outcome": outcome, "recovered": recovered}

empty = lambda: (disk / "ballast").unlink()
chmod = lambda mode: subprocess.run(["chmod", "-R", mode, str(disk / "runs")], check=True)
print(json.dumps({
    "journal": attempt(lambda: fill(leave=0), empty),
    "checkpoint": attempt(lambda: fill(leave=40960), empty),
    "read-only": attempt(lambda: chmod("a-w"), lambda: chmod("u+w")),
}))
"""


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What DISK printed."""
    enter = ["unshare", "-rm", "setpriv", "--bounding-set", "-dac_override"]
    if shutil.which("unshare") is None or subprocess.run([*enter, "true"], capture_output=True).returncode:
        pytest.skip("this machine gives no mount namespaces, so no disk can be filled")
    place = tmp_path_factory.mktemp("disk")
    command = [sys.executable, "-c", DISK, settings_of().model_dump_json(), str(place)]
    done = subprocess.run([*enter, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("fault", "number", "where"),
    [
        ("journal", errno.ENOSPC, {"flush", "close"}),  # whichever hands the buffer to the disk
        ("checkpoint", errno.ENOSPC, {"save_state"}),
        ("read-only", errno.EACCES, {"save_state", "beat"}),  # on a busy machine a heartbeat is due before it
    ],
    ids=["journal", "checkpoint", "read-only"],
)
def test_a_disk_that_refuses_is_no_outcome(
    fault: str, number: int, where: set[str], disk: dict[str, Any], straight: dict[str, Any]
) -> None:
    """The fourth rollout step is lost; both checkpoints before it stand, and the next call goes on from the third."""
    found = disk[fault]
    assert found["errno"] == number
    assert where & set(found["where"])
    assert found["left"] == [sorted(checkpoint.GENERATIONS), False]
    assert found["steps"] == [4, 5]
    assert sums(found["outcome"]) == sums(straight)
    assert not found["recovered"]  # nothing was passed over


@pytest.mark.parametrize("number", sorted(DISK_ERRORS), ids=errno.errorcode.get)
def test_every_refusal_of_the_disk_is_told_from_a_failure(
    number: int, results: Results, straight: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match=re.escape(os.strerror(number))):
            run(settings_of(), results)
    assert not (run_folder(settings_of(), results) / "outcome.json").exists()
    assert not (run_folder(settings_of(), results) / "running.json").exists()
    assert sums(run(settings_of(), results)) == sums(straight)


def test_half_a_line_is_not_kept(tmp_path: Path) -> None:
    """A disk that fills up takes the beginning of what was to be written."""
    journal = Journal(tmp_path / "j.jsonl")
    journal.append(n=1)
    journal.close()
    with (tmp_path / "j.jsonl").open("ab") as file:
        file.write(b'{"n":2,"lo')
    again = Journal(tmp_path / "j.jsonl", keep_bytes=10**6)
    again.append(n=3)
    again.close()
    assert (tmp_path / "j.jsonl").read_text() == '{"n":1}\n{"n":3}\n'


# --- the clock --------------------------------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_changes_nothing(
    results: Results, straight: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, offset = time.time, 0.0
    beats: list[dict[str, Any]] = []
    folder = run_folder(settings_of(), results)

    def set_back(step: int) -> None:
        nonlocal offset
        offset = -3600.0 * step
        if (folder / "running.json").exists():
            beats.append(json.loads((folder / "running.json").read_text()))

    monkeypatch.setattr(time, "time", lambda: real() + offset)
    outcome = run(settings_of(), results, on_step=set_back)
    assert sums(outcome) == sums(straight)
    assert outcome["seconds"] > 0
    assert [beat["rollout_step"] for beat in beats] == [0, 1, 2, 3, 4]  # each jump is more than a second
    rows = [json.loads(line) for line in (folder / "timing.jsonl").read_text().splitlines()]
    assert len({row["time_ms"] // 3_600_000 for row in rows}) == STEPS
    assert all(value >= 0 for row in rows for name, value in row.items() if name.startswith("seconds/"))
    assert sorted(row["seconds/elapsed"] for row in rows) == [row["seconds/elapsed"] for row in rows]


# --- numbers that are not finite --------------------------------------------------------------------------------------


def spoil_loss(loss: Any) -> Any:
    return replace(loss, total=loss.total * math.nan)


def spoil_gradient(loss: Any) -> Any:
    loss.total.register_hook(lambda gradient: gradient * math.inf)
    return loss


@pytest.mark.parametrize(
    ("spoil", "says"), [(spoil_loss, "loss nan"), (spoil_gradient, r"loss -?[\d.e-]+, gradient norm (nan|inf)")]
)
def test_a_loss_or_gradient_that_is_not_finite_is_an_outcome(
    spoil: Any, says: str, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the eighth update: the second of the third rollout step."""
    real, taken = step_module.policy_loss, 0

    def planted(*arguments: Any, **given: Any) -> Any:
        nonlocal taken
        taken += 1
        loss = real(*arguments, **given)
        return spoil(loss) if taken == 8 else loss

    monkeypatch.setattr(step_module, "policy_loss", planted)
    outcome = run(settings_of(), results)
    folder = run_folder(settings_of(), results)
    assert outcome["outcome"] == "diverged", outcome["error"]
    assert re.fullmatch(f"{says}.*, after 2 rollout steps and 7 optimiser steps", outcome["reason"])
    weights = load_file(folder / "policy.safetensors")
    assert all(bool(values.isfinite().all()) for values in weights.values())
    policy = tiny_parts().state.policy
    policy.load_weights(weights)
    assert policy.fingerprint() == outcome["policy_sha256"]
    assert [record["optimizer_step"] for record in records(folder, "update")] == list(range(7))
    assert run(settings_of(), results) == outcome


# --- the user's code --------------------------------------------------------------------------------------------------


THEIRS = """
import json
scored = 0
def reward(prompt, answer, completion):
    global scored
    scored += 1
    return 0.5 if scored <= 16 * {steps} else {expression}
"""


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("{}[completion]", "KeyError: "),
        ("json.loads('{')", "JSONDecodeError: Expecting property name"),  # raised by a library that it called
        ("open('/etc/secrets/x')", "FileNotFoundError: "),
        ("exec('raise PermissionError(13, chr(110), chr(47))')", "PermissionError: "),  # names a file, not the run's
    ],
)
def test_a_reward_that_raises_is_a_failure_that_names_its_file(
    steps: int, expression: str, says: str, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"theirs_{steps}_{abs(hash(expression))}"
    (tmp_path / f"{module}.py").write_text(THEIRS.format(steps=steps, expression=expression))
    monkeypatch.syspath_prepend(tmp_path)
    settings = settings_of(reward={"function": f"{module}:reward", "weights": {"correct": 1.0}})
    outcome = run(settings, results)
    assert (outcome["outcome"], outcome["rollout_steps"]) == ("failed", steps)
    assert outcome["reason"].startswith(f"{tmp_path}/{module}.py, line 7: {says}")
    assert len(outcome["error"].splitlines()) > 3
    assert run(settings, results) == outcome


# --- SIGTERM ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sigterm_leaves_a_checkpoint_at_the_next_rollout_boundary(results: Results, tmp_path: Path) -> None:
    """A real worker, which checkpoints at no other time."""
    machine = {"results": str(results.root), "checkpoint_seconds": 3600.0}
    settings = tiny_settings(rollout_steps=60, machine=machine)
    job = {"job": "run", "signature": settings.signature, "settings": plain(settings.model_dump())}
    request = json.dumps(job) + "\n"
    command = [sys.executable, "-m", "grpolab.sweep.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(request)
        worker.stdin.flush()
        events = (json.loads(line) for line in worker.stdout)
        seen = [next(event["rollout_step"] for event in events if event.get("rollout_step") == 3)]
        worker.send_signal(signal.SIGTERM)
        seen += [event["rollout_step"] for event in events]
    assert worker.returncode == 0
    folder = run_folder(settings, results)
    assert not (folder / "outcome.json").exists()
    state = tiny_parts().state
    checkpoint.restore_state(folder / "checkpoint", state)
    assert 3 <= state.rollout_step == seen[-1] < 60
    steps: list[int] = []
    outcome = run(settings, results, on_step=steps.append)
    assert steps[0] == state.rollout_step + 1
    assert sums(outcome) == sums(run(settings, Results.open(tmp_path / "straight")))
