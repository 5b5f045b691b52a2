"""A rollout step's completions token by token, for `grpolab show` and the tracking server."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from grpolab.learn.batch import Rollout, joined
from grpolab.learn.policy import Policy
from grpolab.learn.update import Step
from grpolab.paths import write_atomic


def sample_table(rollout: Rollout, last_pass: list[Step], policy: Policy, group: int) -> pa.Table:
    """One row per completion token; ratio and clip mark are those of the last pass over the batch."""
    trained = joined([step.batch for step in last_pass])
    assert trained.old_log_probs_BT is not None
    order_B = torch.argsort(trained.rows_B)
    mask_BT = trained.mask_BT[order_B].cpu()
    row_N, position_N = (index.tolist() for index in mask_BT.nonzero(as_tuple=True))

    def tokens(pieces: list[torch.Tensor]) -> list[float]:
        values_BT = torch.cat(
            [piece.expand_as(step.batch.mask_BT) for piece, step in zip(pieces, last_pass, strict=True)]
        )
        return values_BT[order_B].cpu()[mask_BT].tolist()

    low_N = tokens([step.update.kernel.active_low for step in last_pass])
    high_N = tokens([step.update.kernel.active_high for step in last_pass])
    ids_N = tokens([step.batch.tokens_BT for step in last_pass])
    columns = {
        "prompt_index": [row // group for row in row_N],
        "sample": [row % group for row in row_N],
        "prompt": [rollout.examples_B[row].prompt for row in row_N],
        "completion": [rollout.texts_B[row] for row in row_N],
        "reward": _per_row(rollout.rewards_B, row_N),
        **{f"reward_{name}": _per_row(values_B, row_N) for name, values_B in rollout.parts.items()},
        "advantage": _per_row(rollout.batch.advantages_B, row_N),
        "position": position_N,
        "token": policy.tokenizer.convert_ids_to_tokens([int(token) for token in ids_N]),
        "old_log_prob": tokens([step.update.old_log_probs_BT for step in last_pass]),
        "ratio": tokens([step.update.log_ratio_BT.exp() for step in last_pass]),
        "clipped": ["low" if low else "high" if high else "" for low, high in zip(low_N, high_N, strict=True)],
    }
    return pa.table(columns)


def _per_row(values_B: torch.Tensor, row_N: list[int]) -> list[float]:
    values = values_B.tolist()
    return [values[row] for row in row_N]


def write_samples(folder: Path, rollout_step: int, table: pa.Table) -> None:
    """`samples/step_000010.parquet` in the run folder."""
    path = folder / "samples" / f"step_{rollout_step:06d}.parquet"
    content = pa.BufferOutputStream()
    pq.write_table(table, content, compression="zstd")
    write_atomic(path, content.getvalue().to_pybytes(), durable=False)
