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
from grpolab.errors import RequestError
from grpolab.grpo.model import ADAPTER, Policy
from grpolab.settings.resolved import Resolved

INT8 = 127  # largest rounded weight; -128 is not used, so that the grid is symmetric


def own_sampler(policy: Policy, settings: Resolved) -> Policy | None:
    """Return a copy of the policy that keeps weights of its own for sampling; None if it samples with the trainer's."""
    if settings.sampler_dtype != "int8" and settings.sampler_refresh is None:
        return None
    sampler = replace(policy, model=copy.deepcopy(policy.model), compiled=False)
    if settings.sampler_dtype == "int8":
        _round_linear_layers(sampler)
    return sampler


def refresh_sampler(sampler: Policy, policy: Policy, settings: Resolved) -> None:
    """Give the sampler the trainer's weights, those of linear layers rounded if `sampler_dtype=int8`."""
    sampler.load_weights(policy.weights())
    if settings.sampler_dtype == "int8" and not settings.lora:  # what lies below adapters stays as it was rounded
        _round_linear_layers(sampler)


@torch.no_grad()
def _round_linear_layers(sampler: Policy) -> None:
    """Round the weights of every linear layer but the head to int8. Raises RequestError if there is none.

    Weights alone, as an inference engine's W8A16, which leaves out head and adapters too: the products are in `dtype`.
    """
    head, named = sampler.model.get_output_embeddings(), sampler.model.named_modules()
    layers = [m for n, m in named if isinstance(m, torch.nn.Linear) and m is not head and ADAPTER not in n]
    if not layers:
        kind = sampler.model.config.model_type
        raise RequestError(f"sampler_dtype=int8: a model of kind {kind} has no linear layers: use float16 or bfloat16")
    for layer in layers:
        layer.weight.copy_(round_to_int8(layer.weight.detach()))


def round_to_int8(weight_OI: Tensor) -> Tensor:
    """Round a layer's weights to multiples k s_o with |k| <= 127, s_o = max_i |w_oi| / 127 for each output; (O, I)."""
    scale_O = (weight_OI.abs().amax(1) / INT8).clamp(min=torch.finfo(weight_OI.dtype).tiny)
    zero_O = torch.zeros_like(scale_O, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(weight_OI, scale_O, zero_O, 0, -INT8, INT8)


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
