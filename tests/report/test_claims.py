"""Hypotheses are decided over all their tasks, at planned looks; no run is left out unsaid, and words agree."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from report_results import FACTORS, HYPOTHESES, rewrite, write_run, write_study
from scipy import stats

from grpolab.errors import RequestError
from grpolab.paths import Results, write_json_atomic
from grpolab.report import claims, measures
from grpolab.report.claims import (
    DESCRIBED,
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    NEGLIGIBLE,
    NOT_RUN,
    OPPOSITE,
    SUPPORTED,
    VOID,
    Claim,
    decide,
)
from grpolab.report.load import StudyRuns, load, study_of
from grpolab.report.questions import margins
from grpolab.report.reference import read_all
from grpolab.report.statistics.looks import level_at
from grpolab.report.statistics.tests import rank_trend, sign_flip
from grpolab.report.text import number, signed
from grpolab.sweep.plan import plans
from grpolab.vocabulary import MARGIN_FACTOR, MARGIN_OF_GAIN

ARMS = FACTORS["clip"]
RNG = np.random.default_rng(0)
TASKS = ["addition", "sorting"]


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
        metric = pd.concat(series, names=["facet", "arm", "seed"])
        gain = pd.concat(
            {(task, arm): pd.Series(np.ones(10)) for task in TASKS for arm in ARMS}, names=["facet", "arm", "seed"]
        )
        monkeypatch.setattr(measures, "measure", lambda _study, name: gain if name == "gain" else metric)
        return asking(study, *(changes or ({},)), **plan)

    return claim


def shifted(effect: float, sd: float = 0.05, seeds: int = 10) -> dict[str, np.ndarray]:
    """Values of two arms whose difference has exactly this mean and deviation, whatever the first seeds are."""
    noise = np.random.default_rng(1).normal(size=seeds)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    return {"no_clip": effect + sd * noise, "symmetric": np.zeros(seeds)}


LINE = json.dumps({"hypotheses": {"H0": "?"}})
LOWER, HIGHER, EQUAL = {"direction": "less"}, {"direction": "greater"}, {"direction": "equal"}


def test_four_verdicts_by_direction_and_margin(claimed):
    low, same, wide = shifted(-1.0), shifted(0.01, 0.03), shifted(0.1, 1.0)
    assert [claim.verdict for claim in (*claimed(low, LOWER), *claimed(low, HIGHER))] == [SUPPORTED, OPPOSITE]
    assert [claimed(same, change)[0].verdict for change in (LOWER, HIGHER)] == [NEGLIGIBLE, NEGLIGIBLE]
    assert [claimed(values, EQUAL)[0].verdict for values in (same, low, wide)] == [SUPPORTED, OPPOSITE, INCONCLUSIVE]
    assert claimed(wide, LOWER)[0].verdict == INCONCLUSIVE
    assert claimed(low, LOWER | {"beyond": 0.5})[0].verdict == SUPPORTED
    assert claimed(low, LOWER | {"beyond": 1.5})[0].verdict == OPPOSITE
    assert claimed(same, LOWER | {"margin": 0.001})[0].verdict == INCONCLUSIVE


def test_the_unit_is_the_seed_and_the_tasks_are_one_question(claimed):
    values = {"no_clip": {"addition": RNG.normal(1, 0.3, 10), "sorting": RNG.normal(1.1, 0.3, 10)}}
    (claim,) = claimed(values | {"symmetric": np.zeros(10)}, HIGHER)
    y_S = (values["no_clip"]["addition"] + values["no_clip"]["sorting"])[: claim.n] / 2 / MARGIN_OF_GAIN
    assert (claim.n, claim.seeds) == (5, 10)
    assert claim.effect == pytest.approx(y_S.mean())
    reach = stats.t.isf(float(level_at(0.05, 0)) / 2, 4) * stats.sem(y_S)
    assert (claim.low, claim.high) == pytest.approx((y_S.mean() - reach, y_S.mean() + reach))
    assert claim.margin_sds == pytest.approx(1 / y_S.std(ddof=1))
    assert [task.task for task in claim.tasks] == TASKS
    assert claim.tasks[1].effect == pytest.approx(values["no_clip"]["sorting"][:5].mean())
    assert "at all 10 seeds" in claim.sentence


def test_where_tasks_disagree_they_lead_and_nothing_is_negligible(claimed):
    noise = RNG.normal(0, 0.02, (2, 10))
    values = {"no_clip": {"addition": 0.13 + noise[0], "sorting": -0.13 + noise[1]}, "symmetric": np.zeros(10)}
    (claim,) = claimed(values, EQUAL)
    assert claim.disagreement < 0.001
    assert claim.verdict == INCONCLUSIVE  # the mean is 0, and inside the margin
    assert claim.short.startswith("accuracy `symmetric` -> `no_clip`: addition 0.000 -> 0.1")
    assert "; the tasks disagree, together +0.0" in claim.short
    assert "of the baseline's gain" not in claim.short, "no mean speaks for them"
    loud = {"no_clip": {"addition": 0.5 + noise[0], "sorting": noise[1]}, "symmetric": np.zeros(10)}
    (claim,) = claimed(loud, HIGHER)
    assert (claim.verdict, claim.found) == (SUPPORTED, "supported on addition, not shown on sorting")
    assert claim.sentence.startswith("H0 is supported on addition, not shown on sorting (exploratory)")
    (claim,) = claimed(loud | {"no_clip": {"addition": 0.5 + noise[0], "sorting": 0.2 + noise[1]}}, LOWER)
    assert claim.found == "opposite on each task, by different amounts"
    (claim,) = claimed(loud | {"no_clip": {"addition": 0.5 + noise[0], "sorting": noise[1] - 0.2}}, HIGHER)
    assert claim.found == "supported on addition, the other way on sorting"
    outside = {"no_clip": {"addition": 0.2 + noise[0], "sorting": 0.0 + noise[1] * 8}, "symmetric": np.zeros(10)}
    assert claimed(outside, EQUAL)[0].verdict != SUPPORTED  # one task is beyond its margin


def test_a_study_with_a_regime_is_asked_in_each_unless_where_says_one(tmp_path):
    found = load(write_study(tmp_path, seeds=5), "clip_range")[-1]
    assert [claim.where for claim in asking(found, {})] == ["healthy", "stressed"]
    (stressed,) = asking(found, {"where": {"regime": "stressed"}})
    assert stressed.verdict == SUPPORTED
    assert stressed.tasks[0].effect == pytest.approx(-0.35, abs=0.05)
    with pytest.raises(RequestError, match=r"metric=final_scor .*did you mean final_score"):
        asking(found, {"metric": "final_scor"})


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
    together = (of - base) @ (1 / np.array([task_margin(study, task) for task in TASKS]))
    together /= (1 / np.array([task_margin(study, task) for task in TASKS])).sum()
    assert f"together {signed(together)} [" in claim.short, "points, weighted as it is decided"


def task_margin(study, task):
    """.15 of the baseline's gain over the seeds of the first look."""
    return MARGIN_OF_GAIN * measures.at(measures.measure(study, "gain"), task, "symmetric").iloc[:5].mean()


def test_no_share_is_said_of_a_gain_that_may_be_nothing_and_the_start_where_arms_share_it(study, monkeypatch):
    real, noise = measures.measure, np.random.default_rng(5).normal(0, 1, 200)

    def unsure(of, metric):
        values = real(of, metric)
        if metric == "start":
            return values * 0 + 0.25
        return values * 0 + noise[: len(values)] if metric == "gain" else values

    monkeypatch.setattr(measures, "measure", unsure)
    (claim,) = asking(study, {"margin": 0.05})
    assert "of the baseline's gain" not in claim.short
    assert claim.short.count("(start 0.250)") == 2


def test_a_look_that_stops_at_a_seed_which_was_not_asked_of_every_arm_says_so(study):
    entry = {"seeds": list(range(10)), "looks": [5, 10, 15, 20], "margins": {}, "line": LINE}
    asked = study.cells[(study.cells["seed"] < 5) | (study.cells["arm"] == "symmetric")]
    (claim,) = asking(dataclasses.replace(study, cells=asked), {}, registered={"H0": entry})
    assert "; no look goes past seed 5, of which not every arm was asked for" in claim.sentence
    assert "has no value of it" not in claim.sentence


def test_the_margin_of_a_score_is_a_share_of_the_baselines_gain(study):
    gain = measures.by_cell(study, "gain")[study.cells["arm"] == "symmetric"]
    tasks = study.cells["setting/task"][gain.index]
    found = margins(study, HYPOTHESES[0])
    assert found == pytest.approx({task: MARGIN_OF_GAIN * gain[tasks == task].mean() for task in TASKS})
    assert margins(study, HYPOTHESES[0] | {"margin": 0.2}) == dict.fromkeys(TASKS, 0.2)
    factor = HYPOTHESES[0] | {"metric": "kl_old", "scale": "log"}
    assert margins(study, factor) == pytest.approx(dict.fromkeys(TASKS, np.log(MARGIN_FACTOR)))
    assert np.isnan(list(margins(study, HYPOTHESES[0] | {"metric": "kl_old"}).values())).all()


def test_holms_family_is_the_study_and_what_is_decided_makes_room(claimed):
    borderline = shifted(0.3, 0.25)
    (alone,) = claimed(borderline, HIGHER)
    assert alone.verdict == SUPPORTED
    (first, *_others) = claimed(borderline, *[HIGHER | {"where": {}}] * 8)
    assert first.verdict == INCONCLUSIVE
    assert first.adjusted_p == pytest.approx(8 * first.p)
    assert alone.q == pytest.approx(alone.p)


def test_no_look_before_five_seeds_and_none_is_skipped_over_a_gap(claimed, study):
    short = {"no_clip": [1.0, 1.1, 0.9, 1.05], "symmetric": np.zeros(4)}
    (claim,) = claimed(short, HIGHER)
    assert (claim.verdict, claim.n, claim.seeds) == (INCONCLUSIVE, 0, 4)
    assert "4 of the 5 seeds of the first look" in claim.sentence
    assert claimed(short, HIGHER, looks=[4])[0].verdict == SUPPORTED
    registered = {"seeds": list(range(10)), "looks": [5], "margins": dict.fromkeys(TASKS), "line": LINE}
    gap = {"no_clip": [1.0, 1.1, np.nan, 1.0, 0.9, 1.2, 1.05, 1.0, 1.1, 1.0], "symmetric": np.zeros(10)}
    (claim,) = claimed(gap, HIGHER, registered={"H0": registered})
    assert (claim.n, claim.seeds) == (0, 2)
    (claim,) = claimed(gap, HIGHER)
    assert (claim.n, claim.seeds) == (5, 9)
    assert "1 seed without a value of it" in claim.sentence


def test_what_is_registered_is_decided_by_its_seeds_margins_and_looks(claimed):
    values = {
        "no_clip": np.r_[np.full(5, 9.0) + RNG.normal(0, 0.1, 5), [0.01, -0.012, 0.011, -0.009, 0.002]],
        "symmetric": np.zeros(10),
    }
    entry = {"seeds": [5, 6, 7, 8, 9], "looks": [5], "margins": {"addition": 0.1, "sorting": 0.1}, "line": LINE}
    registered, other = claimed(values, HIGHER, HIGHER, registered={"H0": entry})
    assert (registered.verdict, registered.n) == (NEGLIGIBLE, 5)
    assert other.verdict == SUPPORTED, "by all seeds at hand, as a family of its own"
    assert other.adjusted_p == pytest.approx(other.p)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_factor_is_tested_on_its_logarithm_and_shown_as_one(claimed, sign):
    of, minus = RNG.lognormal(sign * 1.5, 0.1, 10), RNG.lognormal(0, 0.1, 10)
    direction = HIGHER if sign > 0 else LOWER
    (claim,) = claimed({"no_clip": of, "symmetric": minus}, direction | {"scale": "log"})
    assert (claim.verdict, claim.contrast) == (SUPPORTED, "no_clip / symmetric")
    mean = stats.gmean(of[:5] / minus[:5])
    assert claim.tasks[0].effect == pytest.approx(mean)
    assert claim.short.startswith(f"×{number(mean)}")
    assert claim.effect == pytest.approx(np.log(mean) / np.log(MARGIN_FACTOR))
    assert (
        claimed({"no_clip": of, "symmetric": minus}, direction | {"scale": "log", "beyond": 2.0})[0].verdict
        == SUPPORTED
    )
    assert (
        claimed({"no_clip": of, "symmetric": minus}, direction | {"scale": "log", "beyond": 9.0})[0].verdict == OPPOSITE
    )


def test_a_share_of_zero_is_infinitely_smaller_and_a_negative_number_has_no_ratio(claimed):
    values = {"no_clip": [0.0] * 2 + [1.0] * 8, "symmetric": [2.0, 2, 3, 4, 5, 2, 3, 4, 5, 6]}
    (claim,) = claimed(values, LOWER | {"scale": "log"}, looks=[10])
    assert claim.p == 2 / 2**10  # of the sign test
    assert (claim.verdict, claim.effect) == (SUPPORTED, pytest.approx(np.nan, nan_ok=True))
    (claim,) = claimed({"no_clip": [-1.0] + [1.0] * 9, "symmetric": [2.0] * 10}, LOWER | {"scale": "log"})
    assert claim.seeds == 9


def test_few_different_values_take_no_t_test(claimed):
    (claim,) = claimed({"no_clip": [1.0] * 5 + [2.0] * 5, "symmetric": np.zeros(10)}, HIGHER, looks=[10])
    assert claim.p == 2 / 2**10
    assert np.isnan(claim.low)


def test_one_arm_is_tested_against_zero(claimed):
    values = RNG.normal(1, 0.1, 10)
    alone = {"contrast": {"of": "no_clip", "minus": None}, "direction": "greater", "beyond": 0.2, "margin": 0.1}
    (claim,) = claimed({"no_clip": values}, alone, looks=[10])
    assert claim.p == pytest.approx(stats.ttest_1samp(values, 0.2).pvalue)
    assert claim.contrast == "no_clip"


TREND = {"contrast": None, "trend": ARMS, "direction": "greater"}


def test_a_trend_is_pages_with_a_block_for_each_seed_and_task(claimed):
    values_SL = RNG.normal(0, 0.4, (10, 3)) + np.arange(3)
    values = dict(zip(ARMS, values_SL.T, strict=True))
    (claim,) = claimed(values, TREND, looks=[10])
    assert claim.verdict == SUPPORTED
    assert claim.p < 0.001
    assert claimed(values, TREND | {"direction": "less"})[0].verdict == OPPOSITE
    assert "Kendall's tau of `final_score` over symmetric, clip_higher, no_clip is +" in claim.sentence


def test_a_diverged_run_is_the_largest_of_its_seed_in_a_trend():
    values_SL = np.array([[0.0, 1.0, np.inf], [0.0, 1.0, 2.0], [0.0, 0.5, 0.6]])
    assert rank_trend(values_SL) == rank_trend(np.where(np.isinf(values_SL), 9, values_SL))
    assert np.isnan(rank_trend(values_SL[:1]).p)


def test_labels_are_counted_within_tasks(claimed):
    lost = {"no_clip": np.ones(10), "symmetric": np.zeros(10)}
    (claim,) = claimed(lost, {"metric": "lost", "direction": "greater"}, looks=[5])
    assert claim.short == "10 of 10 runs against 0 of 10"
    assert (claim.verdict, claim.p) == (SUPPORTED, pytest.approx(2 / 252))  # 10 choose 5: a seed's tasks move together
    (none,) = claimed({"no_clip": np.zeros(10), "symmetric": np.zeros(10)}, {"metric": "lost", "direction": "greater"})
    assert (none.verdict, none.short) == (INCONCLUSIVE, "0 of 20 runs against 0 of 20")  # a rare label may still come


def test_a_rare_label_is_decided_alike_whenever_its_first_run_comes(claimed):
    """`--until-decided` goes on after seeds without any lost run."""
    lost = {"no_clip": np.repeat([0.0, 1.0], [2, 8]), "symmetric": np.zeros(10)}
    more = {"metric": "lost", "direction": "greater"}
    first, second = (
        claimed({arm: values[:n] for arm, values in lost.items()}, more, looks=[2, 10])[0].verdict for n in (2, 10)
    )
    assert (first, second) == (INCONCLUSIVE, SUPPORTED)


def test_sign_flips_are_all_of_them():
    values = RNG.normal(0.5, 1, 9)
    every = np.array([np.sum(values * (1 - 2 * (n >> np.arange(9) & 1))) for n in range(2**9)])
    assert sign_flip(values) == np.mean(np.abs(every) >= abs(values.sum()) - 1e-12)
    assert sign_flip(np.ones(20)) == pytest.approx(2 / 2**20)


def test_identical_arms_are_void_and_still_count_in_the_family(claimed):
    same = {"no_clip": np.arange(10.0), "symmetric": np.arange(10.0)}
    (void,) = claimed(same, LOWER)
    assert (void.verdict, void.n) == (VOID, 0)
    assert "(5 of the 5 seeds of the first look, addition, sorting)" in void.sentence
    assert void.sentence.endswith("; its arms have one value in each of 5 seeds.")
    later = {"no_clip": np.arange(10.0), "symmetric": np.arange(10.0) * (np.arange(10) < 5)}
    assert claimed(later, LOWER)[0].verdict == VOID  # what the first look found stays
    values = shifted(0.3, 0.25) | {"clip_higher": np.zeros(10)}
    pair = {"contrast": {"of": "clip_higher", "minus": "symmetric"}}
    alone, beside = claimed(values, HIGHER)[0], claimed(values, HIGHER, *[HIGHER | pair] * 7)[0]
    assert (alone.verdict, beside.verdict) == (SUPPORTED, INCONCLUSIVE)


def test_a_condition_that_fails_in_a_task_makes_it_void(claimed):
    values = {"no_clip": RNG.normal(1, 0.1, 10), "symmetric": np.zeros(10)}
    condition = {"metric": "clip/active", "of": "no_clip", "above": 0.5}
    assert claimed(values, HIGHER | {"provided": condition})[0].verdict == SUPPORTED
    (void,) = claimed(values, HIGHER | {"provided": condition | {"above": 1.5}})
    assert void.verdict == VOID
    assert "its condition fails in addition: `clip/active` of no_clip is" in void.sentence


@pytest.mark.slow
def test_interval_p_and_verdict_never_contradict(claimed):
    rng = np.random.default_rng(3)
    for _ in range(60):
        effects, sd = rng.choice([0, 0.02, 0.1, 0.5], 3), rng.choice([0.02, 0.1, 0.3])
        values = dict(zip(ARMS, effects[:, None] + rng.normal(0, sd, (3, 10)), strict=True))
        contrasts = [{"contrast": {"of": of, "minus": "symmetric"}} for of in ARMS[1:]]
        for claim in claimed(values, *(c | d for c in contrasts for d in (LOWER, EQUAL))):
            equal = claim.id in ("H1", "H3")
            least = 1 if equal else 0  # what a direction has to be beyond
            outside, inside = claim.low > least or claim.high < -least, claim.low > -1 and claim.high < 1
            if claim.verdict == OPPOSITE or (claim.verdict == SUPPORTED and not equal):
                assert outside
            elif claim.verdict in (SUPPORTED, NEGLIGIBLE):
                assert inside
            else:
                assert claim.verdict == INCONCLUSIVE
                assert not outside
            assert (claim.adjusted_p <= 0.05) == (claim.verdict != INCONCLUSIVE)


def test_flags_warn_and_change_nothing(claimed):
    (early,) = claimed(shifted(-1.0), LOWER)
    assert "decided at five seeds: the estimate is probably too large" in early.flags
    (small,) = claimed(shifted(0.08, 0.01), HIGHER)
    assert "smaller than the margin" in small.flags
    (open_,) = claimed(shifted(0.1, 1.0), HIGHER)
    assert any(flag.startswith("20 seeds would not decide it") for flag in open_.flags)
    skewed = {"no_clip": RNG.exponential(1, 10) ** 3, "symmetric": np.zeros(10)}
    assert any(flag.startswith("skewed") for flag in claimed(skewed, HIGHER, looks=[10])[0].flags)


def test_what_holds_by_construction_is_a_check_and_no_finding(claimed):
    check = HIGHER | {"by_construction": True}
    held, asked = claimed(shifted(1.0), check, HIGHER)
    assert (held.verdict, held.label, held.is_finding) == (HOLDS, claims.CHECK, False)
    assert asked.adjusted_p == pytest.approx(asked.p), "it is in no family"
    assert "as claimed in 20 of 20 pairs of a seed and a task" in held.sentence
    assert claimed(shifted(0.01, 1.0), check)[0].verdict == FAILS
    values = {arm: np.arange(10.0) + n for n, arm in enumerate(ARMS)}
    assert claimed(values, TREND | {"by_construction": True})[0].verdict == HOLDS


def test_a_collection_decides_its_primary_hypotheses_and_describes_the_others(study):
    hypotheses = [HYPOTHESES[0], HYPOTHESES[0] | {"id": "other"}]
    part = dataclasses.replace(study, plan=study.plan | {"hypotheses": hypotheses})
    whole_plan = {"study": "all", "hypotheses": [], "placebo": [], "primary": ["clip_range.H6"], "looks": [5]}
    whole = dataclasses.replace(study, plan=whole_plan, cells=study.cells[:0])
    primary, other = decide([part, whole])
    assert (primary.is_finding, primary.n) == (True, 5)
    assert (other.verdict, other.is_finding) == (DESCRIBED, False)
    assert other.n == 10
    assert not np.isnan(primary.p)
    assert np.isnan(other.p)


def placebo_study(tmp_path):
    results = write_study(tmp_path, "placebo", {"form": ["a", "b"], "task": ["addition"]}, placebo=[["a", "b"]])
    cells = json.loads(results.plan("placebo").read_text())["cells"]
    hashes = {
        cell["seed"]: json.loads((results.run(cell["signature"]) / "outcome.json").read_text()) for cell in cells[:3]
    }
    for cell in cells[3:]:
        path = results.run(cell["signature"]) / "outcome.json"
        twin = next(other for other in cells[:3] if other["seed"] == cell["seed"])
        path.with_name("journal.jsonl").write_bytes((results.run(twin["signature"]) / "journal.jsonl").read_bytes())
        same = {key: hashes[cell["seed"]][key] for key in ("journal_sha256", "policy_sha256")}
        write_json_atomic(path, json.loads(path.read_text()) | same)
    return results, cells


def test_placebo_arms_are_compared_by_their_bits(tmp_path):
    results, cells = placebo_study(tmp_path)
    (claim,) = decide(load(results, "placebo"))
    assert claim.verdict == HOLDS
    assert "bit-identical (whole journal and final weights) in 3 of 3 planned pairs" in claim.sentence
    path = results.run(cells[-1]["signature"]) / "outcome.json"
    write_json_atomic(path, json.loads(path.read_text()) | {"policy_sha256": "another"})
    (claim,) = decide(load(results, "placebo"))
    assert claim.verdict == FAILS
    assert "addition seed 2" in claim.sentence
    provenance = path.with_name("provenance.json")
    of_cpu = {"cpu": "another", "cpu_capability": "AVX2", "mkl": "2024", "float32": "0" * 8}
    write_json_atomic(provenance, json.loads(provenance.read_text()) | {"hardware": of_cpu})
    (claim,) = decide(load(results, "placebo"))
    assert claim.verdict == NOT_RUN
    assert claim.sentence.endswith("in 2 of 3 planned pairs; 1 pair of two kinds of CPU cannot be compared.")
    path.unlink()
    assert decide(load(results, "placebo"))[0].verdict == NOT_RUN


def test_placebo_dialects_are_compared_by_their_weights(tmp_path):
    """Their journals have other names: each its framework's."""
    results, cells = placebo_study(tmp_path)
    plan = json.loads(results.plan("placebo").read_text())
    for cell in plan["cells"]:
        cell["settings"]["framework"] = {"a": None, "b": "roll"}[cell["levels"]["form"]]
    write_json_atomic(results.plan("placebo"), plan)
    path = results.run(cells[-1]["signature"]) / "outcome.json"
    journal = path.with_name("journal.jsonl")
    rewrite(journal, journal.read_text() + journal.read_text().splitlines(keepends=True)[-1])
    (claim,) = decide(load(results, "placebo"))
    assert claim.verdict == HOLDS
    assert "bit-identical (final weights) in 3 of 3 planned pairs" in claim.sentence
    write_json_atomic(path, json.loads(path.read_text()) | {"policy_sha256": "another"})
    assert decide(load(results, "placebo"))[0].verdict == FAILS


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
    assert gap.seeds == 5
    assert "1 seed without a value of it" in gap.sentence


def test_a_seed_whose_warm_start_did_not_take_counts_and_is_named(tmp_path):
    results = write_study(tmp_path, factors={"clip": ["symmetric", "no_clip"], "task": ["addition"]}, seeds=6)
    for cell in load(results, "clip_range")[-1].plan["cells"]:
        if cell["seed"] == 4:
            file = results.run(cell["signature"]) / "provenance.json"
            provenance = json.loads(file.read_text())
            file.write_text(json.dumps(provenance | {"warm_start": {"signature": "w", "accuracy": 0.01}}))
    (claim,) = asking(load(results, "clip_range")[-1], {})
    assert claim.seeds == 6
    assert (
        "; the warm start of seed 4 came to accuracy 0.010 on training prompts, the median seed's to 0.300"
        in claim.sentence
    )
    assert claim.sentence.count("came to accuracy") == 1


def test_a_diverged_run_counts_as_far_as_it_came(tmp_path):
    results = write_study(tmp_path, factors={"clip": ["symmetric", "no_clip"], "task": ["addition"]}, seeds=6)
    for cell in load(results, "clip_range")[-1].plan["cells"]:
        if cell["levels"]["clip"] == "no_clip" and cell["seed"] < 2:
            write_run(results, cell, outcome="diverged", last_step=6)
    loaded = load(results, "clip_range")[-1]
    score, norm, lost = asking(
        loaded, {}, {"metric": "grad_norm_max", "direction": "greater"}, {"metric": "lost", "direction": "greater"}
    )
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
