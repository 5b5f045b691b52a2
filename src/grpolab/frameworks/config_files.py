"""A config file as plain data, within bounds: YAML and JSON documents, the cells of a notebook, the words of a list.

Nothing is run or imported, and no document grows by what it repeats: a file says what it says in bounded time and
memory, or is refused in one sentence.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from grpolab.errors import RequestError

KINDS = {
    ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".py": "python", ".ipynb": "notebook",
    ".sh": "shell", ".bash": "shell", ".slurm": "shell", ".txt": "words",
}  # fmt: skip
LARGEST = 16 << 20  # bytes; a notebook has its pictures in it
LARGEST_TEXT = 1 << 20  # bytes of anything else
DEEPEST = 50  # mappings and lists within each other
MOST_VALUES = 100_000  # with everything an alias stands for
LONGEST_NUMBER = 40  # characters
WORD = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
OTHER_LANGUAGE = re.compile(r"\s*%%(?!capture|time|writefile)")  # a cell that is no Python


@dataclass(frozen=True)
class File:
    """A file's text and what its suffix says that it is; a notebook is the Python of its cells."""

    path: str
    kind: str
    text: str

    def refusal(self, reason: str) -> RequestError:
        return RequestError(f"{self.path} {reason}")


def load(path: str) -> File:
    """Raises RequestError where it cannot be read, is too large, or its suffix is unknown."""
    file = Path(path)
    kind = KINDS.get(file.suffix)
    if kind is None:
        raise RequestError(f"{path}: the format of *{file.suffix} is unknown: name it {', '.join(KINDS)}")
    largest = LARGEST if kind == "notebook" else LARGEST_TEXT
    if file.exists() and not file.is_file():  # a pipe would be waited for
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
    if kind == "notebook":
        return File(path, "python", _cells(path, text))
    return File(path, kind, text)


def document(file: File) -> Any:
    """A YAML or JSON file's data; of a key that is repeated the last value, as their parsers have it.

    Raises RequestError where it is neither, or larger than the bounds.
    """
    if file.kind == "json":
        return _json(file.path, file.text)
    return _yaml(file, file.text)


def mapping(file: File) -> dict[str, Any]:
    """The same, which must be keys with values."""
    content = document(file)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise file.refusal("must be a mapping of keys to values")
    return content


def written(path: str) -> dict[str, Any]:
    """The mapping in a YAML file of this program's, as PyYAML reads what it wrote. Raises as `load` and `mapping`."""
    file = load(path)
    content = _yaml(file, file.text, _Bounded)
    if not isinstance(content, dict):
        raise file.refusal("must be a mapping of keys to values")
    return content


def words(file: File) -> dict[str, Any]:
    """The `key=value` words of a command line or of a list, each value read as YAML; other words are passed over."""
    try:
        matches = [WORD.fullmatch(word) for word in shlex.split(file.text, comments=True)]
    except ValueError as error:
        raise file.refusal("is no list of words: a quotation mark is not closed") from error
    options = {match[1]: value(match[2]) for match in matches if match}
    if not options:
        raise file.refusal("has no key=value")
    return options


def value(text: str) -> Any:
    """A value as YAML reads it: `1e-6` is a number, `true` a truth value; what YAML cannot read is the text itself."""
    try:
        return _yaml(File("", "yaml", text), text)
    except RequestError:
        return text


class _Bounded(yaml.SafeLoader):
    """With bounds."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > DEEPEST:
            raise _TooMuch(f"nests more than {DEEPEST} mappings and lists in each other")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_number(self, node: Any) -> Any:
        """Raises _TooMuch for a number that no config has, before it is made."""
        text = str(node.value)
        if len(text) > LONGEST_NUMBER:
            raise _TooMuch(f"has a number of {len(text)} characters")
        is_int = node.tag.endswith(":int")
        return self.construct_yaml_int(node) if is_int else self.construct_yaml_float(node)


class _Loader(_Bounded):
    """And with 1e-6 as the number that its writer means; a date is text."""


_YAML = "tag:yaml.org,2002:"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_YAML}timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_SCIENTIFIC = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
_Loader.add_implicit_resolver(f"{_YAML}float", _SCIENTIFIC, list("-+.0123456789"))
for _number in ("int", "float"):
    _Bounded.add_constructor(f"{_YAML}{_number}", _Bounded.construct_number)


class _TooMuch(Exception):
    """A document beyond the bounds; says in which way."""


def _yaml(file: File, text: str, kind: type[_Bounded] = _Loader) -> Any:
    try:
        loader = kind(text)
    except yaml.YAMLError as error:
        raise file.refusal("is no YAML: it has control characters") from error
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _values(node, {}) > MOST_VALUES:
            raise _TooMuch(f"has more than {MOST_VALUES} values")
        return loader.construct_document(node)
    except _TooMuch as error:
        raise file.refusal(str(error)) from error
    except yaml.MarkedYAMLError as error:
        line = f": line {error.problem_mark.line + 1} cannot be read" if error.problem_mark else ""
        raise file.refusal(f"is no YAML{line}") from error
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        raise file.refusal("is no YAML") from error
    finally:
        loader.dispose()


def _values(node: Any, seen: dict[int, int]) -> int:
    """How many values a node stands for, those behind each alias counted again."""
    if id(node) in seen:
        if not seen[id(node)]:
            raise _TooMuch("has an alias of what it stands in")
        return seen[id(node)]
    seen[id(node)] = 0
    parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
    inside = 0 if isinstance(node, yaml.ScalarNode) else sum(_values(part, seen) for part in parts)
    seen[id(node)] = 1 + inside
    return seen[id(node)]


def _json(path: str, text: str) -> Any:
    def number(digits: str) -> int:
        if len(digits) > LONGEST_NUMBER:
            raise RequestError(f"{path} has a number of {len(digits)} characters")
        return int(digits)

    try:
        return json.loads(text, parse_int=number)
    except RecursionError as error:
        raise RequestError(f"{path} nests too many mappings and lists in each other") from error
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise RequestError(f"{path} is no JSON: line {line} cannot be read") from error


def _cells(path: str, text: str) -> str:
    """The code of a notebook, one cell below the other."""
    notebook = _json(path, text)
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise RequestError(f"{path} is no notebook: it has no cells")
    code = [cell.get("source", "") for cell in cells if isinstance(cell, dict) and cell.get("cell_type") == "code"]
    texts = ["".join(map(str, source)) if isinstance(source, list) else str(source) for source in code]
    return "\n".join(text for text in texts if not OTHER_LANGUAGE.match(text))
