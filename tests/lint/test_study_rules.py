"""Every rule about a study: arms that break it, with the numbers it must say, and their nearest neighbours."""

from __future__ import annotations

import pytest
from lint_subjects import claim, plan, sentences

from grpolab.lint.study_rules import STUDY_RULES, check_plans, check_study
from grpolab.sweep.plan import Plan, plans

FORMS = {"a": [], "b": ["loss_form=max_negative"]}
LOSSES = {"grpo": ["loss_type=grpo"], "dapo": ["loss_type=dapo"]}
MEANS = {"bnpo": ["loss_type=bnpo"], "dapo": ["loss_type=dapo"]}
LEVELS = {"token": ["importance_sampling_level=token"], "sequence": ["importance_sampling_level=sequence"]}
GSPO = {"grpo": ["loss_type=grpo"], "gspo": ["loss_type=gspo"]}
CISPO = {"dapo": ["loss_type=dapo"], "cispo": ["loss_type=cispo"]}
SCALED = {"grpo": ["loss_type=grpo"], "dr_grpo": ["loss_type=dr_grpo"]}
MU = {"1": ["num_iterations=1"], "4": ["num_iterations=4"]}
TUNED_RATE = {
    **{"space": {"learning_rate": {"low": 1e-4, "high": 1e-3}}, "trials": 1, "seeds": [1000]},
    "objectives": [{"metric": "final_score", "direction": "maximize"}],
}
UPDATES = ("rollout_steps=null", "max_optimizer_steps=40")


PLANTED: list[tuple[str, Plan, str, Plan]] = [
    ("same-function", plan(FORMS), "one function", plan(FORMS, placebo=[["a", "b"]])),
    ("same-function", plan(FORMS), "minimum", plan({"a": [], "b": ["epsilon=0.1"]})),
    ("same-function", plan(MEANS), "bnpo's mean", plan(MEANS, "micro_batch_size=64")),
    ("same-function", plan(GSPO, "num_iterations=1"), "at ratio 1", plan(GSPO)),
    ("same-function", plan(CISPO, "num_iterations=1"), "at ratio 1", plan(CISPO)),
    (
        "same-function",
        plan(LEVELS, factors={"mu": MU}),
        "token and sequence are the same function for mu=1: at ratio 1",
        plan(LEVELS, factors={"mu": {"2": ["num_iterations=2"], "4": ["num_iterations=4"]}}),
    ),
    (
        "same-function",
        plan({"cap": ["delta=2.0"], "dual": ["dual_clip=2.0"]}),
        "delta above",
        plan({"cap": ["delta=1.1"], "dual": ["dual_clip=1.1"]}),
    ),
    (
        "same-function",
        plan({"grpo": ["loss_type=grpo"], "dapo": ["loss_type=dapo"]}, "max_completion_length=1"),
        "one token",
        plan({"grpo": ["loss_type=grpo"], "dapo": ["loss_type=dapo"]}, "max_completion_length=2"),
    ),
    (
        "same-function",
        plan(FORMS),
        "same function",
        plan(FORMS, hypotheses=[claim("a", "b", direction="equal")]),
    ),
    ("same-at-equal-lengths", plan(LOSSES, "task=sorting"), "one length", plan(LOSSES)),
    ("same-at-equal-lengths", plan(SCALED, "task=sorting"), "one length", plan(FORMS, "task=sorting")),
    (
        "same-at-equal-lengths",
        plan(SCALED, "task=sorting"),
        "arms grpo and dr_grpo",
        plan(SCALED, "task=sorting", "max_completion_length=12"),
    ),
    (
        "claim-about-equals",
        plan(GSPO, "num_iterations=1", hypotheses=[claim("gspo", "grpo")]),
        "claims that gspo and grpo differ",
        plan(GSPO, hypotheses=[claim("gspo", "grpo")]),
    ),
    (
        "claim-about-equals",
        plan(FORMS, hypotheses=[claim("a", "b")]),
        "same function",
        plan(FORMS, hypotheses=[claim("a", "b", direction="equal")]),
    ),
    (
        "one-epsilon-for-two-levels",
        plan(LEVELS),
        "(0.2/0.2)",
        plan({**LEVELS, "own": ["importance_sampling_level=sequence", "epsilon=3e-4"]}),
    ),
    ("one-epsilon-for-two-levels", plan(LEVELS), "different shares", plan(LEVELS, "num_iterations=1")),
    ("one-rate-for-two-scales", plan(SCALED), "learning_rate", plan(SCALED, tuning=TUNED_RATE)),
    (
        "one-rate-for-two-scales",
        plan(SCALED),
        "arm dr_grpo has gradients that are a mean's times the mean length over max_completion_length",
        plan(LOSSES),
    ),
    ("one-rate-for-two-scales", plan(SCALED), "0.0003", plan(SCALED, "max_grad_norm=.inf")),
    (
        "one-rate-for-two-scales",
        plan(SCALED, hypotheses=[claim("dr_grpo", "grpo")]),
        "max_grad_norm=1",
        plan(SCALED, hypotheses=[claim("dr_grpo", "grpo", metric="weights/step_norm")]),
    ),
    (
        "one-rate-for-two-scales",
        plan(SCALED),
        "learning_rate",
        plan({"grpo": ["loss_type=grpo"], "dr_grpo": ["loss_type=dr_grpo", "learning_rate=1e-3"]}),
    ),
    (
        "reuse-costs-rollouts",
        plan(MU, *UPDATES),
        "4 updates per batch get 2560 completions and 1 get",
        plan(MU),
    ),
    (
        "seeds-of-two-uses",
        plan(FORMS, seeds=[0, 1, 1000]),
        "seeds=1000 are for tuning: a study's are below 900 or from 2000 on",
        plan(FORMS, seeds=[0, 1, 2000]),
    ),
    (
        "seeds-of-two-uses",
        plan(FORMS, seeds=range(905)),
        "seeds=900, 901, 902 and 2 more choose regimes: a study's are below 900 or from 2000 on",
        plan(FORMS, seeds=[899]),
    ),
    (
        "seeds-of-two-uses",
        plan(FORMS, seeds=[900, 0, 1], name="regimes"),
        "seeds=0, 1 do not choose regimes: 900 to 999 do",
        plan(FORMS, seeds=[900, 999], name="regimes"),
    ),
    (
        "no-look-yet",
        plan(FORMS, seeds=3, hypotheses=[claim("a", "b")]),
        "seeds=3 decide nothing: the first look is at 5",
        plan(FORMS, seeds=3, hypotheses=[claim("a", "b")], looks=[3]),
    ),
    (
        "too-few-evaluations",
        plan(FORMS, "evaluation.every=16", hypotheses=[claim("a", "b")]),
        "runs have 6 evaluations, the first included, for H: have 10 or more",
        plan(FORMS, "evaluation.every=16", hypotheses=[claim("a", "b", metric="clip/active")]),
    ),
]


@pytest.mark.parametrize(("rule", "planted", "says", "neighbour"), PLANTED)
def test_a_rule_speaks_where_it_is_broken_and_nowhere_else(
    rule: str, planted: Plan, says: str, neighbour: Plan
) -> None:
    (sentence,) = sentences(check_study(planted), rule)
    assert says in sentence
    assert sentences(check_study(neighbour), rule) == []


def test_every_rule_about_a_study_is_planted() -> None:
    assert {rule for rule, *_ in PLANTED} == STUDY_RULES.keys()


@pytest.mark.parametrize("name", ["reference", pytest.param("dialects", marks=pytest.mark.slow)])
def test_the_committed_studies_have_nothing_but_notes(name: str) -> None:
    assert {finding.severity for finding in check_plans(plans(name))} == {"note"}


def test_what_a_study_varies_itself_is_a_note() -> None:
    chosen = {finding.rule: finding for finding in check_plans([plan(MU)])}
    assert chosen["clip-cannot-bind"].severity == "note"
    assert chosen["clip-cannot-bind"].where == "variant 1"
    unasked = {finding.rule: finding for finding in check_plans([plan({"a": [], "b": ["epsilon=0.1"]}, MU["1"][0])])}
    assert unasked["clip-cannot-bind"].severity == "warning"
    assert unasked["same-function"].severity == "warning"
