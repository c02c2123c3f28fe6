"""Precision policies: which flags of torch hold, and what error passes.

`strict`: float32 means float32. `matched`: TF32 is allowed, to the baselines as well. `paper`:
torch's defaults and the published atol = rtol = 1e-2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from cuda_agent.records import Precision

# (matmul, cudnn): may TF32 be used?
_TF32 = {"strict": (False, False), "matched": (True, True), "paper": (False, True)}


def set_flags(precision: Precision) -> None:
    matmul, cudnn = _TF32[precision]
    torch.backends.cuda.matmul.allow_tf32 = matmul
    torch.backends.cudnn.allow_tf32 = cudnn


@contextmanager
def flags(precision: Precision) -> Iterator[None]:
    """The policy's flags in this process; the caller's come back."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    set_flags(precision)
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@dataclass(frozen=True)
class Tolerance:
    """What passes.

    atol, rtol: of single elements. `scaled`: atol is a fraction of the output's root mean square.
    floor: relative error (against the spread) that passes whatever eager's own error is.
    factor: multiple of eager's own error against float64 that passes.
    cap: never more than this, so that zeros or a constant (relative error 1) never pass.
    """

    atol: float
    rtol: float
    scaled: bool
    floor: float
    factor: float
    cap: float = 0.1


# 2e-5 lets three split TF32 products (9.7e-6 at 4096^3) pass where eager happens to be exact, and
# is far from plain TF32 (2.9e-4). A low-precision result is off by half a unit in its last place.
_STRICT = {
    torch.float64: Tolerance(1e-8, 1e-8, True, 1e-10, 16),
    torch.float32: Tolerance(1e-4, 1e-4, True, 2e-5, 16),
    torch.bfloat16: Tolerance(2e-2, 2e-2, True, 4e-3, 4),
    torch.float16: Tolerance(4e-3, 4e-3, True, 1e-3, 4),
}
_MATCHED_FLOAT32 = Tolerance(5e-3, 5e-3, True, 2e-3, 4)
_PAPER = Tolerance(1e-2, 1e-2, False, 5e-2, 4)


def tolerance(precision: Precision, dtype: torch.dtype) -> Tolerance:
    """For an output of floating or complex `dtype`."""
    real = {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)
    if precision == "paper":
        return _PAPER
    if precision == "matched" and real == torch.float32:
        return _MATCHED_FLOAT32
    return _STRICT.get(real, _STRICT[torch.float32])
