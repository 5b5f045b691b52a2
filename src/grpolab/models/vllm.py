"""A vLLM server as the sampler: it gets the policy's weights before each rollout step, and gives tokens and log-probs.

    VLLM_SERVER_DEV_MODE=1 vllm serve FOLDER --logprobs-mode processed_logprobs

Weights go through the disk: the folder that it serves gets a new model.safetensors, and `/collective_rpc` with
`reload_weights` makes the engine read it (development mode alone has that address; vLLM 0.11 and later). The cache of
prefixes, which the old weights made, is emptied. Tokens come back as numbers (`return_token_ids`, 0.10.2 and later), so
no text is tokenised again. The engine's kernels round in another way and batch as they like: a run that is resumed goes
on from its checkpoint, but not to the bit.

The processes of `data_parallel` share the prompts, which have seeds of their own; the first one writes the weights.
"""

from __future__ import annotations

import fcntl
import json
import os
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import save_file

from grpolab.errors import RequestError, shorten
from grpolab.grpo.batch import Completions, Prompts
from grpolab.grpo.model import Policy
from grpolab.grpo.processes import ALONE, Processes
from grpolab.models.lora import merged
from grpolab.seeds import counter_hash
from grpolab.settings.resolved import Resolved

MODEL = "model.safetensors"
AT_ONCE = 64  # requests; the engine batches them


class Vllm:
    """A vLLM server. Raises RequestError if it cannot be reached, or its answer lacks what is asked for."""

    def __init__(self, settings: Resolved, processes: Processes = ALONE) -> None:
        engine = settings.machine.engine
        assert engine is not None
        self.processes = processes
        self.settings, self.url, self.seconds = settings, engine.url.rstrip("/"), engine.seconds
        self.folder = Path(engine.folder).expanduser()
        if not (self.folder / MODEL).is_file() or len(files := list(self.folder.glob("*.safetensors"))) > 1:
            there = "has none" if not (self.folder / MODEL).is_file() else f"has {len(files)} files of weights"
            raise RequestError(
                f"machine.engine.folder={engine.folder} must be the model that is served, with one {MODEL}: it {there}"
            )
        self.name = self._ask("/v1/models")["data"][0]["id"]
        self._lock: IO[bytes] | None = None  # an engine has the weights of one run at a time

    def refresh(self, policy: Policy) -> None:
        """Give the engine the policy's weights, adapters added to theirs, in the precision of the forward pass."""
        self.processes.from_first(lambda: self._serve(policy))

    def _serve(self, policy: Policy) -> None:
        if self._lock is None:
            self._lock = (self.folder / ".lock").open("wb")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RequestError(
                    f"machine.engine.folder={self.folder} serves another run: it must be one at a time (--jobs 1)"
                ) from error
        weights = merged(policy) if self.settings.lora else policy.weights()
        part = self.folder / f".{MODEL}.part"
        save_file({name: weight.detach().to(policy.dtype).contiguous().cpu() for name, weight in weights.items()}, part)
        os.replace(part, self.folder / MODEL)
        self._ask("/collective_rpc", {"method": "reload_weights"})
        self._ask("/reset_prefix_cache?reset_running_requests=true", {})

    def sample(self, policy: Policy, prompts: Prompts, step: int, first: int) -> Completions:
        """Sample the group of every prompt; `first` is the number of the first prompt in the rollout step.

        A completion's tokens include the end token, and its log-probs are the engine's own.
        """
        rows = tokens_of(prompts)
        seeds = [int(counter_hash(self.settings.seed, "engine", step, first + p)) >> 33 for p in range(len(rows))]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            share = list(threads.map(self._complete, self.processes.share(rows), self.processes.share(seeds)))
        groups = self.processes.gather(share)
        return completions_of([choice for group in groups for choice in group], policy)

    def _complete(self, prompt: list[int], seed: int) -> list[tuple[list[int], list[float]]]:
        """Return tokens and log-probs of each completion of a prompt."""
        settings = self.settings
        stop = getattr(settings.task, "stop", None)
        request = {
            **{"model": self.name, "prompt": prompt, "n": settings.num_generations, "seed": seed},
            **{"max_tokens": settings.max_completion_length, "temperature": settings.temperature},
            **{"top_p": settings.top_p or 1.0, "top_k": settings.top_k or -1, "min_p": settings.min_p or 0.0},
            **{"logprobs": 1, "return_token_ids": True, "skip_special_tokens": False},
            **({"stop": stop, "include_stop_str_in_output": True} if stop else {}),
        }
        found = []
        for choice in sorted(self._ask("/v1/completions", request)["choices"], key=lambda choice: choice["index"]):
            tokens, log_probs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
            if not tokens or not log_probs or len(tokens) != len(log_probs) or None in log_probs:
                raise RequestError(
                    f"machine.engine.url={self.url} gives no token_ids with logprobs: vLLM 0.10.2 or later does"
                )
            found.append((tokens, log_probs))
        if len(found) != settings.num_generations:
            raise RequestError(
                f"machine.engine.url={self.url} gave {len(found)} of {settings.num_generations} completions"
            )
        return found

    def _ask(self, address: str, body: dict[str, Any] | None = None) -> Any:
        """Return what the server answers: a GET without a body, else a POST."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + address, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self.seconds) as answer:
                content = answer.read()
            return json.loads(content) if content else {}
        except urllib.error.HTTPError as error:
            said = shorten(error.read().decode(errors="replace"), 200)
            hint = ": start it with VLLM_SERVER_DEV_MODE=1" if error.code == 404 else f" ({said})"
            raise RequestError(f"machine.engine.url={self.url} answers {error.code} to {address}{hint}") from error
        except (OSError, ValueError) as error:
            raise RequestError(f"machine.engine.url={self.url} cannot be asked {address}: {error}") from error


def tokens_of(prompts: Prompts) -> list[list[int]]:
    """Return the tokens of each prompt, without padding."""
    masks = prompts.mask_PL if prompts.mask_PL is not None else torch.ones_like(prompts.tokens_PL, dtype=torch.bool)
    return [row[mask].tolist() for row, mask in zip(prompts.tokens_PL, masks, strict=True)]


def completions_of(choices: list[tuple[list[int], list[float]]], policy: Policy) -> Completions:
    """Put tokens and log-probs of each completion into tensors on the policy's device."""
    width = max(len(tokens) for tokens, _ in choices)
    tokens_BT = torch.full((len(choices), width), policy.pad)
    log_probs_BT, mask_BT = torch.zeros(len(choices), width), torch.zeros(len(choices), width, dtype=torch.bool)
    for b, (tokens, log_probs) in enumerate(choices):
        tokens_BT[b, : len(tokens)] = torch.tensor(tokens)
        log_probs_BT[b, : len(tokens)] = torch.tensor(log_probs)
        mask_BT[b, : len(tokens)] = True
    device = policy.device
    return Completions(tokens_BT.to(device), mask_BT.to(device), log_probs_BT.to(device))
