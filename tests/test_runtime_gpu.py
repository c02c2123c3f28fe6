"""runtime.py on a GPU: launches, clusters, shared memory, cuBLAS products, graphs."""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cuda_agent import runtime, targets

pytestmark = pytest.mark.gpu

SOURCE = r"""
extern "C" __global__ void scale(const float* x, float* y, long long n, float a) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
extern "C" __global__ void kinds(double* out, long long n, float f, int i, double d,
                                 const float* none) {
    out[0] = n; out[1] = f; out[2] = i; out[3] = d; out[4] = none == nullptr;
}
extern "C" __global__ void indices(int* out) {  // grid and block in three dimensions
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int threads = blockDim.x * blockDim.y * blockDim.z;
    out[block * threads + thread] = block * threads + thread;
}
extern "C" __global__ void reverse(const float* x, float* y, int n) {  // all of x in shared memory
    extern __shared__ float tile[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = tile[n - 1 - i];
}
extern "C" __global__ void cluster_rank(int* out) {
    unsigned rank, size;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    if (threadIdx.x == 0) out[blockIdx.x] = 100 * size + rank;
}
extern "C" __global__ void empty(const float* a, const float* b, float* c, long long n) {}
"""


@pytest.fixture(autouse=True)
def gpu() -> None:
    reason = targets.get("cuda").unavailable()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> runtime.Kernels:
    folder = tmp_path_factory.mktemp("solution")
    (folder / "kernels").mkdir()
    (folder / "kernels/all.cu").write_text(SOURCE)
    return runtime.load(str(folder / "model_new.py"))


# --- launches ---------------------------------------------------------------------------------


def test_launch_and_arguments(kernels: runtime.Kernels) -> None:
    x = torch.randn(10_001, device="cuda")
    y = torch.zeros_like(x)
    kernels.scale(40, 256, x, y, x.numel(), 2.5)
    torch.testing.assert_close(y[:10_000], 2.5 * x[:10_000])
    kernels.scale((40,), (256, 1), x, y, 5, -1.0)  # the same kernel, another form of launch
    torch.testing.assert_close(y[:5], -x[:5])
    out = torch.zeros(5, dtype=torch.float64, device="cuda")
    for n in (2**40, -1):
        kernels.kinds(1, 1, out, n, 0.5, runtime.i32(-3), runtime.f64(0.1), None)
        assert out.tolist() == [n, 0.5, -3, 0.1, 1]


def test_three_dimensions(kernels: runtime.Kernels) -> None:
    out = torch.full((2 * 3 * 4 * 5 * 6 * 7,), -1, dtype=torch.int32, device="cuda")
    kernels.indices((2, 3, 4), (5, 6, 7), out)
    assert torch.equal(out.cpu(), torch.arange(out.numel(), dtype=torch.int32))


def test_current_stream_is_used(kernels: runtime.Kernels) -> None:
    x = torch.ones(1 << 20, device="cuda")
    y = torch.zeros_like(x)
    side = torch.cuda.Stream()
    kernels.scale(4096, 256, x, y, 0, 3.0)  # loads the module, which waits for the device
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # about 0.1 s
        kernels.scale(4096, 256, x, y, x.numel(), 3.0)
    assert not side.query(), "the launch must wait in the side stream and not block"
    side.synchronize()
    assert y.sum().item() == 3 * x.numel()


def test_launch_from_another_thread(kernels: runtime.Kernels) -> None:
    x = torch.ones(256, device="cuda")
    y = torch.zeros_like(x)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            kernels.scale(1, 256, x, y, 256, 4.0)
            torch.cuda.synchronize()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures and y.sum().item() == 4 * 256


def test_more_shared_memory_than_the_default(kernels: runtime.Kernels) -> None:
    most = targets.get("cuda").facts().shared_bytes_per_block
    for shared in (most, 4096, most):
        n = shared // 4
        x, y = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")
        kernels.reverse(1, 1024, x, y, runtime.i32(n), shared=shared)
        assert torch.equal(y, x.flip(0))
    with pytest.raises(runtime.KernelError, match="CUDA_ERROR_INVALID_VALUE"):
        kernels.reverse(1, 32, x, y, runtime.i32(1), shared=most + 1024)


@pytest.mark.parametrize("cluster", [1, 2, 8, 16, (4, 1, 1)])
def test_cluster_launch(kernels: runtime.Kernels, cluster: int | tuple[int, ...]) -> None:
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("clusters need compute capability 9.0")
    size = cluster if isinstance(cluster, int) else cluster[0]
    out = torch.zeros(32, dtype=torch.int32, device="cuda")
    kernels.cluster_rank(32, 64, out, cluster=cluster)
    assert out.tolist() == [100 * size + i % size for i in range(32)]


def test_cooperative_launch(kernels: runtime.Kernels) -> None:
    x = torch.ones(256, device="cuda")
    y = torch.zeros_like(x)
    kernels.scale(1, 256, x, y, 256, 2.0, cooperative=True)
    assert y.sum().item() == 512


def test_mistakes_are_said_before_or_at_the_launch(kernels: runtime.Kernels) -> None:
    x = torch.ones(4, device="cuda")
    with pytest.raises(runtime.KernelError, match=r"scale at grid=1, block=2048.*INVALID"):
        kernels.scale(1, 2048, x, x, 4, 1.0)
    with pytest.raises(TypeError, match="scale takes arguments of"):
        kernels.scale(1, 32, x, x, 4)
    with pytest.raises(TypeError, match="scale takes arguments of"):
        kernels.scale(1, 32, x, x, runtime.i32(4), 1.0)
    with pytest.raises(ValueError, match="argument 1 lies on cpu"):
        kernels.scale(1, 32, x, x.cpu(), 4, 1.0)
    with pytest.raises(AttributeError, match="no extern"):
        _ = kernels.nothing
    kernels.scale(1, 32, x, x, 4, 7.0)  # none of this has harmed the context
    assert x.tolist() == [7.0] * 4


def _seconds_a_call(call: Callable[[], object]) -> float:
    for _ in range(100):
        call()
    best = float("inf")
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(300):
            call()
        best = min(best, (time.perf_counter() - start) / 300)
    torch.cuda.synchronize()
    return best


def test_launch_overhead_is_that_of_a_torch_op(kernels: runtime.Kernels) -> None:
    """The driver's own share differs between machines, so the yardstick is torch's launch."""
    x = torch.ones(4, device="cuda")
    ours = _seconds_a_call(lambda: kernels.empty(1, 32, x, x, x, 4))
    theirs = _seconds_a_call(lambda: x.add_(1.0))
    print(f"launch: {ours * 1e6:.2f} us, torch's add_: {theirs * 1e6:.2f} us")
    assert ours < 2 * theirs, f"{ours * 1e6:.2f} us a launch, torch's add_ {theirs * 1e6:.2f} us"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
def test_host_launcher(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/run.cu").write_text(r"""
#include <cuda_runtime.h>
#include <cstdint>
__global__ void kernel(float* x, int64_t n, float a) { if (threadIdx.x < n) x[threadIdx.x] += a; }
extern "C" void run(float* x, int64_t n, float a, void* stream) {
    kernel<<<1, 64, 0, static_cast<cudaStream_t>(stream)>>>(x, n, a);
}
""")
    x = torch.ones(64, device="cuda")
    runtime.load_host(str(tmp_path / "model_new.py")).run(x, 3, 0.5, runtime.current_stream())
    assert x[:4].tolist() == [1.5, 1.5, 1.5, 1.0]


# --- cuBLAS -----------------------------------------------------------------------------------

FORMS = ("plain", "transposed", "padded", "padded transposed", "strided")
# Largest relative error (Frobenius) against float64 for K = 512.
BOUNDS = {"fp32": 2e-6, "tf32x3": 1e-5, "tf32": 1e-3, "bf16": 8e-3}


def operand(shape: tuple[int, ...], form: str) -> torch.Tensor:
    *batch, rows, cols = shape
    if form == "transposed":
        return torch.randn(*batch, cols, rows, device="cuda").mT
    if form == "padded":
        return torch.randn(*batch, rows, cols + 4, device="cuda")[..., :cols]
    if form == "padded transposed":
        return torch.randn(*batch, cols, rows + 4, device="cuda")[..., :rows].mT
    if form == "strided":  # cuBLAS cannot read it: a copy is made
        return torch.randn(*batch, rows, 2 * cols, device="cuda")[..., ::2]
    return torch.randn(*batch, rows, cols, device="cuda")


def relative_error(got: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> float:
    want = a.double() @ b.double()
    return ((got.double() - want).norm() / want.norm()).item()


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("a_form, b_form", list(itertools.product(FORMS, FORMS)))
def test_matmul_layouts(a_form: str, b_form: str, precision: str) -> None:
    for a_batch, b_batch in (((), ()), ((3,), (3,)), ((3,), ()), ((), (3,)), ((2, 3), (3,))):
        a, b = operand((*a_batch, 48, 512), a_form), operand((*b_batch, 512, 80), b_form)
        before = a.clone(), b.clone()
        got = runtime.matmul(a, b, precision=precision)
        assert got.is_contiguous() and got.shape == (a @ b).shape
        assert relative_error(got, a, b) < BOUNDS[precision]
        assert torch.equal(a, before[0]) and torch.equal(b, before[1])


def test_fp32_stays_fp32_whatever_torch_allows() -> None:
    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    allowed = torch.backends.cuda.matmul.allow_tf32
    try:
        errors = {}
        for flag in (True, False):
            torch.backends.cuda.matmul.allow_tf32 = flag
            _ = a @ b  # leaves the handle in this mode
            for precision in ("fp32", "tf32"):
                got = runtime.matmul(a, b, precision=precision)
                errors[flag, precision] = relative_error(got, a, b)
            after = relative_error(a @ b, a, b)
            assert (after > 1e-5) == flag, "torch's own product must keep its mode"
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    assert errors[True, "fp32"] < 2e-6 and errors[False, "fp32"] < 2e-6
    assert errors[True, "tf32"] > 1e-5 and errors[False, "tf32"] > 1e-5


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_tf32x3_keeps_float32_accuracy(scale: float) -> None:
    a = scale * torch.randn(1024, 4096, device="cuda")
    b = torch.randn(4096, 1024, device="cuda")
    error = relative_error(runtime.matmul(a, b, precision="tf32x3"), a, b)
    assert error < 3e-5, error
    assert error * 10 < relative_error(runtime.matmul(a, b, precision="tf32"), a, b)


def test_split_operands() -> None:
    for x in (
        torch.randn(1003, device="cuda")[3:].view(10, 100),  # not aligned to 16 bytes
        torch.randn(64, 33, device="cuda").t(),
        torch.randn(64, 33, device="cuda")[:, ::2].t(),
        torch.randn(8, 8, device="cuda").expand(4, 8, 8),
    ):
        hi, lo = runtime.split_tf32(x)
        assert hi.shape == x.shape
        assert ((hi.double() + lo.double() - x.double()).abs() <= 2.0**-22 * x.abs()).all()
        for part in (hi, lo):  # TF32 has ten bits of mantissa: the others are zero
            assert not (part.contiguous().view(torch.int32) & 0x1FFF).any()
    x = torch.tensor([float("inf"), -float("inf"), 3.4028e38, 0.0], device="cuda")
    hi, lo = runtime.split_tf32(x)
    assert torch.equal(hi[[0, 1, 3]], x[[0, 1, 3]]) and not lo[[0, 1, 3]].any()
    assert hi[2].isfinite() and abs((hi + lo)[2].item() / x[2].item() - 1) < 2.0**-21
    assert runtime.split_tf32(torch.tensor([float("nan")], device="cuda"))[0].isnan().all()
    a, b = torch.randn(32, 64, device="cuda"), torch.randn(64, 16, device="cuda")
    split = runtime.Derived(runtime.split_tf32, b)
    want = runtime.matmul(a, b, precision="tf32x3")
    assert torch.equal(runtime.matmul(a, split(), precision="tf32x3"), want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    a, b = torch.randn(3, 64, 128, device="cuda").to(dtype), torch.randn(128, 32, device="cuda")
    b = b.to(dtype)
    got = runtime.matmul(a, b)
    assert got.dtype == dtype
    assert relative_error(got, a, b) < {2: 4e-3, 8: 1e-14}[dtype.itemsize]
    if dtype != torch.float64:
        wide = torch.empty(3, 64, 32, device="cuda")
        assert runtime.matmul(a, b, out=wide) is wide
        assert relative_error(wide, a, b) < 2e-6, "sums are float32"


def test_matmul_edges() -> None:
    def ones(*shape: int) -> torch.Tensor:
        return torch.ones(*shape, device="cuda")

    assert runtime.matmul(ones(0, 4), ones(4, 3)).shape == (0, 3)
    out = torch.full((2, 3), float("nan"), device="cuda")
    for precision in ("fp32", "tf32x3"):
        assert runtime.matmul(ones(2, 0), ones(0, 3), out, precision).tolist() == [[0.0] * 3] * 2
        assert runtime.matmul(ones(1, 4), ones(4, 1), precision=precision).item() == 4
    with pytest.raises(ValueError, match="does not fit"):
        runtime.matmul(ones(2, 3), ones(2, 3))
    with pytest.raises(ValueError, match="does not fit"):
        runtime.matmul(ones(2, 3), ones(3, 2), out=ones(2, 4)[:, ::2])
    with pytest.raises(ValueError, match="current CUDA device"):
        runtime.matmul(ones(2, 3), torch.ones(3, 2))


# --- graphs and derived values ----------------------------------------------------------------


def test_graphed(kernels: runtime.Kernels) -> None:
    linear = torch.nn.Linear(64, 64, device="cuda").requires_grad_(False)
    calls = []
    derived = runtime.Derived(lambda w: w * 1, linear.weight)

    def forward(x: torch.Tensor, a: float) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(1)
        y = torch.empty_like(x)
        kernels.scale(-(-x.numel() // 256), 256, x, y, x.numel(), a)
        return runtime.matmul(y, derived().t()), y

    graphed = runtime.Graphed(forward, linear)
    kept = []
    for i in range(4):
        x = torch.randn(32, 64, device="cuda")
        out, y = graphed(x, 2.0)
        kept.append((out, y, x))
        assert len(calls) == 3, f"two warm-ups and one capture, then replays only (call {i})"
    for out, y, x in kept:  # outputs are fresh: a later replay does not overwrite them
        torch.testing.assert_close(y, 2 * x)
        torch.testing.assert_close(out, 2 * x @ linear.weight.t(), rtol=1e-4, atol=1e-4)
    graphed(torch.randn(8, 64, device="cuda"), 2.0)
    assert len(calls) == 6, "another shape is another graph"
    linear.weight.mul_(-1)
    x = torch.randn(8, 64, device="cuda")
    out, _ = graphed(x, 2.0)
    torch.testing.assert_close(out, 2 * x @ linear.weight.t(), rtol=1e-4, atol=1e-4)
    assert len(calls) == 9, "changed weights are a new graph, since derived values went stale"


def test_graphed_on_the_callers_stream_and_in_inference_mode() -> None:
    graphed = runtime.Graphed(lambda x: x + 1)
    with torch.inference_mode():
        assert graphed(torch.zeros(4, device="cuda")).tolist() == [1.0] * 4
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        out = graphed(torch.ones(4, device="cuda"))
    side.synchronize()
    assert out.tolist() == [2.0] * 4


def test_expect_on_the_gpu() -> None:
    x = torch.ones(2, 3, device="cuda")
    assert runtime.expect("x", x, (2, 3), torch.float32, "cuda") is x
    with pytest.raises(ValueError, match="on cpu"):
        runtime.expect("x", x.cpu(), (2, 3), torch.float32, "cuda")
