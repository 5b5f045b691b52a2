"""A policy whose layers are in shards, by torch's `fully_shard` (FSDP2): for models that one GPU cannot train alone.

Each process keeps a part of each layer's weights, of their gradients and of their optimiser state. In an optimiser step
a layer's weights are gathered when it runs, and its gradients are summed and scattered. Outside of it every process has
the whole weights: it samples and evaluates alone, as many tokens as its completions need, and a checkpoint is that of a
run without shards. Embeddings, head and last norm stay whole, because logits are made outside of the model's forward
pass; their gradients are added up as without shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import AdamW
from transformers.modeling_layers import GradientCheckpointingLayer

from grpolab.errors import RequestError
from grpolab.grpo.model import Policy
from grpolab.grpo.processes import ALONE, Processes
from grpolab.grpo.step import Diverged


def shard(policy: Policy, optimizer: AdamW, processes: Processes) -> tuple[ShardedPolicy, ShardedAdamW]:
    """Return the policy in shards, its weights whole, and its optimiser; the model is changed in place.

    Raises RequestError if the model's layers are not known.
    """
    layers = [module for module in policy.model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        kind = policy.model.config.model_type
        raise RequestError(f"shard_weights=true: a model of kind {kind} has layers that are not known: leave it unset")
    group = processes.gradients or dist.group.WORLD
    assert group is not None
    mesh = DeviceMesh.from_group(group, policy.device.type)
    parts = [fully_shard(layer, mesh=mesh) for layer in layers]
    whole = {weight for weight in policy.model.parameters() if not isinstance(weight, DTensor)}
    parts.append(fully_shard(policy.model.base_model, mesh=mesh, ignored_params=whole))  # lets them overlap
    for part in parts:  # a loss is a sum over processes, never a mean of means
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    values = {field.name: getattr(policy, field.name) for field in fields(policy)}
    sharded = ShardedPolicy(**values | {"layers_once": True}, parts=parts, processes=processes)
    made = ShardedAdamW(sharded, optimizer.defaults)
    sharded.gather()
    return sharded, made


@dataclass
class ShardedPolicy(Policy):
    """A policy whose weights are in shards inside of `updating`, and whole outside."""

    parts: list[FSDPModule] = field(default_factory=list)
    processes: Processes = ALONE

    def __post_init__(self) -> None:
        super().__post_init__()
        self.in_shards = dict(self._weights)  # the optimiser's own tensors

    def gather(self) -> None:
        """Make the weights whole in every process."""
        for part in self.parts:
            part.set_reshard_after_forward(False)
            part.unshard()
        weights = dict(self.model.named_parameters())
        self._weights = {name: weights[name] for name in self.in_shards}

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Have the weights in shards for an optimiser step; they are whole again after it, and if it diverges."""
        for part in self.parts:
            part.reshard()
            part.set_reshard_after_forward(True)
        self._weights = self.in_shards
        try:
            yield
        except Diverged:
            self.gather()
            raise
        except RuntimeError as error:
            if isinstance(error, dist.DistError) or "gloo" in str(error):
                with self.processes.explain_loss():
                    raise
            raise
        self.gather()

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy whole parameters into the model and into its shards. Raises KeyError if one is absent."""
        super().load_weights(weights)
        for name, weight in self.in_shards.items():
            if isinstance(weight, DTensor):
                weight.copy_(_cut(weights[name], weight))

    @torch.no_grad()
    def clip_gradients(self, most: float) -> Tensor:
        """Scale all gradients so that their norm over all processes is at most `most`; return the norm before."""
        gradients = [weight.grad for weight in self._weights.values() if weight.grad is not None]
        own = [gradient.to_local() for gradient in gradients if isinstance(gradient, DTensor)]
        whole = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
        square = torch.nn.utils.get_total_norm(own).square().to(self.device)
        dist.all_reduce(square, group=self.processes.gradients)
        norm = (square + torch.nn.utils.get_total_norm(whole).square().to(self.device)).sqrt()
        factor = (most / (norm + 1e-6)).clamp(max=1.0)  # as `torch.nn.utils.clip_grad_norm_`
        for gradient in (*own, *whole):
            gradient.mul_(factor)
        return norm


class ShardedAdamW(AdamW):
    """AdamW over shards, whose state is saved whole: as that of a run without shards, for any number of processes."""

    def __init__(self, policy: ShardedPolicy, defaults: Mapping[str, Any]) -> None:
        self.weights = list(policy.in_shards.values())
        kinds = [[weight for weight in self.weights if isinstance(weight, DTensor) == kind] for kind in (True, False)]
        given = {name: defaults[name] for name in ("lr", "betas", "eps", "weight_decay", "fused")}
        super().__init__([{"params": weights} for weights in kinds if weights], **given)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, on the CPU; every process must call it at the same time."""
        states = {
            index: {name: _whole(value).cpu() for name, value in self.state[weight].items()}
            for index, weight in enumerate(self.weights)
            if weight in self.state
        }
        return {"state": states, "param_groups": [{**self.param_groups[0], "params": [*range(len(self.weights))]}]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a whole state: each process takes its part."""
        for index, values in state_dict["state"].items():
            weight = self.weights[index]
            self.state[weight] = {
                name: _cut(value, weight) if value.shape == weight.shape else value.clone()  # a count of steps
                for name, value in values.items()
            }


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _cut(whole: Tensor, weight: Tensor) -> Tensor:
    """Return a tensor laid out as `weight`: this process's shard of it where the weight is in shards, else a copy."""
    whole = whole.to(weight.device, copy=True)
    if not isinstance(weight, DTensor):
        return whole
    return distribute_tensor(whole, weight.device_mesh, weight.placements, src_data_rank=None)
