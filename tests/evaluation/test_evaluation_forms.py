"""Forms told from files, candidates read from disk, settings, failures sorted by their text."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path

import pytest

import cases
from cuda_agent.errors import CandidateError, SettingsError
from cuda_agent.evaluation import Settings, detect_form, failures, load_candidate
from cuda_agent.evaluation.forms import check_names, entry_of

PROBLEM = cases.problem()
MODEL = "class ModelNew:\n    pass\n"


@pytest.mark.parametrize(
    ("files", "form"),
    [
        ({"model_new.py": MODEL}, "single"),
        ({"solution.py": MODEL, "helper.py": "x = 1"}, "single"),
        (cases.native(), "native"),
        ({"model_new.py": MODEL, "kernels/a.cu": 'extern "C" __global__ void a() {}'}, "native"),
        ({"model_new.py": MODEL, "kernels/a.cu": "void f() { k<<<1, 2>>>(); }"}, "host"),
        ({"model_new.py": MODEL, "kernels/a.cuh": "// only a header"}, "single"),
        ({"model_new.py": MODEL, "binding.cpp": "", "kernels/a.cu": "k<<<1>>>"}, "work_folder"),
        ({"model_new.py": MODEL, "kernels/a_binding.cpp": ""}, "work_folder"),
        ({"model_new.py": "ModelNew = build()\n"}, "single"),
    ],
)
def test_form(files: dict[str, str], form: str) -> None:
    assert detect_form(files) == form


def test_the_entry_is_the_file_with_the_class() -> None:
    assert entry_of({"a.py": MODEL, "b.py": "x = 1"}) == "a.py"
    assert entry_of({"a.py": MODEL, "model_new.py": MODEL}) == "model_new.py"
    with pytest.raises(CandidateError, match=r"a.py, b.py all define ModelNew"):
        entry_of({"a.py": MODEL, "b.py": MODEL})
    with pytest.raises(CandidateError, match="no Python file"):
        entry_of({"a.py": "class Other: ..."})


def test_a_folder_is_read_whole_and_nothing_else(tmp_path: Path) -> None:
    for name, text in cases.native().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "report.html").write_text("<html>")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/model_new.py").write_text(MODEL)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/x.py").write_text(MODEL)
    found = load_candidate(tmp_path, PROBLEM)
    assert found.files == cases.native()
    assert not found.trusted and found.problem_hash == PROBLEM.hash


def test_a_file_gets_the_standard_name(tmp_path: Path) -> None:
    path = tmp_path / "level1_17.py"
    path.write_text(MODEL)
    assert load_candidate(path, PROBLEM).files == {"model_new.py": MODEL}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: None, "There is no candidate"),
        (lambda p: p.write_text("x = 1\n"), "defines class ModelNew"),
        (lambda p: p.write_bytes(b"\xff\xfe\x00"), "not UTF-8"),
        (lambda p: p.write_bytes(b"#" * (5 << 20)), "larger than 4 MiB"),
        (lambda p: p.mkdir(), "defines class ModelNew"),
    ],
)
def test_bad_candidates_get_one_sentence(tmp_path: Path, make: object, says: str) -> None:
    path = tmp_path / "candidate.py"
    make(path)  # type: ignore[operator]
    with pytest.raises(CandidateError, match=says) as caught:
        load_candidate(path, PROBLEM)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kernel.cu").write_text("")
    with pytest.raises(CandidateError, match=r"folder or a \.py file"):
        load_candidate(tmp_path / "kernel.cu", PROBLEM)


@pytest.mark.parametrize("name", ["/etc/passwd", "../x.py", "a/../../x.py", "", "a\0b"])
def test_paths_that_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(CandidateError, match="not a path inside"):
        check_names({name: ""})


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "status", "name"),
    [
        ("CUDA error: an illegal memory access was encountered", "runtime_error",
         "illegal memory access"),
        ("k at grid=1: CUDA_ERROR_ILLEGAL_ADDRESS: ...", "runtime_error", "illegal memory access"),
        ("CUDA error: device-side assert triggered", "runtime_error", "device-side assert"),
        ("CUDA error: misaligned address", "runtime_error", "misaligned address"),
        ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch",
         "runtime_error", "launch refused: too many registers or too much shared memory"),
        ("CUDA error: unspecified launch failure", "runtime_error", "launch failure"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5 GiB", "out_of_memory",
         "out of memory"),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate", "out_of_memory",
         "out of memory"),
        ("MemoryError: ", "out_of_memory", "out of memory"),
        ("RuntimeError: Error building extension 'k'", "compile_error", "does not compile"),
        ("triton.compiler.errors.CompilationError: at 3:1", "compile_error", "does not compile"),
        ("ValueError: x: this solution was built for", "runtime_error", "exception"),
    ],
)
def test_texts_are_sorted(text: str, status: str, name: str) -> None:
    assert failures.classify(text) == (status, name)


@pytest.mark.parametrize(
    ("code", "said", "status", "says"),
    [
        (-signal.SIGSEGV, "", "runtime_error", "segmentation fault"),
        (-signal.SIGABRT, "terminate called after throwing 'std::bad_alloc'", "out_of_memory",
         "out of memory"),
        (-signal.SIGABRT, "double free or corruption", "runtime_error", "abort"),
        (-signal.SIGFPE, "", "runtime_error", "division by zero"),
        (0, "", "runtime_error", "exited with status 0"),
        (3, "", "runtime_error", "exited with status 3"),
    ],
)
def test_deaths_are_sorted(code: int, said: str, status: str, says: str) -> None:
    found, sentence = failures.of_death(code, said)
    assert found == status and says in sentence


def test_errors_that_lose_the_device() -> None:
    assert failures.loses_device("CUDA error: an illegal memory access was encountered")
    assert not failures.loses_device("ValueError: shapes cannot be multiplied")


# --- settings -----------------------------------------------------------------------------------


def test_a_tier_fills_in_what_is_left_open() -> None:
    screen, audit = Settings().complete(), Settings(tier="audit").complete()
    assert all(getattr(audit, f.name) is not None for f in dataclasses.fields(Settings)
               if f.name not in ("threads", "memory_bytes"))
    assert screen.interval > audit.interval and len(screen.styles) < len(audit.styles)
    assert Settings(interval=0.2).complete().interval == 0.2
    assert len(audit.baselines) == 4


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tier": "quick"}, "no tier 'quick'"), ({"precision": "loose"}, "strict, matched, paper"),
        ({"track": "any"}, "no track"), ({"baselines": ("jit",)}, "no baseline 'jit'"),
        ({"deadline_s": 0.0}, "deadline_s must be positive"),
    ],
)
def test_settings_that_do_not_exist_are_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        Settings(**fields)  # type: ignore[arg-type]


def test_the_key_tells_what_was_asked() -> None:
    assert Settings().key == Settings().complete().key
    assert len({Settings().key, Settings(tier="audit").key, Settings(precision="paper").key}) == 3
