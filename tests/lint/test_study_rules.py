"""Every rule about a study: arms that break it, with the numbers it must say, and their nearest neighbours."""

from __future__ import annotations

import pytest
from lint_subjects import claim, plan, sentences

from grpolab.lint.study_rules import STUDY_RULES, check_plans, check_study
from grpolab.sweep.plan import Plan, plans


def losses(*names: str) -> dict[str, list[str]]:
    return {name: [f"loss_type={name}"] for name in names}


FORMS = {"a": [], "b": ["loss_form=max_negative"]}
LOSSES, SCALED, GSPO = losses("grpo", "dapo"), losses("grpo", "dr_grpo"), losses("grpo", "gspo")
LEVELS = {level: [f"importance_sampling_level={level}"] for level in ("token", "sequence")}
MU = {mu: [f"num_iterations={mu}"] for mu in "14"}
ONE, SORTING, SPARSE = "num_iterations=1", "task=sorting", "evaluation.every=16"
TUNED_RATE = {
    **{"space": {"learning_rate": {"low": 1e-4, "high": 1e-3}}, "trials": 1, "seeds": [1000]},
    "objectives": [{"metric": "final_score", "direction": "maximize"}],
}
A_IS_B, A_BEATS_B = {"hypotheses": [claim("a", "b", direction="equal")]}, {"hypotheses": [claim("a", "b")]}
UPDATES = ("rollout_steps=null", "max_optimizer_steps=40")
BY_STEP = [claim("dr_grpo", "grpo", metric="weights/step_norm")]
WITHOUT_ONE = {"mu": {mu: [f"num_iterations={mu}"] for mu in "24"}}
SPEAKS: dict[str, list[tuple[Plan, str]]] = {  # rule -> studies that break it, and what it says
    "same-function": [
        (plan(FORMS), "minimum of two surrogates and the maximum of their negatives are one function"),
        (plan(losses("bnpo", "dapo")), "bnpo's mean"),
        (plan(GSPO, ONE), "at ratio 1"),
        (plan(losses("dapo", "cispo"), ONE), "at ratio 1"),
        (plan(LEVELS, factors={"mu": MU}), "token and sequence are the same function for mu=1: at ratio 1"),
        (plan({"cap": ["delta=2.0"], "dual": ["dual_clip=2.0"]}), "delta above"),
        (plan(LOSSES, "max_completion_length=1"), "one token"),
    ],
    "same-at-equal-lengths": [(plan(LOSSES, SORTING), "one length"), (plan(SCALED, SORTING), "arms grpo and dr_grpo")],
    "claim-about-equals": [
        (plan(GSPO, ONE, hypotheses=[claim("gspo", "grpo")]), "claims that gspo and grpo differ"),
        (plan(FORMS, **A_BEATS_B), "same function"),
    ],
    "one-epsilon-for-two-levels": [(plan(LEVELS), "(0.2/0.2), which clip different shares")],
    "one-rate-for-two-scales": [
        (plan(SCALED), "arm dr_grpo has gradients that are a mean's times the mean length over max_completion_length"),
        (plan(SCALED, hypotheses=[claim("dr_grpo", "grpo")]), "learning_rate=0.0003 and max_grad_norm=1"),
    ],
    "reuse-costs-rollouts": [(plan(MU, *UPDATES), "4 updates per batch get 2560 completions and 1 get")],
    "seeds-of-two-uses": [
        (plan(FORMS, seeds=[0, 1, 1000]), "seeds=1000 are for tuning: a study's are below 900 or from 2000 on"),
        (plan(FORMS, seeds=[1000], **A_BEATS_B), "seeds=1000 are for tuning: a study's are below 900 or from 2000 on"),
        (plan(FORMS, seeds=range(905)), "seeds=900, 901, 902 and 2 more choose regimes: a study's are below 900 or"),
        (plan(FORMS, seeds=[900, 0, 1], name="regimes"), "seeds=0, 1 do not choose regimes: 900 to 999 do"),
    ],
    "no-look-yet": [(plan(FORMS, seeds=3, **A_BEATS_B), "seeds=3 decide nothing: the first look is at 5")],
    "too-few-evaluations": [
        (plan(FORMS, SPARSE, **A_BEATS_B), "runs have 6 evaluations, the first included, for H: have 10 or more")
    ],
}
SILENT: dict[str, list[Plan]] = {  # rule -> studies that do not
    "same-function": [
        *(plan(FORMS, placebo=[["a", "b"]]), plan(FORMS, **A_IS_B), plan({"a": [], "b": ["epsilon=0.1"]})),
        *(plan(losses("bnpo", "dapo"), "micro_batch_size=64"), plan(GSPO), plan(losses("dapo", "cispo"))),
        *(plan(LEVELS, factors=WITHOUT_ONE), plan({"cap": ["delta=1.1"], "dual": ["dual_clip=1.1"]})),
        plan(LOSSES, "max_completion_length=2"),
    ],
    "same-at-equal-lengths": [plan(LOSSES), plan(FORMS, SORTING), plan(SCALED, SORTING, "max_completion_length=12")],
    "claim-about-equals": [plan(GSPO, hypotheses=[claim("gspo", "grpo")]), plan(FORMS, **A_IS_B)],
    "one-epsilon-for-two-levels": [
        plan(LEVELS | {"own": ["importance_sampling_level=sequence", "epsilon=3e-4"]}),
        plan(LEVELS, ONE),
    ],
    "one-rate-for-two-scales": [
        *(plan(SCALED, tuning=TUNED_RATE), plan(LOSSES), plan(SCALED, "max_grad_norm=.inf")),
        *(plan(SCALED, hypotheses=BY_STEP), plan(SCALED | {"dr_grpo": ["loss_type=dr_grpo", "learning_rate=1e-3"]})),
    ],
    "reuse-costs-rollouts": [plan(MU)],
    "seeds-of-two-uses": [
        *(plan(FORMS, seeds=[0, 1, 2000]), plan(FORMS, seeds=[899])),
        *(plan(FORMS, seeds=[900, 999], name="regimes"), plan(FORMS, seeds=[1000, 1001])),
    ],
    "no-look-yet": [plan(FORMS, seeds=3, looks=[3], **A_BEATS_B)],
    "too-few-evaluations": [plan(FORMS, SPARSE, hypotheses=[claim("a", "b", metric="clip/active")])],
}


@pytest.mark.parametrize("rule", STUDY_RULES)
def test_a_rule_speaks_where_it_is_broken_and_nowhere_else(rule: str) -> None:
    for planted, says in SPEAKS[rule]:
        (sentence,) = sentences(check_study(planted), rule)
        assert says in sentence
    for neighbour in SILENT[rule]:
        assert sentences(check_study(neighbour), rule) == []


@pytest.mark.parametrize("name", ["reference", pytest.param("dialects", marks=pytest.mark.slow)])
def test_the_committed_studies_have_nothing_but_notes(name: str) -> None:
    assert {finding.severity for finding in check_plans(plans(name))} == {"note"}


def test_what_a_study_varies_itself_is_a_note() -> None:
    varied = {finding.rule: finding for finding in check_plans([plan(MU)])}
    assert (varied["clip-cannot-bind"].severity, varied["clip-cannot-bind"].where) == ("note", "variant 1")
    fixed = {finding.rule: finding for finding in check_plans([plan({"a": [], "b": ["epsilon=0.1"]}, ONE)])}
    assert [fixed[rule].severity for rule in ("clip-cannot-bind", "same-function")] == ["warning", "warning"]
