"""The language model's forward pass, and the one definition of a token's log-probability.

`token_log_probs` is what an update differentiates. `prefill` and `decode_hidden` are the sampler's forward passes;
`grpo/loading.py` makes the policy.

A place is a position of a forward pass: its hidden state predicts the next token. Log-probs of a small model are
computed at once. Those of a large one would fill the memory (49,152 float32 numbers a place). So they are computed in
chunks of places, only where the next token counts, and once more in the backward pass.

Letters of shapes besides those of `batch.py`: N places; Y tokens of a chunk (several may share a place).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache, DynamicLayer

from grpolab.grpo.batch import Prompts, Texts, TrainingBatch, concatenate
from grpolab.grpo.prefix_tree import PrefixTree
from grpolab.grpo.processes import ALONE, Processes
from grpolab.grpo.sampling_mask import log_mass, unpack

ADAPTER = ".lora_"  # in the name of each weight of an adapter (`peft`)
MOST_LOGITS = 2**24  # that may exist at once, 64 MiB; no model from scratch comes near
# Numbers in a layer's keys from which on spare columns are kept behind them, and how many columns.
LARGE_CACHE, SPARE_COLUMNS = 2**19, 32


@dataclass
class Policy:
    """A causal language model with its tokenizer. Weights are float32; `dtype` is the forward pass's precision."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    temperature: float
    dtype: torch.dtype = torch.float32
    # Number of attended keys whose attention costs as much as a token's matrix products; None: no prefix trees.
    break_even: float | None = None
    compiled: bool = False  # forward passes over prefix trees with gradient go through torch.compile
    head_dtype: torch.dtype | None = None  # of the last matrix product; None: `dtype`
    layers_once: bool = False  # each layer runs once in an update: it is recomputed, or gathered from shards
    by_length: bool = False  # a batch without a tree is cut to its longest completion
    by_prompt: bool = False  # nothing is computed twice or for nothing, whatever that does to rounding
    # Enters a context with the adapters switched off; they alone are trained. None: there are none.
    without_adapters: Callable[[AbstractContextManager[None]], AbstractContextManager[None]] | None = None
    is_reference: bool = False  # each forward pass is without the adapters
    stop: tuple[str, ...] = ()  # texts that end a completion, as an end token does
    head_only_multiplies: bool = False  # logits are the head's matrix product with the last hidden states, unchanged

    def __post_init__(self) -> None:
        # Looked up once: walking the modules takes as long as clipping the gradients.
        self._weights: dict[str, Tensor] = dict(self.model.named_parameters())
        if self.without_adapters:
            self._weights = {name: weight for name, weight in self._weights.items() if ADAPTER in name}
        self._head = self.model.get_output_embeddings()

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def on_gpu(self) -> bool:
        """True if the weights are on a GPU: reading a value back then makes the program wait for it."""
        return not next(iter(self._weights.values())).is_cpu

    @property
    def pad(self) -> int:
        """Token id of padding."""
        return int(self.tokenizer.pad_token_id)

    @property
    def end(self) -> int:
        """Token id that ends a completion."""
        return int(self.tokenizer.eos_token_id)

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the model knows."""
        return int(self._head.weight.shape[0])

    def precision(self) -> AbstractContextManager[None]:
        """Return the context of the forward pass's precision."""
        precision = nullcontext() if self.dtype == torch.float32 else torch.autocast(self.device.type, self.dtype)
        return self.without_adapters(precision) if self.is_reference and self.without_adapters else precision

    def logits(self, hidden: Tensor) -> Tensor:
        """Turn the output of `hidden_states`, (..., H), into logits, (..., V)."""
        if not self.head_only_multiplies:
            return hidden
        if self.head_dtype is not None:
            with torch.autocast(self.device.type, enabled=False):
                return self._head(hidden.to(self.head_dtype))
        with self.precision():
            return self._head(hidden)

    def log_softmax(self, logits_NV: Tensor) -> Tensor:
        """Return log-probabilities: the one definition, at the temperature and in float32."""
        return (logits_NV.float() if self.temperature == 1 else logits_NV.float() / self.temperature).log_softmax(-1)

    def frozen_copy(self) -> Policy:
        """Return the reference of a KL: a copy that shares nothing, or where adapters are trained the model without."""
        if self.without_adapters:
            return replace(self, is_reference=True)
        return replace(self, model=copy.deepcopy(self.model).requires_grad_(False), compiled=False)

    def weights(self) -> dict[str, Tensor]:
        """Return the parameters that are trained by name, tied ones once: live tensors, not copies."""
        return self._weights

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy saved parameters into the model. Raises KeyError if one is absent."""
        for name, parameter in self.weights().items():
            parameter.copy_(weights[name])

    def updating(self) -> AbstractContextManager[None]:
        """Return the context of an optimiser step; weights in shards (`models/sharding.py`) are whole outside."""
        return nullcontext()

    def clip_gradients(self, most: float) -> Tensor:
        """Scale all gradients so that their norm is at most `most`; return the norm before."""
        return torch.nn.utils.clip_grad_norm_(self._weights.values(), most)

    def fingerprint(self) -> str:
        """Return the SHA-256 over all parameters, bit for bit."""
        digest = hashlib.sha256()
        for name, parameter in sorted(self.weights().items()):
            digest.update(name.encode())
            digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


# --- log-probs of an update -------------------------------------------------------------------------------------------

# From the place of each token, (Y,), the tokens, (Y,), and each policy's log-probs, (N, V), to tensors (Y,).
TokenFunction: TypeAlias = Callable[..., tuple[Tensor, ...]]


def token_log_probs(policy: Policy, batch: TrainingBatch, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
    """Return each completion token's log-probability (with gradient) and entropy in nat, (B, T) each, float32.

    With `keep_sampling_mask` the log-probability is that among the tokens that could be sampled; the entropy is always
    that of the whole policy.
    """

    def log_prob_and_entropy(place_Y: Tensor, tokens_Y: Tensor, log_probs_NV: Tensor) -> tuple[Tensor, Tensor]:
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy_N = -(log_probs_NV.exp() * log_probs_NV).sum(-1)
        return token_log_prob(place_Y, tokens_Y, log_probs_NV), entropy_N[place_Y]

    def over_kept(place_Y: Tensor, index_Y: Tensor, log_probs_NV: Tensor) -> tuple[Tensor, Tensor]:
        assert batch.kept_BTC is not None
        log_prob_Y, entropy_Y = log_prob_and_entropy(place_Y, batch.tokens_BT.flatten()[index_Y], log_probs_NV)
        kept_YV = unpack(batch.kept_BTC.flatten(0, 1)[index_Y], log_probs_NV.shape[1])
        return log_prob_Y - log_mass(log_probs_NV[place_Y], kept_YV).squeeze(1), entropy_Y

    function: TokenFunction = log_prob_and_entropy
    tokens_BT = batch.tokens_BT
    if batch.kept_BTC is not None:
        function = over_kept
        tokens_BT = torch.arange(tokens_BT.numel(), device=tokens_BT.device).view_as(tokens_BT)  # in their place
    places, place_BT = prefix_places(policy, batch)
    log_probs_BT, entropy_BT = apply_to_tokens(function, place_BT, tokens_BT, batch.mask_BT, places)
    return log_probs_BT, entropy_BT


def old_log_probs(
    policy: Policy, batch: TrainingBatch, micro_batch_size: int, processes: Processes = ALONE
) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropies, (B, T) each, without gradient; to the bit those that an update computes."""
    with torch.set_grad_enabled(policy.compiled):
        micros = processes.share(batch.micro_batches(micro_batch_size, policy.break_even))
        computed = [token_log_probs(policy, micro) for micro in micros]
    pieces = processes.gather([(log_probs_BT.detach(), entropy_BT.detach()) for log_probs_BT, entropy_BT in computed])
    return concatenate([piece[0] for piece in pieces]), concatenate([piece[1] for piece in pieces])


@dataclass(frozen=True)
class Places:
    """Hidden states of places, or their log-probs if these are few enough to be computed at once."""

    policy: Policy
    hidden_NH: Tensor | None
    ready_NV: Tensor | None

    @staticmethod
    def of(policy: Policy, pieces: Iterable[Tensor], count: int, first_of_B: Tensor | None = None) -> Places:
        """Make `count` places from pieces of hidden states, (B, C, H) each, joined along C.

        `first_of_B` repeats rows of the first piece, so that their logits are computed only once. A piece's logits are
        computed before the next piece is made: this order decides how the gradients of a tied head add up.
        """
        small = count * policy.vocabulary <= MOST_LOGITS and not policy.by_prompt
        made = [policy.logits(piece) if small else piece for piece in pieces]
        if first_of_B is not None:
            made[0] = made[0][first_of_B]
        places_NX = (torch.cat(made, dim=1) if len(made) > 1 else made[0]).flatten(0, 1)
        return Places(policy, None, policy.log_softmax(places_NX)) if small else Places(policy, places_NX, None)

    @property
    def log_probs_NV(self) -> Tensor:
        """Log-probs behind every place at once, whatever memory they take."""
        if self.ready_NV is not None:
            return self.ready_NV
        assert self.hidden_NH is not None
        return self.policy.log_softmax(self.policy.logits(self.hidden_NH))


def apply_to_tokens(
    function: TokenFunction, place_BT: Tensor, tokens_BT: Tensor, wanted_BT: Tensor, *policies: Places
) -> tuple[Tensor, ...]:
    """Apply a function to each wanted token; return tensors (B, T), with gradient. All policies have equal places."""
    if all(places.ready_NV is not None for places in policies):
        values = function(place_BT.flatten(), tokens_BT.flatten(), *(places.ready_NV for places in policies))
        return tuple(value_N.view_as(place_BT) for value_N in values)

    def apply_to_chunk(place_Y: Tensor, tokens_Y: Tensor, *hidden: Tensor) -> tuple[Tensor, ...]:
        logits = (places.policy.logits(hidden_NH) for places, hidden_NH in zip(policies, hidden, strict=True))
        return function(place_Y, tokens_Y, *map(policies[0].policy.log_softmax, logits))

    wanted_Y = wanted_BT.flatten().nonzero().squeeze(1)
    used_N, place_Y = place_BT.flatten()[wanted_Y].unique(return_inverse=True)
    order_Y = place_Y.argsort(stable=True)
    wanted_Y, place_Y = wanted_Y[order_Y], place_Y[order_Y]
    tokens_Y = tokens_BT.flatten()[wanted_Y]
    size = max(1, MOST_LOGITS // policies[0].policy.vocabulary)
    starts = range(0, max(len(used_N), 1), size)  # one chunk at least, for a gradient of 0 where no token is wanted
    edges = torch.searchsorted(place_Y, torch.tensor([*starts, len(used_N)], device=place_Y.device)).tolist()
    recomputed = partial(checkpoint, apply_to_chunk, use_reentrant=False, preserve_rng_state=False)
    chunks = []
    for start, (begin, end) in zip(starts, pairwise(edges), strict=True):
        hidden = [places.hidden_NH[used_N[start : start + size]] for places in policies if places.hidden_NH is not None]
        inputs = place_Y[begin:end] - start, tokens_Y[begin:end], *hidden
        chunks.append(recomputed(*inputs) if len(starts) > 1 else apply_to_chunk(*inputs))
    values = tuple(map(torch.cat, zip(*chunks, strict=True)))  # tokens that are not wanted get 0
    return tuple(value.new_zeros(place_BT.numel()).index_copy(0, wanted_Y, value).view_as(place_BT) for value in values)


def token_log_prob(place_Y: Tensor, tokens_Y: Tensor, log_probs_NV: Tensor) -> Tensor:
    """Return the log-prob of each token, (Y,)."""
    return log_probs_NV.view(-1).gather(0, place_Y * log_probs_NV.shape[1] + tokens_Y)


# --- forward passes ---------------------------------------------------------------------------------------------------


def prefix_places(policy: Policy, batch: TrainingBatch) -> tuple[Places, Tensor]:
    """Run the forward pass over a batch; return its places, with gradient, and each token's place, (B, T).

    With a prefix tree each distinct prefix is computed once; without, each prompt once and then every completion.
    """
    if batch.tree is not None:
        return tree_places(policy, batch.tree), batch.tree.place_BC[:, -batch.tokens_BT.shape[1] :]
    prompts, prompt_of_B = batch.select_prompts()
    B, T = batch.tokens_BT.shape
    width = max(1, int(batch.mask_BT.sum(1).amax())) if policy.by_length else T
    tokens_BT = batch.tokens_BT[:, :width]
    columns_T = torch.arange(T, device=tokens_BT.device).clamp(max=width - 1)
    place_BT = torch.arange(B, device=tokens_BT.device)[:, None] * width + columns_T
    if policy.layers_once:  # a layer that runs twice would find the cache filled already
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
        if width > 1:  # the last token predicts nothing that was sampled
            yield decode_hidden(policy, kv_cache, tokens_BT[:, :-1])

    return Places.of(policy, pieces(), B * width, prompt_of_B), place_BT


def text_places(policy: Policy, texts: Texts, tree: PrefixTree | None = None) -> tuple[Places, Tensor]:
    """Do as `prefix_places` for texts, from the first column that has an answer; the places are (B, C - first)."""
    if tree is not None:
        return tree_places(policy, tree), tree.place_BC[:, texts.first :]
    read_BC, place_BC = texts.tokens_BC[:, :-1], texts.tokens_BC[:, texts.first :]
    hidden_BCH = hidden_states(policy, read_BC, keep=place_BC.shape[1], use_cache=False)
    place_BC = torch.arange(place_BC.numel(), device=place_BC.device).view_as(place_BC)
    return Places.of(policy, [hidden_BCH], place_BC.numel()), place_BC


def tree_places(policy: Policy, tree: PrefixTree) -> Places:
    """Run the forward pass over prefix trees."""
    forward, inputs = _tree_forward, (tree.tokens_RW, tree.attends_R1WW, tree.positions_RW)
    if policy.compiled and torch.is_grad_enabled() and len(tree.tokens_RW) > 1:  # a single row would compile anew
        forward = _compiled_tree_forward()
        for value in inputs:
            torch._dynamo.mark_dynamic(value, [axis for axis, size in enumerate(value.shape) if size > 1])
    with policy.precision():
        hidden_RWH = forward(policy.model, policy.head_only_multiplies, *inputs)
    return Places.of(policy, [hidden_RWH], tree.tokens_RW.numel())


def _tree_forward(
    model: PreTrainedModel, head_only_multiplies: bool, tokens_RW: Tensor, attends_R1WW: Tensor, positions_RW: Tensor
) -> Tensor:
    """Return last hidden states if the logits are only the head's product with them, else logits; (R, W, H or V)."""
    inputs = {"attention_mask": attends_R1WW, "position_ids": positions_RW, "use_cache": False}
    return (
        model.base_model(tokens_RW, **inputs).last_hidden_state
        if head_only_multiplies
        else model(tokens_RW, **inputs).logits
    )


@cache
def _compiled_tree_forward() -> Callable[..., Tensor]:
    """Compile `_tree_forward` once for all sizes; torch's own cache keeps the code between processes."""
    torch._dynamo.config.recompile_limit = 64  # one for each kind of model in a sweep
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # else torch goes on uncompiled and rounds differently
    torch._inductor.config.compile_threads = 1  # a sweep has a worker on every core
    return torch.compile(_tree_forward, dynamic=True)


def hidden_states(policy: Policy, tokens_RW: Tensor, keep: int = 0, **inputs: Any) -> Tensor:
    """Return the last hidden states of the last `keep` tokens of each row (0: of all), (R, keep, H)."""
    with policy.precision():
        if policy.head_only_multiplies:
            return policy.model.base_model(tokens_RW, **inputs).last_hidden_state[:, -keep:]
        # A head that does more than multiply: return logits instead, which `Policy.logits` passes on.
        return policy.model(tokens_RW, logits_to_keep=keep, **inputs).logits


class RoomyLayer(DynamicLayer):
    """A layer's KV cache. A large one has spare columns, so that adding a token does not copy all earlier ones."""

    length = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append the next tokens' keys and values, (B, heads, T, D) each; return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        B, heads, T, D = key_states.shape
        keys, values, before = self.keys, self.values, self.length
        assert keys is not None
        assert values is not None
        self.length += T
        if before and self.length <= keys.shape[-2]:
            keys[..., before : self.length, :] = key_states
            values[..., before : self.length, :] = value_states
        else:
            earlier = (keys[..., :before, :], values[..., :before, :]) if before else (keys, values)
            spare = SPARE_COLUMNS if B * heads * self.length * D > LARGE_CACHE else 0
            room = key_states.new_empty(B, heads, spare, D)
            self.keys = keys = torch.cat([earlier[0], key_states, room], dim=-2)
            self.values = values = torch.cat([earlier[1], value_states, room], dim=-2)
        return keys[..., : self.length, :], values[..., : self.length, :]

    def get_seq_length(self) -> int:
        """Return the number of tokens."""
        return self.length


@dataclass
class KVCache:
    """Keys and values of all tokens so far, one row for each prefix, and the position of the next token."""

    prefill_hidden_N1H: Tensor  # after the last prompt token
    cache: Cache
    mask_NL: Tensor | None
    next_position_N1: Tensor

    def select(self, row_of_N: Tensor) -> None:
        """Keep these rows in this order; a row may appear several times."""
        for layer in self.cache.layers:
            assert isinstance(layer, DynamicLayer)
            assert layer.keys is not None
            assert layer.values is not None
            layer.keys, layer.values = layer.keys.index_select(0, row_of_N), layer.values.index_select(0, row_of_N)
        self.mask_NL = None if self.mask_NL is None else self.mask_NL.index_select(0, row_of_N)
        self.next_position_N1 = self.next_position_N1.index_select(0, row_of_N)


def prefill(policy: Policy, prompts: Prompts) -> KVCache:
    """Run one forward pass over all prompts. Positions count real tokens only, so left padding changes nothing."""
    tokens_PL, mask_PL = prompts.tokens_PL, prompts.mask_PL
    # Only the sampler may write in place: gradients need the old keys, and old log-probs must round as an update does.
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
    """Run one forward pass over the next tokens of each row and add them to the cache; return (B, T, H)."""
    T = tokens_BT.shape[1]
    inputs: dict[str, Any] = {}
    if kv_cache.mask_NL is not None:
        kv_cache.mask_NL = torch.cat([kv_cache.mask_NL, torch.ones_like(tokens_BT, dtype=torch.bool)], dim=1)
        inputs = {"attention_mask": kv_cache.mask_NL.long()}
        if policy.on_gpu and policy.break_even is not None and T == 1:
            # transformers does not inspect a mask of four axes.
            inputs = {"attention_mask": kv_cache.mask_NL[:, None, None]}
    positions_BT = kv_cache.next_position_N1
    if T > 1:  # the sampler feeds single tokens, where every operation saved shows
        positions_BT = positions_BT + torch.arange(T, device=tokens_BT.device)
    kv_cache.next_position_N1 = kv_cache.next_position_N1 + T
    inputs |= {"past_key_values": kv_cache.cache, "position_ids": positions_BT, "use_cache": True}
    return hidden_states(policy, tokens_BT, **inputs)
