"""Verdicts where values are few, tied, infinite or missing, and where a plan has changed since it was registered."""

import dataclasses
import json

import numpy as np
import pytest
from report_results import write_study
from scipy import stats

from grpolab.report import claims, questions
from grpolab.report.claims import decide
from grpolab.report.load import load
from grpolab.report.questions import Question
from grpolab.report.statistics.looks import LOOKS

RNG = np.random.default_rng(0)
CENTRED = stats.zscore([-1.2, -0.4, 0.1, 0.5, 1.0], ddof=1)
HYPOTHESIS = {
    **{"id": "H", "says": "It is more.", "source": "invented", "metric": "final_score", "budget": "rollouts"},
    **{"contrast": {"of": "a", "minus": "b"}, "trend": None, "range_over": None, "where": {}, "provided": None},
    **{"direction": "greater", "scale": "linear", "beyond": 0, "margin": None, "by_construction": False},
}


def question(of, minus=None, margin=1.0, looks=LOOKS, **hypothesis):
    """What decides a hypothesis, from the values of its two arms; (S,) or (S, T)."""
    of = np.asarray(of, dtype=float)
    minus = np.zeros_like(of) if minus is None else np.asarray(minus, dtype=float)
    values_STA = np.stack([of, minus], axis=-1).reshape(len(of), -1, 2)
    tasks = [f"task{t}" for t in range(values_STA.shape[1])]
    values = (["a", "b"], values_STA, np.full(len(tasks), margin), looks)
    return Question("s", HYPOTHESIS | hypothesis, "", tasks, *values, family="s", label="exploratory")


def decided(*asked):
    return claims._decide_together(asked)


def test_ties_do_not_turn_a_difference_around():
    ties = np.random.default_rng(0).permutation(np.repeat([0.0, 1.0], [11, 9]))
    (claim,) = decided(question(ties))
    assert (claim.verdict, claim.n, claim.p) == ("supported", 20, pytest.approx(2 / 2**9 / (7 / 16)))
    assert decided(question(-ties))[0].verdict == "opposite"


def test_a_share_that_is_0_in_one_arm_is_infinitely_smaller_and_counts():
    log = {"scale": "log", "direction": "less", "margin": np.log(1.1)}
    positive = RNG.uniform(1, 2, 20)
    always, half = np.zeros(20), np.where(np.arange(20) % 2, 0.5, 0.0)
    for of in (always, half):
        (claim,) = decided(question(of, positive, **log))
        assert (claim.verdict, claim.n) == ("supported", 10)  # 2 / 2**10; five signs decide nothing
    both_ways = question([[0.0, 1.0]] * 10, [[1.0, 0.0]] * 10, **log)
    assert [(claim.verdict, claim.n, claim.p) for claim in decided(both_ways)] == [("inconclusive", 10, 1.0)]


def test_rounding_is_no_spread():
    minus = np.array([0.31, 0.77, 0.013, 0.52, 1.9])
    assert len(np.unique(minus + 0.1 - minus)) == 4
    (claim,) = decided(question(minus + 0.1, minus))
    assert (claim.verdict, claim.p) == ("inconclusive", 1.0)
    large = np.array([1e9, *RNG.normal(1, 0.1, 4)])  # and one large value does not round the others away
    assert question(large).differences(5)[1:, 0] == pytest.approx(large[1:], rel=1e-9)


def test_an_equality_without_a_margin_is_void_and_few_values_refute_one_beyond_it(study):
    seeds = np.arange(20.0)
    for shift, verdict in ((0.5, "inconclusive"), (2, "opposite"), (-2, "opposite")):
        assert decided(question(seeds + shift, seeds, direction="equal"))[0].verdict == verdict
    gains_nothing = asked(study, direction="equal", contrast={"of": "no_clip", "minus": "symmetric"})
    assert gains_nothing.verdict == "void"
    assert "its baseline gains nothing" in gains_nothing.sentence


def test_a_direction_that_another_one_frees_is_no_negligible_difference():
    """Its repeated p lies above .05 / 2, and below .05, which it has once the first hypothesis is decided."""
    large, small = 5 + 0.1 * CENTRED, 0.4 + 0.064 * CENTRED
    alone, again = decided(question(small))[0], decided(question(large), question(small))[1]
    assert 0.025 < alone.p <= 0.05
    assert (again.verdict, again.p) == ("supported", alone.p)
    assert claims._run_tests(question(small), 5)[1] < 0.05  # the margin would have passed


def test_flags_speak_of_the_level_and_the_plan():
    def flags(*values, **more):
        return decided(question(values, **more))[0].flags

    open_ = 0.9 + 0.6 * CENTRED
    (alone,) = (flag for flag in flags(*open_, margin=0.1) if "would decide" in flag)
    void = [dataclasses.replace(question(RNG.normal(size=5)), void="x")] * 6
    (of_seven,) = (f for f in decided(question(open_, margin=0.1), *void)[0].flags if "would decide" in f)
    assert (alone[:8], of_seven[:8]) == ("10 seeds", "15 seeds")  # .05 / 7 takes longer
    assert not any("decide it" in flag for flag in flags(*open_, margin=0.1, looks=(5,)))
    labels = decided(question(np.ones(5), margin=np.nan, metric="lost", looks=(5,)))[0]
    early = "decided at five seeds: the estimate is probably too large"
    assert (labels.verdict, labels.flags) == ("supported", (early,))


def test_a_difference_that_is_real_says_how_it_stands_to_the_margin_before_its_verdict():
    def found(*values, **more):
        return decided(question(*values, **more))[0].found

    assert found(0.9 + 0.05 * CENTRED) == "supported"  # its interval reaches beyond the margin
    assert found(0.5 + 0.02 * CENTRED) == "smaller than the margin, and real (supported)"
    equal = {"direction": "equal", "looks": (5,)}
    assert found(0.3 + 0.02 * CENTRED, **equal) == "smaller than the margin, and real (supported)"
    assert found(0.9 + 0.2 * CENTRED, **equal) == "real, and not shown to be smaller than the margin (inconclusive)"
    assert found(0.0 + 0.2 * CENTRED, **equal) == "supported"
    two = np.stack([0.2 + 0.1 * CENTRED, 1.0 + 0.1 * np.roll(CENTRED, 1)], axis=1)
    inside, *tasks = found(two, **equal).split(" (inconclusive: ")
    assert inside == "in the mean over tasks smaller than the margin, and real"
    assert tasks == ["inside the margin on task0, not shown on task1)"]
    shy = found(0.3 + 0.2236 * CENTRED, looks=(5,))  # t = 3: no direction; inside the margin at twice the level
    assert shy == "smaller than the margin, and perhaps not 0 (negligible)"


def test_a_flag_says_what_a_verdict_is_not():
    (less,) = decided(question(0.5 + 0.8 * CENTRED, beyond=3.0, looks=(5,)))
    assert (less.verdict, less.high > 0) == ("opposite", True)
    assert "less than claimed, and not shown to be the other way round" in less.flags
    (other_way,) = decided(question(-2 + 0.1 * CENTRED, beyond=3.0, looks=(5,)))
    assert other_way.verdict == "opposite"
    assert "less than claimed, and not shown to be the other way round" not in other_way.flags


# ----------------------------------------------------------------------------------------------------------------------
# From plans.


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two arms, one task, eight seeds; `no_clip` loses accuracy."""
    factors = {"clip": ["no_clip", "symmetric"], "task": ["addition"], "regime": ["stressed"]}
    return load(write_study(tmp_path_factory.mktemp("edges"), factors=factors, seeds=8), "clip_range")[-1]


def asked(study, entry=None, **hypothesis):
    """The one claim of a hypothesis of the study, as registered."""
    hypothesis = HYPOTHESIS | {"contrast": {"of": "no_clip", "minus": "symmetric"}} | hypothesis
    plan = study.plan | {"hypotheses": [hypothesis], "looks": list(LOOKS), "registered": {"H": entry} if entry else {}}
    (claim,) = decide([dataclasses.replace(study, plan=plan)])
    return claim


def entry(*others, seeds=range(8)):
    line = json.dumps({"hypotheses": dict.fromkeys(["H", *others], "0123456789abcdef")})
    return {"line": line, "seeds": list(seeds), "looks": list(LOOKS), "margins": {"stressed/addition": 0.05}}


def test_a_score_of_fewer_than_three_evaluations_is_marked(study):
    whole = len(study.of_cell("evaluations", next(study.done.itertuples()))["rollout_step"])
    for share, note in ((1 / whole, "the last evaluation alone"), (2 / whole, "the mean of the last 2"), (1, None)):
        short = dataclasses.replace(study, plan={**study.plan, "stability": {"score_tail": share}})
        said = asked(short).sentence
        assert f"; a score is {note}, of {whole}" in said if note else "a score is" not in said
    assert "a score is" not in asked(study, metric="drawdown").sentence


def test_hypotheses_that_were_taken_back_still_count(study):
    alone, one_of_three = asked(study, entry()), asked(study, entry("H2", "H3"))
    assert one_of_three.adjusted_p == pytest.approx(3 * alone.adjusted_p)
    assert one_of_three.low < alone.low < alone.high < one_of_three.high


def test_later_seeds_do_not_void_what_is_decided(study, monkeypatch):
    condition = {"metric": "clip/active", "of": "symmetric", "above": 0.01}
    before = asked(study, entry(), provided=condition)
    assert (before.verdict, before.n) == ("opposite", 5)
    by_cell = questions.by_cell

    def fallen(study, metric):
        values = by_cell(study, metric)
        return values.where(study.cells["seed"] < 5, -100.0) if metric == "clip/active" else values

    monkeypatch.setattr(questions, "by_cell", fallen)
    assert asked(study, entry(), provided=condition).verdict == "opposite"


def test_a_registered_seed_without_a_value_is_named_and_seeds_that_are_not_planned_wait(study):
    waits = asked(study, entry(), metric="entropy_slope", scale="log")  # negative: without a logarithm
    assert (waits.verdict, waits.n) == ("inconclusive", 0)
    assert "seed 0 has no value of it, and no look goes past a seed" in waits.sentence
    later = asked(study, entry(seeds=range(1000, 1020)))
    assert (later.verdict, later.n, later.seeds) == ("not run", 0, 0)
    assert "negligible" not in later.sentence


def test_a_seed_counts_once_its_condition_can_be_read(study):
    """The condition's arm has run on six seeds of eight: a look at eight waits."""
    cells = study.cells.copy()
    cells.loc[(cells["arm"] == "symmetric") & (cells["seed"] > 5), "arm"] = "elsewhere"
    condition = {"metric": "clip/active", "of": "symmetric", "above": 0.01}
    alone = {"contrast": {"of": "no_clip", "minus": None}, "margin": 0.1}
    seeds = {}
    for provided in (None, condition):
        seeds[bool(provided)] = asked(dataclasses.replace(study, cells=cells), provided=provided, **alone).seeds
    assert seeds == {False: 8, True: 6}


def test_tasks_themselves_can_be_compared(tmp_path):
    tasks = write_study(tmp_path, "lengths", {"task": ["addition", "sorting"], "range": ["r"]}, seeds=8)
    (study,) = load(tasks, "lengths")
    claim = asked(study, contrast={"of": "addition", "minus": "sorting"}, margin=0.1)
    assert (claim.n > 0, [task.task for task in claim.tasks]) == (True, ["all tasks"])
