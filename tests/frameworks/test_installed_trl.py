"""What we export, and what the linter says of TRL, against the installed TRL (`make bench WHAT=trl`).

TRL_PYTHON names another Python that has TRL 1.16.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from grpolab.frameworks.shared import make_loss_inputs
from grpolab.frameworks.vectors import make_inputs
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import policy_loss
from grpolab.paths import project_root
from grpolab.readers.exchange import export
from grpolab.run.assembly import loss_recipe
from grpolab.settings.resolved import resolve_run
from grpolab.settings.run import RunSettings
from grpolab.sweep.compose import Composer

PYTHON = Path(os.environ.get("TRL_PYTHON", project_root() / ".venv-bench" / "bin" / "python"))
pytestmark = [
    pytest.mark.optional,
    pytest.mark.skipif(not PYTHON.exists(), reason="no TRL: make bench WHAT=trl makes one"),
]

COMPOSER = Composer()
B, T = 8, 6
OURS = [
    "",
    "loss_type=dapo epsilon_high=0.28",
    "loss_type=bnpo",
    "loss_type=dr_grpo delta=2.0",
    "loss_type=cispo",
    "loss_type=gspo",
    "loss_type=sapo",
    "loss_type=vespo",
    "loss_type=luspo importance_sampling_level=sequence_token",
    "aggregation=sequence_mean_nonempty loss_form=max_negative dual_clip=3.0",
    "beta=0.04 kl_gradient=importance_weighted",
    "beta=0.04",
    "loss_type=dapo top_entropy_quantile=0.5",
    "loss_type=dapo off_policy_mask_threshold=0.1",
    "dialect=trl/cispo",
    "dialect=openrlhf beta=0 log_ratio_clamp=null scale_epsilon=1e-4",
]


def inputs() -> dict[str, Any]:
    """A minibatch of eight completions, as lists."""
    draw = torch.Generator().manual_seed(1)
    mask_BT = torch.arange(T) < torch.randint(1, T + 1, (B, 1), generator=draw)
    old_BT = -torch.rand(B, T, generator=draw, dtype=torch.double)
    moved_BT = 0.4 * torch.randn(B, T, generator=draw, dtype=torch.double)
    A_B1 = torch.randn(B, 1, generator=draw, dtype=torch.double)
    tensors = {
        "logprobs": (old_BT + moved_BT) * mask_BT,
        "old_logprobs": old_BT * mask_BT,
        "ref_logprobs": (old_BT - 0.2) * mask_BT,
        "rollout_logprobs": old_BT * mask_BT,
        "entropies": torch.rand(B, T, generator=draw, dtype=torch.double),
        "advantages": A_B1 * mask_BT,
        "mask": mask_BT.long(),
    }
    lists = {name: value.tolist() for name, value in tensors.items()}
    return {**lists, "seq_advantages": A_B1[:, 0].tolist(), "tags": []}


def our_loss(settings: RunSettings, given: dict[str, Any]) -> float:
    """The same minibatch by our objective; the sampler is not there."""
    tensors = {**make_inputs({"inputs": given}), "rollout_logprobs": None}
    totals = Totals.of(tensors["mask"], settings.max_completion_length)
    batch = make_loss_inputs(tensors, advantages=tensors["seq_advantages"][:, None], totals=totals)
    return float(policy_loss(resolve_run(settings).objective, batch, loss_recipe(settings.framework)).total)


def trl_answers(cases: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """What the installed TRL makes of options and inputs."""
    lines = "\n".join(json.dumps({**case, "folder": str(folder)}) for case in cases)
    script = Path(__file__).parent / "loss_of_trl.py"
    done = subprocess.run([PYTHON, script], input=lines, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_the_installed_trl_computes_our_loss_on_an_export(tmp_path: Path) -> None:
    runs = [COMPOSER.compose([*overrides.split(), "prompts_per_step=1", "task=filler_sorting"]) for overrides in OURS]
    cases = [{"options": export("trl", settings, COMPOSER.compose).options, "inputs": inputs()} for settings in runs]
    for overrides, settings, answer in zip(OURS, runs, trl_answers(cases, tmp_path), strict=True):
        assert answer["loss"] == pytest.approx(our_loss(settings, inputs()), rel=1e-6, abs=1e-7), overrides


def test_trls_defaults_are_as_the_linter_says(tmp_path: Path) -> None:
    on_policy = inputs()
    on_policy["old_logprobs"] = on_policy["logprobs"]
    options = [{}, {"epsilon": 1e-9}, {"loss_type": "cispo"}]
    plain, tight, cispo = trl_answers([{"options": given, "inputs": on_policy} for given in options], tmp_path)
    assert (plain["options"]["num_iterations"], plain["options"]["steps_per_generation"]) == (1, 1)
    assert plain["grad_logprobs"] == tight["grad_logprobs"], "no epsilon acts"
    assert cispo["grad_norm"] / plain["grad_norm"] == pytest.approx(0.2), "gradients are scaled by 0.2"
