"""Ways to damage a file, or to make it do harm: half of it, other bytes, other values, and what is no file at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from fuzz_studies import DEEP_BOMB
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

SECRET = "c4n4ry-0f-a-secret"  # in a file outside of every results folder; it must come to stand nowhere else
# Where the words of a file may lead: out of the folder that it lies in, to files that are there and to others.
AWAY = (
    *("../outside/x", "../../outside/x", "../../../outside/x", "../../../../outside/x", "../../../outside", "/../x"),
    *("../../home/secret.json", "../../../home/secret.json", "/dev/zero", "/proc/self/mem", "..", ".", "~", ""),
)
TEXTS = (
    *(*AWAY, "x", "a[red]b[/]", "[/]", "a\x1b[31mb\x1b]0;t\x07", "a\nb\r\nc", "a\0b", "\ud800", "%20", "{x}", "${x}"),
    *("$(touch outside/x)", "-rf", "--help", "inf", "nan", "null", "true", "2001-99-99", "<script>", "|x|", "![](x)"),
    *("é" * 300, "z" * 5000, " ", "\u202e", "0" * 16, "completed", "failed"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**31, 2**63, 10**30, 1e308, 0.5, float("nan"), float("inf"), [], {}, [[]], [1, 2]),
    *({"a": 1}, {"": {}}, [None], ["../../outside/x"], {"..": "x"}, {"signature": "../../x"}, [{}], [[1], [1, 2]]),
)
DEEP = "[" * 100_000


@dataclass(frozen=True)
class Odd:
    """What may stand where a file should: a `link` to a target, a `pipe`, a `folder`, `nothing`."""

    kind: str
    target: str = ""


Content = bytes | Odd
ODD = (
    *map(Odd, ("nothing", "pipe", "folder")),
    *(Odd("link", target) for target in (*AWAY[:-1], "loop", "settings.yaml", "outcome.json")),
)


def put(place: Path, content: Content) -> None:
    """Let a place in a folder hold that and nothing else; a link `loop` is one to itself."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        place.write_bytes(content)
    elif content.kind == "link":
        place.symlink_to(place.name if content.target == "loop" else content.target)
    elif content.kind == "pipe":
        os.mkfifo(place)
    elif content.kind == "folder":
        place.mkdir()


def texts() -> SearchStrategy[str]:
    """What may stand where a name should."""
    return st.sampled_from(TEXTS) | st.text(max_size=12)


def values() -> SearchStrategy[Any]:
    """What may stand where any value should."""
    return st.sampled_from(VALUES) | texts()


def changed(draw: st.DrawFn, value: Any, least: int = 0) -> Any:
    """The value with one of those in it, at most so deep as it goes, another, gone, or under another key."""
    if least <= 0 and (not value or not isinstance(value, dict | list) or not draw(st.integers(0, 3))):
        return draw(values())
    if isinstance(value, list) and value:
        place = draw(st.integers(0, len(value) - 1))
        way = draw(st.sampled_from(["change", "change", "change", "drop", "twice"]))
        middle = [changed(draw, value[place], least - 1)] if way == "change" else [value[place]] * 2 * (way == "twice")
        return [*value[:place], *middle, *value[place + 1 :]]
    if isinstance(value, dict) and value:
        key = draw(st.sampled_from(sorted(value, key=str)))
        way = draw(st.sampled_from(["change", "change", "change", "change", "drop", "rename", "add"]))
        rest = {name: inner for name, inner in value.items() if name != key}
        if way == "change":
            return {**value, key: changed(draw, value[key], least - 1)}
        return rest if way == "drop" else {**rest, draw(texts()): value[key] if way == "rename" else draw(values())}
    return draw(values())


def bytes_changed(draw: st.DrawFn, content: bytes) -> bytes:
    """The content cut off, with other bytes in it, twice, or none of it."""
    place = draw(st.integers(0, max(0, len(content) - 1)))
    new = draw(st.sampled_from([b"\0", b"\xff", b"\xc3", b"\n", b"{", b'"', b"9" * 400, b"\xed\xa0\x80"]) | st.binary())
    ways = (
        *(content[:place], content[place:], content[:place] + new + content[place:], new, b"", content * 2),
        *(content[:place] + new + content[place + len(new) :], b"\xef\xbb\xbf" + content, DEEP.encode(), b"\0" * 4096),
        *(b'{"a":1} {} [] null 3 "x"'.split()),
        *(content.replace(b"\n", b"\r\n"), b"1" * 5000, b"\n" + content),
        content.decode(errors="replace").encode("utf-16"),
    )
    return draw(st.sampled_from(ways))


def file_changed(draw: st.DrawFn, name: str, content: bytes) -> Content:
    """A file of that name that is not what it was; what it means is changed as often as its bytes are."""
    way = draw(st.sampled_from(["meaning"] * 5 + ["bytes"] * 4 + ["odd"]))
    if way == "odd":
        return draw(st.sampled_from(ODD))
    suffix = Path(name).suffix
    if way == "bytes" or suffix not in (".json", ".jsonl", ".yaml", ".safetensors"):
        return bytes_changed(draw, content)
    if suffix == ".yaml":
        if draw(st.integers(0, 9)) == 0:
            return DEEP_BOMB.encode()
        value = changed(draw, yaml.safe_load(content), 1)
        return yaml.safe_dump(value, sort_keys=False).encode("utf-8", "surrogatepass")
    if suffix == ".json":
        return json.dumps(changed(draw, json.loads(content), 1)).encode()
    if suffix == ".jsonl":
        return b"".join(_lines_changed(draw, content.splitlines(keepends=True)))
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(changed(draw, json.loads(content[8 : 8 + size]), 2)).encode()
    length = draw(st.sampled_from([len(header), len(header), len(header), 0, 2**40, 2**64 - 1]))
    return length.to_bytes(8, "little") + header + content[8 + size :]


def _lines_changed(draw: st.DrawFn, lines: list[bytes]) -> Iterator[bytes]:
    place = draw(st.integers(0, len(lines) - 1))
    way = draw(st.sampled_from(["change", "change", "change", "drop", "twice", "last", "first"]))
    for number, line in enumerate(lines):
        if way == "change" and number == place:
            yield json.dumps(changed(draw, json.loads(line), 1)).encode() + b"\n"
        elif not (way == "drop" and number == place):
            yield line
        if way == "twice" and number == place:
            yield line
    if way in ("last", "first"):
        yield lines[place] if way == "last" else lines[0]
