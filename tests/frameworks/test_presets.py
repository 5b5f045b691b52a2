"""Presets of conf/: a paper says every axis that it stands for, and a dialect's advantages are its framework's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from grpolab.frameworks.conformance import inputs_of, read_variants
from grpolab.grpo.advantages import Scored, advantages
from grpolab.paths import project_root
from grpolab.sweep.compose import compose

CONF = project_root() / "conf"
PAPERS = sorted(file.stem for file in (CONF / "paper").glob("*.yaml"))
AXES = {"importance_sampling_level", "kernel", "aggregation", "beta", "advantage_estimator", "scale_rewards"}
VECTORS = Path(__file__).parents[1] / "vectors" / "peers.tar.xz"
# Dialect -> what its framework computed with the same options.
ADVANTAGES = {
    "trl": "trl__adv__sum_then_normalize__group",
    "verl": "verl__adv__grpo__std1",
    "nemo_rl": "nemo_rl__adv__grpo__loo1__norm1",
    "skyrl": "skyrl__adv__grpo__std1",
    "areal/grpo": "areal__adv__grpo_group_group",
}


@pytest.mark.parametrize("name", PAPERS)
def test_a_paper_says_its_axes_and_its_reuse_of_a_batch(name: str) -> None:
    text = (CONF / "paper" / f"{name}.yaml").read_text()
    assert set(yaml.safe_load(text)) >= AXES
    assert "num_iterations:" in text or "reuse of a batch" in text  # else the run's default would pass for the paper's


def test_a_dialect_has_its_frameworks_advantages() -> None:
    variants = {variant.full_name: variant for variant in read_variants(VECTORS)}
    for dialect, name in ADVANTAGES.items():
        settings = compose([f"dialect={dialect}"])
        case = next(case for case in variants[name].cases if case["name"] == "binary")
        inputs = inputs_of(case)
        group_B = torch.as_tensor(inputs["group_ids"])
        chosen = settings.advantage_estimator, settings.scale_rewards, settings.scale_epsilon
        found_B = advantages(Scored(inputs["rewards"], group_B), *chosen)
        expected = torch.tensor(case["advantages"], dtype=torch.double)
        if expected.ndim == 2:  # the same at every token
            expected = expected.gather(1, inputs["mask"].int().argmax(1, keepdim=True))[:, 0]
        torch.testing.assert_close(found_B, expected, rtol=1e-6, atol=1e-7)
