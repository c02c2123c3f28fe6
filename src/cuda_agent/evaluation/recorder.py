"""Which ATen operators a forward calls: what torch computes for it."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Neither computes anything nor moves data that its name does not say.
_ALLOCATIONS = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias",
    "lift_fresh", "_local_scalar_dense", "resize_", "set_", "is_same_size", "_unsafe_view",
}


class OpRecorder(TorchDispatchMode):
    """The ATen operators that this thread calls, as "aten.name"; views and allocations left out."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name not in _ALLOCATIONS and not _is_view(func):
            self.ops.add(f"{func.namespace}.{name}")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def recorded() -> Iterator[set[str]]:
    """Operators of this thread, and on a CPU those that other threads call in the meantime. The set
    is whole when the context ends.

    A mode belongs to one thread. torch's profiler sees all of them, those of C++ as well, takes a
    millisecond, and is not asked on a GPU, where its start would cost much more.
    """
    ops: set[str] = set()
    mode = OpRecorder()
    if torch.cuda.is_initialized():
        with mode:
            yield ops
    else:
        from torch._C._profiler import _ExperimentalConfig

        everywhere = torch.autograd.profiler.profile(
            use_kineto=True, experimental_config=_ExperimentalConfig(profile_all_threads=True)
        )
        mark = secrets.token_hex()  # the profiler numbers threads in its own way
        with everywhere as seen:
            with torch.autograd.profiler.record_function(mark):
                pass
            with mode:
                yield ops
        found = seen.kineto_results.events() if seen.kineto_results else ()
        own = {e.start_thread_id() for e in found if e.name() == mark}
        ops |= {
            e.name().replace("::", ".") for e in found
            if e.start_thread_id() not in own and _computes(e.name())
        }
    ops |= mode.ops


def _computes(name: str) -> bool:
    """Whether an operator of the profiler's ("aten::add") is one that a recorder would name: it is
    not made of others, and no view."""
    namespace, _, short = name.partition("::")
    packet = getattr(torch.ops.aten, short, None) if namespace == "aten" else None
    if packet is None or short in _ALLOCATIONS:
        return False
    known = [o for o in (getattr(packet, n) for n in packet.overloads()) if _registered(o)]
    return not any(_is_view(o) or o._can_decompose() for o in known)


def _registered(func: Any) -> bool:
    """TorchScript has overloads for its own numbers and lists that no dispatcher knows."""
    return torch._C._dispatch_has_kernel(func.name())


def _is_view(func: Any) -> bool:
    """A result that aliases an argument without writing to it."""
    returns = func._schema.returns
    return bool(returns) and all(
        r.alias_info is not None and not r.alias_info.is_write for r in returns
    )
