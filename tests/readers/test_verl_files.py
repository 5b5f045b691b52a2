"""verl's configs as people write them: run scripts, Hydra's own files, keys of forks and of other versions."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from grpolab.cli import main
from grpolab.errors import RequestError
from grpolab.readers.exchange import Converted, convert, read
from grpolab.readers.given import Given
from grpolab.readers.verl import kind_of
from grpolab.settings.resolved import resolve_run
from grpolab.sweep.compose import Composer

ASYNC = "data.train_batch_size=0 async_training.require_batches=2 async_training.staleness_threshold=0.5"
ACTOR, CORRECTION = "actor_rollout_ref.actor.", "algorithm.rollout_correction."
COMMAND = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8"
    " data.train_batch_size=128 actor_rollout_ref.actor.ppo_mini_batch_size=32"
)


@functools.cache
def composer() -> Composer:
    return Composer()


def read_file(tmp_path: Path, name: str, text: str, framework: str = "verl") -> Converted:
    path = tmp_path / name
    path.write_text(text)
    return convert(framework, read(framework, str(path)), composer().compose)


def converted(tmp_path: Path, overrides: str) -> Converted:
    """A script with these overrides behind those of COMMAND; a key that begins with a point is the actor's."""
    words = [f"{ACTOR}{word[1:]}" if word.startswith(".") else word for word in overrides.split()]
    return read_file(tmp_path, "run.sh", " \\\n    ".join([COMMAND, *words]))


def said(found: Converted, part: str) -> bool:
    return any(part in sentence for sentence in [*found.left_out, *found.defaults])


SCRIPT = """
train_batch_size=${TRAIN_BATCH_SIZE:-128}
max_response_length=$((1024 * 8))
ACTOR=(
    actor_rollout_ref.actor.optim.lr=${LR:-2e-6}
    actor_rollout_ref.actor.ppo_mini_batch_size=$((train_batch_size / 4))  # in prompts
    ++actor_rollout_ref.actor.clip_ratio_high=0.28
)
ray job submit --address=http://localhost -- python3 -m recipe.dapo.main_dapo --config-name dapo_trainer.yaml \\
    algorithm.adv_estimator=grpo \\
    "${ACTOR[@]}" \\
    data.train_batch_size=$train_batch_size \\
    data.max_response_length=${max_response_length} \\
    +actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.temperature=$TEMPERATURE \\
    actor_rollout_ref.rollout.n=16 \\
    ~algorithm.use_kl_in_reward \\
    trainer.logger='["console","wandb"]' "$@" 2>&1 | tee log.txt
"""


def test_a_script_is_read_as_bash_would_start_it(tmp_path: Path) -> None:
    found = read_file(tmp_path, "run.sh", SCRIPT)
    run = found.settings
    assert (run.prompts_per_step, run.num_minibatches, run.num_generations) == (128, 4, 16)  # the last n counts
    assert (run.max_completion_length, run.learning_rate, run.epsilon_high) == (8192, 2e-6, 0.28)
    assert run.temperature == 1.0
    assert said(found, "rollout.temperature=$TEMPERATURE: only a run of the script can tell")
    assert said(found, "words that only a run can tell may change any of this: $@")
    assert said(found, "--config-name dapo_trainer.yaml: that file is not read")
    assert said(found, "~algorithm.use_kl_in_reward: the key is taken away")


def test_what_a_branch_decides_is_told_and_not_carried(tmp_path: Path) -> None:
    choice = f"if nvidia-smi; then n=8; else n=4; fi\npython3 -m verl.trainer.main_ppo {ACTOR}optim.lr=1e-6"
    found = read_file(tmp_path, "run.sh", f"{choice} algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=$n")
    assert found.settings.num_generations == 1
    assert said(found, "8 or 4: only a run of the script can tell")


RESOLVED = """
data: {train_batch_size: 64, max_response_length: 100}
algorithm: {adv_estimator: grpo, gamma: "${algorithm.lam}", lam: "${algorithm.gamma}", rollout_correction: null}
actor_rollout_ref:
  actor:
    ppo_mini_batch_size: 32
    rollout_n: ${oc.select:actor_rollout_ref.rollout.n,1}
    clip_ratio: 0.3
    clip_ratio_low: ${actor_rollout_ref.actor.clip_ratio}
    clip_ratio_high: null
    optim: {lr: 1.0e-05, lr_warmup_steps: null, warmup_style: null, lr_scheduler_type: cosine, clip_grad: 0.5}
  rollout: {n: 5, response_length: "${data.max_response_length}"}
"""


def test_hydras_own_files_are_read(tmp_path: Path) -> None:
    overrides = "- algorithm.adv_estimator=grpo\n- +actor_rollout_ref.rollout.n=6\n"
    assert read_file(tmp_path, "overrides.yaml", overrides).settings.num_generations == 6
    run = read_file(tmp_path, "config.yaml", RESOLVED).settings
    assert (run.epsilon, run.epsilon_high, run.num_minibatches) == (0.3, 0.3, 2)
    assert (run.lr_scheduler_type, run.max_grad_norm, run.warmup_steps) == ("cosine", 0.5, 0)
    mine = "defaults: [ppo_trainer, _self_]\nalgorithm: {adv_estimator: rloo}\nactor_rollout_ref: {rollout: {n: 2}}"
    primary = read_file(tmp_path, "mine.yaml", mine)
    assert primary.settings.advantage_estimator == "leave_one_out"
    assert said(primary, "defaults: the files that it names are not read")


def test_a_config_that_verl_printed_is_read(tmp_path: Path) -> None:
    lines = ["starts", "{'actor_rollout_ref': {'actor': {'optim': {'lr': 2e-06}},", " 'rollout': {'n': 6}}}", "step:1"]
    run = read_file(tmp_path, "console.txt", "\n".join(f"(TaskRunner pid=71) {line}" for line in lines)).settings
    assert (run.num_generations, run.learning_rate) == (6, 2e-6)


# Overrides -> our settings.
CARRIED: list[tuple[str, dict[str, Any]]] = [
    (".optim.warmup_style=cosine", {"lr_scheduler_type": "cosine"}),
    (".grad_clip=2.0", {"max_grad_norm": 2.0}),
    (".loss_mode=kl_cov", {"kernel": "kl_cov"}),
    (".clip_ratio=0.3", {"epsilon": 0.2}),
    # A key of verl before 0.4, with its defaults.
    (".clip_ratio=0.3 .fsdp_config.grad_offload=False", {"epsilon": 0.3, "epsilon_high": 0.3, "dual_clip": None}),
    (".fsdp_config.grad_offload=False", {"entropy_coef": 0.001, "beta": 0.001, "kl_placement": "reward"}),
    (".use_kl_loss=True .kl_loss_coef=0.01 .fsdp_config.grad_offload=False", {"beta": 0.01, "kl_placement": "loss"}),
    (".clip_ratio_low=0.1 .fsdp_config.grad_offload=False", {"dual_clip": 3.0, "entropy_coef": None, "beta": 0.0}),
    ("actor_rollout_ref.rollout.n=1", {"advantage_estimator": "none", "scale_rewards": "none"}),
    ("actor_rollout_ref.rollout.n=1 algorithm.adv_estimator=reinforce_plus_plus", {"whiten_advantages": "bessel"}),
    (".optim.lr_warmup_steps=10", {"warmup_steps": 10}),
    ("trainer.total_training_steps=200 .optim.lr_warmup_steps_ratio=0.1", {"warmup_steps": 20}),
    ("algorithm.rollout_correction.bypass_mode=True", {"old_log_probs": "sampler", "sampler_correction": None}),
    ("actor_rollout_ref.rollout.n_agent=4 actor_rollout_ref.rollout.n=1", {"num_generations": 4}),
    ("env.rollout.n=4 actor_rollout_ref.rollout.n=2", {"num_generations": 8}),
    (".ppo_mini_batch_size=256", {"prompts_per_step": 128, "num_minibatches": 1}),
    (ASYNC, {"prompts_per_step": 64, "num_minibatches": 2, "staleness": 1, "old_log_probs": "sampler"}),
    (".optim.min_lr_ratio=0.1 .optim.lr_scheduler_type=cosine", {"min_lr_ratio": 0.1}),
    (".optim.lr=1e-5 .optim.min_lr=1e-6 .optim.lr_scheduler_type=cosine", {"min_lr_ratio": pytest.approx(0.1)}),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "ours"), CARRIED)
def test_keys_of_today_and_of_before_are_carried(overrides: str, ours: dict[str, Any], tmp_path: Path) -> None:
    run = resolve_run(converted(tmp_path, overrides).settings)
    assert {key: getattr(run, key) for key in ours} == ours


SAID = [
    (".clip_ratio_hig=0.28", "clip_ratio_hig=0.28 (did you mean actor_rollout_ref.actor.clip_ratio_high or"),
    ("actor_rollout_ref.rollout.temprature=1", "temprature=1 (did you mean actor_rollout_ref.rollout.temperature"),
    ("+algorithm.old_switch=False data.some_key=1", "algorithm.old_switch"),
    ("actor_rollout_ref.rollout.n_agent=4", "n_agent=4 is Search-R1's key: a group has that times rollout.n=8"),
    ("data.n_samples=$N", "data.n_samples=$N, PRIME's key: the file alone does not say the group"),
    (".ppo_mini_batch_size=256", "ppo_mini_batch_size=256 is more than data.train_batch_size=128, which verl refuses"),
    (f"{ASYNC} rollout.total_rollout_steps=640", "here it has actor_rollout_ref.actor.ppo_mini_batch_size * require_"),
    (f"{ASYNC} rollout.total_rollout_steps=640", "counts prompts: set rollout_steps=10"),
    ("azr.executor=qwq", "azr.*: verl has no such key"),
    (".policy_loss.loss_mode=mine", "policy_loss.loss_mode=mine: here it is one of "),
    (".optim.clip_grad=0.5 .grad_clip=2.0", "grad_clip=2.0: since 0.8 verl clips by"),
    (".clip_ratio=0.3", "clip_ratio=0.3: since 0.4 verl takes"),
    (".fsdp_config.grad_offload=False", "those of verl before 0.4, whose key actor_rollout_ref.actor.fsdp_config.grad"),
    (".clip_ratio_low=0.1", f"{ACTOR}clip_ratio_high=0.2"),  # among the defaults
    ("actor_rollout_ref.rollout.n=1", "a group of one has nothing to be compared with"),
    (".optim.lr_warmup_steps=10", "of which there are 4 in a rollout step: set 40"),
    (".use_kl_loss=True algorithm.kl_ctrl.kl_coef=0.001", "kl_coef=0.001: it does nothing without"),
    (
        "data.max_prompt_length=9 data.max_response_length=9 actor_rollout_ref.rollout.max_model_len=12",
        "are 18 together",
    ),
    (f"{CORRECTION}bypass_mode=True {CORRECTION}rollout_is=token", "no weight where the ratio is to the sampler"),
    ("algorithm.adv_estimator=gae", "adv_estimator=gae: here it is one of grpo"),
    ("~algorithm.adv_estimator", "adv_estimator is gae by default, which needs a critic"),
    (".loss_scale_factor=1024", "loss_scale_factor=1024"),
    ("algorithm.use_kl_in_reward=True .use_kl_loss=True", "one in the reward"),
]
NOT_SAID = [
    ("+actor_rollout_ref.rollout.engine_kwargs.vllm.x=1 critic.model.y=1", "verl has no such key"),
    (".clip_ratio=0.2", "since 0.4 verl takes"),
    ("actor_rollout_ref.rollout.n=1 algorithm.adv_estimator=reinforce_plus_plus", "group of one"),
]


@pytest.mark.parametrize(("overrides", "sentence"), SAID + NOT_SAID)
def test_what_is_lost_or_taken_is_said_and_nothing_else(overrides: str, sentence: str, tmp_path: Path) -> None:
    assert said(converted(tmp_path, overrides), sentence) is ((overrides, sentence) in SAID)


@pytest.mark.parametrize("module", ["recipe", "verl.experimental"])
def test_one_step_off_policy_learns_from_answers_a_step_old(module: str, tmp_path: Path) -> None:
    command = COMMAND.replace("verl.trainer", f"{module}.one_step_off_policy")
    found = read_file(tmp_path, "run.sh", f"{command} --config-name=one_step_off_ppo_trainer")
    assert (found.settings.staleness, found.settings.prompts_per_step) == (1, 128)
    assert said(found, "one_step_off_policy learns from a batch while it samples the next")
    assert not said(found, "not read")
    single = read_file(tmp_path, "run.sh", f"{command} trainer.total_training_steps=1")
    assert (single.settings.staleness, said(single, "one_step")) == (0, False)  # its answers are of the first weights


EASY = """python3 -m verl.trainer.main config=BASE worker.actor.optim.lr=2e-6 worker.actor.global_batch_size=64
    data.rollout_batch_size=256 worker.actor.loss_type=cispo worker.actor.clip_ratio_high=4 algorithm.kl_coef=0.02
    worker.actor.fsdp.fsdp_size=1 worker.rollout.tempature=1""".replace("\n", " ")


def test_easyr1_is_read_by_its_own_keys_and_defaults(tmp_path: Path) -> None:
    found = read_file(tmp_path, "run.sh", EASY.replace("BASE", "examples/config.yaml"), "easyr1")
    run = resolve_run(found.settings)
    assert (run.learning_rate, run.prompts_per_step, run.num_minibatches, run.kernel) == (2e-6, 256, 4, "cispo")
    assert (run.num_generations, run.epsilon_high, run.beta, run.kl_placement) == (5, 4, 0.02, "loss")
    assert said(found, "rollout.tempature=1 (did you mean actor_rollout_ref.rollout.temperature")
    assert not said(found, "fsdp_size")
    assert said(found, "those of EasyR1's examples/config.yaml")
    mine = read_file(tmp_path, "run.sh", EASY.replace("BASE", "mine.yaml"), "easyr1")
    assert (mine.settings.num_generations, mine.settings.kl_placement) == (1, "reward")
    assert said(mine, "the file alone does not say what it sets")
    assert said(mine, "the file alone does not say the group size")


def test_each_key_has_a_kind() -> None:
    options = {
        "data.train_batch_size": 8, "actor_rollout_ref.actor.grad_clip": 1.0, "env.rollout.n": 4,
        "actor_rollout_ref.rollout.top_p": 0.9, "actor_rollout_ref.rollout.top_k": -1, "algorithm.gamma": 0.9,
        f"{ACTOR}loss_mode": "mine", "critic.optim.lr": 1e-5, "trainer.nnodes": 1, "actor_rollout_ref.rollout.nn": 2,
        "azr.x": 1,
    }  # fmt: skip
    kinds = {name: kind_of(name, Given(options)) for name in options}
    assert [*kinds.values()] == [*["carried"] * 5, *["not carried"] * 2, *["no effect"] * 2, *["unknown"] * 2]


def test_what_needs_special_hardware_is_told_and_the_plain_branch_carried(tmp_path: Path) -> None:
    probe = "n=8\nif python3 -c 'import torch_npu' 2>/dev/null; then n=2; fi"
    found = read_file(tmp_path, "run.sh", f"{probe}\n{COMMAND} actor_rollout_ref.rollout.n=$n")
    assert found.settings.num_generations == 8
    assert said(found, "actor_rollout_ref.rollout.n is 8; in the branch for torch_npu it is 2")


def test_nothing_is_said_of_what_is_carried_in_steps(tmp_path: Path) -> None:
    found = converted(tmp_path, "trainer.total_training_steps=10")
    assert (found.left_out, found.settings.rollout_steps) == ([], 10)


def test_a_version_that_is_told_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.sh"
    path.write_text(COMMAND)
    assert main(["import", "--from", "verl", "--version", "0.2", str(path)]) == 0
    printed = capsys.readouterr()
    assert "entropy_coef=0.001" in printed.out.split()
    assert "those of verl 0.2, as it was told" in printed.err
    assert "token-mean: verl before 0.7 takes it over each micro batch" in printed.err
    assert main(["import", "--from", "verl", "--version", "3.1", str(path)]) == 2
    assert "--version 3.1 is not allowed: it is 0.1 to 0.9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.sh", f"{COMMAND} {ACTOR}ppo_mini_batch_size=100", "must divide data.train_batch_size=128"),
        ("a.sh", "torchrun -m verl.trainer.fsdp_sft_trainer data.train_batch_size=8", "it is verl's supervised fine"),
        ("a.yaml", "data: {train_batch_size: 8}\nalgorithm: {gamma: 1}", "holds no key of verl's config"),
        ("a.sh", "pip install verl\npython3 merge.py --step 1", "is a script that starts no training of verl"),
        ("a.yaml", "compute_environment: LOCAL_MACHINE\nnum_processes: 8", "it is what accelerate starts processes by"),
        (
            "a.yaml",
            "actor_train: {}\nexp_ctrl: {}\nppo: {}",
            "holds no config of verl: it is AReaL's older layout, which is",
        ),
        ("a.yaml", "stage: 2\nlora_rank: 8\nmax_seq_length: 9\nactor_train: {}", "holds no key of verl's config"),
        ("a.py", "x = 1", "is Python: verl's config is YAML"),
    ],
)
def test_a_file_that_holds_no_config_of_verl_is_refused(name: str, text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as refused:
        read_file(tmp_path, name, text)
    assert says in str(refused.value)


@pytest.mark.parametrize("framework", ["areal", "roll"])
def test_areals_older_layout_is_called_that(framework: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="it is AReaL's older layout, which is not read"):
        read_file(tmp_path, "a.yaml", "actor_train: {}\nactor: {}\nmax_head_offpolicyness: 4\nppo: {}", framework)


def test_what_verl_does_to_everybody_is_a_note_and_what_was_chosen_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"{COMMAND} {ACTOR}use_kl_loss=True {ACTOR}ppo_mini_batch_size=128")
    assert main(["lint", "--from", "verl", str(path)]) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "warning clip-cannot-bind",
        "note kl-clamp-ends-gradient",  # verl's own clamp
        "note dual-clip-by-default",
    ]
