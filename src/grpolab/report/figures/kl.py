"""F15: how far the policy moves, within a batch and from its warm start."""

from __future__ import annotations

from matplotlib.figure import Figure

from grpolab.report.figures.panels import LOG_BAND, lines_by_arm
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, manifest

ROWS = {
    "KL(old || new)\n(nat per token)": ("updates", "kl_old/k3"),
    "KL(policy || warm start)\n(nat per token)": ("rollouts", "kl_ref/exact"),
}


def draw(study: Study) -> tuple[Figure, Manifest]:
    """KL from the old policy, mean over the updates of a rollout step, and the exact KL to the warm start."""
    figure, _, numbers = lines_by_arm(study, ROWS, height=1.6, log=True)
    caption = (
        "KL divergence of the policy from the one that sampled the batch (estimator k3, mean over the optimiser steps"
        " of a rollout step, of which the first has 0), and from the warm start (exact over the vocabulary, on the"
        " completions of the rollout steps where it is measured). Log scale; steps without any change are left out."
    )
    return figure, manifest(study, "F15", caption, LOG_BAND, numbers)
