"""The model, from scratch or loaded, and its tokenizer: what they are, and what is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import pretrained, tiny_policy, tiny_settings
from transformers import PreTrainedTokenizerFast

from grpolab.data.text_tasks import Jsonl
from grpolab.errors import RequestError
from grpolab.grpo.batch import decode, encode, prompt_tensors, text_tensors
from grpolab.grpo.loading import character_tokenizer, make_policy
from grpolab.grpo.model import Policy
from grpolab.tasks import make_task


def load(path: Path | str, **changes: Any) -> Policy:
    settings = tiny_settings(model=pretrained(path), **changes)
    return make_policy(settings, make_task(settings.task))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved model with its tokenizer, as a user would have one."""
    policy = tiny_policy(seed=7)
    policy.model.save_pretrained(tmp_path / "model")
    policy.tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_weights_follow_from_the_warm_start_seed_and_no_global_state() -> None:
    torch.manual_seed(1)
    first = tiny_policy().fingerprint()
    state = torch.get_rng_state()
    again = tiny_policy().fingerprint()
    assert torch.equal(torch.get_rng_state(), state)
    assert first == again
    assert tiny_policy(seed=1).fingerprint() != first
    assert tiny_policy(seed=1, warm_start={"seed": 0}).fingerprint() == first


def test_a_frozen_copy_shares_nothing_and_a_fingerprint_sees_the_smallest_change() -> None:
    policy = tiny_policy()
    copy, before = policy.frozen_copy(), policy.fingerprint()
    with torch.no_grad():
        weight = policy.weights()["lm_head.weight"]
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
        assert policy.fingerprint() != before
        for weight in policy.weights().values():
            weight.add_(1)
    assert copy.fingerprint() == before
    assert not any(weight.requires_grad for weight in copy.weights().values())


def test_a_saved_model_is_loaded_as_it_was(folder: Path) -> None:
    policy = load(folder)
    assert policy.fingerprint() == tiny_policy(seed=7).fingerprint()
    assert policy.tokenizer.get_vocab() == tiny_policy().tokenizer.get_vocab()
    assert not policy.model.training


def test_a_model_or_tokenizer_that_cannot_be_used_is_refused_and_its_code_is_not_run(folder: Path) -> None:
    """One without an end token, pickled weights, and a configuration that names its own Python class."""
    tokenizer = tiny_policy().tokenizer
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(RequestError, match="its tokenizer has no end-of-sequence token"):
        load(folder)
    (folder / "model.safetensors").unlink()
    torch.save(tiny_policy().model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(RequestError, match=f"model.path={folder} cannot be loaded"):
        load(folder)
    config = (folder / "config.json").read_text()
    named = config.replace("{", '{"auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},', 1)
    (folder / "config.json").write_text(named.replace('"model_type": "llama"', '"model_type": "own"'))
    (folder / "own.py").write_text(f"open({str(folder / 'was_run')!r}, 'w')\nclass Config: ...\nclass Model: ...\n")
    with pytest.raises(RequestError, match="cannot be loaded"):
        load(folder)
    assert not (folder / "was_run").exists()


def test_an_absent_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        load(tmp_path / "absent")
    (problem,) = caught.value.problems
    assert problem.startswith(f"model.path={tmp_path}/absent cannot be loaded: ")
    assert "\n" not in problem


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
