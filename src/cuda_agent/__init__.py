"""cuda-agent: a PyTorch module in, verified faster kernels out, judged on real hardware."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["Solution", "optimize"]


def __getattr__(name: str) -> Any:
    """`optimize` and `Solution`, imported on first use so that `import cuda_agent` stays light."""
    if name in __all__:
        from cuda_agent import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
