"""The knobs of a plan's "graph" part."""

from __future__ import annotations

from cuda_agent.skills.base import Knob, KnobSpace
from cuda_agent.targets.base import DeviceFacts

# Below this much time per kernel, launches from Python are what a forward waits for.
LAUNCH_BOUND_S = 10e-6


def graph_choices(
    device: DeviceFacts, *, folded: bool, bytes_moved: int, kernels: int
) -> KnobSpace:
    """`folded`: the graph was captured with parameters folded, which is settled by then.

    `bytes_moved` and `kernels` of the whole forward decide the default of `cuda_graph`: a replay
    costs copies of the inputs and outputs but only one launch, so it comes first where kernels are
    many and short.
    """
    choices: dict[str, tuple[Knob, ...]] = {"fold": (folded,), "cuda_graph": (False,)}
    if device.target == "cuda":
        rate = device.copy_bytes_per_s or 1e12
        moving, launching = bytes_moved / rate, kernels * LAUNCH_BOUND_S
        if kernels > 2 and moving < launching:
            choices["cuda_graph"] = (True, False)
        elif moving < 4 * launching:  # beyond that the copies cost more than launches ever can
            choices["cuda_graph"] = (False, True)
    choices["precision"] = ("fp32",)
    return KnobSpace(choices)
