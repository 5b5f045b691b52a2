"""`grpolab compare`: same bits, same means, or not; and what cannot be compared."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from report_results import cells_of, change, rewrite, write_study
from scipy import stats
from statsmodels.stats.power import TTestPower

from grpolab.cli import main
from grpolab.errors import RequestError
from grpolab.paths import Results
from grpolab.report.compare import DIFFERS, OPEN, compare
from grpolab.report.export import export_reference
from grpolab.report.load import load
from grpolab.report.measures import at, measure
from grpolab.report.statistics.tests import welch_difference

FACTORS = {"clip": ["symmetric", "no_clip"], "task": ["addition"]}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("results"), factors=FACTORS, seeds=4)


@pytest.fixture
def copy(original, tmp_path) -> Results:
    shutil.copytree(original.root, tmp_path / "copy")
    return Results(tmp_path / "copy")


def edit(results, arm, shift):
    """Shift the accuracies of an arm's runs, and their journals' hashes with them; `shift` is given the seed."""
    for cell in cells_of(results):
        if cell["levels"]["clip"] == arm:
            journal = results.run(cell["signature"]) / "journal.jsonl"
            records = [json.loads(line) for line in journal.open()]
            for record in records:
                if record["kind"] == "evaluation":
                    record["eval/accuracy_expected"] += shift(cell["seed"])
            rewrite(journal, "".join(json.dumps(record) + "\n" for record in records))


def diverge(results, cells):
    for cell in cells:
        change(results.run(cell["signature"]) / "outcome.json", outcome="diverged")


@pytest.mark.parametrize("named", ["reference", "elsewhere"])
def test_the_same_runs_agree_bit_for_bit_with_their_export(copy, tmp_path, named, capsys):
    export_reference(copy, "clip_range")
    folder = copy.reference.rename(tmp_path / named)
    assert main(["compare", str(folder), "--results", str(copy.root)]) == 0
    said = capsys.readouterr().out
    assert "8 runs here, 8 there; 8 of the same signature, 8 of them with equal journals, bit for bit" in said
    assert "bit for bit; kind of CPU: not recorded here, not recorded there." in said
    assert "0 of 0 tests differ" in said
    assert "|" not in said  # nothing to decide


def test_the_folder_that_is_compared_stays_as_it_is(original, copy):
    def files():
        return {file: file.stat().st_mtime_ns for file in copy.root.rglob("*")}

    for cache in copy.root.rglob("journal.arrow"):
        cache.unlink()
    before = files()
    assert main(["compare", str(copy.root), "--results", str(original.root)]) == 0
    assert files() == before, "not even a cache is written there"


def verdicts(text):
    """{quantity: verdict} of a comparison's rows."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| clip_range")]
    return {row[1]: row[-1] for row in rows}


def test_noise_of_another_machine_agrees_and_a_shift_differs(original, copy, capsys):
    """Four of eight runs have other bits; only a whole interval within the margin is agreement."""
    edit(copy, "no_clip", lambda seed: 1e-3 * (-1) ** seed * (1 + seed))
    text, *_ = compare(copy, original.root)
    assert (
        "4 of them with equal journals, bit for bit; no_clip seed 0, no_clip seed 1, no_clip seed 2 and 1 more differ"
        in text
    )
    (row,) = [line for line in text.splitlines() if "final_score" in line]
    assert row.startswith("| clip_range no_clip in addition |")
    assert "| paired |" in row
    assert row.endswith("| agrees |")
    gain = load(original, "clip_range")[-1]
    margin = 0.2 * at(measure(gain, "gain"), "addition", "symmetric").mean()
    assert f"| ±{margin:.3f} |" in row
    edit(copy, "no_clip", lambda seed: -0.2)
    assert main(["compare", str(original.root), "--results", str(copy.root)]) == 1
    assert "1 of 4 tests differ (Holm over all of them, p < 0.05); 2 agree; 1 stay open." in capsys.readouterr().out


def test_what_no_test_can_tell_is_no_agreement(tmp_path, capsys):
    """One of three runs is lost here, none there: the old word for it was 'agrees'."""
    sides = [write_study(tmp_path / name, factors=FACTORS, seeds=3) for name in ("here", "there")]
    edit(sides[0], "symmetric", lambda seed: 0.05 * seed)
    diverge(sides[0], cells_of(sides[0])[:1])
    assert main(["compare", str(sides[1].root), "--results", str(sides[0].root)]) == 3
    text = capsys.readouterr().out
    said = verdicts(text)
    assert said["lost"] == "no difference found (3 runs: too few to find any)"
    assert said["final_score"].startswith("no difference found (3 seeds")
    assert "0 of 4 tests differ" in text
    assert "agrees: the whole 95% interval of the difference lies within the margin" in text
    with pytest.raises(SystemExit):
        main(["compare", "-h"])
    assert "0 all is bit-equal or agrees within its margin, 1 something differs, 3" in " ".join(
        capsys.readouterr().out.split()
    )


def test_what_would_have_been_found_is_what_the_test_finds_with_its_power(original, copy):
    """With ten seeds and a known spread: a difference of that size has p below the level in four of five outcomes."""
    edit(copy, "symmetric", lambda seed: 0.03 * (-1) ** seed)
    text, verdict, _ = compare(copy, original.root)
    assert verdict == OPEN
    (said,) = [verdict for verdict in verdicts(text).values() if verdict.startswith("no difference found (4 seeds")]
    found = float(said.rpartition(" ")[2].rstrip(")"))
    spread = np.std([0.03, -0.03, 0.03, -0.03], ddof=1)
    level = 0.05 / text.count("| clip_range")
    assert TTestPower().power(found / spread, 4, level) == pytest.approx(0.8, abs=0.01)


def test_other_signatures_are_compared_by_their_means(original, copy):
    """As another results_version has them."""
    cells = cells_of(copy)
    for cell in cells:
        copy.run(cell["signature"]).rename(copy.run(cell["signature"][::-1]))
        cell["signature"] = cell["signature"][::-1]
    change(copy.plan("clip_range"), cells=cells)
    text, verdict, _ = compare(copy, original.root)
    assert verdict == OPEN  # four runs a side say little about the share of lost ones
    assert "none has the same signature, so means are compared" in text
    assert text.count("| unpaired |") == 6
    edit(copy, "symmetric", lambda seed: 0.1)
    text, verdict, _ = compare(copy, original.root)
    assert verdict == DIFFERS
    assert [line.split(" | ")[1] for line in text.splitlines() if "DIFFERS" in line] == ["final_score"]


def test_more_collapses_are_counted(tmp_path):
    sides = [write_study(tmp_path / name, factors=FACTORS, seeds=10) for name in ("here", "there")]
    edit(sides[0], "symmetric", lambda seed: 1e-9)
    diverge(sides[0], cells_of(sides[0])[:10])
    text, verdict, _ = compare(*sides[:1], sides[1].root)
    (row,) = [line for line in text.splitlines() if "| lost |" in line]
    start = "| clip_range symmetric in addition | lost | 1 | 0 | +1 [+0.608, +1] | ±0.200 | 10 | counts"
    assert row == f"{start} | < .001 | DIFFERS |"
    assert verdict == DIFFERS


def test_what_cannot_be_compared_is_refused(original, tmp_path, capsys):
    (tmp_path / "nothing").mkdir()
    assert main(["compare", str(tmp_path / "nothing"), "--results", str(original.root)]) == 2
    assert "is no results folder (no format.json)" in capsys.readouterr().err
    with pytest.raises(RequestError, match=r"study=wrong is not both planned in .*here: clip_range; there: clip_range"):
        compare(original, original.root, "wrong")
    empty = Results.open(tmp_path / "empty")
    with pytest.raises(RequestError, match=r"no study is both planned in .*here: none; there: clip_range"):
        compare(empty, original.root)


def test_welch_is_scipys():
    rng = np.random.default_rng(0)
    of, minus = pd.Series(rng.normal(1, 1, 5)), pd.Series(rng.normal(0, 3, 8))
    welch, expected = welch_difference(of, minus), stats.ttest_ind(of, minus, equal_var=False)
    assert (welch.effect, welch.p) == pytest.approx((of.mean() - minus.mean(), expected.pvalue))
    assert (welch.low, welch.high) == pytest.approx(tuple(expected.confidence_interval()))
    assert welch_difference(pd.Series([1.0, 1.0]), pd.Series([1.0, 1.0])).p == 1
    assert np.isnan(welch_difference(pd.Series([1.0]), pd.Series([2.0, 3.0])).p)
