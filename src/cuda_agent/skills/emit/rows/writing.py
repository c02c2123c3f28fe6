"""What the row skills share: knobs and sources for a whole `rowwise` region."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cuda_agent.graph.ir import Region, Tensor
from cuda_agent.skills.base import Knobs, KnobSpace, Written
from cuda_agent.skills.emit.rows import knobs as settings
from cuda_agent.skills.emit.rows.cpp import write_cpp
from cuda_agent.skills.emit.rows.cuda import CudaSource, write_cuda
from cuda_agent.skills.emit.rows.lowering import lower
from cuda_agent.skills.emit.rows.program import RowProgram, Unsupported, product
from cuda_agent.targets.base import DeviceFacts


def programs_of(region: Region) -> tuple[RowProgram, ...] | None:
    """The row programs of a region, or None when it has no row form."""
    if region.kind != "rowwise":
        return None
    try:
        return lower(region)
    except Unsupported:
        return None


def knob_space(region: Region, device: DeviceFacts) -> KnobSpace:
    """Knobs of the first program; what folds per-row losses after it takes its defaults."""
    program = lower(region)[0]
    if device.target == "cuda":
        return settings.cuda_knobs(program, device)
    return settings.cpp_knobs(program, device)


def write_region(region: Region, knobs: Knobs, device: DeviceFacts, flavour: str) -> Written:
    """Sources and the forward lines of a region; `flavour` names file and kernel."""
    files: dict[str, str] = {}
    lines: list[str] = []
    known = {t.name for t in (*region.inputs, *region.outputs)}
    device_of = f"device={region.inputs[0].name}.device"
    for tensor in region.outputs:
        lines.append(f"{tensor.name} = {_empty(tensor, device_of)}")
    for index, program in enumerate(lower(region)):
        label = f"{region.id}_{flavour}" + ("_fold" if index else "")
        space = (settings.cuda_knobs if device.target == "cuda" else settings.cpp_knobs)(
            program, device)
        chosen = space.validate(knobs) if index == 0 else space.default()
        stored = {s.operand.name: s.operand for s in program.stores}
        for name, operand in stored.items():
            if name not in known:
                lines.append(f"{name} = torch.empty({program.rows}, "
                             f"dtype=torch.{operand.dtype}, {device_of})")
        title = f"{flavour.replace('_', ' ')} of {_shape(region)}" if index == 0 else (
            "sums of the per-row losses")
        if device.target == "cuda":
            schedule = settings.cuda_schedule(program, chosen, device)
            source = write_cuda(program, schedule, label, title)
            files[f"kernels/{label}.cu"] = source.text
            lines += _launch_lines(source, region, device_of)
        else:
            cpp = write_cpp(program, settings.cpp_schedule(program, chosen), label, title)
            files[f"kernels/{label}.cpp"] = cpp.text
            lines.append(f"kernels.{cpp.function}({', '.join(cpp.args)})")
    return Written(files, "\n".join(lines), summary=f"{flavour}: {', '.join(map(str, files))}")


def _launch_lines(source: CudaSource, region: Region, device_of: str) -> list[str]:
    inputs = {t.name for t in region.inputs}
    lines = [
        f"if {name}.data_ptr() % 16:  # kernels read 16 bytes at a time\n"
        f"    {name} = torch.empty_strided({name}.size(), {name}.stride(), "
        f"dtype={name}.dtype, device={name}.device).copy_({name})"
        for name in sorted(source.aligned & inputs)
    ]
    for name, size in source.workspaces.items():
        lines.append(f"{name} = torch.empty({size}, dtype=torch.uint8, {device_of})")
    for launch in source.launches:
        grid = str(launch.grid[0]) if len(launch.grid) == 1 else str(launch.grid)
        extra = f", shared={launch.shared}" if launch.shared else ""
        extra += f", cluster={launch.cluster}" if launch.cluster > 1 else ""
        lines.append(f"kernels.{launch.kernel}({grid}, {launch.block}, "
                     f"{', '.join(launch.args)}{extra})")
    return lines


def _empty(tensor: Tensor, device_of: str) -> str:
    dtype = f"dtype=torch.{tensor.dtype}"
    if tensor.is_contiguous:
        return f"torch.empty({tensor.shape}, {dtype}, {device_of})"
    return f"torch.empty_strided({tensor.shape}, {tensor.stride}, {dtype}, {device_of})"


def _shape(region: Region) -> str:
    dims = "x".join(map(str, region.space)) or "one element"
    over = ", ".join(map(str, region.reduce_dims))
    return f"{dims} over dim{'s' if len(region.reduce_dims) > 1 else ''} {over}"


@dataclass
class RowSkill:
    """A skill that takes the rowwise regions for which `wants` says so.

    `label` gives the word that names a region's kernel, e.g. "layer_norm".
    """

    name: str
    wants: Callable[[Region], bool]
    label: Callable[[Region], str]

    def matches(self, region: Region) -> bool:
        return region.kind == "rowwise" and self.wants(region) and programs_of(region) is not None

    def knobs(self, region: Region, device: DeviceFacts) -> KnobSpace:
        return knob_space(region, device)

    def write(self, region: Region, knobs: Knobs, device: DeviceFacts) -> Written:
        return write_region(region, knobs, device, self.label(region))


def keeps_space(region: Region) -> bool:
    """Whether an output has as many elements as the space: values are mapped, not only reduced."""
    elements = product(region.space)
    return any(t.numel == elements for t in region.outputs)
