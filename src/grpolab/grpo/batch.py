"""The data classes of a rollout step (prompts, completions, training batch), and how texts become tensors.

Letters of shapes: P prompts, G generations, B = P * G sequences, L prompt and T completion positions, V vocabulary, N
tokens, flattened. Rows of one prompt stand together until minibatches are cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase

from grpolab.grpo.prefix_tree import PrefixTree, prefix_tree
from grpolab.grpo.sampling_mask import ALL_BITS
from grpolab.tasks.base import Example

# Texts in one tree of an evaluation. A larger tree shares more, but more of its attention matrix is masked.
NEIGHBOURS = 16


# Whether prompts go through the chat template as a user's turn; a text is the system prompt before it.
Chat: TypeAlias = bool | str


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, chat: Chat = False) -> list[list[int]]:
    """Return token ids of each text, with no special token added."""
    if chat:
        system = [{"role": "system", "content": chat}] if isinstance(chat, str) else []
        turns = [[*system, {"role": "user", "content": text}] for text in texts]
        texts = [str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)) for turn in turns]
    return tokenizer(list(texts), add_special_tokens=False)["input_ids"]


def decode(
    tokenizer: PreTrainedTokenizerBase, tokens_BT: Tensor, mask_BT: Tensor, stop: Sequence[str] = ()
) -> list[str]:
    """Return the text of each completion without end and padding tokens, cut behind its first stop string; (B,)."""
    rows = zip(tokens_BT.tolist(), mask_BT.sum(1).tolist(), strict=True)
    completions = [tuple(row[:length]) for row, length in rows]
    distinct = list(map(list, dict.fromkeys(completions)))  # a group often has equal completions
    texts = tokenizer.batch_decode(distinct, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    ends = re.compile(f"(?s:.*?)(?:{'|'.join(map(re.escape, stop))})") if stop else None
    texts = [found.group() if ends and (found := ends.match(text)) else text for text in texts]
    text_of = dict(zip(map(tuple, distinct), texts, strict=True))
    return [text_of[completion] for completion in completions]


@dataclass(frozen=True)
class Prompts:
    """Prompt tokens, padded on the left."""

    tokens_PL: Tensor
    mask_PL: Tensor | None  # bool; None if no prompt is padded

    def select(self, index_P: Tensor) -> Prompts:
        return Prompts(self.tokens_PL[index_P], None if self.mask_PL is None else self.mask_PL[index_P])


def prompt_tensors(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], chat: Chat, device: torch.device
) -> Prompts:
    """Turn prompts into tensors on a device."""
    rows = encode(tokenizer, texts, chat=chat)
    width = max(len(row) for row in rows)
    pad_id = int(tokenizer.pad_token_id)
    tokens_PL = torch.tensor([[pad_id] * (width - len(row)) + row for row in rows], device=device)
    lengths_P1 = torch.tensor([[len(row)] for row in rows], device=device)
    mask_PL = torch.arange(width, device=device) >= width - lengths_P1
    return Prompts(tokens_PL, None if mask_PL.all() else mask_PL)


@dataclass(frozen=True)
class Texts:
    """Prompts, each followed by its answer, padded on the right, where a causal model does not look."""

    tokens_BC: Tensor
    answer_BC: Tensor  # bool: the answer and its end token
    first: int  # the first column with an answer

    def tree(self, break_even: float | None) -> PrefixTree | None:
        """Return prefix trees of neighbouring texts; None if plain texts cost less, or `break_even` is None."""
        if break_even is None:
            return None
        B, C = self.tokens_BC.shape
        columns_C = torch.arange(C, device=self.tokens_BC.device)
        real_BC = columns_C <= (columns_C * self.answer_BC).amax(1, keepdim=True)  # an answer has an end token
        tree_of_B = torch.arange(B) // NEIGHBOURS
        plain_cost = B * (C - 1) * (1 + C / break_even)
        return prefix_tree(self.tokens_BC, real_BC, tree_of_B, break_even, plain_cost)


def text_tensors(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], answers: Sequence[str], chat: Chat, device: torch.device
) -> Texts:
    """Turn prompts with answers, each followed by an end token, into tensors on a device."""
    prompts_B, answers_B = encode(tokenizer, prompts, chat=chat), encode(tokenizer, answers)
    end, pad_id = int(tokenizer.eos_token_id), int(tokenizer.pad_token_id)
    rows_B = [[*prompt, *answer, end] for prompt, answer in zip(prompts_B, answers_B, strict=True)]
    width = max(len(row) for row in rows_B)
    tokens_BC = torch.tensor([row + [pad_id] * (width - len(row)) for row in rows_B], device=device)
    starts_B, ends_B = ([len(row) for row in rows] for rows in (prompts_B, rows_B))
    columns_C = torch.arange(width, device=device)
    starts_B1, ends_B1 = torch.tensor([starts_B, ends_B], device=device)[..., None]
    return Texts(tokens_BC, (columns_C >= starts_B1) & (columns_C < ends_B1), min(starts_B))


@dataclass(frozen=True)
class Completions:
    """The sampler's output."""

    tokens_BT: Tensor  # padded on the right
    mask_BT: Tensor  # bool; includes the end token
    log_probs_BT: Tensor  # the sampler's own, 0 at padding
    # Only where sampling is truncated: the log of the probability that was left, and with keep_sampling_mask the tokens
    # that could be sampled, packed into C bytes.
    mass_BT: Tensor | None = None
    kept_BTC: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields that are not None, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def join(cls, pieces: Sequence[Completions], pad_id: int) -> Completions:
        """Put the rows of several into one, as wide as the widest."""
        width = max(piece.tokens_BT.shape[1] for piece in pieces)
        padding = {"tokens_BT": pad_id, "kept_BTC": ALL_BITS}  # 0 in the others

        def joined(name: str) -> Tensor:
            values = [piece.tensors()[name] for piece in pieces]
            sides = [(0, 0) * (value.dim() - 2) + (0, width - value.shape[1]) for value in values]
            return torch.cat([pad(*value, value=padding.get(name, 0)) for value in zip(values, sides, strict=True)])

        return cls(**{name: joined(name) for name in pieces[0].tensors()})


@dataclass(frozen=True)
class Sampled:
    """Groups that were sampled and scored; which of them train is not decided yet."""

    places: list[int]  # of the prompts in the stream of all epochs
    prompts: Prompts
    completions: Completions
    texts_B: list[str]
    parts: dict[str, Tensor]  # reward parts, each (B,)
    compared: dict[str, Tensor]  # `baseline_B` (`given`), `so_far_B4` (advantage_history)


@dataclass(frozen=True)
class Rollout(Sampled):
    """The groups of a rollout step; `batch` has the completions that train: all, without a filter."""

    examples_B: list[Example]
    rewards_B: Tensor
    truncated_B: Tensor  # bool: no end token or stop string within max_completion_length
    batch: TrainingBatch
    differ_P: Tensor | None  # bool: the groups that `filter_groups` lets through


@dataclass(frozen=True)
class TrainingBatch:
    """The tensors that updates need, one row per sequence."""

    rows_B: Tensor  # row of each sequence in the rollout
    prompts: Prompts  # of the whole rollout, even if the batch is a part of its rows
    prompt_of_B: Tensor
    tokens_BT: Tensor
    mask_BT: Tensor
    sampler_log_probs_BT: Tensor
    advantages_B: Tensor
    rewards_B: Tensor
    old_log_probs_BT: Tensor | None = None  # None until known: the first pass fills it in
    old_entropy_BT: Tensor | None = None
    reference_log_probs_BT: Tensor | None = None  # only where beta > 0
    kept_BTC: Tensor | None = None  # the tokens that could be sampled, packed; only with keep_sampling_mask
    prompt_tokens_B: Tensor | None = None  # of all rows of the prompt in the minibatch; only for prompt_mean
    one_tree: bool = False  # prompts of a micro-batch may share a prefix tree
    trees: tuple[PrefixTree | None, ...] = ()  # one per micro-batch, made once for all passes; empty: not made yet

    @classmethod
    def of(cls, prompts: Prompts, prompt_of_B: Tensor, completions: Completions) -> TrainingBatch:
        """Return a batch of completions; its rewards and advantages are 0."""
        nothing_B = completions.log_probs_BT.new_zeros(len(prompt_of_B))
        columns = completions.tokens_BT, completions.mask_BT, completions.log_probs_BT
        rows_B, kept_BTC = torch.arange(len(prompt_of_B)), completions.kept_BTC
        return cls(rows_B, prompts, prompt_of_B, *columns, nothing_B, nothing_B, kept_BTC=kept_BTC)

    def __len__(self) -> int:
        return len(self.tokens_BT)

    def rows(self, index: Tensor | slice) -> TrainingBatch:
        selected: dict[str, Any] = {name: value[index] for name, value in self.tensors().items()}
        return replace(self, trees=(), **selected)

    def tensors(self) -> dict[str, Tensor]:
        """Return the per-row fields that are not None, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def with_old(self, log_probs_BT: Tensor, entropy_BT: Tensor) -> TrainingBatch:
        """Fill in old log-probs and entropies unless they are known already."""
        old_BT, old_entropy_BT = self.old_log_probs_BT, self.old_entropy_BT
        return replace(
            self,
            old_log_probs_BT=log_probs_BT if old_BT is None else old_BT,
            old_entropy_BT=entropy_BT if old_entropy_BT is None else old_entropy_BT,
        )

    def select_prompts(self) -> tuple[Prompts, Tensor]:
        """Return the distinct prompts of these rows, and each row's index into them, (B,)."""
        kept_P, prompt_of_B = self.prompt_of_B.unique(return_inverse=True)
        return self.prompts.select(kept_P), prompt_of_B

    def with_prompt_tokens(self) -> TrainingBatch:
        """Count each prompt's tokens in this minibatch."""
        tokens_P = torch.zeros(len(self.prompts.tokens_PL), dtype=torch.long, device=self.mask_BT.device)
        tokens_P.index_add_(0, self.prompt_of_B, self.mask_BT.sum(1))
        return replace(self, prompt_tokens_B=tokens_P[self.prompt_of_B])

    def split(self, size: int) -> list[TrainingBatch]:
        """Cut the batch into consecutive pieces of `size` rows; one piece is the batch as it is."""
        if size == len(self):
            return [self]
        return [self.rows(slice(start, start + size)) for start in range(0, len(self), size)]

    @property
    def tree(self) -> PrefixTree | None:
        """The prefix tree of a batch that is one micro-batch; None if plain sequences cost less, or none was made."""
        return self.trees[0] if len(self.trees) == 1 else None

    def with_trees(self, size: int, break_even: float | None) -> TrainingBatch:
        """Add the prefix trees of micro-batches of `size` rows; add none if `break_even` is None."""
        if len(self.trees) == -(-len(self) // size):
            return self
        return replace(self, trees=tuple(piece._make_tree(break_even) for piece in self.split(size)))

    def _make_tree(self, break_even: float | None) -> PrefixTree | None:
        """Return one tree for each prompt, or one for all; None if prompts and plain completions cost less."""
        if break_even is None:
            return None
        prompts, prompt_of_B = self.select_prompts()
        (P, L), (B, T) = prompts.tokens_PL.shape, self.tokens_BT.shape
        prompt_mask_PL = torch.ones_like(prompts.tokens_PL) if prompts.mask_PL is None else prompts.mask_PL
        tokens_BC = torch.cat([prompts.tokens_PL[prompt_of_B], self.tokens_BT], 1)
        real_BC = torch.cat([prompt_mask_PL[prompt_of_B].bool(), self.mask_BT], 1)
        plain_cost = P * L * (1 + L / break_even) + B * (T - 1) * (1 + (L + T) / break_even)
        trees_of_B = [prompt_of_B, torch.zeros_like(prompt_of_B)] if self.one_tree else [prompt_of_B]
        trees = [prefix_tree(tokens_BC, real_BC, tree_of_B, break_even, plain_cost) for tree_of_B in trees_of_B]
        return min(filter(None, trees), key=lambda tree: tree.cost, default=None)

    def micro_batches(self, size: int, break_even: float | None) -> list[TrainingBatch]:
        """Cut the batch into pieces of `size` rows, each with its prefix tree."""
        trees = self.with_trees(size, break_even).trees
        return [replace(piece, trees=(tree,)) for piece, tree in zip(self.split(size), trees, strict=True)]


def join_batches(batches: list[TrainingBatch]) -> TrainingBatch:
    """Put the batches' rows into one batch."""
    pieces = [batch.tensors() for batch in batches]
    together: dict[str, Any] = {name: concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    return batches[0] if len(batches) == 1 else replace(batches[0], trees=(), **together)


def sampler_gap(batch: TrainingBatch, trainer_log_probs_BT: Tensor) -> Tensor:
    """Return |log-prob of the sampler - log-prob of the trainer| of each token, in nat, shape (N,)."""
    return (batch.sampler_log_probs_BT - trainer_log_probs_BT)[batch.mask_BT].abs()


def concatenate(pieces: list[Tensor]) -> Tensor:
    """Join pieces along the first axis; a single piece is returned as it is, without a copy."""
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
