"""Many runs: a study is expanded into cells, and workers train a run for each. Never imports torch or MLflow."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """This package and the API's function of the same name: `grpolab.sweep("clip_range")` calls `grpolab.api.sweep`."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return import_module("grpolab.api").sweep(*arguments, **settings)


sys.modules[__name__].__class__ = _Room
