"""Figures that compare arms and settings: their numbers against values computed by hand, and what they say without."""

import dataclasses
import itertools

import numpy as np
import pytest
from report_results import HYPOTHESES, series_of, texts_of, with_curves, write_study
from scipy import stats

from grpolab.report import brief
from grpolab.report.claims import NOT_RUN, decide
from grpolab.report.figures import comparison, draw
from grpolab.report.figures.settings import extrapolate, parse_level, scale_axis
from grpolab.report.how_many_seeds import sign_errors
from grpolab.report.load import StudyRuns, load
from grpolab.report.measures import pool_tasks
from grpolab.report.statistics.looks import INCONCLUSIVE, NEGLIGIBLE, SUPPORTED
from grpolab.report.style import arm_styles
from grpolab.report.text import estimate

START = 0.2
RULES = {"rule": ["token", "cispo", "no_clip"], "task": ["addition", "sorting", "filler"]}


def final(value: float) -> list[float]:
    return [START, START, START, START, value]


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Three arms on three tasks with ten seeds."""
    return load(write_study(tmp_path_factory.mktemp("rules"), "rules", RULES, seeds=10, trained=False), "rules")[-1]


@pytest.fixture(scope="module")
def scores():
    """Final accuracy by (arm, task): ten seeds, with ties and gaps of every size."""
    rng = np.random.default_rng(1)
    return {pair: np.round(rng.uniform(0.3, 0.9, 10), 1) for pair in itertools.product(*RULES.values())}


@pytest.fixture(scope="module")
def study(planned, scores):
    return with_curves(planned, lambda cell: final(scores[cell.arm, cell.facet][cell.seed]))


def few(study: StudyRuns, seeds: int, tasks: int) -> StudyRuns:
    """The same with fewer seeds and tasks in its plan."""
    kept = study.cells[(study.cells["seed"] < seeds) & study.cells["facet"].isin(RULES["task"][:tasks])]
    return dataclasses.replace(study, cells=kept)


def normalised(scores, arm, runs=10):
    return np.array([(scores[arm, task][:runs] - START) / (1 - START) for task in RULES["task"]])


def test_pools_hold_the_seeds_that_every_arm_has(planned, scores):
    lost = {("no_clip", "sorting", 4)}

    def accuracy(cell):
        gone = cell.arm == "cispo" or (cell.arm, cell.facet, cell.seed) in lost
        return None if gone else final(scores[cell.arm, cell.facet][cell.seed])

    (pool,) = pool_tasks(with_curves(planned, accuracy))
    assert pool.arms == ["token", "no_clip"]
    assert pool.seeds == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert pool.scores_ATS[1] == pytest.approx(np.delete(normalised(scores, "no_clip"), 4, axis=1))


def test_aggregates_are_those_of_the_pooled_runs(study, scores):
    _, manifest = draw(study, "F21")
    own = np.sort(normalised(scores, "cispo").ravel())
    expected = {
        "interquartile mean": own[7:-7].mean(),
        "mean": own.mean(),
        "median": (own[14] + own[15]) / 2,
        "optimality gap\n(less is better)": np.mean(1 - own),
    }
    for metric, value in expected.items():
        found = series_of(manifest, metric=metric, arm="cispo")
        assert found["mean"] == pytest.approx(value), metric
        assert found["low"] < found["mean"] < found["high"]
        assert found["n"] == 10
    iqm = series_of(manifest, metric="interquartile mean", arm="cispo")
    assert f"`cispo` {estimate(iqm['mean'], iqm['low'], iqm['high'])}" in manifest.caption


def test_intervals_need_ten_runs_and_pooling_three_tasks_with_five(study, scores):
    picture, manifest = draw(few(study, seeds=5, tasks=3), "F21")
    found = series_of(manifest, metric="mean", arm="no_clip")
    assert found["mean"] == pytest.approx(normalised(scores, "no_clip", runs=5).mean())
    assert np.isnan([found["low"], found["high"]]).all()
    picture, manifest = draw(few(study, seeds=5, tasks=2), "F21")
    needs = "needs 3 tasks with 5 seeds that every arm has on every task; has 2 tasks with 5 such seeds"
    assert " ".join(texts_of(picture)) == f"F21: {needs}"
    assert manifest.caption == f"Not drawn: {needs}."


def test_forest_shows_differences_paired_by_seed_and_decides_nothing(study, scores):
    picture, manifest = draw(study, "F27")
    for task, arm in itertools.product(RULES["task"], ["cispo", "no_clip"]):
        found = series_of(manifest, facet=task, arm=arm)
        apart = scores[arm, task] - scores["token", task]
        assert found["mean"] == pytest.approx(np.mean(apart), abs=1e-6)
        reach = stats.t.interval(0.95, 9, np.mean(apart), stats.sem(apart))
        assert (found["low"], found["high"]) == pytest.approx(reach)
        panel = picture.axes[RULES["task"].index(task)]
        assert panel.get_xlim()[0] < found["low"] < found["high"] < panel.get_xlim()[1]
    assert texts_of(picture) == []
    assert "a description, not corrected" in manifest.statistic
    assert len({panel.get_xlim() for panel in picture.axes}) == 1  # tasks are compared by eye


def test_the_margin_is_the_registered_one_else_a_share_of_the_baselines_gain(study, scores):
    registered = {"H": {"margins": {"addition": 0.07}}}
    plan = study.plan | {"hypotheses": [{**HYPOTHESES[0], "id": "H"}], "registered": registered}
    _, manifest = draw(dataclasses.replace(study, plan=plan), "F27")
    margin = {series["facet"]: series["margin"] for series in manifest.numbers}
    assert margin["addition"] == 0.07
    assert margin["sorting"] == pytest.approx(0.15 * (scores["token", "sorting"].mean() - START))


def test_the_shape_of_a_verdict_tells_a_claim_of_equality_from_one_of_a_difference(study, tmp_path):
    hypothesis = {**HYPOTHESES[0], "contrast": {"of": "cispo", "minus": "token"}, "margin": 0.5}
    plan = study.plan | {"hypotheses": [hypothesis, {**hypothesis, "id": "same", "direction": "equal"}]}
    asked = dataclasses.replace(study, plan=plan)
    manifest, _ = comparison.write_verdicts(asked, decide([asked]), tmp_path)
    assert {of["id"]: (of["verdict"], of["claimed"]) for of in manifest.numbers} == {
        "H6": (NEGLIGIBLE, "different"),
        "same": (SUPPORTED, "equal"),
    }
    assert comparison.SHAPES["equal"] != comparison.SHAPES["different"]


def test_sign_errors_are_those_of_the_table_and_need_many_seeds(tmp_path, study):
    assert "F39: needs 20 seeds that an arm and token share" in " ".join(texts_of(draw(study, "F39")[0]))
    factors = {"rule": ["token", "cispo"], "task": ["addition"]}
    many = load(write_study(tmp_path, "many", factors, seeds=20, trained=False), "many")[-1]
    noise = np.random.default_rng(0).normal(0, 0.05, (2, 20))
    many = with_curves(many, lambda cell: final(0.5 + noise[int(cell.arm == "cispo")][cell.seed]))
    _, manifest = draw(many, "F39")
    table = sign_errors(many)
    one = table[(table["arm"] == "mean") & (table["true"] == "one margin") & (table["runs"] == "unpaired")]
    found = series_of(manifest, metric="wrong_sign", runs="unpaired")
    assert (found["x"], found["mean"]) == ([1, 3, 5], one["wrong_sign"].tolist())
    assert found["mean"][0] > found["mean"][2]


def test_time_to_threshold_is_read_off_the_curves_and_counts_who_never_gets_there(planned):
    curves = {"token": [0.2, 0.3, 0.5, 0.6, 0.6], "cispo": [0.2, 0.45, 0.6, 0.6, 0.6]}
    never, late = [0.2, 0.2, 0.1, 0.1, 0.1], [0.2, 0.2, 0.2, 0.2, 0.41]
    study = with_curves(few(planned, 3, 1), lambda c: curves.get(c.arm, never if c.seed else late))
    picture, manifest = draw(study, "F25")
    assert {s["by"] for s in manifest.numbers} == {"completions"}  # seconds measure the machine's load, not the arms
    assert not [panel for panel in picture.axes if "(s)" in panel.get_xlabel()]
    found = {s["arm"]: s for s in manifest.numbers}
    assert found["token"]["threshold"] == pytest.approx(0.2)  # half of the way from 0.2 to 0.6
    assert (found["token"]["x"], found["token"]["mean"]) == ([0, 6 * 128, 6 * 128], [0, 1, 1])
    assert found["cispo"]["median"] == 3 * 128
    assert (found["no_clip"]["median"], found["no_clip"]["censored"]) == (np.inf, 2)
    assert found["no_clip"]["mean"][-1] == pytest.approx(1 / 3)


def test_ladder_compares_each_rung_with_the_one_that_it_changes(tmp_path, study):
    assert "F28: needs arms that are named +x" in " ".join(texts_of(draw(study, "F28")[0]))
    arms = ["base", "+a", "+b", "full", "-a", "-b"]
    rungs = {"+a": "base", "+b": "+a", "full": "+b", "-a": "full", "-b": "full"}
    assert comparison.ladder_of(arms, "base") == rungs
    assert comparison.ladder_of(["token", "no_clip"], "token") == {}
    results = write_study(tmp_path, "ladder", {"rung": arms, "task": ["addition"]}, trained=False)
    heights = dict(zip(arms, (0.3, 0.4, 0.45, 0.6, 0.5, 0.55), strict=True))
    study = with_curves(load(results, "ladder")[-1], lambda cell: final(heights[cell.arm] + 0.01 * cell.seed))
    picture, manifest = draw(study, "F28")
    assert {s["arm"]: s["minus"] for s in manifest.numbers} == rungs
    assert [s["mean"] for s in manifest.numbers] == pytest.approx([0.1, 0.05, 0.15, -0.1, -0.05])
    (panel,) = picture.axes
    assert [label.get_text() for label in panel.get_yticklabels()] == list(rungs)
    assert [line.get_ydata()[0] for line in panel.lines if line.get_marker() == "None"][1:] == [2.5]  # above: added


@pytest.fixture(scope="module")
def stale(tmp_path_factory):
    """Two arms at three staleness values."""
    factors = {"old": ["trainer", "sampler"], "stale": ["s0", "s2", "s8"], "task": ["addition"]}
    study = load(write_study(tmp_path_factory.mktemp("stale"), "stale", factors), "stale")[-1]
    cells = study.cells.assign(**{"setting/staleness": study.cells["factor/stale"].str[1:].astype(int)})
    height = {"trainer": 0.02, "sampler": 0.01}
    return with_curves(
        dataclasses.replace(study, cells=cells),
        lambda cell: final(0.5 + 0.01 * cell.seed**2 - height[cell.arm] * int(cell.facet.split("/")[0][1:])),
    )


def test_sensitivity_has_each_arms_own_values_on_a_log_scale_and_shows_seeds_and_interval(stale):
    values = {"s0": 1e-4, "s2": 1e-2, "s8": np.inf}
    scale = stale.cells["arm"].map({"trainer": 1, "sampler": 5})
    own = {"setting/staleness": 0, "setting/epsilon": stale.cells["factor/stale"].map(values) * scale}
    picture, manifest = draw(dataclasses.replace(stale, cells=stale.cells.assign(**own)), "F24")
    found = series_of(manifest, arm="sampler")
    assert (found["setting"], found["x"]) == ("setting/epsilon", pytest.approx([5e-4, 5e-2, np.inf]))
    assert [panel.get_xscale() for panel in picture.axes] == ["log"]
    panel = picture.axes[0]
    assert scale_axis(panel, [1e-4, 1e-2, np.inf], "epsilon") == pytest.approx({1e-4: 1e-4, 1e-2: 1e-2, np.inf: 4e-2})
    assert scale_axis(panel, [1, 2, 4], "mu") == {1: 0, 2: 1, 4: 2}
    ends = {line.get_transform().transform((1e-3, 0.5))[0] for line in panel.lines}
    assert len(ends) == 2, "two arms hide each other"


def test_lengths_of_right_and_wrong_have_one_scale_and_are_compared_within_the_batch(stale):
    rollouts = stale.rollouts.assign(**{"length/right_mean": 4.0 + stale.rollouts["seed"]})
    rollouts["length/wrong_mean"] = rollouts["length/right_mean"] + 0.5
    picture, manifest = draw(dataclasses.replace(stale, rollouts=rollouts), "F17")
    found = series_of(manifest, metric="wrong minus right", facet="s8/addition", arm="trainer")
    assert (found["mean"], found["low"]) == (pytest.approx([0.5] * 12), pytest.approx([0.5] * 12))
    limits = {panel.get_ylim() for panel in picture.axes[: 2 * len(stale.facets)]}
    assert len(limits) == 1


def test_reuse_is_judged_against_the_baseline_with_the_same_seed(tmp_path):
    results = write_study(tmp_path, "mu", {"mu": ["1", "2", "4"], "task": ["addition"]}, baseline="2", trained=False)
    gain = {"1": -0.1, "2": 0.0, "4": 0.2}
    study = with_curves(load(results, "mu")[-1], lambda cell: final(0.5 + 0.1 * cell.seed + gain[cell.arm]))
    _, manifest = draw(study, "F18")
    found = series_of(manifest, metric="final_score")
    assert (found["x"], found["mean"]) == ([1, 2, 4], pytest.approx([-0.1, 0, 0.2]))
    assert found["high"] == pytest.approx(found["mean"])  # seeds differ, their differences do not


def test_passes_of_several_arms_stand_side_by_side(tmp_path):
    """The first pass clips nothing in any arm: drawn at one place, the last arm would hide the others."""
    study = load(write_study(tmp_path, "mu", {"mu": ["1", "2", "4"], "task": ["addition"]}), "mu")[-1]
    picture, manifest = draw(study, "F18")
    assert [s["arm"] for s in manifest.numbers if s.get("by") == "iteration"] == ["1", "2", "4"]
    looks = arm_styles(study.arms)
    lines = [line for line in picture.axes[1].lines if line.get_marker() in {look.marker for look in looks.values()}]
    assert len({line.get_transform().transform((0, 0))[0] for line in lines}) == 3


# --- how far findings carry: over the size of a model and the length of answers ---------------------------------------

CROSS = {"clip": ["symmetric", "sequence", "no_clip"], "size": ["0.13M", "1M"], "length": ["4", "11", "48"]}
LOSS = {"symmetric": 0.0, "sequence": 0.1, "no_clip": 0.2}


@pytest.fixture(scope="module")
def cross(tmp_path_factory):
    """Two sizes; the larger one has no answers of 4 tokens. An arm loses more the longer the answers are.

    At the larger size `no_clip` is the better of the two, and its first run has no result.
    """
    study = load(write_study(tmp_path_factory.mktemp("cross"), "cross", CROSS), "cross")[-1]
    cells = study.cells[~((study.cells["factor/size"] == "1M") & (study.cells["factor/length"] == "4"))]

    def accuracy(cell):
        size, length = cell.facet.split("/")
        loss = LOSS[cell.arm] if size == "0.13M" else 0.3 * (LOSS[cell.arm] > 0) - LOSS[cell.arm]
        missing = (cell.arm, cell.facet, cell.seed) == ("no_clip", "1M/48", 0)
        return None if missing else final(0.5 - loss * int(length) / 48 + 0.01 * cell.seed)

    return with_curves(dataclasses.replace(study, cells=cells.reset_index(drop=True)), accuracy)


def test_effects_are_paired_and_drawn_where_the_cross_has_every_level(cross):
    picture, manifest = draw(cross, "F32")
    titles = [panel.get_title() for panel in picture.axes]
    assert titles == ["11 tokens", "48 tokens", "0.13M parameters"], "1M has no answers of 4 tokens, 4 tokens no 1M"
    found = series_of(manifest, scale="length", arm="no_clip")
    assert (found["x"], found["mean"]) == ([4, 11, 48], pytest.approx([-0.2 * t / 48 for t in (4, 11, 48)]))
    assert (found["low"], found["minus"]) == (pytest.approx(found["mean"]), "symmetric")
    short = series_of(manifest, scale="size", facet="48 tokens", arm="no_clip")
    assert (short["x"], short["n"]) == ([130_000, 1_000_000], [3, 2])
    assert "Missing: 1 of 45 cells" in picture.get_suptitle()
    assert [panel.get_xscale() for panel in picture.axes] == ["log"] * 3
    skipped = (cross.cells["arm"] == "symmetric") & (cross.cells["factor/length"] == "48")
    picture, _ = draw(dataclasses.replace(cross, cells=cross.cells[~skipped]), "F32")
    assert [panel.get_title() for panel in picture.axes] == ["11 tokens", "0.13M parameters"]


def test_what_1_over_sqrt_T_makes_of_a_spread_and_of_a_clip_fraction():
    length_X = np.array([4.0, 16.0])
    assert extrapolate(0.1, length_X, is_share=False) == pytest.approx([0.1, 0.05])
    below, half, above = (extrapolate(share, length_X, is_share=True) for share in (0.1587, 0.5, 0.8413))  # one sd
    assert (below[1], half[1], above[1]) == (pytest.approx(0.0228, abs=1e-3), 0.5, pytest.approx(0.9772, abs=1e-3))


def test_clipping_over_length_has_its_theory_where_a_ratio_is_of_a_whole_answer(cross):
    tokens = cross.updates["factor/length"].map(parse_level)
    spread = {
        f"ratio/sequence_{end}_{sign}": np.exp(way * 0.2 / np.sqrt(tokens))
        for end, way in (("p99", 1), ("p01", -1))
        for sign in ("pos", "neg")
    }
    study = dataclasses.replace(cross, updates=cross.updates.assign(**spread, **{"clip/active_nz": 0.04}))
    picture, manifest = draw(study, "F34")
    found = series_of(manifest, metric="|log ratio| of an answer (98%)", arm="sequence")
    assert found["mean"] == pytest.approx([0.1, 0.2 / 11**0.5, 0.2 / 48**0.5], rel=1e-3)
    clip, ratio = picture.axes
    dotted = [
        {line.get_color() for line in panel.lines if line.get_linestyle() == ":" and line.get_linewidth() == 0.8}
        for panel in (clip, ratio)
    ]
    colours = {arm: style.colour for arm, style in arm_styles(study.arms).items()}
    assert dotted == [{colours["sequence"]}, set(colours.values())]
    assert len(set(colours.values())) == 3, "sequence and no_clip have one colour in studies of their own"


def test_the_first_page_says_what_carried(cross):
    plan = {**cross.plan, "hypotheses": [HYPOTHESES[0], {**HYPOTHESES[0], "id": "other", "says": "It rises."}]}
    study = dataclasses.replace(cross, plan=plan)
    claims = decide([study])
    places = {"0.13M/4", "0.13M/11", "0.13M/48", "1M/11", "1M/48"}
    assert {claim.where for claim in claims} == places
    verdicts = [SUPPORTED if claim.id == "H6" or claim.where.startswith("0.13M") else INCONCLUSIVE for claim in claims]
    decided = [dataclasses.replace(claim, verdict=verdict) for claim, verdict in zip(claims, verdicts, strict=True)]
    gone = {("other", "1M/48")}
    decided = [dataclasses.replace(c, verdict=NOT_RUN) if (c.id, c.where) in gone else c for c in decided]
    assert (
        "  - **carried** over parameters and tokens: Without clipping, accuracy is lower, at one learning rate"
        " (supported at all 5)\n  - **not everywhere**: It rises, at one learning rate: supported at 0.13M/4, 0.13M/11,"
        " 0.13M/48; inconclusive at 1M/11; not run at 1M/48\n"
    ) in brief.screen([study], decided)
    undecided = [dataclasses.replace(claim, verdict=INCONCLUSIVE) for claim in decided]
    assert "  - not decided anywhere: Without clipping, accuracy is lower, at one" in brief.screen([study], undecided)
