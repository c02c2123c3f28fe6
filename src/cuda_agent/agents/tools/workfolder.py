"""The work folder of an episode: what is in it at the start, and what stays as it is."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuda_agent.agents.tools.folder import Folder, PathRefused
from cuda_agent.agents.tools.judging import REFERENCE, Bench
from cuda_agent.errors import OutputError, SettingsError
from cuda_agent.evaluation import forms
from cuda_agent.policies import PlanSpace
from cuda_agent.skills.reading import GUIDE, documents
from cuda_agent.targets import DeviceFacts

MODEL = "model.py"
FROZEN = (MODEL, REFERENCE, "runtime.py", "runtime_gemm.py", "SKILL.md", "skills", "device.json",
          "plans.json")  # fmt: skip


def prepare(
    root: Path, bench: Bench, facts: DeviceFacts, regions: Sequence[dict[str, Any]] = ()
) -> Path:
    """Makes what is missing, and changes nothing that is there. Returns the folder.

    Raises SettingsError where a file of ours has another content there, OutputError where the
    folder cannot be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder = Folder(root)
        for name, text in _texts(bench, facts, regions).items():
            if not folder.exists(name):
                folder.write(name, text)
            elif name in (MODEL, REFERENCE) and folder.text(name) != text:
                raise SettingsError(
                    f"{root / name} is not the problem {bench.problem.name}; give a folder of its "
                    "own to each problem."
                )
        for name in ("kernels", "outputs"):
            folder.make_folder(name)
    except PathRefused as error:
        raise SettingsError(f"{root} cannot be the work folder: {error}.") from None
    except OSError as error:
        raise OutputError(f"{root} cannot be written ({error.strerror or error}).") from error
    return root


def restore(folder: Folder, bench: Bench) -> None:
    """The problem's text as it was: where the kernel allows no read-only mount, a command may have
    changed it. The judge never reads it, but the model would be misled."""
    if bench.problem.kind != "file":
        return
    for name in (MODEL, REFERENCE):
        try:
            same = folder.text(name) == bench.problem.source
        except (PathRefused, FileNotFoundError):
            same = False
        if not same:
            with contextlib.suppress(PathRefused):  # a folder in its place: the judge needs none
                folder.write(name, bench.problem.source)


def _texts(
    bench: Bench, facts: DeviceFacts, regions: Sequence[dict[str, Any]]
) -> dict[str, str]:
    texts = {MODEL: bench.problem.source, **forms.own_runtime()}
    if bench.problem.kind == "file":
        texts[REFERENCE] = bench.problem.source
    for document in documents().values():
        place = "SKILL.md" if document.name == GUIDE else f"skills/{document.name}/SKILL.md"
        texts[place] = document.text
    texts["device.json"] = json.dumps(dataclasses.asdict(facts), indent=1) + "\n"
    if bench.space is not None and regions:
        texts["plans.json"] = plans_text(bench.space, regions)
    return texts


def plans_text(space: PlanSpace, regions: Sequence[dict[str, Any]]) -> str:
    """plans.json: what each region computes, and every choice there is."""
    plans = {"regions": list(regions), "choices": space.to_json()}
    return json.dumps(plans, indent=1) + "\n"
