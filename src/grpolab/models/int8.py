"""Weights rounded to int8 for the sampler (`sampler_dtype=int8`), as an inference engine keeps them."""

from __future__ import annotations

import torch
from torch import Tensor

from grpolab.errors import RequestError
from grpolab.grpo.model import ADAPTER, Policy

INT8 = 127  # largest rounded weight; -128 is not used, so that the grid is symmetric


@torch.no_grad()
def round_layers(sampler: Policy) -> None:
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
