"""The judges besides the text: math-verify in a process of its own, and a user's sandbox."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_settings

from grpolab.data import verifiers
from grpolab.data.text_tasks import Jsonl
from grpolab.errors import RequestError
from grpolab.grpo.rewards import make_score
from grpolab.paths import Results
from grpolab.run import preflight
from grpolab.settings.task import RewardSettings
from grpolab.sweep.compose import compose
from grpolab.tasks.base import Example

PACKAGE = """
import time

def parse(text, parsing_timeout):
    return text

def verify(gold, answer, timeout_seconds):
    time.sleep(60 if answer == "endless" else 0)
    if answer == "fatal":
        raise SystemExit
    return gold == "\\\\boxed{1/2}" and "half" in answer
"""


def task_of(verifier: str) -> Jsonl:
    how = {"prompt_key": "q", "answer_key": "a", "template": "{prompt}", "chat": False}
    return Jsonl("train", "test", **how, verifier=verifier)


@pytest.fixture
def new_child() -> Any:
    verifiers.math_verifier.cache_clear()
    yield
    verifiers.math_verifier.cache_clear()


def test_math_verify_judges_what_differs_as_text_and_may_hang_or_die(tmp_path: Path, monkeypatch, new_child) -> None:
    """A package of that name that does both."""
    (tmp_path / "math_verify.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *filter(None, sys.path)]))
    monkeypatch.setattr(verifiers, "ANSWER_SECONDS", 1.0)
    task, example = task_of("math_verify"), Example("?", "#### 1/2")
    texts = ["0.5", "a half", "a third", "endless", "half again", "fatal", "and a half"]
    assert [task.score(example, text)["correct"] for text in texts] == [1, 1, 0, 0, 1, 0, 1]


def test_without_math_verify_the_command_is_named(monkeypatch: pytest.MonkeyPatch, new_child: Any) -> None:
    monkeypatch.setattr(verifiers, "PACKAGE", "no_such_package")
    with pytest.raises(RequestError, match=r"needs the package math-verify: `make extras WHAT=math` installs it"):
        task_of("math_verify")


@pytest.mark.parametrize(
    ("package", "says"),
    [
        ("import no_such_parser", "the package math-verify is there and cannot be used"),
        (PACKAGE, "the package math-verify does not find that 1/2 is 0.5 and not 0.6"),
    ],
)
def test_a_math_verify_that_does_not_work_is_found_before_anything_starts(
    package: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_child: Any
) -> None:
    (tmp_path / "math_verify.py").write_text(package)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *filter(None, sys.path)]))
    task: dict[str, Any] = {"name": "jsonl", "prompt_key": "q", "answer_key": "a", "template": "{prompt}"}
    task |= {"chat": False, "verifier": "math_verify"} | dict.fromkeys(("system", "stop", "format"))
    for name in ("train_file", "evaluation_file"):
        task[name] = str(tmp_path / name)
        (tmp_path / name).write_text(f'{{"q": "{name}", "a": "1"}}\n')
    (problem,) = preflight.check(tiny_settings(task=task), Results.open(tmp_path / "results"))
    assert problem.startswith(f"task.verifier=math_verify: {says}")
    assert "`make extras WHAT=math` installs it" in problem


@pytest.mark.optional
def test_math_verify_knows_algebra(new_child: Any) -> None:
    """`make extras WHAT=math` installs it and runs this."""
    task = task_of("math_verify")
    for gold, text, right in (("\\boxed{x^2-4}", "\\boxed{(x-2)(x+2)}", 1), ("2\\sqrt{3}", "so $\\sqrt{13}$", 0)):
        assert task.score(Example("?", gold), text)["correct"] == right


PYTHON = f"{sys.executable} -"


def sandbox(command: str, seconds: float = 20.0) -> RewardSettings:
    reward = {"weights": {"correct": 1.0}, "sandbox": {"command": command, "seconds": seconds}}
    return RewardSettings.model_validate({**tiny_settings().reward.model_dump(), **reward})


def test_code_is_right_if_the_users_command_ends_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "secret")
    score, tests = make_score(sandbox(PYTHON, 5.0), task_of("code")), "assert double(4) == 8"
    endless = "def double(x):\n    while True: pass"
    texts = ["Here:\n```python\ndef double(x):\n    return 2 * x\n```\nDone.", "def double(x): return x", endless, ""]
    assert [score(Example("?", tests), text)["correct"] for text in texts] == [1, 0, 0, 0]
    seen = "import os\nassert 'MY_API_KEY' not in os.environ and 'PATH' in os.environ"
    assert score(Example("?", "pass"), seen)["correct"] == 1, "secrets stay here"


@pytest.mark.parametrize(
    ("command", "seconds", "says"),
    [
        ("/no/such/command", 5.0, "ends with exit code 127 when it is given nothing: it must end with 0"),
        (f"{sys.executable} -c 'import time; time.sleep(60)'", 0.2, "does not end within 0.2 s"),
    ],
)
def test_a_sandbox_that_does_not_start_is_refused(command: str, seconds: float, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        make_score(sandbox(command, seconds), task_of("code"))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("task.verifier=code", "task.verifier=code needs reward.sandbox={command: ..., seconds: 10}, where it runs"),
        ("reward.sandbox={command: x, seconds: 1}", "reward.sandbox needs task.verifier=code"),
        (
            "task.verifier=code reward.sandbox={command:x,seconds:1} warm_start.max_steps=9",
            "warm_start.max_steps=9 would teach the tests of task.verifier=code as answers: it must be 0",
        ),
    ],
)
def test_code_and_a_sandbox_go_together_and_no_warm_start_teaches_tests(override: str, says: str) -> None:
    overrides = override.split() if "max_steps" in override else [override]
    with pytest.raises(RequestError, match=says):
        compose(["task=gsm8k", *overrides])


@pytest.mark.parametrize("ends", [True, False])
def test_nothing_that_a_sandbox_starts_outlives_it(ends: bool, tmp_path: Path) -> None:
    """Neither if the command ends by itself nor if it is killed."""
    command = f"sh -c 'sleep 60 & echo $! > {tmp_path}/pid; sleep {0 if ends else 60}'"
    assert verifiers._run(command, "", 20.0 if ends else 3.0) == (0 if ends else None)
    pid = int((tmp_path / "pid").read_text())
    stat = Path("/proc", str(pid), "stat")
    for _ in range(100):
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("its child lives")
