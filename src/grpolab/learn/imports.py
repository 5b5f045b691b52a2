"""A user's own task or reward, named by import path."""

from __future__ import annotations

import importlib
from typing import Any

from grpolab.errors import RequestError


def load_object(key: str, path: str) -> Any:
    """The object at `package.module:name`.

    Raises RequestError, naming the settings key, where the path is malformed or nothing is there.
    """
    module, _, name = path.partition(":")
    if not module or not name:
        raise RequestError(f"{key}={path}: write it as package.module:name")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise RequestError(f"{key}={path} cannot be imported: {error}") from error
