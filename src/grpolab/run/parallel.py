"""The processes of a run with `data_parallel`: start the others, join the group, and do one process's share.

`grpolab train data_parallel=2` starts the others itself: `python -m grpolab.run.parallel`, which says on standard
output when it is ready. Only the first process writes. When one dies, the others notice at their next exchange and end.
Importing this is cheap: no torch.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from grpolab.credentials import masked_output
from grpolab.paths import PYTHON, Results
from grpolab.registry import FOLLOW, resolve
from grpolab.run.folder import describe_error
from grpolab.settings.resolved import Resolved
from grpolab.terminal import say

if TYPE_CHECKING:
    from grpolab.grpo.processes import Processes

PR_SET_PDEATHSIG = 1
PATIENCE = timedelta(days=1)  # the others wait while the first scores or writes; a dead process is noticed at once


@contextmanager
def start_processes(settings: Resolved, results: Results) -> Iterator[Processes]:
    """Start the run's other processes, and yield the group of all to the first one; the others end with it."""
    from grpolab.grpo.processes import LostProcess

    command, size = [*PYTHON, "-m", __name__], settings.processes
    meeting = tempfile.TemporaryDirectory()
    others = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(1, size)]
    request = {"settings": settings.model_dump(), "signature": settings.signature, "results": str(results.root)}
    try:
        for place, other in enumerate(others, start=1):
            assert other.stdin
            other.stdin.write(json.dumps({**request, "place": place, "meeting": meeting.name}).encode() + b"\n")
            other.stdin.flush()
        for place, other in enumerate(others, start=1):
            assert other.stdout
            if not other.stdout.read(1):
                raise LostProcess(f"process {place} of the run's {size} could not start")
        with join_processes(settings, 0, meeting.name) as processes:
            yield processes
    finally:
        for other in others:
            other.kill()  # it has nothing to save
            other.communicate()
        meeting.cleanup()


@contextmanager
def join_processes(settings: Resolved, place: int, meeting: str) -> Iterator[Processes]:
    """Join the run's process group as number `place`; `meeting` is the folder where the processes find each other."""
    import torch
    import torch.distributed as dist

    from grpolab.grpo.processes import Processes

    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):  # listen to this machine only
        os.environ.setdefault(variable, "lo" if sys.platform == "linux" else "lo0")
    size, gradients = settings.processes, None
    store = dist.FileStore(str(Path(meeting) / "store"), size)
    dist.init_process_group("gloo", store=store, rank=place, world_size=size, timeout=PATIENCE)
    if settings.device == "cuda":
        torch.cuda.set_device(place)
        gradients = dist.new_group(backend="nccl")  # notices a dead process after NCCL's ten minutes, and ends this one
    try:
        yield Processes(place, size, gradients)
    finally:
        dist.destroy_process_group()


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    """Do the share of a process that the first one has started; return the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the first process ends the run at a rollout boundary, for all
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()
    ready = os.dup(1)
    os.dup2(2, 1)  # what libraries print goes to standard error
    request = json.loads(sys.stdin.readline())
    follow = resolve(FOLLOW)  # seconds: torch and transformers
    from grpolab.grpo.processes import LostProcess

    os.write(ready, b".")
    os.close(ready)
    settings, place = Resolved.as_planned(request["settings"], signature=request["signature"]), request["place"]
    try:
        with masked_output(), join_processes(settings, place, request["meeting"]) as processes:
            follow(settings, Results.open(request["results"]), processes)
    except LostProcess:  # that one, or the first process, has said why
        return 1
    except Exception as error:
        say(f"grpolab: process {place} of {settings.processes}: {describe_error(error)}", error=True, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
