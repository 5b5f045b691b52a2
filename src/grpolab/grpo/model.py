"""The language model: made or loaded, and the one definition of a token's log-probability."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache

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
from grpolab.grpo.batch import Prompts, Texts, TrainingBatch, character_tokenizer, concatenate
from grpolab.grpo.prefix_tree import PrefixTree
from grpolab.seeds import torch_seed
from grpolab.settings.run import RunSettings
from grpolab.settings.task import LONGEST, PretrainedModel, TinyModel
from grpolab.tasks.base import Task


@dataclass
class Policy:
    """A causal language model with its tokenizer. Weights are float32; `dtype` is the forward pass's precision."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    temperature: float
    dtype: torch.dtype = torch.float32
    reach: float | None = None  # keys whose attention costs as much as a token's matrix products; None: no prefix trees
    compiled: bool = False  # whether prefix trees that take a gradient go through torch.compile

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
        return replace(self, model=copy.deepcopy(self.model).requires_grad_(False), compiled=False)

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
        model = _tiny(resolved.model, tokenizer, torch_seed(resolved.warm_start.seed or 0, "weights"))
    model.eval()  # dropout stays off: it would move the ratio away from 1 on the first pass
    model.to(torch.device(resolved.device))  # type: ignore[arg-type]  # transformers wraps `to` and loses its types
    policy = Policy(model, tokenizer, resolved.temperature, getattr(torch, resolved.dtype))
    policy = replace(policy, reach=reach_of(policy))
    return compiled(policy) if resolved.compile else policy


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
    tree_log_probs(
        policy, PrefixTree(nothing_RW, nothing_RW.clone(), attends_RWW[:, None], nothing_RW)
    ).sum().backward()
    policy.model.zero_grad()
    return policy


@cache
def _compiled_forward() -> Callable[..., Tensor]:
    """`_forward`, compiled once for all sizes; its code outlives the process in torch's own cache."""
    torch._dynamo.config.recompile_limit = 64  # one for each kind of model in a sweep
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # or it would go on uncompiled, with other bits
    torch._inductor.config.compile_threads = 1  # a sweep has a worker on every core
    return torch.compile(_forward, dynamic=True)


def _forward(model: PreTrainedModel, tokens_RW: Tensor, attends_R1WW: Tensor, positions_RW: Tensor) -> Tensor:
    """Logits behind each place, (R, W, V)."""
    return model(tokens_RW, attention_mask=attends_R1WW, position_ids=positions_RW, use_cache=False).logits


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
            pairs = [prefix_log_probs(policy, each) for each in (batch, batch.with_trees(len(batch), math.inf))]
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    plain_BTV, packed_BTV = (log_probs_NV[place_BT] for log_probs_NV, place_BT in pairs)
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
        reason = str(error).strip().splitlines()[0]
        raise RequestError(f"model.path={settings.path} cannot be loaded: {reason}") from error


@dataclass
class KVCache:
    """Keys and values of all tokens so far, one row for each prefix, and where the next token goes."""

    prefill_logits_NV: Tensor  # after the last prompt token, as the model gives them
    cache: DynamicCache
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
    return KVCache(logits_PV, cache, mask_PL, positions_PL[:, -1:] + 1)


def decode_logits(policy: Policy, kv_cache: KVCache, tokens_BT: Tensor) -> Tensor:
    """One forward over the next tokens of each row: the logits after each, (B, T, V). They go into the cache."""
    T = tokens_BT.shape[1]
    inputs: dict[str, Tensor] = {}
    if kv_cache.mask_NL is not None:
        kv_cache.mask_NL = torch.cat([kv_cache.mask_NL, torch.ones_like(tokens_BT, dtype=torch.bool)], dim=1)
        inputs = {"attention_mask": kv_cache.mask_NL.long()}
    positions_BT = kv_cache.next_position_N1
    if T > 1:  # a sampler feeds single tokens, and each small operation counts there
        positions_BT = positions_BT + torch.arange(T, device=tokens_BT.device)
    kv_cache.next_position_N1 = kv_cache.next_position_N1 + T
    with policy.precision():
        return policy.model(
            tokens_BT, past_key_values=kv_cache.cache, position_ids=positions_BT, use_cache=True, **inputs
        ).logits


def prefix_log_probs(policy: Policy, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
    """Log-probs over the vocabulary behind each prefix, (N, V), float32, with gradient; which predicts a token, (B, T).

    With a tree each distinct prefix is computed once; without, each prompt, and every completion behind it.
    """
    tokens_BT = batch.tokens_BT
    if batch.tree is not None:
        return tree_log_probs(policy, batch.tree), batch.tree.place_BC[:, -tokens_BT.shape[1] :]
    prompts, prompt_of_B = batch.own_prompts()
    kv_cache = prefill(policy, prompts)
    logits = [kv_cache.prefill_logits_NV[prompt_of_B][:, None]]
    kv_cache.select(prompt_of_B)
    if tokens_BT.shape[1] > 1:  # the last token predicts nothing that was sampled
        logits.append(decode_logits(policy, kv_cache, tokens_BT[:, :-1]))
    place_BT = torch.arange(tokens_BT.numel(), device=tokens_BT.device).view_as(tokens_BT)
    return log_softmax(policy, torch.cat(logits, dim=1).flatten(0, 1)), place_BT


def text_log_probs(policy: Policy, texts: Texts, tree: PrefixTree | None = None) -> tuple[Tensor, Tensor]:
    """The same for texts, from the first column with an answer on: (N, V), and (B, C - first)."""
    if tree is not None:
        return tree_log_probs(policy, tree), tree.place_BC[:, texts.first :]
    read_BC, place_BC = texts.tokens_BC[:, :-1], texts.tokens_BC[:, texts.first :]
    with policy.precision():
        logits_BCV = policy.model(read_BC, use_cache=False, logits_to_keep=place_BC.shape[1]).logits
    place_BC = torch.arange(place_BC.numel(), device=place_BC.device).view_as(place_BC)
    return log_softmax(policy, logits_BCV.flatten(0, 1)), place_BC


def tree_log_probs(policy: Policy, tree: PrefixTree) -> Tensor:
    """Log-probs over the vocabulary behind each place, (N, V)."""
    forward, inputs = _forward, (tree.tokens_RW, tree.attends_R1WW, tree.positions_RW)
    if policy.compiled and torch.is_grad_enabled() and len(tree.tokens_RW) > 1:  # one row would compile anew
        forward = _compiled_forward()
        for value in inputs:
            torch._dynamo.mark_dynamic(value, [axis for axis, size in enumerate(value.shape) if size > 1])
    with policy.precision():
        logits_RWV = forward(policy.model, *inputs)
    return log_softmax(policy, logits_RWV.flatten(0, 1))


def log_softmax(policy: Policy, logits_NV: Tensor) -> Tensor:
    """The one definition of a log-probability: at the temperature, in float32."""
    return (logits_NV.float() / policy.temperature).log_softmax(-1)


def token_log_probs(policy: Policy, batch: TrainingBatch, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
    """Log-probability of each completion token (with gradient) and entropy in nat, both (B, T), float32."""
    log_probs_NV, place_BT = prefix_log_probs(policy, batch)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_N = -(log_probs_NV.exp() * log_probs_NV).sum(-1)
    chosen_BT = place_BT * log_probs_NV.shape[1] + batch.tokens_BT
    return log_probs_NV.view(-1).gather(0, chosen_BT.view(-1)).view_as(chosen_BT), entropy_N[place_BT]


def old_log_probs(policy: Policy, batch: TrainingBatch, micro_batch_size: int) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the policy as it is, (B, T) each, without gradient.

    In the same pieces as updates use, and through the same code where it is compiled: bit-equal to theirs.
    """
    with torch.set_grad_enabled(policy.compiled):
        pieces = [token_log_probs(policy, micro) for micro in batch.micro_batches(micro_batch_size, policy.reach)]
    return concatenate([piece[0].detach() for piece in pieces]), concatenate([piece[1].detach() for piece in pieces])
