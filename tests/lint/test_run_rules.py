"""Every rule about a run: a run that breaks it, with the numbers it must say, and its nearest neighbour."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lint_subjects import run, sentences

from grpolab.lint.rules import RUN_RULES, check_run

ONE, SEQUENCE = "num_iterations=1", "importance_sampling_level=sequence"
JSONL = "task=jsonl task.train_file=train.jsonl task.evaluation_file=test.jsonl"
LONG = "max_completion_length=400"
PLANTED: list[tuple[str, str, str, str]] = [
    # rule, what breaks it, what it says, what does not break it
    ("clip-cannot-bind", ONE, "epsilon=0.2 and epsilon_high=0.2 cannot act", f"{ONE} num_minibatches=2"),
    ("clip-cannot-bind", ONE, "exactly 1", "num_iterations=2"),
    ("clip-cannot-bind", f"{ONE} staleness=1", "one update per batch", f"{ONE} staleness=1 old_log_probs=sampler"),
    (
        "clip-cannot-bind",
        f"{ONE} old_log_probs=sampler",
        "1",
        f"{ONE} old_log_probs=sampler sampler_dtype=bfloat16",
    ),
    ("clip-cannot-bind", f"{ONE} kernel=cispo", "clip fraction stays 0", f"{ONE} kernel=ratio"),
    ("nothing-to-start-from", "warm_start.max_steps=0", "no warm start: no answer will be right", ""),
    (
        "nothing-to-start-from",
        f"{JSONL} warm_start.max_steps=1500",
        "warm_start.learning_rate=1e-05 hardly moves them",
        f"{JSONL} warm_start.max_steps=1500 warm_start.learning_rate=3e-3",
    ),
    ("nothing-to-start-from", JSONL, "max_completion_length (now 256)", f"{JSONL} model=pretrained model.path=x"),
    (
        "nothing-to-start-from",
        JSONL,
        "set warm_start.max_steps=1500 warm_start.learning_rate=3e-3",
        f"{JSONL} reward.function=mine.py:score",
    ),
    ("epsilon-of-another-level", f"{SEQUENCE} {LONG}", "20 times", f"{SEQUENCE} {LONG} epsilon=0.03"),
    ("epsilon-of-another-level", f"{SEQUENCE} {LONG}", "400 tokens (0.01)", LONG),
    ("epsilon-of-another-level", f"{SEQUENCE} task=sorting", "11 tokens", f"{SEQUENCE} task=addition"),
    (
        "epsilon-below-noise",
        "loss_type=gspo dtype=bfloat16 max_completion_length=512",
        "bfloat16 rounds a sequence ratio by over 512 tokens (about 0.0007)",
        "loss_type=gspo dtype=bfloat16 max_completion_length=8192",
    ),
    ("epsilon-below-noise", "loss_type=gspo dtype=bfloat16", "clips at random", "loss_type=gspo"),
    ("epsilon-below-noise", "epsilon=5e-7", "5e-07", "epsilon=5e-6"),
    ("epsilon-below-noise", "epsilon=0", "range of 0", f"epsilon=0 {ONE}"),
    ("delta-inside-range", "delta=1.1", "delta=1.1 is below 1 + epsilon_high = 1.2", "delta=1.2"),
    ("delta-inside-range", "delta=1.25 epsilon_high=0.28", "1.28", "delta=1.25"),
    ("dual-clip-by-default", "dialect=verl", "dual_clip=3", "dialect=verl dual_clip=null"),
    ("dual-clip-by-default", "dialect=verl", "no such bound", "dual_clip=3.0"),
    ("cap-scales-gradient", "dialect=trl/cispo", "scaled by 0.2", "dialect=trl/cispo epsilon_high=1.0"),
    ("cap-scales-gradient", "dialect=trl/cispo", "ScaleRL", "loss_type=cispo epsilon_high=0.2"),
    (
        "sequences-weighted-by-length",
        f"{SEQUENCE} aggregation=token_mean_rollout",
        "length, 1 to 4",
        f"{SEQUENCE} aggregation=sequence_mean",
    ),
    (
        "sequences-weighted-by-length",
        f"{SEQUENCE} aggregation=token_sum_constant",
        "aggregation=token_sum_constant",
        "aggregation=token_sum_constant",
    ),
    ("sequences-weighted-by-length", "kernel=gmpo aggregation=token_sum", "kernel=gmpo", "loss_type=gmpo"),
    (
        "sequences-weighted-by-length",
        "importance_sampling_level=sequence_token aggregation=token_mean_minibatch",
        "sequence_token",
        "dialect=verl/gspo aggregation=token_mean_minibatch",  # verl then averages by sequences all the same
    ),
    (
        "kl-clamp-ends-gradient",
        "beta=0.001 kl_output_clamp=10.0",
        "above 2.61 or below -11.00",
        "beta=0.001 kl_output_clamp=10.0 kl_gradient=score_function",
    ),
    ("kl-clamp-ends-gradient", "beta=0.1 kl_input_clamp=5", "above 5.00", "beta=0 kl_input_clamp=5"),
    ("kl-clamp-ends-gradient", "beta=0.1 kl_estimator=k2 kl_output_clamp=8", "4.00", "beta=0.1 kl_input_clamp=20"),
    ("zero-variance-groups", "num_generations=2", "at least 58%", "num_generations=3"),
    ("zero-variance-groups", "num_generations=2 warm_start.max_steps=0", "at any accuracy", "num_generations=4"),
    ("zero-variance-groups", "num_generations=2", "teach nothing", "num_generations=2 reward.weights.format=0.1"),
    ("zero-variance-groups", "num_generations=2", "0.3", "num_generations=2 advantage_estimator=batch_mean"),
    ("planted-fault", "fault=dropout", "fault=dropout is planted", "fault=tiny_learning_rate"),
]


@pytest.mark.parametrize(("rule", "planted", "says", "neighbour"), PLANTED)
def test_a_rule_speaks_where_it_is_broken_and_nowhere_else(rule: str, planted: str, says: str, neighbour: str) -> None:
    (sentence,) = sentences(check_run(run(*planted.split())), rule)
    assert says in sentence
    assert sentences(check_run(run(*neighbour.split())), rule) == []


def test_dropout_is_read_from_the_config_of_a_local_model(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    settings = run("model=pretrained", f"model.path={tmp_path}")
    config.write_text(json.dumps({"attention_dropout": 0.1, "hidden_dropout_prob": 0, "drop_name": "x"}))
    (sentence,) = sentences(check_run(settings), "dropout-is-off")
    assert "has attention_dropout=0.1:" in sentence
    for text in (json.dumps({"attention_dropout": 0.0}), "no json"):
        config.write_text(text)
        assert sentences(check_run(settings), "dropout-is-off") == []


def test_every_rule_about_a_run_is_planted_and_the_run_of_conf_is_clean() -> None:
    assert {rule for rule, *_ in PLANTED} | {"dropout-is-off"} == RUN_RULES.keys()
    assert check_run(run()) == []
