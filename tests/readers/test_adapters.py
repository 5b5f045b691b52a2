"""Adapters in files of TRL, of trainers that build on it, and of verl: read as `lora`, or said not to be."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from grpolab.readers.exchange import Converted, convert, read
from grpolab.sweep.compose import Composer

VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8"
    " data.train_batch_size=128 actor_rollout_ref.actor.ppo_mini_batch_size=32 "
)
MODEL = "actor_rollout_ref.model."
EASY = "worker.actor.model.lora: {{rank: 8, alpha: 16, target_modules: {}}}\nworker.rollout.n: 4\n"
RECIPE = "num_generations: 8\nepsilon_high: 0.3\nuse_peft: true\nlora_dropout: 0\n"
WANDB = "_wandb: {value: {}}\nnum_generations: {value: 8}\nepsilon_high: {value: 0.3}\npeft_config: {value: {default: "
SCRIPT = "from trl import GRPOConfig, GRPOTrainer\nfrom peft import LoraConfig\nargs = GRPOConfig()\n"
CALL = "LoraConfig(r=4, lora_alpha=8, target_modules=['q_proj'])"
SWIFT = "rlhf_type: grpo\nmodel: m\nnum_generations: 8\nper_device_train_batch_size: 4\nlora_dropout: 0\n"
FLAGS = "swift rlhf --rlhf_type grpo --model m --num_generations 8 --lora_dropout 0 --target_modules $LAYERS"
AXOLOTL = "base_model: x\nrl: grpo\nadapter: lora\nmicro_batch_size: 8\ntrl: {num_generations: 4}\n"
AXOLOTL += "lora_r: 8\nlora_alpha: 16\n"


def lora(rank: int, alpha: int, *targets: str) -> dict[str, Any]:
    return {"rank": rank, "alpha": alpha, "targets": list(targets) or None}


@functools.cache
def composer() -> Composer:
    return Composer()


def converted(tmp_path: Path, name: str, text: str) -> Converted:
    path = tmp_path / name
    path.write_text(text)
    given = read(None, str(path))
    return convert(given.framework, given, composer().compose)


READ = [
    ("run.sh", f"{VERL} {MODEL}lora_rank=8", lora(8, 16)),
    ("run.sh", f"{VERL} {MODEL}lora_rank=8 {MODEL}lora_alpha=32 {MODEL}target_modules=all-linear", lora(8, 32)),
    ("run.sh", f"{VERL} {MODEL}lora_rank=8 {MODEL}target_modules=[q_proj,v_proj]", lora(8, 16, "q_proj", "v_proj")),
    ("run.sh", f"{VERL} {MODEL}lora_rank=0 {MODEL}lora_alpha=32", None),
    ("a.yaml", EASY.format("'q_proj, v_proj'"), lora(8, 16, "q_proj", "v_proj")),
    ("a.yaml", f"{RECIPE}lora_target_modules: all-linear", lora(16, 32)),
    ("a.yaml", f"{RECIPE}lora_r: 4\nlora_target_modules: [q_proj, k_proj]", lora(4, 32, "q_proj", "k_proj")),
    ("a.yaml", f"{RECIPE}lora_target_modules: ['.*\\.(q_proj|k_proj)']", lora(16, 32, "q_proj", "k_proj")),
    (
        "config.yaml",
        f"{WANDB}{{r: 4, lora_alpha: 8, lora_dropout: 0.0, target_modules: [q_proj]}}}}}}",
        lora(4, 8, "q_proj"),
    ),
    ("a.yaml", RECIPE.replace("true", "false") + "lora_target_modules: all-linear", None),
    ("a.py", f"{SCRIPT}GRPOTrainer(args=args, peft_config={CALL})", lora(4, 8, "q_proj")),
    ("a.py", f"{SCRIPT}c = {CALL}\nm = get_peft_model(m, c)\nGRPOTrainer(args=args)", lora(4, 8, "q_proj")),
    ("a.py", f"{SCRIPT}c = LoraConfig(target_modules='all-linear')\nGRPOTrainer(args=args, peft_config=c)", lora(8, 8)),
    (
        "a.py",
        f"import unsloth\n{SCRIPT}m = F.get_peft_model(m, r=4, lora_alpha=8, target_modules=['q_proj', 'o_proj'])",
        lora(4, 8, "q_proj", "o_proj"),
    ),
    ("a.yaml", f"{SWIFT}tuner_type: lora\nlora_rank: 16\ntarget_modules: [q_proj]", lora(16, 32, "q_proj")),
    ("a.yaml", SWIFT, lora(8, 32)),
    ("a.yaml", f"{SWIFT}tuner_type: full", None),
    ("a.yaml", f"{AXOLOTL}lora_target_linear: true", lora(8, 16)),
    ("a.yaml", f"{AXOLOTL}lora_target_modules: [q_proj]", lora(8, 16, "q_proj")),
]


@pytest.mark.parametrize(("name", "text", "expected"), READ)
def test_adapters_are_read(tmp_path: Path, name: str, text: str, expected: dict[str, Any] | None) -> None:
    found = converted(tmp_path, name, text)
    assert found.settings.model_dump()["lora"] == expected
    assert not any("lora" in sentence or "peft" in sentence for sentence in found.left_out)
    if expected:
        (override,) = (word for word in found.overrides if word.startswith("lora="))
        assert composer().compose([override]).lora == found.settings.lora
        assert " " not in override


# What cannot be carried: the key that the sentence begins with, and why.
SAID = [
    ("run.sh", f"{VERL} {MODEL}lora_rank=8 {MODEL}target_modules=.*_proj", f"{MODEL}target_modules=.*_proj: a word is"),
    ("run.sh", f"{VERL} {MODEL}lora_rank=8 {MODEL}target_modules=null", f"{MODEL}target_modules=None: peft then"),
    ("run.sh", f"{VERL} {MODEL}lora.rank=8", f"{MODEL}lora.rank=8: Megatron's adapters are of fused layers"),
    ("a.yaml", RECIPE, "lora_target_modules=None: peft then chooses by the kind of model"),
    ("a.yaml", f"{RECIPE}lora_target_modules: [q_proj]", "lora_target_modules=q_proj: a word is a regular expression"),
    (
        "a.py",
        f"{SCRIPT}GRPOTrainer(args=args, peft_config=get_peft_config(m))",
        "use_peft (get_peft_config(m)): the file",
    ),
    ("a.py", f"{SCRIPT}c = {CALL} if big else None\nGRPOTrainer(args=args, peft_config=c)", "use_peft (c): the file"),
    ("a.yaml", f"{SWIFT}tuner_type: adalora", "tuner=adalora: adapters are LoRA"),
    ("a.sh", FLAGS, "lora_target_modules ($LAYERS): the file alone does not say its value"),
]


@pytest.mark.parametrize(("name", "text", "says"), SAID)
def test_adapters_that_are_not_those_here_are_said(tmp_path: Path, name: str, text: str, says: str) -> None:
    found = converted(tmp_path, name, text)
    assert any(sentence.startswith(says) for sentence in found.left_out), found.left_out
    assert found.settings.lora is None or "stands for it" in " ".join(found.left_out) or "tuner" in says


def test_dropout_is_said_though_it_is_a_default(tmp_path: Path) -> None:
    text = RECIPE.replace("lora_dropout: 0\n", "lora_target_modules: all-linear\nuse_dora: true")
    found = converted(tmp_path, "a.yaml", text)
    assert found.settings.model_dump()["lora"] == lora(16, 32)
    assert "lora_dropout=0.05: adapters have no dropout here" in found.left_out
    assert "use_dora=True: adapters are LoRA here, which stands for it" in found.left_out
