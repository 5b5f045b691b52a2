"""Find what is wrong with a run before it starts. Importing this is cheap: no torch."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import sysconfig
from pathlib import Path
from typing import Any

from grpolab.errors import RequestError, shorten
from grpolab.grpo.rewards import RANDOM, check_parts, make_score
from grpolab.hub import hub_commit
from grpolab.identity import STEPS
from grpolab.paths import SMOLLM2, Results, read_json
from grpolab.registry import ADAPTER_PROBLEMS, ENGINES, TRY_STEPS, resolve
from grpolab.run import memory
from grpolab.settings.resolved import Resolved
from grpolab.settings.task import LONGEST, OVERLONG, ModelSettings, PretrainedModel, RewardSettings
from grpolab.tasks import make_task
from grpolab.tasks.base import Task
from grpolab.vocabulary import evaluation_metrics

LEAST_FREE_BYTES = 200 * 2**20


def check(settings: Resolved, results: Results) -> list[str]:
    """Return a sentence for each problem of task, files, reward, model, device or disk."""
    model = _check_model(settings.model)
    if settings.machine.launcher:  # only the node knows its devices and memory
        problems = [*_check_launcher(settings), *model]
    else:
        machine = [*_check_device(settings), *_check_compiler(settings)]
        problems = [*machine, *model] or memory.find_problems(settings)
    free = shutil.disk_usage(results.root).free
    if free < LEAST_FREE_BYTES:
        problems.append(
            f"machine.results={results.root} has {free // 2**20} MiB left on its disk,"
            f" at least {LEAST_FREE_BYTES // 2**20} are needed"
        )
    try:
        if any(":" in str(getattr(settings, key)) for key in STEPS):
            problems += resolve(TRY_STEPS)(settings)
        task = make_task(settings.task)
        files = task.problems() if settings.task.name in ("jsonl", "dataset") else []  # type: ignore[attr-defined]
        problems += files
        if not files:
            problems += [] if model else _check_prompts(settings, task)
            problems += resolve(ADAPTER_PROBLEMS)(settings) if settings.lora and not model else []
            if settings.sampler_engine and not model:
                resolve(ENGINES[settings.sampler_engine])(settings)  # asks it
            _try_reward(settings.reward, task)
        samples, rule, votes = settings.evaluation.samples, settings.early_stop, hasattr(task, "final_answer")
        measured = evaluation_metrics(task.unique_answer, samples, votes, bool(settings.other_tasks))
        if rule and rule.metric not in measured:
            of = f"it must be one of {', '.join(measured)}, with evaluation.samples={samples}"
            problems.append(f"early_stop.metric={rule.metric} is not measured with task={settings.task.name}: {of}")
    except RequestError as error:
        problems += error.problems
    return problems


def _check_launcher(settings: Resolved) -> list[str]:
    """Check that the launcher's package is installed, and that launcher and device agree on a GPU."""
    launcher, device, problems = settings.machine.launcher, settings.device, []
    assert launcher
    package = "ray" if launcher.name == "ray" else "submitit"
    if importlib.util.find_spec(package) is None:
        problems.append(f"launcher={launcher.name} needs the package {package}: `make extras WHAT=engines` installs it")
    if (device == "cuda") != (launcher.gpus > 0):
        problems.append(
            f"machine.launcher.gpus={launcher.gpus:g} does not go with device={device}: a run on cuda takes a GPU or a"
            " share of one, and a run on cpu takes none"
        )
    return problems


def _check_device(settings: Resolved) -> list[str]:
    """Check that each process has its GPU if the settings name GPUs; only then torch is imported."""
    if settings.device != "cuda":
        return []
    import torch

    size = settings.processes
    if torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        return [f"data_parallel={size} needs a GPU for each process, and there are {gpus}"] * (gpus < size > 1)
    cuda = torch.version.cuda
    built = f"(CUDA {cuda}) finds no GPU that it can use" if cuda else "is built for the CPU"
    return [
        f"device=cuda is not possible: torch {torch.__version__} {built}: leave device=auto, or delete .venv and run"
        " `make setup TORCH_BACKEND=cu130` (or cu126, as the GPU's driver needs it)"
    ]


def _check_compiler(settings: Resolved) -> list[str]:
    """Check that a compiler is there if the run compiles."""
    if not settings.compile:
        return []
    missing = []
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++")):
        missing.append("a C++ compiler (g++ or clang++)")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        missing.append(f"Python's headers (Python.h in {sysconfig.get_path('include')})")
    if settings.device == "cuda" and importlib.util.find_spec("triton") is None:
        missing.append("the package triton")
    return [f"compile=true needs {' and '.join(missing)}: install it, or leave compile=false"] if missing else []


def _check_model(model: ModelSettings) -> list[str]:
    """Check that a pretrained model is a folder, or a model of the hub with a known commit."""
    if not isinstance(model, PretrainedModel):
        return []
    if Path(model.path).is_dir():
        reason = "" if read_json(Path(model.path) / "config.json") else "the folder has no config.json with an object"
    else:
        is_ours = Path(model.path) == SMOLLM2
        reason = "`make extras WHAT=smollm2` makes it" if is_ours else hub_commit(model.path, model.revision)[1]
    says = f"model.path={model.path} is neither a folder with a model nor a model of the hub that is known: {reason}"
    return [says] if reason else []


def _check_prompts(settings: Resolved, task: Task) -> list[str]:
    """Check that the model can read the prompts: chat template, characters, positions. Raises RequestError."""
    model, chat = settings.model, getattr(task, "chat", False)
    examples = [*task.examples("train", 0), *task.examples("evaluation", settings.evaluation.items)]
    prompts = dict.fromkeys(example.prompt for example in examples)
    if isinstance(model, PretrainedModel):
        from transformers import AutoConfig

        from grpolab.grpo.batch import encode
        from grpolab.grpo.loading import load_tokenizer

        tokenizer, named = load_tokenizer(model), f"model.path={model.path}"
        if chat and tokenizer.chat_template is None:
            return [f"task.chat=true: the tokenizer of {named} has no chat template: set task.chat=false"]
        config = AutoConfig.from_pretrained(model.path, revision=model.revision, trust_remote_code=False)
        positions = getattr(config.get_text_config(), "max_position_embeddings", None) or math.inf
        # A token has at least one byte: most prompts fit by their length alone, and only the others are tokenised.
        if isinstance(chat, str) and (problem := _system_problem(tokenizer, chat)):
            return [f"task.system={shorten(chat, 60)!r}: the chat template of {named} {problem}: leave it empty"]
        around = len(encode(tokenizer, [""], chat=chat)[0])
        most = {prompt: len(prompt.encode()) + around for prompt in prompts}
        long = [prompt for prompt in prompts if most[prompt] + settings.max_completion_length > positions]
        longest = max(map(len, encode(tokenizer, long, chat=chat))) if long else 0
    else:
        system = chat if isinstance(chat, str) else ""
        unknown = sorted(set(system).union(*prompts, *(example.answer for example in examples)) - set(task.alphabet))
        if unknown:
            shown = " ".join(map(repr, unknown[:10])) + (" ..." if unknown[10:] else "")
            return [f"task={settings.task.name}: its texts have characters that model={model.name} lacks: {shown}"]
        named, positions, longest = f"model={model.name}", LONGEST, len(system) + max(map(len, prompts), default=0)
    if longest + settings.max_completion_length > positions:
        return [
            f"max_completion_length={settings.max_completion_length} is too long for {named}: behind the longest prompt"
            f" of {longest} tokens its {positions} positions leave {max(0, int(positions) - longest)}"
        ]
    return []


def _system_problem(tokenizer: Any, system: str) -> str:
    """Say what a chat template does with a system prompt, if it does not show it; '' if it does."""
    turns = [{"role": "system", "content": system}, {"role": "user", "content": ""}]
    try:
        shown = str(tokenizer.apply_chat_template(turns, tokenize=False))
    except Exception as error:  # a template raises what it likes
        return f"refuses a system prompt ({error})"
    return "" if system.strip() in shown else "leaves the system prompt out"


def _try_reward(settings: RewardSettings, task: Task) -> None:
    """Score a right answer. Raises RequestError if a run would fail at its first rollout step."""
    example, score = task.examples("evaluation", 1)[0], make_score(settings, task)
    try:
        parts = {name: float(value) for name, value in score(example, example.answer).items()}
    except Exception as error:  # a user's code may raise anything
        source = f"reward.function={settings.function}" if settings.function else "the task's score"
        raise RequestError(f"{source} raises {type(error).__name__} on a right answer: {error}") from error
    check_parts(settings.weights, [*parts, RANDOM, *settings.parts_of_length])
    if twice := [part for part in settings.parts_of_length if part in parts]:
        key = "overlong_buffer" if twice[0] == OVERLONG else "length_penalty"
        raise RequestError(f"reward.{key} makes a part called {twice[0]}, and the task's score has one already")
    if "correct" not in parts:
        raise RequestError(
            f"reward.function={settings.function} returns no part called correct, only {', '.join(parts)}"
        )
