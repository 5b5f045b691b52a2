"""Files of vectors, the recorded outputs of a framework's own functions: one file for each variant of their options.

The format is in tests/vectors/README.md. Files are not trusted: an archive is unpacked in memory only, as a stream, and
up to a bound; a member's name, links and stated length decide nothing.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from grpolab.bounded import parse_json, read_text
from grpolab.errors import RequestError

LARGEST = 16 << 20  # bytes of a file; those of the frameworks have 80,000
LARGEST_ARCHIVE = 256 << 20  # bytes of all files of an archive or a folder
MOST_FILES = 20_000
TOO_MUCH = f"the vectors are more than {LARGEST_ARCHIVE >> 20} MiB or {MOST_FILES} files: give fewer"
OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open, b"": open}
DAMAGE = (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError, ValueError)  # of half an archive
KEYS = {"framework": str, "variant": str, "function": str, "options": dict, "cases": list}
NOT_TENSORS = {"tags", "group_size", "group_ids", "prompt_boundaries", "kept_lengths"}


@dataclass(frozen=True)
class FrameworkVariant:
    """A framework's function with one choice of options, and what it returned."""

    framework: str
    name: str
    function: str  # the part behind the path
    options: Mapping[str, Any]
    cases: list[dict[str, Any]]

    @property
    def full_name(self) -> str:
        """Return e.g. `verl__vanilla__sym__c3.0__token-mean`."""
        return f"{self.framework}__{self.name}"


def read_variants(path: Path) -> Iterator[FrameworkVariant]:
    """Read the variants of an archive, a folder or one JSON file, in order of their names.

    Raises RequestError if nothing is there, a file has another format, or the files are too large.
    """
    texts = read_texts(path)
    for name in sorted(texts):
        content = parse_json(name, texts.pop(name))
        if not isinstance(content, dict) or KEYS.keys() - content.keys():
            raise RequestError(f"{name} is not a file of vectors: it needs the keys {', '.join(KEYS)}")
        wrong = [f"its {key}" for key, kind in KEYS.items() if not isinstance(content[key], kind)]
        if wrong or not all(map(is_case, content["cases"])):
            wrong.append("one of its cases")
            raise RequestError(f"{name} is not a file of vectors: {wrong[0]} is not in the format")
        function = content["function"].rpartition(":")[2]
        yield FrameworkVariant(content["framework"], content["variant"], function, content["options"], content["cases"])


def is_case(case: Any) -> bool:
    return isinstance(case, dict) and isinstance(case.get("name"), str) and isinstance(case.get("inputs"), dict)


def make_inputs(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case's inputs as float64 tensors, `mask` as bool; group ids, sizes, boundaries and tags as they are.

    The log-probs, or the entropies if there are none, take a gradient.
    """
    inputs: dict[str, Any] = {}
    for name, value in case["inputs"].items():
        as_it_is = name in NOT_TENSORS or value is None
        inputs[name] = value if as_it_is else torch.tensor(value, dtype=torch.bool if name == "mask" else torch.double)
    if (leaf := find_leaf(inputs)) is not None:
        leaf.requires_grad_()
    return inputs


def find_leaf(inputs: Mapping[str, Any]) -> Tensor | None:
    """Return the input that a loss is differentiated by."""
    leaf: Tensor | None = inputs.get("logprobs", inputs.get("entropies"))
    return leaf


def read_texts(path: Path) -> dict[str, str]:
    """Return the .json files there, by name. Raises RequestError if there are none, or they cannot be read."""
    files: Iterable[tuple[str, str]]
    if path.is_dir():
        files = ((file.name, read_text(str(file), LARGEST)) for file in sorted(path.rglob("*.json")))
    elif path.suffix == ".json" or not path.is_file():
        files = [(path.name, read_text(str(path), LARGEST))]
    else:
        files = read_archive(path)
    texts: dict[str, str] = {}
    size = 0
    for name, text in files:
        texts[name] = text
        size += len(text)
        if size > LARGEST_ARCHIVE or len(texts) > MOST_FILES:
            raise RequestError(TOO_MUCH)
    if not texts:
        raise RequestError(f"{path} holds no .json file with vectors")
    return texts


def read_archive(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of the .json files of a tar archive, unpacked as a stream."""
    try:
        with path.open("rb") as file:
            head = file.read(6)
        opener = next(opener for magic, opener in OPENERS.items() if head.startswith(magic))
        with opener(path, "rb") as unpacked:
            stream = cast(BinaryIO, BoundedStream(unpacked))
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    if not member.name.endswith(".json") or member.isdir():
                        continue
                    if not member.isreg() or member.size > LARGEST:
                        raise RequestError(f"{path}: {member.name} must be a file of at most {LARGEST >> 20} MiB")
                    content = archive.extractfile(member)
                    assert content is not None
                    yield Path(member.name).name, content.read().decode("utf-8-sig", "replace")
    except DAMAGE as error:
        raise RequestError(f"{path} is neither a folder, a .json file nor a whole tar archive: {error}") from error


class BoundedStream(io.RawIOBase):
    """An unpacked archive; raises RequestError when more is read than all vectors could be."""

    def __init__(self, unpacked: Any) -> None:
        super().__init__()
        self.unpacked, self.left = unpacked, LARGEST_ARCHIVE

    def read(self, size: int = -1) -> bytes:
        content: bytes = self.unpacked.read(min(size, self.left + 1) if size >= 0 else self.left + 1)
        self.left -= len(content)
        if self.left < 0:
            raise RequestError(TOO_MUCH)
        return content
