"""A real tokenizer of transformers, one token per character."""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from grpolab.grpo.batch import decode, encode, prompt_tensors, text_tensors
from grpolab.grpo.loading import SPECIAL, character_tokenizer
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


def test_special_tokens_stand_first_and_are_known(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3]) == list(SPECIAL)
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 2)
    assert len(tokenizer) == 4 + len(set(Jsonl.alphabet))
    assert encode(character_tokenizer("01"), ["0x1"]) == [[4, 3, 5]]


def test_the_order_of_the_alphabet_does_not_matter() -> None:
    assert character_tokenizer("9+0=").get_vocab() == character_tokenizer("=+09+").get_vocab()


def test_saved_and_loaded_it_is_the_same(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert encode(loaded, TEXTS) == encode(tokenizer, TEXTS)
    assert encode(loaded, TEXTS, chat=True) == encode(tokenizer, TEXTS, chat=True)
    for name in ("pad_token_id", "eos_token_id", "bos_token_id", "unk_token_id", "padding_side"):
        assert getattr(loaded, name) == getattr(tokenizer, name)
    ids = encode(tokenizer, TEXTS)
    for row, text in zip(ids, TEXTS, strict=True):
        assert decode(loaded, torch.tensor([row]), torch.ones(1, len(row), dtype=torch.bool)) == [text]


def test_chat_wraps_the_prompt_as_the_template_says(tokenizer: PreTrainedTokenizerFast) -> None:
    wrapped = character_tokenizer(string.printable)
    wrapped.chat_template = (
        "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    assert encode(wrapped, ["hi"], chat=True) == encode(wrapped, ["[user]hi[assistant]"])
    assert encode(wrapped, ["hi"]) != encode(wrapped, ["hi"], chat=True)


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


def test_decode_leaves_out_end_and_padding(tokenizer: PreTrainedTokenizerFast) -> None:
    a, b = (encode(tokenizer, [letter])[0][0] for letter in "ab")
    tokens_BT = torch.tensor([[a, b, 2], [2, 0, 0]])
    assert decode(tokenizer, tokens_BT, torch.tensor([[1, 1, 1], [1, 0, 0]])) == ["ab", ""]
