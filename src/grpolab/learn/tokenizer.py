"""A tokenizer over characters, as a real PreTrainedTokenizerFast; and how text becomes tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

PAD, BEGIN, END, UNKNOWN = "<pad>", "<begin>", "<end>", "<unknown>"
SPECIAL = (PAD, BEGIN, END, UNKNOWN)
CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def character_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """One token per character of the alphabet, sorted, behind four special tokens."""
    words = [*SPECIAL, *sorted(set(alphabet))]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        bos_token=BEGIN,
        eos_token=END,
        unk_token=UNKNOWN,
        padding_side="left",
        chat_template=CHAT,
    )


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, chat: bool = False) -> list[list[int]]:
    """Token ids of each text, with no special token added; `chat` wraps it as a user's turn."""
    if chat:
        texts = [
            str(
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
                )
            )
            for text in texts
        ]
    return tokenizer(list(texts), add_special_tokens=False)["input_ids"]


def decode(tokenizer: PreTrainedTokenizerBase, tokens_BT: Tensor, mask_BT: Tensor) -> list[str]:
    """Text of each completion, end and padding tokens left out, shape (B,)."""
    rows = [row[:length] for row, length in zip(tokens_BT.tolist(), mask_BT.sum(1).tolist(), strict=True)]
    return tokenizer.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@dataclass(frozen=True)
class Prompts:
    """Prompt tokens, padded in front."""

    tokens_PL: Tensor
    mask_PL: Tensor | None  # bool; None where no prompt is padded


def prompt_tensors(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], chat: bool, device: torch.device
) -> Prompts:
    """Prompts as tensors on a device."""
    rows = encode(tokenizer, texts, chat=chat)
    width = max(len(row) for row in rows)
    pad = int(tokenizer.pad_token_id)
    tokens_PL = torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=device)
    lengths_P1 = torch.tensor([[len(row)] for row in rows], device=device)
    mask_PL = torch.arange(width, device=device) >= width - lengths_P1
    return Prompts(tokens_PL, None if mask_PL.all() else mask_PL)


def target_tensors(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Texts with an end token as completions (B, T), padded behind, and their mask (B, T), True at real tokens."""
    rows = [[*row, int(tokenizer.eos_token_id)] for row in encode(tokenizer, texts)]
    width = max(len(row) for row in rows)
    pad = int(tokenizer.pad_token_id)
    tokens_BT = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=device)
    lengths_B1 = torch.tensor([[len(row)] for row in rows], device=device)
    return tokens_BT, torch.arange(width, device=device) < lengths_B1
