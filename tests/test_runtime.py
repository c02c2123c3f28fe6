"""runtime.py without a GPU: building, calling C++, guards, derived values."""

from __future__ import annotations

import copy
import ctypes
from pathlib import Path

import pytest
import torch

from cuda_agent import runtime, runtime_gemm

AXPY = """
#include <cstdint>
#include "scale.h"
extern "C" void axpy(const float* x, float* y, int64_t n, float a) {
    #pragma omp parallel for
    for (int64_t i = 0; i < n; ++i) y[i] += SCALE * a * x[i];
}
extern "C" void kinds(double* out, int64_t n, float f, int i, double d, const float* none) {
    out[0] = n; out[1] = f; out[2] = i; out[3] = d; out[4] = none == nullptr;
}
"""
COPY_CU = """
#include <cstdint>
#include <stdint.h>
extern "C" __global__ void __launch_bounds__(256) copy(const float* x, float* y, int64_t n) {
    extern __shared__ float tile[];
    long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) { tile[threadIdx.x] = x[i]; y[i] = tile[threadIdx.x]; }
}
"""


@pytest.fixture
def solution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path like a solution's model_new.py, with an empty build cache."""
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/axpy.cpp").write_text(AXPY)
    (tmp_path / "kernels/scale.h").write_text("#define SCALE 2\n")
    return tmp_path / "model_new.py"


@pytest.mark.compiler
def test_cpp_kernel_is_built_once_and_called(solution: Path) -> None:
    kernels = runtime.load(str(solution))
    assert not (solution.parent / "cache").exists(), "load() must compile nothing"
    x, y = torch.arange(1000.0), torch.ones(1000)
    kernels.axpy(x, y, x.numel(), 0.5)
    torch.testing.assert_close(y, 1 + x)
    sources = runtime.read_sources(solution.parent / "kernels")
    assert runtime.build(sources)["axpy.cpp"].cached
    changed = {**sources, "scale.h": "#define SCALE 3\n"}
    assert not runtime.build(changed)["axpy.cpp"].cached, "a header is part of the key"
    left = {p.suffix for p in (solution.parent / "cache/builds").iterdir()}
    assert left == {".so", ".log"}, "no scratch folder is left"


@pytest.mark.compiler
def test_every_argument_kind_arrives(solution: Path) -> None:
    out = torch.zeros(5, dtype=torch.float64)
    kernels = runtime.load(str(solution))
    for n in (2**40, -1):  # the prepared call is used again
        kernels.kinds(out, n, 0.5, runtime.i32(-3), runtime.f64(0.1), None)
        assert out.tolist() == [n, 0.5, -3, 0.1, 1]
    with pytest.raises(TypeError, match="a kernel argument is a str"):
        kernels.kinds("x")
    with pytest.raises(ValueError, match="argument 0 lies on meta, not on cpu"):
        kernels.axpy(torch.empty(3, device="meta"), out, 3, 1.0)


@pytest.mark.compiler
def test_unknown_kernel_and_broken_source(solution: Path) -> None:
    with pytest.raises(AttributeError, match=r'no extern "C" function \'nothing\''):
        _ = runtime.load(str(solution)).nothing
    (solution.parent / "kernels/axpy.cpp").write_text("int f() { return y; }")
    with pytest.raises(runtime.BuildError, match=r"axpy.cpp:1:\d+: error:.*y"):
        _ = runtime.load(str(solution)).axpy
    left = [p for p in (solution.parent / "cache/builds").iterdir() if p.is_dir()]
    assert not left, "a failed build leaves no scratch folder"


@pytest.mark.compiler
def test_unwritable_cache_still_builds(solution: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (solution.parent / "file").write_text("")
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(solution.parent / "file"))
    x, y = torch.ones(3), torch.zeros(3)
    runtime.load(str(solution)).axpy(x, y, 3, 1.0)
    assert y.tolist() == [2, 2, 2]


def test_missing_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.shutil, "which", lambda name: None)
    runtime.compiler.cache_clear()
    with pytest.raises(runtime.ToolMissing, match=r"no C\+\+ compiler"):
        runtime.compiler("cpp")
    with pytest.raises(runtime.ToolMissing, match="nvcc is not on the PATH"):
        runtime.compiler("host")


def test_kind_of_source() -> None:
    assert runtime.kind_of("a.cu", COPY_CU) == "cubin"
    assert runtime.kind_of("a.cu", 'extern "C" {\n__global__ void f() {} }') == "cubin"
    launcher = '__global__ void f() {}\nextern "C" void run(float* x) { f<<<1, 1>>>(); }'
    assert runtime.kind_of("a.cu", launcher) == "host"
    assert runtime.kind_of("a.cu", COPY_CU + "// copy<<<1, 1>>>") == "cubin"
    assert runtime.kind_of("a.cpp", "") == "cpp"
    assert runtime.kind_of("a.cuh", COPY_CU) == ""


def test_launch_structures_have_the_drivers_layout() -> None:
    """Sizes and offsets of CUlaunchAttribute and CUlaunchConfig in cuda.h."""
    assert ctypes.sizeof(runtime._Attribute) == 72
    assert runtime._Attribute.value.offset == 8
    assert ctypes.sizeof(runtime._Config) == 56
    offsets = {name: getattr(runtime._Config, name).offset for name, _ in runtime._Config._fields_}
    assert offsets == {
        "grid": 0, "block": 12, "shared": 24, "stream": 32, "attributes": 40, "count": 48,
    }


@pytest.mark.parametrize("sizes, want", [(5, (5, 1, 1)), ((2, 3), (2, 3, 1)), ((1, 2, 3),) * 2])
def test_triple(sizes: int | tuple[int, ...], want: tuple[int, ...]) -> None:
    assert runtime._triple(sizes) == want
    for wrong in (0, (1, 2, 3, 4), ()):
        with pytest.raises(ValueError, match="one to three positive sizes"):
            runtime._triple(wrong)


def test_expect_refuses_what_it_was_not_built_for() -> None:
    x = torch.ones(3, 2).t()
    assert runtime.expect("x", x, (2, 3), torch.float32, "cpu").is_contiguous()
    for shape, dtype, device in (
        ((3, 2), torch.float32, "cpu"), ((2, 3), torch.float16, "cpu"),
        ((2, 3), torch.float32, "cuda"),
    ):
        with pytest.raises(ValueError, match=r"x: .* built for .* not torch.float32"):
            runtime.expect("x", x, shape, dtype, device)


def test_autograd_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="no_grad"):
        runtime.inference_only(model)
    with pytest.raises(RuntimeError, match="no_grad"):
        runtime.expect("w", model.weight, (2, 2), torch.float32, "cpu")
    with torch.no_grad():
        runtime.inference_only(model, model.weight)


def test_derived_follows_its_tensors() -> None:
    calls = []

    def fold(weight: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return weight * 2

    weight = torch.nn.Parameter(torch.ones(3))
    derived = runtime.Derived(fold, weight)
    assert derived() is derived()
    with torch.no_grad():
        weight.add_(1)
    assert derived().tolist() == [4, 4, 4]
    weight.data = torch.zeros(3)
    assert derived().tolist() == [0, 0, 0]
    assert len(calls) == 3
    assert derived(torch.full((3,), 5.0)).tolist() == [10, 10, 10]
    other = copy.deepcopy(derived)
    assert other.tensors[0] is not weight and other().tolist() == [0, 0, 0]


def test_graphed_is_the_function_itself_on_a_cpu() -> None:
    graphed = runtime.Graphed(lambda x, flag: (x + 1, flag))
    out, flag = copy.deepcopy(graphed)(torch.zeros(2), True)
    assert out.tolist() == [1, 1] and flag is True


def test_sibling_modules_do_not_meet(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "reference.py").write_text(f"value = {name!r}")
    first = runtime.sibling(str(tmp_path / "a/model_new.py"), "reference")
    second = runtime.sibling(str(tmp_path / "b/model_new.py"), "reference")
    assert (first.value, second.value) == ("a", "b")
    assert runtime.sibling(str(tmp_path / "a/other.py"), "reference") is first
    (tmp_path / "a/reference.py").write_text("value = 1 / 0")
    with pytest.raises(ZeroDivisionError):
        runtime.sibling(str(tmp_path / "a/model_new.py"), "reference")
    with pytest.raises(ZeroDivisionError):  # no half-made module is left behind
        runtime.sibling(str(tmp_path / "a/model_new.py"), "reference")


def test_solution_needs_no_package(tmp_path: Path) -> None:
    """The file stands alone: copied out, loaded by path, it finds its own gemm file."""
    for name in runtime.FILES:
        source = Path(runtime.__file__).with_name(name).read_text()
        assert "cuda_agent" not in source.replace("cuda_agent_", "")
        (tmp_path / name).write_text(source)
    alone = runtime.sibling(str(tmp_path / "model_new.py"), "runtime")
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    torch.testing.assert_close(alone.matmul(a, b, precision="tf32x3"), a @ b)
    torch.testing.assert_close(alone.matmul((a, a), b), 2 * a @ b)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = alone.nothing


@pytest.mark.nvrtc
def test_nvrtc_builds_without_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("cuda.core")
    sources = {"copy.cu": COPY_CU, **runtime_gemm.SOURCES}
    built = runtime.build(sources, arch="sm_90a", cache=tmp_path)
    for name, kernel in (("copy.cu", "copy"), ("split_tf32.cu", "split_tf32")):
        assert built[name].path.read_bytes()[:4] == b"\x7fELF"
        assert f"entry function '{kernel}' for 'sm_90a'" in built[name].log
        assert "0 bytes spill stores" in built[name].log
    again = runtime.build(sources, arch="sm_90a", cache=tmp_path)
    assert again["copy.cu"].cached and again["copy.cu"].log == built["copy.cu"].log
    assert not runtime.build(sources, arch="sm_80", cache=tmp_path)["copy.cu"].cached
    with pytest.raises(runtime.BuildError, match=r"bad.cu\(1\): error: identifier"):
        runtime.build({"bad.cu": 'extern "C" __global__ void f() { y; }'}, arch="sm_90a",
                      cache=tmp_path)
