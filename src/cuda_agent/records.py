"""The five nouns: Problem, Candidate, Verdict, Episode, Run.

Records are frozen, versioned and go to JSON and back. Each holds the hash of the one before it,
so that a table row can be followed back to the source that was measured. They refuse
contradictions: a timing exists only on a verdict that is `ok`. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

SCHEMA_VERSION = 1

Status = Literal[
    "ok",
    "compile_error",
    "runtime_error",
    "wrong",
    "timeout",
    "out_of_memory",
    "cheating",
    "invalid_problem",
    "harness_error",
]
Tier = Literal["screen", "audit"]
Track = Literal["library", "kernels"]
Precision = Literal["strict", "matched", "paper"]
Baseline = Literal["eager", "compile_default", "compile_reduce_overhead", "compile_max_autotune"]
BASELINES: tuple[str, ...] = get_args(Baseline)
DTYPES = ("float32", "bfloat16", "float16")


def content_hash(*parts: object) -> str:
    """SHA-256 (first 16 hex digits) over the canonical JSON of `parts`."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Record:
    """JSON in and out for frozen dataclasses. Unknown keys are refused, missing ones defaulted."""

    def to_json(self) -> dict[str, Any]:
        return _plain(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return typing.cast(Self, _decode(cls, data))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def _decode(kind: Any, data: Any) -> Any:
    origin = typing.get_origin(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(data, Mapping):
        hints = typing.get_type_hints(kind)
        if unknown := set(data) - set(hints):
            raise ValueError(f"{kind.__name__}: unknown keys {sorted(unknown)}")
        return kind(**{k: _decode(hints[k], v) for k, v in data.items()})
    if origin in (typing.Union, types.UnionType):
        if data is None:
            return None
        return _decode(next(a for a in get_args(kind) if a is not type(None)), data)
    if origin is tuple:
        return tuple(_decode(get_args(kind)[0], v) for v in data)
    if origin is dict:
        return {k: _decode(get_args(kind)[1], v) for k, v in data.items()}
    return data


@dataclass(frozen=True)
class Problem(Record):
    """A module to make faster, as KernelBench-format Python text.

    The text defines `Model`, `get_inputs()` and `get_init_inputs()`. `kind` is `live` for a module
    object that the caller holds; its text then only documents it, and `fingerprint` identifies it.
    """

    name: str
    source: str
    origin: str
    dtype: str = "float32"
    kind: Literal["file", "live"] = "file"
    fingerprint: str = ""

    @property
    def hash(self) -> str:
        return content_hash(self.source, self.dtype, self.kind, self.fingerprint)


@dataclass(frozen=True)
class Candidate(Record):
    """Files that claim to solve a problem. `files` maps relative paths to text.

    `plan` is set when our own skills wrote the files; `trusted` then lets the judge reuse a warm
    contestant process, because such files hold no foreign Python.
    """

    problem_hash: str
    files: dict[str, str]
    author: str = "unknown"
    plan: dict[str, Any] | None = None
    trusted: bool = False

    @property
    def hash(self) -> str:
        return content_hash(self.problem_hash, self.files)


@dataclass(frozen=True)
class Finding(Record):
    """Something the judge saw. `id` is a rule of docs/threat-model.md or a harness code."""

    id: str
    detail: str


@dataclass(frozen=True)
class Interval(Record):
    """A median with its 95% confidence interval."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"Interval: {self.low} <= {self.value} <= {self.high} does not hold")


@dataclass(frozen=True)
class Timing(Record):
    """Milliseconds per call. `method` names the clock and what surrounded each sample."""

    median_ms: float
    low_ms: float
    high_ms: float
    samples_ms: tuple[float, ...]
    method: str


@dataclass(frozen=True)
class Mismatch(Record):
    """The first element that is wrong, and how the wrong ones lie."""

    output: str
    index: tuple[int, ...]
    got: float | str
    expected: float | str
    wrong_elements: int
    total_elements: int
    pattern: str = ""


@dataclass(frozen=True)
class ErrorReport(Record):
    """Largest error over all checked inputs.

    `relative` is ||out - ref|| / ||ref - mean(ref)||, so that no constant passes (over ||ref||
    where the spread is no scale), `absolute` the largest difference, `against` the reference (e.g.
    "float64 eager"), `eager` the relative error of eager itself against the same reference, `bound`
    the largest relative error that would have passed. `wrong_on` and `right_on` are the styles of
    inputs ("random", "zeros", ...) on which some or no output was wrong; empty unless one was.
    """

    relative: float
    absolute: float
    against: str
    eager: float | None = None
    bound: float | None = None
    inputs_checked: int = 0
    mismatch: Mismatch | None = None
    wrong_on: tuple[str, ...] = ()
    right_on: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnostic(Record):
    """The first error of a compiler. `file` is the candidate's, `line` and `column` count from 1;
    all three may be unknown. `source` is the line, and `caret` marks the place under it."""

    message: str
    file: str = ""
    line: int | None = None
    column: int | None = None
    source: str = ""
    caret: str = ""
    note: str = ""


@dataclass(frozen=True)
class Activity(Record):
    """One forward as the device's tracer saw it: milliseconds in which anything ran, launches of
    kernels and copies, streams that were used, and launches by name."""

    device_ms: float
    launches: int
    streams: int
    kernels: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Counters(Record):
    """Events of one forward by name, counted apart from what is timed. `missing` says what could
    not be had, and why; "" where all could."""

    tool: str
    missing: str = ""
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Sanitizer(Record):
    """What memory checkers found, in a run of its own. `tool` names them; `missing` says why there
    was no run, "" where there was one. No findings in a run: nothing was found on its inputs."""

    tool: str
    missing: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class KernelUse(Record):
    """What one kernel takes: registers and spilled bytes of a thread, static shared memory of a
    block. `occupancy` is the theoretical share of resident threads with blocks of `block` threads
    and no dynamic shared memory; `bounded`: `block` is the source's launch bound, else assumed.
    `limited_by`: "threads", "blocks", "registers" or "shared memory"."""

    name: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int
    block: int
    bounded: bool
    occupancy: float
    limited_by: str


@dataclass(frozen=True)
class Roofline(Record):
    """The problem's work over the measured time, and this device's measured peaks.

    `bytes`: inputs, parameters and outputs once; `flops`: of products, convolutions and attention.
    `floor_ms` is the least time by what `bound` names, `share` = floor / time. None where nothing
    was measured or counted.
    """

    bytes: int
    flops: int | None
    bytes_per_s: float
    flops_per_s: float | None
    peak_bytes_per_s: float | None
    peak_flops_per_s: float | None
    bound: Literal["memory", "compute", "launch", "unknown"]
    floor_ms: float | None
    share: float | None


@dataclass(frozen=True)
class Verdict(Record):
    """What the judge says of one candidate. A timing exists only when `status` is `ok`."""

    status: Status
    problem: str
    problem_hash: str
    candidate_hash: str
    target: str
    tier: Tier
    track: Track
    precision: Precision
    dtype: str
    findings: tuple[Finding, ...] = ()
    error: ErrorReport | None = None
    speedup: dict[str, Interval | None] = field(default_factory=lambda: dict.fromkeys(BASELINES))
    timing: Timing | None = None
    baselines: dict[str, Timing | None] = field(default_factory=lambda: dict.fromkeys(BASELINES))
    floor_ms: float | None = None
    energy_mj: float | None = None
    activity: Activity | None = None
    diagnostic: Diagnostic | None = None
    kernels: tuple[KernelUse, ...] = ()
    roofline: Roofline | None = None
    sanitizer: Sanitizer | None = None
    counters: Counters | None = None
    external_ops: tuple[str, ...] = ()
    feedback: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise ValueError(f"Verdict: no such status {self.status!r}")
        timed = self.timing is not None or any(v is not None for v in self.speedup.values())
        if self.status != "ok" and timed:
            raise ValueError(f"Verdict: a timing beside status {self.status!r}")

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def hash(self) -> str:
        return content_hash(self.to_json())


@dataclass(frozen=True)
class Turn(Record):
    """One action of a policy and what came of it."""

    action: dict[str, Any]
    candidate_hash: str | None
    verdict_hash: str | None
    status: str
    seconds: float


@dataclass(frozen=True)
class Episode(Record):
    """A policy's attempts at one problem, in order."""

    problem_hash: str
    policy: str
    seed: int
    turns: tuple[Turn, ...] = ()
    best_candidate_hash: str | None = None
    best_verdict_hash: str | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def hash(self) -> str:
        return content_hash(self.to_json())


@dataclass(frozen=True)
class Run(Record):
    """One invocation of `optimize` or `bench`: what was asked for, and where it stands."""

    id: str
    command: str
    problem: Problem
    settings: dict[str, Any]
    created: str
    environment: dict[str, str] = field(default_factory=dict)
    finished: bool = False
    schema_version: int = SCHEMA_VERSION
