"""Read YAML and JSON in bounded time and memory, or refuse a file in one sentence.

Nothing is run or imported, and aliases cannot make a small document large.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from grpolab.errors import RequestError

LARGEST = 1 << 20  # bytes of a file
DEEPEST = 50  # mappings and lists within each other
MOST_VALUES = 100_000  # with everything an alias stands for
LONGEST_NUMBER = 40  # characters


def read_text(path: str, largest: int = LARGEST) -> str:
    """Return a file's text. Raises RequestError if it cannot be read, is no text or too large."""
    file = Path(path)
    if file.exists() and not file.is_file():  # reading a pipe would block
        raise RequestError(f"{path} cannot be read: it is no file")
    try:
        with file.open("rb") as stream:
            content = stream.read(largest + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is no text: byte {error.start} is not of UTF-8") from error
    if len(content) > largest:
        raise RequestError(f"{path} is larger than {largest >> 20} MiB, the most that is read of a config")
    return text


def read_mapping(path: str) -> dict[str, Any]:
    """Return the mapping in a YAML or JSON file. Raises RequestError if it holds none."""
    parse = parse_json if Path(path).suffix == ".json" else parse_yaml
    content = parse(path, read_text(path))
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise RequestError(f"{path} must be a mapping of keys to values")
    return content


def read_own_mapping(path: str) -> dict[str, Any]:
    """Return the mapping in a YAML file that PyYAML wrote: it writes the text `1e-6` unquoted. Raises RequestError."""
    content = parse_yaml(path, read_text(path), _Bounded)
    if not isinstance(content, dict):
        raise RequestError(f"{path} must be a mapping of keys to values")
    return content


class RefusedDocument(Exception):
    """A document is not read; the text says why."""


class _Bounded(yaml.SafeLoader):
    """PyYAML's loader with bounds."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > DEEPEST:
            raise RefusedDocument(f"nests more than {DEEPEST} mappings and lists in each other")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_number(self, node: Any) -> Any:
        """Refuse a number that no config has before it is made."""
        text = str(node.value)
        if len(text) > LONGEST_NUMBER:
            raise RefusedDocument(f"has a number of {len(text)} characters")
        return self.construct_yaml_int(node) if node.tag.endswith(":int") else self.construct_yaml_float(node)


class Lenient(_Bounded):
    """The same for files that people write: `1e-6` is a number, and a date is text."""


_YAML = "tag:yaml.org,2002:"
Lenient.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_YAML}timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_SCIENTIFIC = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
Lenient.add_implicit_resolver(f"{_YAML}float", _SCIENTIFIC, list("-+.0123456789"))
for _number in ("int", "float"):
    _Bounded.add_constructor(f"{_YAML}{_number}", _Bounded.construct_number)


def parse_yaml(path: str, text: str, kind: type[_Bounded] = Lenient) -> Any:
    """Return a YAML document's data; of a key that is repeated the last value. Raises RequestError."""
    try:
        loader = kind(text)
    except yaml.YAMLError as error:
        raise RequestError(f"{path} is no YAML: it has control characters") from error
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _count_values(node, {}) > MOST_VALUES:
            raise RefusedDocument(f"has more than {MOST_VALUES} values")
        return loader.construct_document(node)
    except RefusedDocument as error:
        raise RequestError(f"{path} {error}") from error
    except yaml.MarkedYAMLError as error:
        line = f": line {error.problem_mark.line + 1} cannot be read" if error.problem_mark else ""
        raise RequestError(f"{path} is no YAML{line}") from error
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        raise RequestError(f"{path} is no YAML") from error
    finally:
        loader.dispose()


def parse_value(text: str) -> Any:
    """Return a value as YAML reads it: `1e-6` is a number; what YAML cannot read is the text itself."""
    try:
        return parse_yaml("", text)
    except RequestError:
        return text


def _count_values(node: Any, counts: dict[int, int]) -> int:
    """Count the values that a node stands for, those behind each alias again."""
    if id(node) in counts:
        if not counts[id(node)]:
            raise RefusedDocument("has an alias of what it stands in")
        return counts[id(node)]
    counts[id(node)] = 0
    parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
    inside = 0 if isinstance(node, yaml.ScalarNode) else sum(_count_values(part, counts) for part in parts)
    counts[id(node)] = 1 + inside
    return counts[id(node)]


def parse_json(path: str, text: str) -> Any:
    """Return a JSON document's data. Raises RequestError."""

    def parse_int(digits: str) -> int:
        if len(digits) > LONGEST_NUMBER:
            raise RequestError(f"{path} has a number of {len(digits)} characters")
        return int(digits)

    try:
        return json.loads(text, parse_int=parse_int)
    except RecursionError as error:
        raise RequestError(f"{path} nests too many mappings and lists in each other") from error
    except ValueError as error:
        raise RequestError(f"{path} is no JSON: line {getattr(error, 'lineno', 1)} cannot be read") from error
