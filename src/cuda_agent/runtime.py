"""What an exported solution needs at run time: build `kernels/`, call them, guard the forward.

This file is copied beside `model_new.py`, and `runtime_gemm.py` with it for `runtime.matmul`. They
import the standard library and torch, on a GPU cuda-core for NVRTC, and change no global state of
torch. A solution begins with

    import importlib.util, pathlib
    _file = pathlib.Path(__file__).with_name("runtime.py")
    _spec = importlib.util.spec_from_file_location(f"runtime_{__name__}", _file)
    runtime = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(runtime)
    kernels = runtime.load(__file__)

Then `kernels.NAME(grid, block, *args)` launches an `extern "C" __global__` function of a `.cu`,
and `kernels.NAME(*args)` calls an `extern "C"` function of a `.cpp`, or of a `.cu` that launches
its kernels itself. A tensor goes as pointer, None as null, int as int64, float as float, `i32(x)`
as int, `f64(x)` as double. Builds are cached by content under `$CUDA_AGENT_CACHE`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import importlib.util
import io
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_char, c_char_p, c_double, c_float, c_int, c_int64, c_uint, c_void_p
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

FILES = ("runtime.py", "runtime_gemm.py")  # what lies beside a solution
HEADERS = (".h", ".hpp", ".cuh", ".inl")
FLAGS = {
    "cpp": ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC",
            "-fno-math-errno", "-fno-trapping-math",  # no value changes, but loops vectorise
            *(["-mprefer-vector-width=512"] if os.uname().machine == "x86_64" else [])),
    "cubin": ("-std=c++17", "-default-device", "--ptxas-options=-v"),
    "host": ("-std=c++17", "-O3", "-shared", "-Xcompiler", "-fPIC", "--ptxas-options=-v"),
}
STDINT = "#pragma once\n" + "".join(  # NVRTC has no <stdint.h>; these are the types CCCL gives
    f"typedef signed {c} int{bits}_t; typedef unsigned {c} uint{bits}_t;\n"
    for c, bits in (("char", 8), ("short", 16), ("int", 32), ("long long", 64)))


class KernelError(RuntimeError):
    """A kernel could not be built, found or launched. `log` is the compiler's whole output."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class BuildError(KernelError):
    """A source does not compile. The message is the first error."""


class ToolMissing(KernelError):
    """A compiler or driver is not installed. One sentence: which, and how to get it."""


class i32(int):
    """A kernel argument of C type `int`."""


class f64(float):
    """A kernel argument of C type `double`."""


# --- building ---------------------------------------------------------------------------------


class Built(NamedTuple):
    """One binary. `kind`: "cubin" (NVRTC), "host" (nvcc) or "cpp"; `log`: the compiler's output."""

    path: Path
    kind: str
    log: str
    cached: bool


def kind_of(name: str, source: str) -> str:
    """How to build a source: "cpp"; "cubin" for a `.cu` with `extern "C" __global__` entries;
    "host" for a `.cu` with `<<<` launches or without such entries; "" for a header."""
    if not name.endswith(".cu"):
        return "" if name.endswith(HEADERS) else "cpp"
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.S)
    entry = re.search(r'extern\s*"C"\s*(?:__global__|\{.*?__global__)', code, re.S)
    return "cubin" if entry and "<<<" not in code else "host"


def build(sources: Mapping[str, str], *, arch: str | None = None, cache: Path | None = None,
          missing: bool = True) -> dict[str, Built]:  # fmt: skip
    """Compile the sources of one kernels/ folder, {file name: text}, in parallel threads.

    Headers among them lie beside each source; `missing=False` takes only what is cached. `arch`,
    e.g. "sm_90a", defaults to the current device, `cache` to `$CUDA_AGENT_CACHE` or
    ~/.cache/cuda-agent. Raises BuildError, ToolMissing.
    """
    cache = cache or Path(os.environ.get("CUDA_AGENT_CACHE") or Path.home() / ".cache/cuda-agent")
    headers = {name: text for name, text in sources.items() if not kind_of(name, text)}
    units = [name for name in sources if name not in headers]
    if arch is None and any(name.endswith(".cu") for name in units):
        major, minor = torch.cuda.get_device_capability()
        arch = f"sm_{major}{minor}" + "a" * ((major, minor) == (9, 0))  # "a": Hopper's own PTX
    one = functools.partial(_build_one, sources, headers, arch or "", cache / "builds", missing)
    with ThreadPoolExecutor(max_workers=max(1, min(len(units), os.cpu_count() or 1))) as pool:
        return dict(zip(units, pool.map(one, units)))


def _build_one(sources: Mapping[str, str], headers: Mapping[str, str], arch: str, folder: Path,
               missing: bool, name: str) -> Built:  # fmt: skip
    kind, unit = kind_of(name, sources[name]), Path(name).name
    parts = (kind, FLAGS[kind], toolchain(kind), arch, sources[name], sorted(headers.items()))
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
    file = f"{Path(name).stem}-{key}{'.cubin' if kind == 'cubin' else '.so'}"
    if (folder / file).exists():
        return Built(folder / file, kind, _read((folder / file).with_suffix(".log")), True)
    if not missing:
        raise FileNotFoundError(folder / file)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        scratch = Path(tempfile.mkdtemp(prefix=".", dir=folder))
    except OSError:  # a read-only or full cache: this process uses a build of its own
        folder = Path(tempfile.mkdtemp(prefix="cuda-agent-"))
        scratch = Path(tempfile.mkdtemp(dir=folder))
    try:
        for path, text in {**headers, unit: sources[name]}.items():
            (scratch / Path(path).name).write_text(text)
        log = (_compile_nvrtc if kind == "cubin" else _compile_shared)(kind, scratch, unit, arch)
        (scratch / "log").write_text(log)
        os.replace(scratch / "log", (folder / file).with_suffix(".log"))
        os.replace(scratch / "out", folder / file)  # others see the whole binary or none
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Built(folder / file, kind, log, False)


def _compile_shared(kind: str, folder: Path, unit: str, arch: str) -> str:
    device = (f"-arch={arch}",) * (kind == "host")
    command = [compiler(kind), *FLAGS[kind], *device, unit, "-o", "out"]
    done = subprocess.run(command, cwd=folder, capture_output=True)
    log = (done.stdout + done.stderr).decode(errors="replace")
    if done.returncode:
        raise BuildError(_first_error(log), log)
    return log


def _compile_nvrtc(kind: str, folder: Path, unit: str, arch: str) -> str:
    try:
        core = importlib.import_module("cuda.core")  # 1.x, and late 0.x
        if not hasattr(core, "Program"):
            core = importlib.import_module("cuda.core.experimental")
    except ImportError as error:
        raise ToolMissing(f"no NVRTC ({error}): pip install 'cuda-core[cu13]'") from None
    options = core.ProgramOptions(
        name=unit, std="c++17", arch=arch, device_as_default_execution_space=True,
        ptxas_options=["-v"], include_path=[str(folder), *cuda_include_dirs()],
    )
    messages = io.StringIO()
    for name in {"stdint.h", "cstdint"} - {path.name for path in folder.iterdir()}:
        (folder / name).write_text(STDINT)
    try:
        program = core.Program((folder / unit).read_text(), "c++", options)
        (folder / "out").write_bytes(program.compile("cubin", logs=messages).code)
    except Exception as error:  # the class NVRTCError lies elsewhere in each version of cuda-core
        log = f"{error}\n{messages.getvalue()}".replace("\0", "")
        if "NVRTC" not in log:
            raise
        raise BuildError(_first_error(log), log) from None
    return messages.getvalue().replace("\0", "")


def _first_error(log: str) -> str:
    lines = [*filter(str.strip, log.splitlines())]
    hits = [i for i, line in enumerate(lines) if re.search(r"error\b.*:|undefined ref", line)]
    return "\n".join(lines[hits[0] : hits[0] + 4] if hits else lines[:4])


@functools.cache
def compiler(kind: str) -> str:
    """Path of the C++ compiler ("cpp") or of nvcc ("host")."""
    for name in ("nvcc",) if kind == "host" else (os.environ.get("CXX"), "g++", "c++", "clang++"):
        if name and (path := shutil.which(name)):
            return path
    raise ToolMissing("nvcc is not on the PATH; a .cu that launches its kernels needs it"
                      if kind == "host" else "no C++ compiler ($CXX, g++, c++, clang++) found")


@functools.cache
def toolchain(kind: str) -> str:
    """What else decides a binary: the compiler's version; in C++ the processor (-march=native).
    NVRTC's comes from package metadata, so that a cached build need not import cuda.core."""
    if kind == "cubin":
        names = ("cuda-core", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
        found = [d for name in names for d in importlib.metadata.distributions(name=name)]
        return str([(d.name, d.version) for d in found])
    cpu = {x for x in _read(Path("/proc/cpuinfo")).splitlines() if re.match("model name|flags", x)}
    return f"{subprocess.check_output([compiler(kind), '--version']).decode()} {sorted(cpu)}"


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


@functools.cache
def cuda_include_dirs() -> tuple[str, ...]:
    """Folders with cuda_fp16.h and CCCL: from $CUDA_HOME, pip packages or the toolkit."""
    roots = [os.environ.get("CUDA_HOME", ""), *(f"{folder}/nvidia/{package}" for folder in sys.path
             for package in ("cu13", "cuda_runtime", "cuda_cccl"))]
    roots += sorted(map(str, Path("/usr/local").glob("cuda*")), reverse=True)
    places = [Path(root, include) for root in roots for include in ("include", "include/cccl")]
    found = [next((str(place) for place in places if (place / file).exists()), None)
             for file in ("cuda_fp16.h", "cuda/std/limits")]
    return tuple(place for place in found if place)


# --- loading and calling ----------------------------------------------------------------------


class Kernels:
    """The functions of one kernels/ folder as attributes, built at the first access."""

    def __init__(self, sources: Callable[[], Mapping[str, str]], where: str) -> None:
        self._sources, self._where = sources, where
        self._built: dict[str, Built] = {}
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        with self._lock:
            self._built = self._built or build(self._sources())
            function = self._find(name)
        setattr(self, name, function)  # from now on a plain attribute
        return function

    def _find(self, name: str) -> Kernel | Function:
        for path, kind, _, _ in self._built.values():
            if kind == "cubin":
                kernel = Kernel(name, path)
                if kernel.handle(torch.cuda.current_device()).value:
                    return kernel
            elif hasattr(library := ctypes.CDLL(str(path)), name):
                return Function(name, library, "cuda" if kind == "host" else "cpu")
        raise AttributeError(f'no extern "C" function {name!r} in {self._where} '
                             f"({', '.join(self._built) or 'no source'})")


def load(file: str) -> Kernels:
    """The kernels in the folder `kernels` beside `file`: pass `__file__`. Compiles nothing yet."""
    folder = Path(file).resolve().parent / "kernels"
    return Kernels(functools.partial(read_sources, folder), str(folder))


load_host = load  # a .cu of host launchers is told from its text; the name says what is meant


def read_sources(folder: Path) -> dict[str, str]:
    """{file name: text} of the sources and headers in a folder."""
    suffixes = (".cu", ".cpp", ".cc", *HEADERS)
    return {p.name: p.read_text() for p in sorted(folder.iterdir()) if p.suffix in suffixes}


_C_TYPES: dict[str, Any] = {
    "Q": c_void_p, "q": c_int64, "f4x": c_float, "i4x": c_int, "d": c_double,
}


def _codes(kinds: Sequence[type]) -> list[str]:
    """struct codes of arguments, each padded to eight bytes."""
    table = {f64: "d", float: "f4x", i32: "i4x", int: "q", Tensor: "Q", type(None): "Q"}
    codes = [next((c for base, c in table.items() if issubclass(k, base)), "") for k in kinds]
    if "" in codes:
        wrong = kinds[codes.index("")].__name__
        raise TypeError(f"a kernel argument is a {wrong}; pass a tensor, int, float or None")
    return codes


def _pointers(name: str, args: Sequence[Any], device: torch.device) -> tuple[int, ...]:
    """Positions of the tensors, which must lie on `device`."""
    places = tuple(i for i, arg in enumerate(args) if isinstance(arg, Tensor))
    for i in places:
        if args[i].device != device:
            raise ValueError(f"{name}: argument {i} lies on {args[i].device}, not on {device}")
    return places


class Function:
    """An `extern "C" void NAME(...)` of a shared object. A call releases the GIL."""

    def __init__(self, name: str, library: ctypes.CDLL, device_type: str) -> None:
        self.name, self._library, self._device_type = name, library, device_type
        self._prepared: dict[tuple[type, ...], tuple[Any, tuple[int, ...]]] = {}

    def __call__(self, *args: Any) -> None:
        kinds = tuple(map(type, args))
        if kinds not in self._prepared:
            device = torch.device(self._device_type)
            if device.type == "cuda":
                device = torch.device("cuda", torch.cuda.current_device())
            pointers = _pointers(self.name, args, device)
            function = self._library[self.name]  # a new object, with argtypes of its own
            function.argtypes = [_C_TYPES[code] for code in _codes(kinds)]
            function.restype = None
            self._prepared[kinds] = function, pointers
        function, pointers = self._prepared[kinds]
        values = list(args)
        for i in pointers:
            values[i] = values[i].data_ptr()
        function(*values)


class _Attribute(ctypes.Structure):  # CUlaunchAttribute: 72 bytes, a union of 64 inside
    _fields_ = (("id", c_int), ("pad", c_char * 4), ("value", c_uint * 16))


class _Config(ctypes.Structure):  # CUlaunchConfig: 56 bytes
    _fields_ = (("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint),
                ("stream", c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", c_uint))


class Kernel:
    """A `__global__` function: `kernel(grid, block, *args, shared=0, cluster=1)`.

    `grid`, `block` and `cluster` are an int or a tuple of up to three; `shared` is bytes of dynamic
    shared memory; `cooperative` allows grid-wide barriers. Goes to torch's current stream of the
    current device and returns at once. Raises KernelError when the driver refuses the launch.
    """

    def __init__(self, name: str, cubin: Path) -> None:
        self.name, self.cubin = name, cubin
        self._handles: dict[int, c_void_p] = {}
        self._shared: dict[int, int] = {}
        self._launches: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def __call__(
        self, grid: Any, block: Any, *args: Any,
        shared: int = 0, cluster: Any = 1, cooperative: bool = False,
    ) -> None:
        device = torch._C._cuda_getDevice()
        key = (grid, block, shared, cluster, cooperative, device, threading.get_ident(),
               *map(type, args))
        launch = self._launches.get(key) or self._prepare(key, args)
        submit, pack, buffer, config, pointers, nulls = launch
        values = list(args)
        for i in pointers:
            values[i] = values[i].data_ptr()
        for i in nulls:
            values[i] = 0
        pack(buffer, 0, *values)
        config.stream = torch._C._cuda_getCurrentRawStream(device)
        if status := submit():
            check(status, f"{self.name} at {grid=}, {block=}, {shared=}, {cluster=}")

    def handle(self, device: int) -> c_void_p:
        """The CUfunction on a device, null when the cubin has no such kernel."""
        if device not in self._handles:
            function, module = c_void_p(), _module(self.cubin, device)
            status = driver().cuModuleGetFunction(byref(function), module, self.name.encode())
            check(status if status != 500 else 0, self.name)  # 500: CUDA_ERROR_NOT_FOUND
            self._handles[device] = function
        return self._handles[device]

    def _prepare(self, key: tuple[Any, ...], args: Sequence[Any]) -> tuple[Any, ...]:
        """Everything that launches of this form share, made once: one call then packs the
        arguments and one submits. Buffers are used again, hence the thread's number in the key."""
        grid, block, shared, cluster, cooperative, device, _, *kinds = key
        activate(device)
        function, codes = self.handle(device), _codes(kinds)
        _check_parameters(self.name, function, [4 if "4x" in code else 8 for code in codes])
        if shared > self._shared.get(device, 0):  # 8: MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver().cuFuncSetAttribute(function, 8, shared), f"{self.name} with {shared=}")
            self._shared[device] = shared
        clusters, attributes = _triple(cluster), []
        if clusters != (1, 1, 1):  # 14: NON_PORTABLE_CLUSTER_SIZE_ALLOWED, more than 8 blocks
            check(driver().cuFuncSetAttribute(function, 14, 1), self.name)
            attributes.append(_Attribute(4, b"", (c_uint * 16)(*clusters)))  # CLUSTER_DIMENSION
        if cooperative:
            attributes.append(_Attribute(2, b"", (c_uint * 16)(1)))  # COOPERATIVE
        config = _Config((c_uint * 3)(*_triple(grid)), (c_uint * 3)(*_triple(block)), shared, None,
                         (_Attribute * 2)(*attributes), len(attributes))
        buffer = (c_int64 * (len(args) + 1))()
        slots = (c_void_p * len(buffer))(*range(start := ctypes.addressof(buffer),
                                                start + 8 * len(args), 8))
        submit = functools.partial(driver().cuLaunchKernelEx, byref(config), function, slots, None)
        if len(self._launches) >= 512:  # a caller with ever new grids must not leak
            self._launches.clear()
        self._launches[key] = (
            submit, struct.Struct("<" + "".join(codes)).pack_into, buffer, config,
            _pointers(self.name, args, torch.device("cuda", device)),
            tuple(i for i, arg in enumerate(args) if arg is None),
        )
        return self._launches[key]


def _triple(sizes: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (sizes,) if isinstance(sizes, int) else (*sizes,)
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise ValueError(f"grid, block and cluster are one to three positive sizes, not {sizes}")
    return (*sizes, 1, 1)[:3]


def _check_parameters(name: str, function: c_void_p, given: list[int]) -> None:
    """Compare the bytes of the arguments with the kernel's, where the driver tells (CUDA 12.4)."""
    query = getattr(driver(), "cuFuncGetParamInfo", None)
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    taken: list[int] = []
    while query and not query(function, ctypes.c_size_t(len(taken)), byref(offset), byref(size)):
        taken.append(size.value)
    if query and given != taken:
        raise TypeError(f"{name} takes arguments of {taken} bytes, but was called with {given}")


@functools.cache
def driver() -> ctypes.CDLL:
    """libcuda. Raises ToolMissing where there is no NVIDIA driver."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise ToolMissing("libcuda.so.1 does not load; is the NVIDIA driver installed?") from None


def check(status: int, what: str) -> None:
    if status:
        name, text = c_char_p(), c_char_p()
        driver().cuGetErrorName(status, byref(name))
        driver().cuGetErrorString(status, byref(text))
        raise KernelError(f"{what}: " + b": ".join(x.value or b"?" for x in (name, text)).decode())


def activate(device: int) -> None:
    """Make the device's primary context, torch's own, current in a thread that has none yet."""
    torch.cuda.init()
    handle, context = c_int(), c_void_p()
    check(driver().cuCtxGetCurrent(byref(context)), "cuCtxGetCurrent")
    if not context.value:
        check(driver().cuDeviceGet(byref(handle), device), "cuDeviceGet")
        check(driver().cuDevicePrimaryCtxRetain(byref(context), handle), "primary context")
        check(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent")


@functools.cache
def _module(cubin: Path, device: int) -> c_void_p:
    """The loaded cubin in the context of `device`, the current one. Kept for the process's life."""
    activate(device)
    module = c_void_p()
    check(driver().cuModuleLoadData(byref(module), cubin.read_bytes()), cubin.name)
    return module


def current_stream() -> int:
    """torch's current CUDA stream as a pointer, the last argument of a host launcher."""
    return int(torch.cuda.current_stream().cuda_stream)


# --- what a forward calls ---------------------------------------------------------------------


def sibling(file: str, name: str) -> ModuleType:
    """The module `name`.py beside `file`, under a name of its own: two solutions in one process do
    not meet, and a file that has changed is loaded anew."""
    path = Path(file).resolve().with_name(f"{name}.py")
    stamp = hashlib.sha256(f"{path}\0".encode() + path.read_bytes()).hexdigest()[:12]
    unique = f"{name}_{stamp}"
    if unique not in sys.modules:
        spec = importlib.util.spec_from_file_location(unique, path)
        assert spec is not None and spec.loader is not None
        sys.modules[unique] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[unique])
        except BaseException:
            del sys.modules[unique]
            raise
    return sys.modules[unique]


def expect(
    name: str, x: Tensor, shape: Sequence[int], dtype: torch.dtype, device_type: str
) -> Tensor:
    """`x`, contiguous. A solution refuses what it was not built for: ValueError, one sentence."""
    if x.shape != tuple(shape) or x.dtype != dtype or x.device.type != device_type:
        raise ValueError(
            f"{name}: this solution was built for {dtype} of shape {tuple(shape)} on {device_type}"
            f", not {x.dtype} of shape {tuple(x.shape)} on {x.device.type}"
        )
    inference_only(x)
    return x.contiguous()


def inference_only(*values: Tensor | torch.nn.Module) -> None:
    """Raise RuntimeError where autograd would record: our kernels have no backward."""
    for value in values if torch.is_grad_enabled() else ():
        tensors = (value,) if isinstance(value, Tensor) else value.parameters()
        if any(tensor.requires_grad for tensor in tensors):
            raise RuntimeError("this solution has no backward pass: use torch.no_grad()")


def _state(tensors: Sequence[Tensor]) -> tuple[tuple[int, int], ...]:
    return tuple((t.data_ptr(), -1 if t.is_inference() else t._version) for t in tensors)


class Derived:
    """`Derived(fn, *tensors)()`: fn(*tensors), computed again when one of them has changed, e.g. a
    folded weight. Tensors may also be given at the call, where parameters get replaced."""

    _key: Any = None

    def __init__(self, fn: Callable[..., Any], *tensors: Tensor) -> None:
        self.fn, self.tensors = fn, tensors

    def __call__(self, *tensors: Tensor) -> Any:
        tensors = tensors or self.tensors
        if (key := _state(tensors)) != self._key:
            with torch.no_grad():
                self._value = self.fn(*tensors)
            # Held, so that no other tensor can come to lie at the same address.
            self._key, self._held = key, [t.detach() for t in tensors]
        return self._value

    def __getstate__(self) -> dict[str, Any]:  # for copy and pickle: without what was computed
        return {"fn": self.fn, "tensors": self.tensors}


class Graphed:
    """`Graphed(fn, module)(*inputs)`: fn as a CUDA graph, outputs as fresh tensors; on a CPU fn
    itself. Captured again for other shapes, and when a parameter or buffer of `module` changed.
    Not for calls from several streams at once: they would share the static inputs."""

    _key: Any = None
    _graph: Any = None

    def __init__(self, fn: Callable[..., Any], module: torch.nn.Module | None = None) -> None:
        self.fn, self.module = fn, module

    def __call__(self, *inputs: Any) -> Any:
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        if not tensors or not all(x.is_cuda for x in tensors):
            return self.fn(*inputs)
        owned = [] if self.module is None else [*self.module.parameters(), *self.module.buffers()]
        key = ([(x.shape, x.stride(), x.dtype, x.device) if isinstance(x, Tensor) else x
                for x in inputs], _state(owned))
        with torch.inference_mode(False), torch.no_grad():
            if key != self._key:
                self._capture(inputs)
                self._key, self._held = key, [t.detach() for t in owned]
            for static, x in zip(self._static, tensors):
                static.copy_(x)
            self._graph.replay()
            return _map(torch.clone, self._outputs)

    def _capture(self, inputs: Sequence[Any]) -> None:
        self._key = self._graph = self._outputs = None  # frees the old graph's memory first
        copies = _map(torch.clone, list(inputs))
        self._static = [x for x in copies if isinstance(x, Tensor)]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # builds, loads and warms up what a capture may not
            for _ in range(2):
                self.fn(*copies)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self._outputs = self.fn(*copies)
        self._graph = graph

    def __getstate__(self) -> dict[str, Any]:
        return {"fn": self.fn, "module": self.module}


def _map(fn: Callable[[Tensor], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _map(fn, item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_map(fn, item) for item in value)
    return fn(value) if isinstance(value, Tensor) else value


def __getattr__(name: str) -> Any:
    """`matmul` and `split_tf32`, from runtime_gemm.py at their first use."""
    if name not in ("matmul", "split_tf32"):
        raise AttributeError(f"runtime has no attribute {name!r}")
    gemm: Any = sibling(__file__, "runtime_gemm")
    gemm.kernels = Kernels(lambda: gemm.SOURCES, "runtime_gemm.py")
    globals().update(matmul=gemm.matmul, split_tf32=gemm.split_tf32)
    return globals()[name]
