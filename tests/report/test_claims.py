"""Hypotheses are decided over all their tasks, at planned looks; no run is left out unsaid, and words agree."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from report_results import FACTORS, HYPOTHESES, cells_of, change, rewrite, write_run, write_study
from scipy import stats

from grpolab.errors import RequestError
from grpolab.paths import Results
from grpolab.report import measures
from grpolab.report.claims import Claim, _decide_together, decide
from grpolab.report.load import StudyRuns, load, read_all, study_of
from grpolab.report.questions import margins
from grpolab.report.text import number, signed
from grpolab.sweep.plan import plans
from grpolab.vocabulary import MARGIN_FACTOR, MARGIN_OF_GAIN

ARMS = FACTORS["clip"]
RNG = np.random.default_rng(0)
TASKS = ["addition", "sorting"]
TWO_ARMS = {"clip": ["symmetric", "no_clip"], "task": ["addition"]}
LINE = json.dumps({"hypotheses": {"H0": "?"}})
LOWER, HIGHER, EQUAL = {"direction": "less"}, {"direction": "greater"}, {"direction": "equal"}
TREND = {"contrast": None, "trend": ARMS, "direction": "greater"}


def asking(study: StudyRuns, *changes: dict, **plan: object) -> list[Claim]:
    """The claims of a study, had it these hypotheses."""
    hypotheses = [HYPOTHESES[0] | {"id": f"H{n}"} | change for n, change in enumerate(changes)]
    return decide([dataclasses.replace(study, plan=study.plan | {"hypotheses": hypotheses} | plan)])


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Three arms, two tasks, ten seeds."""
    results = write_study(tmp_path_factory.mktemp("two"), factors={"clip": ARMS, "task": TASKS}, seeds=10)
    return load(results, "clip_range")[-1]


@pytest.fixture
def claimed(study, monkeypatch):
    """The claims of hypotheses about a metric whose value in each arm is given by seed, the same in both tasks or not.

    The baseline's gain is 1 in each task, so that a margin is MARGIN_OF_GAIN.
    """

    def claim(values, *changes, **plan):
        series = {
            (task, arm): pd.Series(np.asarray(of[task] if isinstance(of, dict) else of, dtype=float))
            for arm, of in values.items()
            for task in TASKS
        }
        ones = {(task, arm): pd.Series(np.ones(10)) for task in TASKS for arm in ARMS}
        metric, gain = (pd.concat(of, names=["facet", "arm", "seed"]) for of in (series, ones))
        monkeypatch.setattr(measures, "measure", lambda _study, name: gain if name == "gain" else metric)
        return asking(study, *(changes or ({},)), **plan)

    return claim


def shifted(effect: float, sd: float = 0.05, seeds: int = 10) -> dict[str, np.ndarray]:
    """Values of two arms whose difference has exactly this mean and deviation, whatever the first seeds are."""
    noise = stats.zscore(np.random.default_rng(1).normal(size=seeds), ddof=1)
    return {"no_clip": effect + sd * noise, "symmetric": np.zeros(seeds)}


LOW, SAME, WIDE = shifted(-1.0), shifted(0.01, 0.03), shifted(0.1, 1.0)


@pytest.mark.parametrize(
    ("values", "hypothesis", "verdict"),
    [
        *((LOW, LOWER, "supported"), (LOW, HIGHER, "opposite"), (LOW, EQUAL, "opposite")),
        *((SAME, LOWER, "negligible"), (SAME, HIGHER, "negligible"), (SAME, EQUAL, "supported")),
        *((WIDE, LOWER, "inconclusive"), (WIDE, EQUAL, "inconclusive")),
        *((LOW, LOWER | {"beyond": 0.5}, "supported"), (LOW, LOWER | {"beyond": 1.5}, "opposite")),
        (SAME, LOWER | {"margin": 0.001}, "inconclusive"),
    ],
)
def test_four_verdicts_by_direction_and_margin(claimed, values, hypothesis, verdict):
    assert claimed(values, hypothesis)[0].verdict == verdict


def test_the_unit_is_the_seed_and_the_tasks_are_one_question(claimed):
    values = {"no_clip": {"addition": RNG.normal(1, 0.1, 10), "sorting": RNG.normal(1.1, 0.1, 10)}}
    (claim,) = claimed(values | {"symmetric": np.zeros(10)}, HIGHER)
    y_S = (values["no_clip"]["addition"] + values["no_clip"]["sorting"])[: claim.n] / 2 / MARGIN_OF_GAIN
    assert (claim.n, claim.seeds) == (5, 10)
    assert claim.effect == pytest.approx(y_S.mean())
    reach = stats.t.isf(0.05 / 16 / 2, 2.5) * stats.sem(y_S)
    assert (claim.low, claim.high) == pytest.approx((y_S.mean() - reach, y_S.mean() + reach))
    assert claim.margin_sds == pytest.approx(1 / y_S.std(ddof=1))
    assert [task.task for task in claim.tasks] == TASKS
    assert claim.tasks[1].effect == pytest.approx(values["no_clip"]["sorting"][:5].mean())
    assert "at all 10 seeds" in claim.sentence


def test_where_tasks_disagree_they_lead_and_each_has_to_be_inside_its_margin(claimed):
    noise = RNG.normal(0, 0.02, (2, 10))

    def with_tasks(addition, sorting, hypothesis):
        tasks = {"addition": addition + noise[0], "sorting": sorting + noise[1]}
        return claimed({"no_clip": tasks, "symmetric": np.zeros(10)}, hypothesis)[0]

    small = "smaller than the margin, and real on addition, sorting (supported)"
    assert with_tasks(0.11, -0.11, EQUAL).found == small
    claim = with_tasks(0.16, -0.11, EQUAL)
    assert claim.disagreement < 0.001
    assert claim.verdict == "inconclusive"  # the mean is inside the margin
    assert claim.found.endswith("inconclusive: inside the margin on sorting, not shown on addition)")
    assert claim.short.startswith("accuracy `symmetric` -> `no_clip`: addition 0.000 -> 0.1")
    assert "; the tasks disagree, together +0.0" in claim.short
    assert "of the baseline's gain" not in claim.short, "no mean speaks for them"
    claim = with_tasks(0.5, 0.0, HIGHER)
    assert (claim.verdict, claim.found) == ("supported", "supported on addition, not shown on sorting")
    assert claim.sentence.startswith("H0 is supported on addition, not shown on sorting (exploratory)")
    assert with_tasks(0.5, 0.2, LOWER).found == "opposite on each task, by different amounts"
    assert with_tasks(0.5, -0.2, HIGHER).found == "supported on addition, the other way on sorting"
    assert with_tasks(0.2, noise[1] * 7, EQUAL).verdict != "supported"  # one task is beyond its margin


def test_a_study_with_a_regime_is_asked_in_each_unless_where_says_one(tmp_path):
    loaded = load(write_study(tmp_path, seeds=5), "clip_range")[-1]
    assert [claim.where for claim in asking(loaded, {})] == ["healthy", "stressed"]
    (stressed,) = asking(loaded, {"where": {"regime": "stressed"}})
    assert stressed.verdict == "supported"
    assert stressed.tasks[0].effect == pytest.approx(-0.35, abs=0.05)
    with pytest.raises(RequestError, match=r"metric=final_scor .*did you mean final_score"):
        asking(loaded, {"metric": "final_scor"})


def test_an_effect_says_accuracies_first_and_a_share_of_its_own_seeds_gain(study):
    (claim,) = asking(study, {})
    of, base, gain = (
        measures.measure(study, metric).unstack("arm")[arm].unstack("facet").iloc[: claim.n].mean()
        for metric, arm in (("final_score", "no_clip"), ("final_score", "symmetric"), ("gain", "symmetric"))
    )
    ends = [f"{task} {base[task]:.3f} -> {of[task]:.3f}" for task in TASKS]  # invented arms begin apart: no start
    share = round(100 * ((of - base) / gain).mean())
    assert claim.short.startswith(f"accuracy `symmetric` -> `no_clip`: {', '.join(ends)}; together ")
    assert claim.short.endswith(f"], {share:+d}% of the baseline's gain")
    (other,) = asking(study, {"contrast": {"of": "symmetric", "minus": "no_clip"}})
    assert other.short.endswith(f"], {-share:+d}% of `symmetric`'s gain"), "of the arm whose gain it is"
    gains = measures.measure(study, "gain")
    weights = np.array([1 / measures.at(gains, task, "symmetric").iloc[:5].mean() for task in TASKS])
    together = (of - base) @ weights / weights.sum()
    assert f"together {signed(together)} [" in claim.short, "points, weighted as it is decided"


def test_arms_that_are_scored_at_different_parts_of_their_runs_say_so(study):
    """A run with fewer evaluations has its last ones, and so its score, later."""
    tail = {"stability": {"score_tail": 0.4}}
    (claim,) = asking(study, {}, **tail)
    assert "scored at" not in claim.short
    frame = study.evaluations
    left = frame[(frame["arm"] != "no_clip") | (frame["facet"] != "sorting") | (frame["rollout_step"] % 12 == 0)]
    (claim,) = asking(dataclasses.replace(study, evaluations=left), {}, **tail)
    assert claim.short.endswith("; scored at 100% of a run of `no_clip`, 88% of a run of `symmetric` on sorting")


def test_no_share_is_said_of_a_gain_that_may_be_nothing_and_the_start_where_arms_share_it(study, monkeypatch):
    real, noise = measures.measure, np.random.default_rng(5).normal(0, 1, 200)
    made = {"start": lambda values: values * 0 + 0.25, "gain": lambda values: values * 0 + noise[: len(values)]}
    same = {metric: lambda values: values for metric in ("final_score", "mean_score")}
    monkeypatch.setattr(measures, "measure", lambda of, metric: (same | made)[metric](real(of, metric)))
    (claim,) = asking(study, {"margin": 0.05})
    assert "of the baseline's gain" not in claim.short
    assert claim.short.count("(start 0.250)") == 2


def test_a_look_that_stops_at_a_seed_which_was_not_asked_of_every_arm_says_so(study):
    entry = {"seeds": list(range(10)), "looks": [5, 10, 15, 20], "margins": {}, "line": LINE}
    asked = study.cells[(study.cells["seed"] < 5) | (study.cells["arm"] == "symmetric")]
    (claim,) = asking(dataclasses.replace(study, cells=asked), {}, registered={"H0": entry})
    assert "; the plan stopped before seed 5: not every arm was asked for" in claim.sentence
    assert "has no value of it" not in claim.sentence


def test_the_margin_of_a_score_is_a_share_of_the_baselines_gain(study):
    gain = measures.by_cell(study, "gain")[study.cells["arm"] == "symmetric"].groupby(study.cells["setting/task"])
    made = {
        name: margins(study, HYPOTHESES[0] | changes)
        for name, changes in {
            "score": {},
            "fixed": {"margin": 0.2},
            "factor": {"metric": "kl_old", "scale": "log"},
            "none": {"metric": "kl_old"},
        }.items()
    }
    assert made["score"] == pytest.approx((MARGIN_OF_GAIN * gain.mean()).to_dict())
    assert made["fixed"] == dict.fromkeys(TASKS, 0.2)
    assert made["factor"] == pytest.approx(dict.fromkeys(TASKS, np.log(MARGIN_FACTOR)))
    assert np.isnan(list(made["none"].values())).all()


def test_holms_family_is_the_study_and_what_is_decided_makes_room(claimed):
    borderline = shifted(0.3, 0.2)
    (alone,) = claimed(borderline, HIGHER)
    assert alone.verdict == "supported"
    (first, *_others) = claimed(borderline, *[HIGHER | {"where": {}}] * 8)
    assert first.verdict == "inconclusive"
    assert first.adjusted_p == pytest.approx(8 * first.p)
    assert alone.q == pytest.approx(alone.p)


def test_no_look_before_five_seeds_and_none_is_skipped_over_a_gap(claimed):
    short = {"no_clip": [1.0, 1.1, 0.9, 1.05], "symmetric": np.zeros(4)}
    (claim,) = claimed(short, HIGHER)
    assert (claim.verdict, claim.n, claim.seeds) == ("inconclusive", 0, 4)
    assert "4 of the 5 seeds of the first look" in claim.sentence
    assert claimed(short, HIGHER, looks=[4])[0].verdict == "supported"
    entry = {"seeds": list(range(10)), "looks": [5], "margins": dict.fromkeys(TASKS), "line": LINE}
    gap = {"no_clip": [1.0, 1.1, np.nan, 1.0, 0.9, 1.2, 1.05, 1.0, 1.1, 1.0], "symmetric": np.zeros(10)}
    (registered,), (other,) = claimed(gap, HIGHER, registered={"H0": entry}), claimed(gap, HIGHER)
    assert [(claim.n, claim.seeds) for claim in (registered, other)] == [(0, 2), (5, 9)]
    assert "1 seed without a value of it" in other.sentence


def test_what_is_registered_is_decided_by_its_seeds_margins_and_looks(claimed):
    later = [0.01, -0.012, 0.011, -0.009, 0.002]
    values = {"no_clip": np.r_[np.full(5, 9.0) + RNG.normal(0, 0.1, 5), later], "symmetric": np.zeros(10)}
    entry = {"seeds": [5, 6, 7, 8, 9], "looks": [5], "margins": dict.fromkeys(TASKS, 0.1), "line": LINE}
    registered, other = claimed(values, HIGHER, HIGHER, registered={"H0": entry})
    assert (registered.verdict, registered.n) == ("negligible", 5)
    assert other.verdict == "supported", "by all seeds at hand, as a family of its own"
    assert other.adjusted_p == pytest.approx(other.p)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_factor_is_tested_on_its_logarithm_and_shown_as_one(claimed, sign):
    of, minus = RNG.lognormal(sign * 1.5, 0.1, 10), RNG.lognormal(0, 0.1, 10)
    factor = (HIGHER if sign > 0 else LOWER) | {"scale": "log"}

    def with_factor(**changes):
        return claimed({"no_clip": of, "symmetric": minus}, factor | changes)[0]

    claim, mean = with_factor(), stats.gmean(of[:5] / minus[:5])
    assert (claim.verdict, claim.contrast) == ("supported", "no_clip / symmetric")
    assert claim.tasks[0].effect == pytest.approx(mean)
    assert claim.short.startswith(f"×{number(mean)}")
    assert claim.effect == pytest.approx(np.log(mean) / np.log(MARGIN_FACTOR))
    assert [with_factor(beyond=beyond).verdict for beyond in (2.0, 9.0)] == ["supported", "opposite"]


def test_a_negative_number_has_no_ratio(claimed):
    values = {"no_clip": [-1.0] + [1.0] * 9, "symmetric": [2.0] * 10}
    assert claimed(values, LOWER | {"scale": "log"})[0].seeds == 9


def test_few_different_values_take_no_t_test(claimed):
    (claim,) = claimed({"no_clip": [1.0] * 5 + [2.0] * 5, "symmetric": np.zeros(10)}, HIGHER, looks=[10])
    assert claim.p == 2 / 2**10
    assert np.isnan(claim.low)


def test_one_arm_is_tested_against_zero(claimed):
    values = RNG.normal(1, 0.1, 10)
    alone = {"contrast": {"of": "no_clip", "minus": None}, "direction": "greater", "beyond": 0.2, "margin": 0.1}
    (claim,) = claimed({"no_clip": values}, alone, looks=[10])
    assert claim.p == pytest.approx(2 * stats.t.sf((values.mean() - 0.2) / stats.sem(values), 5))
    assert claim.contrast == "no_clip"


def test_a_trend_is_pages_with_a_block_for_each_seed_and_task(claimed):
    values = dict(zip(ARMS, (RNG.normal(0, 0.4, (10, 3)) + np.arange(3)).T, strict=True))
    (claim,) = claimed(values, TREND, looks=[10])
    assert (claim.verdict, claim.p < 0.001) == ("supported", True)
    assert claimed(values, TREND | LOWER)[0].verdict == "opposite"
    assert "Kendall's tau of `final_score` over symmetric, clip_higher, no_clip is +" in claim.sentence


def test_labels_are_counted_within_tasks(claimed):
    more = {"metric": "lost", "direction": "greater"}
    (claim,) = claimed({"no_clip": np.ones(10), "symmetric": np.zeros(10)}, more, looks=[5])
    assert claim.short == "10 of 10 runs against 0 of 10"
    assert (claim.verdict, claim.p) == (
        "supported",
        pytest.approx(2 / 252),
    )  # 10 choose 5: a seed's tasks move together
    (none,) = claimed({"no_clip": np.zeros(10), "symmetric": np.zeros(10)}, more)
    assert (none.verdict, none.short) == ("inconclusive", "0 of 20 runs against 0 of 20")  # a rare label may still come
    # `--until-decided` goes on after seeds without any lost run.
    rare = {"no_clip": np.repeat([0.0, 1.0], [2, 8]), "symmetric": np.zeros(10)}
    parts = [{arm: values[:n] for arm, values in rare.items()} for n in (2, 10)]
    assert [claimed(part, more, looks=[2, 10])[0].verdict for part in parts] == ["inconclusive", "supported"]


def test_identical_arms_are_void_and_still_count_in_the_family(claimed):
    same = {"no_clip": np.arange(10.0), "symmetric": np.arange(10.0)}
    (void,) = claimed(same, LOWER)
    assert (void.verdict, void.n) == ("void", 0)
    assert "(5 of the 5 seeds of the first look, addition, sorting)" in void.sentence
    assert void.sentence.endswith("; its arms have one value in each of 5 seeds.")
    later = {"no_clip": np.arange(10.0), "symmetric": np.arange(10.0) * (np.arange(10) < 5)}
    assert claimed(later, LOWER)[0].verdict == "void"  # what the first look found stays
    values = shifted(0.3, 0.2) | {"clip_higher": np.zeros(10)}
    pair = {"contrast": {"of": "clip_higher", "minus": "symmetric"}}
    alone, beside = claimed(values, HIGHER)[0], claimed(values, HIGHER, *[HIGHER | pair] * 7)[0]
    assert (alone.verdict, beside.verdict) == ("supported", "inconclusive")


def test_a_condition_that_fails_in_a_task_makes_it_void(claimed):
    values = {"no_clip": RNG.normal(1, 0.1, 10), "symmetric": np.zeros(10)}
    condition = {"metric": "clip/active", "of": "no_clip", "above": 0.5}
    assert claimed(values, HIGHER | {"provided": condition})[0].verdict == "supported"
    (void,) = claimed(values, HIGHER | {"provided": condition | {"above": 1.5}})
    assert void.verdict == "void"
    assert "its condition fails in addition: `clip/active` of no_clip is" in void.sentence


@pytest.mark.parametrize(
    ("values", "hypothesis", "flag"),
    [
        (shifted(-1.0), LOWER, "decided at five seeds: the estimate is probably too large"),
        (shifted(0.1, 1.0), HIGHER, "20 seeds would not decide it"),
        ({"no_clip": RNG.exponential(1, 10) ** 3, "symmetric": np.zeros(10)}, HIGHER, "skewed"),
    ],
)
def test_flags_warn_and_change_nothing(claimed, values, hypothesis, flag):
    looks = {"looks": [10]} if flag == "skewed" else {}
    assert any(text.startswith(flag) for text in claimed(values, hypothesis, **looks)[0].flags)


def test_what_holds_by_construction_is_a_check_and_no_finding(claimed):
    check = HIGHER | {"by_construction": True}
    held, asked = claimed(shifted(1.0), check, HIGHER)
    assert (held.verdict, held.label, held.is_finding) == ("holds", "check", False)
    assert asked.adjusted_p == pytest.approx(asked.p), "it is in no family"
    assert "as claimed in 20 of 20 pairs of a seed and a task" in held.sentence
    assert claimed(shifted(0.01, 1.0), check)[0].verdict == "fails"
    values = {arm: np.arange(10.0) + n for n, arm in enumerate(ARMS)}
    assert claimed(values, TREND | {"by_construction": True})[0].verdict == "holds"


def test_a_collection_decides_its_primary_hypotheses_and_describes_the_others(study):
    hypotheses = [HYPOTHESES[0], HYPOTHESES[0] | {"id": "other"}]
    part = dataclasses.replace(study, plan=study.plan | {"hypotheses": hypotheses})
    whole_plan = {"study": "all", "hypotheses": [], "placebo": [], "primary": ["clip_range.H6"], "looks": [5]}
    primary, other = decide([part, dataclasses.replace(study, plan=whole_plan, cells=study.cells[:0])])
    assert (primary.is_finding, primary.n, np.isnan(primary.p)) == (True, 5, False)
    assert (other.verdict, other.is_finding, other.n, np.isnan(other.p)) == ("described", False, 10, True)


def placebo_study(tmp_path):
    """Two arms of three seeds whose runs have the same journals and weights; its results, and the last run."""
    results = write_study(tmp_path, "placebo", {"form": ["a", "b"], "task": ["addition"]}, placebo=[["a", "b"]])
    folders = [results.run(cell["signature"]) for cell in cells_of(results, "placebo")]
    for first, second in zip(folders[:3], folders[3:], strict=True):
        (second / "journal.jsonl").write_bytes((first / "journal.jsonl").read_bytes())
        hashes = json.loads((first / "outcome.json").read_text())
        change(second / "outcome.json", **{key: hashes[key] for key in ("journal_sha256", "policy_sha256")})
    return results, folders[-1]


def test_placebo_arms_are_compared_by_their_bits(tmp_path):
    results, last = placebo_study(tmp_path)
    (claim,) = decide(load(results, "placebo"))
    assert claim.verdict == "holds"
    assert "bit-identical (whole journal and final weights) in 3 of 3 planned pairs" in claim.sentence
    change(last / "outcome.json", policy_sha256="another")
    (claim,) = decide(load(results, "placebo"))
    assert (claim.verdict, "addition seed 2" in claim.sentence) == ("fails", True)
    another = {"cpu": "another", "cpu_capability": "AVX2", "mkl": "2024", "float32": "0" * 8}
    change(last / "provenance.json", hardware=another)
    (claim,) = decide(load(results, "placebo"))
    assert (claim.verdict, claim.is_finding) == ("not run", False)  # a check, so no hypothesis that is open
    assert claim.sentence.endswith("in 2 of 3 planned pairs; 1 pair of two kinds of CPU cannot be compared.")
    (last / "outcome.json").unlink()
    assert decide(load(results, "placebo"))[0].verdict == "not run"


def test_placebo_dialects_are_compared_by_their_weights(tmp_path):
    """Their journals have other names: each its framework's."""
    results, last = placebo_study(tmp_path)
    cells = cells_of(results, "placebo")
    for cell in cells:
        cell["settings"]["framework"] = {"a": None, "b": "roll"}[cell["levels"]["form"]]
    change(results.plan("placebo"), cells=cells)
    journal = last / "journal.jsonl"
    rewrite(journal, journal.read_text() + journal.read_text().splitlines(keepends=True)[-1])
    (claim,) = decide(load(results, "placebo"))
    assert claim.verdict == "holds"
    assert "bit-identical (final weights) in 3 of 3 planned pairs" in claim.sentence
    change(last / "outcome.json", policy_sha256="another")
    assert decide(load(results, "placebo"))[0].verdict == "fails"


def test_a_range_is_taken_over_a_factor_and_not_where_a_level_is_missing(tmp_path, monkeypatch):
    factors = {"clip": ["symmetric", "no_clip"], "task": ["addition"], "grid": ["r1", "r2", "r3"]}
    loaded = load(write_study(tmp_path, factors=factors, seeds=6), "clip_range")[-1]
    base = loaded.done.set_index(["facet", "arm", "seed"]).index
    wide = {"no_clip": [0.0, 0.5, 1.0], "symmetric": [0.1, 0.2, 0.1]}
    values = pd.Series(
        [wide[arm][int(facet[-1]) - 1] + 0.01 * seed * (facet[-1] == "2") for facet, arm, seed in base], index=base
    )
    monkeypatch.setattr(measures, "measure", lambda _study, _metric: values)
    (claim,) = asking(loaded, {"direction": "greater", "range_over": "grid", "margin": 0.01})
    assert claim.where == ""
    assert claim.tasks[0].effect == pytest.approx(1 - 0.1 - 0.02)
    assert "the range over grid of `final_score` of no_clip - symmetric" in claim.sentence
    values[("addition/r3", "no_clip", 2)] = np.nan
    (gap,) = asking(loaded, {"direction": "greater", "range_over": "grid", "margin": 0.01})
    assert (gap.seeds, "1 seed without a value of it" in gap.sentence) == (5, True)


def test_a_seed_whose_warm_start_did_not_take_counts_and_is_named(tmp_path):
    results = write_study(tmp_path, factors=TWO_ARMS, seeds=6)
    for cell in cells_of(results):
        if cell["seed"] == 4:
            change(results.run(cell["signature"]) / "provenance.json", warm_start={"signature": "w", "accuracy": 0.01})
    (claim,) = asking(load(results, "clip_range")[-1], {})
    assert claim.seeds == 6
    said = (
        "; warm starts that stayed low: seed 4 in addition came to accuracy 0.010 on training prompts, the median"
        " seed's 0.300"
    )
    assert said in claim.sentence
    assert claim.sentence.count("came to accuracy") == 1
    cells = [cell | {"settings": cell["settings"] | {"warm_start_target": 0.5}} for cell in cells_of(results)]
    change(results.plan("clip_range"), cells=cells)
    (claim,) = asking(load(results, "clip_range")[-1], {})
    assert claim.flags[0].count("came to accuracy 0.300 on training prompts, its target 0.5") == 5


def test_a_question_that_was_registered_before_spends_from_the_same_error(tmp_path):
    results = write_study(tmp_path, factors=TWO_ARMS, seeds=6)
    (first,) = asking(load(results, "clip_range")[-1], {})
    apart = dataclasses.replace(first.question, values_STA=first.question.values_STA + np.array([0.0, 0.5]))
    made = [_decide_together([dataclasses.replace(apart, earlier=earlier)])[0] for earlier in (0, 1, 50)]
    assert (made[0].verdict, made[2].verdict) == ("supported", "inconclusive")
    assert made[1].adjusted_p == pytest.approx(2 * made[0].adjusted_p)
    assert made[1].low < made[0].low < made[0].high < made[1].high, "the interval is that of the decision"
    assert "registered once before: decided at 0.05/2" in made[1].flags


def test_a_diverged_run_counts_as_far_as_it_came(tmp_path):
    results = write_study(tmp_path, factors=TWO_ARMS, seeds=6)
    for cell in cells_of(results):
        if cell["levels"]["clip"] == "no_clip" and cell["seed"] < 2:
            write_run(results, cell, outcome="diverged", last_step=6)
    others = ({"metric": metric, "direction": "greater"} for metric in ("grad_norm_max", "lost"))
    score, norm, lost = asking(load(results, "clip_range")[-1], {}, *others)
    assert score.seeds == 6  # the last finite evaluation is carried forward
    assert "; 2 runs that diverged counted as far as they came" in score.sentence
    assert norm.seeds == 6  # an infinite norm is a norm
    assert "2 of 5 runs against 0 of 5" in lost.sentence


def test_arms_that_choose_the_task_are_compared_over_all(tmp_path):
    """Lengths of answers are tasks of their own: no task has two of them."""
    results = Results.open(tmp_path / "results")
    (plan,) = plans("scale_length", seeds=[2010, 2011])
    study = study_of(results, plan.document("", None), read_all(results, [cell.signature for cell in plan.cells]))
    asked = [(claim.id, claim.where) for claim in decide([study])]
    ranges = {"T_ratio": "wide", "T_wide": "wide", "T_gspo": "gspo"}
    assert asked == [(name, f"{ranges[name]}/{size}") for name in ranges for size in ("0.13M", "1M")]


def test_a_place_without_the_baseline_is_decided_too(study):
    """Arms are compared where the study's baseline was not planned; nothing is said of its gain there."""
    planned = ~((study.tasks == "sorting") & (study.cells["arm"] == study.baseline))
    first, second = (arm for arm in ARMS if arm != study.baseline)
    asked = {"contrast": {"of": second, "minus": first}, "where": {"task": "sorting"}} | LOWER | {"margin": 0.02}
    (claim,) = asking(dataclasses.replace(study, cells=study.cells[planned]), asked)
    assert claim.n == 10
    assert f"`{first}` -> `{second}`" in claim.size
    assert "gain" not in claim.size
