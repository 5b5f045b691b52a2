"""Who judges an answer besides its text: math-verify, in a process of its own, and a user's sandbox for code.

Both may meet text that never ends. math-verify's own time limits are signals, which only a main thread can have and
which wait for arithmetic in C (`9^{9^9}`). So it runs in a child process, which is killed and started anew.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from grpolab.credentials import is_secret_name
from grpolab.errors import RequestError
from grpolab.paths import PYTHON
from grpolab.settings.task import RewardSettings
from grpolab.tasks.base import Example, Task

PACKAGE = "math_verify"
INSTALL = "`make extras WHAT=math` installs it (pip install 'grpolab[math]')"
START_SECONDS, ANSWER_SECONDS = 120.0, 15.0  # of the child; math-verify's own limits are 3 s a step
MOST_MEMORY = 4 * 2**30  # of the child, in bytes
CODE = re.compile(r"```[\w+.-]*[ \t]*\r?\n(.*?)```", re.DOTALL)


@functools.cache  # one child for all that a process does
def math_verifier() -> Callable[[str, str], bool]:
    """Return a function of (right answer, completion). Raises RequestError if math-verify is not installed."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise RequestError(f"task.verifier=math_verify needs the package math-verify: {INSTALL}")
    return functools.lru_cache(maxsize=4096)(MathVerifier().equal)  # a group often has equal completions


def find_problems(equal: Callable[[str, str], bool]) -> list[str]:
    """Return a sentence if math-verify is installed and does not work: its child is asked what it must know."""
    try:
        if equal("1/2", "\\boxed{0.5}") and not equal("1/2", "\\boxed{0.6}"):
            return []
    except RequestError as error:
        return list(error.problems)
    return [f"task.verifier=math_verify: the package math-verify does not find that 1/2 is 0.5 and not 0.6: {INSTALL}"]


class MathVerifier:
    """A child process that compares answers with math-verify; it ends with this process."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def equal(self, right: str, completion: str) -> bool:
        """Return True if a completion's answer equals the right one; False if that cannot be told in 15 seconds."""
        child = self._child or self._start()
        assert child.stdin
        line = b""
        with suppress(OSError):  # it has died
            child.stdin.write(json.dumps([right, completion]).encode() + b"\n")
            child.stdin.flush()
            line = _line(child, ANSWER_SECONDS)
        if not line:
            child.kill()
            child.communicate()
            self._child = None
        return line == b"true\n"

    def _start(self) -> subprocess.Popen[bytes]:
        code = "from grpolab.data.verifiers import serve; serve()"
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        pipes["start_new_session"] = True  # Ctrl-C is not for it: a run goes on to the end of its step
        child = subprocess.Popen([*PYTHON, "-c", code], **pipes)
        if _line(child, START_SECONDS) != b"ready\n":
            child.kill()
            child.communicate()
            raise RequestError(
                f"task.verifier=math_verify: the package math-verify is there and cannot be used ({PYTHON[0]} -c"
                f" 'import {PACKAGE}' says why): {INSTALL}"
            )
        self._child = child
        return child


def _line(child: subprocess.Popen[bytes], seconds: float) -> bytes:
    """Return the child's next line; empty if it has ended or says nothing for so long."""
    assert child.stdout
    return child.stdout.readline() if select.select([child.stdout], [], [], seconds)[0] else b""


def serve() -> None:
    """Answer questions on standard input, one a line, until it ends: the child's work."""
    import resource

    library = importlib.import_module(PACKAGE)  # by name: it is no dependency of the package
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    say = functools.partial(os.write, sys.stdout.fileno())  # nothing that a library prints comes in between
    sys.stdout = sys.stderr
    say(b"ready\n")
    for line in sys.stdin:
        right, completion = json.loads(line)
        gold = library.parse(f"\\boxed{{{right}}}", parsing_timeout=3)
        answer = library.parse(completion, parsing_timeout=3)
        say(b"true\n" if library.verify(gold, answer, timeout_seconds=3) else b"false\n")


# --- Code -------------------------------------------------------------------------------------------------------------


def code_of(completion: str) -> str:
    """Return the code of a completion: its last fenced block, else all of it."""
    blocks = CODE.findall(completion)
    return (blocks[-1] if blocks else completion).strip()


def in_sandbox(settings: RewardSettings, task: Task) -> Callable[[Example, str], dict[str, float]]:
    """Return the score of a task of code: `correct` if the user's command ends with exit code 0.

    The command gets the completion's code on standard input, and the example's answer, its tests, behind it. Raises
    RequestError if the command does not end with exit code 0 when it is given nothing.
    """
    assert settings.sandbox
    command, seconds = settings.sandbox.command, settings.sandbox.seconds
    if (code := _run(command, "", seconds)) != 0:
        ends = f"does not end within {seconds:g} s" if code is None else f"ends with exit code {code}"
        raise RequestError(f"reward.sandbox.command={command} {ends} when it is given nothing: it must end with 0")

    def score(example: Example, completion: str) -> dict[str, float]:
        program = f"{code_of(completion)}\n\n{example.answer}\n"
        return task.score(example, completion) | {"correct": float(_run(command, program, seconds) == 0)}

    return score


def _run(command: str, program: str, seconds: float) -> int | None:
    """Run a command, without a shell and without the environment's secrets; None if it takes longer."""
    environment = {name: value for name, value in os.environ.items() if not is_secret_name(name)}
    nothing: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        words = shlex.split(command)
        child = subprocess.Popen(words, stdin=subprocess.PIPE, env=environment, start_new_session=True, **nothing)
    except (OSError, ValueError):
        return 127
    try:
        child.communicate(program.encode(errors="replace"), seconds)
        return child.returncode
    except subprocess.TimeoutExpired:
        return None
    finally:  # what it has started may live on, however it ended; as long as it does, no other group has the number
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        assert child.stdin
        child.stdin.close()
        child.wait()
