"""What a skill is: an executable piece of kernel-writing knowledge for one kind of region."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Protocol

from cuda_agent.errors import SettingsError
from cuda_agent.graph.ir import Region
from cuda_agent.targets.base import DeviceFacts

Knob = int | str | bool
Knobs = dict[str, Knob]


@dataclass(frozen=True)
class KnobSpace:
    """Finite named choices. The first choice of each knob is the default (what `rules` uses)."""

    choices: dict[str, tuple[Knob, ...]]

    def default(self) -> Knobs:
        return {name: options[0] for name, options in self.choices.items()}

    def __len__(self) -> int:
        count = 1
        for options in self.choices.values():
            count *= len(options)
        return count

    def __iter__(self) -> Iterator[Knobs]:
        for values in product(*self.choices.values()):
            yield dict(zip(self.choices, values))

    def neighbours(self, knobs: Mapping[str, Knob]) -> Iterator[Knobs]:
        """All settings that differ from `knobs` in exactly one knob."""
        for name, options in self.choices.items():
            for option in options:
                if option != knobs[name]:
                    yield {**knobs, name: option}

    def validate(self, knobs: Mapping[str, Any]) -> Knobs:
        """`knobs` completed with defaults. Raises SettingsError for a knob or value not offered."""
        for name, value in knobs.items():
            if name not in self.choices:
                raise SettingsError(f"no knob {name!r}; there are {', '.join(self.choices)}")
            if value not in self.choices[name]:
                raise SettingsError(f"knob {name}={value!r}; choose from {self.choices[name]}")
        return {**self.default(), **knobs}

    def json_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {n: {"enum": list(o)} for n, o in self.choices.items()},
        }


@dataclass(frozen=True)
class Written:
    """What a skill writes for one region.

    `files` maps e.g. "kernels/r0_bias_gelu.cu" to source text. `forward` is Python, without
    indentation, that assigns every region output from the region inputs, under the graph's value
    names; in scope are `torch`, `runtime` and `kernels` (the loaded kernels). An output must have
    exactly the shape, stride and dtype of its Tensor. `libraries` names vendor libraries called.
    """

    files: dict[str, str]
    forward: str
    libraries: tuple[str, ...] = ()
    summary: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


class Skill(Protocol):
    """Skills match structure, never a problem's name, file, hash or exact benchmark shapes."""

    name: str

    def matches(self, region: Region) -> bool: ...

    def knobs(self, region: Region, device: DeviceFacts) -> KnobSpace:
        """Choices that make sense for this region on this device; `device.target` picks CUDA or
        C++. An empty `choices` dict means one way to write it."""

    def write(self, region: Region, knobs: Knobs, device: DeviceFacts) -> Written: ...
