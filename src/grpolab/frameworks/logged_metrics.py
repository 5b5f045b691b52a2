"""What frameworks log of one of our optimiser steps. `registry.py` loads this only where a run asks for it."""

from __future__ import annotations

import torch

from grpolab.frameworks.framework import clip_conventions, metrics_of
from grpolab.grpo.step import Update
from grpolab.meanings import CLIP_METRIC, convention
from grpolab.settings.resolved import Resolved


@torch.no_grad()
def logged_metrics(settings: Resolved, update: Update) -> dict[str, float]:
    """Return the metrics of the run's own framework by journal name, and the clip fraction by each one's definition."""
    framework = settings.framework
    logged = metrics_of(framework, update.objective, update.inputs, update.whole_loss) if framework else {}
    metrics = {f"{framework}/{name}": value for name, value in logged.items()}
    if settings.diagnostics.clip_conventions:
        shares = clip_conventions(update.objective, update.inputs)
        if framework and (name := CLIP_METRIC.get(framework)) in logged:
            shares[framework] = logged[name]
        metrics |= {convention(name): share for name, share in shares.items()}
    return metrics
