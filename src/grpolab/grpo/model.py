"""The language model: made or loaded, and the one definition of a token's log-probability."""

from __future__ import annotations

import copy
import hashlib
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.cache_utils import Cache, DynamicLayer
from transformers.modeling_layers import GradientCheckpointingLayer

from grpolab.errors import RequestError
from grpolab.grpo.batch import Prompts, Texts, TrainingBatch, character_tokenizer, concatenate
from grpolab.grpo.parallel import ALONE, Processes
from grpolab.grpo.places import Places, chosen, read
from grpolab.grpo.prefix_tree import PrefixTree
from grpolab.seeds import torch_seed
from grpolab.settings.resolved import Resolved
from grpolab.settings.task import LONGEST, PretrainedModel, TinyModel
from grpolab.tasks.base import Task

LARGE_CACHE = 2**19  # numbers of a layer's keys from which on they have room behind, and the tokens that fit there
ROOM = 32


@dataclass
class Policy:
    """A causal language model with its tokenizer. Weights are float32; `dtype` is the forward pass's precision."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    temperature: float
    dtype: torch.dtype = torch.float32
    reach: float | None = None  # keys whose attention costs as much as a token's matrix products; None: no prefix trees
    compiled: bool = False  # whether prefix trees that take a gradient go through torch.compile
    head_dtype: torch.dtype | None = None  # of the head's product; None: `dtype`
    recomputes: bool = False  # whether layers are computed again in the backward pass
    by_length: bool = False  # whether completions without a tree are read up to the longest of them
    bare_head: bool = False  # whether logits are the head's product with the last hidden states and nothing more

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def waits(self) -> bool:
        """Whether a value that is asked of the device stops the program until it is there: a GPU works behind it."""
        return not next(iter(self._weights.values())).is_cpu

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
        return replace(self, model=copy.deepcopy(self.model).requires_grad_(False), compiled=False)

    def logits(self, hidden: Tensor) -> Tensor:
        """What `hidden_states` gave, (..., H), as logits, (..., V)."""
        if not self.bare_head:
            return hidden
        if self.head_dtype is not None:
            with torch.autocast(self.device.type, enabled=False):
                return self._head(hidden.to(self.head_dtype))
        with self.precision():
            return self._head(hidden)

    def log_softmax(self, logits_NV: Tensor) -> Tensor:
        """The one definition of a log-probability: at the temperature, in float32."""
        return (logits_NV.float() / self.temperature).log_softmax(-1)

    @property
    def vocabulary(self) -> int:
        """Tokens that the model knows."""
        return int(self._head.weight.shape[0])

    def __post_init__(self) -> None:
        self._weights: dict[str, Tensor] = dict(
            self.model.named_parameters()
        )  # once: walking the modules takes as long as clipping them
        self._head = self.model.get_output_embeddings()

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


def make_policy(settings: Resolved, task: Task) -> Policy:
    """The policy before any warm start; weights from scratch follow from `warm_start.seed`.

    Raises RequestError where a pretrained model cannot be loaded.
    """
    if isinstance(settings.model, PretrainedModel):
        model, tokenizer = _pretrained(settings.model)
    else:
        tokenizer = character_tokenizer(task.alphabet)
        model = _tiny(settings.model, tokenizer, torch_seed(settings.warm_start.seed or 0, "weights"))
    model.eval()  # dropout stays off: it would move the ratio away from 1 on the first pass
    model.to(torch.device(settings.device))  # type: ignore[arg-type]  # transformers wraps `to` and loses its types
    policy = Policy(model, tokenizer, settings.temperature, getattr(torch, settings.dtype))
    policy = replace(policy, bare_head=has_bare_head(policy))
    policy = replace(policy, reach=reach_of(policy), by_length=bool(settings.sort_by_length))
    if settings.head_dtype:
        if not policy.bare_head:
            kind = policy.model.config.model_type
            raise RequestError(
                f"head_dtype={settings.head_dtype}: a model of kind {kind} has more than a head: leave it"
            )
        policy = replace(policy, head_dtype=getattr(torch, settings.head_dtype))
    policy = recomputing(policy) if settings.gradient_checkpointing else policy
    return compiled(policy) if settings.compile else policy


def compiled(policy: Policy) -> Policy:
    """The policy with its updates' forward and backward pass compiled, once for trees of any size.

    A first pass over a tree of no batch decides the code, so that it does not depend on where a run was resumed.
    Raises RequestError where the model reads no prefix trees: nothing else is compiled.
    """
    if policy.reach is None:
        kind = policy.model.config.model_type
        raise RequestError(f"compile=true: a model of kind {kind} reads no prefix trees: leave compile=false")
    policy, (R, W) = replace(policy, compiled=True), (7, 29)
    with policy.device:
        nothing_RW = torch.zeros(R, W, dtype=torch.long)
        attends_RWW = torch.eye(W, dtype=torch.bool).repeat(R, 1, 1)
    tree = PrefixTree(nothing_RW, nothing_RW.clone(), attends_RWW[:, None], nothing_RW)
    tree_places(policy, tree).log_probs_NV.sum().backward()
    policy.model.zero_grad()
    return policy


def recomputing(policy: Policy) -> Policy:
    """The policy with layers that keep nothing for the backward pass but their input.

    The model stays in evaluation mode: transformers' own switch needs training mode, which would turn dropout on.
    Raises RequestError where the model's layers are not known.
    """
    layers = [module for module in policy.model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        kind = policy.model.config.model_type
        raise RequestError(
            f"gradient_checkpointing=true: layers of a model of kind {kind} are not known: leave it false"
        )
    for layer in layers:
        layer.forward = partial(_recomputed, layer.forward)
    return replace(policy, recomputes=True)


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


@cache
def _compiled_forward() -> Callable[..., Tensor]:
    """`_forward`, compiled once for all sizes; its code outlives the process in torch's own cache."""
    torch._dynamo.config.recompile_limit = 64  # one for each kind of model in a sweep
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # or it would go on uncompiled, with other bits
    torch._inductor.config.compile_threads = 1  # a sweep has a worker on every core
    return torch.compile(_forward, dynamic=True)


def _forward(
    model: PreTrainedModel,
    bare_head: bool,
    tokens_RW: Tensor,
    attends_R1WW: Tensor,
    positions_RW: Tensor,
) -> Tensor:
    """What `hidden_states` gives of prefix trees, (R, W, H)."""
    inputs = {"attention_mask": attends_R1WW, "position_ids": positions_RW, "use_cache": False}
    return model.base_model(tokens_RW, **inputs).last_hidden_state if bare_head else model(tokens_RW, **inputs).logits


def hidden_states(policy: Policy, tokens_RW: Tensor, keep: int = 0, **inputs: Any) -> Tensor:
    """The last hidden states of the last `keep` tokens of each row (0: of all), (R, keep, H), for `Policy.logits`.

    Of a model whose logits are more than its head's product they are the logits themselves.
    """
    with policy.precision():
        if policy.bare_head:
            return policy.model.base_model(tokens_RW, **inputs).last_hidden_state[:, -keep:]
        return policy.model(tokens_RW, logits_to_keep=keep, **inputs).logits


@torch.inference_mode()
def has_bare_head(policy: Policy) -> bool:
    """`Policy.bare_head`: a soft cap, a scale or a projection between hidden states and logits shows in a forward."""
    tokens_RW = torch.tensor([[1, 2, 3, 1, 0, 2]], device=policy.device)
    plain, bare = (replace(policy, dtype=torch.float32, bare_head=bare) for bare in (False, True))
    try:
        return torch.equal(bare.logits(hidden_states(bare, tokens_RW)), hidden_states(plain, tokens_RW))
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return False


def reach_of(policy: Policy) -> float | None:
    """`Policy.reach` from the sizes of a layer; None where the model cannot read a prefix tree.

    Some kinds of attention take no mask of one's own, or infer positions or windows from it: a forward over a small
    tree, beside one without, tells.
    """
    config = getattr(policy.model.config, "text_config", policy.model.config)
    if getattr(config, "sliding_window", None):
        return None
    hidden = config.hidden_size
    intermediate = getattr(config, "intermediate_size", None) or 4 * hidden
    policy = replace(policy, dtype=torch.float32)
    with policy.device:
        prompts = Prompts(torch.tensor([[1, 2, 3], [3, 1, 2]]), torch.tensor([[0, 1, 1], [1, 1, 1]]).bool())
        tokens_BT = torch.tensor([[4, 1, 2, 5], [4, 1, 5, 2], [3, 3, 3, 3]]) % config.vocab_size
        batch = TrainingBatch(
            rows_B=torch.arange(3),
            prompts=prompts,
            prompt_of_B=torch.tensor([0, 0, 1]),
            tokens_BT=tokens_BT,
            mask_BT=torch.ones_like(tokens_BT, dtype=torch.bool),
            sampler_log_probs_BT=torch.zeros(3, 4),
            advantages_B=torch.zeros(3),
            rewards_B=torch.zeros(3),
        )
    try:
        with torch.inference_mode():
            pairs = [prefix_places(policy, each) for each in (batch, batch.with_trees(len(batch), math.inf))]
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    plain_BTV, packed_BTV = (places.log_probs_NV[place_BT] for places, place_BT in pairs)
    same = torch.allclose(plain_BTV, packed_BTV, rtol=1e-3, atol=1e-3)
    return 2 * hidden + 1.5 * intermediate if same else None


def _tiny(settings: TinyModel, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        intermediate_size=settings.intermediate_size,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,  # before the weights are made: its embedding is zero and is not trained
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):  # transformers draws initial weights from torch's global generator
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def _pretrained(settings: PretrainedModel) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    with _loading(settings):
        model = AutoModelForCausalLM.from_pretrained(
            settings.path,
            revision=settings.revision,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
        )
    return model, tokenizer_of(settings)


def tokenizer_of(settings: PretrainedModel) -> PreTrainedTokenizerBase:
    """The tokenizer of a pretrained model; raises RequestError where it cannot be loaded or has no end token."""
    with _loading(settings):
        tokenizer = AutoTokenizer.from_pretrained(settings.path, revision=settings.revision, trust_remote_code=False)
    if tokenizer.eos_token_id is None:
        raise RequestError(f"model.path={settings.path}: its tokenizer has no end-of-sequence token")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@contextmanager
def _loading(settings: PretrainedModel) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = textwrap.shorten(str(error), 240, placeholder=" ...")
        raise RequestError(f"model.path={settings.path} cannot be loaded: {reason}") from error


class RoomyLayer(DynamicLayer):
    """A layer's keys and values; large ones have room behind, so that a token does not copy all that is before it."""

    length = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Put the next tokens' keys and values, (B, heads, T, D) each, behind; returns all that are there then."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        B, heads, T, D = key_states.shape
        before, self.length = self.length, self.length + T
        if before and self.length <= self.keys.shape[-2]:
            self.keys[..., before : self.length, :] = key_states
            self.values[..., before : self.length, :] = value_states
        else:
            had = (self.keys[..., :before, :], self.values[..., :before, :]) if before else (self.keys, self.values)
            room = key_states.new_empty(B, heads, ROOM if B * heads * self.length * D > LARGE_CACHE else 0, D)
            self.keys = torch.cat([had[0], key_states, room], dim=-2)
            self.values = torch.cat([had[1], value_states, room], dim=-2)
        return self.keys[..., : self.length, :], self.values[..., : self.length, :]

    def get_seq_length(self) -> int:
        """Tokens that are there."""
        return self.length


@dataclass
class KVCache:
    """Keys and values of all tokens so far, one row for each prefix, and where the next token goes."""

    prefill_hidden_N1H: Tensor  # after the last prompt token
    cache: Cache
    mask_NL: Tensor | None
    next_position_N1: Tensor

    def select(self, row_of_N: Tensor) -> None:
        """Keep these rows, in this order; a row may be asked for several times."""
        for layer in self.cache.layers:
            assert isinstance(layer, DynamicLayer)
            assert layer.keys is not None
            assert layer.values is not None
            layer.keys = layer.keys.index_select(0, row_of_N)
            layer.values = layer.values.index_select(0, row_of_N)
        self.mask_NL = None if self.mask_NL is None else self.mask_NL.index_select(0, row_of_N)
        self.next_position_N1 = self.next_position_N1.index_select(0, row_of_N)


def prefill(policy: Policy, prompts: Prompts) -> KVCache:
    """One forward over every prompt. Positions count real tokens only: padding in front is invisible."""
    tokens_PL, mask_PL = prompts.tokens_PL, prompts.mask_PL
    # Only the sampler writes into what is there: a gradient needs it, and old log-probs are the update's bit for bit.
    cache = Cache(layer_class_to_replicate=RoomyLayer) if torch.is_inference_mode_enabled() else DynamicCache()
    inputs: dict[str, Any] = {}
    positions_PL = torch.arange(tokens_PL.shape[1], device=tokens_PL.device).expand_as(tokens_PL)
    if mask_PL is not None:
        positions_PL = (mask_PL.long().cumsum(-1) - 1).clamp(min=0)
        inputs = {"attention_mask": mask_PL.long()}
    inputs |= {"past_key_values": cache, "position_ids": positions_PL, "use_cache": True}
    hidden_P1H = hidden_states(policy, tokens_PL, keep=1, **inputs)
    return KVCache(hidden_P1H, cache, mask_PL, positions_PL[:, -1:] + 1)


def decode_hidden(policy: Policy, kv_cache: KVCache, tokens_BT: Tensor) -> Tensor:
    """One forward over the next tokens of each row: what `hidden_states` gives, (B, T, H). They go into the cache."""
    T = tokens_BT.shape[1]
    inputs: dict[str, Any] = {}
    if kv_cache.mask_NL is not None:
        kv_cache.mask_NL = torch.cat([kv_cache.mask_NL, torch.ones_like(tokens_BT, dtype=torch.bool)], dim=1)
        inputs = {"attention_mask": kv_cache.mask_NL.long()}
        if policy.waits and policy.reach is not None and T == 1:  # one that transformers does not look into
            inputs = {"attention_mask": kv_cache.mask_NL[:, None, None]}
    positions_BT = kv_cache.next_position_N1
    if T > 1:  # a sampler feeds single tokens, and each small operation counts there
        positions_BT = positions_BT + torch.arange(T, device=tokens_BT.device)
    kv_cache.next_position_N1 = kv_cache.next_position_N1 + T
    inputs |= {"past_key_values": kv_cache.cache, "position_ids": positions_BT, "use_cache": True}
    return hidden_states(policy, tokens_BT, **inputs)


def prefix_places(policy: Policy, batch: TrainingBatch) -> tuple[Places, Tensor]:
    """What is predicted behind each prefix, with gradient; and which place predicts a token, (B, T).

    With a tree each distinct prefix is computed once; without, each prompt, and every completion behind it.
    """
    tokens_BT = batch.tokens_BT
    if batch.tree is not None:
        return tree_places(policy, batch.tree), batch.tree.place_BC[:, -tokens_BT.shape[1] :]
    prompts, prompt_of_B = batch.own_prompts()
    B, T = tokens_BT.shape
    width = int(batch.mask_BT.sum(1).amax()) if policy.by_length else T
    tokens_BT = tokens_BT[:, : max(1, width)]
    width = tokens_BT.shape[1]
    columns_T = torch.arange(T, device=tokens_BT.device).clamp(max=width - 1)
    place_BT = torch.arange(B, device=tokens_BT.device)[:, None] * width + columns_T
    if policy.recomputes and torch.is_grad_enabled():  # a layer that runs again must find no cache that it has filled
        mask_PL = torch.ones_like(prompts.tokens_PL) if prompts.mask_PL is None else prompts.mask_PL.long()
        tokens_BC = torch.cat([prompts.tokens_PL[prompt_of_B], tokens_BT[:, :-1]], 1)
        mask_BC = torch.cat([mask_PL[prompt_of_B], torch.ones_like(tokens_BT[:, :-1])], 1)
        positions_BC = (mask_BC.cumsum(-1) - 1).clamp(min=0)
        inputs = {"attention_mask": mask_BC, "position_ids": positions_BC, "use_cache": False}
        return Places.of(policy, [hidden_states(policy, tokens_BC, keep=width, **inputs)], B * width), place_BT

    def pieces() -> Iterator[Tensor]:
        kv_cache = prefill(policy, prompts)
        yield kv_cache.prefill_hidden_N1H
        kv_cache.select(prompt_of_B)
        if tokens_BT.shape[1] > 1:  # the last token predicts nothing that was sampled
            yield decode_hidden(policy, kv_cache, tokens_BT[:, :-1])

    return Places.of(policy, pieces(), B * width, prompt_of_B), place_BT


def text_places(policy: Policy, texts: Texts, tree: PrefixTree | None = None) -> tuple[Places, Tensor]:
    """The same for texts, from the first column with an answer on: places, and (B, C - first)."""
    if tree is not None:
        return tree_places(policy, tree), tree.place_BC[:, texts.first :]
    read_BC, place_BC = texts.tokens_BC[:, :-1], texts.tokens_BC[:, texts.first :]
    hidden_BCH = hidden_states(policy, read_BC, keep=place_BC.shape[1], use_cache=False)
    place_BC = torch.arange(place_BC.numel(), device=place_BC.device).view_as(place_BC)
    return Places.of(policy, [hidden_BCH], place_BC.numel()), place_BC


def tree_places(policy: Policy, tree: PrefixTree) -> Places:
    """What is predicted behind each place of prefix trees."""
    forward, inputs = _forward, (tree.tokens_RW, tree.attends_R1WW, tree.positions_RW)
    if policy.compiled and torch.is_grad_enabled() and len(tree.tokens_RW) > 1:  # one row would compile anew
        forward = _compiled_forward()
        for value in inputs:
            torch._dynamo.mark_dynamic(value, [axis for axis, size in enumerate(value.shape) if size > 1])
    with policy.precision():
        hidden_RWH = forward(policy.model, policy.bare_head, *inputs)
    return Places.of(policy, [hidden_RWH], tree.tokens_RW.numel())


def token_log_probs(policy: Policy, batch: TrainingBatch, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
    """Log-probability of each completion token (with gradient) and entropy in nat, both (B, T), float32."""

    def reading(place_Y: Tensor, tokens_Y: Tensor, log_probs_NV: Tensor) -> tuple[Tensor, Tensor]:
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy_N = -(log_probs_NV.exp() * log_probs_NV).sum(-1)
        return chosen(place_Y, tokens_Y, log_probs_NV), entropy_N[place_Y]

    places, place_BT = prefix_places(policy, batch)
    log_probs_BT, entropy_BT = read(reading, place_BT, batch.tokens_BT, batch.mask_BT, places)
    return log_probs_BT, entropy_BT


def old_log_probs(
    policy: Policy, batch: TrainingBatch, micro_batch_size: int, processes: Processes = ALONE
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the policy as it is, (B, T) each, without gradient.

    In the same pieces as updates use, and through the same code where it is compiled: bit-equal to theirs.
    """
    with torch.set_grad_enabled(policy.compiled):
        micros = processes.share(batch.micro_batches(micro_batch_size, policy.reach))
        computed = [token_log_probs(policy, micro) for micro in micros]
    pieces = processes.gather([(log_probs_BT.detach(), entropy_BT.detach()) for log_probs_BT, entropy_BT in computed])
    return concatenate([piece[0] for piece in pieces]), concatenate([piece[1] for piece in pieces])
