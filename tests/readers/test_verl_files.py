"""verl's run scripts and Hydra files as people write them: what is carried, and a sentence for what is not."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from grpolab.cli import main
from grpolab.errors import RequestError
from grpolab.readers.exchange import Converted, convert, read
from grpolab.settings.resolved import resolve_run
from grpolab.sweep.compose import Composer

ACTOR = "actor_rollout_ref.actor."
BASE = {"algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.n": "4"}


@cache
def composer() -> Composer:
    return Composer()


def read_file(tmp_path: Path, name: str, text: str) -> Converted:
    path = tmp_path / name
    path.write_text(text)
    return convert("verl", read("verl", str(path)), composer().compose)


def converted(tmp_path: Path, *more: str, **actor: object) -> Converted:
    """A script with these overrides behind those of BASE."""
    overrides = [f"{key}={value}" for key, value in BASE.items()] + [f"{ACTOR}{key}={actor[key]}" for key in actor]
    words = " \\\n    ".join([*overrides, *more])
    return read_file(tmp_path, "run.sh", f"set -x\npython3 -m verl.trainer.main_ppo \\\n    {words}\n")


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
export HYDRA_FULL_ERROR=1
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
    assert said(found, "$@: words that only a run can tell may change any of this")
    assert said(found, "--config-name dapo_trainer.yaml: that file is not read")
    assert said(found, "~algorithm.use_kl_in_reward: the key is taken away")


def test_what_an_undecided_condition_would_change_is_told(tmp_path: Path) -> None:
    choice = f"if nvidia-smi; then n=8; else n=4; fi\npython3 -m verl.trainer.main_ppo {ACTOR}optim.lr=1e-6"
    found = read_file(tmp_path, "run.sh", f"{choice} algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=$n")
    assert found.settings.num_generations == 1
    assert said(found, "actor_rollout_ref.rollout.n=8 or 4: only a run of the script can tell")


def test_hydras_own_files_are_read(tmp_path: Path) -> None:
    overrides = read_file(
        tmp_path, "overrides.yaml", "- algorithm.adv_estimator=grpo\n- +actor_rollout_ref.rollout.n=6\n"
    )
    assert overrides.settings.num_generations == 6
    resolved = """
    data: {train_batch_size: 64, max_response_length: 100}
    algorithm: {adv_estimator: grpo, _target_: verl.trainer.config.AlgoConfig, rollout_correction: null}
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
    found = read_file(tmp_path, "config.yaml", resolved)
    run = found.settings
    assert (run.epsilon, run.epsilon_high, run.num_minibatches) == (0.3, 0.3, 2)
    assert (run.lr_scheduler_type, run.max_grad_norm, run.warmup_steps) == ("cosine", 0.5, 0)
    primary = read_file(
        tmp_path,
        "mine.yaml",
        "defaults: [ppo_trainer, _self_]\nalgorithm: {adv_estimator: rloo}\nactor_rollout_ref: {rollout: {n: 2}}",
    )
    assert primary.settings.advantage_estimator == "leave_one_out"
    assert said(primary, "defaults: the files that it names are not read")


def test_unknown_keys_are_told_and_not_refused(tmp_path: Path) -> None:
    more = ["+algorithm.filter_overlong=True", "+algorithm.old_switch=False", "azr.executor=qwq", "data.some_key=1"]
    found = converted(tmp_path, *more, clip_ratio_hig=0.28)
    assert said(found, "clip_ratio_hig=0.28: verl has no such key (did you mean clip_ratio_high")
    assert said(found, "algorithm.filter_overlong=True: verl has no such key")
    assert said(found, "azr: no sections of verl's, and nothing here")
    assert not said(found, "old_switch")  # what is off does nothing
    assert not said(found, "data.some_key")
    kernels = converted(tmp_path, loss_agg_mode="prompt-mean", kl_loss_type="full", **{"policy_loss.loss_mode": "mine"})
    assert kernels.settings.kernel == "clipped"
    for key in ("policy_loss.loss_mode=mine", "loss_agg_mode=prompt-mean", "kl_loss_type=full"):
        assert said(kernels, f"{key}: here it is one of ")


def test_renamed_keys_are_carried(tmp_path: Path) -> None:
    found = converted(tmp_path, **{"optim.warmup_style": "cosine", "optim.clip_grad": 0.5, "grad_clip": 2.0})
    assert (found.settings.lr_scheduler_type, found.settings.max_grad_norm) == ("cosine", 0.5)
    assert said(found, "grad_clip=2.0: since 0.8 verl clips by actor_rollout_ref.actor.optim.clip_grad=0.5")
    assert converted(tmp_path, grad_clip=2.0).settings.max_grad_norm == 2.0
    assert converted(tmp_path, loss_mode="kl_cov").settings.kernel == "kl_cov"
    assert converted(tmp_path, **{"optim.lr_decay_style": "cosine"}).settings.lr_scheduler_type == "cosine"
    penalty = converted(tmp_path, "+reward_model.reward_kwargs.overlong_buffer_cfg.enable=True")
    assert said(penalty, "reward.reward_kwargs.overlong_buffer_cfg.enable=True: a long answer loses no reward here")


def test_todays_clip_ratio_does_nothing_and_is_told(tmp_path: Path) -> None:
    found = converted(tmp_path, clip_ratio=0.3)
    assert (found.settings.epsilon, found.settings.resolved_axes()["epsilon_high"]) == (0.2, 0.2)
    assert said(found, "clip_ratio=0.3: since 0.4 verl takes")
    assert not said(converted(tmp_path, clip_ratio=0.2), "since 0.4 verl takes")


def test_keys_of_old_versions_bring_their_defaults(tmp_path: Path) -> None:
    old = converted(tmp_path, clip_ratio=0.3, **{"fsdp_config.grad_offload": False})
    run = old.settings
    assert (run.epsilon, run.epsilon_high, run.dual_clip, run.entropy_coef) == (0.3, 0.3, None, 0.001)
    assert (run.beta, run.kl_placement) == (0.001, "reward")
    assert said(old, "those of verl before 0.4, whose key actor_rollout_ref.actor.fsdp_config.grad_offload is")
    in_loss = converted(tmp_path, use_kl_loss=True, kl_loss_coef=0.01, **{"fsdp_config.grad_offload": False}).settings
    assert (in_loss.beta, in_loss.kl_placement) == (0.01, "loss")
    today = converted(tmp_path, clip_ratio_low=0.1, **{"fsdp_config.grad_offload": False}).settings
    assert (today.dual_clip, today.entropy_coef, today.beta) == (3.0, None, 0.0)


def test_a_version_that_is_told_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.sh"
    path.write_text("python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4")
    assert main(["import", "--from", "verl", str(path)]) == 0
    assert "entropy_coef=" not in capsys.readouterr().out
    assert main(["import", "--from", "verl", "--version", "0.2", str(path)]) == 0
    printed = capsys.readouterr()
    assert "entropy_coef=0.001" in printed.out.split()
    assert "default taken: those of verl 0.2, as it was told" in printed.err
    assert "loss_agg_mode=token-mean: verl before 0.7 takes it over each micro batch" in printed.err
    assert main(["import", "--from", "verl", "--version", "0.7", str(path)]) == 0
    assert "each micro batch" not in capsys.readouterr().err
    assert main(["import", "--from", "verl", "--version", "3.1", str(path)]) == 2
    assert "verl: --version 3.1 is not allowed: it is 0.1 to 0.9" in capsys.readouterr().err


def test_every_default_that_acts_is_listed(tmp_path: Path) -> None:
    *_, listed = converted(tmp_path, clip_ratio_low=0.1).defaults
    assert f"{ACTOR}clip_ratio_high=0.2" in listed
    assert "data.train_batch_size=1024" in listed
    assert "clip_ratio_low" not in listed
    assert "kl_loss_coef" not in listed  # there is no KL
    assert "kl_loss_coef=0.001" in converted(tmp_path, use_kl_loss=True).defaults[-1]


def test_a_group_of_one_keeps_its_reward(tmp_path: Path) -> None:
    lone = converted(tmp_path, "actor_rollout_ref.rollout.n=1")
    assert (lone.settings.num_generations, lone.settings.advantage_estimator) == (1, "none")
    assert lone.settings.scale_rewards == "none"
    assert said(lone, "a group of one has nothing to be compared with")
    without = converted(tmp_path, "actor_rollout_ref.rollout.n=1", "algorithm.adv_estimator=reinforce_plus_plus")
    assert without.settings.whiten_advantages == "bessel"
    assert not said(without, "group of one")


def test_a_warm_up_is_told_in_steps_of_both(tmp_path: Path) -> None:
    found = converted(tmp_path, **{"optim.lr_warmup_steps": 10})
    assert found.settings.warmup_steps == 10
    assert said(found, "of which there are 4 in a rollout step: set 40")
    share = converted(tmp_path, "trainer.total_training_steps=200", **{"optim.lr_warmup_steps_ratio": 0.1})
    assert share.settings.warmup_steps == 20
    assert said(converted(tmp_path, **{"optim.lr_warmup_steps_ratio": 0.1}), "lr_warmup_steps_ratio=0.1: give warmup")


def test_what_does_nothing_or_cannot_be_carried_is_told(tmp_path: Path) -> None:
    found = converted(
        tmp_path, "algorithm.kl_ctrl.kl_coef=0.001", "data.max_prompt_length=2048", "data.max_response_length=8192",
        "actor_rollout_ref.rollout.max_model_len=4096", use_kl_loss=True,
    )  # fmt: skip
    assert said(found, "algorithm.kl_ctrl.kl_coef=0.001: it does nothing without algorithm.use_kl_in_reward=True")
    assert said(found, "rollout.max_model_len=4096: max_prompt_length and max_response_length are 10240 together")


def test_the_floor_of_a_schedule_is_a_share_of_its_peak(tmp_path: Path) -> None:
    for floor in ({"optim.min_lr_ratio": 0.1}, {"optim.lr": 1e-5, "optim.min_lr": 1e-6}):
        found = converted(tmp_path, **floor, **{"optim.lr_scheduler_type": "cosine"})
        assert found.settings.min_lr_ratio == pytest.approx(0.1)
        assert not said(found, "min_lr")
        assert resolve_run(converted(tmp_path, **floor).settings).min_lr_ratio is None  # a constant does not fall


def test_bypass_mode_is_carried_with_and_without_its_weight(tmp_path: Path) -> None:
    bypass = [f"algorithm.rollout_correction.{key}" for key in ("bypass_mode=True", "rollout_is=token")]
    clipped = converted(tmp_path, *bypass)
    assert (clipped.settings.old_log_probs, clipped.settings.sampler_correction) == ("sampler", None)
    assert said(clipped, "rollout_is=token: no weight where the ratio is to the sampler")
    weighted = converted(tmp_path, *bypass, "algorithm.rollout_correction.loss_type=reinforce")
    assert weighted.settings.old_log_probs == "trainer"
    assert weighted.settings.sampler_correction is not None
    assert said(weighted, "bypass_mode=True: verl weighs by the current policy")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["data.train_batch_size=0"], "data.train_batch_size=0 asks for its fully asynchronous training"),
        (["data.train_batch_size=64", f"{ACTOR}ppo_mini_batch_size=128"], "to read it as one, write 64"),
        (["data.train_batch_size=100", f"{ACTOR}ppo_mini_batch_size=32"], "must divide data.train_batch_size=100"),
    ],
)
def test_batches_that_no_step_has_are_refused(more: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=says.replace("(", r"\(")):
        converted(tmp_path, *more)


def test_a_default_above_a_small_batch_is_nobodys_wish(tmp_path: Path) -> None:
    found = converted(tmp_path, "data.train_batch_size=8")
    assert found.settings.num_minibatches == 1
    assert said(found, "ppo_mini_batch_size is more than data.train_batch_size: the whole batch is one minibatch")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.sh", "python3 -m verl.trainer.main config=c.yaml worker.actor.optim.lr=1e-6", "is a config of EasyR1"),
        (
            "a.sh",
            "pip install verl\npython3 merge.py --step 1",
            "starts no training of verl: it starts `python3 merge.py",
        ),
        ("a.sh", "echo data.train_batch_size=1", "is a script that starts no training of verl"),
        ("a.yaml", "compute_environment: LOCAL_MACHINE\nnum_processes: 8", "it is a config of accelerate"),
        ("a.json", '{"zero_optimization": {"stage": 3}}', "it is a config of DeepSpeed"),
        ("a.yaml", "colour: blue", "holds no key of verl's config"),
        ("a.py", "x = 1", "is Python: verl's config is YAML"),
    ],
)
def test_a_file_without_a_config_is_told_what_it_is(name: str, text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=says):
        read_file(tmp_path, name, text)


def test_references_in_a_circle_end(tmp_path: Path) -> None:
    circle = "algorithm: {adv_estimator: grpo, gamma: '${algorithm.lam}', lam: '${algorithm.gamma}'}"
    found = read_file(tmp_path, "a.yaml", f"{circle}\nactor_rollout_ref: {{rollout: {{n: 4}}}}")
    assert found.settings.num_generations == 4


def test_control_characters_of_a_script_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4 "
        "+algorithm.mine=$'x'\x1b[31mred"
    )
    assert main(["import", "--from", "verl", str(path)]) == 0
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert "algorithm.mine=" in printed.err


def test_what_verl_does_to_everybody_is_a_note_and_what_was_chosen_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.sh"
    command = "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4"
    path.write_text(f"{command} {ACTOR}use_kl_loss=True data.train_batch_size=256")
    assert main(["lint", "--from", "verl", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "warning clip-cannot-bind",  # 256 prompts in minibatches of 256
        "note kl-clamp-ends-gradient",  # verl's own clamp
        "note dual-clip-by-default",
    ]
