"""Judge and contestant: is a candidate right, how fast is it, and is it honest?

Imported lazily: the contestant's process is started from this package and must stay light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuda_agent.evaluation.forms import detect_form, load_candidate
    from cuda_agent.evaluation.judge import Judge, contestant_pool, shares_contestants
    from cuda_agent.evaluation.process import Pool
    from cuda_agent.evaluation.settings import Settings

__all__ = [
    "Judge", "Pool", "Settings", "contestant_pool", "detect_form", "load_candidate",
    "shares_contestants",
]

_HOMES = {
    "Judge": "judge", "Pool": "process", "Settings": "settings", "detect_form": "forms",
    "load_candidate": "forms", "contestant_pool": "judge",
    "shares_contestants": "judge",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
