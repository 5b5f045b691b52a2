"""The language model: made or loaded, and the one definition of a token's log-probability."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from grpolab.errors import RequestError
from grpolab.learn.seeds import torch_seed
from grpolab.learn.tasks.base import Task
from grpolab.learn.tokenizer import character_tokenizer
from grpolab.settings import PretrainedModel, RunSettings, TinyModel

LONGEST = 4096  # positions of a model from scratch


@dataclass
class Policy:
    """A causal language model with its tokenizer. Weights are float32; `dtype` is the forward pass's precision."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    temperature: float
    dtype: torch.dtype = torch.float32

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def pad(self) -> int:
        """Token id of padding."""
        return int(self.tokenizer.pad_token_id)

    @property
    def end(self) -> int:
        """Token id that ends a completion."""
        return int(self.tokenizer.eos_token_id)

    def precision(self) -> AbstractContextManager[None]:
        """The forward pass's precision as a context."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def frozen_copy(self) -> Policy:
        """A copy that shares nothing and takes no gradient: the reference of a KL."""
        return Policy(copy.deepcopy(self.model).requires_grad_(False), self.tokenizer, self.temperature, self.dtype)

    def weights(self) -> dict[str, Tensor]:
        """Parameters by name, tied ones once; live tensors, not copies."""
        return dict(self.model.named_parameters())

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy saved parameters in; raises KeyError where one is absent."""
        for name, parameter in self.weights().items():
            parameter.copy_(weights[name])

    def fingerprint(self) -> str:
        """SHA-256 over all parameters, bit for bit."""
        digest = hashlib.sha256()
        for name, parameter in sorted(self.weights().items()):
            digest.update(name.encode())
            digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def make_policy(settings: RunSettings, task: Task) -> Policy:
    """The policy before any warm start; weights from scratch follow from `warm_start.seed`.

    Raises RequestError where a pretrained model cannot be loaded.
    """
    resolved = settings.resolved()
    if isinstance(resolved.model, PretrainedModel):
        model, tokenizer = _pretrained(resolved.model)
    else:
        tokenizer = character_tokenizer(task.alphabet)
        model = _tiny(resolved.model, len(tokenizer), torch_seed(resolved.warm_start.seed or 0, "weights"))
        model.config.pad_token_id = tokenizer.pad_token_id
        model.config.eos_token_id = tokenizer.eos_token_id
    model.eval()  # dropout stays off: it would move the ratio away from 1 on the first pass
    model.to(resolved.device)
    return Policy(model, tokenizer, resolved.temperature, getattr(torch, resolved.dtype))


def _tiny(settings: TinyModel, vocabulary: int, seed: int) -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=settings.hidden_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        intermediate_size=settings.intermediate_size,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=False,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):  # transformers draws initial weights from torch's global generator
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def _pretrained(settings: PretrainedModel) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    source = {"revision": settings.revision} if settings.revision else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(settings.path, trust_remote_code=False, **source)
        model = AutoModelForCausalLM.from_pretrained(
            settings.path, trust_remote_code=False, use_safetensors=True, dtype=torch.float32, **source
        )
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise RequestError(f"model.path={settings.path} cannot be loaded: {reason}") from error
    if tokenizer.eos_token_id is None:
        raise RequestError(f"model.path={settings.path}: its tokenizer has no end-of-sequence token")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def position_ids(mask_BL: Tensor) -> Tensor:
    """Positions counted over real tokens only, so that left padding is invisible, shape (B, L)."""
    return (mask_BL.long().cumsum(-1) - 1).clamp(min=0)


def completion_logits(
    policy: Policy, prompts_BL: Tensor, prompt_mask_BL: Tensor | None, completions_BT: Tensor
) -> Tensor:
    """Logits of every completion token over the temperature, float32, shape (B, T, V).

    `prompt_mask_BL` is None where no prompt is padded. Padding behind a completion needs no mask: attention is causal.
    """
    T = completions_BT.shape[1]
    tokens_BS = torch.cat([prompts_BL, completions_BT], dim=1)
    inputs: dict[str, Tensor] = {}
    if prompt_mask_BL is not None:
        mask_BS = torch.cat([prompt_mask_BL, torch.ones_like(completions_BT, dtype=torch.bool)], dim=1)
        inputs = {"attention_mask": mask_BS.long(), "position_ids": position_ids(mask_BS)}
    with policy.precision():
        # The last token predicts nothing that was sampled: T + 1 positions, the last dropped.
        logits_BTV = policy.model(tokens_BS, logits_to_keep=T + 1, use_cache=False, **inputs).logits[:, :-1]
    return logits_BTV.float() / policy.temperature


def token_log_probs(logits_BTV: Tensor, completions_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of each completion token (with gradient) and entropy in nat (without), both (B, T), float32."""
    log_probs_BTV = logits_BTV.log_softmax(-1)
    with torch.no_grad():
        entropy_BT = -(log_probs_BTV.exp() * log_probs_BTV).sum(-1)
    return log_probs_BTV.gather(-1, completions_BT[..., None]).squeeze(-1), entropy_BT
