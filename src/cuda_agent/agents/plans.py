"""Plans over a captured graph: what can be chosen, the default, and the check of a given one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuda_agent.errors import SettingsError
from cuda_agent.graph import Graph, Region
from cuda_agent.skills import KnobSpace, Skill, all_skills
from cuda_agent.targets.base import DeviceFacts

TORCH = "torch"
"""The pseudo-skill of every region: its ops stay torch calls."""

Plan = dict[str, Any]


def region_skills(region: Region, device: DeviceFacts) -> dict[str, KnobSpace]:
    """Skills that can write `region` here with their knobs, "torch" last."""
    spaces: dict[str, KnobSpace] = {}
    if region.kind not in ("view", "torch") or _has_specialist(region):
        for name, skill in all_skills().items():
            space = _knobs(skill, region, device)
            if space is not None:
                spaces[name] = space
    spaces[TORCH] = KnobSpace({})
    return spaces


def _has_specialist(region: Region) -> bool:
    return any(skill.matches(region) for skill in all_skills().values())


def _knobs(skill: Skill, region: Region, device: DeviceFacts) -> KnobSpace | None:
    if not skill.matches(region):
        return None
    space = skill.knobs(region, device)
    return space if len(space) else None


def graph_choices(device: DeviceFacts) -> dict[str, list[Any]]:
    """Choices of the whole graph; the first is the default."""
    return {"cuda_graph": [False, True]} if device.target == "cuda" else {}


def plan_space(graph: Graph, device: DeviceFacts) -> dict[str, Any]:
    """Every choice, JSON-ready: {"graph": {name: options}, "regions": {id: {skill: {knob:
    options}}}}. Regions that only torch can run are left out: there is nothing to choose."""
    regions: dict[str, Any] = {}
    for region in graph.regions:
        spaces = region_skills(region, device)
        if len(spaces) > 1:
            regions[region.id] = {
                skill: {knob: list(options) for knob, options in space.choices.items()}
                for skill, space in spaces.items()
            }
    return {"graph": graph_choices(device), "regions": regions}


def default_plan(graph: Graph, device: DeviceFacts) -> Plan:
    """The first skill that can write each region, with its default knobs."""
    return complete({}, graph, device)


def complete(plan: Mapping[str, Any], graph: Graph, device: DeviceFacts) -> Plan:
    """`plan` with defaults for all that it leaves open.

    Raises SettingsError for a region, skill, knob or graph choice that is not offered, and names
    those that are.
    """
    unknown = sorted(set(plan) - {"graph", "regions"})
    if unknown:
        raise SettingsError(f"a plan has the keys graph and regions, not {', '.join(unknown)}.")
    return {
        "graph": _complete_graph(plan.get("graph") or {}, device),
        "regions": _complete_regions(plan.get("regions") or {}, graph, device),
    }


def _complete_graph(given: Mapping[str, Any], device: DeviceFacts) -> dict[str, Any]:
    choices = graph_choices(device)
    settled = {name: options[0] for name, options in choices.items()}
    for name, value in given.items():
        if name not in choices:
            offered = ", ".join(choices) or "none on this device"
            raise SettingsError(f"no graph choice {name!r}; there are {offered}.")
        if value not in choices[name]:
            raise SettingsError(f"graph choice {name}={value!r}; choose from {choices[name]}.")
        settled[name] = value
    return settled


def _complete_regions(
    given: Mapping[str, Any], graph: Graph, device: DeviceFacts
) -> dict[str, dict[str, Any]]:
    ids = [region.id for region in graph.regions]
    for name in given:
        if name not in ids:
            raise SettingsError(f"no region {name!r}; there are {', '.join(ids)}.")
    settled: dict[str, dict[str, Any]] = {}
    for region in graph.regions:
        spaces = region_skills(region, device)
        choice = given.get(region.id) or {}
        skill = choice.get("skill", next(iter(spaces)))
        if skill not in spaces:
            offered = ", ".join(spaces)
            raise SettingsError(f"no skill {skill!r} for region {region.id}; use {offered}.")
        try:
            knobs = spaces[skill].validate(choice.get("knobs") or {})
        except SettingsError as error:
            raise SettingsError(f"region {region.id}, skill {skill}: {error}") from None
        settled[region.id] = {"skill": skill, "knobs": knobs}
    return settled
