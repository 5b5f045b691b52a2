"""The model, from scratch or loaded: what it is, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_policy, tiny_settings

from grpolab.errors import RequestError
from grpolab.grpo.loading import make_policy
from grpolab.grpo.model import Policy
from grpolab.tasks import make_task


def pretrained(path: Path | str, **changes: Any) -> Policy:
    settings = tiny_settings(model={"name": "pretrained", "path": str(path), "revision": None}, **changes)
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
    policy = pretrained(folder)
    assert policy.fingerprint() == tiny_policy(seed=7).fingerprint()
    assert policy.tokenizer.get_vocab() == tiny_policy().tokenizer.get_vocab()
    assert not policy.model.training


def test_a_model_or_tokenizer_that_cannot_be_used_is_refused_and_its_code_is_not_run(folder: Path) -> None:
    """One without an end token, pickled weights, and a configuration that names its own Python class."""
    tokenizer = tiny_policy().tokenizer
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(RequestError, match="its tokenizer has no end-of-sequence token"):
        pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(tiny_policy().model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(RequestError, match=f"model.path={folder} cannot be loaded"):
        pretrained(folder)
    config = (folder / "config.json").read_text()
    named = config.replace("{", '{"auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},', 1)
    (folder / "config.json").write_text(named.replace('"model_type": "llama"', '"model_type": "own"'))
    (folder / "own.py").write_text(f"open({str(folder / 'was_run')!r}, 'w')\nclass Config: ...\nclass Model: ...\n")
    with pytest.raises(RequestError, match="cannot be loaded"):
        pretrained(folder)
    assert not (folder / "was_run").exists()


def test_an_absent_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        pretrained(tmp_path / "absent")
    (problem,) = caught.value.problems
    assert problem.startswith(f"model.path={tmp_path}/absent cannot be loaded: ")
    assert "\n" not in problem
