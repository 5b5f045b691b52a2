"""Hypotheses of a study file: what does not fit together is refused at load, in one sentence."""

from typing import Any

import pytest
from pydantic import ValidationError

from grpolab.errors import RequestError
from grpolab.sweep.compose import Composer
from grpolab.sweep.plan import expand
from grpolab.sweep.schema import sentences
from grpolab.sweep.study import Study

CLIPS = {name: [f"epsilon={epsilon}"] for name, epsilon in (("narrow", 0.1), ("middle", 0.2), ("wide", 0.3))}
CLAIM = {
    **{"id": "H", "says": "x", "source": "y", "metric": "final_score", "direction": "greater"},
    **{"contrast": {"of": "wide", "minus": "narrow"}, "budget": "rollouts"},
}
TREND = {"contrast": None, "trend": ["narrow", "middle", "wide"]}
ENTROPY = {"metric": "entropy_last"}  # without a margin of its own


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
        {"scale": "log", "beyond": 2.0, "margin": 1.2},
        {"direction": "equal", "margin": 0.03},
        {"direction": "equal"},
        ENTROPY | {"direction": "equal", "margin": 0.03},
        {"metric": "lost"},
        {"by_construction": True},
        TREND,
        TREND | {"direction": "less"},
        {"range_over": "task"},
        {"provided": {"metric": "clip/active", "of": "wide", "above": 0.01}},
    ],
)
def test_every_kind_of_hypothesis_is_accepted(claim):
    (found,) = study(claim).hypotheses
    assert found.model_dump(exclude_defaults=True) == {
        key: value for key, value in (CLAIM | claim).items() if value is not None
    } | ({"contrast": {"of": "wide"}} if claim == {"contrast": {"of": "wide"}} else {})


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ({"contrast": None}, "give either contrast or trend"),
        ({"trend": ["narrow", "middle", "wide"]}, "give either contrast or trend"),
        (TREND | {"trend": ["narrow", "wide"]}, "trend=[narrow, wide] is too short: a trend has 3 arms or more"),
        (TREND | {"trend": ["narrow", "wide", "narrow"]}, "narrow stands twice"),
        (TREND | {"margin": 0.1}, "margin=0.1 is not allowed: a trend knows no margin"),
        (TREND | {"beyond": 0.1}, "beyond=0.1 is not allowed: a trend is tested against none"),
        (TREND | {"metric": "lost"}, "metric=lost is a label of runs: a trend needs a number"),
        (TREND | {"direction": "equal"}, "direction=equal needs a difference of means: a trend has none"),
        ({"metric": "lost", "scale": "log"}, "scale=log needs a difference of means: metric=lost, a label"),
        ({"metric": "lost", "contrast": {"of": "wide"}}, "metric=lost compares two arms: contrast.minus is missing"),
        (ENTROPY | {"direction": "equal"}, "direction=equal needs a margin: within what?"),
        ({"direction": "equal", "margin": 0.0}, "margin=0.0 is not allowed"),
        ({"direction": "equal", "beyond": 0.1}, "beyond=0.1 is not allowed with direction=equal: use margin"),
        ({"scale": "log", "beyond": 0.5}, "beyond=0.5 is not allowed with scale=log: it is a factor"),
        ({"scale": "log", "margin": 0.9}, "margin=0.9 is not allowed with scale=log"),
        ({"scale": "log", "contrast": {"of": "wide"}}, "scale=log compares two arms: contrast.minus is missing"),
        ({"scale": "logit"}, "scale=logit is not allowed: it must be linear | log"),
        ({"contrast": {"of": "wide", "minus": "wide"}}, "compares wide with itself"),
        ({"budget": "steps"}, "budget=steps is not allowed: it must be rollouts | updates"),
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
def test_what_does_not_fit_together_is_refused_in_one_sentence(claim, said):
    (sentence,) = refusals(claim)
    assert said in sentence


def test_required_keys_are_named():
    for key in ("direction", "budget", "says"):
        assert any(
            f"hypotheses.0.{key} is missing" in text
            for text in refusals({}, hypotheses=[{name: value for name, value in CLAIM.items() if name != key}])
        )


def test_a_contrast_needs_seeds_that_both_arms_share():
    skip = [{"clip": "wide", "task": "addition"}, {"clip": "narrow", "task": "sorting"}]
    (sentence,) = refusals({}, skip=skip)
    assert "no seed is shared: wide and narrow are never planned together" in sentence
    (sentence,) = refusals({"where": {"task": "addition"}}, skip=skip[:1])
    assert "no seed is shared" in sentence
    assert refusals({}, skip=skip[:1]) == []


@pytest.mark.parametrize("looks", [[5, 10], [1], [], [10, 5]])
def test_looks_are_one_number_or_the_four_that_have_levels(looks):
    (sentence,) = refusals({}, looks=looks)
    assert f"looks={looks} is not allowed: one number from 2 on, or [5, 10, 15, 20]" in sentence
    assert study({}, looks=[7]).looks == [7]


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
def test_the_budget_is_checked_against_the_cells(budget, changes, said):
    claim = {"contrast": {"of": "often", "minus": "once"}, "budget": budget}
    asked = study(claim, **changes)
    if said is None:
        assert len(expand(asked, Composer()).cells) == 10
        return
    with pytest.raises(RequestError, match=f"hypothesis H: budget={budget} does not hold: .*{said}"):
        expand(asked, Composer())


def test_the_budget_of_a_range_counts_every_level():
    factors = {"clip": CLIPS, "length": {"short": ["rollout_steps=5"], "long": ["rollout_steps=9"]}}
    assert len(expand(study({}, factors=factors), Composer()).cells) == 30
    with pytest.raises(RequestError, match="budget=rollouts does not hold"):
        expand(study({"range_over": "length"}, factors=factors), Composer())
