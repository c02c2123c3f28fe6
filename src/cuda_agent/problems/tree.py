"""Nested tuples, lists and dicts of tensors: the shapes that inputs and outputs come in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def tensors(tree: Any) -> list[torch.Tensor]:
    """Every tensor of `tree`, depth first, in order."""
    return [leaf for _, leaf in leaves(tree) if isinstance(leaf, torch.Tensor)]


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, leaf) of everything in `tree` that is not a tuple, list or mapping."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, f"{path}[{key!r}]")
    elif isinstance(tree, (tuple, list)):
        for i, value in enumerate(tree):
            yield from leaves(value, f"{path}[{i}]")
    else:
        yield path, tree


def map_tensors(fn: Callable[[torch.Tensor], torch.Tensor], tree: Any) -> Any:
    """`tree` with `fn` applied to each tensor. Named tuples and mapping types are kept."""
    if isinstance(tree, torch.Tensor):
        return fn(tree)
    if isinstance(tree, Mapping):
        mapped = {key: map_tensors(fn, value) for key, value in tree.items()}
        return mapped if type(tree) is dict else type(tree)(mapped)  # type: ignore[call-arg]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(fn, value) for value in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(map_tensors(fn, value) for value in tree)
    return tree


def nbytes(tree: Any) -> int:
    """Bytes that the elements of `tree`'s tensors take."""
    return sum(t.numel() * t.element_size() for t in tensors(tree))
