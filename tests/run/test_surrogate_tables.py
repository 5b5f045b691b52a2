"""F11's table: the first updates of a finished run again, as they were; the surrogates on the way."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from tiny import run_folder, tiny_settings

from grpolab.errors import RequestError
from grpolab.paths import Results
from grpolab.report import surrogate_tables as tables
from grpolab.run.train import run

AXES: list[dict[str, Any]] = [
    {"warm_start": {"max_steps": 2}},
    {"num_minibatches": 2, "micro_batch_size": 4, "lr_scheduler_type": "linear"},
    {"staleness": 1, "beta": 0.1},
]


def finished(results: Results, **changes: Any) -> tuple[str, dict[str, Any]]:
    """A finished run's signature and outcome."""
    settings = tiny_settings(**changes)
    return run_folder(settings, results).name, run(settings, results)


@pytest.mark.parametrize("axes", AXES)
def test_a_replay_ends_with_the_weights_of_the_run(results: Results, axes: dict[str, Any]) -> None:
    signature, outcome = finished(results, rollout_steps=tables.BATCHES, **axes)
    after = [after.fingerprint() for _, _, after, _ in tables.first_updates(results, signature)]
    assert len(after) == tables.BATCHES
    assert after[-1] == outcome["policy_sha256"]
    assert len(set(after)) == tables.BATCHES


def test_a_run_whose_reward_has_changed_is_not_replayed_with_the_new_one(results: Results, tmp_path: Path) -> None:
    file = tmp_path / "replayed_reward.py"
    file.write_text("def score(prompt, answer, completion):\n    return 1.0\n")
    signature, _ = finished(results, rollout_steps=1, reward={"function": f"{file}:score", "weights": {"correct": 1.0}})
    file.write_text(file.read_text().replace("1.0", "0.5"))
    with pytest.raises(RequestError, match=f"run {signature} cannot be replayed: .*reward.function"):
        next(tables.first_updates(results, signature))


def test_surrogates_begin_at_the_old_policy_and_part_beyond_the_range(results: Results) -> None:
    signature, _ = finished(results, rollout_steps=1, epsilon=0.01, epsilon_high=0.01)
    ((learner, before, after, batch),) = tables.first_updates(results, signature)
    ends = before.fingerprint(), after.fingerprint()
    rows = tables.interpolate(learner, before, after, batch, tables.ALPHAS)
    assert (before.fingerprint(), after.fingerprint()) == ends
    assert [row["alpha"] for row in rows] == tables.ALPHAS
    start, end = rows[0], rows[tables.ALPHAS.index(1)]
    assert start["l_cpi"] == start["l_clip"] == pytest.approx(batch.advantages_B.mean().item(), abs=1e-6)
    assert start["kl"] == 0
    assert all(row["kl"] > 0 and row["l_clip"] < row["l_cpi"] for row in rows[1:])
    assert end["l_cpi"] > start["l_cpi"]  # the update improved what it maximised


def test_the_table_grows_by_what_it_lacks(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = finished(results, rollout_steps=1)
    second, _ = finished(results, rollout_steps=1, seed=1)
    said: list[str] = []
    path = tables.extend_table(results, [first], said.append)
    before = path.read_text()
    monkeypatch.setattr(
        tables, "update_rows", lambda results, signature: [{**_rows(before)[0], "signature": signature}]
    )
    tables.extend_table(results, [first, second], said.append)
    assert said == [f"run 1/1: {first}", f"run 1/1: {second}"]
    rows = _rows(path.read_text())
    assert path.read_text().startswith(before)
    assert [row["signature"] for row in rows] == [first] * len(tables.ALPHAS) + [second]


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))
