"""`show` recomputes the ratio of a sequence from the tokens that are kept, as the loss had it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tiny import records, run_folder, tiny_settings

from grpolab.paths import Results
from grpolab.report.inspect import show
from grpolab.run.train import run


@pytest.mark.parametrize("level", ["sequence", "sequence_token"])
def test_the_shown_ratios_are_those_of_the_journal(tmp_path: Path, level: str) -> None:
    results = Results.open(tmp_path)
    settings = tiny_settings(importance_sampling_level=level, epsilon=1e-3, epsilon_high=1e-3)
    assert run(settings, results)["outcome"] == "completed"
    folder = run_folder(settings, results)
    shown = re.findall(r"sequence:([\d.]+)([v^]?)  of tokens", show(results, folder.name, 2, prompts=4))
    ratios = [float(ratio) for ratio, _ in shown]
    last = [update for update in records(folder, "update") if update["rollout_step"] == 2][-1]
    assert len(ratios) == 16
    assert min(ratios) == pytest.approx(last["ratio/sequence_min"], abs=1e-5)
    assert max(ratios) == pytest.approx(last["ratio/sequence_max"], abs=1e-5)
    marked = [float(ratio) for ratio, mark in shown if mark]
    assert marked, "something is clipped"
    assert all(abs(ratio - 1) > 1e-3 for ratio in marked)
