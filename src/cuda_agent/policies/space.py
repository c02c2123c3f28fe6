"""All plans for one graph on one device: choices of the whole graph, and for each region a skill
with its knobs. What a policy explores."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cuda_agent.errors import SettingsError

Plan = dict[str, Any]
Choices = dict[str, tuple[Any, ...]]


def plan_key(plan: Plan) -> str:
    """Equal for equal plans, whatever the order of their keys."""
    return json.dumps(plan, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class PlanSpace:
    """`graph` maps a choice of the whole graph to its options; `regions` a region's id to its
    skills, each with the options of its knobs. First option = default everywhere."""

    graph: Choices
    regions: dict[str, dict[str, Choices]]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlanSpace:
        """From what `agents.workspace.plan_space` returns."""
        return cls(
            _choices(data.get("graph", {})),
            {
                region: {skill: _choices(knobs) for skill, knobs in skills.items()}
                for region, skills in data.get("regions", {}).items()
            },
        )

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return {
            "graph": {name: list(options) for name, options in self.graph.items()},
            "regions": {
                region: {
                    skill: {name: list(options) for name, options in knobs.items()}
                    for skill, knobs in skills.items()
                }
                for region, skills in self.regions.items()
            },
        }

    def difference(self, plan: Plan) -> Plan:
        """The shortest plan that `complete` turns into the same: only what is not the default."""
        full, default = self.complete(plan), self.default()
        graph = {n: v for n, v in full["graph"].items() if v != default["graph"][n]}
        regions: dict[str, Any] = {}
        for region, choice in full["regions"].items():
            if choice == default["regions"][region]:
                continue
            usual = self.region_default(region, choice["skill"])["knobs"]
            knobs = {n: v for n, v in choice["knobs"].items() if v != usual[n]}
            regions[region] = {"skill": choice["skill"], **({"knobs": knobs} if knobs else {})}
        return {**({"graph": graph} if graph else {}), "regions": regions}

    def __len__(self) -> int:
        count = 1
        for options in self.graph.values():
            count *= len(options)
        for skills in self.regions.values():
            count *= sum(_size(knobs) for knobs in skills.values())
        return count

    def default(self) -> Plan:
        return {
            "graph": {name: options[0] for name, options in self.graph.items()},
            "regions": {
                region: self.region_default(region, next(iter(skills)))
                for region, skills in self.regions.items()
            },
        }

    def region_default(self, region: str, skill: str) -> dict[str, Any]:
        knobs = self.regions[region][skill]
        return {"skill": skill, "knobs": {name: options[0] for name, options in knobs.items()}}

    def complete(self, plan: Plan) -> Plan:
        """`plan` with defaults for what it leaves open. Raises SettingsError for what is not in
        this space."""
        full = self.default()
        for name, value in plan.get("graph", {}).items():
            _check(self.graph, name, value, "graph choice")
            full["graph"][name] = value
        for region, choice in plan.get("regions", {}).items():
            if region not in self.regions:
                raise SettingsError(f"no region {region!r}; there are {', '.join(self.regions)}.")
            skill = choice["skill"]
            if skill not in self.regions[region]:
                offered = ", ".join(self.regions[region])
                raise SettingsError(f"no skill {skill!r} for region {region}; use {offered}.")
            settled = self.region_default(region, skill)
            for name, value in choice.get("knobs", {}).items():
                _check(self.regions[region][skill], name, value, f"knob of {skill}")
                settled["knobs"][name] = value
            full["regions"][region] = settled
        return full

    def at(self, index: int) -> Plan:
        """Plan number `index` of len(self); number 0 is the default."""
        graph, index = _take(self.graph, index)
        plan: Plan = {"graph": graph, "regions": {}}
        for region, skills in self.regions.items():
            index, number = divmod(index, sum(map(_size, skills.values())))
            for skill, knobs in skills.items():
                if number < _size(knobs):
                    plan["regions"][region] = {"skill": skill, "knobs": _take(knobs, number)[0]}
                    break
                number -= _size(knobs)
        if index:
            raise IndexError(f"there is no such plan; there are {len(self)}")
        return plan

    def index(self, plan: Plan) -> int:
        """The number of a plan, see `at`. Raises SettingsError for what is not in this space."""
        full = self.complete(plan)
        index, base = _number(self.graph, full["graph"]), _size(self.graph)
        for region, skills in self.regions.items():
            choice, before = full["regions"][region], 0
            for skill, knobs in skills.items():
                if skill == choice["skill"]:
                    index += base * (before + _number(knobs, choice["knobs"]))
                before += _size(knobs)
            base *= before
        return index

    def random(self, rng: random.Random) -> Plan:
        """Uniform over the graph's options and over the skills and knobs of every region."""
        plan: Plan = {"graph": {n: rng.choice(o) for n, o in self.graph.items()}, "regions": {}}
        for region, skills in self.regions.items():
            skill = rng.choices(list(skills), [_size(k) for k in skills.values()])[0]
            knobs = {n: rng.choice(o) for n, o in skills[skill].items()}
            plan["regions"][region] = {"skill": skill, "knobs": knobs}
        return plan

    def neighbours(self, plan: Plan) -> Iterator[Plan]:
        """All plans that differ in one graph choice, one knob, or one region's skill (which then
        has its default knobs)."""
        for name, options in self.graph.items():
            for option in options:
                if option != plan["graph"][name]:
                    yield {**plan, "graph": {**plan["graph"], name: option}}
        for region in self.regions:
            for choice in self.moves(region, plan["regions"][region]):
                yield with_region(plan, region, choice)

    def moves(self, region: str, current: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Choices for one region that differ from `current` in one knob or in the skill."""
        for skill, knobs in self.regions[region].items():
            if skill != current["skill"]:
                yield self.region_default(region, skill)
                continue
            for name, options in knobs.items():
                for option in options:
                    if option != current["knobs"][name]:
                        yield {"skill": skill, "knobs": {**current["knobs"], name: option}}


def with_region(plan: Plan, region: str, choice: dict[str, Any]) -> Plan:
    return {**plan, "regions": {**plan["regions"], region: choice}}


def _choices(data: Mapping[str, Sequence[Any]]) -> Choices:
    return {name: tuple(options) for name, options in data.items()}


def _size(knobs: Choices) -> int:
    count = 1
    for options in knobs.values():
        count *= len(options)
    return count


def _take(choices: Choices, number: int) -> tuple[dict[str, Any], int]:
    """Options by mixed radix, the first choice being the lowest digit; what is left of `number`."""
    taken = {}
    for name, options in choices.items():
        number, digit = divmod(number, len(options))
        taken[name] = options[digit]
    return taken, number


def _number(choices: Choices, taken: Mapping[str, Any]) -> int:
    number, base = 0, 1
    for name, options in choices.items():
        number += base * options.index(taken[name])
        base *= len(options)
    return number


def _check(choices: Choices, name: str, value: Any, what: str) -> None:
    if name not in choices:
        raise SettingsError(f"no {what} {name!r}; there are {', '.join(choices) or 'none'}.")
    if value not in choices[name]:
        raise SettingsError(f"{what} {name}={value!r}; choose from {list(choices[name])}.")
