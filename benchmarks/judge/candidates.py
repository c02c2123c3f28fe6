"""One kernel, y = gelu(x + bias), as many distinct candidates, in the form of each evaluator."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent.records import Candidate, Problem

PROBLEM_TEXT = """
import torch
from torch import nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return F.gelu(x + self.bias)

def get_inputs():
    return [torch.randn(ROWS, 4096)]

def get_init_inputs():
    return [4096]
"""


def problem(target: str) -> Problem:
    """67 MB of input on a GPU, 1 MB on a CPU."""
    text = PROBLEM_TEXT.replace("ROWS", "4096" if target == "cuda" else "64")
    return Problem("bias_gelu", text, "bias_gelu.py")


KERNEL = """
// candidate {number}
extern "C" __global__ void __launch_bounds__({threads}) fused(
    const float* __restrict__ x, const float* __restrict__ bias, float* __restrict__ y,
    long long n, int columns) {{
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n / 4; i += step) {{
        float4 v = reinterpret_cast<const float4*>(x)[i];
        float4 b = reinterpret_cast<const float4*>(bias)[i % (columns / 4)];
        float in[4] = {{v.x + b.x, v.y + b.y, v.z + b.z, v.w + b.w}}, out[4];
        #pragma unroll
        for (int k = 0; k < 4; ++k)
            out[k] = 0.5f * in[k] * (1.0f + erff(in[k] * 0.70710678118654752f));
        reinterpret_cast<float4*>(y)[i] = make_float4(out[0], out[1], out[2], out[3]);
    }}
}}
"""
CPU_KERNEL = """
// candidate {number}
#include <cmath>
#include <cstdint>
extern "C" void fused(const float* x, const float* bias, float* y, int64_t rows, int64_t n) {{
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < n; ++j) {{
            float v = x[i * n + j] + bias[j];
            y[i * n + j] = 0.5f * v * (1.0f + std::erf(v * 0.70710678f));
        }}
}}
"""
CLASS = """
class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, x):
        {body}
"""
RUNTIME = """
import importlib.util, pathlib
import torch
from torch import nn
_file = pathlib.Path(__file__).with_name("runtime.py")
_spec = importlib.util.spec_from_file_location(f"runtime_{__name__}", _file)
runtime = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(runtime)
kernels = runtime.load(__file__)
"""


@dataclass(frozen=True)
class Variant:
    """A launch that differs from the others in its text and, among a few, in its speed."""

    number: int

    @property
    def threads(self) -> int:
        return (128, 256, 512)[self.number % 3]

    @property
    def blocks(self) -> int:
        return 132 * (4, 8, 16, 32)[self.number % 4]

    @property
    def kernel(self) -> str:
        return KERNEL.format(number=self.number, threads=self.threads)


def native(variant: Variant, target: str, trusted: bool) -> Candidate:
    """Our own form; `trusted` as if a skill of ours had written it."""
    if target == "cuda":
        files = {"kernels/fused.cu": variant.kernel}
        launch = (
            f"kernels.fused({variant.blocks}, {variant.threads}, x, self.bias, y, x.numel(), "
            "x.shape[-1])"
        )
    else:
        files = {"kernels/fused.cpp": CPU_KERNEL.format(number=variant.number)}
        launch = "kernels.fused(x, self.bias, y, x.shape[0], x.shape[1])"
    lines = ("x = x.contiguous()", "y = torch.empty_like(x)", launch, "return y")
    body = "\n        ".join(lines)
    files["model_new.py"] = RUNTIME + CLASS.format(body=body)
    return Candidate(problem(target).hash, files, author="benchmark", trusted=trusted)


def kernelbench(variant: Variant) -> str:
    """The form of KernelBench: one file that builds with load_inline."""
    launcher = f"""
#include <c10/cuda/CUDAStream.h>
{variant.kernel}
torch::Tensor launch(torch::Tensor x, torch::Tensor bias) {{
    auto y = torch::empty_like(x);
    fused<<<{variant.blocks}, {variant.threads}, 0, c10::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(), x.numel(),
        (int)x.size(1));
    return y;
}}
"""
    head = f"""
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline
built = load_inline(
    name="fused_{variant.number}", cuda_sources={launcher!r}, functions=["launch"],
    cpp_sources="torch::Tensor launch(torch::Tensor x, torch::Tensor bias);",
)
"""
    return head + CLASS.format(body="return built.launch(x.contiguous(), self.bias)")


def work_folder(variant: Variant) -> dict[str, str]:
    """The form of the published work folder: what goes over its example files."""
    launcher = f"""
#include <cuda_runtime.h>
{variant.kernel}
extern "C" void fused_launcher(float* y, const float* x, const float* bias, long long n,
                               int columns, cudaStream_t stream) {{
    fused<<<{variant.blocks}, {variant.threads}, 0, stream>>>(x, bias, y, n, columns);
}}
"""
    binding = """
#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
#include <cuda_runtime.h>
#include <c10/cuda/CUDAStream.h>
#include "../binding_registry.h"
extern "C" void fused_launcher(float*, const float*, const float*, long long, int, cudaStream_t);
static torch::Tensor fused_forward(torch::Tensor x, torch::Tensor bias) {
    auto y = torch::empty_like(x);
    fused_launcher(y.data_ptr<float>(), x.data_ptr<float>(), bias.data_ptr<float>(), x.numel(),
                   (int)x.size(1), c10::cuda::getCurrentCUDAStream().stream());
    return y;
}
static void register_fused(pybind11::module& m) {
    m.def("fused_forward", &fused_forward);
}
REGISTER_BINDING(fused, register_fused);
"""
    head = "import torch\nfrom torch import nn\nimport cuda_extension\n"
    return {
        "model.py": problem("cuda").source,
        "model_new.py": head
        + CLASS.format(body="return cuda_extension.fused_forward(x.contiguous(), self.bias)"),
        "kernels/fused.cu": launcher,
        "kernels/fused_binding.cpp": binding,
    }
