"""The skill `scan`: knobs, and sources for one region."""

from __future__ import annotations

from cuda_agent.graph.ir import Region
from cuda_agent.skills.base import Knob, Knobs, KnobSpace, Skill, Written
from cuda_agent.skills.emit import elementwise
from cuda_agent.skills.scan import cpp, cuda
from cuda_agent.skills.scan.analysis import Scan, analyse
from cuda_agent.targets.base import DeviceFacts

PARALLEL_ELEMENTS = 20_000


class ScanSkill:
    name = "scan"

    def matches(self, region: Region) -> bool:
        return analyse(region) is not None

    def knobs(self, region: Region, device: DeviceFacts) -> KnobSpace:
        scan = _scan(region)
        return KnobSpace(_cuda_choices(scan, device) if device.target == "cuda"
                         else _cpp_choices(scan, device))  # fmt: skip

    def write(self, region: Region, knobs: Knobs, device: DeviceFacts) -> Written:
        scan = _scan(region)
        chosen = self.knobs(region, device).validate(knobs)
        name = f"{region.id}_{'cumsum' if scan.kind == 'sum' else 'cumprod'}"
        sizes = "x".join(map(str, region.space))
        title = f"{elementwise.describe(region.ops)} over dim {scan.dim} of {sizes}."
        place = region.inputs[0].name
        lines = [f"{t.name} = {elementwise.allocation(t, place)}" for t in region.outputs]
        if device.target != "cuda":
            schedule = cpp.Schedule(_form(scan), chosen["threads"] == "all",
                                    int(chosen.get("segments", 1)))
            source, arguments = cpp.write(scan, schedule, name, title)
            lines.append(f"kernels.{name}({', '.join(arguments)})")
            return Written({f"kernels/{name}.cpp": source}, "\n".join(lines), summary=title)
        made = cuda.write(scan, _cuda_schedule(scan, chosen), name, title)
        lines += [elementwise.realigned(n, size) for n, size in made.aligned.items() if size > 1]
        if made.workspace:
            kind = {"float": "float32", "double": "float64", "long long": "int64"}
            lines.append(f"totals = torch.empty({made.workspace}, "
                         f"dtype=torch.{kind[scan.accumulator]}, device={place}.device)")
        for launch in made.launches:
            grid = launch.grid[0] if launch.grid[1] == 1 else launch.grid
            lines.append(f"kernels.{launch.name}({grid}, {launch.block}, "
                         f"{', '.join(launch.arguments)})")
        return Written({f"kernels/{name}.cu": made.source}, "\n".join(lines), summary=title)


def _scan(region: Region) -> Scan:
    scan = analyse(region)
    if scan is None:
        raise ValueError(f"region {region.id} has no straight scan form")
    return scan


def _form(scan: Scan) -> str:
    """Along memory if the result lies along the scan, else neighbours side by side."""
    leader = scan.outputs[0][1].name
    along = scan.steps[leader] == 1 or scan.layout[leader].strides[-1] != 1
    return "rows" if along and (scan.length >= 32 or scan.rows < 32) else "columns"


def _cuda_choices(scan: Scan, device: DeviceFacts) -> dict[str, tuple[Knob, ...]]:
    """Threads for the whole chip: one warp per row while rows last, then blocks, then segments."""
    item = min(o.item_bytes for o in scan.layout.operands)
    if _form(scan) == "columns":
        wanted = device.units * 1024
        segments = _segments(scan.length, -(-wanted // scan.rows), least=64)
        return {"ahead": (8, 4, 16), "segments": segments}
    vector = max(4, 16 // item) if scan.length >= 256 else 4
    warps: tuple[Knob, ...] = (1, 4, 8) if scan.length <= 512 else (8, 4, 16, 1)
    blocks = device.units * 4
    segments = (1,) if scan.rows >= blocks else _segments(
        scan.length, -(-blocks // scan.rows), least=4096)
    return {"warps": warps, "items": tuple(dict.fromkeys((vector, 8, 4))), "segments": segments}


def _segments(length: int, wanted: int, *, least: int) -> tuple[int, ...]:
    """Numbers of segments near `wanted`, each of at least `least` steps."""
    most = max(1, min(length // least, 1024))
    return tuple(dict.fromkeys(max(1, min(most, s)) for s in (wanted, wanted // 2, 1)))


def _cuda_schedule(scan: Scan, knobs: Knobs) -> cuda.Schedule:
    return cuda.Schedule(
        form=_form(scan),
        warps=int(knobs.get("warps", 1)),
        items=int(knobs.get("items", knobs.get("ahead", 4))),
        segments=int(knobs["segments"]),
    )


def _cpp_choices(scan: Scan, device: DeviceFacts) -> dict[str, tuple[Knob, ...]]:
    several = device.units > 1
    large = scan.rows * scan.length > PARALLEL_ELEMENTS
    threads: tuple[Knob, ...] = ("one",)
    if several:
        threads = ("all", "one") if large else ("one", "all")
    choices: dict[str, tuple[Knob, ...]] = {"threads": threads}
    if _form(scan) == "rows" and several and scan.rows < device.units and large:
        choices["segments"] = (-(-device.units // scan.rows), 1)
    return choices


SKILL: Skill = ScanSkill()
