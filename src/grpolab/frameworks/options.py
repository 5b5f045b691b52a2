"""stub"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grpolab.settings.objective import Objective

OPTIONS: dict[str, tuple[dict[str, Any], Callable[[Mapping[str, Any]], Objective]]] = {}
