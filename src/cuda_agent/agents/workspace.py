"""A plan becomes a candidate: each region written by its skill, or left to torch.

A plan is JSON: {"graph": {choice: value}, "regions": {"r0": {"skill": name, "knobs": {...}}}}. What
it leaves open takes the default: the first skill that applies, with its default knobs. "torch" is
the pseudo-skill that every region has.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cuda_agent import runtime
from cuda_agent.agents.codegen import Piece, model_source
from cuda_agent.agents.torchcode import external, torch_lines
from cuda_agent.errors import SettingsError
from cuda_agent.graph.ir import Graph, Region
from cuda_agent.records import Candidate, Problem
from cuda_agent.skills.base import KnobSpace, Skill, Written
from cuda_agent.skills.whole_graph.choices import graph_choices
from cuda_agent.targets.base import DeviceFacts

TORCH = "torch"
Plan = dict[str, Any]


def plan_space(graph: Graph, device: DeviceFacts) -> dict[str, Any]:
    """Every choice for this graph on this device, JSON-ready; the first option is the default.

    {"graph": {choice: [options]}, "regions": {id: {skill: {knob: [options]}}}, "details": {id:
    what the region computes}}. Regions that only look at memory differently leave no choice and
    are found in "details" alone.
    """
    regions = {
        region.id: {
            name: {knob: list(options) for knob, options in space.choices.items()}
            for name, space in _choices(region, device).items()
        }
        for region in graph.regions
        if region.kind != "view"
    }
    return {
        "graph": {name: list(options) for name, options in _graph_choices(graph, device).items()},
        "regions": regions,
        "details": {region.id: _detail(region) for region in graph.regions},
    }


def default_plan(graph: Graph, device: DeviceFacts) -> Plan:
    """The first skill of each region with its default knobs."""
    return _complete(graph, {}, device)


def assemble(
    problem: Problem, graph: Graph, plan: Mapping[str, Any], device: DeviceFacts
) -> Candidate:
    """The solution that `plan` describes, as files. `candidate.plan` is the completed plan and
    "external_ops": what others' libraries compute in it.

    Raises SettingsError for a choice that does not exist, naming those that do, and for one that
    its skill cannot write.
    """
    full = _complete(graph, plan, device)
    device_type = "cuda" if device.target == "cuda" else "cpu"
    source_device = next(iter((*graph.input_values, *graph.attributes)), "")
    where = f"{source_device}.device" if source_device else f'"{device_type}"'
    files: dict[str, str] = {}
    pieces: list[Piece] = []
    libraries: list[str] = []
    for region in graph.regions:
        choice = full["regions"].get(region.id, {"skill": TORCH, "knobs": {}})
        if choice["skill"] == TORCH:
            outside = {tensor.name for tensor in region.outputs}
            lines = torch_lines(region.ops, region.values, outside, where)
            libraries += external(region.ops)
            pieces.append(Piece(region, tuple(lines), _torch_comment(region)))
            continue
        written = _write(region, choice, device)
        files |= written.files
        libraries += written.libraries
        pieces.append(Piece(region, (written.forward,), written.summary or choice["skill"]))
    external_ops = sorted(set(libraries))
    files["model_new.py"] = model_source(
        problem, graph, pieces, device_type,
        has_kernels=bool(files),
        cuda_graph=full["graph"]["cuda_graph"],
        header=_header(external_ops, device),
    )
    if problem.kind == "file":
        files["reference.py"] = problem.source
    needed = runtime.FILES if "runtime.matmul" in files["model_new.py"] else runtime.FILES[:1]
    folder = Path(runtime.__file__).parent
    files |= {name: (folder / name).read_text(encoding="utf-8") for name in needed}
    return Candidate(
        problem.hash, files, author="cuda-agent", plan={**full, "external_ops": external_ops},
        trusted=True,
    )


# --- plans ------------------------------------------------------------------------------------


def _skills(region: Region, device: DeviceFacts) -> list[Skill]:
    from cuda_agent.skills import applicable

    return [] if region.kind == "view" else applicable(region, device)


def _choices(region: Region, device: DeviceFacts) -> dict[str, KnobSpace]:
    found = {skill.name: skill.knobs(region, device) for skill in _skills(region, device)}
    return {**found, TORCH: KnobSpace({})}


def _graph_choices(graph: Graph, device: DeviceFacts) -> dict[str, tuple[Any, ...]]:
    """`fold` was settled when the graph was captured."""
    kernels = [region for region in graph.regions if region.kind != "view"]
    space = graph_choices(
        device,
        folded=bool(graph.derived),
        bytes_moved=sum(region.bytes_moved for region in kernels),
        kernels=len(kernels),
    )
    return dict(space.choices)


def _complete(graph: Graph, plan: Mapping[str, Any], device: DeviceFacts) -> Plan:
    """`plan` with every open choice settled. Raises SettingsError for what does not exist."""
    _check_keys("plan", plan, ("graph", "regions", "external_ops"))
    wanted = _mapping("plan's graph", plan.get("graph", {}))
    options = _graph_choices(graph, device)
    _check_keys("plan's graph", wanted, tuple(options))
    settled: dict[str, Any] = {}
    for name, values in options.items():
        settled[name] = wanted.get(name, values[0])
        if settled[name] not in values or type(settled[name]) is not type(values[0]):
            raise SettingsError(
                f"graph choice {name}={settled[name]!r}; choose from {list(values)}")
    given = _mapping("plan's regions", plan.get("regions", {}))
    _check_keys("plan's regions", given, tuple(region.id for region in graph.regions))
    regions = {
        region.id: _settle(region, _mapping(region.id, given.get(region.id, {})), device)
        for region in graph.regions
        if region.kind != "view" or region.id in given
    }
    return {"graph": settled, "regions": regions}


def _settle(region: Region, choice: Mapping[str, Any], device: DeviceFacts) -> dict[str, Any]:
    _check_keys(f"region {region.id}", choice, ("skill", "knobs"))
    offered = _choices(region, device)
    name = choice.get("skill", next(iter(offered)))
    if name not in offered:
        raise SettingsError(
            f"no skill {name!r} for region {region.id} ({region.kind}); use {', '.join(offered)}"
        )
    knobs = _mapping(f"knobs of region {region.id}", choice.get("knobs", {}))
    try:
        return {"skill": name, "knobs": offered[name].validate(knobs)}
    except SettingsError as error:
        raise SettingsError(f"region {region.id}, skill {name}: {error}") from None


def _mapping(what: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SettingsError(f"{what} is a {type(value).__name__}; give an object")
    return value


def _check_keys(what: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise SettingsError(f"{what} has no {name!r}; there are {', '.join(known)}")


def _write(region: Region, choice: Mapping[str, Any], device: DeviceFacts) -> Written:
    from cuda_agent.skills import all_skills

    try:
        return all_skills()[choice["skill"]].write(region, dict(choice["knobs"]), device)
    except SettingsError as error:
        raise SettingsError(f"region {region.id}, skill {choice['skill']}: {error}") from None


# --- descriptions -----------------------------------------------------------------------------


def _detail(region: Region) -> dict[str, Any]:
    return {
        "kind": region.kind,
        "ops": list(region.op_names),
        "space": list(region.space),
        "reduce_dims": list(region.reduce_dims),
        "inputs": {t.name: {"shape": list(t.shape), "dtype": t.dtype} for t in region.inputs},
        "outputs": {t.name: {"shape": list(t.shape), "dtype": t.dtype} for t in region.outputs},
        "bytes_moved": region.bytes_moved,
    }


def _torch_comment(region: Region) -> str:
    names = list(dict.fromkeys(op.name.strip("_") for op in region.ops))
    shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    return f"{shown} (views)" if region.kind == "view" else f"{shown} by torch"


def _header(external_ops: list[str], device: DeviceFacts) -> list[str]:
    lines = [f"Built for {device.name}. Shapes and dtypes are fixed: other inputs are refused."]
    if external_ops:
        lines.append(f"Computed by torch or vendor libraries: {', '.join(external_ops)}.")
    return lines
