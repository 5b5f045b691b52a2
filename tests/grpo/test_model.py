"""The model, from scratch or loaded: what it is, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_policy, tiny_settings

from grpolab.errors import RequestError
from grpolab.grpo.batch import text_tensors
from grpolab.grpo.loading import make_policy
from grpolab.grpo.model import Policy, text_places
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


def test_the_tiny_model_of_the_reference_has_its_size() -> None:
    policy = tiny_policy(model={"name": "tiny", "hidden_size": 64, "layers": 2, "heads": 4, "intermediate_size": 256})
    weights = policy.weights().values()
    assert sum(weight.numel() for weight in weights) == 133_440
    assert {weight.dtype for weight in weights} == {torch.float32}
    assert not policy.model.training
    assert not policy.model.config.tie_word_embeddings


def test_weights_follow_from_the_warm_start_seed_and_no_global_state() -> None:
    torch.manual_seed(1)
    first = tiny_policy().fingerprint()
    state = torch.get_rng_state()
    again = tiny_policy().fingerprint()
    assert torch.equal(torch.get_rng_state(), state)
    assert first == again
    assert tiny_policy(seed=1).fingerprint() != first
    assert tiny_policy(seed=1, warm_start={"seed": 0}).fingerprint() == first


def test_fingerprint_sees_the_smallest_change() -> None:
    policy = tiny_policy()
    before = policy.fingerprint()
    with torch.no_grad():
        weight = policy.weights()["lm_head.weight"]
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    assert policy.fingerprint() != before


def test_a_frozen_copy_shares_nothing() -> None:
    policy = tiny_policy()
    copy = policy.frozen_copy()
    with torch.no_grad():
        for weight in policy.weights().values():
            weight.add_(1)
    assert copy.fingerprint() == tiny_policy().fingerprint()
    assert not any(weight.requires_grad for weight in copy.weights().values())


def test_temperature_divides_the_logits() -> None:
    one, half = tiny_policy(), tiny_policy(temperature=0.5)
    texts = text_tensors(one.tokenizer, ["1+2="], ["3"], False, one.device)
    one_NV, half_NV = (text_places(policy, texts)[0].log_probs_NV for policy in (one, half))
    torch.testing.assert_close(half_NV, (one_NV * 2).log_softmax(-1))


# --- pretrained -------------------------------------------------------------------------------------------------------


def test_a_saved_model_is_loaded_as_it_was(folder: Path) -> None:
    policy = pretrained(folder)
    assert policy.fingerprint() == tiny_policy(seed=7).fingerprint()
    assert policy.tokenizer.get_vocab() == tiny_policy().tokenizer.get_vocab()
    assert not policy.model.training


def test_weights_of_a_bfloat16_run_are_float32_and_its_log_softmax_too(folder: Path) -> None:
    policy = pretrained(folder, dtype="bfloat16")
    assert {weight.dtype for weight in policy.weights().values()} == {torch.float32}
    texts = text_tensors(policy.tokenizer, ["1+2=", "3+4="], ["3", "7"], False, policy.device)
    found_NV = text_places(policy, texts)[0].log_probs_NV
    exact_NV = text_places(pretrained(folder), texts)[0].log_probs_NV
    assert found_NV.dtype == torch.float32
    assert 0 < (found_NV - exact_NV).abs().max() < 0.02


def test_a_tokenizer_without_padding_pads_with_its_end(folder: Path) -> None:
    tokenizer = tiny_policy().tokenizer
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    policy = pretrained(folder)
    assert policy.pad == policy.end


def test_a_tokenizer_without_an_end_is_refused(folder: Path) -> None:
    tokenizer = tiny_policy().tokenizer
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(RequestError, match="its tokenizer has no end-of-sequence token"):
        pretrained(folder)


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(tiny_policy().model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(RequestError, match=f"model.path={folder} cannot be loaded"):
        pretrained(folder)


def test_code_that_comes_with_a_model_is_not_run(folder: Path) -> None:
    """A folder whose configuration names its own Python class: it is refused, the class is never imported."""
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


def test_a_name_on_the_hub_that_cannot_be_reached_is_one_sentence() -> None:
    with pytest.raises(RequestError) as caught:
        pretrained("nobody/no-such-model")
    (problem,) = caught.value.problems
    assert problem.startswith("model.path=nobody/no-such-model cannot be loaded: ")
    assert "\n" not in problem


def test_settings_are_read_without_torch() -> None:
    """The parent of a sweep starts fast: what it imports must not pull torch in."""
    modules = "grpolab.settings, grpolab.identity, grpolab.paths, grpolab.vocabulary, grpolab.errors"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
