"""Whose config a file is: recognised by what only one framework has, and refused where another is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpolab.cli import main
from grpolab.cli.checking import READ
from grpolab.paths import project_root
from grpolab.readers import flat
from grpolab.readers.recognise import ON_TRL, ON_VERL, TITLES

# Invented files in each framework's style: name, text, and overrides that must come out.
FILES = {
    "trl": (
        "a.yaml",
        "num_generations: 4\nlearning_rate: 2e-6\nnum_iterations: 2\n",
        "num_generations=4 num_iterations=2",
    ),
    "verl": ("a.sh", "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=4\n", "num_generations=4"),
    "ms-swift": (
        "b.sh",
        "swift rlhf --rlhf_type grpo --num_generations 4 --beta 0.01\n",
        "num_generations=4 beta=0.01",
    ),
    "unsloth": (
        "a.py",
        "from unsloth import FastLanguageModel\nfrom trl import GRPOConfig\nGRPOConfig(num_generations=4)\n",
        "num_generations=4",
    ),
    "axolotl": (
        "b.yaml",
        "rl: grpo\ntrl:\n  num_generations: 4\n  beta: 0.02\nlearning_rate: 3e-6\nmicro_batch_size: 4\n",
        "num_generations=4 beta=0.02 learning_rate=3e-06",
    ),
    "easyr1": (
        "c.sh",
        "python3 -m verl.trainer.main worker.actor.clip_ratio_low=0.15 worker.rollout.n=4 worker.actor.optim.lr=2e-6\n",
        "num_generations=4 epsilon=0.15 learning_rate=2e-06",
    ),
    "openrlhf": (
        "c.sh",
        "python3 -m openrlhf.cli.train_ppo_ray --n_samples_per_prompt 4 --eps_clip 0.15 --actor_learning_rate 5e-7\n",
        "num_generations=4 epsilon=0.15 learning_rate=5e-07",
    ),
    "slime": (
        "d.sh",
        "GRPO=(--advantage-estimator grpo --eps-clip 0.15 --n-samples-per-prompt 4 --rollout-batch-size 16)\n"
        'python3 train.py --rollout-num-gpus 8 --lr 1e-6 --num-rollout 10 "${GRPO[@]}"\n',
        "num_generations=4 epsilon=0.15 prompts_per_step=16",
    ),
    "areal": (
        "e.yaml",
        "gconfig: {n_samples: 4}\nactor: {eps_clip: 0.15, ppo_n_minibatches: 2, optimizer: {lr: 2e-6}}\n"
        "train_dataset: {batch_size: 64}\n",
        "num_generations=4 epsilon=0.15 num_minibatches=2 prompts_per_step=64 learning_rate=2e-06",
    ),
    "skyrl": (
        "f.sh",
        "uv run -m skyrl_train.entrypoints.main_base trainer.algorithm.eps_clip_low=0.15"
        " generator.n_samples_per_prompt=4\n",
        "num_generations=4 epsilon=0.15",
    ),
    "deepspeed_chat": (
        "g.sh",
        "deepspeed main.py --actor_model_name_or_path m --critic_model_name_or_path c --actor_learning_rate 2e-6"
        " --ppo_epochs 2\n",
        "learning_rate=2e-06 num_iterations=2",
    ),
    "nemo_rl": (
        "h.yaml",
        "grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 4}\nloss_fn: {ratio_clip_min: 0.15}\n",
        "num_generations=4 prompts_per_step=32 epsilon=0.15",
    ),
    "roll": (
        "i.yaml",
        "rollout_batch_size: 32\nnum_return_sequences_in_group: 4\nppo_epochs: 2\nadv_estimator: grpo\n"
        "actor_train: {training_args: {learning_rate: 2e-6}}\n",
        "num_generations=4 prompts_per_step=32 num_iterations=2 learning_rate=2e-06",
    ),
    "prime_rl": (
        "j.toml",
        "[trainer.loss]\nkl_tau = 0.002\n[trainer.optim]\nlr = 2e-6\n"
        "[orchestrator]\nbatch_size = 64\nrollouts_per_example = 4\n",
        "num_generations=4 learning_rate=2e-06 prompts_per_step=16",
    ),
    "open_instruct": (
        "k.sh",
        "python open_instruct/grpo_fast.py --num_unique_prompts_rollout 16 --num_samples_per_prompt_rollout 4"
        " --beta 0.02\n",
        "num_generations=4 prompts_per_step=16 beta=0.02",
    ),
    "torchtune": (
        "l.yaml",
        "grpo_samples: 4\nppo_epochs: 2\nloss: {_component_: torchtune.dev.grpo.loss.GRPOLoss, kl_coeff: 0.02}\n",
        "num_generations=4 num_iterations=2 beta=0.02",
    ),
}


def test_every_framework_has_a_file_here() -> None:
    assert set(FILES) == set(TITLES) == set(READ)
    assert set(flat.FLAT) == set(READ) - {"trl", "verl", *ON_TRL, *ON_VERL}


def test_a_sign_is_a_key_of_one_framework_alone() -> None:
    tables = {name: flat.load_reader(name) for name in flat.FLAT}
    for name, table in tables.items():
        for other in tables.values():
            assert other.name == name or not table.signs & other.defaults.keys() | table.signs & other.signs, name


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize("framework", FILES)
def test_a_file_is_recognised_and_read(framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --from: the evidence is said first, the count of keys last, and nothing about a default hides a value."""
    name, text, wanted = FILES[framework]
    assert main(["import", written(tmp_path, name, text)]) == 0
    out, err = capsys.readouterr()
    assert set(wanted.split()) <= set(out.split())
    assert err.startswith(f"read as a config of {TITLES[framework]}, by ")
    assert err.splitlines()[-1].startswith("keys of the file: ")
    assert " 0 unknown" in err.splitlines()[-1]


@pytest.mark.parametrize("framework", FILES)
@pytest.mark.parametrize("asked", ["trl", "verl", "openrlhf", "nemo_rl"])
def test_a_file_of_another_framework_is_refused_by_name(
    asked: str, framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if asked == framework or (asked == "trl" and framework in ON_TRL):
        return
    name, text, _ = FILES[framework]
    for command in ("import", "lint"):
        assert main([command, "--from", asked, written(tmp_path, name, text)]) == 2
        out, err = capsys.readouterr()
        assert not out
        assert f"is a config of {TITLES[framework]}, by " in err
        assert f"--from {framework} reads it" in err


@pytest.mark.parametrize("asked", [None, "trl", "verl", "slime"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sft.yaml", "learning_rate: 2e-5\nmax_seq_length: 2048\npacking: true\n"),
        ("accelerate.yaml", "compute_environment: LOCAL_MACHINE\nnum_processes: 8\n"),
        ("own.py", "class GRPOConfig:\n    lr = 1e-6\n\nconfig = GRPOConfig(num_generations=4, beta=0.1)\n"),
        ("wandb-summary.json", json.dumps({"_runtime": 3, "_step": 7, "train/reward": 0.5})),
    ],
)
def test_a_file_of_nobody_known_is_refused(
    name: str, text: str, asked: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_for = ["--from", asked] if asked else []
    assert main(["import", *asked_for, written(tmp_path, name, text)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == 1


def test_a_framework_has_one_name_however_it_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, text, _ = FILES["nemo_rl"]
    for written_as in ("nemo-rl", "NeMo-RL"):
        assert main(["import", "--from", written_as, written(tmp_path, name, text)]) == 0
    capsys.readouterr()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(text)
    assert main(["lint", str(tmp_path / "run")]) == 0
    assert "clip-cannot-bind" in capsys.readouterr().out


def test_wandb_wraps_each_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = {"learning_rate": 2e-6, "num_generations": 4, "num_iterations": 2, "beta": 0.01, "hidden_size": 896}
    lines = ["wandb_version: 1", "_wandb: {value: {python_version: 3.11}}"]
    lines += [f"{key}:\n  desc: null\n  value: {value!r}" for key, value in values.items()]
    file = written(tmp_path, "config.yaml", "\n".join(lines))
    for asked in (["--from", "trl"], []):
        assert main(["import", *asked, file]) == 0
        assert {"learning_rate=2e-06", "num_generations=4", "beta=0.01"} <= set(capsys.readouterr().out.split())
    assert main(["import", "--from", "verl", file]) == 2
    assert "is a config of TRL" in capsys.readouterr().err


def test_the_folder_of_a_run_is_read_by_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hydra" / ".hydra").mkdir(parents=True)
    written(
        tmp_path / "hydra" / ".hydra", "config.yaml", "actor_rollout_ref: {rollout: {n: 4}}\nextra: ${oc.env:HOME}\n"
    )
    params = tmp_path / "mlruns" / "params"
    params.mkdir(parents=True)
    for key, value in {"num_generations": "4", "learning_rate": "2e-06", "bf16": "True", "num_iterations": "2"}.items():
        (params / key).write_text(value)
    for folder, framework in ((tmp_path / "hydra", "verl"), (tmp_path / "mlruns", "TRL")):
        assert main(["import", str(folder)]) == 0
        out, err = capsys.readouterr()
        assert "num_generations=4" in out.split()
        assert f"read as a config of {framework}" in err
    assert main(["import", str(tmp_path)]) == 2
    assert "cannot be read: a run's folder has one of" in capsys.readouterr().err


def test_a_pickle_is_never_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "--from", "trl", written(tmp_path, "training_args.bin", "x")]) == 2
    assert "is a pickle, and reading one can run whatever is in it: give a .json" in capsys.readouterr().err


def test_a_script_says_what_would_say_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = "python3 -m openrlhf.cli.train_ppo_ray --n_samples_per_prompt $GROUP --eps_clip 0.15\n"
    assert main(["import", written(tmp_path, "a.sh", script)]) == 0
    last = capsys.readouterr().err.splitlines()[-1]
    assert "; without a value in the file: 1 (where all are: the run's config.yaml" in last


def test_the_linter_names_an_unknown_key_and_an_unusual_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "python3 -m openrlhf.cli.train_ppo_ray --n_samples_per_prompt 4 --eps_clipp 0.1 --actor_learning_rate 1e-3\n"
    assert main(["lint", written(tmp_path, "a.sh", text)]) == 0
    out = capsys.readouterr().out
    assert "warning unknown-key: OpenRLHF has no such key: eps_clipp" in out
    assert "warning rate-for-grpo: " in out


def test_minibatches_that_do_not_divide_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Completions are divided, not prompts: 6 * 4 in 4 steps are 6 each, in 5 steps they are none."""
    for steps, ours, says in ((4, 4, False), (5, 4, True)):
        text = f"gconfig: {{n_samples: 4}}\nactor: {{ppo_n_minibatches: {steps}}}\ntrain_dataset: {{batch_size: 6}}\n"
        assert main(["import", written(tmp_path, "a.yaml", text)]) == 0
        out, err = capsys.readouterr()
        assert f"num_minibatches={ours}" in out.split()
        assert ("5 optimiser steps do not divide a batch of 24 completions" in err) == says


@pytest.mark.parametrize(
    ("framework", "text"),
    [
        ("TRL", "start\nGRPOConfig(\n    beta=0.0,\n    num_generations=4,\n    num_iterations=2,\n)\n{'loss': 0.1}\n"),
        ("verl", "start\n{'actor_rollout_ref': {'rollout': {'n': 4}},\n 'data': {'train_batch_size': 8}}\nstep:1\n"),
    ],
)
def test_a_console_log_has_the_config_that_the_run_printed(
    framework: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", written(tmp_path, "run.log", text)]) == 0
    out, err = capsys.readouterr()
    assert "num_generations=4" in out.split()
    assert f"read as a config of {framework}" in err


@pytest.mark.parametrize("mini", ["64", "$MINI"])
def test_nothing_is_said_of_the_clip_where_the_reuse_is_open(
    mini: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "actor_rollout_ref.actor.ppo_mini_batch_size"
    script = f"python3 -m verl.trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.rollout.n=4 {key}={mini}\n"
    assert main(["lint", "--json", written(tmp_path, "a.sh", script)]) == 0
    rules = [finding["rule"] for finding in json.loads(capsys.readouterr().out)]
    assert ("clip-cannot-bind" in rules) == (mini == "64")


def test_what_matters_comes_first_with_where_it_is_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the file, from a default, or from nobody: a default is never shown as if the file said it."""
    script = (
        "python3 -m verl.trainer.main_ppo data.train_batch_size=64 env.rollout.n=4"
        " actor_rollout_ref.actor.use_kl_loss=True"
        " actor_rollout_ref.actor.clip_ratio_high=0.28 actor_rollout_ref.actor.optim.lr=$RATE\n"
    )
    assert main(["import", written(tmp_path, "a.sh", script)]) == 0
    lines = [line.split() for line in capsys.readouterr().err.splitlines()[1:9]]
    assert [line[-1].rpartition(".")[2] for line in lines] == [
        *("n", "train_batch_size", "train_batch_size", "lr", "clip_ratio_high", "use_kl_loss", "default", "default")
    ]
    assert lines[0][:4] == ["completions", "of", "a", "prompt"]
    assert lines[4][2:4] == ["0.2,", "0.28"]
    assert " ".join(lines[3]) == "learning rate 1e-06 not in the file: actor_rollout_ref.actor.optim.lr"
    assert lines[-1] == ["temperature", "1.0", "a", "default"]


@pytest.mark.parametrize("asked", [[], ["--from", "trl"]])
def test_our_own_settings_are_not_trls_although_many_names_are(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", *asked, str(project_root() / "conf" / "run.yaml")]) == 2
    assert "it seems to be settings of GRPO Lab's own" in capsys.readouterr().err
