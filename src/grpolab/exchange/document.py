"""A config file of another framework as {key: value}: YAML, JSON, Python keywords or `key=value` words."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grpolab.errors import RequestError

Document = dict[str, Any]
SUFFIXES = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".py": "python", ".sh": "words", ".txt": "words"}
CONFIG_CLASS = "GRPOConfig"
WORD = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
READ_ERRORS = (ValueError, SyntaxError, RecursionError, AttributeError, yaml.YAMLError, OmegaConfBaseException)


def read(path: str) -> Document:
    """The file's keys, nested as they are there. Raises RequestError where it is not what its suffix says."""
    file = Path(path)
    kind = SUFFIXES.get(file.suffix)
    if kind is None:
        raise RequestError(f"{path}: the format of *{file.suffix} is unknown: name it {', '.join(SUFFIXES)}")
    try:
        found = READERS[kind](file.read_text("utf-8"))
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    except READ_ERRORS as error:
        raise RequestError(f"{path} is no {kind}: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise RequestError(f"{path} must be a mapping of keys to values")
    return found


def flat(document: Document, prefix: str = "") -> Document:
    """Nested mappings as dotted keys."""
    found: Document = {}
    for key, value in document.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return found


def _yaml(text: str) -> Any:
    """By OmegaConf's loader, which reads 1e-6 as a number; the text of a list or a scalar is refused by the caller."""
    return OmegaConf.to_container(OmegaConf.create(text))


def _python(text: str) -> Document:
    """The keywords of the first `GRPOConfig(...)`."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    named = [call for call in calls if ast.unparse(call.func).rpartition(".")[2] == CONFIG_CLASS]
    if not named:
        raise ValueError(f"it has no {CONFIG_CLASS}(...)")
    return {_name(keyword): _literal(keyword) for keyword in named[0].keywords}


def _name(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise ValueError(f"**{ast.unparse(keyword.value)} cannot be known without running it")
    return keyword.arg


def _literal(keyword: ast.keyword) -> Any:
    text = ast.unparse(keyword.value)
    if text in ("float('inf')", "math.inf", "torch.inf", "np.inf"):
        return float("inf")
    try:
        return ast.literal_eval(keyword.value)
    except ValueError as error:
        raise ValueError(f"{keyword.arg}={text} is no plain value: write it out") from error


def _words(text: str) -> Document:
    """The `key=value` words of a command line or of a list, each value read as YAML; other words are passed over."""
    matches = (WORD.fullmatch(word) for word in shlex.split(text, comments=True))
    found = {match[1]: _yaml(f"value: {match[2]}")["value"] for match in matches if match}
    if not found:
        raise ValueError("it has no key=value")
    return found


READERS: dict[str, Callable[[str], Any]] = {"yaml": _yaml, "json": json.loads, "python": _python, "words": _words}
