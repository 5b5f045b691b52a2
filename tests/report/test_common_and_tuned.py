"""Each arm at common and at tuned values: paired differences, fresh seeds only, and the section in the report."""

import pytest
from report_results import cells_of, change, whole_of
from scipy import stats
from tuning_results import BEST_RATES, TUNED, write_evaluation, write_trials

from grpolab.errors import RequestError
from grpolab.report import page, tuning
from grpolab.report.load import load
from grpolab.report.measures import at, measure


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    results = write_evaluation(tmp_path_factory.mktemp("results"), figures=["F1"])
    return write_trials(results.root)


@pytest.fixture
def study(results):
    return load(results, "ratio")[-1]


def test_differences_are_those_of_the_same_seed(study):
    final = measure(study, "final_score")
    rows = tuning.compare_values(study)
    assert [row.arm for row in rows] == list(BEST_RATES)
    for row in rows:
        difference = (at(final, "tuned", row.arm) - at(final, "common", row.arm)).to_numpy()
        half = stats.t.ppf(0.975, 3) * difference.std(ddof=1) / 2
        assert row.gain[:3] == pytest.approx((difference.mean(), difference.mean() - half, difference.mean() + half))
        lead = at(final, "tuned", row.arm) - at(final, "tuned", "token")
        assert row.lead["tuned"].effect == pytest.approx(lead.mean())
        assert row.means["common"].mean == pytest.approx(at(final, "common", row.arm).mean())


def test_common_and_tuned_are_compared_within_the_levels_of_other_factors(tmp_path):
    results = write_evaluation(tmp_path)
    cells = cells_of(results, "ratio")
    for cell in cells:
        cell["levels"] = {"ratio": cell["levels"]["ratio"], "task": "sorting", "values": cell["levels"]["values"]}
    factors = {"ratio": list(BEST_RATES), "task": ["sorting"], "values": ["tuned", "common"]}
    change(results.plan("ratio"), cells=cells, factors=factors)
    study = load(results, "ratio")[-1]
    final, rows = measure(study, "final_score"), tuning.compare_values(study)
    assert [(row.place, row.arm) for row in rows] == [("sorting", arm) for arm in BEST_RATES]
    for row in rows:
        for end in ("common", "tuned"):
            assert len(row.scores[end]) == 4
            assert row.scores[end].equals(at(final, f"sorting/{end}", row.arm))


@pytest.mark.parametrize("command", [page.write, page.draw])
def test_seeds_that_chose_the_values_do_not_judge_them(tmp_path, command):
    results = write_evaluation(tmp_path, tuned=[{**TUNED, "seeds": [2, 1000]}])
    with pytest.raises(RequestError, match="study=ratio: seed 2 of 6 cells chose the values of tuned=ratio") as caught:
        command(results, "ratio")
    assert len(caught.value.problems) == 1


@pytest.mark.slow
def test_the_report_has_a_section(results):
    text = page.write(results, "ratio").read_text()
    before, section = text.split("## Tuning\n")
    section, after = section.split("## Provenance")
    assert "Tuned minus common values, paired by seed: `token` " in section
    assert "figures/ratio_trial_history.png" in section
    assert "trial_history" not in before + after
    output = results.output("ratio")
    assert (output / "tables" / "tuned_values.tex").exists()
    names = {path.name for path in page.draw(results, "ratio")}
    assert {"ratio_learning_curves.png", "ratio_trial_history.png"} <= names


def test_studies_of_one_report_have_one_section_that_says_where_trials_are_not(tmp_path):
    for name in ("evaluation", "second"):
        results = write_evaluation(tmp_path, name, tuned=[{**TUNED, "study": "ratio"}])
    whole_of(results, "both", ["evaluation", "second"])
    for report, tables in (("evaluation", 1), ("both", 2)):
        text = page.write(results, report).read_text()
        said = "are those of `conf/tuned/ratio.yaml`; the trials behind them are not in this results folder."
        assert (text.count("## Tuning"), text.count(f"Tuned values {said}")) == (1, 1)
        assert text.count("of each arm at common and at tuned values") == tables


def test_a_study_that_has_nothing_to_do_with_tuning_has_no_section(tmp_path):
    results = write_evaluation(tmp_path, tuned=[])
    assert "## Tuning" not in page.write(results, "ratio").read_text()


def test_values_that_all_variants_have_are_no_comparison(tmp_path):
    results = write_evaluation(tmp_path, tuned=[{**TUNED, "factor": None, "level": None}])
    assert tuning.compare_values(load(results, "ratio")[-1]) == []


def test_a_missing_cell_is_left_out_of_the_pairs(tmp_path):
    results = write_evaluation(tmp_path)
    cell = next(c for c in load(results, "ratio")[-1].cells.itertuples() if (c.variant, c.seed) == ("gspo/tuned", 1))
    (results.run(cell.signature) / "outcome.json").unlink()
    study = load(results, "ratio")[-1]
    rows = tuning.compare_values(study)
    assert [row.gain.n for row in rows] == [4, 3, 4]
