"""The judge's secrets: fresh sets, expected outputs, other weights; and what is kept on disk."""

from __future__ import annotations

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import cases
from cuda_agent import targets
from cuda_agent.evaluation import Settings, layout
from cuda_agent.evaluation.baselines import BaselineStore
from cuda_agent.evaluation.handover import frozen_state
from cuda_agent.evaluation.lock import device_lock
from cuda_agent.evaluation.recorder import OpRecorder, recorded
from cuda_agent.evaluation.reference import Reference, perturbed
from cuda_agent.evaluation.session import Session
from cuda_agent.evaluation.stats import timing
from cuda_agent.problems import materialize
from cuda_agent.records import Interval


def reference(source: str = cases.SOURCE, dtype: str = "float32") -> Reference:
    return Reference(materialize(cases.problem(source=source, dtype=dtype), "cpu"), "strict")


def text(forward: str, inputs: str = "torch.randn(8, 16)") -> str:
    return (
        "import torch\nfrom torch import nn\nclass Model(nn.Module):\n    def forward(self, x):\n"
        f"        {forward}\ndef get_inputs():\n    return [{inputs}]\n"
    )


def test_every_draw_is_new() -> None:
    made = reference()
    a, b = made.draw(), made.draw()
    assert a is not None and b is not None
    assert not torch.equal(a.tensors[0], b.tensors[0])
    assert not torch.equal(a.expected[0].reference, b.expected[0].reference)


def test_expected_values_are_float64_where_that_runs() -> None:
    made = reference()
    drawn = made.draw()
    assert drawn is not None and drawn.expected[0].reference.dtype == torch.float64
    assert made.against == "float64 eager" and drawn.expected[0].dtype == torch.float32
    assert 0 < drawn.expected[0].eager_relative < 1e-6
    assert drawn.outputs[0].device.type == "meta"


def test_a_model_that_names_its_dtype_is_its_own_measure() -> None:
    made = reference(text("return x + torch.ones(16, dtype=torch.float32).matmul(x.t()).sum()"))
    drawn = made.draw()
    assert drawn is not None and made.against == "float32 eager"


def test_low_precision_is_measured_against_float64() -> None:
    made = reference(text("return torch.softmax(x, -1)"), "bfloat16")
    drawn = made.draw()
    assert drawn is not None and made.against == "float64 eager"
    assert 1e-4 < drawn.expected[0].eager_relative < 1e-2


@pytest.mark.parametrize(
    ("forward", "style", "drawn"),
    [
        ("return torch.log(x)", "negative", False), ("return torch.log(x)", "zeros", False),
        ("return x.exp().exp()", "large", False), ("return x * 2", "large", True),
        ("return x.argmax(-1)", "zeros", False), ("return x.argmax(-1)", "large", True),
        ("return x > 0", "ones", True), ("return x.view(-1) * 2", "noncontiguous", False),
    ],
)
def test_styles_out_of_the_references_domain_are_skipped(
    forward: str, style: str, drawn: bool
) -> None:
    assert (reference(text(forward, "torch.rand(8, 16) + 1")).draw(style) is not None) is drawn


def test_the_same_outputs_pass_and_the_report_adds_up() -> None:
    made = reference()
    drawn = made.draw()
    assert drawn is not None
    right = drawn.expected[0].reference.float()
    ok, report = made.judge(drawn, [right])
    assert ok and report.inputs_checked == 1 and report.mismatch is None
    wrong = right.clone()
    wrong[3, 7] += 1
    ok, report = made.judge(drawn, [wrong], report)
    assert not ok and report.inputs_checked == 2
    assert report.mismatch is not None and report.mismatch.index == (3, 7)
    assert report.absolute == pytest.approx(1.0, rel=1e-3)


def test_nan_gives_a_finite_report() -> None:
    made = reference()
    drawn = made.draw()
    assert drawn is not None
    ok, report = made.judge(drawn, [torch.full((64, 512), float("nan"))])
    assert not ok and report.relative < float("inf") and report.absolute < float("inf")


# --- weights ------------------------------------------------------------------------------------


def test_other_weights_change_the_output_and_come_back() -> None:
    made = reference()
    drawn = made.draw()
    assert drawn is not None
    bias = made.instance.model.bias
    before, place = bias.detach().clone(), bias.data_ptr()
    with made.other_weights():
        state = frozen_state(made.state())
        other = made.again(drawn)
        assert not torch.equal(bias, before)
    assert torch.equal(bias, before) and bias.data_ptr() == place
    assert torch.equal(other.tensors[0], drawn.tensors[0])
    assert not made.judge(other, [drawn.expected[0].reference.float()])[0]
    assert state[0] == ["bias"] and not torch.equal(state[2][0], before)


def test_perturbing_moves_zeros_and_keeps_dtypes() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        values = torch.tensor([0.0, 1.0, -2.0] * 50, dtype=dtype)
        moved = perturbed(values)
        assert moved.dtype == dtype and bool((moved[0::3] != 0).any())
        assert bool((moved[1::3] > 0).all()) and bool((moved[2::3] < 0).all())
        assert float((moved - values).abs().max()) < 0.3


def test_perturbing_makes_what_is_too_small_to_show_large_enough() -> None:
    values = torch.tensor([1e-7, -1e-5] * 50)
    moved = perturbed(values)
    assert float(moved.abs().median()) > 1e-3
    assert bool((moved[0::2] > 0).all()) and bool((moved[1::2] < 0).all())


def test_other_weights_are_other_running_statistics_as_well() -> None:
    source = text("return self.norm(x)").replace(
        "    def forward", "    def __init__(self):\n        super().__init__()\n"
        "        self.norm = nn.BatchNorm1d(16)\n"
        "        self.register_buffer('mask', torch.ones(16))\n    def forward",
    )
    made = reference(source)
    norm = made.instance.model.norm
    with made.other_weights():
        assert bool((norm.running_mean != 0).all()) and bool((norm.running_var > 0.8).all())
        assert bool((norm.running_var != 1).any()) and int(norm.num_batches_tracked) == 0
        assert bool((made.instance.model.mask == 1).all())
    assert bool((norm.running_mean == 0).all()) and bool((norm.running_var == 1).all())


def test_rounding_noise_is_nothing_to_judge() -> None:
    assert "rounding noise" in reference(text("return torch.layer_norm(x, (16,)).mean(-1)")).noise()
    for sound in ("return torch.softmax(x, -1)", "return x.mean(-1)", "return x > 0"):
        assert reference(text(sound)).noise() == ""


def test_state_lists_buffers_and_plain_attributes_apart() -> None:
    source = text("return x * self.a * self.b * self.inner.c").replace(
        "    def forward",
        "    def __init__(self):\n        super().__init__()\n        self.a = torch.rand(16)\n"
        "        self.register_buffer('b', torch.rand(16), persistent=False)\n"
        "        self.inner = nn.Module()\n        self.inner.c = torch.rand(16)\n"
        "        self.inner.w = nn.Parameter(torch.rand(2))\n    def forward",
    )
    names, extra, tensors = reference(source).state()
    assert names == ["inner.w"] and sorted(extra) == ["a", "b", "inner.c"]
    assert len(tensors) == 4 and not any(t.requires_grad for t in tensors)


# --- the session --------------------------------------------------------------------------------


def test_recorded_operators_leave_out_views_and_allocations() -> None:
    with OpRecorder() as recorder:
        x = torch.empty(4, 6)
        x.zero_()
        y = x.t().reshape(3, 8)[1:].unsqueeze(0)
        torch.softmax(y, -1)
    assert recorder.ops == {"aten.zero_", "aten.clone", "aten._softmax"}


def test_operators_of_other_threads_are_recorded() -> None:
    x = torch.randn(4, 6)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # its thread is there before anybody records
        with recorded() as ops:
            x.exp()
            pool.submit(lambda: torch.softmax(x.t(), -1).view(-1)).result()
    assert {"aten.exp", "aten._softmax"} <= ops
    assert not ops & {"aten.t", "aten.view", "aten.empty_like", "aten.softmax"}
    with recorded() as ops:
        x.tanh()
    assert ops == {"aten.tanh"}


def test_a_session_refuses_what_is_no_plain_tensor() -> None:
    session = Session(targets.get("cpu"))
    arena = targets.get("cpu").arena(4096)
    x = torch.ones(4)
    slots, _ = layout.plan([x])
    session.attach_inputs(0, arena, {"tuple": [{"tensor": 0}]}, slots, False)
    session.attach_outputs(targets.get("cpu").arena(4096), slots, 1, 512, 0)
    bad = x.clone()
    bad.cpu = lambda: bad  # type: ignore[method-assign]
    for out in (bad, x.to_sparse(), x.as_subclass(type("T", (torch.Tensor,), {}))):
        session.forward = lambda _, out=out: out
        with pytest.raises(TypeError, match=r"plain|strided"):
            session.run(0, 0, False)
    session.forward = None
    with pytest.raises(RuntimeError, match="no model"):
        session.run(0, 0, False)
    session.drop()


# --- what is kept, and the lock -----------------------------------------------------------------


def test_stored_baselines_add_up_and_depend_on_the_question(tmp_path: Path) -> None:
    target = targets.get("cpu")
    instance = materialize(cases.problem(), "cpu")
    store = BaselineStore(tmp_path, instance, Settings(), target)
    assert store.load() is None
    store.save({"eager": timing([1.0, 2.0], "m")}, {}, {"compile_default": "timeout"})
    store.save(
        {"compile_default": timing([1.0], "m")}, {"compile_default": Interval(0.5, 0.4, 0.6)}, {}
    )
    held = store.load()
    assert held is not None and set(held[0]) == {"eager", "compile_default"}
    assert held[1]["compile_default"].value == 0.5
    keys = {
        BaselineStore(tmp_path, instance, settings, target).key
        for settings in (Settings(), Settings(precision="matched"), Settings(threads=7))
    }
    assert len(keys) == 3
    other = materialize(cases.problem(source=cases.SOURCE + "\n#"), "cpu")
    assert BaselineStore(tmp_path, other, Settings(), target).key not in keys


def test_a_store_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    instance = materialize(cases.problem(), "cpu")
    store = BaselineStore(tmp_path / "file", instance, Settings(), targets.get("cpu"))
    store.save({"eager": timing([1.0], "m")}, {}, {})
    assert store.load() is None


def _hold(name: str, ready: object, seconds: float) -> None:
    with device_lock(name):
        ready.set()  # type: ignore[attr-defined]
        time.sleep(seconds)


def test_the_device_lock_excludes_and_dies_with_its_owner() -> None:
    name = f"test-{time.time_ns()}"
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    owner = context.Process(target=_hold, args=(name, ready, 60))
    owner.start()
    assert ready.wait(60)
    owner.kill()
    start = time.monotonic()
    with device_lock(name):
        assert time.monotonic() - start < 10
    owner.join()
    with device_lock(name), device_lock(name + "-other"), device_lock(name):
        pass


def test_the_thread_that_holds_the_device_lock_may_take_it_again_and_no_other_may() -> None:
    name = f"test-{time.time_ns()}"
    order: list[str] = []

    def other() -> None:
        with device_lock(name):
            order.append("other")

    with device_lock(name):
        waiting = threading.Thread(target=other)
        waiting.start()
        with device_lock(name):
            time.sleep(0.1)
        time.sleep(0.1)  # still held: the inner one has given nothing back
        order.append("holder")
    waiting.join(10)
    assert order == ["holder", "other"]
