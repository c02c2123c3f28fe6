"""An episode as one append-only stream of text: opening, call, feedback, call, feedback, ...

The opening describes the task, a call is the JSON tool call of any policy, feedback is the judge's
answer in a line. Calls hold only what departs from the default plan, so that they stay short; an
LLM may write a full plan by the same schema. Special tokens (tokenizer.py) stand between the parts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from cuda_agent.policies.base import Step, ToolCall
from cuda_agent.policies.space import Choices, PlanSpace
from cuda_agent.policies.task import Task

DETAIL_CHARACTERS = 160
"""Of the judge's text on a failure, so much is shown."""

MAX_OPS = 12
"""Of a region's operations, so many are named."""

_SHORT = {
    "float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64",
    "int64": "i64", "int32": "i32", "bool": "b1",
}
_BASELINES = {
    "eager": "eager", "compile_default": "compile", "compile_reduce_overhead": "reduce_overhead",
    "compile_max_autotune": "autotune",
}


def opening(task: Task) -> str:
    """Device, baselines and choices of the whole graph, then each region with its skills and knobs.

    Options are separated by "|", the default first. A set of skills that an earlier region offers
    as well is named by that region ("like r0").
    """
    lines = [_device(task), _baselines(task.baselines_ms)]
    if choices := _choices(task.space.graph):
        lines.append(f"graph {choices}")
    shown: dict[str, str] = {}
    views = 0
    for region, detail in task.regions.items():
        skills = task.space.regions.get(region)
        if skills is None:
            views += 1
            continue
        lines.append(f"{region} {_region(detail)}")
        text = "\n".join(f"+{name} {_choices(knobs)}".rstrip() for name, knobs in skills.items())
        lines.append(f"like {shown[text]}" if text in shown else text)
        shown.setdefault(text, region)
    lines.append(f"views {views}")
    return "\n".join(lines) + "\n"


def feedback(step: Step) -> str:
    """Status; for a correct candidate its time in ms and the lower ends of its speed-ups, for
    others the first words of what the judge said."""
    verdict = step.verdict
    if verdict is None or not verdict.ok:
        text = " ".join(step.detail.split())[:DETAIL_CHARACTERS]
        return f"{step.status} {text}".rstrip() + "\n"
    parts = [step.status]
    if verdict.timing is not None:
        parts.append(f"ms={number(verdict.timing.median_ms)}")
    for name, short in _BASELINES.items():
        interval = verdict.speedup.get(name)
        if interval is not None:
            parts.append(f"{short}={interval.low:.2f}")
    return " ".join(parts) + "\n"


def call_text(call: ToolCall, space: PlanSpace) -> str:
    """Compact JSON of a call. A plan is cut to what departs from the default.

    Raises SettingsError for a plan outside the space.
    """
    arguments = dict(call.arguments)
    if call.name == "apply_plan":
        arguments["plan"] = space.difference(arguments["plan"])
    return compact({"name": call.name, "arguments": arguments})


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value <= 0 or not math.isfinite(value):
        return "0"
    digits = max(0, 2 - math.floor(math.log10(value)))
    return f"{value:.{digits}f}"


def _device(task: Task) -> str:
    device = task.device
    parts = [
        f"{device.target} {device.arch} units={device.units} vector={device.vector_bytes}",
        f"cache={_log2(device.cache_bytes)}",
    ]
    if device.peak_bytes_per_s:
        parts.append(f"GBs={number(device.peak_bytes_per_s / 1e9)}")
    for name, rate in sorted(device.matrix_flops_per_s.items()):
        parts.append(f"{name}={number(rate / 1e12)}")
    if device.launch_s:
        parts.append(f"launch={number(device.launch_s * 1e6)}")
    short = _SHORT.get(task.dtype, task.dtype)
    return " ".join([*parts, f"dtype={short} precision={task.precision} track={task.track}"])


def _baselines(times_ms: Mapping[str, float]) -> str:
    known = [f"{s}={number(times_ms[n])}" for n, s in _BASELINES.items() if n in times_ms]
    return " ".join(["ms", *(known or ["unknown"])])


def _region(detail: Mapping[str, Any]) -> str:
    ops = list(detail["ops"])
    names = ",".join(ops[:MAX_OPS]) + (f",+{len(ops) - MAX_OPS}" if len(ops) > MAX_OPS else "")
    parts = [detail["kind"], names, _dims(detail["space"])]
    if detail["reduce_dims"]:
        parts.append("over " + ",".join(str(dim) for dim in detail["reduce_dims"]))
    parts.append(f"bytes={_log2(detail['bytes_moved'])}")
    for mark, tensors in (("in", detail["inputs"]), ("out", detail["outputs"])):
        parts.append(f"{mark} {_tensors(list(tensors.values()))}".rstrip())
    return " ".join(part for part in parts if part)


def _tensors(tensors: Sequence[Mapping[str, Any]]) -> str:
    texts = []
    for tensor in tensors[:6]:
        short = _SHORT.get(tensor["dtype"], tensor["dtype"])
        shape = _dims(tensor["shape"]) or "scalar"
        texts.append(shape if short == "f32" else f"{shape}:{short}")
    return ",".join(texts)


def _dims(shape: Sequence[int]) -> str:
    return "*".join(str(size) for size in shape)


def _choices(choices: Choices) -> str:
    """Only what is open: a knob with one option leaves nothing to say."""
    return " ".join(
        f"{name}={'|'.join(_value(option) for option in options)}"
        for name, options in choices.items()
        if len(options) > 1
    )


def _value(option: Any) -> str:
    return option if isinstance(option, str) else compact(option)


def _log2(count: float) -> str:
    return f"2^{math.log2(max(1, count)):.1f}"
