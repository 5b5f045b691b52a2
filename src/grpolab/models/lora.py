"""LoRA by `peft`: GRPO trains two low-rank matrices for each linear layer, and the model's own weights stay.

The warm start, which all arms share, trains all weights; the adapters are added behind it. They begin with a product of
0, so that the policy is the warm start, and with the adapters off it stays that: the reference of a KL needs no copy.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from grpolab.grpo.model import Policy
from grpolab.seeds import torch_seed
from grpolab.settings.run import RunSettings
from grpolab.settings.task import LoraSettings, PretrainedModel


def find_problems(settings: RunSettings) -> list[str]:
    """Return a sentence if `peft` or every layer is absent, or for each of `targets` that no layer's name ends with."""
    if settings.lora is None:
        return []
    if importlib.util.find_spec("peft") is None:
        return ["lora needs the package peft: `make extras WHAT=lora` installs it (pip install 'grpolab[lora]')"]
    model = settings.model
    if isinstance(model, PretrainedModel):
        config = AutoConfig.from_pretrained(model.path, revision=model.revision, trust_remote_code=False)
    else:
        config = LlamaConfig(num_hidden_layers=1)
    with torch.device("meta"):  # names without weights
        layers = linear_layers(AutoModelForCausalLM.from_config(config))
    if not layers:
        return [f"lora: a model of kind {config.model_type} has no linear layer for an adapter: leave it empty"]
    known = sorted({name.rpartition(".")[2] for name in layers})
    return [
        f"lora.targets: the model has no linear layer called {target}: it must be one of {', '.join(known)}"
        for target in settings.lora.targets or ()
        if not any(f".{name}".endswith(f".{target}") for name in layers)
    ]


def linear_layers(model: PreTrainedModel) -> list[str]:
    """Return the names of a model's linear layers, without the head; GPT-2's are of transformers' own `Conv1D`."""
    head, kinds = model.get_output_embeddings(), (torch.nn.Linear, Conv1D)
    return [name for name, part in model.named_modules() if isinstance(part, kinds) and part is not head]


def add_adapters(policy: Policy, settings: LoraSettings, seed: int) -> Policy:
    """Return the policy with adapters, which alone are trained from then on; its model is changed in place.

    The seed draws the first matrix of each pair (Kaiming uniform); the second is 0.
    """
    from peft import LoraConfig, inject_adapter_in_model

    targets = settings.targets or "all-linear"
    config = LoraConfig(r=settings.rank, lora_alpha=settings.alpha, target_modules=targets, task_type="CAUSAL_LM")
    config.fan_in_fan_out = any(isinstance(part, Conv1D) for part in policy.model.modules())  # weights (I, O)
    with torch.random.fork_rng(devices=[]):  # peft draws from torch's global generator
        torch.manual_seed(torch_seed(seed, "adapters"))
        inject_adapter_in_model(config, policy.model)
    policy.model.eval()
    return replace(policy, without_adapters=partial(switched_off, policy.model))


@contextmanager
def switched_off(model: PreTrainedModel, around: AbstractContextManager[None]) -> Iterator[None]:
    """Enter a context, and compute without the adapters inside."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        with around:
            yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def merged(policy: Policy) -> dict[str, torch.Tensor]:
    """Return all weights by the names that the model has without adapters, with the adapters added to them."""
    from peft.tuners.lora import Linear

    weights = {
        name.replace(".base_layer.", "."): weight.detach().clone()
        for name, weight in policy.model.named_parameters()
        if name not in policy.weights()
    }
    for name, module in policy.model.named_modules():
        if isinstance(module, Linear):
            weights[f"{name}.weight"] += module.get_delta_weight("default")
    return weights
