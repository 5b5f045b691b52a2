"""Settings of task, reward, model and warm start."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from grpolab.hub import cached_file, pinned
from grpolab.settings import Count, Natural, Positive, Seed, Settings, Share, setting

LONGEST = 4096  # positions of a model from scratch
VERDICT = "verdict"  # the reward part of a verifier that errs
OVERLONG, LENGTH = "overlong", "length"  # the reward parts of overlong_buffer and length_penalty


class AdditionTask(Settings):
    """Add two numbers: `12+34=` -> `46`."""

    name: Literal["addition"]
    digits: int = setting("Digits of each summand (no leading zeros).", ge=1, le=3)


class SortingTask(Settings):
    """Sort digits: `3141592653>` -> `1123345569`."""

    name: Literal["sorting"]
    length: Count = setting("How many digits are to be sorted.")


class FillerSortingTask(Settings):
    """Sort digits after as many filler tokens as the policy likes: `314159>` -> `~~113459`.

    The warm start's targets are wrong with probability `corruption_base + corruption_per_filler * fillers`, so a longer
    answer is more often wrong, and the policy chooses its length.
    """

    name: Literal["filler_sorting"]
    length: int = setting("How many digits are to be sorted.", ge=1, le=30)
    max_fillers: Natural = setting("Most filler tokens in a warm-start target.")
    corruption_base: Share = setting("Probability that a warm-start target without fillers is wrong.")
    corruption_per_filler: Share = setting("What each filler token adds to that probability.")


class WrittenAdditionTask(Settings):
    """Add two numbers place by place: `47+85=` -> `7+5=12;4+8=12+1=13;132`."""

    name: Literal["written_addition"]
    digits: int = setting("Digits of each summand (no leading zeros).", ge=1, le=30)


class CharCountTask(Settings):
    """Count a letter in a word, after verl's recipe: `How many n are there in word n-i-n-e?`, with steps."""

    name: Literal["char_count"]
    min_length: int = setting("Fewest letters of a word.", ge=3, le=30)
    max_length: int = setting("Most letters of a word.", ge=3, le=30)
    chat: bool = setting("Put the prompt through the tokenizer's chat template as a user's message.")

    @model_validator(mode="after")
    def _in_order(self) -> CharCountTask:
        if self.min_length > self.max_length:
            raise ValueError(f"task.min_length ({self.min_length}) must be at most task.max_length ({self.max_length})")
        return self


class ReasoningGymTask(Settings):
    """A dataset of the package reasoning-gym (`make extras WHAT=reasoning-gym`), scored by its own scorer."""

    name: Literal["reasoning_gym"]
    dataset: str = setting("Its name; several make a suite: a study's factor, or `-m task.dataset=a,b,c`.")
    config: dict[str, Any] = setting("Keys of the dataset's own configuration: its difficulty.")
    seed: int = setting("Seed of the questions.", ge=0, lt=2**31)
    items: int = setting(
        "Questions to generate; those that come again are left out, a sixth is held out for evaluation.",
        ge=6,
        le=1_000_000,
    )
    answer_tags: bool = setting("Ask for the answer between <answer> tags, and score only that.")
    chat: bool = setting("Put the prompt through the tokenizer's chat template as a user's message.")


class TextSettings(Settings):
    """What tasks of written prompts and answers have in common."""

    prompt_key: str = setting("Key or column of the prompt.")
    answer_key: str = setting("Key or column of the answer (`... #### 42` and `\\boxed{42}` are understood).")
    template: str = setting("Text around the prompt, with {prompt} in it.")
    chat: bool = setting("Put the prompt through the tokenizer's chat template as a user's message.")
    system: str | None = setting("System prompt before the user's message; empty: none.", min_length=1)
    stop: list[Annotated[str, Field(min_length=1)]] | None = setting(
        "Texts that end a completion, as its last words; empty: only the end token does.", min_length=1
    )
    format: str | None = setting(
        "What the part `format` looks for: `boxed`, `hashes` (`#### 42`) or a regular expression, of which `.` is any"
        " character; empty: an answer of any form.",
        min_length=1,
    )
    verifier: Literal["math_verify", "code"] | None = setting(
        "Judge of an answer: math-verify, where the texts differ; `code`: reward.sandbox runs it with the tests in"
        " answer_key. Empty: the text, or its value if it is a number."
    )

    @model_validator(mode="after")
    def _has_a_place_and_a_pattern(self) -> Self:
        if self.system is not None and not self.chat:
            raise ValueError("task.system is a message of the chat template: it needs task.chat=true")
        try:
            re.compile(self.format or "")
        except re.error as error:
            allowed = f"boxed, hashes or a regular expression ({error})"
            raise ValueError(f"task.format={self.format} must be {allowed}") from error
        return self


class JsonlTask(TextSettings):
    """A user's own prompts and answers, one JSON object a line, read with `datasets.load_dataset`."""

    name: Literal["jsonl"]
    train_file: str = setting("Path of the training examples.")
    evaluation_file: str = setting("Path of the evaluation examples; no prompt may stand in both files.")


class DatasetTask(TextSettings):
    """A data set that `datasets.load_dataset` reads, of the hub or of a folder."""

    name: Literal["dataset"]
    dataset: str = setting("Folder, or name on the hub.", min_length=1)
    config: str | None = setting("Its configuration; empty: the only one.")
    revision: str | None = setting("Commit or branch on the hub; empty: its main branch, as cached here.")
    train_split: str = setting("Split of the training prompts, without those of the evaluation split.", min_length=1)
    evaluation_split: str = setting("Split of the evaluation prompts.", min_length=1)

    def pinned(self) -> DatasetTask:
        """Return the data set at one commit of the hub, as far as that can be known; a folder has none."""
        return self.model_copy(update=pinned("dataset", self.dataset, self.revision))


class CustomTask(Settings):
    """A user's own task by import path; `grpolab.tasks.Task` lists its members."""

    name: Literal["custom"]
    path: str = setting("`module:Class` or `path/to/file.py:Class`; the class is called with `options`.")
    options: dict[str, Any] = setting("Keyword arguments of the class.")


GeneratedTask = AdditionTask | SortingTask | FillerSortingTask | WrittenAdditionTask | CharCountTask
OtherTask = Annotated[GeneratedTask, Field(discriminator="name")]
TaskSettings = Annotated[
    GeneratedTask | ReasoningGymTask | JsonlTask | DatasetTask | CustomTask, Field(discriminator="name")
]


def task_title(task: TaskSettings) -> str:
    """Return a task's name as a reader knows it: of a user's own task the file or the class."""
    if isinstance(task, JsonlTask):
        return Path(task.train_file).name
    if isinstance(task, DatasetTask):
        return Path(task.dataset).name
    return Path(task.path).name if isinstance(task, CustomTask) else task.name


class VerifierSettings(Settings):
    """A verifier that errs by chance, independently for each completion; the evaluation has the true answers."""

    false_right: Share = setting("Probability that it accepts a wrong answer.")
    false_wrong: Share = setting("Probability that it rejects a right answer.")


class SandboxSettings(Settings):
    """The user's command that runs a completion's code: it may do whatever that command lets it do."""

    command: str = setting("Gets the code and the tests on standard input; exit code 0: right.", min_length=1)
    seconds: Positive = setting("It is killed after so many seconds, and the code is wrong.")


class RewardSettings(Settings):
    """The reward is the weighted sum of named parts."""

    function: str | None = setting(
        "The user's reward, `module:function` or `path/to/file.py:function`; empty: the task's."
    )
    weights: dict[str, FiniteFloat] = setting(
        "Weight of each part; one that is not named weighs 0. `random` is 0 or 1 by chance.", min_length=1
    )
    verifier: VerifierSettings | None = setting("Its verdict stands in the place of `correct`; empty: it never errs.")
    sandbox: SandboxSettings | None = setting("Where the code of task.verifier=code runs; empty: nothing runs code.")
    overlong_buffer: Annotated[float, Field(gt=0, le=1)] | None = setting(
        "Last share of max_completion_length over which the part `overlong` falls from 0 to -1 (DAPO: 0.2); empty: no"
        " such part."
    )
    length_penalty: Literal["linear", "group_range", "pass_rate"] | None = setting(
        "Rule of the part `length`: minus the length over max_completion_length; its place in the group's range (Kimi"
        " k1.5); or minus the length over the group's longest, times the group's mean reward (prime-rl); empty: no such"
        " part."
    )

    @property
    def weights_used(self) -> dict[str, float]:
        """Return the weights with the verdict of the verifier in the place of `correct`."""
        return {self.used(name): weight for name, weight in self.weights.items()}

    def used(self, part: str) -> str:
        """Return the part that the reward reads under a name: the verdict of the verifier for `correct`."""
        return VERDICT if self.verifier and part == "correct" else part

    @model_validator(mode="after")
    def _something_to_judge(self) -> RewardSettings:
        if self.verifier and "correct" not in self.weights:
            raise ValueError("reward.verifier judges the part `correct`, which reward.weights must name")
        if unweighted := [part for part in self.parts_of_length if part not in self.weights]:
            key = "overlong_buffer" if OVERLONG in unweighted else "length_penalty"
            raise ValueError(f"reward.{key} needs reward.weights.{unweighted[0]}, the weight of the part that it makes")
        return self

    @property
    def parts_of_length(self) -> list[str]:
        """Name the parts of the reward that depend on the length."""
        made = {OVERLONG: self.overlong_buffer, LENGTH: self.length_penalty}
        return [part for part, rule in made.items() if rule is not None]


class TinyModel(Settings):
    """A Llama of transformers, from scratch, over the task's characters."""

    name: Literal["tiny"]
    hidden_size: Count = setting("Width of the residual stream.")
    layers: Count = setting("Decoder layers.")
    heads: Count = setting("Attention heads; must divide the width.")
    intermediate_size: Count = setting("Width of the gated MLP.")

    @model_validator(mode="after")
    def _heads_divide(self) -> TinyModel:
        if self.hidden_size % self.heads:
            raise ValueError(f"model.heads ({self.heads}) must divide model.hidden_size ({self.hidden_size})")
        return self

    def pinned(self) -> TinyModel:
        """Return it as it is: it has nothing that could change elsewhere."""
        return self


class PretrainedModel(Settings):
    """Any causal language model that `from_pretrained` loads (safetensors, no remote code), with its tokenizer."""

    name: Literal["pretrained"]
    path: str = setting("Folder, or name on the hub.")
    revision: str | None = setting("Commit or branch on the hub; empty: its main branch, as cached here.")

    def pinned(self) -> PretrainedModel:
        """Return the model at one commit of the hub, as far as that can be known; a folder has none."""
        return self.model_copy(update=pinned("path", self.path, self.revision))

    def config_file(self) -> Path | None:
        """Find its config.json in its folder or in the local cache of the hub; None if neither has the model."""
        folder = Path(self.path).expanduser()
        return folder / "config.json" if folder.is_dir() else cached_file(self.path, self.revision, "config.json")


class LoraSettings(Settings):
    """Low-rank adapters (`peft`): the model's own weights stay, and with the adapters off it is the KL's reference."""

    rank: Count = setting("Rank of the two matrices that are trained for each linear layer.")
    alpha: Count = setting("Their product is multiplied by alpha / rank.")
    targets: list[str] | None = setting(
        "Ends of the names of the layers that get them, such as q_proj; empty: every linear layer but the head.",
        min_length=1,
    )


ModelSettings = Annotated[TinyModel | PretrainedModel, Field(discriminator="name")]


class WarmStartSettings(Settings):
    """Supervised training before GRPO, to a band of accuracy or for so many steps; shared by all arms of a seed."""

    seed: Seed | None = setting("Seed of weights and batches; empty: the run's seed.")
    max_steps: Natural = setting("Most optimiser steps; 0 starts GRPO from the model as it is.")
    batch_size: Count = setting("Demonstrations in a step.")
    micro_batch_size: Count | None = setting("Demonstrations in one forward and backward; empty: all.")
    learning_rate: Positive = setting("AdamW's learning rate, constant.")
    target_accuracy: Share | None = setting(
        "Expected sampled accuracy that ends the warm start; empty: all steps are taken."
    )
    check_every: Count = setting("Optimiser steps between two checks of that accuracy.")
    check_items: Count = setting("Training prompts used by a check.")
