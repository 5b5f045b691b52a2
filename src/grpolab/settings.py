"""Every setting of a run: its type, its range and one sentence. The values live in `conf/` only.

`RunSettings` is what Hydra composed, checked. It refuses what Hydra alone lets pass: `epsilon=-1`, a mistyped `+key=1`,
a batch that does not divide. `RunSettings.resolved()` fills in what follows from other fields, and `identity()` is the
part that decides the run's signature.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from grpolab.registry import AGGREGATIONS, KERNELS, RATIOS

if TYPE_CHECKING:
    RatioLevel: TypeAlias = str
    KernelName: TypeAlias = str
    AggregationName: TypeAlias = str
else:  # one of the registry's names; the checker cannot know them
    RatioLevel, KernelName, AggregationName = (Literal[tuple(names)] for names in (RATIOS, KERNELS, AGGREGATIONS))

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveOrInf = Annotated[float, Field(gt=0)]  # `.inf` switches something off
NonNegativeOrInf = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Settings(BaseModel):
    """Frozen, and closed to keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)


class AdditionTask(Settings):
    """Add two numbers: `12+34=` -> `46`."""

    name: Literal["addition"]
    digits: Annotated[int, Field(ge=1, le=3)] = Field(description="Digits of each summand (no leading zeros).")


class SortingTask(Settings):
    """Sort digits: `3141592653>` -> `1123345569`."""

    name: Literal["sorting"]
    length: Count = Field(description="How many digits are to be sorted.")


class FillerSortingTask(Settings):
    """Sort digits after as many filler tokens as the policy likes: `314159>` -> `~~113459`.

    The warm start's targets are wrong with probability `corruption_base + corruption_per_filler * fillers`, so a longer
    answer is more often wrong, and the policy chooses its length.
    """

    name: Literal["filler_sorting"]
    length: Annotated[int, Field(ge=1, le=30)] = Field(description="How many digits are to be sorted.")
    max_fillers: Natural = Field(description="Most filler tokens in a warm-start target.")
    corruption_base: Share = Field(description="Probability that a warm-start target without fillers is wrong.")
    corruption_per_filler: Share = Field(description="What each filler token adds to that probability.")


class JsonlTask(Settings):
    """A user's own prompts and answers, one JSON object a line, read with `datasets.load_dataset`."""

    name: Literal["jsonl"]
    train_file: str = Field(description="Path of the training examples.")
    evaluation_file: str = Field(description="Path of the evaluation examples; no prompt may stand in both files.")
    prompt_key: str = Field(description="Key of the prompt in each object.")
    answer_key: str = Field(description="Key of the answer in each object (GSM8K's `... #### 42` is understood).")
    template: str = Field(description="Text around the prompt, with {prompt} in it.")
    chat: bool = Field(description="Put the prompt through the tokenizer's chat template as a user's message.")


class CustomTask(Settings):
    """A user's own task by import path; see `grpolab.learn.tasks.Task` for what it offers."""

    name: Literal["custom"]
    path: str = Field(description="`package.module:Class`; the class is called with `options`.")
    options: dict[str, Any] = Field(description="Keyword arguments of the class.")


TaskSettings = Annotated[
    AdditionTask | SortingTask | FillerSortingTask | JsonlTask | CustomTask, Field(discriminator="name")
]


class RewardSettings(Settings):
    """The reward is the weighted sum of named parts."""

    function: str | None = Field(description="`package.module:function` for a reward of one's own; empty: the task's.")
    weights: dict[str, FiniteFloat] = Field(
        min_length=1, description="Weight of each part; a part that is not named weighs 0."
    )


class TinyModel(Settings):
    """A Llama of transformers, from scratch, over the task's characters."""

    name: Literal["tiny"]
    hidden_size: Count = Field(description="Width of the residual stream.")
    layers: Count = Field(description="Decoder layers.")
    heads: Count = Field(description="Attention heads; must divide the width.")
    intermediate_size: Count = Field(description="Width of the gated MLP.")

    @model_validator(mode="after")
    def _heads_divide(self) -> TinyModel:
        if self.hidden_size % self.heads:
            raise ValueError(f"model.heads ({self.heads}) must divide model.hidden_size ({self.hidden_size})")
        return self


class PretrainedModel(Settings):
    """Any causal language model that `from_pretrained` loads (safetensors, no remote code), with its tokenizer."""

    name: Literal["pretrained"]
    path: str = Field(description="Folder, or name on the hub.")
    revision: str | None = Field(description="Commit of the hub's repository, to pin it.")


ModelSettings = Annotated[TinyModel | PretrainedModel, Field(discriminator="name")]


class WarmStartSettings(Settings):
    """Supervised training before GRPO, to a band of sampled accuracy; shared by all arms of a seed."""

    seed: Seed | None = Field(description="Seed of weights and batches; empty: the run's seed.")
    max_steps: Natural = Field(description="Most optimiser steps; 0 starts GRPO from the model as it is.")
    batch_size: Count = Field(description="Demonstrations in a step.")
    learning_rate: Positive = Field(description="AdamW's learning rate, constant.")
    target_accuracy: Share = Field(description="Expected sampled accuracy that ends the warm start.")
    check_every: Count = Field(description="Optimiser steps between two checks of that accuracy.")
    check_items: Count = Field(description="Training prompts used by a check.")


class EvaluationSettings(Settings):
    """Held-out evaluation, with noise that all arms share."""

    every: Count = Field(description="Rollout steps between evaluations; also before the first and after the last.")
    items: Count = Field(description="Evaluation prompts.")
    batch_size: Count = Field(description="Prompts in one forward.")
    samples: Count = Field(description="Completions per prompt where many answers are right (pass@k's k).")


class DiagnosticsSettings(Settings):
    """What is measured beyond the cheap; each switch removes its cost."""

    quantiles: bool = Field(description="Ratio quantiles by level and advantage sign, at every optimiser step.")
    counterfactual: bool = Field(description="What other epsilons would have clipped, at every optimiser step.")
    histogram_every: Natural = Field(description="Rollout steps between two histograms of ratios; 0: never.")
    samples_every: Natural = Field(description="Rollout steps between two tables of completions; 0: never.")
    step_norm: bool = Field(description="How far the weights moved in each rollout step.")
    kl_ref_every: Natural = Field(description="Rollout steps between two exact KLs to the warm start; 0: never.")


class MachineSettings(Settings):
    """Where and how, never what: no key here enters a signature."""

    results: str = Field(description="Folder of runs, studies and the MLflow store.")
    tracking_uri: str | None = Field(
        description="MLflow store; `auto` is SQLite inside the results folder, empty switches tracking off."
    )
    threads: Count = Field(description="torch threads of one worker.")
    checkpoint_seconds: NonNegative = Field(
        description="Least seconds between two checkpoints (at rollout boundaries)."
    )


class RunSettings(Settings):
    """One run."""

    seed: Seed = Field(description="Every random draw of the run follows from this number.")
    task: TaskSettings = Field(description="What is learnt.")
    reward: RewardSettings = Field(description="How a completion is scored.")
    model: ModelSettings = Field(description="What learns.")
    warm_start: WarmStartSettings = Field(description="Where it starts.")

    rollout_steps: Count = Field(description="How often a batch is sampled and learnt from.")
    prompts_per_step: Count = Field(description="Prompts in a rollout batch.")
    num_generations: Count = Field(description="Completions per prompt: the group of GRPO.")
    max_completion_length: Count = Field(description="Most tokens of a completion, end token included.")
    temperature: Positive = Field(description="Sampling temperature; the log-probabilities use it too.")

    importance_sampling_level: RatioLevel = Field(
        description="Importance ratio per token, or one per sequence (geometric mean over its tokens, GSPO)."
    )
    kernel: KernelName = Field(
        description="Per-token loss: PPO's clipped surrogate, the unclipped ratio, or CISPO's capped weight."
    )
    epsilon: NonNegative = Field(description="Clip range below 1 (and above, where epsilon_high is empty).")
    epsilon_high: NonNegativeOrInf | None = Field(description="Clip range above 1; `.inf` is no upper clip.")
    delta: Positive | None = Field(description="Outer cap of the ratio (two-sided clip); empty: none.")
    loss_form: Literal["min_positive", "max_negative"] = Field(description="The same function, written in two ways.")
    aggregation: AggregationName = Field(description="How per-token losses are averaged; the name has the denominator.")
    beta: NonNegative = Field(description="Weight of the KL (k3) to the warm start in the loss; 0: no reference model.")
    scale_rewards: Literal["group", "batch", "none"] = Field(
        description="What the centred reward is divided by: its group's std, the batch's, or nothing (Dr. GRPO)."
    )
    scale_epsilon: NonNegative = Field(description="Added to that std.")

    num_iterations: Count = Field(description="Passes over a rollout batch (mu).")
    num_minibatches: Count = Field(description="Optimiser steps in a pass.")
    micro_batch_size: Count | None = Field(description="Sequences in one forward and backward; empty: the minibatch.")

    learning_rate: NonNegative = Field(description="AdamW's peak learning rate.")
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = Field(description="Its course after the warm-up.")
    warmup_steps: Natural = Field(description="Optimiser steps of linear warm-up.")
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = Field(description="AdamW's decay of the gradient mean.")
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = Field(description="AdamW's decay of the squared gradient.")
    adam_epsilon: Positive = Field(description="AdamW's epsilon.")
    weight_decay: NonNegative = Field(description="AdamW's decoupled weight decay.")
    max_grad_norm: PositiveOrInf = Field(description="Global gradient norm is clipped to this; `.inf` switches it off.")

    evaluation: EvaluationSettings = Field(description="How progress is measured.")
    diagnostics: DiagnosticsSettings = Field(description="What else is measured.")
    device: Literal["auto", "cpu", "cuda"] = Field(description="`auto` is CUDA where there is one.")
    dtype: Literal["float32", "bfloat16"] = Field(
        description="Precision of the forward pass; weights, their updates and the log-softmax are float32."
    )
    machine: MachineSettings = Field(description="Where and how; not part of the signature.")

    @model_validator(mode="after")
    def _fits_together(self) -> RunSettings:
        problems = []
        if self.num_generations == 1:
            problems.append(
                "num_generations=1 leaves every group-normalised advantage undefined: use num_generations >= 2"
            )
        if self.batch_size % self.num_minibatches:
            problems.append(
                f"num_minibatches={self.num_minibatches} must divide prompts_per_step * num_generations"
                f" = {self.batch_size}"
            )
        elif self.micro_batch_size and self.minibatch_size % self.micro_batch_size:
            problems.append(
                f"micro_batch_size={self.micro_batch_size} must divide the minibatch of {self.minibatch_size} sequences"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def batch_size(self) -> int:
        """Sequences in a rollout batch."""
        return self.prompts_per_step * self.num_generations

    @property
    def minibatch_size(self) -> int:
        """Sequences in an optimiser step."""
        return self.batch_size // self.num_minibatches

    @property
    def optimizer_steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.rollout_steps * self.num_iterations * self.num_minibatches

    @property
    def clip_can_bind(self) -> bool:
        """False where every ratio is exactly 1 (one update per fresh batch) or the kernel has no clip."""
        return self.kernel != "ratio" and self.num_iterations * self.num_minibatches > 1

    def resolved(self) -> RunSettings:
        """The same run with nothing left to be filled in; two ways to write one run become equal here."""
        return self.model_copy(
            update={
                "epsilon_high": self.epsilon if self.epsilon_high is None else self.epsilon_high,
                "micro_batch_size": self.micro_batch_size or self.minibatch_size,
                "warm_start": self.warm_start.model_copy(
                    update={"seed": self.seed if self.warm_start.seed is None else self.warm_start.seed}
                ),
                "device": _resolve_device(self.device),
            }
        )

    def identity(self) -> dict[str, Any]:
        """What the signature of the run is made of: everything but the machine."""
        return self.resolved().model_dump(exclude={"machine"})

    def warm_start_identity(self) -> dict[str, Any]:
        """What the signature of its warm start is made of."""
        return self.resolved().model_dump(
            include={"task", "model", "warm_start", "max_completion_length", "temperature", "device", "dtype"}
        )


def _resolve_device(device: str) -> str:
    """`auto` as `cuda` or `cpu`; torch is imported only where a driver is present."""
    if device != "auto":
        return device
    import shutil

    if shutil.which("nvidia-smi") is None:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
