"""Choices of a whole graph: what is offered, and what comes first."""

from __future__ import annotations

from rows_check import CPU, H200

from cuda_agent.skills.whole_graph.choices import graph_choices


def test_a_cpu_has_no_graph_to_replay() -> None:
    space = graph_choices(CPU, folded=True, bytes_moved=100, kernels=30)
    assert space.choices["cuda_graph"] == (False,)
    assert space.choices["fold"] == (True,)


def test_many_short_kernels_are_replayed_first() -> None:
    space = graph_choices(H200, folded=False, bytes_moved=1 << 20, kernels=30)
    assert space.default() == {"fold": False, "cuda_graph": True, "precision": "fp32"}


def test_large_tensors_are_not_copied_for_a_replay() -> None:
    space = graph_choices(H200, folded=False, bytes_moved=8 << 30, kernels=30)
    assert space.choices["cuda_graph"] == (False,)
    middling = graph_choices(H200, folded=False, bytes_moved=1 << 30, kernels=30)
    assert middling.choices["cuda_graph"] == (False, True)
    single = graph_choices(H200, folded=False, bytes_moved=1 << 10, kernels=1)
    assert single.choices["cuda_graph"] == (False, True)
