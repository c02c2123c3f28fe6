"""The skill `depthwise_conv`: one kernel for a depthwise convolution and what follows it."""

from __future__ import annotations

from cuda_agent.graph.ir import Region
from cuda_agent.skills.base import Knob, Knobs, KnobSpace, Skill, Written
from cuda_agent.skills.depthwise_conv import cpp, cuda
from cuda_agent.skills.depthwise_conv.analysis import Stencil, analyse
from cuda_agent.skills.emit import elementwise
from cuda_agent.targets.base import DeviceFacts

_WORTH_A_TEAM = 200_000  # multiplications: less is done before OpenMP's threads are awake


class DepthwiseConvSkill:
    name = "depthwise_conv"

    def matches(self, region: Region) -> bool:
        return analyse(region) is not None

    def knobs(self, region: Region, device: DeviceFacts) -> KnobSpace:
        stencil = _stencil(region)
        kh, kw = stencil.taps
        if device.target != "cuda":
            work = stencil.finish.result.numel * kh * kw
            several = device.units > 1 and work > _WORTH_A_TEAM
            team: tuple[Knob, ...] = ("all", "one") if several else ("one",)
            return KnobSpace({"threads": team})
        # More rows read the image fewer times; fewer rows make more threads.
        rows = [r for r in (8, 4, 16, 2) if r <= stencil.out_size[0]] or [1]
        return KnobSpace({"rows": tuple(rows), "threads": (256, 128, 512)})

    def write(self, region: Region, knobs: Knobs, device: DeviceFacts) -> Written:
        stencil = _stencil(region)
        chosen = self.knobs(region, device).validate(knobs)
        ops = elementwise.label(stencil.finish.ops)
        name = f"{region.id}_depthwise_conv{'_' + ops if ops else ''}"
        lines = [
            f"{t.name} = {elementwise.allocation(t, stencil.x.name)}" for t in region.outputs
        ]
        if device.target == "cuda":
            kernel = cuda.write(stencil, name, int(chosen["rows"]), int(chosen["threads"]))
            files = {f"kernels/{name}.cu": kernel.source}
            arguments = ", ".join(kernel.arguments)
            lines.append(f"kernels.{name}({kernel.grid}, {chosen['threads']}, {arguments})")
        else:
            source, names = cpp.write(stencil, name, parallel=chosen["threads"] == "all")
            files = {f"kernels/{name}.cpp": source}
            lines.append(f"kernels.{name}({', '.join(names)})")
        return Written(files, "\n".join(lines), summary="convolution and what follows in one pass")


def _stencil(region: Region) -> Stencil:
    stencil = analyse(region)
    if stencil is None:
        raise ValueError(f"region {region.id} is no depthwise convolution with an epilogue")
    return stencil


SKILL: Skill = DepthwiseConvSkill()
