"""The ctypes calls of the runtime against C stand-ins for libcuda and libcublas.

No GPU is at hand in CI, and a wrong argument order only shows at the call. The stand-ins take the
real signatures: the driver one records what a launch passes, the cuBLAS one multiplies.
"""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cuda_agent import runtime, runtime_gemm

pytestmark = pytest.mark.compiler

# Structures as in cuda.h; the kernel "takes" (pointer, pointer, long long, float, int, double).
DRIVER = r"""
#include <cstdint>
#include <cstring>
struct Attribute { int id; char pad[4]; union { char bytes[64]; unsigned cluster[3]; int on; }; };
struct Config {
    unsigned grid[3], block[3], shared; void* stream; Attribute* attributes; unsigned count;
};
struct Launch {
    void* function; unsigned grid[3], block[3], shared; void* stream; unsigned cluster[3];
    int cooperative; void *x, *y; long long n; float f; int i; double d; int attribute[16];
};
static Launch last;
static const int sizes[] = {8, 8, 8, 4, 4, 8};
extern "C" {
Launch* fake_last() { return &last; }
int cuLaunchKernelEx(const Config* c, void* function, void** arguments, void** extra) {
    if (extra || c->block[0] > 1024) return 1;
    last.function = function; last.shared = c->shared; last.stream = c->stream;
    std::memcpy(last.grid, c->grid, 12); std::memcpy(last.block, c->block, 12);
    last.cluster[0] = last.cluster[1] = last.cluster[2] = 0; last.cooperative = 0;
    for (unsigned i = 0; i < c->count; ++i) {
        if (c->attributes[i].id == 4) std::memcpy(last.cluster, c->attributes[i].cluster, 12);
        if (c->attributes[i].id == 2) last.cooperative = c->attributes[i].on;
    }
    last.x = *(void**)arguments[0]; last.y = *(void**)arguments[1];
    last.n = *(long long*)arguments[2]; last.f = *(float*)arguments[3];
    last.i = *(int*)arguments[4]; last.d = *(double*)arguments[5];
    return 0;
}
int cuFuncGetParamInfo(void*, size_t index, size_t* offset, size_t* size) {
    if (index >= 6) return 1;
    *size = sizes[index];
    return 0;
}
int cuFuncSetAttribute(void*, int attribute, int value) {
    last.attribute[attribute] = value;
    return 0;
}
int cuModuleLoadData(void** module, const void* image) { *module = (void*)77; return 0; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
    if (module != (void*)77 || std::strcmp(name, "kernel")) return 500;
    *function = (void*)0x123456789abcll;
    return 0;
}
int cuCtxGetCurrent(void** context) { *context = nullptr; return 0; }
int cuDeviceGet(int* device, int index) { *device = index; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)5; return 0; }
int cuCtxSetCurrent(void* context) { return context == (void*)5 ? 0 : 201; }
int cuGetErrorName(int, const char** text) { *text = "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int, const char** text) { *text = "a fake"; return 0; }
}
"""

BLAS = r"""
#include <cstdint>
static int mode = 3;  // as if torch had left TF32 on
static int seen[4];   // compute type, mode at the call, batched, algorithm
extern "C" {
int* fake_seen() { return seen; }
int cublasGetMathMode(void*, int* out) { *out = mode; return 0; }
int cublasSetMathMode(void*, int value) { mode = value; return 0; }
int cublasGemmStridedBatchedEx(
    void* handle, int transa, int transb, int m, int n, int k, const void* alpha,
    const void* a, int atype, int lda, long long astride,
    const void* b, int btype, int ldb, long long bstride, const void* beta,
    void* c, int ctype, int ldc, long long cstride, int batch, int compute, int algo) {
    seen[0] = compute; seen[1] = mode; seen[2] = batch; seen[3] = algo;
    if (handle != (void*)99 || atype || btype || ctype) return 7;
    if (lda < (transa ? k : m) || ldb < (transb ? n : k) || ldc < m) return 7;
    const float al = *(const float*)alpha, be = *(const float*)beta;
    for (long long p = 0; p < batch; ++p)
        for (int i = 0; i < m; ++i)
            for (int j = 0; j < n; ++j) {
                const float* x = (const float*)a + p * astride;
                const float* y = (const float*)b + p * bstride;
                float* z = (float*)c + p * cstride + i + (long long)j * ldc;
                double sum = 0;
                for (int l = 0; l < k; ++l)
                    sum += (double)(transa ? x[l + 1ll * i * lda] : x[i + 1ll * l * lda]) *
                           (transb ? y[j + 1ll * l * ldb] : y[l + 1ll * j * ldb]);
                *z = al * sum + (be == 0 ? 0 : be * *z);
            }
    return 0;
}
int cublasGemmEx(
    void* handle, int transa, int transb, int m, int n, int k, const void* alpha,
    const void* a, int atype, int lda, const void* b, int btype, int ldb, const void* beta,
    void* c, int ctype, int ldc, int compute, int algo) {
    return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, a, atype, lda, 0,
                                      b, btype, ldb, 0, beta, c, ctype, ldc, 0, 1, compute, algo);
}
}
"""


class Launch(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p), ("cluster", ctypes.c_uint * 3),
        ("cooperative", ctypes.c_int), ("x", ctypes.c_void_p), ("y", ctypes.c_void_p),
        ("n", ctypes.c_longlong), ("f", ctypes.c_float), ("i", ctypes.c_int),
        ("d", ctypes.c_double), ("attribute", ctypes.c_int * 16),
    )


def library(source: str, folder: Path) -> ctypes.CDLL:
    (folder / "fake.cpp").write_text(source)
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "fake.cpp", "-o", "fake.so"], cwd=folder,
                   check=True)
    return ctypes.CDLL(str(folder / "fake.so"))


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """Installs the stand-in; returns its record of the last launch."""
    fake = library(DRIVER, tmp_path)
    (tmp_path / "k.cubin").write_bytes(b"cubin")
    monkeypatch.setattr(runtime, "driver", lambda: fake)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda device: 0xABCDEF012345, raising=False
    )
    # CPU tensors stand in for GPU ones: only the check of their device is left out.
    places = lambda name, args, device: tuple(  # noqa: E731
        i for i, a in enumerate(args) if isinstance(a, torch.Tensor)
    )
    monkeypatch.setattr(runtime, "_pointers", places)
    fake.fake_last.restype = ctypes.POINTER(Launch)
    return fake.fake_last().contents


def test_a_launch_passes_everything(driver: Launch, tmp_path: Path) -> None:
    kernel = runtime.Kernel("kernel", tmp_path / "k.cubin")
    x, y = torch.zeros(4), torch.nn.Parameter(torch.zeros(4))
    for n, f, i, d in ((2**40, 0.5, -3, 0.1), (-1, -2.0, 7, 1e300)):
        args = (x, y, n, f, runtime.i32(i), runtime.f64(d))
        kernel((7, 8), 128, *args, shared=100_000, cluster=(2, 1, 2))
        assert driver.function == 0x123456789ABC and driver.stream == 0xABCDEF012345
        assert list(driver.grid) == [7, 8, 1] and list(driver.block) == [128, 1, 1]
        assert driver.shared == 100_000 and list(driver.cluster) == [2, 1, 2]
        assert (driver.x, driver.y) == (x.data_ptr(), y.data_ptr())
        assert (driver.n, driver.f, driver.i, driver.d) == (n, f, i, d)
        assert driver.cooperative == 0
    assert len(kernel._launches) == 1, "the second launch used what the first had prepared"
    assert driver.attribute[8] == 100_000 and driver.attribute[14] == 1
    kernel(1, 1, None, x, 5, 0.0, runtime.i32(0), runtime.f64(0), cooperative=True, shared=5)
    assert (driver.x, driver.y, driver.n) == (None, x.data_ptr(), 5)
    assert driver.cooperative == 1 and list(driver.cluster) == [0, 0, 0]
    assert driver.attribute[8] == 100_000, "an opt-in to much shared memory is never taken back"


def test_mistakes_at_a_launch(driver: Launch, tmp_path: Path) -> None:
    kernel = runtime.Kernel("kernel", tmp_path / "k.cubin")
    x = torch.zeros(4)
    good = (x, x, 1, 0.5, runtime.i32(1), runtime.f64(1))
    with pytest.raises(runtime.KernelError, match=r"grid=1, block=2048.*CUDA_ERROR_FAKE: a fake"):
        kernel(1, 2048, *good)
    with pytest.raises(TypeError, match=r"takes arguments of \[8, 8, 8, 4, 4, 8\] bytes"):
        kernel(1, 1, *good[:5])
    with pytest.raises(ValueError, match="one to three positive sizes"):
        kernel(0, 1, *good)
    assert not runtime.Kernel("other", tmp_path / "k.cubin").handle(0).value
    for grid in range(1, 600):
        kernel(grid, 1, *good)
    assert len(kernel._launches) <= 512


FORMS = ("plain", "transposed", "padded", "every second")


def operand(shape: tuple[int, ...], form: str) -> torch.Tensor:
    *batch, rows, cols = shape
    if form == "transposed":
        return torch.randn(*batch, cols, rows).mT
    if form == "padded":
        return torch.randn(*batch, rows, cols + 2)[..., :cols]
    if form == "every second":
        return torch.randn(*batch, rows, 2 * cols)[..., ::2]
    return torch.randn(*batch, rows, cols)


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ctypes.Array:
    fake = library(BLAS, tmp_path)
    monkeypatch.setattr(runtime_gemm, "_cublas", lambda: fake)
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: 99)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.zeros(1).get_device())
    fake.fake_seen.restype = ctypes.POINTER(ctypes.c_int * 4)
    return fake.fake_seen().contents


@pytest.mark.parametrize("a_form, b_form", list(itertools.product(FORMS, FORMS)))
def test_gemm_call(a_form: str, b_form: str, seen: ctypes.Array) -> None:
    batches = [((), ()), ((3,), (3,)), ((3,), ()), ((), (3,)), ((2, 3), (3,)), ((1,), (2,))]
    for (a_batch, b_batch), (m, k, n) in itertools.product(batches, [(4, 5, 6), (1, 5, 1)]):
        a, b = operand((*a_batch, m, k), a_form), operand((*b_batch, k, n), b_form)
        want = a @ b
        out = torch.full(want.shape, float("nan"))
        assert runtime_gemm._gemm(a, b, out, "fp32", 0.0) is out
        torch.testing.assert_close(out, want)
        assert list(seen[:2]) == [68, 0] and seen[3] == -1
        runtime_gemm._gemm(a, b, out, "tf32", 1.0)
        torch.testing.assert_close(out, 2 * want)
        assert list(seen[:2]) == [77, 0], "the mode is the default at the call"
        mode = ctypes.c_int()
        runtime_gemm._cublas().cublasGetMathMode(None, ctypes.byref(mode))
        assert mode.value == 3, "and torch's afterwards"
    runtime_gemm._gemm(torch.ones(3, 4, 5), torch.ones(5, 6), torch.empty(3, 4, 6), "fp32", 0.0)
    assert seen[2] == 1, "a batch against one matrix is one large product"


def test_tf32x3_sums_three_products(
    seen: ctypes.Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OnGpu(torch.Tensor):
        is_cuda = True

    def split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hi = (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
        return hi.as_subclass(OnGpu), (x - hi).as_subclass(OnGpu)

    monkeypatch.setattr(runtime_gemm, "split_tf32", split)
    a, b = (torch.randn(8, 16).as_subclass(OnGpu), torch.randn(16, 4).as_subclass(OnGpu))
    want = (a.double() @ b.double()).as_subclass(torch.Tensor)
    for left, right in ((a, b), (split(a), b), (a, split(b))):
        got = runtime_gemm.matmul(left, right, precision="tf32x3").as_subclass(torch.Tensor)
        assert ((got.double() - want).norm() / want.norm()).item() < 1e-6
    coarse = runtime_gemm.matmul(split(a)[0], split(b)[0], precision="tf32")
    error = (coarse.as_subclass(torch.Tensor).double() - want).norm() / want.norm()
    assert error.item() > 1e-5, "the small parts matter"


def test_gemm_refusals(seen: ctypes.Array, monkeypatch: pytest.MonkeyPatch) -> None:
    gemm, ones = runtime_gemm._gemm, torch.ones
    out = torch.full((2, 3), float("nan"))
    assert gemm(ones(2, 0), ones(0, 3), out, "fp32", 0.0).tolist() == [[0.0] * 3] * 2
    for a, b, into in (
        (ones(2, 3), ones(2, 3), ones(2, 3)), (ones(2, 3), ones(3, 2).double(), ones(2, 2)),
        (ones(2, 3), ones(3, 2), ones(2, 4)[:, ::2]),
    ):
        with pytest.raises(ValueError, match="does not fit"):
            gemm(a, b, into, "fp32", 0.0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(ValueError, match="current CUDA device"):
        gemm(ones(2, 3), ones(3, 2), ones(2, 2), "fp32", 0.0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: 98)
    with pytest.raises(RuntimeError, match="cuBLAS status 7"):
        gemm(ones(2, 3), ones(3, 2), ones(2, 2), "fp32", 0.0)


def test_cublas_is_found_in_the_process_map(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "7f00-7f01 r--p 0 fd:01 9   /env/nvidia/cu13/lib/libcublasLt.so.13\n"
        "7f02-7f03 r-xp 0 fd:01 9   /env/nvidia/cu13/lib/libcublas.so.13\n"
    )
    loaded = []
    monkeypatch.setattr(runtime_gemm, "Path", lambda p: SimpleNamespace(read_text=lambda: text))
    monkeypatch.setattr(runtime_gemm.ctypes, "CDLL", lambda path: loaded.append(path) or path)
    runtime_gemm._cublas.cache_clear()
    runtime_gemm._cublas()
    runtime_gemm._cublas.cache_clear()
    assert loaded == ["/env/nvidia/cu13/lib/libcublas.so.13"]
