"""Every rule about a run: runs that break it, with the numbers it must say, and their nearest neighbours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lint_subjects import run, sentences

from grpolab.lint.rules import RUN_RULES, check_run

ONE, SEQUENCE, LONG = "num_iterations=1", "importance_sampling_level=sequence", "max_completion_length=400"
JSONL = "task=jsonl task.train_file=train.jsonl task.evaluation_file=test.jsonl"
WARM, TRL_CISPO = "warm_start.max_steps=1500 warm_start.learning_rate=3e-3", "dialect=trl/cispo"
PRETRAINED, LORA = "model=pretrained model.path=x", "lora={rank:8,alpha:16,targets:null}"
FILTER = "+filter_groups.metric=correct +filter_groups.max_batches"
HARD = "warm_start.target_accuracy=0.01"  # with groups of 8 one in 12.9 differs
REJECTION = "sampler_rejection={policy:old,m2_budget:null,bounds:{token:[0.5,2.0]}}"
NARROW = "sampler_rejection={policy:old,m2_budget:null,bounds:{token:[0.8,1.25]}}"
SPEAKS = {  # rule -> runs that break it, and what it says
    "clip-cannot-bind": {
        ONE: "epsilon=0.2 and epsilon_high=0.2 have",
        f"{ONE} staleness=1": "one update per batch",
        f"{ONE} old_log_probs=sampler": "1 up to rounding",
        f"{ONE} kernel=cispo": "nothing else to clip",
    },
    "nothing-to-start-from": {
        "warm_start.max_steps=0": "no warm start: no answer will be right",
        f"{JSONL} warm_start.max_steps=1500": "warm_start.learning_rate=1e-05 hardly moves them",
        JSONL: f"set {WARM}, and max_completion_length (now 256)",
    },
    "learning-rate": {
        f"{PRETRAINED} learning_rate=3e-4": "learning_rate=0.0003: GRPO by training all weights usually takes 1e-06",
        f"{PRETRAINED} learning_rate=1e-8": "at this rate nothing moves",
    },
    "epsilon-of-another-level": {
        f"{SEQUENCE} {LONG}": "20 times what compares with a token's 0.2 over 400 tokens (0.01)",
        f"{SEQUENCE} task=sorting": "11 tokens",
        SEQUENCE + " epsilon=0.5": "GSPO's paper has 3e-4 below and 4e-4 above",
    },
    "epsilon-below-noise": {
        "loss_type=gspo dtype=bfloat16 max_completion_length=512": "a sequence ratio by over 512 tokens (about 0.0007)",
        "loss_type=gspo dtype=bfloat16": "clips at random",
        "epsilon=5e-7": "5e-07",
        "epsilon=0": "range of 0",
    },
    "delta-inside-range": {
        "delta=1.1": "delta=1.1 is below 1 + epsilon_high = 1.2",
        "delta=1.25 epsilon_high=0.28": "1.28",
    },
    "dual-clip-by-default": {"dialect=verl": "dual_clip=3"},
    "cap-scales-gradient": {TRL_CISPO: "scaled by 0.2"},
    "sequences-weighted-by-length": {
        f"{SEQUENCE} aggregation=token_mean_rollout": "length, 1 to 4",
        f"{SEQUENCE} aggregation=token_sum_constant": "aggregation=token_sum_constant",
        "kernel=gmpo aggregation=token_sum": "kernel=gmpo",
        "importance_sampling_level=sequence_token aggregation=token_mean_minibatch": "sequence_token",
    },
    "kl-clamp-ends-gradient": {
        "beta=0.001 kl_output_clamp=10.0": "above 2.61 or below -11.00",
        "beta=0.1 kl_input_clamp=5": "above 5.00",
        "beta=0.1 kl_estimator=k2 kl_output_clamp=8": "4.00",
    },
    "zero-variance-groups": {
        "num_generations=2": "at the warm start's accuracy of 0.3 at least 58%",
        "num_generations=2 warm_start.max_steps=0": "at any accuracy",
    },
    "filter-starves": {
        f"{HARD} {FILTER}=10": "samples 12.9 batches or more until 32 groups differ",
        f"{HARD} {FILTER}=1 prompts_per_step=8": "of 8 groups fewer than one",
    },
    "sampling-mask-lost": {
        "top_p=0.9": "top_p=0.9: completions",
        "top_k=5 min_p=0.1": "top_k=5 min_p=0.1: completions",
    },
    "rejection-of-nothing": {REJECTION: "sampler_rejection leaves nothing out"},
    "rejection-within-noise": {
        f"{NARROW} sampler_noise=0.5": "token: [0.8, 1.25] (the noise moves its log ratio by about 0.5)",
        "paper=mis_po sampler_dtype=bfloat16": "geometric: [0.996, 1.001] (the noise moves its log ratio by about 0.",
    },
    "planted-fault": {"fault=dropout": "fault=dropout is planted"},
}
SILENT = {  # rule -> runs that do not
    "learning-rate": [
        PRETRAINED,
        f"{PRETRAINED} {LORA} learning_rate=1e-4",
        "model=smollm2",
        "learning_rate=1e-8",
    ],
    "clip-cannot-bind": [
        *(f"{ONE} num_minibatches=2", "num_iterations=2", f"{ONE} staleness=1 old_log_probs=sampler"),
        *(f"{ONE} old_log_probs=sampler sampler_dtype=bfloat16", f"{ONE} kernel=ratio"),
    ],
    "nothing-to-start-from": [
        *("", f"{JSONL} {WARM}", f"{JSONL} {PRETRAINED}", f"{JSONL} reward.function=mine.py:score"),
    ],
    "epsilon-of-another-level": [f"{SEQUENCE} {LONG} epsilon=0.03", LONG, f"{SEQUENCE} task=addition"],
    "epsilon-below-noise": [
        *("loss_type=gspo dtype=bfloat16 max_completion_length=8192", "loss_type=gspo", "epsilon=5e-6"),
        f"epsilon=0 {ONE}",
    ],
    "delta-inside-range": ["delta=1.2", "delta=1.25"],
    "dual-clip-by-default": ["dialect=verl dual_clip=null", "dual_clip=3.0"],
    "cap-scales-gradient": [f"{TRL_CISPO} epsilon_high=1.0", "loss_type=cispo epsilon_high=0.2"],
    "sequences-weighted-by-length": [
        *(f"{SEQUENCE} aggregation=sequence_mean", "aggregation=token_sum_constant", "loss_type=gmpo"),
        "dialect=verl/sapo aggregation=token_mean_minibatch",  # verl then averages by sequences all the same
    ],
    "kl-clamp-ends-gradient": [
        *("beta=0.001 kl_output_clamp=10.0 kl_gradient=score_function", "beta=0 kl_input_clamp=5"),
        "beta=0.1 kl_input_clamp=20",
    ],
    "zero-variance-groups": [
        *("num_generations=3", "num_generations=4 warm_start.max_steps=0"),
        *("num_generations=2 reward.weights.format=0.1", "num_generations=2 advantage_estimator=batch_mean"),
    ],
    "filter-starves": [
        *(
            HARD,
            f"{HARD} filter_groups={{metric:correct,max_batches:13}}",
            "filter_groups={metric:correct,max_batches:2}",
        ),
        f"{HARD} filter_groups={{metric:reward,max_batches:1}} prompts_per_step=13",
    ],
    "sampling-mask-lost": ["top_p=0.9 keep_sampling_mask=true", "temperature=0.5"],
    "rejection-of-nothing": [f"{REJECTION} {other}" for other in ("staleness=1", "sampler_noise=0.1")],
    "rejection-within-noise": [
        f"{REJECTION} sampler_noise=0.5",
        f"{NARROW} sampler_noise=0.1",
        f"{NARROW} staleness=1",
    ],
    "planted-fault": ["fault=tiny_learning_rate"],
}


@pytest.mark.parametrize("rule", SPEAKS)
def test_a_rule_speaks_where_it_is_broken_and_nowhere_else(rule: str) -> None:
    for planted, says in SPEAKS[rule].items():
        (sentence,) = sentences(check_run(run(*planted.split())), rule)
        assert says in sentence
    for neighbour in SILENT[rule]:
        assert sentences(check_run(run(*neighbour.split())), rule) == [], neighbour


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
    assert SPEAKS.keys() == SILENT.keys() == RUN_RULES.keys() - {"dropout-is-off"}
    assert check_run(run()) == []
