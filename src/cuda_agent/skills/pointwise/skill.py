"""The skill `pointwise`: knobs, and sources for one region."""

from __future__ import annotations

from cuda_agent.graph.ir import Region
from cuda_agent.skills.base import Knob, Knobs, KnobSpace, Skill, Written
from cuda_agent.skills.emit import elementwise
from cuda_agent.skills.emit.elementwise import Program
from cuda_agent.skills.pointwise import cpp, cuda
from cuda_agent.targets.base import DeviceFacts

WORD_BYTES = 16
# What waking OpenMP's threads costs on a busy machine, and what one element costs there.
TEAM_NS, LIGHT_NS, HEAVY_NS, BYTE_NS = 20_000, 0.1, 1.5, 0.05
_LIGHT_OPS = """
    abs add sub mul neg relu clamp clamp_min clamp_max hardtanh where maximum minimum leaky_relu
    eq ne lt le gt ge logical_and logical_or logical_not _to_copy clone full scalar_tensor"""
_LIGHT = frozenset(_LIGHT_OPS.split())


class PointwiseSkill:
    name = "pointwise"

    def matches(self, region: Region) -> bool:
        return region.kind == "pointwise" and elementwise.from_region(region) is not None

    def knobs(self, region: Region, device: DeviceFacts) -> KnobSpace:
        program = _program(region)
        return KnobSpace(cuda_choices(program, device) if device.target == "cuda"
                         else cpp_choices(program, device))  # fmt: skip

    def write(self, region: Region, knobs: Knobs, device: DeviceFacts) -> Written:
        program = _program(region)
        chosen = self.knobs(region, device).validate(knobs)
        name = f"{region.id}_{elementwise.label(region.ops)}"
        place = region.inputs[0].name if region.inputs else ""
        lines = [f"{t.name} = {elementwise.allocation(t, place)}" for t in region.outputs]
        if device.target == "cuda":
            files, call = cuda_call(program, cuda_schedule(chosen), name)
        else:
            files, call = cpp_call(program, cpp_schedule(chosen), name)
        return Written(files, "\n".join([*lines, *call]),
                       summary=f"{elementwise.describe(region.ops)} in one pass over memory")


def _program(region: Region) -> Program:
    program = elementwise.from_region(region)
    if program is None:
        raise ValueError(f"region {region.id} is not elementwise")
    return program


# --- CUDA -----------------------------------------------------------------------------------------


def cuda_choices(program: Program, device: DeviceFacts) -> dict[str, tuple[Knob, ...]]:
    """Vectors of 16 bytes; several in flight when there is work for every multiprocessor."""
    layout = program.layout
    widest = layout.vector_width(WORD_BYTES // program.narrowest_bytes)
    usual = min(widest, max(1, WORD_BYTES // program.widest_bytes))
    vectors = [w for w in (usual, widest, usual // 2) if w >= 1]
    resident = device.units * max(device.threads_per_unit, 1024)
    plenty = layout.count // usual >= 2 * resident
    choices: dict[str, tuple[Knob, ...]] = {
        "vector": tuple(dict.fromkeys(vectors)),
        "unroll": (1, 2, 4) if plenty else (1, 2),
        "threads": (256, 128, 512),
        "stores": ("plain", "stream") if program.traffic_bytes > device.cache_bytes else ("plain",),
    }
    if layout.transposed()[1] and not program.in_place:
        choices = {"layout": ("tile", "direct"), **choices}
    return choices


def cuda_schedule(knobs: Knobs) -> cuda.Schedule:
    return cuda.Schedule(
        vector=int(knobs["vector"]),
        unroll=int(knobs["unroll"]),
        threads=int(knobs["threads"]),
        tile=knobs.get("layout") == "tile",
        stream=knobs["stores"] == "stream",
    )


def cuda_call(
    program: Program, schedule: cuda.Schedule, name: str
) -> tuple[dict[str, str], list[str]]:
    """(files, Python lines that align the inputs and launch)."""
    kernel = cuda.write(program, schedule, name)
    lines = [elementwise.realigned(n, size) for n, size in kernel.aligned.items()]
    arguments = ", ".join(kernel.arguments)
    lines.append(f"kernels.{name}({kernel.grid}, {kernel.block}, {arguments})")
    return {f"kernels/{name}.cu": kernel.source}, lines


# --- C++ ------------------------------------------------------------------------------------------


def cpp_choices(program: Program, device: DeviceFacts) -> dict[str, tuple[Knob, ...]]:
    """A team of threads only where it is awake sooner than one thread is done."""
    heavy = sum(op.name not in _LIGHT for op in program.ops)
    light = len(program.ops) - heavy
    cost_ns = program.layout.count * (heavy * HEAVY_NS + light * LIGHT_NS)
    cost_ns += program.traffic_bytes * BYTE_NS
    several = device.units > 1 and cost_ns > TEAM_NS
    choices: dict[str, tuple[Knob, ...]] = {
        "threads": ("all", "one") if several else ("one", "all") if device.units > 1 else ("one",),
    }
    kind = cpp.form(program)
    if kind != "tiles":
        choices["chunk"] = (16384, 4096, 65536)
    written = sum(program.values[n].numel for n in program.outputs) * program.narrowest_bytes
    if kind == "chunks" and not program.in_place and written > device.cache_bytes // 4:
        choices["stores"] = ("plain", "stream")
    return choices


def cpp_schedule(knobs: Knobs) -> cpp.Schedule:
    stream = knobs.get("stores") == "stream"
    chunk = int(knobs.get("chunk", 16384))
    # A streamed chunk waits in a buffer that has to stay in the first-level cache.
    return cpp.Schedule(min(chunk, 4096) if stream else chunk, knobs["threads"] == "all", stream)


def cpp_call(
    program: Program, schedule: cpp.Schedule, name: str
) -> tuple[dict[str, str], list[str]]:
    source = cpp.write(program, schedule, name)
    return ({f"kernels/{name}.cpp": source},
            [f"kernels.{name}({', '.join(program.arguments())})"])


SKILL: Skill = PointwiseSkill()
