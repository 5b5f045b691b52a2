"""The weights at the end of a run beside those at its start: how many there are, which moved, how finely they lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

MOST_WEIGHTS = (
    1_000_000  # weights of a tensor that are looked at: enough to tell, and a large model is read in a moment
)


@dataclass(frozen=True)
class Weights:
    """What two files of weights say of a run."""

    count: int  # of all weights
    on_grid: float  # share that is exactly a bfloat16 number
    moved: float  # share that differs from the start; NaN where the start is not known
    still: tuple[str, ...] = ()  # names of tensors of which nothing moved


def compare(end: Path, start: Path | None) -> Weights | None:
    """The weights in `end` beside those in `start`; None where `end` is no readable file."""
    try:
        after = _read(end)
        before = _read(start) if start and start.is_file() else {}
    except (OSError, SafetensorError):
        return None
    changed = {name: after[name][1] != before[name][1] for name in after if name in before}
    looked = np.concatenate([values for _, values in after.values()])
    moved = np.concatenate(list(changed.values())) if changed else np.empty(0)
    return Weights(
        count=sum(size for size, _ in after.values()),
        on_grid=float(_is_bfloat16(looked).mean()),
        moved=float(moved.mean()) if len(moved) else float("nan"),
        still=tuple(name for name, differs in changed.items() if not differs.any()),
    )


def _read(path: Path) -> dict[str, tuple[int, NDArray]]:
    """Each tensor's number of weights, and the first of them, flat and in float32."""
    found = {}
    with safe_open(path, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118  (not a mapping)
            part = file.get_slice(name)
            shape = part.get_shape() or [1]
            rows = min(shape[0], max(1, MOST_WEIGHTS // max(1, int(np.prod(shape[1:])))))
            found[name] = int(np.prod(shape)), np.asarray(part[:rows], dtype=np.float32).ravel()
    return found


def _is_bfloat16(values: NDArray) -> NDArray:
    """Whether the lower half of each float32 is empty."""
    return (values.view(np.uint32) & 0xFFFF) == 0
