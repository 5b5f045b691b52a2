"""The section about runs in which something is wrong: every lost run by the report's label, and counts that add up."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from report_results import FACTORS, write_study

from grpolab.doctor import Finding
from grpolab.doctor.evidence import Evidence
from grpolab.doctor.section import Examined, section, write
from grpolab.paths import REFERENCE_STUDY, Results
from grpolab.report.load import load
from grpolab.report.measures import stability_table

COMMITTED = Results.open(Path(__file__).parents[2] / "results")


def counts(text: str) -> list[int]:
    """Lost, all, with a known cause and without, the others: all, with a cause and without."""
    head = text.split("Numbers before a colon")[0].replace(",", "")
    pattern = (
        r"(\d+) of (\d+) runs? are lost.*?: (\d+) with.*?(\d+) without\. Of the other (\d+) (\d+) have .*?(\d+) have"
    )
    found = re.search(pattern, head)
    assert found, head
    return [int(number) for number in found.groups()]


@pytest.mark.slow  # all committed runs
def test_lost_means_one_thing_to_report_and_doctor_in_every_committed_run() -> None:
    lost = 0
    for study in load(COMMITTED, REFERENCE_STUDY):
        evaluations = dict(iter(study.evaluations.groupby("signature")))
        for cell, labels in zip(study.done.itertuples(), stability_table(study).itertuples(), strict=True):
            told_by = {"thresholds": study.thresholds, "metric": study.metric}
            run = Evidence(cell.signature, cell.outcome, evaluations=evaluations[cell.signature], **told_by)
            assert bool(run.lost) is bool(labels.lost), cell.signature
            lost += bool(run.lost)
    assert lost > 100


@pytest.mark.slow  # all committed runs
def test_every_lost_run_of_a_committed_study_has_its_row_and_an_arm_has_one() -> None:
    (study,) = [study for study in load(COMMITTED, REFERENCE_STUDY) if study.name == "clip_range"]
    text, table = section([study]), stability_table(study)
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")}
    for run in table[table["lost"].astype(bool)].itertuples():
        assert re.search(rf"\b{run.seed}: [\d.e-]+, [\d.e-]+, [\d.e-]+", rows[run.variant]), run
    # Half of these runs have kept their updates, and half only the numbers about them.
    assert "| 15 of 15 | 2005 to 2019: unclipped |" in rows["no_clip/addition/stressed"]
    lost, runs, known, unknown, others, ill, well = counts(text)
    assert (lost, runs) == (table["lost"].sum(), len(table))
    assert (known + unknown, ill + well) == (lost, others)
    assert lost + others == runs


def test_a_lost_run_without_a_cause_is_said_to_be_one(tmp_path: Path) -> None:
    write_study(tmp_path, factors=FACTORS)
    (study,) = load(Results.open(tmp_path), "clip_range")
    clipped = {"cells": study.cells.assign(**{"setting/kernel": "clipped"}), "updates": study.updates.iloc[:0]}
    study = replace(study, **clipped)  # then nothing says why
    text = section([study])
    assert "0 to 2: no cause that the doctor knows" in text
    lost, runs, known, unknown, others, ill, well = counts(text)
    assert lost == 3, "no_clip, stressed"
    assert lost + others == runs == len(study.done)
    assert (known + unknown, ill + well) == (lost, others)


def test_seeds_of_one_arm_that_are_diagnosed_differently_share_a_row() -> None:
    def run(seed: int, cause: str, lost: str = "collapsed") -> Examined:
        finding = Finding("likely", (f"evidence of {seed}",), cause=cause)
        return Examined("arm", seed, f"run{seed}", lost, "0.3, 0.4, 0.1", (finding,) if cause else ())

    runs = [run(1, "unclipped"), run(2, "unclipped"), run(3, ""), run(4, "destroyed_policy"), run(5, "", "stopped")]
    text = write([*runs, replace(run(6, "plateau", ""), run="run6"), run(7, "", "")])
    (row,) = [line for line in text.splitlines() if line.startswith("| arm | 5")]
    assert "| 5 of 7 | 3 to 5: no cause that the doctor knows; 1 to 2: unclipped; 6: plateau |" in row
    assert "5: 0.3, 0.4, 0.1 (stopped)" in row
    assert "1 (run1, likely): evidence of 1" in row
    assert "6: 0.3" not in row, "it is not lost"
    assert counts(text) == [5, 7, 2, 3, 2, 1, 1]
    assert "(4 collapsed, 1 stopped)" in text


@pytest.mark.parametrize("lost", ["", "collapsed"])
def test_a_section_without_rows_and_without_runs(lost: str) -> None:
    assert section([]) == ""
    text = write([Examined("arm", 0, "run", lost, "0.3, 0.3, 0.1", ())])
    assert ("| arm |" in text) is bool(lost)
