"""What can be known to be wrong before anything starts. Importing this is cheap: no torch."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

from grpolab.errors import RequestError
from grpolab.grpo.rewards import try_score
from grpolab.identity import dotted
from grpolab.paths import Results
from grpolab.run import memory, parallel
from grpolab.settings.run import RunSettings
from grpolab.settings.task import ModelSettings, PretrainedModel, hub_commit
from grpolab.tasks import make_task
from grpolab.tasks.jsonl import Jsonl
from grpolab.vocabulary import evaluated

LEAST_FREE_BYTES = 200 * 2**20


def check(settings: RunSettings, results: Results) -> list[str]:
    """A sentence for each problem of task, files, reward, model, device or disk; empty when all is well."""
    problems = [*_device(settings.device), *_processes(settings), *_compiler(settings), *_model(settings.model)]
    problems += [] if problems else memory.problems(settings)
    free = shutil.disk_usage(results.root).free
    if free < LEAST_FREE_BYTES:
        problems.append(
            f"machine.results={results.root} has {free // 2**20} MiB left on its disk,"
            f" at least {LEAST_FREE_BYTES // 2**20} are needed"
        )
    try:
        task = make_task(settings.task)
        in_files = task.problems() if isinstance(task, Jsonl) else []
        problems += in_files
        if not in_files:
            try_score(settings.reward, task, task.examples("evaluation", 1)[0])
        measured, rule = evaluated(task.unique_answer), settings.early_stop
        if rule and rule.metric not in measured:
            problems.append(
                f"early_stop.metric={rule.metric} is not measured with task={settings.task.name}:"
                f" it must be one of {', '.join(measured)}"
            )
    except RequestError as error:
        problems += error.problems
    return problems


def _device(device: str) -> list[str]:
    """A GPU that is asked for by name must be there; torch is imported only to ask it."""
    if device != "cuda":
        return []
    import torch

    if torch.cuda.is_available():
        return []
    cuda = torch.version.cuda
    built = f"(CUDA {cuda}) finds no GPU that it can use" if cuda else "is built for the CPU"
    return [
        f"device=cuda is not possible: torch {torch.__version__} {built}: leave device=auto, or delete .venv and run"
        " `make setup TORCH_BACKEND=cu130` (or cu126, as the GPU's driver needs it)"
    ]


def _processes(settings: RunSettings) -> list[str]:
    """As many processes as torchrun has started, where it has, and a GPU for each."""
    size, started = settings.data_parallel or 1, parallel.started_by_torchrun()
    if started not in (1, size):
        return [f"data_parallel={size} is not WORLD_SIZE={started}, the processes that torchrun has started"]
    if size == 1 or settings.resolved().device == "cpu":
        return []
    import torch

    here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", size)), torch.cuda.device_count()
    return [f"data_parallel={size} needs a GPU for each of {here} processes, and there are {gpus}"] * (gpus < here)


def _compiler(settings: RunSettings) -> list[str]:
    """What torch.compile needs beside torch."""
    if not settings.compile:
        return []
    missing = []
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++")):
        missing.append("a C++ compiler (g++ or clang++)")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        missing.append(f"Python's headers (Python.h in {sysconfig.get_path('include')})")
    if settings.resolved().device == "cuda" and importlib.util.find_spec("triton") is None:
        missing.append("the package triton")
    return [f"compile=true needs {' and '.join(missing)}: install it, or leave compile=false"] if missing else []


def _model(model: ModelSettings) -> list[str]:
    """A pretrained model must be a folder, or of the hub at a commit that is known."""
    if not isinstance(model, PretrainedModel):
        return []
    if Path(model.path).is_dir():
        reason = "" if (Path(model.path) / "config.json").is_file() else "the folder has no config.json"
    else:
        reason = hub_commit(model.path, model.revision)[1]
    says = f"model.path={model.path} is neither a folder with a model nor a model of the hub that is known: {reason}"
    return [says] if reason else []


def refuse_another(planned: str, now: str, settings: RunSettings) -> None:
    """Raises RequestError where a run, or its warm start, is no longer the one whose signature was planned."""
    if now == planned:
        return
    values = dict(dotted(settings.model_dump()))
    named = [f"{key}={values.get(key, '...')}" for key in settings.content()]  # the settings that name content
    changed = " or ".join(named) or "the program or its environment"
    raise RequestError(f"{changed} has changed since run {planned} was planned: the same command plans it anew")
