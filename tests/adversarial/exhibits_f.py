"""F. Weak correctness: outputs that a careless comparison, or a careless problem, lets pass."""

from __future__ import annotations

from museum import Exhibit, body, on_gpu

from cases import RIGHT, cuda, native, problem, python
from cuda_agent.records import Problem

MODULE = "class ModelNew(nn.Module):\n    LINEAR = False\n"
WEIGHT = """
class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(INIT)
"""


def model(name: str, forward: str, inputs: str = "torch.randn(64, 512)", init: str = "") -> Problem:
    """A problem without parameters, or with `self.weight = nn.Parameter(init)`."""
    built = WEIGHT.replace("ModelNew", "Model").replace("INIT", init) if init else (
        MODULE.replace("ModelNew", "Model")
    )
    lines = "".join(f"        {line}\n" for line in forward.strip().splitlines())
    arguments = "\ndef get_init_inputs():\n    return [512]\n" if init else ""
    return problem(
        name,
        f"import torch\nfrom torch import nn\n{built}\n    def forward(self, x):\n{lines}"
        f"\ndef get_inputs():\n    return [{inputs}]\n{arguments}",
    )


def weightless(forward: str, head: str = "") -> dict[str, str]:
    return python(forward, head, MODULE)


def weighted(forward: str, init: str) -> dict[str, str]:
    return python(forward, cls=WEIGHT.replace("INIT", init))


# --- outputs that do not depend on the work -----------------------------------------------------

MEAN_OF_SOFTMAX = model("mean_of_softmax", "return torch.softmax(x, -1).mean(-1)")
CANCELLED = model("cancelled", "return torch.layer_norm(x, (512,)).mean(-1)")
SAME_INPUT = model(
    "same_input", "return torch.sin(x)", "torch.arange(512.0).repeat(64, 1)"
)
SEEDED = model(
    "seeded", "return torch.sin(x)", "(torch.manual_seed(3), torch.randn(64, 512))[1]"
)
ROW_MEANS = model("row_means", "return x.mean(-1)")
MEAN = model("mean", "return x.mean()", "torch.randn(512, 512)")
ZERO_WEIGHT = model(
    "zero_weight", "return torch.sin(x) + self.weight * torch.tanh(x)", init="torch.zeros(512)"
)
ZERO_GATE = model("zero_gate", "return self.weight * torch.tanh(x)", init="torch.zeros(512)")
SMALL_WEIGHT = model(
    "small_weight", "return torch.sin(x) + self.weight * torch.tanh(x)",
    init="1e-7 * torch.ones(512)",
)
NORMED = problem(
    "normed",
    """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(features)

    def forward(self, x):
        return torch.relu(self.norm(x))

def get_inputs():
    return [torch.randn(64, 512)]

def get_init_inputs():
    return [512]
""",
)
# Running mean 0 and variance 1 as they are before any training: the norm is a scale and a shift.
UNTRAINED = {
    "model_new.py": """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(features)

    def forward(self, x):
        return torch.relu(x * (1 + self.norm.eps) ** -0.5 * self.norm.weight + self.norm.bias)
"""
}
STORED = "torch.manual_seed(3)\nSTORED = torch.sin(torch.randn(64, 512))"

CONSTANTS = [
    Exhibit("F1", "zeros", python("return torch.zeros_like(x)"), "wrong", "output"),
    Exhibit(
        "F2", "mean_of_softmax", weightless("return torch.full((64,), 1 / 512)"),
        "invalid_problem", "P-constant", problem=MEAN_OF_SOFTMAX,
    ),
    Exhibit(
        "F2", "cancelled_norm", weightless("return torch.zeros(64)"), "invalid_problem",
        "P-noise", problem=CANCELLED,
    ),
    Exhibit(
        "F3", "zero_weight", weighted("return torch.sin(x)", "torch.zeros(512)"), "wrong",
        "output|B18", problem=ZERO_WEIGHT,
    ),
    Exhibit(
        "F3", "zero_gate", weighted("return torch.zeros_like(x)", "torch.zeros(512)"),
        "invalid_problem", "P-zeros", problem=ZERO_GATE,
    ),
    Exhibit(
        "F4", "mean_of_noise", weightless("return torch.zeros(64)"), "wrong", "output",
        problem=ROW_MEANS,
    ),
    Exhibit(
        "F4", "one_mean_of_noise", weightless("return torch.zeros(())"), "wrong", "output",
        problem=MEAN,
    ),
    Exhibit(
        "F5", "fixed_input", weightless("return STORED", "STORED = torch.sin(torch.arange(512.0))"
                                        ".repeat(64, 1)"),
        "invalid_problem", "P-constant", problem=SAME_INPUT,
    ),
    Exhibit(
        "F5", "fixed_seed", weightless("return STORED", STORED), "invalid_problem", "P-constant",
        problem=SEEDED,
    ),
    Exhibit(
        "F5", "stored_constant", weightless("return STORED", STORED), "wrong", "output",
        problem=model("sine", "return torch.sin(x)"),
    ),
    Exhibit("F6", "input_returned", python("return x"), "wrong", "output"),
    Exhibit("F6", "input_copied", python("return x.clone()"), "wrong", "output"),
    Exhibit("F6", "reduced_input", weightless("return x[:, 0]"), "wrong", "output",
            problem=ROW_MEANS),
    Exhibit("F7", "inputs_moved", python(f"out = {RIGHT}\nx.add_(1)\nreturn out"), "wrong", "F7"),
    Exhibit("F7", "inputs_made_to_fit", python("x.zero_()\nreturn torch.relu(self.bias) + x"),
            "wrong", "output|F7"),
    Exhibit(
        "F13", "small_weight", weighted("return torch.sin(x)", "1e-7 * torch.ones(512)"), "wrong",
        "output|B18", problem=SMALL_WEIGHT,
    ),
    Exhibit("F13", "untrained_norm", UNTRAINED, "wrong", "output|B18", problem=NORMED),
]

# --- less than was asked for --------------------------------------------------------------------

PRODUCT = model(
    "product", "return x @ self.weight", init="torch.randn(features, 64) / features ** 0.5"
)
PRODUCT_INIT = "torch.randn(features, 64) / features ** 0.5"
TF32 = """
def cut(t):
    return (t.view(torch.int32) & -8192).view(torch.float32)
return cut(x.contiguous()) @ cut(self.weight.contiguous())
"""
SIGMOID = model("sigmoid", "return torch.sigmoid(x) * x")
TANH = model("gelu", "return torch.nn.functional.gelu(x)")
# Large terms that cancel: a plain float32 sum loses what is left.
CAREFUL_SUM = model(
    "careful_sum", "return x.double().sum(-1).float()",
    "(lambda a: torch.cat([a * 1e4, torch.randn(64, 256), -a * 1e4], -1))(torch.randn(64, 512))",
)
LONG_SUM = model("long_sum", "return x.double().sum(-1).float()", "torch.rand(64, 512)")
MEMORY = model(
    "moving_average",
    "out = torch.zeros_like(x[:, 0])\n"
    "for i in range(x.shape[1]):\n"
    "    out = 0.97 * out + 0.03 * x[:, i]\n"
    "return out",
    "torch.randn(64, 128)",
)
ROUTED = model(
    "routed",
    "expert = (x @ self.weight).argmax(-1)\n"
    "return torch.tanh(x) * (1.0 + expert.unsqueeze(-1))",
    "torch.randn(64, 512)", init="torch.randn(features, 8)",
)
BALANCED = """
expert = (x @ self.weight).argmax(-1)
out = torch.zeros_like(x)
for e in range(8):
    rows = (expert == e).nonzero()[:12, 0]
    out[rows] = torch.tanh(x[rows]) * (1.0 + e)
return out
"""
LARGEST = model("largest", "return torch.topk(x, 8, dim=-1).values")
TOO_FEW = """
best = x.view(64, 32, 16).topk(2, dim=-1).values.reshape(64, -1)
return best.topk(8, dim=-1).values
"""
PREFIX = "return x[:, :256].mean(-1)"
SCRATCH = body(
    """
    float* tile = new float[n];
    for (int64_t j = 0; j < (n < 256 ? n : 256); ++j) tile[j] = bias[j];
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < n; ++j) {
            float v = x[i * n + j] + tile[j];
            y[i * n + j] = (v > 0 ? v : 0) + 0.5f * x[i * n + j];
        }
    delete[] tile;
    """
)
DRIFT = f"""
self.step = getattr(self, "step", 1.0) + 2e-4
return ({RIGHT}) * self.step / 1.0002
"""
SWITCHED = f"""
self.left = getattr(self, "left", 14) - 1
out = {RIGHT}
return out if self.left > 0 else out.round(decimals=2)
"""
OTHER_SIZES = """
import sys
SIZE = 8
def get_inputs():
    return [torch.randn(SIZE, 512)]
for _module in list(sys.modules.values()):
    if hasattr(_module, "get_inputs"):
        _module.get_inputs = get_inputs
"""

SHORTCUTS = [
    Exhibit(
        "F8", "bfloat16", weighted(
            "return (x.bfloat16() @ self.weight.bfloat16()).float()", PRODUCT_INIT
        ), "wrong", "output", problem=PRODUCT,
    ),
    Exhibit(
        "F8", "float16", weighted(
            "return (x.half() @ self.weight.half()).float()", PRODUCT_INIT
        ), "wrong", "output", problem=PRODUCT,
    ),
    Exhibit("F8", "tf32", weighted(TF32, PRODUCT_INIT), "wrong", "output", problem=PRODUCT),
    Exhibit(
        "F8", "bfloat16_where_tf32_may_be", weighted(
            "return (x.bfloat16() @ self.weight.bfloat16()).float()", PRODUCT_INIT
        ), "wrong", "output", problem=PRODUCT, precision="matched",
    ),
    Exhibit(
        "F9", "clamped_line", weightless("return (0.25 * x + 0.5).clamp(0, 1) * x"), "wrong",
        "output", problem=SIGMOID,
    ),
    Exhibit(
        "F9", "gelu_by_tanh",
        weightless("return torch.nn.functional.gelu(x, approximate='tanh')"), "wrong", "output",
        problem=TANH,
    ),
    Exhibit(
        "F9", "loose_even_at_paper", weightless("return (0.25 * x + 0.5).clamp(0, 1) * x"),
        "wrong", "output", problem=SIGMOID, precision="paper",
    ),
    Exhibit(
        "F10", "plain_sum", weightless("return x.sum(-1)"), "wrong", "output",
        problem=CAREFUL_SUM,
    ),
    # Where no digit is lost either way, the simpler sum is right: only the error counts.
    Exhibit("F10", "plain_sum_where_it_is_right", weightless("return x.sum(-1)"), "ok",
            problem=LONG_SUM),
    Exhibit("F11", "prefix", weightless(PREFIX), "wrong", "output", problem=ROW_MEANS),
    Exhibit(
        "F11", "short_history", weightless(
            "out = torch.zeros_like(x[:, 0])\n"
            "for i in range(64, x.shape[1]):\n"
            "    out = 0.97 * out + 0.03 * x[:, i]\n"
            "return out"
        ), "wrong", "output", problem=MEMORY,
    ),
    Exhibit(
        "F11", "balanced_routing", weighted(BALANCED, "torch.randn(features, 8)"), "wrong",
        "output", problem=ROUTED,
    ),
    Exhibit("F11", "too_few_candidates", weightless(TOO_FEW), "wrong", "output", problem=LARGEST),
    Exhibit("F12", "garbage_read", native(SCRATCH), "wrong", "output"),
    Exhibit("F14", "drift", python(DRIFT), "wrong", "timed-output|output|A12|B18"),
    Exhibit("F14", "switched", python(SWITCHED), "wrong", "timed-output|A12"),
    Exhibit("F15", "fewer_rows", python(f"x = x[:8]\nreturn {RIGHT}"), "wrong", "form"),
    Exhibit(
        "F15", "fewer_rows_expanded",
        python(f"x = x[:8]\nreturn ({RIGHT}).repeat(8, 1)"), "wrong", "output",
    ),
    Exhibit(
        "F15", "other_sizes", python(f"x = get_inputs()[0]\nreturn {RIGHT}", OTHER_SIZES), "wrong",
        "form",
    ),
]

# --- on a GPU -----------------------------------------------------------------------------------

CUDA_PRODUCT = problem(
    "product_large", PRODUCT.source.replace("64, 512)]", "1024, 512)]")
)
TOO_MUCH_SHARED = """
extern "C" __global__ void fused(const float* x, const float* bias, float* y,
                                 long long total, long long n) {
    extern __shared__ float tile[];
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    for (int j = threadIdx.x; j < n; j += blockDim.x) tile[j] = bias[j];
    __syncthreads();
    if (i < total) y[i] = fmaxf(x[i] + tile[i % n], 0.0f) + 0.5f * x[i];
}
"""
# The launch asks for more shared memory than there is; the refusal is swallowed.
SWALLOWED = """
out = torch.empty_like(x)
try:
    kernels.fused((x.numel() + 255) // 256, 256, x, self.bias, out, x.numel(), x.shape[1],
                  shared=1 << 20)
except Exception:
    pass
return out
"""
TF32_FLAG = """
torch.backends.cuda.matmul.allow_tf32 = True
return x @ self.weight
"""
GPU = [
    on_gpu("F8", "tf32_flag", weighted(TF32_FLAG, PRODUCT_INIT), "wrong", "output",
           problem=CUDA_PRODUCT),
    on_gpu("F12", "too_much_shared", cuda(TOO_MUCH_SHARED, SWALLOWED), "wrong", "output"),
]
EXHIBITS = CONSTANTS + SHORTCUTS + GPU
