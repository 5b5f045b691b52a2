"""The JSON files of an archive, a folder or one file of vectors, within bounds: whoever made them may mean harm.

An archive is unpacked in memory alone, as a stream, and no further than its bounds: what a member is called, links to
or says that it is long decides nothing.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zlib
from collections.abc import Callable
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


def texts(path: Path) -> dict[str, bytes]:
    """The .json files there, by name. Raises RequestError where there are none, or they cannot be read."""
    if path.is_dir():
        found = _of_folder(path)
    elif path.suffix == ".json" and path.is_file():
        found = {path.name: _of_file(path)}
    elif path.is_file():
        found = _of_archive(path)
    elif path.exists():
        raise RequestError(f"{path} cannot be read: it is no file")
    else:
        raise RequestError(f"{path} does not exist: give an archive, a folder or a .json file of vectors")
    if not found:
        raise RequestError(f"{path} holds no .json file with vectors")
    return found


def parsed(name: str, text: bytes) -> Any:
    """What a JSON file says. Raises RequestError where it is none."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise RequestError(f"{name} nests too many lists and mappings in each other") from error
    except ValueError as error:
        raise RequestError(f"{name} is not JSON: {error}") from error


def _of_folder(folder: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for file in sorted(folder.rglob("*.json")):
        if not file.is_dir():
            found[file.name] = _of_file(file)
        if sum(map(len, found.values())) > LARGEST_ARCHIVE or len(found) > MOST_FILES:
            raise _too_much(folder)
    return found


def _of_file(file: Path) -> bytes:
    if not file.is_file():
        raise RequestError(f"{file} cannot be read: it is no file")
    try:
        with file.open("rb") as opened:
            content = opened.read(LARGEST + 1)
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror}") from error
    if len(content) > LARGEST:
        raise _too_long(file)
    return content


def _of_archive(path: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    try:
        with path.open("rb") as file:
            head = file.read(6)
        opener = next(opener for magic, opener in OPENERS.items() if head.startswith(magic))
        with opener(path, "rb") as unpacked:
            stream = cast(BinaryIO, Bounded(path, cast(BinaryIO, unpacked)))
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    if not member.name.endswith(".json") or member.isdir():
                        continue
                    if not member.isreg():
                        raise RequestError(f"{path}: {member.name} is no file but a link or a device: pack files alone")
                    if member.size > LARGEST:
                        raise _too_long(Path(f"{path}: {member.name}"))
                    if len(found) >= MOST_FILES:
                        raise _too_much(path)
                    content = archive.extractfile(member)
                    found[Path(member.name).name] = content.read() if content else b""
    except DAMAGE as error:
        raise RequestError(f"{path} is neither a folder, a .json file nor a whole tar archive: {error}") from error
    return found


class Bounded(io.RawIOBase):
    """What an archive unpacks to, which ends in a RequestError where it is longer than all vectors could be."""

    def __init__(self, path: Path, unpacked: BinaryIO) -> None:
        super().__init__()
        self.path, self.unpacked, self.left = path, unpacked, LARGEST_ARCHIVE

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        content = self.unpacked.read(min(size, self.left + 1) if size >= 0 else self.left + 1)
        self.left -= len(content)
        if self.left < 0:
            raise _too_much(self.path)
        return content


def _too_long(file: Path) -> RequestError:
    return RequestError(f"{file} is longer than {LARGEST >> 20} MiB, the most that is read of one file of vectors")


def _too_much(path: Path) -> RequestError:
    return RequestError(
        f"{path} holds more than {LARGEST_ARCHIVE >> 20} MiB or {MOST_FILES} files: give fewer vectors at a time"
    )
