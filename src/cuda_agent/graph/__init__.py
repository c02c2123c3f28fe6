"""Capture a module as a graph of core ATen ops and cut it into regions that fuse."""

from __future__ import annotations

from cuda_agent.graph.capture import capture
from cuda_agent.graph.interpret import interpret
from cuda_agent.graph.ir import Derived, Graph, Held, Op, Ref, Region, RegionKind, Tensor
from cuda_agent.graph.regions import form_regions

__all__ = [
    "Derived",
    "Graph",
    "Held",
    "Op",
    "Ref",
    "Region",
    "RegionKind",
    "Tensor",
    "capture",
    "form_regions",
    "interpret",
]
