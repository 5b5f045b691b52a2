"""The processes of a run with `data_parallel`: start them, join them, and do the share of one that is not the first.

`grpolab train data_parallel=2` starts the others itself: `python -m grpolab.run.parallel`, which says on standard
output when it is ready. Under torchrun they exist already, and each composes the same run. Only the first process
writes. When one dies, the others notice at their next exchange and end. Importing this is cheap: no torch.
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
from grpolab.run.folder import describe_error, find_outcome
from grpolab.settings.resolved import Resolved
from grpolab.terminal import say
from grpolab.vocabulary import RESULTS

if TYPE_CHECKING:
    from grpolab.grpo.processes import Processes

PR_SET_PDEATHSIG = 1
PATIENCE = timedelta(days=1)  # the others wait while the first scores or writes; a death shows at once


def started_by_torchrun() -> int:
    """Return how many processes torchrun has started, by its variables; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Return the place of this process among those of torchrun; 0 if there are no others."""
    return int(os.environ.get("RANK", "0")) if started_by_torchrun() > 1 else 0


@contextmanager
def together(settings: Resolved, results: Results) -> Iterator[Processes]:
    """Yield all processes of a run to its first one; those that it starts end with it."""
    from grpolab.grpo.processes import ALONE

    if (settings.data_parallel or 1) == 1:
        yield ALONE
    elif started_by_torchrun() > 1:
        with joined(settings, 0, None) as processes:
            yield processes
    else:
        meeting = tempfile.TemporaryDirectory()
        with meeting as folder, _others(settings, results, folder), joined(settings, 0, folder) as processes:
            yield processes


@contextmanager
def _others(settings: Resolved, results: Results, meeting: str) -> Iterator[None]:
    """Start all processes but the first, ready to be joined in a folder where they meet."""
    from grpolab.grpo.processes import LostProcess

    command, size = [*PYTHON, "-m", __name__], settings.data_parallel or 1
    others = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(1, size)]
    request = {"settings": settings.model_dump(), "signature": settings.signature, "results": str(results.root)}
    try:
        for place, other in enumerate(others, start=1):
            assert other.stdin
            other.stdin.write(json.dumps({**request, "place": place, "meeting": meeting}).encode() + b"\n")
            other.stdin.flush()
        for place, other in enumerate(others, start=1):
            assert other.stdout
            if not other.stdout.read(1):
                raise LostProcess(f"process {place} of data_parallel={size} could not start")
        yield
    finally:
        for other in others:
            other.kill()  # it has nothing to save
            other.communicate()


@contextmanager
def joined(settings: Resolved, place: int, meeting: str | None) -> Iterator[Processes]:
    """Join the run's processes at a place; `meeting` None: they meet where torchrun's variables say."""
    import torch
    import torch.distributed as dist

    from grpolab.grpo.processes import Processes

    size, store = settings.data_parallel or 1, None
    if meeting:
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):  # listen to this machine only
            os.environ.setdefault(variable, "lo" if sys.platform == "linux" else "lo0")
        store = dist.FileStore(str(Path(meeting) / "store"), size)
    dist.init_process_group("gloo", store=store, rank=place if store else -1, world_size=size, timeout=PATIENCE)
    gradients = None
    if settings.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", place)))
        gradients = dist.new_group(backend="nccl")  # a death shows after its own ten minutes, and ends the process
    try:
        yield Processes(place, size, gradients)
    finally:
        dist.destroy_process_group()


def follow(settings: Resolved, results: Results, place: int, meeting: str | None = None) -> int:
    """Do the share of a process that is not the first; return the exit code. A run with an outcome stays as it is."""
    from grpolab.grpo.processes import LostProcess

    outcome = find_outcome(results.run(settings.signature))
    if outcome and outcome["outcome"] in RESULTS:  # the first process has found the same, and waits for nobody
        return 0
    _leave_signals_to_the_first()
    try:
        with joined(settings, place, meeting) as processes:
            resolve(FOLLOW)(settings, results, processes)
    except LostProcess:  # whoever was lost, or the first, has said why
        return 1
    except Exception as error:
        say(f"grpolab: process {place} of {settings.data_parallel}: {describe_error(error)}", error=True, flush=True)
        return 1
    return 0


def _leave_signals_to_the_first() -> None:
    """Ctrl-C and SIGTERM reach all processes; the first one ends the run at a rollout boundary, for all."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    """Run as one of the processes that the first one starts; return the exit code."""
    _leave_signals_to_the_first()
    die_with_parent()
    ready = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints
    request = json.loads(sys.stdin.readline())
    resolve(FOLLOW)  # seconds: torch and transformers
    os.write(ready, b".")
    os.close(ready)
    settings = Resolved.as_planned(request["settings"], signature=request["signature"])
    with masked_output():
        return follow(settings, Results.open(request["results"]), request["place"], request["meeting"])


if __name__ == "__main__":
    sys.exit(main())
