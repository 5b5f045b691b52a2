"""Every rule about a study: arms that break it, with the numbers it must say, and their nearest neighbours."""

from __future__ import annotations

import pytest
from lint_subjects import arms, claim, plan

from grpolab.lint import study_rules
from grpolab.lint.check import check_plans
from grpolab.lint.rules import Rule
from grpolab.lint.study_rules import STUDY_RULES, LintedStudy
from grpolab.sweep.plan import plans

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


PLANTED: list[tuple[Rule[LintedStudy], LintedStudy, str, LintedStudy]] = [
    (study_rules.same_function, arms(FORMS), "one function", arms(FORMS, placebo=[["a", "b"]])),
    (study_rules.same_function, arms(FORMS), "minimum", arms({"a": [], "b": ["epsilon=0.1"]})),
    (study_rules.same_function, arms(MEANS), "bnpo's mean", arms(MEANS, "micro_batch_size=64")),
    (study_rules.same_function, arms(GSPO, "num_iterations=1"), "at ratio 1", arms(GSPO)),
    (study_rules.same_function, arms(CISPO, "num_iterations=1"), "at ratio 1", arms(CISPO)),
    (
        study_rules.same_function,
        arms(LEVELS, factors={"mu": MU}),
        "token and sequence are the same function for mu=1: at ratio 1",
        arms(LEVELS, factors={"mu": {"2": ["num_iterations=2"], "4": ["num_iterations=4"]}}),
    ),
    (
        study_rules.same_function,
        arms({"cap": ["delta=2.0"], "dual": ["dual_clip=2.0"]}),
        "delta above",
        arms({"cap": ["delta=1.1"], "dual": ["dual_clip=1.1"]}),
    ),
    (
        study_rules.same_function,
        arms({"grpo": ["loss_type=grpo"], "dapo": ["loss_type=dapo"]}, "max_completion_length=1"),
        "one token",
        arms({"grpo": ["loss_type=grpo"], "dapo": ["loss_type=dapo"]}, "max_completion_length=2"),
    ),
    (
        study_rules.same_function,
        arms(FORMS),
        "same function",
        arms(FORMS, hypotheses=[claim("a", "b", direction="equal")]),
    ),
    (study_rules.same_at_equal_lengths, arms(LOSSES, "task=sorting"), "one length", arms(LOSSES)),
    (study_rules.same_at_equal_lengths, arms(SCALED, "task=sorting"), "one length", arms(FORMS, "task=sorting")),
    (
        study_rules.same_at_equal_lengths,
        arms(SCALED, "task=sorting"),
        "arms grpo and dr_grpo",
        arms(SCALED, "task=sorting", "max_completion_length=12"),
    ),
    (
        study_rules.claim_about_equals,
        arms(GSPO, "num_iterations=1", hypotheses=[claim("gspo", "grpo")]),
        "claims that gspo and grpo differ",
        arms(GSPO, hypotheses=[claim("gspo", "grpo")]),
    ),
    (
        study_rules.claim_about_equals,
        arms(FORMS, hypotheses=[claim("a", "b")]),
        "same function",
        arms(FORMS, hypotheses=[claim("a", "b", direction="equal")]),
    ),
    (
        study_rules.one_epsilon_for_two_levels,
        arms(LEVELS),
        "(0.2/0.2)",
        arms({**LEVELS, "own": ["importance_sampling_level=sequence", "epsilon=3e-4"]}),
    ),
    (study_rules.one_epsilon_for_two_levels, arms(LEVELS), "different shares", arms(LEVELS, "num_iterations=1")),
    (study_rules.one_rate_for_two_scales, arms(SCALED), "learning_rate", arms(SCALED, tuning=TUNED_RATE)),
    (
        study_rules.one_rate_for_two_scales,
        arms(SCALED),
        "arm dr_grpo has gradients that are a mean's times the mean length over max_completion_length",
        arms(LOSSES),
    ),
    (study_rules.one_rate_for_two_scales, arms(SCALED), "0.0003", arms(SCALED, "max_grad_norm=.inf")),
    (
        study_rules.one_rate_for_two_scales,
        arms(SCALED, hypotheses=[claim("dr_grpo", "grpo")]),
        "max_grad_norm=1",
        arms(SCALED, hypotheses=[claim("dr_grpo", "grpo", metric="weights/step_norm")]),
    ),
    (
        study_rules.one_rate_for_two_scales,
        arms(SCALED),
        "learning_rate",
        arms({"grpo": ["loss_type=grpo"], "dr_grpo": ["loss_type=dr_grpo", "learning_rate=1e-3"]}),
    ),
    (
        study_rules.reuse_costs_rollouts,
        arms(MU, *UPDATES),
        "4 updates per batch get 2560 completions and 1 get",
        arms(MU),
    ),
    (
        study_rules.seeds_of_two_uses,
        arms(FORMS, seeds=[0, 1, 1000]),
        "seeds=1000 are for tuning: a study's are below 900 or from 2000 on",
        arms(FORMS, seeds=[0, 1, 2000]),
    ),
    (
        study_rules.seeds_of_two_uses,
        arms(FORMS, seeds=range(905)),
        "seeds=900 to 904 choose regimes: a study's are below 900 or from 2000 on",
        arms(FORMS, seeds=[899]),
    ),
    (
        study_rules.seeds_of_two_uses,
        arms(FORMS, seeds=[900, 0, 1], name="regimes"),
        "seeds=0, 1 do not choose regimes: 900 to 999 do",
        arms(FORMS, seeds=[900, 999], name="regimes"),
    ),
    (
        study_rules.no_look_yet,
        arms(FORMS, seeds=3, hypotheses=[claim("a", "b")]),
        "seeds=3 decide nothing: the first look is at 5",
        arms(FORMS, seeds=3, hypotheses=[claim("a", "b")], looks=[3]),
    ),
    (
        study_rules.too_few_evaluations,
        arms(FORMS, "evaluation.every=16", hypotheses=[claim("a", "b")]),
        "runs have 6 evaluations, the first included, for H: have 10 or more",
        arms(FORMS, "evaluation.every=16", hypotheses=[claim("a", "b", metric="clip/active")]),
    ),
]


@pytest.mark.parametrize(("rule", "planted", "says", "neighbour"), PLANTED)
def test_a_rule_speaks_where_it_is_broken_and_nowhere_else(
    rule: Rule[LintedStudy], planted: LintedStudy, says: str, neighbour: LintedStudy
) -> None:
    (sentence,) = rule.check(planted)
    assert says in sentence
    assert list(rule.check(neighbour)) == []


def test_every_rule_about_a_study_is_planted() -> None:
    assert {rule.name for rule, *_ in PLANTED} == {rule.name for rule in STUDY_RULES.rules}


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
