"""A real tokenizer of transformers, one token per character."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from grpolab.grpo.batch import decode, encode, prompt_tensors, text_tensors
from grpolab.grpo.loading import character_tokenizer
from grpolab.tasks.jsonl import Jsonl

CPU = torch.device("cpu")
TEXTS = ["12+34=", "a b", " lead and trail ", "line\nbreak", "two  spaces", "~~9"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return character_tokenizer(Jsonl.alphabet)


def test_one_token_per_character_and_back(tokenizer: PreTrainedTokenizerFast) -> None:
    rng = random.Random(0)
    odd = ["".join(rng.choices(Jsonl.alphabet.replace("<", ""), k=rng.randint(1, 40))) for _ in range(200)]
    for text in TEXTS + odd:
        (ids,) = encode(tokenizer, [text])
        assert len(ids) == len(text)
        mask = torch.ones(1, len(ids), dtype=torch.bool)
        assert decode(tokenizer, torch.tensor([ids]), mask) == [text]


def test_prompts_are_padded_in_front_and_texts_behind(tokenizer: PreTrainedTokenizerFast) -> None:
    a, b, c = (encode(tokenizer, [letter])[0][0] for letter in "abc")
    prompts = prompt_tensors(tokenizer, ["abc", "a"], False, CPU)
    assert prompts.tokens_PL.tolist() == [[a, b, c], [0, 0, a]]
    assert prompts.mask_PL is not None
    assert prompts.mask_PL.tolist() == [[True, True, True], [False, False, True]]
    assert prompt_tensors(tokenizer, ["ab", "ca"], False, CPU).mask_PL is None
    texts = text_tensors(tokenizer, ["c", "ab"], ["ab", ""], False, CPU)
    assert texts.tokens_BC.tolist() == [[c, a, b, 2], [a, b, 2, 0]]
    assert texts.answer_BC.tolist() == [[False, True, True, True], [False, False, True, False]]
    assert texts.first == 1
