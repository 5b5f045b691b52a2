"""Check the settings of one run as Hydra composed them: types, ranges, and keys that do not fit together.

`settings/resolved.py` fills in settings that follow from others.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, FiniteFloat

from grpolab.registry import FAULTS, GROUP_BASELINES, SURROGATES
from grpolab.settings import (
    Count,
    Natural,
    NonNegative,
    Positive,
    PositiveOrInf,
    Seed,
    Settings,
    Share,
    Switch,
    among,
    setting,
)
from grpolab.settings.selection import REWARD, SelectionSettings
from grpolab.settings.task import (
    LoraSettings,
    ModelSettings,
    OtherTask,
    RewardSettings,
    TaskSettings,
    WarmStartSettings,
)
from grpolab.vocabulary import EVALUATION


class EvaluationSettings(Settings):
    """Held-out evaluation, with noise that all arms share."""

    every: Count = setting("Rollout steps between evaluations; also before the first and after the last.")
    items: Count = setting("Evaluation prompts.")
    batch_size: Count = setting("Prompts in one forward.")
    samples: Count = setting("Largest k of pass@k; where many answers are right, completions drawn for each prompt.")


class DiagnosticsSettings(Settings):
    """Optional measurements; each switch removes its cost."""

    quantiles: bool = setting("Ratio quantiles by level and advantage sign, at every optimiser step.")
    counterfactual: bool = setting("What other epsilons would have clipped, at every optimiser step.")
    clip_conventions: bool = setting("The clip fraction by each framework's definition, at every update.")
    histogram_every: Natural = setting("Rollout steps between two histograms of ratios; 0: never.")
    samples_every: Natural = setting("Rollout steps between two tables of completions; 0: never.")
    mismatch: Switch = setting("How far the sampler is from the trainer, at every rollout step.")
    step_norm: bool = setting("How far the weights moved in each rollout step.")
    gradient_cosine: Switch = setting("Cosine of each optimiser step's gradient with the one before.")
    kl_ref_every: Natural = setting("Rollout steps between two exact KLs to the warm start; 0: never.")


class RayLauncher(Settings):
    """Runs as tasks of a Ray cluster; its token, where it asks for one, is in RAY_AUTH_TOKEN."""

    name: Literal["ray"]
    address: str | None = setting(
        "Cluster to join, as host:port, or `auto` for the one here; empty: one is started.", min_length=1
    )
    cpus: Positive = setting("CPUs that a run takes; a share where several are to share one.")
    gpus: NonNegative = setting("GPUs that a run takes; a share where several are to share one.")
    retries: Natural = setting("How often a run that is lost with its node or its process is done again.")


class SlurmLauncher(Settings):
    """Runs as jobs of Slurm, in arrays, through submitit."""

    name: Literal["slurm"]
    cluster: Literal["slurm", "local"] = setting("`local` starts the same jobs on this machine: a rehearsal.")
    partition: str | None = setting("Partitions, with commas; empty: Slurm's default.", min_length=1)
    timeout_minutes: Count = setting("Longest job, in minutes; its run is then queued again.")
    requeues: Natural = setting("How often a job whose time is up is put in the queue again.")
    memory_gib: Positive = setting("Memory of a job.")
    cpus: Count = setting("CPUs of a job.")
    gpus: Natural = setting("GPUs of a job.")
    options: dict[str, str | int] = setting("Further options of sbatch, as {account: mine, qos: low}.")
    most_at_once: Count = setting("Most jobs that wait or run at a time; --jobs goes before it.")
    retries: Natural = setting("How often a run that is lost with its node is done again.")


Launcher: TypeAlias = Annotated[RayLauncher | SlurmLauncher, Field(discriminator="name")]


class EngineSettings(Settings):
    """Where the inference engine of `sampler_engine` is."""

    url: str = setting("Its address, such as http://127.0.0.1:8000.", min_length=1)
    folder: str = setting("Folder of the model that it serves; each rollout step overwrites model.safetensors there.")
    seconds: Positive = setting("Longest wait for one of its answers.")


class MachineSettings(Settings):
    """The machine a run is on: no key here enters a signature."""

    results: str = setting("Folder of runs, studies and the MLflow store.", min_length=1)
    tracking_uri: str | None = setting("MLflow store; `auto`: SQLite in the results folder; empty: none.")
    threads: Count = setting("torch threads of one worker.")
    processes: Count | None = setting("Processes that do the work of data_parallel, if fewer; empty: as many.")
    engine: EngineSettings | None = setting("Where the engine of sampler_engine is; empty: there is none.")
    launcher: Launcher | None = setting("Where a sweep's runs go; empty: worker processes here.")
    checkpoint_seconds: NonNegative = setting("Least seconds between checkpoints (at rollout boundaries).")
    # Limits of a worker, which the parent of a sweep watches; empty: none.
    cell_timeout_seconds: Positive | None = setting("Most seconds of a cell in one sitting; it then fails.")
    hang_seconds: Positive | None = setting("Most seconds without a step; a cell has two tries.")
    memory_mib: Count | None = setting("Most resident memory of a worker, whose imports take about 400.")


class EarlyStopSettings(Settings):
    """Ends a run whose evaluations stay at or below a bound; that is its outcome, and the rule is its reason."""

    metric: Annotated[str, among(EVALUATION)] = setting("Evaluation metric that is watched.")
    at_most: FiniteFloat = setting("An evaluation at or below this is a bad one.")
    after: Natural = setting("Evaluations before so many rollout steps do not count.")
    evaluations: Count = setting("So many bad evaluations in a row end the run.")


class RunSettings(SelectionSettings):
    """One run."""

    seed: Seed = setting("Every random draw of the run follows from this number.")
    task: TaskSettings = setting("What is learnt.")
    other_tasks: dict[str, OtherTask] | None = setting(
        "Tasks that the warm start teaches too, its steps in turn, and that evaluations measure: what is forgotten."
    )
    reward: RewardSettings = setting("How a completion is scored.")
    model: ModelSettings = setting("What learns.")
    lora: LoraSettings | None = setting("Adapters that GRPO trains in place of all weights; empty: none.")
    warm_start: WarmStartSettings = setting("Where it starts.")

    rollout_steps: Count | None = setting("How often a batch is sampled and learnt from.")
    max_completions: Count | None = setting(
        "Most completions to sample, in whole rollout steps; where filter_groups samples again, the run ends with the"
        " step that reaches it."
    )
    max_optimizer_steps: Count | None = setting("Most optimiser steps, in whole rollout steps.")
    max_seconds: Positive | None = setting("The run ends after so many seconds of training, in whole rollout steps.")
    early_stop: EarlyStopSettings | None = setting("When a run is hopeless and ends; empty: never.")
    prompts_per_step: Count = setting("Prompts in a rollout batch.")
    num_generations: Count = setting("Completions per prompt: the group of GRPO.")
    max_completion_length: Count = setting("Most tokens of a completion, end token included.")
    temperature: Positive = setting("Sampling temperature; the log-probabilities use it too.")
    top_k: Count | None = setting("Sample from so many of the most likely tokens; empty: from all.")
    top_p: float | None = setting("Sample from the fewest tokens that hold this probability; empty: all.", gt=0, lt=1)
    min_p: float | None = setting(
        "Sample from tokens at least so many times as likely as the likeliest; empty: all.", gt=0, le=1
    )
    keep_sampling_mask: Switch = setting(
        "The trainer's log-probs too are those among the tokens that could be sampled (DeepSeek-V3.2)."
    )
    staleness: Natural = setting("Rollout steps between sampling a batch and learning from it; 0: on-policy.")
    sampler_dtype: Literal["float32", "bfloat16", "float16", "int8"] | None = setting(
        "Precision of the sampler; int8: its linear layers' weights rounded for each output channel, but not its head"
        " and adapters, as engines serve an adapter beside a quantised model. Empty: that of training."
    )
    sampler_noise: Positive | None = setting(
        "Standard deviation, in nat, of Gaussian noise on the sampler's logits: an inference engine's; empty: none."
    )
    sampler_refresh: Count | None = setting(
        "Rollout steps between two refreshes of the sampler's weights; empty: it has the trainer's at each step."
    )
    sampler_engine: Literal["vllm", "continuous"] | None = setting(
        "What samples in place of our own forward passes: vLLM at machine.engine, or transformers here; empty: none."
    )

    num_iterations: Count = setting("Passes over a rollout batch (mu).")
    num_minibatches: Count = setting("Optimiser steps in a pass.")
    micro_batch_size: Count | Literal["auto"] | None = setting(
        "Sequences in one forward and backward; empty: the minibatch, or a process's share of it; `auto`:"
        " as many as fit into the memory that a worker has (machine.threads, machine.memory_mib). That is a number"
        " before the run has its signature, so that on another machine it may be another run."
    )
    sort_by_length: Switch = setting("Completions of a like length share a micro-batch, as wide as its longest one.")
    sort_by_prompt: Switch = setting("A micro-batch's prompts and completions share what they can, rounded otherwise.")
    whole_groups: Switch = setting("Minibatches have whole groups, as sampled; empty: completions in a random order.")
    gradient_checkpointing: Switch = setting(
        "Compute each layer again in the backward pass: a third more work, far less memory."
    )

    learning_rate: NonNegative = setting("AdamW's peak learning rate.")
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = setting("Its course after the warm-up.")
    min_lr_ratio: Share | None = setting("Share of the peak at which a falling course ends; empty: 0.")
    warmup_steps: Natural = setting("Optimiser steps of linear warm-up.")
    adam_beta1: float = setting("AdamW's decay of the gradient mean.", ge=0, lt=1)
    adam_beta2: float = setting("AdamW's decay of the squared gradient.", ge=0, lt=1)
    adam_epsilon: Positive = setting("AdamW's epsilon.")
    weight_decay: NonNegative = setting("AdamW's decoupled weight decay.")
    max_grad_norm: PositiveOrInf = setting("Global gradient norm is clipped to this; `.inf` switches it off.")

    evaluation: EvaluationSettings = setting("How progress is measured.")
    diagnostics: DiagnosticsSettings = setting("What else is measured.")
    device: Literal["auto", "cpu", "cuda"] = setting("`auto` is CUDA where there is one.")
    dtype: Literal["float32", "bfloat16"] = setting(
        "Precision of the forward pass; weights and log-softmax are float32."
    )
    head_dtype: Literal["float32"] | None = setting("Precision of the logits; empty: that of the forward pass.")
    data_parallel: Count | None = setting(
        "Processes that share the run: each samples some of the prompts and computes some of the"
        " micro-batches, gradients are added up. Empty: one. Sums are rounded in another order."
    )
    shard_weights: Switch = setting("Each of them keeps a part of each layer's weights, gradients and moments (FSDP2).")
    compile: Switch = setting(
        "Whether updates run through torch.compile: faster, once it has compiled for about a minute, and"
        " rounded differently. Needs a C++ compiler."
    )
    fault: Annotated[str, among(FAULTS)] | None = setting(
        "Fault to plant in the loop (conf/fault/), for the doctor to find; empty: none."
    )
    machine: MachineSettings = setting("Where and how; not part of the signature.")

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        by_group = self.advantage_estimator in GROUP_BASELINES or self.scale_rewards not in ("none", "batch")
        if self.num_generations == 1 and by_group:
            yield "num_generations=1 leaves every group-normalised advantage undefined: use num_generations >= 2"
        yield from self._minibatch_problems()
        yield from self._selection_problems()
        yield from self._process_problems()
        yield from self._limit_problems()
        if engine := self.sampler_engine:
            for key in ("keep_sampling_mask", "sampler_dtype", "sampler_noise", "sampler_refresh"):
                if getattr(self, key) is not None:
                    yield f"sampler_engine={engine} has weights and numbers of its own: leave {key} empty"
            if engine == "vllm" and self.machine.engine is None:
                yield f"sampler_engine={engine} needs machine.engine, with its url, folder and seconds"
        if self.lora and self.compile:
            yield "compile=true compiles the model without the adapters of lora: leave one empty"
        if (runs_code := getattr(self.task, "verifier", None) == "code") != (self.reward.sandbox is not None):
            needs = "reward.sandbox={command: ..., seconds: 10}, where it runs" if runs_code else "task.verifier=code"
            yield f"{'task.verifier=code' if runs_code else 'reward.sandbox'} needs {needs}"
        if runs_code and (steps := self.warm_start.max_steps):
            yield f"warm_start.max_steps={steps} would teach the tests of task.verifier=code as answers: it must be 0"

    def _minibatch_problems(self) -> Iterator[str]:
        minibatch, micro, processes = self.minibatch_size, self.micro_batch_size, self.data_parallel or 1
        group = "train_generations" if self.train_generations else "num_generations"
        pieces, must = self.num_minibatches, f"must divide the minibatch of {minibatch} sequences"
        if (trained := self.prompts_per_step * getattr(self, group)) % pieces:
            yield f"num_minibatches={pieces} must divide prompts_per_step * {group} = {trained}"
        elif isinstance(micro, int) and minibatch % micro:
            yield f"micro_batch_size={micro} {must}"
        whole = self.compares_tokens
        if whole and (processes > 1 or micro not in (None, "auto", minibatch)):
            key = f"data_parallel={processes}" if processes > 1 else f"micro_batch_size={micro}"
            yield f"{key}: {whole} compares the tokens of a minibatch, whose {minibatch} sequences must be in one piece"
        elif SURROGATES[self.kernel].compares_groups and pieces > 1:
            yield f"num_minibatches={pieces}: kernel={self.kernel} compares the completions of a prompt: it must be 1"
        elif processes > (most := min(self.prompts_per_step, minibatch)):
            yield f"data_parallel={processes} must be at most {most}: each process has a prompt and a completion"
        elif micro is None and minibatch % processes:
            yield f"data_parallel={processes} {must}, or micro_batch_size must say how many are in one forward"
        elif isinstance(micro, int) and minibatch // micro < processes:
            yield (
                f"data_parallel={processes} is more than the {minibatch // micro} micro-batches of a minibatch:"
                f" micro_batch_size={micro} must be at most {minibatch // processes}"
            )

    def _process_problems(self) -> Iterator[str]:
        processes, here = self.data_parallel or 1, self.processes
        if here > processes:
            yield f"machine.processes={here} must be at most data_parallel={processes}"
        if self.shard_weights:
            if processes == 1:
                yield "shard_weights=true shares the weights among processes: it needs data_parallel=2 or more"
            if (pieces := self.minibatch_size // self.forward_size) % here:
                yield f"shard_weights=true: {here} processes must divide the {pieces} micro-batches of a minibatch"
            for key in ("sampler_dtype", "sampler_refresh", "compile"):
                if getattr(self, key) is not None:
                    yield f"shard_weights=true with {key} is not supported: leave one empty"
            if self.diagnostics.gradient_cosine:
                yield "shard_weights=true: no process has the whole gradient of diagnostics.gradient_cosine"
        if self.fault and processes > 1:
            yield f"data_parallel={processes}: fault={self.fault} is planted in one process: leave data_parallel empty"

    def _limit_problems(self) -> Iterator[str]:
        if not (self.rollout_steps or self.max_completions or self.max_optimizer_steps):
            yield "rollout_steps=null needs another limit: set rollout_steps, max_completions or max_optimizer_steps"
            return
        for key, least, product in (
            ("max_completions", self.batch_size, "prompts_per_step * num_generations"),
            ("max_optimizer_steps", self.updates_per_batch, "num_iterations * num_minibatches"),
        ):
            if (limit := getattr(self, key)) is not None and limit < least:
                yield f"{key}={limit} is less than one rollout step: it must be at least {product} = {least}"
        if 0 < self.planned_steps <= self.staleness:
            yield f"staleness={self.staleness} must be less than the run's {self.planned_steps} rollout steps"

    def _selection_problems(self) -> Iterator[str]:
        """Yield a sentence for each key of which samples train that does not fit."""
        if self.keep_sampling_mask and not self.truncates_sampling:
            yield "keep_sampling_mask=true has nothing to keep: it needs top_k, top_p or min_p"
        if len(self.prompt_rules) > 1:
            yield f"{' and '.join(self.prompt_rules)} choose prompts in different ways: set one"
        if (kept := self.train_generations) is not None and kept >= self.num_generations:
            yield f"train_generations={kept} must be less than num_generations={self.num_generations}, or empty"
        pools = [pool.at_most for pool in self.difficulty_pools or ()]
        if pools != sorted(set(pools)) or (pools and not any(pool.weight for pool in self.difficulty_pools or ())):
            yield "difficulty_pools must have rising values of at_most, and one weight above 0"
        if self.filter_groups is None:
            return
        metric, allowed = self.filter_groups.metric, (REWARD, *self.reward.weights)
        if metric not in allowed:
            yield f"filter_groups.metric={metric} must be one of {', '.join(allowed)} (parts that reward.weights names)"
        if self.num_generations == 1:
            yield "filter_groups with num_generations=1 would drop every group: use num_generations >= 2"
        if (self.data_parallel or 1) > 1:
            yield f"data_parallel={self.data_parallel}: filter_groups makes batches of no fixed size: leave one empty"

    @property
    def processes(self) -> int:
        """Count the processes of this run on this machine."""
        return self.machine.processes or self.data_parallel or 1

    @property
    def batch_size(self) -> int:
        """Count the sequences in a rollout batch."""
        return self.prompts_per_step * self.num_generations

    @property
    def minibatch_size(self) -> int:
        """Count the sequences in an optimiser step."""
        return self.prompts_per_step * (self.train_generations or self.num_generations) // self.num_minibatches

    @property
    def forward_size(self) -> int:
        """Count the sequences in one forward pass: the micro-batch, else a process's share of the minibatch."""
        micro = self.micro_batch_size
        return micro if isinstance(micro, int) else self.minibatch_size // (self.data_parallel or 1)

    @property
    def compares_tokens(self) -> str:
        """Name the setting that compares tokens of the whole minibatch, which then must not be cut; '' if none does."""
        if SURROGATES[self.kernel].whole_minibatch:
            return f"kernel={self.kernel}"
        if self.sampler_rejection and self.sampler_rejection.m2_budget is not None:
            return "sampler_rejection.m2_budget"
        return "" if self.top_entropy_quantile is None else "top_entropy_quantile"

    @property
    def updates_per_batch(self) -> int:
        """Count the optimiser steps on a rollout batch."""
        return self.num_iterations * self.num_minibatches

    @property
    def planned_steps(self) -> int:
        """Count the run's rollout steps: the most whole ones that no limit of the settings forbids."""
        limits = [(self.rollout_steps, 1), (self.max_completions, self.batch_size)]
        limits += [(self.max_optimizer_steps, self.updates_per_batch)]
        return min(limit // step for limit, step in limits if limit is not None)

    @property
    def optimizer_steps(self) -> int:
        """Count the optimiser steps of the run."""
        return self.planned_steps * self.updates_per_batch

    @property
    def ratio_is_one(self) -> bool:
        """Return True if every ratio is exactly 1: one update per batch, with old log-probs of the same weights."""
        return self.updates_per_batch == 1 and not (self.old_log_probs != "trainer" and self.other_sampler)

    @property
    def other_sampler(self) -> bool:
        """Return True if batches are not from the policy that learns from them: older, rounded, disturbed or cut."""
        is_old = self.staleness > 0 or (self.sampler_refresh or 1) > 1 or self.sampler_engine is not None
        is_cut = bool(self.truncates_sampling and not self.keep_sampling_mask)
        return is_old or is_cut or self.sampler_dtype not in (None, self.dtype) or self.sampler_noise is not None

    @property
    def truncates_sampling(self) -> str:
        """Say which rules keep unlikely tokens from being sampled; '' if none does."""
        rules = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        return " ".join(f"{name}={value}" for name, value in rules.items() if value is not None)

    def sampler_age(self, step: int) -> int:
        """Count the rollout steps from the weights that sampled the batch of a step to those that the step has."""
        sampled = max(0, step - self.staleness)
        return step - (sampled - sampled % (self.sampler_refresh or 1))

    @property
    def clip_can_bind(self) -> bool:
        """Return True if ratios can differ from 1 and the surrogate has a clip."""
        return SURROGATES[self.kernel].clips and not self.ratio_is_one


@cache
def device_here(device: str) -> str:
    """Resolve `auto` to `cuda` or `cpu`; torch is imported only if a driver is present."""
    if device != "auto":
        return device
    if shutil.which("nvidia-smi") is None:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
