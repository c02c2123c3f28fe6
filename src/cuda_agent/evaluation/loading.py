"""Inside the contestant: a candidate's files -> a module on the device, with the given weights."""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from cuda_agent.evaluation import layout, precision
from cuda_agent.targets.base import Arena


class Loaded:
    """A candidate in this process, and what must be undone before the next one comes.

    Attributes:
        model: built from the candidate's class, in eval mode.
        forward: what to call; `model`, or torch.compile of it for a baseline.
    """

    model: torch.nn.Module
    forward: Callable[..., Any]

    def __init__(self, request: Mapping[str, Any], device: torch.device) -> None:
        self.folder = Path(request["folder"])
        self._request = request
        self._device = device
        self._paths = [request["folder"], *request["import_roots"]]

    def load(self) -> None:
        """Import the candidate and build its model. Whatever raises, `unload` undoes it."""
        request = self._request
        os.chdir(self.folder)
        os.environ["CUDA_AGENT_CACHE"] = request["cache"]
        precision.set_flags(request["precision"])
        torch.set_num_threads(request["threads"])
        # At the end: a candidate's torch.py or numpy.py shadows nothing.
        sys.path.extend(self._paths)
        if request["form"] == "work_folder":
            _build_extension(self.folder, Path(request["cache"]))
        if request["form"] == "pickled":  # a live module, for a baseline: the judge's own file
            path = self.folder / request["entry"]
            self.model = torch.load(path, map_location=self._device, weights_only=False)
        else:
            self.model = self._from_file(request)
        self.forward = self.model
        if request["compile_mode"]:
            mode = None if request["compile_mode"] == "default" else request["compile_mode"]
            self.forward = torch.compile(self.model, mode=mode)

    def _from_file(self, request: Mapping[str, Any]) -> torch.nn.Module:
        module = _import(self.folder / request["entry"])
        kind = vars(module).get(request["class_name"])
        if not (isinstance(kind, type) and issubclass(kind, torch.nn.Module)):
            raise AttributeError(
                f"{request['entry']} defines no torch.nn.Module class {request['class_name']}"
            )
        return self._construct(kind, request)

    def _construct(
        self, kind: type[torch.nn.Module], request: Mapping[str, Any]
    ) -> torch.nn.Module:
        """Built as problems.materialize builds the reference: the same seed gives the same weights
        to a class that draws them in the same order."""
        dtype = layout.dtype_of(request["dtype"])
        failure: Exception | None = None
        for place in dict.fromkeys((self._device, torch.device("cpu"))):
            _seed(request["seed"], place)
            try:
                with place:
                    args, kwargs = _init_arguments(request)
                    model = kind(*args, **kwargs)
                break
            except Exception as error:  # an initialiser that only runs on the CPU
                failure = failure or error
        else:
            assert failure is not None
            raise failure
        model._apply(lambda t: t if t.is_meta else t.to(self._device))
        model._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)
        return model.eval()

    def set_state(self, request: Mapping[str, Any], arena: Arena) -> dict[str, Any]:
        """Copy parameters and buffers in, strictly: with names that differ nothing is changed.

        `names` are those of the state_dict; `extra` are tensors outside it, set where the model
        has an attribute of that path. Returns the names that differ.
        """
        values = layout.views(arena, request["slots"])
        count = len(request["names"])
        state = dict(zip(request["names"], values[:count]))
        own = self.model.state_dict(keep_vars=True)
        missing, unexpected = sorted(set(state) - set(own)), sorted(set(own) - set(state))
        unlike = [n for n in state if n in own and own[n].shape != state[n].shape]
        if not (missing or unexpected or unlike):
            # A clone each: the arena is given up, and no two parameters may share its memory.
            assign = bool(request["assign"])
            given = {name: t.clone() for name, t in state.items()} if assign else state
            self.model.load_state_dict(given, strict=True, assign=assign)
            for name, value in zip(request["extra"], values[count:]):
                _set_extra(self.model, name, value)
        empty = [n for n, t in self.model.state_dict(keep_vars=True).items() if t.is_meta]
        if empty:
            raise RuntimeError(f"ModelNew holds meta tensors that were given no values: {empty}")
        changed = [f"{n}: shape {list(own[n].shape)}" for n in unlike]
        return {"missing": missing[:64], "unexpected": (unexpected + changed)[:64]}

    def unload(self) -> None:
        """Forget the candidate's modules and tensors. Shared libraries stay mapped."""
        inside = str(self.folder) + os.sep
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(inside):
                del sys.modules[name]
        for path in self._paths:
            if path in sys.path:
                sys.path.remove(path)
        os.chdir("/")
        self.__dict__.pop("model", None)
        self.__dict__.pop("forward", None)
        if "torch._dynamo" in sys.modules:
            sys.modules["torch._dynamo"].reset()
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def _import(path: Path) -> ModuleType:
    """The file as a module under a name of its own."""
    name = f"candidate_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _seed(seed: int, device: torch.device) -> None:
    if device.type == "cuda":
        torch.manual_seed(seed % 2**63)
    else:
        torch.default_generator.manual_seed(seed % 2**63)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _init_arguments(request: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Constructor arguments: literals from the request, or what the problem's text makes."""
    if request["init"] is not None:
        args, kwargs = layout.rebuild(request["init"], ())
        return args, kwargs
    problem = _import(Path(request["init_from"]))
    made: Any = problem.get_init_inputs() if hasattr(problem, "get_init_inputs") else []
    if isinstance(made, Mapping):
        return [], made
    if len(made) == 2 and isinstance(made[0], (list, tuple)) and isinstance(made[1], dict):
        return made[0], made[1]
    return (made if isinstance(made, (list, tuple)) else [made]), {}


def _set_extra(model: torch.nn.Module, name: str, value: torch.Tensor) -> None:
    """Set a non-persistent buffer, or a tensor held as a plain attribute, where there is one."""
    path, _, leaf = name.rpartition(".")
    try:
        holder = model.get_submodule(path)
    except AttributeError:
        return
    old = holder._buffers.get(leaf, vars(holder).get(leaf))
    if old is None and leaf not in holder._buffers:
        return
    like = isinstance(old, torch.Tensor) and old.shape == value.shape and old.dtype == value.dtype
    if isinstance(old, torch.Tensor) and like and not old.is_meta:
        with torch.no_grad():
            old.copy_(value)
    elif leaf in holder._buffers:  # registered empty or on meta, to be filled
        holder._buffers[leaf] = value.clone()
    else:
        setattr(holder, leaf, value.clone())


def _build_extension(folder: Path, cache: Path) -> None:
    """The published work folder: binding.cpp, kernels/*.cu and *_binding.cpp -> cuda_extension."""
    from torch.utils import cpp_extension

    sources = [folder / "binding.cpp", *folder.glob("kernels/*.cu"), *folder.glob("kernels/*.cpp")]
    texts = [f"{p.name}\0{p.read_text()}" for p in sorted(sources) if p.exists()]
    key = hashlib.sha256("\0".join([torch.__version__, *texts]).encode()).hexdigest()[:16]
    build = cache / "extensions" / key
    build.mkdir(parents=True, exist_ok=True)
    sys.modules["cuda_extension"] = cpp_extension.load(
        name="cuda_extension",
        sources=[str(p) for p in sorted(sources) if p.exists()],
        extra_include_paths=[str(folder), str(folder / "kernels")],
        extra_cuda_cflags=["-O3"],
        build_directory=str(build),
        with_cuda=True,
    )
