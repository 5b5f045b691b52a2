"""Seeds that chose tuned values do not judge them."""

from __future__ import annotations

from typing import Any

from grpolab.errors import RequestError
from grpolab.report.text import count, listing


def refuse_tuning_seeds(plan: dict[str, Any]) -> None:
    """Raise RequestError where a plan has cells with the seeds of a tuning whose values it names."""
    for tuning in plan.get("tuned", []):
        mixed = [cell["seed"] for cell in plan["cells"] if cell["seed"] in tuning["seeds"]]
        if mixed:
            seeds = listing([str(seed) for seed in sorted(set(mixed))])
            raise RequestError(
                f"study={plan['study']}: seed {seeds} of {count(len(mixed), 'cell')} chose the values of"
                f" tuned={tuning['study']}, so it cannot judge them: sweep it with other seeds"
            )
