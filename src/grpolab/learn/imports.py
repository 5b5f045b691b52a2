"""A user's own task or reward, named by import path."""

from __future__ import annotations

from typing import Any

from grpolab.errors import RequestError
from grpolab.registry import resolve


def load_object(key: str, path: str) -> Any:
    """The object at `package.module:name`.

    Raises RequestError, naming the settings key, where the path is malformed or nothing is there.
    """
    if not all(path.partition(":")):
        raise RequestError(f"{key}={path}: write it as package.module:name")
    try:
        return resolve(path)
    except Exception as error:  # a module of one's own may raise anything
        raise RequestError(f"{key}={path} cannot be imported: {error}") from error
