"""What a picture shows: the manifest's numbers, every arm in its colour, what is missing; and how it is drawn."""

import dataclasses
import itertools
import json
import re

import matplotlib.text
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PolyCollection
from report_results import series_of, write_run, write_study

from grpolab.errors import RequestError
from grpolab.meanings import METRICS
from grpolab.report.figures import FIGURES, clipping, draw, surfaces
from grpolab.report.figures.learning import crossing
from grpolab.report.load import TABLES, load
from grpolab.report.style import COLUMN_WIDTH, TEXT_WIDTH, arm_styles, png, save
from grpolab.vocabulary import ANALYTIC_FIGURES, EXCESS_EDGES


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two studies, one of them with numeric arms, and a geometry table."""
    root = tmp_path_factory.mktemp("results")
    results = write_study(root)
    write_study(root, "num_iterations", {"mu": ["1", "2", "4"], "task": ["addition"]})
    ratio = np.linspace(0.01, 3, 200)
    capped = np.minimum(ratio, 1.28)
    # CISPO's objective, detached weight times log-prob: beyond the cap its slope happens to be its weight.
    curves = {"no clip": (ratio, ratio), "cispo": (capped * np.log(ratio / 4), capped)}
    frames = [
        pd.DataFrame({"curve": name, "advantage": s, "ratio": ratio, "objective": s * objective, "weight": s * weight})
        for name, (objective, weight) in curves.items()
        for s in (1, -1)
    ]
    pd.concat(frames).to_csv(results.geometry, index=False)
    return results


@pytest.fixture
def study(results):
    return load(results, "clip_range")[-1]


# Figures for which both studies lack something.
LACKING = {"F10", "F13", "F21", "F28", "F32", "F34", "F36", "F37", "F39", "F42", "F44"}


@pytest.mark.slow
@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_is_readable_in_print_and_decides_nothing(results, figure):
    for name in ("clip_range", "num_iterations"):
        study = load(results, name)[-1]
        picture, manifest = draw(study, figure)
        assert picture.get_figwidth() in (COLUMN_WIDTH, TEXT_WIDTH)
        png(picture)  # lays it out: only now every tick has its label
        texts = [t for t in picture.findobj(matplotlib.text.Text) if t.get_text() and t.get_visible()]
        assert min(t.get_fontsize() for t in texts) >= 7
        said = " ".join([*(t.get_text() for t in texts), manifest.caption, manifest.statistic])
        assert not re.search(r"[_^]\{", said), "a small index"
        assert not re.search(r"\bp [=<]|p-value|signific|undecided|supported|refuted", said)
        lacks = figure in LACKING or (figure in ("F35", "F43") and name == "num_iterations")
        assert (not manifest.numbers) == manifest.caption.startswith("Not drawn: ") == lacks
        assert manifest.study == name
        assert manifest.signatures == sorted(study.cells["signature"])
        assert manifest.commits == ["c0ffee"]


def test_an_arm_or_a_facet_that_is_a_number_says_of_what(tmp_path):
    study = load(write_study(tmp_path, "reuse", {"mu": ["1", "2"], "stale": ["0", "8"]}), "reuse")[-1]
    panel, other = draw(study, "F27")[0].axes
    assert [label.get_text() for label in panel.get_yticklabels()] == ["mu = 2"]
    assert [panel.get_title(), other.get_title()] == ["stale = 0", "stale = 8"]


def lines_of(picture, *keep):
    return [line for panel in picture.axes for line in panel.lines if line.get_linewidth() in keep or not keep]


@pytest.mark.parametrize("figure", ["F1", "F4", "F16", "D1"])
def test_seeds_have_lines_on_request_alone(study, figure):
    picture, manifest = draw(study, figure)
    assert lines_of(picture, 0.5) == []
    with_seeds, same = draw(dataclasses.replace(study, single_seeds=True), figure)
    lines = [series for series in same.numbers if "low" in series]
    assert len(lines_of(with_seeds, 0.5)) == 3 * len(lines) > 0
    assert same.statistic == f"{manifest.statistic}; thin lines are seeds"
    assert str(same.numbers) == str(manifest.numbers)


def bands(panel):
    return [band for band in panel.collections if isinstance(band, PolyCollection)]


def test_a_band_of_three_seeds_lies_in_the_panel_and_of_many_arms_the_baseline_alone_has_one(study, tmp_path):
    picture, manifest = draw(study, "F1")
    panel = picture.axes[len(study.facets)]  # held-out accuracy
    tops = [max(series["high"]) for series in manifest.numbers if series["metric"] == study.metric]
    assert len(bands(panel)) == 3
    assert panel.get_ylim()[1] > max(tops[:3])
    two = dataclasses.replace(study, evaluations=study.evaluations[study.evaluations["seed"] < 2])
    shorter = draw(two, "F1")[0].axes[len(study.facets)]
    assert np.ptp(shorter.get_ylim()) < np.ptp(panel.get_ylim())  # an interval of two seeds would flatten the lines
    factors = {"rule": [f"r{n}" for n in range(8)], "task": ["addition"]}
    many = load(write_study(tmp_path, "many", factors), "many")[-1]
    picture, manifest = draw(many, "F1")
    assert [len(bands(panel)) for panel in picture.axes] == [1, 1]
    assert "Of 8 lines the baseline's alone has its band" in manifest.caption


def test_figures_of_any_study_are_saved_under_its_name_without_a_warning(results, study, tmp_path, recwarn):
    """A study's name may have a dot; a facet without any run has no place on a log scale."""
    gone = study.cells["facet"] == "addition/stressed"
    tables = {table: getattr(study, table).query("facet != 'addition/stressed'") for table in TABLES}
    cells = study.cells.assign(outcome=study.cells["outcome"].mask(gone, "missing"))
    half = dataclasses.replace(study, cells=cells, **tables)
    for figure in ("F3", "F6", "F15", "F16", "F26"):
        picture, manifest = draw(half, figure)
        assert manifest.numbers, figure
        paths = save(picture, tmp_path / f"my.study_{figure}")
        assert [path.name for path in paths] == [f"my.study_{figure}.png", f"my.study_{figure}.pdf"]
    assert [str(warning.message) for warning in recwarn] == []


def test_lines_of_a_panel_are_over_the_seeds_that_all_its_arms_have(study):
    """One arm has values of two seeds and another of all three: they would differ by the seeds, too."""

    def of_two_seeds(frame, metric):
        known = (frame["arm"] != "no_clip") | (frame["seed"] > 0)
        return frame.assign(**{metric: frame[metric].where(known)})

    evaluations, rollouts = of_two_seeds(study.evaluations, study.metric), of_two_seeds(study.rollouts, "reward/mean")
    _, manifest = draw(dataclasses.replace(study, evaluations=evaluations, rollouts=rollouts), "F1")
    assert {tuple(series["seeds"]) for series in manifest.numbers} == {(1, 2)}
    assert "Lines are over the 2 seeds that all arms of their panel share." in manifest.caption
    alone = of_two_seeds(rollouts[rollouts["arm"] == "no_clip"], "reward/mean")
    one = series_of(manifest, metric="reward/mean", facet="addition/healthy", arm="no_clip")
    expected = alone[alone["facet"] == "addition/healthy"].groupby("rollout_step")["reward/mean"].mean()
    assert one["mean"][0] == pytest.approx(expected[0])


def test_an_arm_is_drawn_of_which_few_seeds_have_the_metric(study):
    """The committed outcome keeps the lengths of right answers of some seeds alone."""
    rare = study.rollouts["length/right_mean"].where(
        (study.rollouts["arm"] != "no_clip") | (study.rollouts["seed"] == 2)
    )
    _, manifest = draw(dataclasses.replace(study, rollouts=study.rollouts.assign(**{"length/right_mean": rare})), "F17")
    found = series_of(manifest, metric="length/right_mean", facet="addition/healthy", arm="no_clip")
    assert (len(found["x"]), list(found["seeds"])) == (12, [2])


@pytest.mark.parametrize("figure", ["F1", "F2", "F12"])
def test_lines_are_the_manifests_means(study, figure):
    picture, manifest = draw(study, figure)
    drawn = [line for line in lines_of(picture) if line.get_linewidth() > 1]
    series = [s for s in manifest.numbers if s["x"]]
    assert len(drawn) == len(series) > 0
    for line, numbers in zip(drawn, series, strict=True):
        assert line.get_xdata() == pytest.approx(numbers["x"])
        assert line.get_ydata() == pytest.approx(numbers["mean"])
        assert np.mean(list(numbers["seeds"].values()), axis=0) == pytest.approx(numbers["mean"])
        assert line.get_color() == arm_styles(study.arms)[numbers["arm"]].colour


def test_a_log_scale_has_points_and_no_bars_and_zero_is_written_out(study):
    picture, manifest = draw(study, "F3")
    assert not [patch for panel in picture.axes for patch in panel.patches]
    points = [line.get_xdata()[0] for line in lines_of(picture) if line.get_marker() != "."]
    assert [x for x in points if x > 0] == pytest.approx([s["mean"] for s in manifest.numbers if s["mean"] > 0])
    for panel in picture.axes:  # nothing is cut off
        low, high = panel.get_xlim()
        drawn = [value for s in manifest.numbers for value in (*s["seeds"].values(), s["low"], s["high"]) if value > 0]
        assert low < min(drawn) <= max(drawn) < high
    unclipped = [s for s in manifest.numbers if s["arm"] == "no_clip"]
    assert [s["mean"] for s in unclipped] == [0, 0]
    assert sum(text.get_text() == "0" for panel in picture.axes for text in panel.texts) == 2
    # (1 - .2 zero-variance groups)(1 - 1/2)
    assert unclipped[0]["ceiling"] == pytest.approx(0.4)


def test_d1_has_a_line_for_each_number_and_names_all_that_log_it(study):
    picture, manifest = draw(study, "D1")
    (legend,) = picture.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown[:3] == ["trl, verl, openrlhf, areal, open_instruct, skyrl, torchtune", "roll", "slime, prime_rl"]
    assert len(shown) == 5
    assert len(manifest.numbers) == 5 * 2 * len(study.facets)
    by_pass = {s["metric"]: s for s in manifest.numbers if (s["by"], s["facet"]) == ("iteration", "addition/healthy")}
    assert by_pass["convention/trl"]["x"] == [0, 1]
    assert by_pass["convention/trl"]["mean"][0] == 0
    last = study.updates.query("arm == 'symmetric' and facet == 'addition/healthy' and iteration == 1")
    assert by_pass["convention/slime"]["mean"][1] == pytest.approx(last["convention/slime"].mean())
    assert {panel.get_yscale() for panel in picture.axes} == {"symlog"}  # ROLL's sum is above 1 here


def test_manifest_numbers_come_from_the_journals(study, results):
    _, manifest = draw(study, "F2")
    series = series_of(manifest, metric="clip/active", arm="symmetric", facet="addition/healthy")
    cell = study.cells.query("arm == 'symmetric' and seed == 1").iloc[0]
    journal = [json.loads(line) for line in (results.run(cell["signature"]) / "journal.jsonl").open()]
    clip = [r["clip/active"] for r in journal if r["kind"] == "update" and r["rollout_step"] in (4, 5, 6)]
    assert series["seeds"][1][series["x"].index(5)] == pytest.approx(np.mean(clip))


@pytest.mark.slow
def test_cells_that_are_missing_or_ended_early_are_said_in_the_picture(tmp_path):
    results, variant = write_study(tmp_path), "no_clip/addition/healthy"
    cells = load(results, "clip_range")[-1].plan["cells"]
    hopeless, burst, lost = (cell for cell in cells if cell["variant"] == variant)  # seeds 0, 1, 2
    write_run(results, hopeless, outcome="stopped", last_step=3)
    write_run(results, burst, outcome="diverged", last_step=6)
    (results.run(lost["signature"]) / "outcome.json").unlink()
    study = load(results, "clip_range")[-1]
    for figure in FIGURES.keys() - set(ANALYTIC_FIGURES):
        picture, manifest = draw(study, figure)
        note = " ".join(picture.get_suptitle().split())
        assert f"Missing: 1 of 18 cells ({variant} seed 2)" in note, figure
        assert f"Diverged (last finite evaluation carried forward, ×): {variant} seed 1" in note
        assert f"Stopped (last finite evaluation carried forward, ×): {variant} seed 0" in note
        unlike = [manifest.stopped, manifest.diverged, manifest.missing]
        assert unlike == [[f"{variant} seed {seed}"] for seed in (0, 1, 2)]
        assert set(manifest.signatures) == {cell["signature"] for cell in cells} - {lost["signature"]}
    crosses = [line for line in lines_of(draw(study, "F1")[0]) if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [[3], [6]]


def test_of_a_study_without_any_run_nothing_is_drawn(study):
    tables = {table: getattr(study, table).iloc[:0] for table in TABLES}
    empty = dataclasses.replace(study, cells=study.cells.assign(outcome="missing"), **tables)
    for figure in FIGURES.keys() - set(ANALYTIC_FIGURES):
        picture, manifest = draw(empty, figure)
        assert "Missing: 18 of 18 cells" in " ".join(picture.get_suptitle().split()), figure
        assert (manifest.numbers, manifest.caption) == ([], "Not drawn: no run has a result yet.")
        assert manifest.signatures == []


def test_unknown_figures_and_figures_without_cells_are_refused(study):
    with pytest.raises(RequestError, match="figures=F99 of study=clip_range is not one of F1, F2"):
        draw(study, "F99")
    with pytest.raises(RequestError, match="figures=F1 of study=clip_range needs cells"):
        draw(dataclasses.replace(study, cells=study.cells.iloc[:0]), "F1")


def test_an_arm_has_one_colour_everywhere_and_no_two_arms_share_one():
    for arms in (
        ["symmetric", "clip_higher", "lower_only", "outer_cap", "no_clip"],
        ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "gspo"],
        ["symmetric", "x1", "x2", "x3", "x4", "x5"],
        [f"arm{n}" for n in range(10)],
    ):
        styles = arm_styles(arms)
        assert len({style.colour for style in styles.values()}) == len(arms)
        assert len({style.marker for style in styles.values()}) == len(arms)
    assert arm_styles(["a", "no_clip"])["no_clip"] == arm_styles(["no_clip", "b", "c"])["no_clip"]


def test_counterfactual_shares_are_what_clipping_would_count():
    """Histogram counts, made as vocabulary.py says, give back the share of tokens beyond every edge."""
    rng = np.random.default_rng(0)
    ratio, advantage = np.exp(rng.normal(0, 0.3, 5000)), rng.choice([-1, 0, 1], 5000)
    excess = (ratio - 1) * advantage
    edges = [0, *EXCESS_EDGES, np.inf]

    def counts(sign):
        signed = excess[advantage == sign]
        beyond = (np.sum((signed > low) & (signed <= high)) for low, high in itertools.pairwise(edges))
        return [np.sum(signed <= 0), *beyond]

    record = {"excess/token_pos": counts(1), "excess/token_neg": counts(-1), "position/count": [3000, 2000]}
    shares = clipping.share_beyond(pd.DataFrame([record, record]), "token")
    assert shares == pytest.approx([np.mean(excess > edge) for edge in EXCESS_EDGES])


def test_a_detached_rule_has_no_objective_curve(study):
    _, manifest = draw(study, "F9")
    curves = {(series["metric"], series["curve"]) for series in manifest.numbers if series["x"]}
    assert curves == {("objective", "no clip"), ("weight", "no clip"), ("weight", "cispo")}
    ratio = np.linspace(0.1, 3, 50)
    assert surfaces.is_surrogate(pd.DataFrame({"ratio": ratio, "objective": ratio, "weight": ratio}))


def test_the_theory_of_zero_variance_is_that_of_the_baselines_group_size(tmp_path):
    """The baseline has groups of 8; the first cell of the plan has groups of 2."""
    results = write_study(tmp_path, "zero_variance", {"group": ["2", "8"], "task": ["sorting"]}, baseline="8")
    plan = json.loads(results.plan("zero_variance").read_text())
    for cell in plan["cells"]:
        cell["settings"]["num_generations"] = int(cell["levels"]["group"])
    results.plan("zero_variance").write_text(json.dumps(plan))
    study = load(results, "zero_variance")[-1]
    _, manifest = draw(study, "F20")
    (theory,) = [s for s in manifest.numbers if s["metric"] == "p^G+(1-p)^G"]
    raw = study.rollouts[study.rollouts["arm"] == "8"].groupby("rollout_step")["reward/correct"].mean().to_numpy()
    p = np.array([raw[0], *(raw[step - 1 : step + 2].mean() for step in range(1, 12))])
    assert theory["arm"] == "8"
    assert theory["mean"] == pytest.approx(p**8 + (1 - p) ** 8)


def test_pass_at_k_is_drawn_at_start_and_end_and_says_where_it_falls_below_the_start(study):
    """`symmetric` solves more of what one completion solves and less of what 256 do; `no_clip` rises everywhere."""
    end, seed = study.evaluations["rollout_step"] == 12, study.evaluations["seed"]
    passes = {study.metric: 0.1, "eval/pass_at_4": 0.3, "eval/pass_at_16": 0.5, "eval/pass_at_64": 0.7}
    rise = {study.metric: 0.1, "eval/pass_at_4": 0.05, "eval/pass_at_16": 0.02, "eval/pass_at_64": -0.02}
    sharp = (study.evaluations["arm"] == "symmetric").to_numpy()
    columns = {name: start + 0.01 * seed + end * np.where(sharp, rise[name], 0.1) for name, start in passes.items()}
    known = dataclasses.replace(study, evaluations=study.evaluations.assign(**columns))
    picture, manifest = draw(known, "F37")
    place = {"metric": "pass@k", "facet": "addition/healthy"}
    assert series_of(manifest, **place, arm="start")["mean"] == pytest.approx([0.11, 0.31, 0.51, 0.71])
    ends = [of for of in manifest.numbers if place.items() <= of.items() and of["arm"] == "symmetric"]
    assert ends[0]["mean"] == pytest.approx([0.21, 0.36, 0.53, 0.69])
    assert (ends[1]["mean"], ends[1]["high"]) == (pytest.approx([10, 5, 2, -2]), pytest.approx([10, 5, 2, -2]))
    assert "`symmetric` on addition/healthy at k = 32 (below 0 beyond its interval)" in manifest.caption
    assert "no_clip` on" not in manifest.caption
    assert {panel.get_xscale() for panel in picture.axes} == {"log"}
    assert crossing(np.array([1, 4, 16]), np.array([0.1, 0.2, 0.1])) == np.inf
    assert draw(study, "F37")[1].caption.startswith("Not drawn: needs eval/pass_at_4")


def test_a_mismatch_is_that_of_the_first_update_on_a_batch(study):
    kl = np.where(study.updates["iteration"] == 0, 1e-3, 1.0)
    gaps = study.rollouts.assign(
        **{"gap/sampler_trainer": 1e-6, "gap/first_pass": np.where(study.rollouts["seed"] > 0, np.nan, 0.2)}
    )
    both = dataclasses.replace(study, updates=study.updates.assign(**{"kl_old/k3": kl}), rollouts=gaps)
    picture, manifest = draw(both, "F38")
    found = series_of(manifest, metric="kl_old/k3", facet="addition/healthy", arm="no_clip")
    assert found["mean"] == pytest.approx([1e-3] * 12)
    gap = series_of(manifest, metric="gap", facet="addition/healthy", arm="no_clip")
    assert [gap["seeds"][seed][0] for seed in range(3)] == pytest.approx([0.2, 1e-6, 1e-6])
    assert {panel.get_yscale() for panel in picture.axes} == {"log"}


@pytest.mark.parametrize("figure", ["F1", "F2", "F3", "F18", "F24", "F26"])
def test_no_share_has_an_interval_outside_0_and_1(study, figure):
    """With three seeds that differ much, Student's interval of a share reaches far beyond."""
    rng = np.random.default_rng(0)
    shares = [name for name, metric in METRICS.items() if metric.unit.startswith(("share", "mean share", "prob"))]
    tables = {}
    for table in ("updates", "rollouts", "evaluations"):
        frame = getattr(study, table)
        wild = {signature: float(rng.choice([0.004, 0.3, 0.97])) for signature in frame["signature"].unique()}
        tables[table] = frame.assign(**{name: frame["signature"].map(wild) for name in shares if name in frame})
    _, manifest = draw(dataclasses.replace(study, **tables), figure)
    for numbers in manifest.numbers:
        metric = numbers.get("metric", "final_score")
        if metric in (*shares, "final_score", "lost", "drawdown") and "minus" not in numbers:
            bounds = np.array([numbers.get("low", []), numbers.get("high", [])], dtype=float)
            assert np.nanmin(bounds, initial=0) >= 0, metric
            assert np.nanmax(bounds, initial=1) <= 1, metric
