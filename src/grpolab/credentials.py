"""Mask passwords and tokens. They come only from the environment, and are never written to a file or the screen.

`without_secrets` masks every JSON file (`paths.json_bytes`), workers' logs (`masked_output`), the screen
(`terminal.say`) and every error. Settings hold only the name of a secret, `task.options.key='${oc.env:NAME}'`. Its
value is read when the task is made, so a new token does not change a run's identity.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO
from urllib.parse import quote

# Variables in which MLflow, databases and object stores look for secrets.
SECRETS = (
    *("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "PGPASSWORD"),
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
)
# Names of other variables that hold a secret, such as HF_TOKEN, if the value has at least SHORTEST characters.
SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|(?:API|ACCESS|SECRET|PRIVATE|STORAGE)_?KEY)(?:_|$)"
    r"(?!(?:.*_)?(?:PATH|FILE|DIR|URL)$)"
)
SHORTEST = 8
HIDDEN = "***"

USER = re.compile(r"(?<=://)([^:/?#@\s]*):[^\s\"'<>\\]{0,512}@")  # user:password@
HTTP_USER = re.compile(r"(https?://)[^/?#@\s\"'<>\\]+@")  # a user alone may be a token

_WORDS = (
    r"(?:password|passwd|pwd|passphrase|secret|(?:api|access|secret|private)[_-]?key|(?:api|auth|access)[_-]?token)"
)
# Secrets in any text; the first group of a pattern is kept. Diffs and tracebacks are text too, so code must survive:
# `pad_token=tokenizer.eos_token` is no secret, `token=9f8e7d6c5b4a` is one.
_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        r"((?:[?&;]|%20|%3B|%26)[\w.-]{0,64}(?:password|passwd|pwd|token|secret|api_?key|signature|sig)\w{0,64}(?:=|%3D))"
        r"(?!\*\*\*)(?:[^&;%\s\"'<>\\]|%(?!3B|26|20))+",
        rf"(\b(?:\w{{0,64}}[_-])?{_WORDS}[\"']?\s{{0,8}}[=:]\s{{0,8}}[\"'])(?!\*\*\*)[^\"'\n\\<>{{}}$]{{4,}}(?=[\"'])",
        rf"(\b(?:\w{{0,64}}[_-])?{_WORDS}\s{{0,8}}[=:]\s{{0,8}})(?!\*\*\*)[^\s\"'&;,()<>{{}}\[\]$\\]{{4,}}+(?![(\[])",
        r"(\b(?:\w{0,64}[_-])?token[\"']?\s{0,8}[=:]\s{0,8}[\"']?)(?=\S{0,64}\d)(?=\S{0,64}[a-z])[\w.+/=~-]{8,}+(?![(\[])",
        r"(\b(?:Bearer|Basic)\s+)(?=[^\s\"']{0,512}[\d=])[\w.~+/-]{8,}=*",
        r"(Authorization[\"']?\s{0,8}[=:]\s{0,8}[\"']?(?:\w{1,16} )?)(?!\*\*\*)[\w.~+/-]{8,}=*(?=[\s\"',}]|$)",
        r"()\b(?-i:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
        r"|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*)",
        r"(-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----).*?(?=-----END|$(?!.))",
    )
)
# Text without any of these needs no search for the patterns.
_HINT = re.compile(
    r"://|pass|pwd|token|secret|key|sig|bearer|basic|authori|hf_|sk-|gh[pousr]_|github_pat|glpat|xox|akia|aiza|eyj",
    re.I,
)
REFERENCE = re.compile(r"\$\{oc\.env:\s*(\w+)\s*(?:,\s*([^{}]*?)\s*)?\}")
_read_by_name: set[str] = set()  # values that `with_environment` has read in this process


def without_secrets(text: str) -> str:
    """Return the text with `***` for each password, token and key.

    They are known by where they stand (`password=..`, a URL), by their form (`hf_..`), or as values of the environment.
    """
    return _mask(text, _secrets_of_environment())


def without_secrets_in(value: Any) -> Any:
    """Return a nested value with the secrets in its strings masked."""
    secret = _secrets_of_environment()

    def clean(node: Any) -> Any:
        if isinstance(node, str):
            return _mask(node, secret)
        if isinstance(node, dict):
            return {key: clean(item) for key, item in node.items()}
        return [clean(item) for item in node] if isinstance(node, list) else node

    return clean(value)


def _mask(text: str, secret: re.Pattern[str] | None) -> str:
    if _HINT.search(text):
        text = HTTP_USER.sub(rf"\1{HIDDEN}@", USER.sub(rf"\1:{HIDDEN}@", text))
        for pattern in _PATTERNS:
            text = pattern.sub(rf"\1{HIDDEN}", text)
    return secret.sub(HIDDEN, text) if secret else text


def is_secret_name(name: str) -> bool:
    """Return True if the name of an environment variable says that it holds a secret."""
    return name in SECRETS or SECRET_NAME.search(name.upper()) is not None


def _secrets_of_environment() -> re.Pattern[str] | None:
    """Return a pattern of the environment's secrets; None if it has none."""
    values = {name: value.strip() for name, value in os.environ.items() if is_secret_name(name)}
    secrets = {value for name, value in values.items() if len(value) >= (1 if name in SECRETS else SHORTEST)}
    return _any_of(frozenset(secrets | _read_by_name), os.environ.get("MLFLOW_TRACKING_USERNAME", ""))


@functools.lru_cache(maxsize=8)
def _any_of(secrets: frozenset[str], user: str) -> re.Pattern[str] | None:
    """Return a pattern of secrets in all their forms: as they are, as a login, quoted for a URL, escaped."""
    forms: set[str] = set()
    for secret in secrets:
        login = base64.b64encode(f"{user}:{secret}".encode()).decode()
        forms |= {secret, login, quote(secret, safe=""), repr(secret)[1:-1], json.dumps(secret)[1:-1]}
    if not forms:
        return None
    longest_first = sorted(forms, key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)")


@contextmanager
def masked_output() -> Iterator[None]:
    """Mask the secrets in everything that is printed meanwhile."""
    with redirect_stdout(_Masked(sys.stdout)), redirect_stderr(_Masked(sys.stderr)):
        yield


class _Masked:
    """A text file whose secrets are masked as they are written."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        self._file.write(without_secrets(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def reveals(key: str, value: Any) -> bool:
    """Return True if a setting would be masked, written as `key=value`."""
    text = f"{key}={value}"
    return without_secrets(text) != text


def with_environment(value: Any) -> Any:
    """Replace each `${oc.env:NAME}` in a value. Raises KeyError if the environment has no NAME."""

    def read(match: re.Match[str]) -> str:
        secret = os.environ[match[1]] if match[2] is None else os.environ.get(match[1], match[2])
        if len(secret) >= SHORTEST:
            _read_by_name.add(secret)
        return secret

    if isinstance(value, dict):
        return {key: with_environment(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_environment(item) for item in value]
    return REFERENCE.sub(read, value) if isinstance(value, str) else value
