"""`import grpolab as gl`: the same runs, numbers and refusals as the command line's."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from report_results import write_study

import grpolab as gl
from grpolab import api
from grpolab.grpo.aggregation import Totals
from grpolab.sweep.compose import compose
from grpolab.sweep.jobs import Request

TINY = [
    *("rollout_steps=1", "warm_start.max_steps=2", "warm_start.batch_size=8", "warm_start.check_items=8"),
    *("evaluation.items=8", "prompts_per_step=2", "num_generations=2", "diagnostics.samples_every=1"),
    *("machine.tracking_uri=null",),
]


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys, grpolab; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pandas", "numpy", "torch", "grpolab.api"} & set(loaded)


def test_names_are_the_apis_own() -> None:
    import grpolab.sweep.plan  # noqa: F401  (the room has the name of a function)

    assert all(callable(getattr(gl, name)) for name in gl.__all__)
    with pytest.raises(AttributeError, match="no attribute swep"):
        _ = gl.swep


def minibatch() -> dict[str, torch.Tensor]:
    """Four sequences of up to five tokens, B = 4 and T = 5, some ratios far out of the clip range."""
    generator = torch.Generator().manual_seed(0)
    old_BT = -torch.rand(4, 5, generator=generator, dtype=torch.double) - 0.1
    new_BT = (old_BT + 0.5 * torch.randn(4, 5, generator=generator, dtype=torch.double)).requires_grad_()
    mask_BT = torch.arange(5) < torch.tensor([5, 3, 4, 1])[:, None]
    advantages_B = torch.tensor([1.0, -1.0, 0.5, -0.5], dtype=torch.double)
    return {"log_probs_BT": new_BT, "old_log_probs_BT": old_BT, "advantages": advantages_B, "mask_BT": mask_BT}


def by_hand(tensors: dict[str, torch.Tensor], low: float, high: float) -> tuple[float, float]:
    """GRPO's clipped loss as a mean over sequences of means over tokens, and the share of clipped tokens, in loops."""
    losses, clipped, tokens = [], 0, 0
    for b, advantage in enumerate(tensors["advantages"].tolist()):
        row = []
        for t in torch.nonzero(tensors["mask_BT"][b])[:, 0].tolist():
            ratio = math.exp(tensors["log_probs_BT"][b, t].item() - tensors["old_log_probs_BT"][b, t].item())
            row.append(-min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage))
            clipped += (ratio > 1 + high and advantage > 0) or (ratio < 1 - low and advantage < 0)
            tokens += 1
        losses.append(sum(row) / len(row))
    return sum(losses) / len(losses), clipped / tokens


def test_an_objective_is_the_loss_of_its_settings() -> None:
    tensors = minibatch()
    loss, metrics = gl.objective(loss_type="grpo", epsilon=0.2, epsilon_high=0.28)(**tensors)
    expected, clipped = by_hand(tensors, 0.2, 0.28)
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    assert 0 < metrics["clip/active"] == pytest.approx(clipped)
    assert "entropy/current" not in metrics
    loss.backward()
    assert tensors["log_probs_BT"].grad is not None


def test_a_frameworks_objective_has_its_metrics() -> None:
    tensors = minibatch()
    loss, metrics = gl.objective("dialect=trl", beta=0.0)(**tensors)
    assert metrics["trl/clip_ratio/region_mean"] == pytest.approx(metrics["clip/active"])
    assert math.isfinite(loss.item())


def test_losses_of_micro_batches_add_up() -> None:
    tensors, loss_of = minibatch(), gl.objective(loss_type="dapo")
    whole, _ = loss_of(**tensors)
    totals = Totals.of(tensors["mask_BT"])
    halves = [{name: tensor[rows] for name, tensor in tensors.items()} for rows in (slice(0, 2), slice(2, 4))]
    assert sum(loss_of(**half, totals=totals)[0].item() for half in halves) == pytest.approx(whole.item(), abs=1e-12)


def test_tensors_that_do_not_fit_are_refused() -> None:
    tensors = minibatch()
    with pytest.raises(gl.RequestError, match=r"beta=0.1 needs reference_log_probs_BT"):
        gl.objective(beta=0.1, kl_estimator="k3", kl_gradient="plain")(**tensors)
    with pytest.raises(gl.RequestError, match=r"entropy_coef needs entropy_BT"):
        gl.objective(entropy_coef=0.01)(**tensors)
    with pytest.raises(gl.RequestError, match=r"old_log_probs_BT has shape \(4, 4\), mask_BT has \(4, 5\)"):
        gl.objective()(**{**tensors, "old_log_probs_BT": tensors["old_log_probs_BT"][:, 1:]})
    with pytest.raises(gl.RequestError, match=r"advantages has shape \(3,\)"):
        gl.objective()(**{**tensors, "advantages": tensors["advantages"][:3]})
    with pytest.raises(gl.RequestError, match="epsilon=-1"):
        gl.objective(epsilon=-1)


def test_keywords_are_overrides() -> None:
    weights = {"correct": 1.0, "near": 0.25}
    given = {"epsilon_high": math.inf, "delta": None, "seed": 7, "reward.weights": weights, "task": "sorting"}
    settings = compose(["reward.function=mine.py:score", *api.to_overrides(given)])
    assert (settings.epsilon_high, settings.delta, settings.seed) == (math.inf, None, 7)
    assert settings.reward.weights == weights
    assert settings.task.name == "sorting"
    words = api.to_overrides({"task": "dataset", "task.dataset": "x.jsonl", "task.system": 'Say "yes", or no.'})
    assert compose(words).task.system == 'Say "yes", or no.'
    assert api.to_overrides({"machine.results": Path("my runs/a")}) == ['machine.results="my runs/a"']


def test_a_study_as_tables(tmp_path: Path) -> None:
    write_study(tmp_path)
    study = gl.load("clip_range", results=tmp_path)
    assert len(study.runs) == 3 * 2 * 3
    assert set(study.runs["outcome"]) == {"completed"}
    keys = {"study", "variant", "arm", "facet", "seed", "signature", "factor/clip"}
    tables = (study.runs, study.updates, study.rollouts, study.evaluations)
    assert all(len(table) and keys <= set(table) for table in tables)
    scores = study.runs.pivot(index=["facet", "seed"], columns="arm", values="final_score")
    by_facet = (scores["no_clip"] - scores["symmetric"]).groupby("facet").mean()
    compared = gl.compare(study, "no_clip").set_index("facet")
    assert np.allclose(compared["difference"], by_facet[compared.index])
    assert (compared["low"] <= compared["difference"]).all()
    assert set(compared["n"]) == {3}
    verdicts = gl.decide(study)
    assert list(verdicts["id"].unique()) == ["H6"]
    assert verdicts.loc[0, "sentence"].startswith(study.loaded[-1].plan["hypotheses"][0]["id"])
    assert "no_clip" in study.screen()
    assert "<table" in study.table("scores")._repr_html_()
    assert "<img" in study.figure("F1")._repr_html_()
    for call, said in (
        (lambda: gl.compare(study, "no_clap"), "whose arms are symmetric, clip_higher, no_clip"),
        (lambda: gl.compare(study, "no_clip", quantity="final"), "metric=final is neither"),
        (lambda: study.table("score"), "table=score is not one of scores"),
        (lambda: study.figure("F99"), "is not one of F1"),
        (lambda: gl.load("nothing", results=tmp_path), "study nothing is not planned"),
    ):
        with pytest.raises(gl.RequestError, match=said):
            call()


def test_train_returns_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(gl.RequestError, match="epsilon=-1"):
        gl.train(epsilon=-1, **{"machine.results": str(tmp_path / "none")})
    assert not (tmp_path / "none").exists()
    for name in ("conf", "experiments"):  # a project, whose results are those of conf/run.yaml
        (tmp_path / "project" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("GRPOLAB_RESULTS", str(tmp_path / "other"))  # of `load` alone
    study = gl.train(*TINY, seed=3)
    results = tmp_path / "project" / "results"
    (outcome,) = study.runs["outcome"]
    assert (outcome, study.name, list(study.runs["seed"])) == ("completed", "adhoc", [3])
    assert {"rollout_step", "signature", "seed"} <= set(study.samples)
    run = results / "runs" / study.runs.loc[0, "signature"]
    diagnosis = gl.diagnose(run)
    assert diagnosis.run == run.name
    assert str(diagnosis).startswith(f"run {run.name}: completed")
    journal = run / "journal.jsonl"
    before = journal.stat().st_mtime_ns
    again = gl.train(*TINY, seed=3, **{"machine.results": str(results)})
    assert again.runs["outcome"].tolist() == ["completed"]
    assert journal.stat().st_mtime_ns == before


def test_sweep_asks_for_what_the_command_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(plans, jobs, **rest):
        Request(plans).write_plans(retry_failed=False)
        asked.update(jobs=jobs, **rest)
        return 0

    asked: dict[str, object] = {}
    monkeypatch.setattr("grpolab.studies.sweep.sweep", trained)
    study = gl.sweep("smoke", seeds=[5], jobs=1, epsilon=0.1, **{"machine.results": str(tmp_path)})
    assert asked["jobs"] == 1
    assert set(study.runs["seed"]) == {5}
    assert set(study.runs["outcome"]) == {"missing"}
    study = gl.sweep("smoke", seeds=2, epsilon=0.1, **{"machine.results": str(tmp_path)})
    assert set(study.runs["seed"]) == {0, 1}
    with pytest.raises(gl.RequestError, match="study smok is unknown"):
        gl.sweep("smok")
    with pytest.raises(gl.RequestError, match="-1, is not allowed: how many seeds"):
        gl.sweep("smoke", seeds=[-1])


def test_a_log_of_another_trainer(tmp_path: Path) -> None:
    with pytest.raises(gl.RequestError, match=r"nothing\.json"):
        gl.diagnose(tmp_path / "nothing.json")


def test_each_function_says_what_it_does() -> None:
    for name in gl.__all__:
        assert inspect.getdoc(getattr(gl, name)), name
