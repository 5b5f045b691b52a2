"""Sort digits after any number of fillers: `314159>` -> `~~113459`. The length is free, and matters.

The warm start teaches targets that are wrong more often the more fillers they have. So the starting policy's long
answers are worse than its short ones, and length normalisation can show (Dr. GRPO, 2503.20783).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grpolab.tasks.base import Example
from grpolab.tasks.sorting import Sorting

FILLER = "~"


class FillerSorting(Sorting):
    """Sorting with an answer that may begin with fillers."""

    alphabet = "0123456789>" + FILLER
    unique_answer = False

    def __init__(self, length: int, max_fillers: int, corruption_base: float, corruption_per_filler: float) -> None:
        super().__init__(length)
        self.max_fillers = max_fillers
        self.corruption_base = corruption_base
        self.corruption_per_filler = corruption_per_filler

    def demonstration(self, example: Example, uniforms_U: NDArray[np.float64]) -> str:
        """Return uniformly many fillers, then the digits: sorted, or with the task's probability in a wrong order."""
        fillers = int(uniforms_U[0] * (self.max_fillers + 1))
        digits = example.answer
        if uniforms_U[1] < self.corruption_base + self.corruption_per_filler * fillers:
            digits = "".join(digits[index] for index in np.argsort(uniforms_U[2 : 2 + self.length]))
        return FILLER * fillers + digits

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Score what follows the fillers as in sorting."""
        return super().score(example, completion.lstrip(FILLER))
