"""A task, an objective and a study for GRPO Lab."""

from grpolab.registry import POSITIVE, Surrogate

# `kernel: grpolab_example:spo` names this record: the function, its own numbers with their ranges, and how it behaves.
spo = Surrogate("grpolab_example.losses:spo", {"weight": POSITIVE}, policy_gradient_at_one=True)
