"""transformers' continuous batching as the sampler: paged keys and values, and completions that end leave the batch.

It samples in this process. In float32 it takes the policy's own module; else a copy of its weights in `dtype`, as an
inference engine has them, with a float32 head where `head_dtype` asks for one. Every batch has a new manager, because
one that is kept reads the prefixes of older weights, and a step must not depend on where the process began.

Tokens are drawn from torch's global generator, for all that is in the batch at once. It is seeded by (run seed,
'engine', step), and every request is there before the first forward pass: a run repeats itself, and one that is resumed
goes on to the bit, on a CPU. Unlike our own sampler's, a completion depends on those that are sampled beside it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.generation import ContinuousBatchingConfig
from transformers.generation.continuous_batching import ContinuousBatchingManager
from transformers.utils import is_flash_attn_2_available

from grpolab.errors import RequestError
from grpolab.grpo.batch import Completions, Prompts
from grpolab.grpo.model import Policy
from grpolab.grpo.processes import ALONE, Processes
from grpolab.grpo.step import Diverged
from grpolab.models.vllm import completions_of, tokens_of
from grpolab.seeds import counter_hash
from grpolab.settings.resolved import Resolved
from grpolab.settings.task import PretrainedModel

FLASH = "flash_attention_2"
# With flash attention, or without: tokens of a page (flash attention wants multiples of 256), completions in a forward
# pass, and tokens in it. Without, each token attends to the keys of all completions of the pass, through a mask.
PAGE, AT_ONCE, TOKENS = {True: 256, False: 16}, {True: 512, False: 64}, {True: 8192, False: 256}
LAYERS = {"full_attention", "sliding_attention"}  # that the paged cache knows


class Continuous:
    """The sampler. Raises RequestError for settings that it does not have."""

    def __init__(self, settings: Resolved, _processes: Processes = ALONE) -> None:
        if problems := list(_problems(settings)):
            raise RequestError(problems)
        self.settings = settings
        self.model: Any = None  # a PreTrainedModel that generates; None before the first refresh
        self._copied: list[tuple[Tensor, Tensor]] = []  # the policy's weights, and the copy's

    def refresh(self, policy: Policy) -> None:
        """Take the policy's weights, adapters included, in the precision of the forward pass.

        Raises Diverged if they are not finite: torch cannot draw from what they give.
        """
        weights = policy.weights().values()
        if not torch.stack([weight.isfinite().all() for weight in weights]).all():
            raise Diverged("the weights are no longer finite")
        if policy.dtype == torch.float32:
            self.model = policy.model
        elif self.model is None:
            self.model = self._copy(policy)
        with torch.no_grad():
            for weight, own in self._copied:
                own.copy_(weight)

    def _copy(self, policy: Policy) -> PreTrainedModel:
        """Return a copy of the policy's model in its `dtype`; a float32 head is the policy's own."""
        weights = list(policy.model.parameters())
        own = [nn.Parameter(weight.detach().to(policy.dtype), requires_grad=False) for weight in weights]
        self._copied = list(zip(weights, own, strict=True))
        model = copy.deepcopy(policy.model, {id(weight): made for weight, made in self._copied})
        if policy.head_dtype is not None:
            model.set_output_embeddings(_Float32Head(policy.model.get_output_embeddings()))
        if policy.on_gpu and is_flash_attn_2_available():
            model.set_attn_implementation(FLASH)
        return model

    def sample(self, policy: Policy, prompts: Prompts, step: int, first: int) -> Completions:
        """Sample the group of every prompt; `first` is the number of the first prompt in the rollout step.

        A completion's tokens include the end token. Its log-probs are the sampler's own: at the temperature, among the
        tokens that top_k and top_p leave.
        """
        rows, group = tokens_of(prompts), self.settings.num_generations
        # A request is forked behind all of its prompt but the last token, which must not be the only one.
        forks = group if min(map(len, rows)) > 1 else 1
        requests = [row for row in rows for _ in range(group // forks)]
        seed = int(counter_hash(self.settings.seed, "engine", step, first)) >> 33
        with torch.random.fork_rng(devices=[policy.device] if policy.on_gpu else []):
            manager = self._manager(policy, requests, forks, seed)
            manager.warmup()  # makes the cache, and captures CUDA graphs where there are any
            names = manager.add_requests(requests)
            manager.start()
            try:
                manager.stop()  # once every request has ended
            except BaseException:
                manager.stop(hard_stop=True)
                raise
        found = {}
        while (result := manager.get_result()) is not None:
            if result.error is not None:
                raise RuntimeError(f"sampler_engine=continuous: {result.error}")
            found[result.request_id] = result.generated_tokens, result.logprobs
        branches = "", *(f"__child#{branch}" for branch in range(forks - 1))
        return completions_of([found[name + branch] for name in names for branch in branches], policy)

    def _manager(self, policy: Policy, requests: list[list[int]], forks: int, seed: int) -> ContinuousBatchingManager:
        """Return a manager whose cache has room for `forks` completions of every request."""
        settings, rows = self.settings, len(requests) * forks
        flash = self.model.config._attn_implementation == FLASH
        pages = -(-(max(map(len, requests)) + settings.max_completion_length) // PAGE[flash])
        at_once = min(rows, AT_ONCE[flash])
        generation = GenerationConfig(
            **{"do_sample": True, "num_return_sequences": forks, "max_new_tokens": settings.max_completion_length},
            **{"temperature": policy.temperature, "top_p": settings.top_p, "top_k": settings.top_k or 0},
            **{"eos_token_id": policy.end, "pad_token_id": policy.pad},
        )
        batching = ContinuousBatchingConfig(
            page_size=PAGE[flash],
            num_blocks=rows * pages,
            max_requests_per_batch=at_once,
            max_batch_tokens=max(at_once, TOKENS[flash]),
            safety_margin=0.0,  # there is room for all
            return_logprobs=True,
            seed=seed,
            auto_switch_to_flash=False,  # it may load code from the hub
        )
        manager: ContinuousBatchingManager = self.model.init_continuous_batching(generation, batching)
        return manager


class _Float32Head(nn.Module):
    """A head whose matrix product is in float32."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: Tensor) -> Tensor:
        return self.head(hidden.float())


def _problems(settings: Resolved) -> Iterator[str]:
    """Yield a sentence for each setting that this sampler does not have."""
    if stop := getattr(settings.task, "stop", None):
        yield f"sampler_engine=continuous ends completions by tokens alone: leave task.stop={list(stop)} empty"
    if settings.data_parallel:
        yield (
            f"data_parallel={settings.data_parallel}: sampler_engine=continuous draws all completions of a batch from"
            " one generator: leave one of them empty, or take sampler_engine=vllm"
        )
    if settings.min_p is not None:
        yield f"sampler_engine=continuous has top_k and top_p alone: leave min_p={settings.min_p} empty"
    if settings.top_p is not None and settings.device == "cuda":
        yield (
            "sampler_engine=continuous on device=cuda adds up probabilities in no fixed order:"
            f" leave top_p={settings.top_p} empty"
        )
    if isinstance(settings.model, PretrainedModel):
        config = AutoConfig.from_pretrained(
            settings.model.path, revision=settings.model.revision, trust_remote_code=False
        )
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        kinds = set(getattr(config.get_text_config(), "layer_types", None) or ())
        if not (model._supports_attention_backend and model._supports_sdpa) or kinds - LAYERS:
            yield (
                f"sampler_engine=continuous needs attention that reads a paged cache, which a model of kind"
                f" {config.model_type} (model.path={settings.model.path}) has not: leave sampler_engine empty"
            )
