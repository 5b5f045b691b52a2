"""Rules: the trust region is too tight."""

from __future__ import annotations

import numpy as np

from grpolab.report.columns import column
from grpolab.report.diagnosis.evidence import Evidence, middle
from grpolab.report.diagnosis.finding import Finding
from grpolab.report.diagnosis.thresholds import CLIPPED_AT_ONCE, NARROW
from grpolab.report.text import number, percent
from grpolab.vocabulary import counterfactual

# The field's clip range at each ratio level: PPO's and GRPO's, and GSPO's.
USUAL = {"token": 0.2, "sequence": 3e-4}


def strong_kl(run: Evidence) -> Finding | None:
    """The KL in the loss lets no token's ratio to the reference leave the clip range, whatever its advantage.

    The optimum of A log r - beta KL has |log r| of about |A| / beta (2402.03300, equation 3, for one token).
    """
    beta, epsilon = (float(run.settings.get(key, 0) or 0) for key in ("beta", "epsilon"))
    if not beta or run.settings.get("kl_placement") != "loss":
        return None
    size = _advantage(run)
    if size / beta >= epsilon:
        return None
    evidence = [
        f"beta={beta:g}: an advantage of {number(size)} (the usual size) balances the KL at a log ratio of"
        f" {number(size / beta)} to the reference, inside the clip range of {epsilon:g}",
        f"KL to the reference: {number(middle(run.updates, 'kl_ref/k3'))} nat per token (median)",
        f"clip fraction on used batches: {percent(middle(run.later, 'clip/active'))} (median)",
    ]
    return Finding("strong_kl", "certain" if run.is_still else "likely", tuple(evidence))


def tiny_epsilon(run: Evidence) -> Finding | None:
    """Most tokens that can be clipped are, from the second update on, and a usual range would have clipped few."""
    level = "token" if run.settings.get("importance_sampling_level", "token") == "token" else "sequence"
    usual = USUAL[level]
    if not {"clip/active_nz", counterfactual(level, usual)} <= set(run.later):
        return None
    able = run.later[run.later["clip/active_nz"].notna()]  # some advantage is not 0
    clipped, otherwise = middle(able, "clip/active_nz"), middle(able, counterfactual(level, usual))
    narrow = min(float(run.settings.get(key) or 0) for key in ("epsilon", "epsilon_high"))
    if not clipped >= CLIPPED_AT_ONCE or not otherwise <= NARROW * clipped or narrow >= usual:
        return None
    second = able[able["iteration"] == able["iteration"].min()]
    evidence = (
        f"the clip range of {narrow:g} clips {percent(clipped)} of the tokens with an advantage (median of the later"
        f" updates), {percent(middle(second, 'clip/active_nz'))} in the first of them",
        f"a range of {usual:g} would have clipped {percent(otherwise)}",
    )
    return Finding("tiny_epsilon", "certain", evidence)


def _advantage(run: Evidence) -> float:
    """Root mean square of the advantages; 1, which normalising makes it, where no completions were kept."""
    kept = column(run.samples, "advantage")
    return float(np.sqrt(np.mean(kept**2))) if len(kept) else 1.0
