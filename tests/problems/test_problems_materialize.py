"""Instances: casting, seeds, styles, precision swaps, odd files, memory."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from cuda_agent.errors import ProblemError, SettingsError
from cuda_agent.problems import STYLES, Instance, load_problem, materialize, memory
from cuda_agent.problems import materialize as materialize_problem
from cuda_agent.problems.tree import tensors

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
INIT = "\ndef get_init_inputs():\n    return []\n"


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Text after HEAD -> Instance on the CPU."""
    monkeypatch.chdir(tmp_path)

    def _build(text: str, dtype: str = "float32", seed: int = 0) -> Instance:
        (tmp_path / "my.py").write_text(HEAD + text)
        return materialize_problem(load_problem("my.py", dtype=dtype), "cpu", seed=seed)

    return _build


LABELS = """
class Model(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes))
        self.register_buffer("offset", torch.arange(classes))
        self.register_buffer("scale", torch.ones(classes, dtype=torch.float64))
    def forward(self, logits, labels, keep):
        loss = F.cross_entropy(logits * self.weight * self.scale, labels, reduction="none")
        return torch.where(keep, loss, 0.0)
CLASSES = 10
def get_inputs():
    return [torch.randn(6, CLASSES), torch.randint(0, CLASSES, (6,)), torch.rand(6) > 0.5]
def get_init_inputs():
    return [CLASSES]
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_only_floating_tensors_are_cast(build, dtype: str) -> None:
    instance = build(LABELS, dtype)
    want = getattr(torch, dtype)
    logits, labels, keep = instance.inputs(1)
    assert (logits.dtype, labels.dtype, keep.dtype) == (want, torch.int64, torch.bool)
    model = instance.model
    assert model.weight.dtype == model.scale.dtype == want and model.offset.dtype == torch.int64
    assert not model.training
    assert instance.reference((logits, labels, keep)).dtype == want
    assert instance.reference((logits, labels, keep), torch.float64).dtype == torch.float64
    assert model.weight.dtype == want


def test_labels_stay_valid_in_every_style(build) -> None:
    instance = build(LABELS)
    plain = instance.inputs(7)
    for style in STYLES:
        logits, labels, keep = instance.inputs(7, style)
        assert torch.equal(labels, plain[1]) and torch.equal(keep, plain[2]), style
        assert logits.shape == plain[0].shape
        instance.reference((logits, labels, keep))


SIMPLE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
    def forward(self, x):
        return self.linear(x)
def get_inputs():
    return [torch.randn(3, 8)]
"""


def test_seeds_decide_parameters_and_inputs_and_nothing_else(build) -> None:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    expected = (torch.rand(1).item(), random.random(), np.random.rand())
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    a, b, c = build(SIMPLE, seed=1), build(SIMPLE, seed=1), build(SIMPLE, seed=2)
    assert torch.equal(a.model.linear.weight, b.model.linear.weight)
    assert not torch.equal(a.model.linear.weight, c.model.linear.weight)
    assert torch.equal(a.inputs(3)[0], b.inputs(3)[0])
    assert not torch.equal(a.inputs(3)[0], a.inputs(4)[0])
    a.inputs(2**63 + 12345)
    assert expected == (torch.rand(1).item(), random.random(), np.random.rand())


def test_styles_do_what_they_say(build) -> None:
    instance = build(SIMPLE)
    x = instance.inputs(1)[0]
    made = {style: instance.inputs(1, style)[0] for style in STYLES}
    assert torch.equal(made["random"], x)
    assert torch.equal(made["zeros"], torch.zeros_like(x))
    assert torch.equal(made["ones"], torch.ones_like(x))
    assert torch.equal(made["large"], x * 100) and torch.equal(made["small"], x * 1e-3)
    assert torch.equal(made["negative"], -x.abs())
    rows = made["mixed"].abs().amax(-1) / x.abs().amax(-1)
    assert rows.max() <= 100 and rows.max() / rows.min() > 1.5
    assert torch.equal(made["mixed"], instance.inputs(1, "mixed")[0])
    assert torch.equal(made["noncontiguous"], x) and not made["noncontiguous"].is_contiguous()
    with pytest.raises(SettingsError, match="no input style `odd`"):
        instance.inputs(1, "odd")


def test_noncontiguous_vectors(build) -> None:
    instance = build(SIMPLE.replace("randn(3, 8)", "randn(8)"))
    x = instance.inputs(1, "noncontiguous")[0]
    assert x.stride() == (2,) and torch.equal(x, instance.inputs(1)[0])


BCE = """
class Model(nn.Module):
    def forward(self, p, t):
        return F.binary_cross_entropy(p, t, reduction="none")
def get_inputs():
    return [torch.rand(64), torch.rand(64)]
"""
INDEX = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(11))
    def forward(self, x):
        return self.table[(x * 10).long()]
def get_inputs():
    return [torch.rand(64)]
"""


@pytest.mark.parametrize("text", [BCE, INDEX])
def test_styles_stay_in_the_domain_where_leaving_it_would_kill_a_gpu(build, text: str) -> None:
    instance = build(text)
    assert instance.bounded
    for style in STYLES:
        inputs = instance.inputs(1, style)
        assert float(inputs[0].min()) >= 0 and float(inputs[0].max()) <= 1, style
        instance.reference(inputs)
    assert not build(SIMPLE).bounded


def test_reference_leaves_inputs_and_parameters_alone(build) -> None:
    text = SIMPLE.replace("return self.linear(x)", "return self.linear(x.mul_(2).relu_())")
    instance = build(text)
    inputs = instance.inputs(1)
    kept = inputs[0].clone()
    address = instance.model.linear.weight.data_ptr()
    first, second = instance.reference(inputs), instance.reference(inputs)
    exact = instance.reference(inputs, torch.float64)
    assert torch.equal(inputs[0], kept) and torch.equal(first, second)
    assert exact.dtype == torch.float64 and torch.allclose(exact, first.double(), atol=1e-6)
    assert instance.model.linear.weight.data_ptr() == address


CLOSURE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.tied = self.rnn.weight_ih_l0
        self.plain = torch.randn(8, 8)
        inner = nn.Linear(8, 8)
        self.inner = inner
        self.call = lambda x: inner(x) @ self.plain
    def forward(self, x):
        y, (h, c) = self.rnn(x)
        return {"out": self.call(y), "state": [h, c @ self.tied[:8]]}
def get_inputs():
    return [torch.randn(2, 5, 8)]
"""


def test_float64_reaches_closures_rnn_weights_tied_and_plain_tensors(build) -> None:
    instance = build(CLOSURE)
    inputs = instance.inputs(1)
    exact = tensors(instance.reference(inputs, torch.float64))
    plain = tensors(instance.reference(inputs))
    assert [t.dtype for t in exact] == [torch.float64] * 3
    assert [t.dtype for t in plain] == [torch.float32] * 3
    for a, b in zip(exact, plain):
        assert torch.allclose(a, b.double(), atol=1e-5) and not torch.equal(a, b.double())
    assert instance.model.plain.dtype == torch.float32


def test_nested_scalar_and_none_inputs(build) -> None:
    instance = build(
        """
class Model(nn.Module):
    def forward(self, pair, table, power, bias):
        y = pair[0] + pair[1][0] + table["x"] ** power
        return y if bias is None else y + bias
def get_inputs():
    pair = (torch.rand(3), [torch.rand(3)])
    return [pair, {"x": torch.rand(3), "kind": "a"}, 2, None]
""",
        "bfloat16",
    )
    inputs = instance.inputs(1, "ones")
    assert inputs[0][0].dtype == torch.bfloat16 and inputs[1]["kind"] == "a"
    assert inputs[2:] == (2, None)
    assert instance.reference(inputs).tolist() == [3.0] * 3
    assert instance.input_bytes == 3 * 3 * 2


def test_inputs_by_name_and_a_lone_tensor(build) -> None:
    by_name = build(
        """
class Model(nn.Module):
    def forward(self, x, scale=2.0, shift=None):
        return x * scale + shift
def get_inputs():
    return {"shift": torch.ones(4), "x": torch.zeros(4)}
"""
    )
    assert by_name.inputs(1)[1] == 2.0
    assert by_name.reference(by_name.inputs(1)).tolist() == [1.0] * 4
    lone = build(SIMPLE.replace("[torch.randn(3, 8)]", "torch.randn(3, 8)"))
    assert lone.inputs(1)[0].shape == (3, 8)


@pytest.mark.parametrize(
    ("returned", "args", "kwargs"),
    [
        ("[4, {'p': 2}]", (4, {"p": 2}), {}),
        ("[[4], {'options': {'p': 2}}]", (4, {"p": 2}), {}),
        ("{'size': 4, 'options': {'p': 2}}", (4, {"p": 2}), {}),
        ("[4]", (4,), {}),
    ],
)
def test_init_inputs(build, returned: str, args: tuple, kwargs: dict) -> None:
    instance = build(
        f"""
class Model(nn.Module):
    def __init__(self, size, options=None):
        super().__init__()
        self.size, self.options = size, options
    def forward(self, x):
        return x * self.size
def get_inputs():
    return [torch.rand(3)]
def get_init_inputs():
    return {returned}
"""
    )
    assert (instance.init_inputs, instance.init_kwargs) == (args, kwargs)
    assert instance.model.size == 4


def test_keyword_only_init_inputs(build) -> None:
    text = SIMPLE.replace("def __init__(self)", "def __init__(self, *, width)")
    instance = build(text + "def get_init_inputs():\n    return [[], {'width': 8}]\n")
    assert (instance.init_inputs, instance.init_kwargs) == ((), {"width": 8})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            SIMPLE.replace("return [torch.randn(3, 8)]", "raise ValueError('no data here')"),
            "my.py, line 12: get_inputs() raised ValueError: no data here; it must return the list",
        ),
        (
            SIMPLE.replace("[torch.randn(3, 8)]", "3"),
            "my.py: get_inputs() returned `int`; it must return the list of forward arguments",
        ),
        (
            SIMPLE.replace("[torch.randn(3, 8)]", "{'y': torch.randn(3, 8)}"),
            "my.py: the dict of get_inputs() does not fit forward",
        ),
        (
            SIMPLE.replace("__init__(self)", "__init__(self, width)"),
            "my.py: Model(*get_init_inputs()) raised TypeError",
        ),
        (
            SIMPLE + "def get_init_inputs():\n    return undefined_name\n",
            "my.py, line 14: get_init_inputs() raised NameError",
        ),
    ],
)
def test_files_that_cannot_be_built(build, text: str, expected: str) -> None:
    with pytest.raises(ProblemError) as caught:
        build(text)
    assert str(caught.value).startswith(expected) and "\n" not in str(caught.value)


def test_forward_that_raises_names_the_users_line(build) -> None:
    instance = build(SIMPLE.replace("randn(3, 8)", "randn(3, 9)"))
    with pytest.raises(ProblemError) as caught:
        instance.reference(instance.inputs(1))
    assert str(caught.value).startswith("my.py, line 10: forward of `Model` raised RuntimeError")


@pytest.mark.parametrize(
    ("returned", "kind"),
    [
        ("3.0", "`float`"),
        ("[x, 'mean']", "`str` at output[1]"),
        ("{'loss': x.sum().item()}", "`float` at output['loss']"),
        ("None", "no tensor"),
        ("[]", "no tensor"),
        ("x.to_sparse()", "a torch.sparse_coo tensor"),
    ],
)
def test_output_that_is_no_tensor(build, returned: str, kind: str) -> None:
    instance = build(SIMPLE.replace("self.linear(x)", returned))
    with pytest.raises(ProblemError) as caught:
        instance.reference(instance.inputs(1))
    assert str(caught.value) == (
        f"my.py: forward returned {kind}; it must return a tensor or a nested tuple, list or dict "
        "of tensors."
    )


def test_none_beside_a_tensor_is_an_output(build) -> None:
    instance = build(SIMPLE.replace("return self.linear(x)", "return self.linear(x), None"))
    out, nothing = instance.reference(instance.inputs(1))
    assert out.shape == (3, 4) and nothing is None


def test_inputs_that_do_not_fit_say_both_sizes(build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 10_000_000_000)
    with pytest.raises(ProblemError) as caught:
        build(SIMPLE.replace("randn(3, 8)", "randn(1_000_000_000, 8)"))
    # 32 GB of inputs and 16 GB of outputs; nothing of it was allocated.
    assert str(caught.value) == (
        "my.py needs at least 48.0 GB for parameters, inputs and outputs, but 10.0 GB are free on "
        "cpu; use smaller shapes or free memory."
    )


def test_half_the_element_size_needs_half_the_memory(build, monkeypatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 10_000_000_000)
    with pytest.raises(ProblemError, match=r"needs at least 24\.0 GB"):
        build(SIMPLE.replace("randn(3, 8)", "randn(1_000_000_000, 8)"), "bfloat16")


def test_code_that_meta_tensors_cannot_run_is_still_built(build) -> None:
    text = SIMPLE.replace("[torch.randn(3, 8)]", "[torch.randn(3, 8) * torch.rand(1).item()]")
    assert build(text).inputs(1)[0].shape == (3, 8)


def test_free_bytes_of_the_cpu_is_plausible() -> None:
    free = memory.free_bytes(torch.device("cpu"))
    assert free is None or 2**20 < free < 2**50


def test_helper_classes_and_globals_of_the_file(build) -> None:
    instance = build(
        """
WIDTH = 8
class Scale(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = by
    def forward(self, x):
        return x * self.by * WIDTH
def twice(x):
    return x * 2
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = Scale(0.5)
    def forward(self, x):
        return twice(self.scale(x))
def get_inputs():
    return [torch.ones(WIDTH)]
"""
    )
    assert instance.reference(instance.inputs(1)).tolist() == [8.0] * 8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_gpu_inputs_are_made_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = LABELS.replace("[torch.randn(6", "[torch.ones(6, device='cpu'), torch.randn(6")
    text = text.replace("(self, logits", "(self, extra, logits")
    (tmp_path / "my.py").write_text(HEAD + text)
    instance = materialize(load_problem("my.py"), "cuda")
    inputs = instance.inputs(1)
    assert all(x.is_cuda for x in inputs)
    assert instance.reference(inputs, torch.float64).is_cuda


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_gpu_falls_back_to_the_cpu_where_a_file_needs_numpy(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = SIMPLE.replace("torch.randn(3, 8)", "torch.from_numpy(torch.randn(3, 8).numpy() * 2)")
    (tmp_path / "my.py").write_text(HEAD + text)
    instance = materialize(load_problem("my.py"), "cuda")
    assert instance.inputs(1)[0].is_cuda and instance.reference(instance.inputs(1)).is_cuda
