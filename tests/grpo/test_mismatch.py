"""How far the sampler is from the trainer, in numbers: against verl's and against sums written out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_rejection import random_inputs
from tiny import records, run_folder, tiny_settings

from grpolab.frameworks.verl_correction import mismatch_metrics
from grpolab.grpo.loss import LossInputs
from grpolab.grpo.mismatch import mismatch
from grpolab.paths import Results
from grpolab.run.train import run
from grpolab.vocabulary import GAP_EDGES

VERL = {
    **{"gap/k1": "kl", "gap/k3": "k3_kl", "gap/chi2": "chi2_token", "gap/chi2_sequence": "chi2_seq"},
    "gap/perplexity_ratio": "ppl_ratio",
}


@pytest.mark.parametrize("noise", [0.01, 0.3, 3.0])
def test_kl_chi_squared_and_perplexities_are_verls(noise: float) -> None:
    inputs = random_inputs(0, noise)
    assert inputs.sampler_log_probs_BT is not None
    theirs = mismatch_metrics(None, inputs.old_log_probs_BT, inputs.sampler_log_probs_BT, inputs.mask_BT)
    ours, _ = mismatch([inputs], "old")
    for name, verl in VERL.items():
        assert ours[name] == pytest.approx(theirs[f"rollout_corr/{verl}"], rel=1e-9)


def test_effective_sample_sizes_and_the_gap_by_probability() -> None:
    inputs, mask_BT = random_inputs(1), random_inputs(1).mask_BT.numpy()
    assert inputs.sampler_log_probs_BT is not None
    sampler_BT = inputs.sampler_log_probs_BT.numpy()
    log_ratio_BT = np.where(mask_BT, inputs.log_probs_BT.detach().numpy() - sampler_BT, 0.0)
    halves = [slice(0, 5), slice(5, None)]  # minibatches of one batch
    parts = [
        LossInputs(
            *(inputs.log_probs_BT[half], inputs.old_log_probs_BT[half], inputs.advantages[half], inputs.mask_BT[half]),
            totals=inputs.totals,
            sampler_log_probs_BT=inputs.sampler_log_probs_BT[half],
        )
        for half in halves
    ]
    metrics, lists = mismatch(parts, "current")
    for name, weight_N in (("ess", np.exp(log_ratio_BT[mask_BT])), ("ess_sequence", np.exp(log_ratio_BT.sum(1)))):
        assert metrics[f"gap/{name}"] == pytest.approx(weight_N.sum() ** 2 / (len(weight_N) * (weight_N**2).sum()))
    bins_N = np.digitize(np.exp(sampler_BT[mask_BT]), GAP_EDGES)
    for place in range(len(GAP_EDGES) + 1):
        of_N = log_ratio_BT[mask_BT][bins_N == place]
        assert lists["gap/count"][place] == len(of_N)
        assert lists["gap/abs_log_ratio"][place] == pytest.approx(np.abs(of_N).sum())
        assert lists["gap/ratio"][place] == pytest.approx(np.exp(of_N).sum())


def test_equal_policies_have_no_gap() -> None:
    inputs = random_inputs(2)
    inputs = LossInputs(**{**vars(inputs), "sampler_log_probs_BT": inputs.old_log_probs_BT})
    metrics, _ = mismatch([inputs], "old")
    assert [metrics[name] for name in ("gap/k1", "gap/k3", "gap/chi2", "gap/chi2_sequence")] == [0.0] * 4
    assert metrics["gap/ess"] == metrics["gap/ess_sequence"] == metrics["gap/perplexity_ratio"] == 1.0


@pytest.mark.parametrize("old", ["trainer", "sampler"])
def test_a_run_records_it_where_it_is_asked_to(old: str, tmp_path: Path) -> None:
    settings = tiny_settings(sampler_noise=0.3, old_log_probs=old, diagnostics={"mismatch": True}, num_minibatches=2)
    run(settings, results := Results.open(tmp_path))
    folder = run_folder(settings, results)
    gaps = [record["gap/k3"] for record in records(folder, "rollout")]
    assert len(gaps) == 3
    assert all(0.005 < gap < 0.2 for gap in gaps)  # noise^2 / 2 (1 - sum p^2) is .04 here at most
    assert all(len(record["gap/count"]) == len(GAP_EDGES) + 1 for record in records(folder, "histogram"))
    if old == "sampler":  # the same number, of the first optimiser step's tokens
        first = [record["kl_old/k3"] for record in records(folder, "update") if record["iteration"] == 0]
        assert gaps[0] == pytest.approx(np.mean(first[:2]), rel=0.5)


def test_a_run_that_is_not_asked_has_none_of_it() -> None:
    assert "mismatch" not in tiny_settings().identity()["diagnostics"]
