"""The skill `gemm_epilogue`: a library product and one fused kernel in place, or own kernels."""

from __future__ import annotations

from cuda_agent.graph.ir import Region
from cuda_agent.skills.base import Knob, Knobs, KnobSpace, Skill, Written
from cuda_agent.skills.emit import elementwise
from cuda_agent.skills.gemm_epilogue import skinny_cpp, skinny_cuda
from cuda_agent.skills.gemm_epilogue.analysis import Gemm, Skinny, analyse, skinny
from cuda_agent.skills.pointwise.skill import (
    cpp_call,
    cpp_choices,
    cpp_schedule,
    cuda_call,
    cuda_choices,
    cuda_schedule,
)
from cuda_agent.targets.base import DeviceFacts

# Three TF32 products and two splits cost less than one float32 product from about here on.
TF32X3_FLOPS = 8e9


class GemmEpilogueSkill:
    name = "gemm_epilogue"

    def matches(self, region: Region) -> bool:
        return analyse(region) is not None

    def knobs(self, region: Region, device: DeviceFacts) -> KnobSpace:
        gemm = _gemm(region)
        cuda = device.target == "cuda"
        choices: dict[str, tuple[Knob, ...]] = {}
        form = skinny(gemm)
        if form is not None:
            choices["product"] = ("own", "library") if cuda else ("library", "own")
        if cuda and gemm.product.dtype == "float32":
            exact = ("tf32x3", "fp32") if gemm.flops >= TF32X3_FLOPS else ("fp32", "tf32x3")
            choices["precision"] = (*exact, "tf32")
        if form is not None and cuda:
            choices |= _skinny_choices(form, device)
        if gemm.epilogue:
            offered = (cuda_choices if cuda else cpp_choices)(gemm.program(), device)
            choices |= {f"epilogue_{name}": options for name, options in offered.items()}
        return KnobSpace(choices)

    def write(self, region: Region, knobs: Knobs, device: DeviceFacts) -> Written:
        gemm = _gemm(region)
        chosen = self.knobs(region, device).validate(knobs)
        form = skinny(gemm)
        if form is not None and chosen["product"] == "own":
            return _own(form, chosen, device)
        return _library(gemm, chosen, device)


def _gemm(region: Region) -> Gemm:
    gemm = analyse(region)
    if gemm is None:
        raise ValueError(f"region {region.id} is no product with an elementwise epilogue")
    return gemm


def _name(gemm: Gemm, word: str) -> str:
    ops = elementwise.label(gemm.epilogue)
    return f"{gemm.region.id}_{word}{'_' + ops if ops else ''}"


# --- library product ------------------------------------------------------------------------------


def _library(gemm: Gemm, knobs: Knobs, device: DeviceFacts) -> Written:
    """The product by cuBLAS or torch, then one elementwise kernel over it, in place if it can."""
    cuda = device.target == "cuda"
    taken = gemm.in_place
    product = taken.name if taken else gemm.product.name
    precision = f', precision="{knobs["precision"]}"' if "precision" in knobs else ""
    lines = [f"{product} = runtime.matmul({gemm.a.name}, {gemm.b.name}{precision})"]
    files: dict[str, str] = {}
    if gemm.epilogue:
        lines += [
            f"{t.name} = {elementwise.allocation(t, product)}"
            for t in gemm.region.outputs
            if t.name not in (product, gemm.product.name)
        ]
        settings = {n.removeprefix("epilogue_"): v for n, v in knobs.items()
                    if n.startswith("epilogue_")}
        name = _name(gemm, "epilogue")
        if cuda:
            files, call = cuda_call(gemm.program(), cuda_schedule(settings), name)
        else:
            files, call = cpp_call(gemm.program(), cpp_schedule(settings), name)
        lines += call
    library = "cuBLAS" if cuda else "torch.matmul"
    how = " in place" if taken else ""
    return Written(files, "\n".join(lines), (library,),
                   f"{library}{', one epilogue kernel' + how if files else ''}")


# --- own kernels for one small side ---------------------------------------------------------------


def _skinny_choices(form: Skinny, device: DeviceFacts) -> dict[str, tuple[Knob, ...]]:
    """Enough warps to fill the chip, then more rows for each read of the narrow operand."""
    total = form.length * form.gemm.batch
    if not form.along_k:
        tile = 32 * min(skinny_cuda.vector_of(form, narrow_too=False), 4)
        blocks = -(-form.length // tile) * form.gemm.batch
        wanted = max(1, 2 * device.units // blocks)
        slices = min((1, 2, 4, 8, 16, 32), key=lambda s: (abs(s - wanted), s))
        deepest = max(1, form.k // 64)
        options = dict.fromkeys(min(s, deepest) for s in (slices, max(1, slices // 2), slices * 2))
        return {"slices": tuple(options)}
    rows = next((r for r in (4, 2) if total // r >= device.units * 32), 1)
    warps = total // rows
    split = next((s for s in (1, 2, 4) if warps * s >= device.units * 32), 8)
    splits = (split, *(s for s in (split // 2, split * 2) if 1 <= s <= 8))
    return {"rows": (rows, *(r for r in (1, 2, 4) if r != rows)), "split": splits}


def _own(form: Skinny, knobs: Knobs, device: DeviceFacts) -> Written:
    gemm = form.gemm
    name = _name(gemm, "matvec" if form.count == 1 else "skinny_mm")
    lines = [f"{t.name} = {elementwise.allocation(t, gemm.a.name)}" for t in gemm.region.outputs]
    if device.target != "cuda":
        parallel = device.units > 1 and gemm.flops > 200_000
        source, arguments = skinny_cpp.write(form, name, parallel=parallel)
        lines.append(f"kernels.{name}({', '.join(arguments)})")
        return Written({f"kernels/{name}.cpp": source}, "\n".join(lines),
                       summary="own kernel, product and epilogue in one")
    if form.along_k:
        made = skinny_cuda.write_rows(form, name, int(knobs["rows"]), int(knobs["split"]))
    else:
        made = skinny_cuda.write_columns(form, name, int(knobs["slices"]))
    lines += [elementwise.realigned(n, size) for n, size in made.aligned.items() if size > 4]
    if made.workspace:
        lines.append(f"partial = torch.empty({made.workspace}, dtype=torch.float32, "
                     f"device={gemm.a.name}.device)")
    for launch in made.launches:
        grid = launch.grid[0] if launch.grid[1] == 1 else launch.grid
        lines.append(f"kernels.{launch.name}({grid}, {skinny_cuda.THREADS}, "
                     f"{', '.join(launch.arguments)})")
    return Written({f"kernels/{name}.cu": made.source}, "\n".join(lines),
                   summary="own kernel, product and epilogue in one")


SKILL: Skill = GemmEpilogueSkill()
