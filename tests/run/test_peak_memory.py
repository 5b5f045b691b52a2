"""What a run is said to take at its peak: of a CPU's memory or a GPU's, with what a checkpoint and diagnostics hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpolab.run import memory
from grpolab.settings.run import RunSettings
from grpolab.studies.peak_memory import PROGRAM, describe, parts_of, peak_of
from grpolab.sweep.compose import compose

CONFIG = {"vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30, "intermediate_size": 1536}
CONFIG |= {"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True}
SIZES = memory.Sizes.of(CONFIG)
assert SIZES is not None
ALL, ADAPTERS = 4 * SIZES.parameters, 4 * SIZES.adapters(16)
LORA = "lora={rank: 16, alpha: 32, targets: null}"
QUIET = ["diagnostics.kl_ref_every=0", "diagnostics.step_norm=false"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of SmolLM2-135M's sizes without its weights."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def settings_of(folder: Path, *more: str) -> RunSettings:
    words = ["task=char_count", "model=pretrained", f"model.path={folder}", "max_completion_length=48"]
    return compose([*words, "micro_batch_size=8", "device=cpu", *more])


def parts(folder: Path, *more: str) -> dict[str, int]:
    assert SIZES is not None
    return parts_of(SIZES, settings_of(folder, *QUIET, *more))


CHECKPOINTS = [
    ([], 3 * ALL),  # weights and the two means of AdamW
    (["sampler_refresh=2"], 4 * ALL),
    (["sampler_dtype=int8"], 4 * ALL),
    (["sampler_dtype=bfloat16"], 3 * ALL),  # which has the trainer's weights
    (["diagnostics.gradient_cosine=true"], 4 * ALL),
    (["sampler_refresh=2", "diagnostics.gradient_cosine=true"], 5 * ALL),
    ([LORA], 3 * ADAPTERS),
    ([LORA, "sampler_dtype=int8"], 4 * ADAPTERS),
]


@pytest.mark.parametrize(("more", "size"), CHECKPOINTS)
def test_a_checkpoint_has_what_the_sampler_and_the_last_gradient_hold(folder: Path, more: list[str], size: int) -> None:
    assert parts(folder, *more)["checkpoint"] == size


def test_what_a_sampler_of_its_own_holds_below_adapters(folder: Path) -> None:
    assert parts(folder, "sampler_refresh=2")["sampler"] == ALL
    assert parts(folder, LORA, "sampler_refresh=2")["sampler"] == ALL + ADAPTERS


def test_consecutive_gradients_are_there_all_the_time_and_twice_when_they_are_compared(folder: Path) -> None:
    without, compared = parts(folder), parts(folder, "diagnostics.gradient_cosine=true")
    changed = {name for name in without if without[name] != compared[name]}
    assert changed == {"last gradient", "difference", "checkpoint"}
    assert compared["last gradient"] == compared["difference"] == ALL
    assert peak_of(compared, "cuda") - peak_of(without, "cuda") == ALL  # the update needs more than the comparison


def test_a_gpu_has_neither_program_nor_checkpoint_and_a_cpu_keeps_small_blocks(folder: Path) -> None:
    whole = parts(folder, "diagnostics.step_norm=true")
    update = whole["logits"] + whole["activations"]
    assert peak_of(whole, "cuda") == 4 * ALL + ALL + update
    in_every_phase = PROGRAM + whole["activations"] + whole["cache"]
    assert peak_of(whole, "cpu") == 4 * ALL + in_every_phase + max(3 * ALL, ALL + whole["logits"])


def test_between_adapters_products_malloc_loses_as_much_as_activations(folder: Path) -> None:
    whole = parts(folder, LORA)
    assert whole["fragments"] == whole["activations"] > 0 == parts(folder)["fragments"]
    always = PROGRAM + ALL + 4 * ADAPTERS + 2 * whole["activations"] + whole["cache"]
    assert peak_of(whole, "cpu") == always + whole["logits"]
    assert peak_of(whole, "cuda") == ALL + 4 * ADAPTERS + whole["activations"] + whole["logits"]


def test_in_half_precision_an_update_has_copies_of_the_weights(folder: Path) -> None:
    whole, half = parts(folder), parts(folder, "dtype=bfloat16")
    assert (whole["casts"], half["casts"]) == (0, ALL // 2)
    assert half["activations"] == whole["activations"] // 2
    assert parts(folder, "dtype=bfloat16", "gradient_checkpointing=true")["casts"] == 0  # a layer's at a time


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_sentence_is_of_the_device(folder: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_of", lambda device: 24 * 2**30)
    monkeypatch.setattr(memory, "cores", lambda: 1)
    settings = settings_of(folder, *QUIET)
    (sentence,) = describe([settings.model_copy(update={"device": device}) for _ in range(2)])
    said = peak_of(parts(folder), device) / 2**30
    assert sentence.startswith(f"model.path={folder}: {said:.1f} GiB at its peak with micro_batch_size=8")
    assert ("program 0.5" in sentence) is ("checkpoint 1.5" in sentence) is (device == "cpu")
    beside = "" if device == "cpu" else "; a checkpoint takes 1.5 GiB of the machine"
    assert sentence.endswith(f"a worker has 24.0 GiB of device={device}{beside}")
