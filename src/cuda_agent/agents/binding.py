"""A solution of a live module, in this process, on the parameters of a module like it."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from torch import nn

from cuda_agent.agents.optimize import cache_dir
from cuda_agent.agents.solution import solution_files
from cuda_agent.errors import CandidateError
from cuda_agent.problems import Instance
from cuda_agent.records import Candidate
from cuda_agent.store import write_file


def bind(candidate: Candidate, module: nn.Module, instance: Instance) -> nn.Module:
    """ModelNew in eval mode, holding the very parameters and buffers of `module`.

    Only files that our own skills wrote for a live module are run here. Raises CandidateError for
    others.
    """
    if not candidate.trusted or instance.problem.kind != "live":
        raise CandidateError("only solutions of our own skills are loaded into this process.")
    made: nn.Module = _load(candidate, instance).ModelNew.adopt(module)
    return made.eval()


def _load(candidate: Candidate, instance: Instance) -> ModuleType:
    """model_new.py from a folder named by its content, which stays: kernels load lazily."""
    files = solution_files(instance.problem, candidate)
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
    name = f"cuda_agent_solution_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    folder = cache_dir() / "solutions" / digest
    for path, text in files.items():
        _place(folder / path, text)
    spec = importlib.util.spec_from_file_location(name, folder / "model_new.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _place(path: Path, text: str) -> None:
    data = text.encode()
    if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, data)
