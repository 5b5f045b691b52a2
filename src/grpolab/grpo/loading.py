"""Make the policy, a tiny model from scratch or a pretrained one, and find out what that model can do."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.modeling_layers import GradientCheckpointingLayer

from grpolab.errors import RequestError
from grpolab.grpo.batch import Completions, Prompts, TrainingBatch
from grpolab.grpo.model import Policy, hidden_states, prefix_places, tree_places
from grpolab.grpo.prefix_tree import PrefixTree
from grpolab.seeds import torch_seed
from grpolab.settings.resolved import Resolved
from grpolab.settings.task import LONGEST, PretrainedModel, TinyModel
from grpolab.tasks import make_task
from grpolab.tasks.base import Task

SPECIAL = PAD, BEGIN, END, UNKNOWN = "<pad>", "<begin>", "<end>", "<unknown>"
CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def make_policy(settings: Resolved, task: Task) -> Policy:
    """Return the policy before any warm start. Raises RequestError for a model that cannot do what the settings ask."""
    if isinstance(settings.model, PretrainedModel):
        model, tokenizer = _load_pretrained(settings.model)
    else:
        others = [make_task(other).alphabet for other in (settings.other_tasks or {}).values()]
        tokenizer = character_tokenizer("".join([task.alphabet, *others]))
        model = _make_tiny(settings.model, tokenizer, torch_seed(settings.warm_start.seed or 0, "weights"))
    model.eval()  # dropout stays off: it would move the ratio away from 1 on the first pass
    model.to(torch.device(settings.device))  # type: ignore[arg-type]  # transformers wraps `to` and loses its types
    policy = Policy(model, tokenizer, settings.temperature, getattr(torch, settings.dtype))
    policy = replace(policy, stop=tuple(getattr(task, "stop", ())))
    policy = replace(policy, head_only_multiplies=head_only_multiplies(policy))
    policy = replace(policy, break_even=find_break_even(policy), by_length=bool(settings.sort_by_length))
    if settings.head_dtype:
        if not policy.head_only_multiplies:
            raise _unsupported(f"head_dtype={settings.head_dtype}", policy, "has more than a head")
        policy = replace(policy, head_dtype=getattr(torch, settings.head_dtype))
    policy = recompute_layers(policy) if settings.gradient_checkpointing else policy
    return compile_updates(policy) if settings.compile else policy


def _make_tiny(settings: TinyModel, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    sizes: dict[str, Any] = {
        **{"hidden_size": settings.hidden_size, "intermediate_size": settings.intermediate_size},
        **{"num_attention_heads": settings.heads, "num_key_value_heads": settings.heads},
        **{"num_hidden_layers": settings.layers, "max_position_embeddings": LONGEST},
    }
    # Set before the weights are made, because the padding token's embedding is zero and is not trained.
    ends = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=False, **sizes, **ends)
    with torch.random.fork_rng(devices=[]):  # transformers draws initial weights from torch's global generator
        torch.manual_seed(seed)
        return transformers.LlamaForCausalLM(config)


def character_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer: four special tokens, then one token per character of the sorted alphabet."""
    words = [*SPECIAL, *sorted(set(alphabet))]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    named = {"pad_token": PAD, "bos_token": BEGIN, "eos_token": END, "unk_token": UNKNOWN}
    return PreTrainedTokenizerFast(tokenizer_object=backend, padding_side="left", chat_template=CHAT, **named)


def _load_pretrained(settings: PretrainedModel) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    options = {"revision": settings.revision, "trust_remote_code": False, "use_safetensors": True}
    with _explain_failure(settings):
        model = transformers.AutoModelForCausalLM.from_pretrained(settings.path, dtype=torch.float32, **options)
    return model, load_tokenizer(settings)


def load_tokenizer(settings: PretrainedModel) -> PreTrainedTokenizerBase:
    """Load a pretrained model's tokenizer. Raises RequestError if it cannot be loaded or has no end token."""
    options = {"revision": settings.revision, "trust_remote_code": False}
    with _explain_failure(settings):
        tokenizer = transformers.AutoTokenizer.from_pretrained(settings.path, **options)
    if tokenizer.eos_token_id is None:
        raise RequestError(f"model.path={settings.path}: its tokenizer has no end-of-sequence token")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@contextmanager
def _explain_failure(settings: PretrainedModel) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = textwrap.shorten(str(error), 240, placeholder=" ...")
        raise RequestError(f"model.path={settings.path} cannot be loaded: {reason}") from error


def _unsupported(setting: str, policy: Policy, reason: str) -> RequestError:
    return RequestError(f"{setting}: a model of kind {policy.model.config.model_type} {reason}: leave it unset")


def compile_updates(policy: Policy) -> Policy:
    """Return the policy with the forward and backward pass over prefix trees compiled, once for trees of any size.

    The first pass is over an artificial tree, so that torch compiles the same code wherever a run is resumed.
    Raises RequestError if the model cannot read prefix trees, because nothing else is compiled.
    """
    if policy.break_even is None:
        raise _unsupported("compile=true", policy, "reads no prefix trees")
    policy, (R, W) = replace(policy, compiled=True), (7, 29)
    with policy.device:
        zeros_RW = torch.zeros(R, W, dtype=torch.long)
        attends_RWW = torch.eye(W, dtype=torch.bool).repeat(R, 1, 1)
    tree = PrefixTree(zeros_RW, zeros_RW.clone(), attends_RWW[:, None], zeros_RW)
    tree_places(policy, tree).log_probs_NV.sum().backward()
    policy.model.zero_grad()
    return policy


def recompute_layers(policy: Policy) -> Policy:
    """Return the policy with activation checkpointing: each layer keeps only its input for the backward pass.

    The model stays in evaluation mode. transformers' own switch needs training mode, which would turn dropout on.
    Raises RequestError if the model's layers are not known.
    """
    layers = [module for module in policy.model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise _unsupported("gradient_checkpointing=true", policy, "has layers that are not known")
    for layer in layers:
        layer.forward = partial(_recompute, layer.forward)
    return replace(policy, layers_once=True)


def _recompute(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


@torch.inference_mode()
def head_only_multiplies(policy: Policy) -> bool:
    """Try by a forward pass whether nothing follows the head's product: no soft cap, scale or projection."""
    tokens_RW = torch.tensor([[1, 2, 3, 1, 0, 2]], device=policy.device)
    whole, product = (replace(policy, dtype=torch.float32, head_only_multiplies=only) for only in (False, True))
    try:
        return torch.equal(product.logits(hidden_states(product, tokens_RW)), hidden_states(whole, tokens_RW))
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return False


def find_break_even(policy: Policy) -> float | None:
    """Return `Policy.break_even` from the sizes of a layer; None if the model cannot read a prefix tree.

    Some attention implementations ignore a given mask, or infer positions or windows from it. To find out, compare a
    forward pass over a small tree with plain forward passes over its sequences.
    """
    config = getattr(policy.model.config, "text_config", policy.model.config)
    if getattr(config, "sliding_window", None):
        return None
    policy = replace(policy, dtype=torch.float32)
    with policy.device:
        prompts = Prompts(torch.tensor([[1, 2, 3], [3, 1, 2]]), torch.tensor([[0, 1, 1], [1, 1, 1]]).bool())
        tokens_BT = torch.tensor([[4, 1, 2, 5], [4, 1, 5, 2], [3, 3, 3, 3]]) % config.vocab_size
        completions = Completions(tokens_BT, torch.ones(3, 4, dtype=torch.bool), torch.zeros(3, 4))
        batch = TrainingBatch.of(prompts, torch.tensor([0, 0, 1]), completions)
    try:
        with torch.inference_mode():
            pairs = [prefix_places(policy, each) for each in (batch, batch.with_trees(len(batch), math.inf))]
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    whole_BTV, packed_BTV = (places.log_probs_NV[place_BT] for places, place_BT in pairs)
    if not torch.allclose(whole_BTV, packed_BTV, rtol=1e-3, atol=1e-3):
        return None
    return 2 * config.hidden_size + 1.5 * (getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
