"""What can be chosen by name, and where it is: a new objective is one function and one line here.

Names only, so that settings are checked without importing torch; `resolve` imports when the run begins.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

# Importance ratio (learn/ratios.py): how far the policy has moved, per token or per sequence.
RATIOS = {
    "token": "grpolab.learn.ratios:token_ratio",
    "sequence": "grpolab.learn.ratios:sequence_ratio",
}

# Objective kernel (learn/kernels/): the loss of a token or sequence before averaging.
KERNELS = {
    "clipped": "grpolab.learn.kernels.clipped:clipped",
    "ratio": "grpolab.learn.kernels.clipped:ratio",
    "cispo": "grpolab.learn.kernels.cispo:cispo",
}

# Aggregation (learn/aggregation.py): how per-token losses become one number; the denominator is in the name.
AGGREGATIONS = {
    "sequence_mean": "grpolab.learn.aggregation:sequence_mean",
    "token_mean_rollout": "grpolab.learn.aggregation:token_mean_rollout",
    "token_mean_minibatch": "grpolab.learn.aggregation:token_mean_minibatch",
    "token_mean_microbatch": "grpolab.learn.aggregation:token_mean_microbatch",
    "token_sum_constant": "grpolab.learn.aggregation:token_sum_constant",
}


@functools.cache
def resolve(path: str) -> Any:
    """The object at `package.module:name`; raises ImportError or AttributeError where nothing is there."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
