"""Static rules: each fires on its cheat, none on honest code that looks alike."""

from __future__ import annotations

import pytest

import cases
from cuda_agent.evaluation import guard
from cuda_agent.evaluation.forms import own_runtime
from cuda_agent.evaluation.guard import native, plausibility
from cuda_agent.records import Track
from cuda_agent.targets.base import DeviceFacts

PROBLEM = cases.problem()


def ids(files: dict[str, str], track: Track = "library") -> set[str]:
    found = guard.review(cases.candidate(files, PROBLEM), PROBLEM, track)
    return {f.id for f in found.findings}


def python(body: str, head: str = "", cls: str = cases.CLASS) -> dict[str, str]:
    return cases.python(body, head, cls)


CHEATS = {
    "A3_subclass": (python("return x", "class Lazy(torch.Tensor):\n    pass"), "A3"),
    "A3_dispatch": (
        python(
            "return x",
            "class M:\n    def __torch_dispatch__(self, f, t, a=(), k=None):\n        return f(*a)",
        ),
        "A3",
    ),
    "A3_class": (python("x.__class__ = Other\nreturn x"), "A3"),
    "A4": (python("x.cpu = types.MethodType(f, x)\nreturn x", "import types"), "A4"),
    "A5_time": (python("return x", "import time\ntime.perf_counter = lambda: 0.0"), "A5"),
    "A5_alias": (python("return x", "import torch.cuda as c\nc.synchronize = print"), "A5"),
    "A5_event": (python("torch.cuda.Event.elapsed_time = f\nreturn x"), "A5"),
    "A5_setattr": (python("setattr(torch.cuda, 'Event', Fake)\nreturn x"), "A5"),
    "A5_modules": (python("return x", "import sys\nsys.modules['time'] = None"), "A5"),
    "A5_tuple": (python("torch.relu, y = 1, 2\nreturn x"), "A5"),
    "A6_code": (python("return x", "def f(): ...\nf.__code__ = g.__code__"), "A6"),
    "A6_api": (python("return x", "import ctypes\nctypes.pythonapi.PyGILState_Ensure()"), "A6"),
    "A7_frame": (python("import sys\nsys._getframe(1)\nreturn x"), "A7"),
    "A7_back": (python("return g.f_back.f_locals['expected']"), "A7"),
    "A7_current": (python("return x", "import inspect as i\ni.currentframe()"), "A7"),
    "B11_load": (python("return torch.load('out.pt')"), "B11"),
    "B11_numpy": (python("return np.load('out.npy')", "import numpy as np"), "B11"),
    "B15": (python("import gc\nreturn gc.get_objects()[0]"), "B15"),
    "C1_write": (python("return x", "import os\nos.write(3, b'ok')"), "C1"),
    "C1_socket": (python("return x", "import socket\nsocket.socket(fileno=3)"), "C1"),
    "C2_exit": (python("return x", "from os import _exit\n_exit(0)"), "C2"),
    "C2_sys": (python("return x", "import sys\nsys.exit(0)"), "C2"),
    "C3": (python("return x", "import atexit\natexit.register(print)"), "C3"),
    "C6": (python("open('/proc/self/mem', 'rb')\nreturn x"), "C6"),
    "C12": ({**python("return x"), "torch.py": "x = 1"}, "C12"),
    "C12_stdlib": ({**python("return x"), "time.py": "x = 1"}, "C12"),
    "C14_exec": (python("return x", "exec(decode('...'))"), "C14"),
    "C14_pickle": (python("return x", "import pickle\npickle.loads(b'')"), "C14"),
    "C15": (
        python("return x", "import subprocess\nsubprocess.run(['pip', 'install', 'cheat'])"),
        "C15",
    ),
    "C16": (python("return x", "import sys\nsys.stdout = None"), "C16"),
    "D1": (python("import inspect\ninspect.stack()\nreturn x"), "D1"),
    "D3": (python("return x if os.environ.get('TEST') else x + 1", "import os"), "D3"),
    "E2": (cases.native(forward=f"return {cases.RIGHT}"),
           "E2"),
    "E3": (
        python("try:\n    return kernels.fused(x)\nexcept Exception:\n    return torch.relu(x)"),
        "E3",
    ),
    "E3_super": (
        python("try:\n    return fast(x)\nexcept RuntimeError:\n    return super().forward(x)"),
        "E3",
    ),
    "E4_empty": (
        {"model_new.py": "from reference import Model\nclass ModelNew(Model):\n    pass\n"}, "E4",
    ),
    "E4_alias": ({"model_new.py": "from reference import Model\nModelNew = Model\n"}, "E4"),
    "E4_super": (python("return super().forward(x)"), "E4"),
    "A8_native": (cases.native(kernel=cases.KERNEL + "int f() { return ptrace(0, 0, 0, 0); }"),
                  "A8"),
    "A8_clock": (
        cases.native(kernel=cases.KERNEL + "int clock_gettime(int c, void* t) { return 0; }"),
        "A8",
    ),
    "A5_macro": (
        cases.native(kernel="#define cudaEventElapsedTime(m, a, b) *(m) = 0\n" + cases.KERNEL),
        "A5",
    ),
    "A2_detach": (
        cases.native(kernel=cases.KERNEL + "void g() { std::thread(work).detach(); }"), "A2"
    ),
    "C6_native": (
        cases.native(kernel=cases.KERNEL + 'void g() { fopen("/proc/self/mem", "r"); }'), "C6"
    ),
    "C5": (cases.native(kernel=cases.KERNEL + "void g() { syscall(39); }"), "C5"),
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_named_by_its_id(name: str) -> None:
    files, rule = CHEATS[name]
    assert rule in ids(files)


HONEST = {
    "plain": cases.native(),
    "defensive_compile": cases.native(
        head="try:\n    kernels.fused\n    READY = True\nexcept Exception as error:\n"
        "    print('kernels are built later:', error)\n    READY = False\n"
    ),
    "empty_pass": cases.native(head="class Config:\n    pass\n\ndef hook():\n    pass\n"),
    "reraise": python(
        "try:\n    return kernels.fused(x)\nexcept RuntimeError as error:\n"
        "    raise RuntimeError(f'launch failed: {error}') from error"
    ),
    "autotune": python(
        "best = None\nfor block in (128, 256):\n    try:\n        t = measure(block)\n"
        "    except RuntimeError:\n        continue\n    best = min(best or t, t)\n"
        "return launch(x, best)"
    ),
    "subclass_with_forward": {
        "model_new.py": "from reference import Model\nclass ModelNew(Model):\n"
        "    def forward(self, x):\n        return launch(x)\n",
        "reference.py": cases.SOURCE,
    },
    "super_init": python("return launch(x)", cls=cases.CLASS + "        super().train(False)\n"),
    "environment_at_build": python(
        "return launch(x)", "import os\nos.environ['TORCH_CUDA_ARCH_LIST'] = '9.0a'\n"
        "CUDA = os.environ.get('CUDA_HOME', '/usr/local/cuda')"
    ),
    "backend_flags": python("return x", "torch.backends.cudnn.benchmark = True"),
    "graph": python("g = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(g):\n    pass\nreturn x"),
    "streams": python("s = torch.cuda.Stream()\nwith torch.cuda.stream(s):\n    pass\nreturn x"),
    "thread_pool": python(
        "return x", "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool:\n    pool.map(build, range(4))"
    ),
    "own_attributes": python("self.scratch = torch.empty(4)\nself.weight.data = x\nreturn x"),
    "words_in_text": python(
        '"""os._exit, sys._getframe and /proc are only named."""\nreturn x  # gc.get_objects'
    ),
    "getattr_names": cases.native(
        forward="\n    def forward(self, x):\n        out = torch.empty_like(x)\n"
        "        getattr(kernels, 'fu' + 'sed')(x, self.bias, out, *x.shape)\n        return out\n"
    ),
    "macros_and_templates": cases.native(
        kernel="// never calls ptrace() or _exit()\n#define CAT(a, b) a##b\n"
        'static const char* note = "syscall(";\n'
        "template <typename T> T twice(T v) { return v + v; }\n"
        + cases.KERNEL
    ),
    "joined_threads": cases.native(
        kernel="#include <thread>\nvoid g() { std::thread t(g); t.join(); }\n" + cases.KERNEL
    ),
    "tensor_detach": python("return self.bias.detach() + x"),
    "literal_eval": python("return x", "import ast\nSIZES = ast.literal_eval('[1, 2]')"),
    "local_named_time": python("time = Timer()\ntime.start = 3\nreturn x"),
    "triton": python("return x", "import triton\n@triton.jit\ndef k(p):\n    pass\n"),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_candidate_trips_nothing(name: str) -> None:
    assert ids(HONEST[name]) == set()


def test_our_runtime_and_the_problem_itself_are_not_searched() -> None:
    assert ids({**cases.native(), **own_runtime(), "reference.py": cases.SOURCE}) == set()
    patched = own_runtime()["runtime.py"] + "\nimport time\ntime.sleep = None\n"
    assert "A5" in ids({**cases.native(), "runtime.py": patched})


def test_torch_compile_is_listed_under_library_and_refused_under_kernels() -> None:
    files = python("return self.f(x)", "f = torch.compile(lambda x: x)")
    found = guard.review(cases.candidate(files, PROBLEM), PROBLEM, "library")
    assert found.external == ["torch.compile"] and not found.findings
    assert "E6" in ids(files, "kernels")


def test_operators_under_the_kernels_track() -> None:
    ops = ["aten.mm", "aten.convolution", "aten.clone", "aten.softmax", "aten._softmax", "aten.add"]
    assert guard.operators(ops, "library") == []
    found = guard.operators(ops, "kernels")
    assert [f.id for f in found] == ["E1"] * 3
    assert "aten.softmax" in found[0].detail


@pytest.mark.parametrize(
    ("line", "fires"),
    [
        ("auto y = at::softmax(x, 1);", True), ("y = torch::relu(x);", True),
        ("auto s = x.sum(1);", True), ("auto y = torch::empty({2}, x.options());", False),
        ("auto y = at::mm(a, b);", False), ("auto p = x.data_ptr<float>();", False),
        ("// at::softmax(x)", False),
    ],
)
def test_torch_calls_in_bindings_under_the_kernels_track(line: str, fires: bool) -> None:
    text = f"#include <torch/extension.h>\nvoid f(torch::Tensor x) {{\n  {line}\n}}\n"
    found = native.inspect("binding.cpp", text, "kernels")
    assert bool(found) is fires
    assert native.inspect("binding.cpp", text, "library") == []
    if fires:
        assert "line 3" in found[0].detail


LIBRARIES = {
    "numpy": (cases.python("return np.maximum(x, 0)", "import numpy as np"), "numpy.maximum", "E1"),
    "through_a_method": (
        {"model_new.py": cases.python("return self.work(x)", "import scipy.special as s")[
            "model_new.py"] + "    def work(self, x):\n        return s.expit(x)\n"},
        "scipy.special.expit", "E1",
    ),
    "triton": (
        cases.python("return top(x)", "import triton.language as tl\n"
                     "def top(x):\n    return tl.sort(x)"),
        "triton.language.sort", "E9",
    ),
    "cublas": (cases.native(kernel="void f() { cublasGemmEx(h); cublasCreate(&h); }"),
               "cublasGemmEx", ""),
    "cudnn": (cases.native(kernel="void f() { cudnnSoftmaxForward(h); }"), "cudnnSoftmaxForward",
              "E1"),
    "thrust": (cases.native(kernel="void f() { thrust::sort(a, b); }"), "thrust::sort", "E9"),
    "cub": (cases.native(kernel="void f() { cub::DeviceRadixSort::SortKeys(a, b); }"),
            "cub::DeviceRadixSort::SortKeys", "E9"),
    "pasted": (
        cases.native(kernel="#define G(a, b) a##b\nvoid f() { G(cublas, Sgemm)(h); }"),
        "cublasSgemm", "",
    ),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_what_a_library_computes_is_listed_and_refused_where_kernels_are_wanted(name: str) -> None:
    files, function, rule = LIBRARIES[name]
    made = cases.candidate({**files, "use.py": "fused = 'f'"}, PROBLEM)
    seen = guard.review(made, PROBLEM, "library")
    assert seen.external == [function] and "E1" not in {f.id for f in seen.findings}
    assert {f.id for f in guard.review(made, PROBLEM, "kernels").findings} - {"E2"} == (
        {rule} if rule else set()
    )


@pytest.mark.parametrize(
    "files",
    [
        cases.python("n = int(np.prod(x.shape))\nreturn x", "import numpy as np\nT = np.exp(1.0)"),
        cases.native(kernel="__global__ void f() { cub::BlockReduce<float, 128> r; }"),
        cases.native(kernel="// cublasSgemm(h)\nconst char* s = \"thrust::sort(\";"),
        cases.python("return tl_dot(x)", "import triton.language as tl\n"
                     "def tl_dot(x):\n    return tl.dot(x, x)"),
    ],
)
def test_building_blocks_and_sizes_are_the_candidates_own(files: dict[str, str]) -> None:
    for track in ("library", "kernels"):
        seen = guard.review(cases.candidate(files, PROBLEM), PROBLEM, track)  # type: ignore[arg-type]
        assert seen.external == [] and {f.id for f in seen.findings} <= {"E2"}


def test_exported_names() -> None:
    cuda = (
        'extern "C" __global__ void __launch_bounds__(256, 2) first(const float* x) {}\n'
        '// extern "C" void hidden() {}\n'
        'extern "C" {\nvoid second(int n) {}\n}\n'
    )
    names = native.exported({"a.cu": cuda, "b.cpp": cases.KERNEL})
    assert {"first", "second", "fused"} <= names and "hidden" not in names


# --- plausibility -------------------------------------------------------------------------------


def facts(target: str, rate: float | None = 1e12, cache: int = 60 << 20) -> DeviceFacts:
    return DeviceFacts(target, "test", "x", 1, 16, cache, 1 << 36, copy_bytes_per_s=rate)


def test_floor_of_a_memory_bound_kernel() -> None:
    floor = plausibility.floor_ms(10**9, 10**9, facts("cuda"))
    assert floor == pytest.approx((2e9 - (60 << 20)) / 1e12 * 1e3)
    assert plausibility.check(0.7 * floor, floor)[0].id == "roofline"
    assert plausibility.check(0.9 * floor, floor) == []


def test_there_is_no_floor_without_calibration_nor_in_caches() -> None:
    assert plausibility.floor_ms(10**9, 10**9, facts("cuda", rate=None)) is None
    assert plausibility.floor_ms(10**8, 10**7, facts("cpu")) is None
    assert plausibility.floor_ms(10**9, 10**7, facts("cpu")) is not None
    assert plausibility.check(0.001, None) == []


def test_no_floor_where_a_trusted_baseline_is_below_it() -> None:
    """An embedding reads a few rows of its table: reading all of it is no lower bound."""
    assert plausibility.floor_ms(10**9, 10**6, facts("cuda"), [0.2]) is None
    assert plausibility.floor_ms(10**9, 10**6, facts("cuda"), [2.0]) == pytest.approx(1.0)
