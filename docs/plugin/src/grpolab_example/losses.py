"""The loss of a token, before averaging."""

from torch import Tensor

from grpolab.grpo.loss import LossInputs, Objective, SurrogateParts


def spo(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-(r A - weight |A| (r-1)^2 / epsilon): a penalty in place of the clip. SPO (2401.16025), whose weight is 1/2.

    A token has no gradient at r = 1 + epsilon / (2 weight) if A > 0, and at 1 - epsilon / (2 weight) if A < 0; beyond
    it the gradient leads back.
    """
    A, weight = inputs.advantages, objective.options["weight"]
    return SurrogateParts.of(objective, ratio, weight * A.abs() * (ratio - 1) ** 2 / objective.epsilon - ratio * A)
