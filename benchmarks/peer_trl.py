"""What the comparisons with TRL share: processes and what they cost, a trainer of TRL's, a planned run of ours."""

from __future__ import annotations

import importlib.metadata
import logging
import multiprocessing
import os
import platform
import resource
import subprocess
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from grpolab.sweep.jobs import Request

PACKAGES = ("grpolab", "trl", "torch", "transformers", "mlflow")
ENVIRONMENT = {  # read when torch, transformers and mlflow are imported; the processes that are started inherit it
    **{"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
    **{"HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "TOKENIZERS_PARALLELISM": "false"},
    **{"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_EXPERIMENT_NAME": "benchmark", "MLFLOW_LOGGING_LEVEL": "ERROR"},
    "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])),
}


class Cost(NamedTuple):
    """CPU and wall seconds."""

    cpu: float
    wall: float

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.cpu - other.cpu, self.wall - other.wall)


def clock() -> Cost:
    """Return what this process has cost so far."""
    return Cost(time.process_time(), time.monotonic())


def run_command(command: Sequence[str]) -> tuple[str, Cost]:
    """Return the last line of a command's output, and what it cost with all that it started.

    Raises RuntimeError if it fails.
    """

    def spent() -> Cost:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Cost(usage.ru_utime + usage.ru_stime, time.monotonic())

    begun = spent()
    done = subprocess.run(command, capture_output=True, text=True)
    cost = spent() - begun
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout.rstrip().rpartition("\n")[2], cost


def begin() -> None:
    """Set up a process of either system: one torch thread, no chatter."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")


# An executor with one process of its own, which keeps its imports.
fresh_process = partial(ProcessPoolExecutor, 1, multiprocessing.get_context("spawn"), begin)


def print_versions() -> None:
    """Print the processor and the versions that were measured."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "a processor")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    print(f"{processor}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}")


def make_trainer(
    folder: Path, model: Path, reward: Callable[..., list[float]], data: dict[str, Any], **options: Any
) -> Any:
    """Return a trainer of TRL's on the CPU: float32, nothing saved, no bar. `data`: its data sets by argument.

    `trainer.marks` gets the clock at the beginning and at the end of each step.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Clock(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trainer.marks.append(clock())

        on_step_end = on_step_begin

    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/trl.db"
    common = {"loss_type": "grpo", "beta": 0.0, "lr_scheduler_type": "constant", "save_strategy": "no"}
    on_cpu = {"bf16": False, "gradient_checkpointing": False, "use_cpu": True, "disable_tqdm": True}
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model),
        processing_class=AutoTokenizer.from_pretrained(model),
        reward_funcs=reward,
        callbacks=[Clock()],
        args=GRPOConfig(output_dir=str(folder / "trl"), **common | on_cpu | options),
        **data,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.marks = []
    return trainer


def plan_ours(folder: Path, name: str, overrides: Sequence[str], is_tracked: bool = False) -> Request:
    """Return a checked run of ours, with the plan that its mirror reads."""
    from grpolab.studies.command_line import expand_multirun
    from grpolab.sweep.jobs import Request

    results, store = ("tracked", f"sqlite:///{folder}/ours.db") if is_tracked else ("bare", "null")
    machine = ["device=cpu", f"machine.results={folder}/{results}", f"machine.tracking_uri={store}"]
    request = Request([expand_multirun([*overrides, *machine], name)])
    request.write_plans()
    return request
