"""What makes the sampler another policy than the trainer: weights of its own (older, or rounded to int8) and noise.

Its precision is `sampler_dtype`, the age of its batches `staleness` (`rollout.py`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpolab import seeds
from grpolab.grpo.model import Policy
from grpolab.registry import ROUND_TO_INT8, resolve
from grpolab.settings.resolved import Resolved


def own_sampler(policy: Policy, settings: Resolved) -> Policy | None:
    """Return a copy of the policy that keeps weights of its own for sampling; None if it samples with the trainer's."""
    if settings.sampler_dtype != "int8" and settings.sampler_refresh is None:
        return None
    sampler = replace(policy, model=copy.deepcopy(policy.model), compiled=False)
    if settings.sampler_dtype == "int8":
        resolve(ROUND_TO_INT8)(sampler)
    return sampler


def refresh_sampler(sampler: Policy, policy: Policy, settings: Resolved) -> None:
    """Give the sampler the trainer's weights, those of linear layers rounded if `sampler_dtype=int8`."""
    sampler.load_weights(policy.weights())
    if settings.sampler_dtype == "int8" and not settings.lora:  # what lies below adapters stays as it was rounded
        resolve(ROUND_TO_INT8)(sampler)


@dataclass(frozen=True)
class EngineNoise:
    """Gaussian noise on the logits of a rollout step, in place of an inference engine's other kernels and batches.

    It is drawn anew for every completion, token and entry of the vocabulary, and does not depend on what else is
    sampled. The sampler draws from the disturbed policy, and its log-probs are that policy's.
    """

    settings: Resolved
    step: int
    prompts_P: NDArray[np.int64]  # numbers of the prompts in the rollout step

    @classmethod
    def of(cls, settings: Resolved, step: int, first: int = 0) -> EngineNoise | None:
        """Return the noise of a rollout step's prompts from number `first` on; None if the settings have none."""
        prompts_P = first + np.arange(settings.prompts_per_step)
        return None if settings.sampler_noise is None else cls(settings, step, prompts_P)

    def disturb(self, token: int, log_probs_BV: Tensor) -> Tensor:
        """Return the log-probs of the disturbed policy at a token's position, (B, V)."""
        settings, V = self.settings, log_probs_BV.shape[1]
        assert settings.sampler_noise is not None
        places = np.ix_(self.prompts_P, np.arange(settings.num_generations), np.arange(V))
        draws_PGV = settings.sampler_noise * seeds.normals(settings.seed, "sampler_noise", self.step, token, *places)
        noise_BV = torch.from_numpy(draws_PGV.reshape(-1, V)).to(log_probs_BV)
        return (log_probs_BV + noise_BV).log_softmax(-1)
