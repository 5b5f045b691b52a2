"""A trained policy as a Hugging Face folder: weights, config, tokenizer, and a model card with settings and results."""

from __future__ import annotations

import re
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import GenerationConfig
from transformers.utils import logging

from grpolab.credentials import without_secrets_in
from grpolab.errors import RequestError
from grpolab.grpo.loading import make_policy
from grpolab.grpo.model import Policy
from grpolab.identity import dotted
from grpolab.models.lora import add_adapters, merged
from grpolab.paths import Results, map_leaves, plain
from grpolab.records import check_policy, read_provenance, read_result, read_settings
from grpolab.run_files import WEIGHTS, Record, read_warm_start
from grpolab.settings.resolved import Resolved
from grpolab.settings.task import PretrainedModel
from grpolab.tasks import make_task
from grpolab.vocabulary import DIVERGED

# The folders before a name, at the beginning of a word: /home/me/ of `cat /home/me/run.sh`, but nothing of /no_think.
FOLDERS = re.compile(r"(?<![^\s'\"=,\[(])~?(/[^\s/'\"]+)+/(?=[^\s/'\"])")
NAMES_A_PLACE = {"path", "train_file", "evaluation_file", "dataset", "function"}  # keys of paths, by their last part


def write_model(results: Results, run: Path, target: Path) -> None:
    """Write the policy that a run ended with into a new folder, which `from_pretrained` loads.

    Adapters are added to the weights that they belong to. Of a run that diverged these are the weights of its last
    finite optimiser step. Raises RequestError if the run has no weights, or weights that are not finite, or the folder
    is there already, and Damaged if the weights are not those of its outcome.
    """
    outcome = read_result(run)
    if outcome is None or not (run / WEIGHTS).exists():
        raise RequestError(f"run {run.name} has no final weights: it has not ended, or another machine trained it")
    if target.exists():
        raise RequestError(f"{target} is there already: name a folder that is new")
    check_policy(run, outcome)
    settings = _settings_of(run)
    policy = final_policy(settings, results, run)
    if not all(bool(weight.isfinite().all()) for weight in policy.weights().values()):
        raise RequestError(f"run {run.name} diverged ({outcome.get('reason')}), and the weights it kept are not finite")
    policy.model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=settings.temperature,
        top_k=settings.top_k or 0,  # transformers takes 50 where nothing is said
        top_p=settings.top_p,
        min_p=settings.min_p,
        max_new_tokens=settings.max_completion_length,
        eos_token_id=policy.end,
        pad_token_id=policy.pad,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    part.chmod(0o755)
    logging.disable_progress_bar()  # of shards; this command is done with the process
    policy.model.save_pretrained(part)
    policy.tokenizer.save_pretrained(part)
    (part / "README.md").write_text(model_card(settings, run.name, outcome))
    part.rename(target)


def _settings_of(run: Path) -> Resolved:
    """Return a run's settings, on a CPU; keys that are younger than the run are off. Raises RequestError."""
    values = {**dict.fromkeys(Resolved.model_fields), **read_settings(run), "device": "cpu", "compile": None}
    for attempt in range(2):
        try:
            return Resolved.as_planned(values)
        except ValidationError as error:
            for problem in error.errors():
                group, key = str(problem["loc"][0]), str(problem["loc"][-1])
                if attempt or problem["type"] != "missing" or not isinstance(values.get(group), dict):
                    where = ".".join(map(str, problem["loc"]))
                    raise RequestError(
                        f"run {run.name} was made by another version: {where}: {problem['msg']}"
                    ) from error
                values[group] = {**values[group], key: None}
    raise AssertionError


def final_policy(settings: Resolved, results: Results, run: Path) -> Policy:
    """Return the policy that a run ended with, its adapters added to the weights that they belong to."""
    task, weights = make_task(settings.task), load_file(run / WEIGHTS)
    policy = make_policy(settings, task)
    if settings.lora:
        provenance = read_provenance(run)
        start = provenance.get("warm_start") or {}
        if start.get("steps"):
            folder = results.warm_start(start["signature"])
            if (read_warm_start(folder) or {}).get("sha256") != start["sha256"]:
                raise RequestError(f"run {run.name} has adapters, and their warm start {folder} is not there as it was")
            policy.load_weights(load_file(folder / WEIGHTS))
        if settings.content() != (provenance.get("content") or {}):
            raise RequestError(
                f"run {run.name} has adapters, and what its settings name (model, data) has changed since"
            )
        adapted = add_adapters(policy, settings.lora, settings.seed)
        adapted.load_weights(weights)
        policy, weights = make_policy(settings, task), merged(adapted)
    policy.load_weights(weights)
    return policy


def model_card(settings: Resolved, signature: str, outcome: Record) -> str:
    """Return the README.md of a model: what it is, its results, its settings, and how to load it.

    It names files and folders of the machine, but not where they are.
    """
    model = settings.model
    base = without_place("path", model.path) if isinstance(model, PretrainedModel) else None
    front = ["library_name: transformers", "pipeline_tag: text-generation", "tags: [grpo, grpolab]"]
    if isinstance(model, PretrainedModel) and base == model.path and not Path(base).exists():  # a name on the hub
        front.append(f"base_model: {base}")
    final = [f"| `{name}` | {value:.6g} |" for name, value in (outcome.get("final") or {}).items()]
    values = dotted(without_secrets_in(plain(settings.model_dump(exclude={"machine"}, exclude_none=True))))
    named = {key: map_leaves(value, partial(without_place, key)) for key, value in values}
    text = yaml.safe_dump(named, sort_keys=False, allow_unicode=True, width=10**6).rstrip()
    fence = "`" * max(3, *(len(ticks) + 1 for ticks in re.findall("`+", text)), 0)
    diverged = outcome["outcome"] == DIVERGED
    sampler_keys = filter(re.compile("sampler_(engine|dtype|noise|refresh)|staleness|top_[kp]|min_p").fullmatch, named)
    sampler = ", ".join(f"`{key}={named[key]}`" for key in sampler_keys if settings.other_sampler and named[key])
    lines = [
        *("---", *front, "---", "", f"# {base or 'A tiny Llama'}, trained by GRPO on {settings.task.name}", ""),
        f"The final weights of run `{signature}` of GRPO Lab (`policy_sha256` {outcome.get('policy_sha256')}), which"
        f" {outcome['outcome']} after {outcome.get('rollout_steps')} rollout steps and {outcome.get('optimizer_steps')}"
        f" optimiser steps on {outcome.get('completions')} sampled completions.",
        *([f"They are those of its last finite optimiser step ({outcome.get('reason')})."] if diverged else []),
        *([f"They learnt from completions that another policy sampled: {sampler}."] if sampler else []),
        *("", "```python", "from transformers import AutoModelForCausalLM, AutoTokenizer", ""),
        'model = AutoModelForCausalLM.from_pretrained("THIS_FOLDER")',
        *('tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")', "```", "", "## Last evaluation", ""),
        f"On at most {settings.evaluation.items} held-out prompts.",
        *("", "| metric | value |", "|---|---|", *final),
        *("", "## Settings", "", f"{fence}yaml", text, fence, ""),
    ]
    return "\n".join(lines)


def without_place(key: str, value: Any) -> Any:
    """Return a setting without the folders of this machine: `/home/me/reward.py:score` -> `reward.py:score`."""
    if not isinstance(value, str):
        return value
    is_place = key.rpartition(".")[2] in NAMES_A_PLACE and value.startswith(("/", "~"))
    return Path(value).name if is_place else FOLDERS.sub("", value)
