"""Judge: kinds of problems and candidates, tracks, tiers, baselines, recovery, the schema."""

from __future__ import annotations

import importlib.resources
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import cases
from cuda_agent.errors import ProblemError, TargetUnavailable
from cuda_agent.evaluation import Judge, Pool, Settings
from cuda_agent.problems import live_instance, materialize
from cuda_agent.records import Candidate, Problem, Verdict

jsonschema = pytest.importorskip("jsonschema")
pytestmark = pytest.mark.compiler
JudgeFor = Callable[..., Judge]
SCHEMA = json.loads(
    (importlib.resources.files("cuda_agent") / "schemas/verdict.schema.json").read_text()
)


def valid(verdict: Verdict) -> Verdict:
    """`verdict`, after a trip through JSON that the schema accepts."""
    data = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
    jsonschema.Draft202012Validator(SCHEMA).validate(data)
    assert Verdict.from_json(data) == verdict
    return verdict


def source(forward: str, inputs: str, init: str = "pass", head: str = "") -> str:
    return (
        f"import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n{head}\n"
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {init}\n    def forward(self, x, *more):\n        {forward}\n"
        f"def get_inputs():\n    return [{inputs}]\n"
    )


def rewritten(text: str, **changes: str) -> dict[str, str]:
    """The problem's text as a single-file candidate."""
    text = text.replace("class Model(", "class ModelNew(")
    for old, new in changes.items():
        text = text.replace(old, new)
    return {"model_new.py": text}


# --- kinds of problems --------------------------------------------------------------------------

PROBLEMS = {
    "no_parameters": source("return torch.softmax(x, -1)", "torch.randn(32, 200)"),
    "integer_output": source("return x.argmax(-1)", "torch.randn(64, 300)"),
    "bool_output": source("return x > 0.1", "torch.randn(64, 300)"),
    "several_outputs": source("return x.max(-1)", "torch.randn(64, 300)"),
    "dict_output": source("return {'a': x * 2, 'b': [x + 1, None]}", "torch.randn(16, 30)"),
    "scalar": source("return (x - 0.3).square().mean()", "torch.randn(100, 30) * torch.rand(())"),
    "labels": source(
        "return F.cross_entropy(x, more[0])",
        "torch.randn(64, 50) * (1 + torch.rand(())), torch.randint(0, 50, (64,))",
    ),
    "masked": source(
        "return torch.softmax(x.masked_fill(~more[0], float('-inf')), -1)",
        "torch.randn(20, 30), torch.ones(20, 30).tril(5) > 0",
    ),
    "infinite_output": source(
        "return x.masked_fill(~more[0], float('-inf'))",
        "torch.randn(20, 30), torch.ones(20, 30).tril() > 0",
    ),
    "literal_argument": source("return x * more[0] + len(more[1])", "torch.randn(20, 30), 3, 'ab'"),
    "complex": source("return torch.fft.fft(x)", "torch.randn(8, 64)"),
    "batch_norm": source(
        "return self.bn(x)", "torch.randn(8, 4, 10)",
        "self.bn = nn.BatchNorm1d(4); self.bn.running_mean.uniform_(1, 2)"
    ),
    "buffers": source(
        "return x * self.kept + self.scale", "torch.randn(8, 16)",
        "self.register_buffer('kept', torch.rand(16), persistent=False); "
        "self.scale = torch.rand(16)",
    ),
    "noncontiguous_output": source("return (x + 1).t()", "torch.randn(8, 16)"),
    "module_state": source(
        "return self.rnn(x)[0]", "torch.randn(4, 6, 8)", "self.rnn = nn.GRU(8, 8, batch_first=True)"
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_copy_of_the_reference_is_right(judge_for: JudgeFor, name: str) -> None:
    problem = cases.problem(name, PROBLEMS[name])
    verdict = valid(judge_for(problem).judge(cases.candidate(rewritten(PROBLEMS[name]), problem)))
    assert verdict.ok, (verdict.feedback, verdict.findings)
    assert verdict.error is not None and verdict.error.against == "float64 eager"
    assert verdict.external_ops, "what torch computed is listed"


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("integer_output", "argmax", "argmin"), ("bool_output", "> 0.1", ">= 0.3"),
        ("several_outputs", "x.max(-1)", "tuple(reversed(x.max(-1)))"),
        ("dict_output", "x * 2", "x * 2.001"), ("dict_output", "'a'", "'c'"),
        ("scalar", "0.3", "0.3001"), ("labels", "more[0])", "more[0].flip(0))"),
        ("masked", "~more[0]", "~more[0].roll(1, 0)"),
        ("infinite_output", "float('-inf')", "-1e30"), ("complex", "fft.fft(x)", "fft.ifft(x)"),
        ("batch_norm", "self.bn(x)", "x"), ("buffers", "self.kept", "1.0"),
    ],
)
def test_a_small_change_is_wrong(judge_for: JudgeFor, name: str, old: str, new: str) -> None:
    problem = cases.problem(name, PROBLEMS[name])
    files = rewritten(PROBLEMS[name], **{old: new})
    verdict = valid(judge_for(problem).judge(cases.candidate(files, problem)))
    assert verdict.status == "wrong", verdict.findings


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_problems(judge_for: JudgeFor, dtype: str) -> None:
    text = source("return torch.softmax(x * 3, -1)", "torch.randn(64, 300)")
    problem = cases.problem(source=text, dtype=dtype)
    judge = judge_for(problem)
    verdict = valid(judge.judge(cases.candidate(rewritten(text), problem)))
    assert verdict.ok and verdict.dtype == dtype, verdict.feedback
    precise = rewritten(text, **{"torch.softmax(x * 3, -1)": "torch.softmax(x.float() * 3, -1)"})
    assert "dtype float32" in judge.judge(cases.candidate(precise, problem)).feedback
    rough = rewritten(text, **{"x * 3": "x * 3.2"})
    assert judge.judge(cases.candidate(rough, problem)).status == "wrong"


def test_bf16_inside_a_float32_problem_is_wrong_under_strict(judge_for: JudgeFor) -> None:
    text = source("return x @ more[0]", "torch.randn(64, 128), torch.randn(128, 64)")
    problem = cases.problem(source=text)
    low = rewritten(text, **{"x @ more[0]": "(x.bfloat16() @ more[0].bfloat16()).float()"})
    verdict = judge_for(problem).judge(cases.candidate(low, problem))
    assert verdict.status == "wrong" and verdict.error is not None
    assert verdict.error.relative > 10 * (verdict.error.bound or 1)
    assert judge_for(problem, precision="paper").judge(cases.candidate(low, problem)).status in (
        "ok", "wrong"  # published: absolute 1e-2, which outputs of this size may miss
    )


UNSOUND = {
    "P-random": source("return x + torch.rand_like(x)", "torch.randn(8, 16)"),
    "P-constant": source("return torch.softmax(x, -1).sum(-1)", "torch.randn(8, 16)"),
    "P-zeros": source("return torch.relu(x) - torch.relu(x)", "torch.randn(8, 16)"),
    "P-identity": source("return x", "torch.randn(8, 16)"),
    "P-raises": source("return x @ x", "torch.randn(8, 16)"),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_an_unsound_problem_is_invalid_whatever_the_candidate(
    judge_for: JudgeFor, name: str
) -> None:
    problem = cases.problem(name, UNSOUND[name])
    verdict = valid(judge_for(problem).judge(cases.candidate(rewritten(UNSOUND[name]), problem)))
    assert verdict.status == "invalid_problem"
    assert name in {f.id for f in verdict.findings}


def test_inputs_that_do_not_fit_say_how_much_is_needed(judge_for: JudgeFor) -> None:
    judge = judge_for(cases.problem(), memory_bytes=100_000)
    with pytest.raises(ProblemError, match=r"takes 0\.\d GB, but 0\.0 GB may be used"):
        judge.judge(cases.candidate(cases.native(), judge.problem))


# --- kinds of candidates ------------------------------------------------------------------------


def test_an_honest_native_candidate_is_measured(judge_for: JudgeFor) -> None:
    judge = judge_for(cases.problem())
    verdict = valid(judge.judge(cases.candidate(cases.native(), judge.problem)))
    assert verdict.ok and not verdict.findings, verdict.feedback
    assert verdict.external_ops == ()
    timing, speedup = verdict.timing, verdict.speedup["eager"]
    assert timing is not None and speedup is not None
    assert len(timing.samples_ms) >= 6 and 0 < timing.low_ms <= timing.median_ms
    assert "interleaved" in timing.method and "fresh process" in timing.method
    assert verdict.speedup["compile_default"] is None
    assert verdict.baselines["eager"] is not None
    assert {"compile", "load", "verify", "profile", "total"} <= set(verdict.seconds)
    assert verdict.environment["threads"] == "1"
    assert verdict.hashes["settings"] == judge.settings.key


def test_a_slower_candidate_gets_a_ratio_below_one(judge_for: JudgeFor) -> None:
    judge = judge_for(cases.problem())
    slow = cases.python(f"for _ in range(20):\n    y = {cases.RIGHT}\nreturn y")
    verdict = judge.judge(cases.candidate(slow, judge.problem))
    assert verdict.ok and verdict.speedup["eager"] is not None
    assert verdict.speedup["eager"].value < 0.5


def test_external_work_is_listed_under_library_and_refused_under_kernels(
    judge_for: JudgeFor,
) -> None:
    problem = cases.problem()
    files = cases.python(f"return {cases.RIGHT}")
    library = judge_for(problem).judge(cases.candidate(files, problem))
    assert library.ok and "aten.relu" in library.external_ops
    kernels = judge_for(problem, track="kernels")
    refused = valid(kernels.judge(cases.candidate(files, problem)))
    assert refused.status == "cheating" and refused.findings[0].id == "E1"
    assert kernels.judge(cases.candidate(cases.native(), problem)).ok


def test_a_static_cheat_never_runs(judge_for: JudgeFor, tmp_path: Path) -> None:
    judge = judge_for(cases.problem())
    mark = tmp_path / "ran"
    head = f"import os\nos.makedirs({str(mark)!r}, exist_ok=True)\nos._exit(0)"
    verdict = valid(judge.judge(cases.candidate(cases.python("return x", head), judge.problem)))
    assert verdict.status == "cheating" and verdict.findings[0].id == "C2"
    assert not mark.exists()


def test_weights_prepared_in_init_pass_with_a_remark(judge_for: JudgeFor) -> None:
    files = cases.python(
        "return torch.relu(x + self.ready) + 0.5 * x",
        cls=cases.CLASS + "        self.ready = self.bias.detach().clone()\n",
    )
    judge = judge_for(cases.problem())
    verdict = judge.judge(cases.candidate(files, judge.problem))
    # plain attributes are set from the reference's where it has them; here it has none
    assert verdict.ok and {f.id for f in verdict.findings} == {"weights-in-init"}


def test_other_parameter_names_pass_with_a_remark(judge_for: JudgeFor) -> None:
    files = {n: t.replace("self.bias", "self.b") for n, t in cases.native().items()}
    judge = judge_for(cases.problem())
    verdict = judge.judge(cases.candidate(files, judge.problem))
    assert verdict.ok and {f.id for f in verdict.findings} == {"state-dict"}


def test_wrong_weights_under_other_names_are_wrong(judge_for: JudgeFor) -> None:
    files = {
        n: t.replace("self.bias", "self.b").replace("torch.randn(f", "torch.ones(f")
        for n, t in cases.native().items()
    }
    judge = judge_for(cases.problem())
    assert judge.judge(cases.candidate(files, judge.problem)).status == "wrong"


def test_a_candidate_sees_neither_the_environment_nor_other_files(
    judge_for: JudgeFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    body = "import os\nraise ValueError(repr((sorted(os.environ), os.getcwd(), os.listdir())))"
    judge = judge_for(cases.problem())
    said = judge.judge(cases.candidate(cases.python(body), judge.problem)).feedback
    assert "ValueError" not in said or "secret" not in said
    # the guard refuses reading the environment inside forward, so look while loading
    head = "import os\nSEEN = repr((sorted(os.environ), os.listdir()))"
    said = judge.judge(
        cases.candidate(cases.python("raise ValueError(SEEN)", head), judge.problem)
    ).feedback
    assert "OPENAI" not in said and "'PATH'" in said
    assert "['model_new.py']" in said


def test_an_init_argument_that_is_no_literal(judge_for: JudgeFor) -> None:
    text = (
        "import torch\nfrom torch import nn\nclass Model(nn.Module):\n"
        "    def __init__(self, dtype, weight):\n        super().__init__()\n"
        "        self.weight = nn.Parameter(weight.to(dtype))\n"
        "    def forward(self, x):\n        return x * self.weight\n"
        "def get_inputs():\n    return [torch.randn(8, 16)]\n"
        "def get_init_inputs():\n    return [torch.float32, torch.arange(16.0)]\n"
    )
    problem = cases.problem(source=text)
    assert judge_for(problem).judge(cases.candidate(rewritten(text), problem)).ok


# --- recovery -----------------------------------------------------------------------------------


def test_the_same_trusted_candidate_reuses_one_process(judge_for: JudgeFor) -> None:
    judge = judge_for(cases.problem())
    pids = set()
    for _ in range(3):
        assert judge.judge(cases.candidate(cases.native(), judge.problem, trusted=True)).ok
        assert judge.warm is not None
        pids.add(judge.warm.entrant.client.pid)  # type: ignore[attr-defined]
    assert len(pids) == 1


def test_a_killed_contestant_is_replaced_and_nobody_charged(judge_for: JudgeFor) -> None:
    judge = judge_for(cases.problem())
    made = cases.candidate(cases.native(), judge.problem, trusted=True)
    assert judge.judge(made).ok
    assert judge.warm is not None
    os.kill(judge.warm.entrant.client.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    assert judge.judge(made).ok


def test_a_killed_fork_server_is_replaced(cache_dir: Path) -> None:
    problem = cases.problem()
    settings = Settings(target="cpu", baselines=("eager",), threads=1)
    with Judge(problem, materialize(problem, "cpu"), settings, cache_dir=cache_dir) as judge:
        assert judge.judge(cases.candidate(cases.native(), problem)).ok
        server = judge.pool._server._process
        assert server is not None
        os.killpg(server.pid, signal.SIGKILL)
        assert judge.judge(cases.candidate(cases.native(), problem)).ok


def test_a_candidate_that_kills_itself_is_a_harness_error_in_the_end(judge_for: JudgeFor) -> None:
    judge = judge_for(cases.problem())
    body = "import ctypes, os\nctypes.CDLL(None).kill(os.getpid(), 9)"
    verdict = judge.judge(cases.candidate(cases.python(body), judge.problem))
    assert verdict.status == "harness_error" and verdict.timing is None


def test_nothing_is_left_behind(pool: Pool, cache_dir: Path) -> None:
    problem = cases.problem()
    settings = Settings(target="cpu", baselines=("eager",), threads=1)
    judge = Judge(problem, materialize(problem, "cpu"), settings, cache_dir=cache_dir, pool=pool)
    before = len(os.listdir("/proc/self/fd"))
    work = judge.work
    judge.judge(cases.candidate(cases.native(), problem, trusted=True))
    judge.close()
    assert not work.exists()
    assert len(os.listdir("/proc/self/fd")) <= before + 4  # the pool's spare


# --- baselines ----------------------------------------------------------------------------------


def test_baselines_are_measured_once_and_kept_on_disk(
    judge_for: JudgeFor, tmp_path: Path, pool: Pool
) -> None:
    problem = cases.problem(source=cases.SOURCE + "\n# a problem of its own\n")
    settings = Settings(target="cpu", baselines=("eager",), threads=1)
    times = []
    for _ in range(2):
        with Judge(
            problem, materialize(problem, "cpu"), settings, cache_dir=tmp_path, pool=pool
        ) as judge:
            times.append(judge.measure_baselines())
    assert times[0] == times[1] and times[0]["eager"] is not None
    assert times[0]["compile_default"] is None
    stored = list((tmp_path / "baselines").glob("*.json"))
    assert len(stored) == 1
    stored[0].write_text("{broken")
    with Judge(
        problem, materialize(problem, "cpu"), settings, cache_dir=tmp_path, pool=pool
    ) as judge:
        assert judge.measure_baselines()["eager"] is not None


@pytest.mark.slow
def test_compile_default_is_measured_beside_eager(judge_for: JudgeFor) -> None:
    judge = judge_for(cases.problem(), baselines=("eager", "compile_default"))
    verdict = valid(judge.judge(cases.candidate(cases.native(), judge.problem, trusted=True)))
    assert verdict.ok, verdict.feedback
    compiled = verdict.speedup["compile_default"]
    if "missing_compile_default" in verdict.environment:
        pytest.skip(verdict.environment["missing_compile_default"])
    assert compiled is not None and compiled.low <= compiled.value <= compiled.high
    assert verdict.baselines["compile_default"] is not None


def test_a_baseline_that_fails_is_missing_with_its_reason(judge_for: JudgeFor) -> None:
    unlike = cases.problem(source=cases.SOURCE + "# measured by no other test\n")
    judge = judge_for(unlike, baselines=("eager", "compile_default"), compile_deadline_s=0.05)
    judge.measure_baselines()
    verdict = judge.judge(cases.candidate(cases.native(), judge.problem, trusted=True))
    assert verdict.ok and verdict.speedup["compile_default"] is None
    assert verdict.baselines["compile_default"] is None
    assert "timeout" in verdict.environment["missing_compile_default"]


# --- tiers and live modules ---------------------------------------------------------------------


def test_audit_uses_all_styles_and_places_buffers_anew(judge_for: JudgeFor) -> None:
    judge = judge_for(cases.problem(), tier="audit", time_limit_s=1.0)
    verdict = valid(judge.judge(cases.candidate(cases.native(), judge.problem, trusted=True)))
    assert verdict.ok and verdict.tier == "audit", verdict.feedback
    assert verdict.error is not None and verdict.error.inputs_checked >= 10
    assert verdict.timing is not None and len(verdict.timing.samples_ms) >= 20
    assert "5 placements" in verdict.timing.method and "fresh inputs" in verdict.timing.method


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) + x


LIVE = """
import torch
from torch import nn
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32, device="meta")
    def forward(self, x):
        return torch.relu(nn.functional.linear(x, self.linear.weight, self.linear.bias)) + x
"""


def live_judge(module: nn.Module, pool: Pool, cache_dir: Path) -> tuple[Problem, Judge]:
    problem, instance = live_instance(module, [torch.randn(16, 32)])
    settings = Settings(target="cpu", baselines=("eager",), threads=1)
    return problem, Judge(problem, instance, settings, cache_dir=cache_dir, pool=pool)


def test_a_live_module_gives_its_weights_and_keeps_them(pool: Pool, cache_dir: Path) -> None:
    module = Block()
    before = {n: t.clone() for n, t in module.state_dict().items()}
    problem, judge = live_judge(module, pool, cache_dir)
    with judge:
        for files, status in (
            ({"model_new.py": LIVE}, "ok"),
            ({"model_new.py": LIVE.replace("+ x", "+ 2 * x")}, "wrong"),
            ({"model_new.py": LIVE.replace("self.linear", "self.other")}, "runtime_error"),
        ):
            verdict = valid(judge.judge(Candidate(problem.hash, files)))
            assert verdict.status == status, verdict.feedback
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())


def test_a_live_module_that_cannot_be_pickled_is_timed_in_the_judge(
    pool: Pool, cache_dir: Path
) -> None:
    class Local(Block):
        pass

    problem, judge = live_judge(Local(), pool, cache_dir)
    with judge:
        verdict = judge.judge(Candidate(problem.hash, {"model_new.py": LIVE}))
        assert verdict.ok and verdict.speedup["eager"] is not None, verdict.feedback


def test_a_target_that_is_absent_is_an_error(cache_dir: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    problem = cases.problem()
    with pytest.raises(TargetUnavailable, match="cuda"):
        Judge(problem, materialize(problem, "cpu"), Settings(target="cuda"), cache_dir=cache_dir)


def test_the_schema_refuses_a_time_beside_a_failure(judge_for: JudgeFor) -> None:
    judge = judge_for(cases.problem())
    data = judge.judge(cases.candidate(cases.native(), judge.problem)).to_json()
    check = jsonschema.Draft202012Validator(SCHEMA)
    assert check.is_valid(json.loads(json.dumps(data)))
    for change in ({"status": "wrong"}, {"status": "fast"}, {"extra": 1}, {"timing": None}):
        assert not check.is_valid(json.loads(json.dumps({**data, **change}))), change
