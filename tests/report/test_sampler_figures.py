"""F38, F42 and F43: the sampler as another policy, against numbers that are put into the tables here."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from report_results import series_of, write_study

from grpolab.report.figures import draw
from grpolab.report.load import load
from grpolab.vocabulary import GAP_EDGES

BINS = len(GAP_EDGES) + 1
PLACE = {"facet": "addition", "arm": "b"}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    factors = {"rule": ["a", "b"], "task": ["addition"]}
    return load(write_study(tmp_path_factory.mktemp("results"), "rules", factors), "rules")[-1]


def test_the_mismatch_is_the_recorded_one_where_there_is_one(study):
    rollouts = study.rollouts.assign(**{"gap/k3": 0.02, "gap/sampler_trainer": 0.5})
    updates = study.updates.assign(**{"rejection/tokens": np.where(study.updates["arm"] == "b", 0.03, 0.0)})
    _, manifest = draw(dataclasses.replace(study, rollouts=rollouts, updates=updates), "F38")
    for metric, value in (("gap/k3", 0.02), ("gap", 0.5), ("rejection/tokens", 0.03)):
        assert set(np.round(series_of(manifest, metric=metric, **PLACE)["mean"], 9)) == {value}


def test_the_gap_by_probability_is_over_all_tokens_of_a_bin(study):
    count = np.array([0, 5, 40, 60, 0, 0, 0, 0, 100, 100])
    records = [
        {
            **{"facet": "addition", "arm": "b", "seed": seed, "signature": f"s{seed}", "rollout_step": step},
            **{"gap/count": count, "gap/abs_log_ratio": count * gap * (1 + step), "gap/ratio": count * (1.0 + seed)},
        }
        for seed, gap in enumerate((0.1, 0.4))
        for step in (0, 2)
    ]
    _, manifest = draw(dataclasses.replace(study, histograms=pd.DataFrame(records)), "F42")
    gap = series_of(manifest, metric="abs_log_ratio", **PLACE)
    assert len(gap["x"]) == 4  # 2 * 5 tokens are too few, and four bins have none
    assert gap["mean"] == pytest.approx([np.sqrt(0.2 * 0.8)] * 4)  # of (1 + 3) / 2 times .1 and .4
    assert series_of(manifest, metric="ratio", **PLACE)["mean"] == pytest.approx([np.sqrt(2)] * 4)
    assert draw(study, "F42")[1].caption.startswith("Not drawn: needs diagnostics.mismatch=true")


def test_effective_samples_are_counted_back_from_the_loss(study):
    evaluations, rollouts = study.evaluations.astype({study.metric: float}), study.rollouts.copy()
    steps = np.sort(evaluations["rollout_step"].unique())
    course = np.where(np.arange(len(steps)) < len(steps) // 2, 0.9, 0.0)  # it falls to nothing halfway
    of_b = (evaluations["arm"] == "b") & (evaluations["seed"] < 2)
    falls = dict(zip(steps, [0.3, *course[1:]], strict=True))
    evaluations.loc[of_b, study.metric] = evaluations.loc[of_b, "rollout_step"].map(falls)
    lost_at = steps[len(steps) // 2]
    rollouts["gap/ess_sequence"] = np.where(rollouts["arm"] == "b", 0.5 + 0.001 * rollouts["rollout_step"], 0.9)
    _, manifest = draw(dataclasses.replace(study, evaluations=evaluations, rollouts=rollouts), "F43")
    lost = series_of(manifest, row="lost runs", **PLACE)
    assert lost["x"][-1] == 0
    assert list(lost["seeds"]) == [0, 1]
    assert dict(zip(lost["x"], lost["mean"], strict=True))[-1] == pytest.approx(0.5 + 0.001 * (lost_at - 1))
    other = series_of(manifest, row="other runs", **PLACE)
    assert (list(other["seeds"]), other["x"][-1]) == ([2], 0)
    assert "whole sequences" in manifest.caption
    none = draw(dataclasses.replace(study, rollouts=rollouts, evaluations=study.evaluations), "F43")[1]
    assert none.caption.startswith("Not drawn: no run here has collapsed or diverged")
