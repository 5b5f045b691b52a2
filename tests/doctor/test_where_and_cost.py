"""Where a run lies beside healthy ones, what a finding costs, and what is still possible without one."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_evidence import changed, diagnose, diagnose_log, falling, sound
from test_causes import PAIRS, find
from test_reading import write_run

from grpolab.cli import main
from grpolab.doctor import examine, page
from grpolab.doctor import expected as table
from grpolab.doctor.cost import CONCERNED
from grpolab.doctor.evidence import Evidence, to_evidence
from grpolab.doctor.make_expected import make_table
from grpolab.doctor.page import REWARD_ITSELF
from grpolab.paths import Results
from grpolab.readers.logs import read_rows

ROOT = Path(__file__).parents[2]
GRPO: dict[str, Any] = {"kernel": "clipped", "num_iterations": 4, "num_minibatches": 1}
GSPO = GRPO | {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}


def clipping(share: float, **settings: Any) -> Evidence:
    return changed(sound(**settings), {"clip/active": share})


def place(run: Evidence, measure: str = "clip") -> table.Place:
    return next(place for place in table.find_places(run) if place.measure == measure)


def trl(text: str = "", n: int = 60, **metrics: Any) -> Evidence:
    """A log of TRL with a reward that goes nowhere, and what its config prints."""
    draw = np.random.default_rng(0).normal(0.4, 0.05, n)
    columns = {"reward": draw, "reward_std": 0.3, "loss": 0.1, "grad_norm": 1.0, "learning_rate": 1e-6, **metrics}
    log = read_rows("run", pd.DataFrame(columns).to_dict("records"))
    return to_evidence(replace(log, settings=json.loads(text or "{}")))


# --- where a run lies ------------------------------------------------------------------------------------------------


# Of one study that alone has a kernel, and one with other rewards; or whole.
PART = ["importance_weights", "random_reward"], "kernel == 'policy_gradient_masked'"


@pytest.mark.parametrize(("plans", "rows"), [PART, pytest.param(["*"], "index >= 0", marks=pytest.mark.slow)])
def test_the_committed_table_is_the_one_that_the_committed_runs_make(tmp_path: Path, plans: Any, rows: str) -> None:
    (tmp_path / "reference" / "plans").mkdir(parents=True)
    for name in ("*.parquet", *(f"plans/{plan}.json" for plan in plans)):
        for file in (ROOT / "results" / "reference").glob(name):
            (tmp_path / file.relative_to(ROOT / "results")).symlink_to(file)
    made = io.StringIO(make_table(Results(tmp_path)).to_csv(index=False, float_format="%.4g"))
    tables = (pd.read_csv(file).query(rows) for file in (made, ROOT / "src/grpolab/doctor/expected.csv"))
    pd.testing.assert_frame_equal(*(of.reset_index(drop=True) for of in tables), rtol=1e-3)


@pytest.mark.parametrize(
    ("share", "settings", "where", "said"),
    [
        (0.30, GSPO, "inside", "GSPO (2507.18071, figure 2): 15.0%): normal"),
        (0.15, GSPO, "inside", "one ratio per sequence, range 0.0003 and 0.0004, 4 updates a batch"),
        (0.80, GSPO, "above", "larger learning rate"),
        (0.30, GRPO, "above", "one ratio per token, range 0.2, 4 updates a batch"),
        (0.03, GRPO, "inside", "healthy runs of ours"),
        (0.0, GRPO, "below", "smaller learning rate"),
        (0.08, GRPO | {"staleness": 8}, "inside", "batches 8 steps old"),
        (0.03, GRPO | {"epsilon_high": 0.27}, "inside", "range 0.2 and 0.28"),  # the nearest range that has runs
    ],
)
def test_a_clip_fraction_lies_in_the_band_of_its_own_objective(
    share: float, settings: dict[str, Any], where: str, said: str
) -> None:
    found = place(clipping(share, **settings))
    assert found.place == where
    assert said in f"{found.says}; {found.of}"
    assert "wrong" not in found.says


@pytest.mark.parametrize("passes", [1, 2, 4])
def test_passes_choose_the_band_and_one_pass_clips_nothing(passes: int) -> None:
    run = changed(sound(passes, kernel="clipped"), {"clip/active": 0.0})
    assert place(run).place == ("inside" if passes == 1 else "below")


def test_without_its_objective_a_log_is_shown_the_bands_that_it_may_be_of() -> None:
    found = place(trl(**{"clip_ratio/region_mean": 0.02}))
    assert found.place == "unknown"
    assert "one ratio per token, range 0.2: 0% at 1" in found.says
    assert "one ratio per sequence" in found.says
    told = place(trl('{"importance_sampling_level": "sequence", "loss_type": "grpo"}', **{"clip_ratio": 0.3}))
    assert "does not say its clip range, its updates a batch" in told.says
    assert "one ratio per token" not in told.says
    assert not [one for one in table.find_places(trl()) if one.measure == "clip"], "nothing is logged"


def test_a_printed_config_of_trl_and_of_verl_says_the_objective(tmp_path: Path) -> None:
    options = {"epsilon": 3e-4, "epsilon_high": 4e-4, "importance_sampling_level": "sequence", "loss_type": "grpo"}
    options |= {"num_iterations": 1, "steps_per_generation": 16, "gradient_accumulation_steps": 4}
    rows = "".join(f"{{'loss': 0.1, 'grad_norm': 1.0, 'clip_ratio/region_mean': 0.{40 + n}}}\n" for n in range(5))
    log = tmp_path / "train.log"
    log.write_text(f"GRPOConfig(\n{''.join(f'{name}={value},' + chr(10) for name, value in options.items())})\n{rows}")
    (found,) = diagnose_log(None, log).places
    assert found.place == "inside"
    actor = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "ppo_epochs": 1, "ppo_mini_batch_size": 64}
    config = {"data": {"train_batch_size": 256}}
    config |= {"actor_rollout_ref": {"actor": {**actor, "policy_loss": {"loss_mode": "vanilla"}}}}
    rows = "".join(f"step:{n} - actor/pg_clipfrac:0.01 - actor/grad_norm:1.0\n" for n in range(5))
    log.write_text(f"{str(config).replace(', ', ',' + chr(10))}\n{rows}")
    (found,) = diagnose_log(None, log).places
    assert found.place == "inside"
    assert "4 updates a batch" in found.of


def test_entropy_kl_and_length_have_bands_and_a_penalty_none() -> None:
    found = {one.measure: one.place for one in table.find_places(changed(sound(**GRPO), {"entropy/behaviour": 0.5}))}
    assert found == {"clip": "inside", "entropy": "above", "kl": "inside", "length": "inside"}
    assert "kl" not in [one.measure for one in table.find_places(sound(beta=0.1, **GRPO))]


def test_where_runs_were_kept_as_numbers_entropy_has_the_band_of_any_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [replace(row, bands={"clip": row.bands["clip"]}) if "clip" in row.bands else row for row in table._table()]
    monkeypatch.setattr(table, "_table", lambda: rows)
    found = {one.measure: one.of for one in table.find_places(sound(**GRPO))}
    assert [*found] == ["clip", "entropy", "kl"]
    assert found["entropy"].endswith("with any objective")


# --- what a finding costs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", sorted(PAIRS.keys() - {"padding_in_clip_metric", "unclipped"}))
def test_every_finding_leads_with_its_cost_and_names_its_step(cause: str) -> None:
    diagnosis = examine(replace(PAIRS[cause][0](), seconds=36_000.0))
    first = diagnosis.findings[0]
    assert first.cause == cause
    assert first.step is not None
    words = " ".join(page.text(diagnosis).split())
    assert words.index(first.cost) < words.index(first.says)
    assert f"since step {first.step}" in first.cost or "step" in first.cost or cause == "plateau"


def test_equal_groups_are_counted_in_groups_and_hours() -> None:
    run = changed(sound(), {"zero_variance/share": 0.59, "zero_variance/all_wrong": 0.59})
    run = changed(run, {"zero_variance/share": 0.95}, lambda rollouts: rollouts["rollout_step"] >= 6)
    run = replace(changed(run, {"reward/mean": 0.3}), seconds=36_000.0)
    finding = find(run, "starving_variance")
    assert "In 77.0% of the groups all rewards were equal: 77.0% of the run (about 7.70 hours)" in finding.cost
    assert "hours" not in find(replace(run, seconds=np.nan), "starving_variance").cost, "no time is logged"
    bare = find(trl(reward_std=0.0, grad_norm=0.0), "constant_reward").cost
    assert bare.startswith("In 100.0% of the steps rewards hardly differed"), "such a log does not count groups"


def test_a_collapse_begins_where_the_score_fell_and_stayed() -> None:
    assert find(PAIRS["destroyed_policy"][0](), "destroyed_policy").step == 6  # of evaluations at 0, 6 and 12
    run = changed(sound(), {"entropy/behaviour": [0.6] * 7 + [0.1] * 5, "reward/mean": falling(0.3, 0.2)})
    assert find(changed(run, {"zero_variance/all_wrong": 0.5}), "entropy_collapse").step == 7


def test_hours_are_read_from_a_run_folder_and_from_logs(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_generations=1)
    (folder / "timing.jsonl").write_text("".join(f'{{"seconds/elapsed": {900 * step}}}\n' for step in range(1, 9)))
    assert "(about 2.00 hours)" in diagnose(folder).findings[0].cost
    rows = [{"step": 10 * n, "loss": 0.1, "reward": 0.5, "step_time": 6.0} for n in range(1, 7)]
    assert to_evidence(read_rows("run", rows)).seconds == 360  # a row is a mean of ten steps
    rows = [{"step": n, "actor/pg_loss": 0.1, "timing_s/step": 50.0, "perf/time_per_step": 50.0} for n in range(6)]
    assert to_evidence(read_rows("run", rows)).seconds == 300


def test_only_causes_of_the_table_are_counted() -> None:
    assert CONCERNED.keys() <= page.CAUSES.keys()
    assert {cause.name for cause in page.CAUSES.values() if "cost" not in cause.sentences} == {"padding_in_clip_metric"}


# --- what is still possible ------------------------------------------------------------------------------------------


def test_a_flat_log_without_a_cause_says_what_would_show_one() -> None:
    causes = {one.cause: one.show for one in examine(trl()).still_possible}
    assert list(causes)[-1] == REWARD_ITSELF
    assert "log_completions=True" in causes[REWARD_ITSELF]
    assert "grpolab lint --from trl CONFIG" in causes[REWARD_ITSELF]
    assert "vllm_importance_sampling_correction=True" in causes["growing_sampler_gap"]
    assert causes["truncated_from_the_start"] == "log completions/clipped_ratio"
    assert "zero_gradient" not in causes, "the log has the gradient, and the rule has looked"
    assert "1. truncated_from_the_start: log completions/clipped_ratio" in page.text(examine(trl()))


def test_a_fall_in_verl_is_told_the_options_of_verl() -> None:
    rewards = np.concatenate([np.full(30, 0.6), np.full(30, 0.1)])
    rows = [{"step": n, "actor/pg_loss": 0.1, "critic/score/mean": reward} for n, reward in enumerate(rewards)]
    diagnosis = examine(to_evidence(read_rows("run", rows)))
    shows = [one.show for one in diagnosis.still_possible]
    assert any("actor_rollout_ref.rollout.calculate_log_probs=True" in show for show in shows)
    assert any("actor_rollout_ref.actor.calculate_entropy=True" in show for show in shows)
    assert page.record(diagnosis)["still_possible"][0] == {"cause": "growing_sampler_gap", "show": shows[0]}


def test_nothing_is_possible_where_a_cause_was_found_or_nothing_is_wrong() -> None:
    assert examine(sound()).still_possible == ()
    assert examine(trl(n=40)).still_possible == (), "too short to call it flat"
    assert examine(PAIRS["constant_reward"][0]()).still_possible == ()


# --- the command -----------------------------------------------------------------------------------------------------


def test_json_adds_costs_and_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(write_run(tmp_path / "run", num_generations=1, **GRPO)), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["causes"][0]["cost"].startswith("Completions were compared with nothing from the first step on")
    assert record["causes"][0]["step"] == 0
    assert {one["measure"] for one in record["expected"]} >= {"clip", "entropy"}
