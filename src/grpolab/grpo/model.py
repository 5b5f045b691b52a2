"""The language model: made or loaded, and the one definition of a token's log-probability."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.cache_utils import DynamicLayer

from grpolab.errors import RequestError
from grpolab.grpo.batch import Prompts, TrainingBatch, character_tokenizer, concatenate
from grpolab.seeds import torch_seed
from grpolab.settings.run import RunSettings
from grpolab.settings.task import PretrainedModel, TinyModel
from grpolab.tasks.base import Task

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
        return nullcontext() if self.dtype == torch.float32 else torch.autocast(self.device.type, self.dtype)

    def frozen_copy(self) -> Policy:
        """A copy that shares nothing and takes no gradient: the reference of a KL."""
        return Policy(copy.deepcopy(self.model).requires_grad_(False), self.tokenizer, self.temperature, self.dtype)

    def __post_init__(self) -> None:
        self._weights: dict[str, Tensor] = dict(
            self.model.named_parameters()
        )  # once: walking the modules takes as long as clipping them

    def weights(self) -> dict[str, Tensor]:
        """Parameters by name, tied ones once; live tensors, not copies."""
        return self._weights

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
    model.to(torch.device(resolved.device))  # type: ignore[arg-type]  # transformers wraps `to` and loses its types
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


@dataclass
class KVCache:
    """Keys and values of all tokens so far, one row for each sequence, and where the next token goes."""

    prefill_logits_BV: Tensor  # after the last prompt token, as the model gives them
    cache: DynamicCache
    mask_BL: Tensor | None
    next_position_B1: Tensor


def prefill(policy: Policy, prompts: Prompts, prompt_of_B: Tensor) -> KVCache:
    """One forward over every prompt; row b continues prompt `prompt_of_B[b]`, so that a group shares the work.

    Positions count real tokens only: padding in front is invisible.
    """
    tokens_PL, mask_PL = prompts.tokens_PL, prompts.mask_PL
    cache = DynamicCache()
    inputs: dict[str, Tensor] = {}
    positions_PL = torch.arange(tokens_PL.shape[1], device=tokens_PL.device).expand_as(tokens_PL)
    if mask_PL is not None:
        positions_PL = (mask_PL.long().cumsum(-1) - 1).clamp(min=0)
        inputs = {"attention_mask": mask_PL.long()}
    with policy.precision():
        logits_PV = policy.model(
            tokens_PL, past_key_values=cache, position_ids=positions_PL, use_cache=True, logits_to_keep=1, **inputs
        ).logits[:, -1]
    for layer in cache.layers:
        assert isinstance(layer, DynamicLayer)
        assert layer.keys is not None
        assert layer.values is not None
        layer.keys = layer.keys.index_select(0, prompt_of_B)
        layer.values = layer.values.index_select(0, prompt_of_B)
    return KVCache(
        logits_PV.index_select(0, prompt_of_B),
        cache,
        None if mask_PL is None else mask_PL.index_select(0, prompt_of_B),
        (positions_PL[:, -1:] + 1).index_select(0, prompt_of_B),
    )


def decode_logits(policy: Policy, kv_cache: KVCache, tokens_BT: Tensor) -> Tensor:
    """One forward over the next tokens of each row: the logits after each, (B, T, V). They go into the cache."""
    T = tokens_BT.shape[1]
    inputs: dict[str, Tensor] = {}
    if kv_cache.mask_BL is not None:
        kv_cache.mask_BL = torch.cat([kv_cache.mask_BL, torch.ones_like(tokens_BT, dtype=torch.bool)], dim=1)
        inputs = {"attention_mask": kv_cache.mask_BL.long()}
    positions_BT = kv_cache.next_position_B1
    if T > 1:  # a sampler feeds single tokens, and each small operation counts there
        positions_BT = positions_BT + torch.arange(T, device=tokens_BT.device)
    kv_cache.next_position_B1 = kv_cache.next_position_B1 + T
    with policy.precision():
        return policy.model(
            tokens_BT, past_key_values=kv_cache.cache, position_ids=positions_BT, use_cache=True, **inputs
        ).logits


def completion_logits(policy: Policy, prompts: Prompts, prompt_of_B: Tensor, tokens_BT: Tensor) -> Tensor:
    """Logits of every completion token over the temperature, float32, with gradient, shape (B, T, V).

    Padding behind a completion needs no mask: attention is causal.
    """
    kv_cache = prefill(policy, prompts, prompt_of_B)
    logits = [kv_cache.prefill_logits_BV[:, None]]
    if tokens_BT.shape[1] > 1:  # the last token predicts nothing that was sampled
        logits.append(decode_logits(policy, kv_cache, tokens_BT[:, :-1]))
    return torch.cat(logits, dim=1).float() / policy.temperature


def token_log_probs(
    logits_BTV: Tensor, completions_BT: Tensor, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probability of each completion token (with gradient) and entropy in nat, both (B, T), float32."""
    log_probs_BTV = logits_BTV.log_softmax(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_BT = -(log_probs_BTV.exp() * log_probs_BTV).sum(-1)
    return log_probs_BTV.gather(-1, completions_BT[..., None]).squeeze(-1), entropy_BT


@torch.no_grad()
def old_log_probs(policy: Policy, batch: TrainingBatch, micro_batch_size: int) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the policy as it is, (B, T) each, in the same pieces as updates use (bit-equal)."""
    pieces = [
        token_log_probs(completion_logits(policy, *b.own_prompts(), b.tokens_BT), b.tokens_BT)
        for b in batch.split(micro_batch_size)
    ]
    return concatenate([piece[0] for piece in pieces]), concatenate([piece[1] for piece in pieces])
