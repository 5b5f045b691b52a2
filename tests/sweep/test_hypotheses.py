"""Hypotheses of a study file: what does not fit together is refused at load, in one sentence."""

from typing import Any

import pytest
from pydantic import ValidationError

from grpolab.errors import RequestError
from grpolab.sweep.compose import Composer
from grpolab.sweep.plan import expand
from grpolab.sweep.schema import sentences
from grpolab.sweep.study import Study, least_seeds

CLIPS = {name: [f"epsilon={epsilon}"] for name, epsilon in (("narrow", 0.1), ("middle", 0.2), ("wide", 0.3))}
CLAIM = {
    **{"id": "H", "says": "x", "source": "y", "metric": "final_score", "direction": "greater", "margin": 0.0},
    **{"contrast": {"of": "wide", "minus": "narrow"}, "test": "paired_t", "budget": "rollouts", "power": "z"},
}
TREND = {"contrast": None, "trend": ["narrow", "middle", "wide"], "test": "page", "seeds": 3}


def study(claim: dict[str, Any], **changes: Any) -> Study:
    """A study of three clip ranges and two tasks with one hypothesis."""
    fields = {
        **{"name": "mine", "question": "What?", "compare": "clip", "baseline": "narrow", "seeds": 5},
        "factors": {"clip": CLIPS, "task": {"addition": ["task=addition"], "sorting": ["task=sorting"]}},
        "primary_metric": "eval/accuracy_expected",
    }
    return Study.model_validate({**fields, "hypotheses": [CLAIM | claim], **changes})


def refusals(claim: dict[str, Any], **changes: Any) -> list[str]:
    """What is said about it."""
    try:
        study(claim, **changes)
    except ValidationError as error:
        return sentences(Study, error)
    return []


@pytest.mark.parametrize(
    "claim",
    [
        {},
        {"contrast": {"of": "wide"}},
        {"test": "paired_log_t", "margin": 2.0},
        {"test": "equivalence", "direction": "equal", "margin": 0.03},
        {"test": "fisher", "metric": "lost", "seeds": 4},
        TREND,
        TREND | {"direction": "less"},
        {"range_over": "task"},
        {"provided": {"metric": "clip/active", "of": "wide", "above": 0.01}},
    ],
)
def test_every_kind_of_hypothesis_is_accepted(claim: dict[str, Any]) -> None:
    (found,) = study(claim).hypotheses
    assert found.test == (CLAIM | claim)["test"]


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ({"test": "fisher", "seeds": 4}, "fisher, and no other, counts labels of runs"),
        ({"metric": "lost"}, "test=paired_t does not fit metric=lost"),
        ({"contrast": None}, "give either contrast or trend"),
        ({"trend": ["narrow", "middle", "wide"]}, "give either contrast or trend"),
        (TREND | {"trend": ["narrow", "wide"]}, "trend=[narrow, wide] is too short: a trend has 3 arms or more"),
        (TREND | {"trend": ["narrow", "wide", "narrow"]}, "narrow stands twice"),
        (TREND | {"test": "paired_t"}, "a trend takes test=page"),
        ({"test": "page", "seeds": 3}, "a trend takes test=page"),
        (TREND | {"margin": 0.1}, "margin=0.1 is not allowed with test=page: it must be 0"),
        (TREND | {"seeds": 2}, "seeds=2 are too few: test=page can decide from 3 on"),
        ({"test": "equivalence", "direction": "equal"}, "it must be above 0, or nothing is equal"),
        ({"test": "equivalence", "margin": 0.1}, "equivalence and equal need each other"),
        ({"direction": "equal", "margin": 0.1}, "equivalence and equal need each other"),
        ({"test": "paired_log_t"}, "margin=0 is not allowed with test=paired_log_t: it is a factor"),
        ({"test": "paired_log_t", "margin": 1.0, "contrast": {"of": "wide"}}, "contrast.minus is missing"),
        ({"test": "fisher", "metric": "lost", "seeds": 3}, "seeds=3 are too few: test=fisher can decide from 4 on"),
        ({"contrast": {"of": "wide", "minus": "wide"}}, "compares wide with itself"),
        ({"test": None}, "test=null is not allowed: it must be paired_t | paired_log_t"),
        ({"budget": "steps"}, "budget=steps is not allowed: it must be rollouts | updates"),
        ({"power": ""}, "power= is not allowed"),
        ({"metric": "final_scor"}, "metric=final_scor is unknown (did you mean final_score"),
        ({"metric": "clip/activ"}, "metric=clip/activ is unknown (did you mean clip/active"),
        ({"contrast": {"of": "wid", "minus": "narrow"}}, "contrast.of=wid is unknown (did you mean wide"),
        ({"contrast": {"of": "wide", "minus": "narow"}}, "contrast.minus=narow is unknown (did you mean narrow"),
        (TREND | {"trend": ["narrow", "midle", "wide"]}, "trend=midle is unknown (did you mean middle"),
        ({"where": {"tasks": "addition"}}, "where=tasks is unknown (did you mean task"),
        ({"where": {"task": "adition"}}, "where.task=adition is unknown (did you mean addition"),
        ({"where": {"clip": "wide"}}, "where.clip is the factor that is compared"),
        ({"range_over": "tusk"}, "range_over=tusk is unknown (did you mean task"),
        ({"range_over": "clip"}, "range_over=clip must be a factor that is neither compared nor in where"),
        ({"range_over": "task", "where": {"task": "addition"}}, "range_over=task must be a factor that is neither"),
        ({"provided": {"metric": "clip", "of": "wide", "above": 0}}, "provided.metric=clip is unknown"),
        ({"provided": {"metric": "loss", "of": "wid", "above": 0}}, "provided.of=wid is unknown"),
    ],
)
def test_what_does_not_fit_together_is_refused_in_one_sentence(claim: dict[str, Any], said: str) -> None:
    (sentence,) = refusals(claim)
    assert said in sentence


def test_required_keys_are_named() -> None:
    for key in ("test", "budget", "power"):
        assert any(
            f"hypotheses.0.{key} is missing" in text
            for text in refusals({}, hypotheses=[{name: value for name, value in CLAIM.items() if name != key}])
        )


def test_a_contrast_needs_seeds_that_both_arms_share() -> None:
    skip = [{"clip": "wide", "task": "addition"}, {"clip": "narrow", "task": "sorting"}]
    (sentence,) = refusals({}, skip=skip)
    assert "no seed is shared: wide and narrow are never planned together" in sentence
    (sentence,) = refusals({"where": {"task": "addition"}}, skip=skip[:1])
    assert "no seed is shared" in sentence
    assert refusals({}, skip=skip[:1]) == []


def test_a_study_with_fewer_seeds_than_the_test_needs_is_refused() -> None:
    (sentence,) = refusals({}, seeds=1)
    assert "seeds=1 are too few for test=paired_t, which can decide from 2 on" in sentence
    (sentence,) = refusals({"test": "fisher", "metric": "lost", "seeds": 4}, seeds=[7, 8, 9])
    assert "seeds=3 are too few for test=fisher" in sentence


def test_the_fewest_seeds_are_those_of_the_exact_distributions() -> None:
    # claims-and-figures.md, section 4.3: 0/4 against 4/4 has p = .029, and 0/3 against 3/3 .1.
    assert least_seeds("fisher", 2) == 4
    assert (least_seeds("page", 3), least_seeds("page", 4)) == (3, 2)  # 2/6^2 = .056, 2/24^2 = .003
    assert (least_seeds("paired_t", 2), least_seeds("equivalence", 2)) == (2, 2)


PASSES = {"factors": {"clip": {"once": ["num_iterations=1"], "often": ["num_iterations=4"]}}, "baseline": "once"}
UPDATES = PASSES | {"overrides": ["rollout_steps=null", "max_optimizer_steps=40"]}


@pytest.mark.parametrize(
    ("budget", "changes", "said"),
    [
        ("updates", PASSES, "once has 80 optimiser steps, often has 320"),
        ("rollouts", UPDATES, "often has 2560 completions, once has 10240"),
        ("rollouts", PASSES, None),
        ("updates", UPDATES, None),
    ],
)
def test_the_budget_is_checked_against_the_cells(budget: str, changes: dict[str, Any], said: str | None) -> None:
    claim = {"contrast": {"of": "often", "minus": "once"}, "budget": budget}
    asked = study(claim, **changes)
    if said is None:
        assert len(expand(asked, Composer()).cells) == 10
        return
    with pytest.raises(RequestError, match=f"hypothesis H: budget={budget} does not hold: .*{said}"):
        expand(asked, Composer())


def test_the_budget_of_a_range_counts_every_level() -> None:
    factors = {"clip": CLIPS, "length": {"short": ["rollout_steps=5"], "long": ["rollout_steps=9"]}}
    assert len(expand(study({}, factors=factors), Composer()).cells) == 30
    with pytest.raises(RequestError, match="budget=rollouts does not hold"):
        expand(study({"range_over": "length"}, factors=factors), Composer())
