"""Read the JSON files of an archive, a folder or one file of vectors, within bounds: whoever made them may mean harm.

An archive is unpacked in memory alone, as a stream, and no further than its bounds: what a member is called, links to
or says of its length decides nothing.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from grpolab.errors import RequestError

LARGEST = 16 << 20  # bytes of a file; those of the frameworks have 80,000
LARGEST_ARCHIVE = 256 << 20  # bytes of all files of an archive or a folder
MOST_FILES = 20_000
OPENERS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
    b"": open,
}
DAMAGE = (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError, ValueError)  # as a half archive has it


def read_texts(path: Path) -> dict[str, bytes]:
    """Return the .json files there, by name. Raises RequestError if there are none, or they cannot be read."""
    if not path.exists() and not path.is_symlink():
        raise RequestError(f"{path} does not exist: give an archive, a folder or a .json file of vectors")
    files: Iterable[tuple[Path, bytes]]
    if path.is_dir():
        files = ((file, _read_file(file)) for file in sorted(path.rglob("*.json")) if not file.is_dir())
    elif path.suffix == ".json" or not path.is_file():
        files = [(path, _read_file(path))]
    else:
        files = _read_archive(path)
    texts: dict[str, bytes] = {}
    size = 0
    for file, text in files:
        texts[file.name] = text
        size += len(text)
        if size > LARGEST_ARCHIVE or len(texts) > MOST_FILES:
            raise _too_much(path)
    if not texts:
        raise RequestError(f"{path} holds no .json file with vectors")
    return texts


def parse(name: str, text: bytes) -> Any:
    """Return what a JSON file says. Raises RequestError if it is none."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise RequestError(f"{name} nests too many lists and mappings in each other") from error
    except ValueError as error:
        raise RequestError(f"{name} is not JSON: {error}") from error


def _read_file(file: Path) -> bytes:
    if not file.is_file():
        raise RequestError(f"{file} cannot be read: it is no file")
    try:
        with file.open("rb") as opened:
            content = opened.read(LARGEST + 1)
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror}") from error
    if len(content) > LARGEST:
        raise _too_long(str(file))
    return content


def _read_archive(path: Path) -> Iterator[tuple[Path, bytes]]:
    try:
        with path.open("rb") as file:
            head = file.read(6)
        opener = next(opener for magic, opener in OPENERS.items() if head.startswith(magic))
        with opener(path, "rb") as unpacked:
            stream = cast(BinaryIO, _BoundedStream(path, cast(BinaryIO, unpacked)))
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    if not member.name.endswith(".json") or member.isdir():
                        continue
                    if not member.isreg():
                        raise RequestError(f"{path}: {member.name} is no file but a link or a device: pack files alone")
                    if member.size > LARGEST:
                        raise _too_long(f"{path}: {member.name}")
                    content = archive.extractfile(member)
                    yield Path(member.name), content.read() if content else b""
    except DAMAGE as error:
        raise RequestError(f"{path} is neither a folder, a .json file nor a whole tar archive: {error}") from error


class _BoundedStream(io.RawIOBase):
    """What an archive unpacks to; reading more of it than all vectors could be raises RequestError."""

    def __init__(self, path: Path, unpacked: BinaryIO) -> None:
        super().__init__()
        self.path, self.unpacked, self.left = path, unpacked, LARGEST_ARCHIVE

    def read(self, size: int = -1) -> bytes:
        content = self.unpacked.read(min(size, self.left + 1) if size >= 0 else self.left + 1)
        self.left -= len(content)
        if self.left < 0:
            raise _too_much(self.path)
        return content


def _too_long(name: str) -> RequestError:
    return RequestError(f"{name} is longer than {LARGEST >> 20} MiB, the most that is read of one file of vectors")


def _too_much(path: Path) -> RequestError:
    return RequestError(
        f"{path} holds more than {LARGEST_ARCHIVE >> 20} MiB or {MOST_FILES} files: give fewer vectors at a time"
    )
