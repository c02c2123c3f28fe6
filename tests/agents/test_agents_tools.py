"""The tools: what they do, what they refuse, and that nothing a model says breaks them."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import toolbox_cases as cases
from agents_fakes import PROBLEM

from cuda_agent.agents.optimize import cache_dir
from cuda_agent.agents.planner import Planner
from cuda_agent.agents.tools.judging import Bench, Turnstile, candidate_of
from cuda_agent.agents.tools.toolbox import HEAD, TAIL, Toolbox
from cuda_agent.agents.tools.workfolder import prepare
from cuda_agent.errors import HarnessError, SettingsError
from cuda_agent.evaluation import Settings, sandbox
from cuda_agent.problems import load_problem, materialize
from cuda_agent.skills.reading import documents
from cuda_agent.targets import get
from cuda_agent.workers import InlineWorker

WALLED = all(text.startswith("works") for text in sandbox.probe().values())
needs_shell = pytest.mark.skipif(not WALLED, reason="no shell here: a wall is missing")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Toolbox]:
    made = cases.toolbox(tmp_path)
    yield made
    made.close()


def call(box: Toolbox, name: str, /, **arguments: Any) -> tuple[str, str]:
    answer = box.call(name, arguments)
    return answer.status, answer.text


def test_every_tool_of_the_issue_is_there(box: Toolbox) -> None:
    wanted = {
        "read", "write", "edit", "multi_edit", "glob", "todo", "list_skills", "read_skill",
        "apply_plan", "compile", "verify", "profile", "submit", *(("bash", "grep") * WALLED),
    }
    assert set(box.tools) == wanted
    for schema in box.schemas():
        jsonschema.Draft202012Validator.check_schema(schema["function"]["parameters"])
        assert schema["function"]["name"] in box.manual()


def test_the_folder_holds_what_is_needed_to_begin(box: Toolbox) -> None:
    assert box.folder.text("model.py") == PROBLEM.source
    assert json.loads(box.folder.text("device.json"))["name"] == "made up"
    assert "r0" in json.loads(box.folder.text("plans.json"))["choices"]["regions"]
    assert "# Making a PyTorch module faster" in call(box, "read", path="SKILL.md")[1]
    assert "softmax" in call(box, "glob", pattern="skills/*/SKILL.md")[1]


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("nonsense", {}, "there is no tool 'nonsense'"),
        ("read", {}, "read needs 'path': read(path: string, offset: integer?, lines: integer?)"),
        ("read", {"path": 3}, "path must be of type string, not int"),
        ("read", {"path": "model.py", "offset": True}, "must be of type integer, not bool"),
        ("read", {"path": "model.py", "offset": 0}, "must be at least 1"),
        ("read", {"path": "model.py", "other": 1}, "has no argument 'other'"),
        ("read", {"path": "../../etc/passwd"}, "not followed"),
        ("read", {"path": "/etc/passwd"}, "outside the work folder"),
        ("read", {"path": "nothing.py"}, "there is no nothing.py"),
        ("read", "model.py", "takes an object of arguments"),
        ("read", None, "takes an object of arguments"),
        ("write", {"path": "x" * 300, "text": ""}, "cannot be opened: File name too long"),
        ("write", {"path": "a", "text": "\ud800"}, "not Unicode"),
        ("multi_edit", {"path": "model.py", "edits": []}, "read-only"),
        ("todo", {"items": [{"text": "a", "state": "lost"}]}, "items[0].state must be one of"),
        ("todo", {"items": [{"text": "a"}]}, "items[0] needs 'state'"),
        ("todo", {"items": "all"}, "must be of type array"),
        ("read_skill", {"name": "magic"}, "there is no skill 'magic'"),
        ("apply_plan", {"plan": {"regions": {"r9": {"skill": "x"}}}}, "no region 'r9'"),
        ("apply_plan", {"plan": {"regions": []}}, "no such plan"),
        ("apply_plan", {"plan": {"regions": {"r0": {}}}}, "no such plan"),
        ("verify", {}, "there is no model_new.py yet"),
    ],
)
def test_a_wrong_call_is_answered_in_a_sentence(
    box: Toolbox, name: str, arguments: Any, said: str
) -> None:
    answer = box.call(name, arguments)
    assert answer.status == "error" and said in answer.text and "\n" not in answer.text


def test_a_file_is_overwritten_only_as_it_was_last_seen(box: Toolbox) -> None:
    assert call(box, "write", path="a.py", text="one\n")[0] == "ok"
    assert call(box, "write", path="a.py", text="two\n")[0] == "ok"  # its own
    box.folder.write("a.py", "changed by a command\n")
    assert "has changed since you read it" in call(box, "write", path="a.py", text="x")[1]
    assert "has changed" in call(box, "edit", path="a.py", old="changed", new="x")[1]
    assert call(box, "read", path="./a.py")[1] == "    1  changed by a command"
    assert call(box, "edit", path="a.py", old="changed", new="mended")[0] == "ok"
    assert box.folder.text("a.py") == "mended by a command\n"
    box.folder.write("b.py", "b")
    assert "read it before" in call(box, "write", path="b.py", text="x")[1]
    for path in ("model.py", "./model.py", "skills/softmax/SKILL.md", "runtime.py"):
        assert "read-only" in call(box, "write", path=path, text="x")[1]


def test_edits_are_exact_and_all_or_none(box: Toolbox) -> None:
    call(box, "write", path="a", text="one two two three")
    assert "occurs 2 times" in call(box, "edit", path="a", old="two", new="2")[1]
    assert "does not occur" in call(box, "edit", path="a", old="four", new="4")[1]
    edits = [{"old": "one", "new": "1"}, {"old": "four", "new": "4"}]
    assert "edit 2 of 2" in call(box, "multi_edit", path="a", edits=edits)[1]
    assert box.folder.text("a") == "one two two three"
    edits = [{"old": "one", "new": "two"}, {"old": "two", "new": "2", "all": True}]
    assert call(box, "multi_edit", path="a", edits=edits)[1] == "changed a in 4 places"
    assert box.folder.text("a") == "2 2 2 three"


def test_reading_goes_by_lines(box: Toolbox) -> None:
    call(box, "write", path="a", text="\n".join(f"line {i}" for i in range(1, 11)))
    said = call(box, "read", path="a", offset=4, lines=2)[1]
    assert said == "    4  line 4\n    5  line 5\n(5 more lines, from offset 6)"
    assert "has 10 lines" in call(box, "read", path="a", offset=20)[1]


def test_long_files_are_read_in_pieces(box: Toolbox) -> None:
    call(box, "write", path="a", text="".join(f"{i}\n" for i in range(20000)) + "x" * 9999)
    said = call(box, "read", path="a")[1]
    assert len(said) < 21_000 and said.startswith("    1  0")
    offset = int(said.rpartition("from offset ")[2].rstrip(")"))
    assert f"{offset:5d}  {offset - 1}" in call(box, "read", path="a", offset=offset, lines=3)[1]
    last = call(box, "read", path="a", offset=20001)[1]
    assert last.endswith("xxx [line cut]") and len(last) < 2100


def test_long_answers_are_cut_and_kept_whole(box: Toolbox) -> None:
    for i in range(900):
        box.folder.write(f"kernels/file-number-{i}.cu", "")
    said = call(box, "glob", pattern="kernels/*")[1]
    assert len(said) < HEAD + TAIL + 200 and said.startswith("kernels/file-number-0.cu")
    assert said.endswith("kernels/file-number-99.cu")
    where = said.partition("all of it: ")[2].split()[0]
    assert len(box.folder.text(where).splitlines()) == 900


def test_skills_are_read(box: Toolbox) -> None:
    said = call(box, "list_skills")[1]
    assert "softmax (apply_plan writes it): " in said and said.startswith("cuda-agent: ")
    for name in documents():
        assert call(box, "read_skill", name=name)[0] == "ok"


def test_todo_is_kept(box: Toolbox) -> None:
    items = [{"text": "fuse", "state": "doing"}, {"text": "tune", "state": "open"}]
    assert call(box, "todo", items=items)[1] == "[doing] fuse\n[open] tune"
    assert box.knowledge.shown() == "[doing] fuse\n[open] tune"


def test_a_candidate_is_measured_once_and_shown_from_two_sides(box: Toolbox) -> None:
    call(box, "write", path="model_new.py", text=cases.MODEL_NEW.format(ms=0.5))
    answer = box.call("verify", {})
    assert answer.status == "ok" and "relative error 1.2e-07" in answer.text
    assert "ms" not in answer.text.replace("items", "")
    again = box.call("profile", {"counters": True, "memory": True})
    assert "0.5 ms a call" in again.text and "2.000x eager [1.960, 2.040]" in again.text
    assert "2.00 instructions a cycle" in again.text and "heap: line 3" in again.text
    assert again.verdict_hash == answer.verdict_hash
    worker = box.bench.worker
    assert isinstance(worker, cases.TextWorker)
    assert len(worker.judged) == 1 and worker.examinations == 1


def test_failures_say_why(box: Toolbox) -> None:
    call(box, "write", path="model_new.py", text=cases.MODEL_NEW.format(ms="wrong") + "# broken")
    assert call(box, "compile") == ("compile_error", "compile_error\nmodel_new.py:1: it is broken")
    call(box, "write", path="model_new.py", text=cases.MODEL_NEW.format(ms="wrong"))
    assert call(box, "compile")[1].startswith("compiles (single, 0.10 s)")
    assert call(box, "verify") == ("wrong", "wrong\nit is wrong")
    assert call(box, "profile")[0] == "wrong"


def test_a_judge_that_fails_is_not_the_models_fault(
    box: Toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise HarnessError("the device is gone")

    call(box, "write", path="model_new.py", text=cases.MODEL_NEW.format(ms=1))
    monkeypatch.setattr(box.bench.worker, "evaluate", fail)
    status, text = call(box, "profile")
    assert status == "harness_error" and "not you: the device is gone" in text


def test_submitting_needs_something_correct_or_giving_up(box: Toolbox) -> None:
    call(box, "write", path="model_new.py", text=cases.MODEL_NEW.format(ms="wrong"))
    answer = box.call("submit", {})
    assert not answer.final and "not submitted" in answer.text
    assert box.call("submit", {"give_up": True}).final
    call(box, "write", path="model_new.py", text=cases.MODEL_NEW.format(ms=0.5))
    assert box.call("submit", {}).final
    call(box, "write", path="model_new.py", text=cases.MODEL_NEW.format(ms="wrong"))
    assert box.call("submit", {}).final  # the better one was measured before


def test_a_plan_becomes_files_that_can_be_edited(box: Toolbox) -> None:
    call(box, "write", path="kernels/old.cpp", text="// old")
    status, text = call(box, "apply_plan", plan={})
    assert status == "ok" and "1.2 ms a call" in text
    assert not box.folder.exists("kernels/old.cpp")
    edited = call(box, "edit", path="model_new.py", old="ModelNew(", new="ModelNew(  # mine\n(")
    assert edited[0] == "ok"
    candidate = candidate_of(box.folder, PROBLEM, "x")
    assert not candidate.trusted and candidate.plan is None


def test_only_the_contract_is_judged_and_links_are_not(box: Toolbox) -> None:
    call(box, "write", path="model_new.py", text=cases.MODEL_NEW.format(ms=1))
    call(box, "write", path="scratch_test.py", text="import time; time.perf_counter()")
    call(box, "write", path="kernels/a.cpp", text="// a")
    call(box, "write", path="kernels/notes.txt", text="no")
    os.symlink("/etc/passwd", box.folder.root / "kernels" / "secret.cpp")
    files = candidate_of(box.folder, PROBLEM, "x").files
    assert set(files) == {
        "model_new.py", "kernels/a.cpp", "reference.py", "runtime.py", "runtime_gemm.py"
    }
    os.unlink(box.folder.root / "model_new.py")
    os.symlink("/etc/passwd", box.folder.root / "model_new.py")
    assert "link" in call(box, "verify")[1]


def test_the_problem_is_restored_where_something_changed_it(box: Toolbox) -> None:
    (box.folder.root / "model.py").write_text("lies")
    (box.folder.root / "reference.py").unlink()
    assert "1  x = 1" in call(box, "read", path="model.py")[1]
    assert box.folder.text("reference.py") == PROBLEM.source


@pytest.fixture
def endless(box: Toolbox) -> Iterator[None]:
    """1,500 folders within one another; pytest itself could not remove them."""
    fd = os.open(box.folder.root, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    yield
    subprocess.run(["rm", "-rf", str(box.folder.root / "d")], check=True)


def test_folders_without_end_are_a_sentence(
    box: Toolbox, endless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, text = call(box, "glob", pattern="**/*.py")
    assert "\n" not in text or status == "ok"
    assert call(box, "todo", items=[])[0] == "ok"
    monkeypatch.setattr("cuda_agent.agents.tools.folder.MAX_ENTRIES", 3)
    assert "more than 3 files" in call(box, "glob", pattern="*")[1]


@needs_shell
def test_a_link_in_the_scratch_folders_place_leads_nowhere(box: Toolbox) -> None:
    outside = box.folder.root.parent / "outside"
    outside.mkdir()
    call(box, "bash", command=f"rm -rf .scratch; ln -s {outside} .scratch; exit 0")
    assert "try again" in call(box, "bash", command="echo here")[1]
    assert call(box, "bash", command="echo here")[1] == "here"
    assert list(outside.iterdir()) == []


def test_a_folder_of_another_problem_is_refused(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "model.py").write_text("other")
    with pytest.raises(SettingsError, match=r"model\.py is not the problem toy"):
        cases.toolbox(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="cannot be written"):
        prepare(tmp_path / "file", cases.bench(tmp_path), cases.FACTS)


def test_a_folder_keeps_the_work_that_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "model_new.py").write_text("mine")
    made = cases.toolbox(tmp_path)
    assert made.folder.text("model_new.py") == "mine"
    made.close()


@needs_shell
def test_bash_and_grep_work_in_the_folder(box: Toolbox) -> None:
    assert call(box, "bash", command="ls model.py; cd /usr; false")[1] == (
        "model.py\n(exit status 1)"
    )
    assert call(box, "bash", command="true")[1] == "(no output)"
    call(box, "write", path="kernels/a.cu", text="float x;\n-lonely ./here\n")
    assert call(box, "grep", pattern="^float +x", path="kernels")[1] == "kernels/a.cu:1:float x;"
    assert "kernels/a.cu:2:-lonely ./here" in call(box, "grep", pattern="-lonely")[1]
    found = call(box, "grep", pattern="FLOAT X", path="kernels", ignore_case=True)[1]
    assert found.endswith("float x;")
    assert call(box, "grep", pattern="nowhere", path="kernels/a.cu")[1] == "no line matches"
    assert call(box, "grep", pattern="(", path="kernels")[0] == "error"
    assert call(box, "bash")[0] == call(box, "bash", command="x", job=1)[0] == "error"
    assert "no job 99" in call(box, "bash", job=99)[1]
    seen: list[str] = []
    box.call("bash", {"command": "echo streamed"}, seen.append)
    assert "".join(seen) == "streamed\n"


@needs_shell
def test_what_is_protected_stays_whatever_bash_does(box: Toolbox) -> None:
    call(box, "bash", command="echo x > model.py; rm -f runtime.py; echo x > skills/softmax/new")
    assert box.folder.text("model.py") == PROBLEM.source and box.folder.exists("runtime.py")
    assert not box.folder.exists("skills/softmax/new")


@needs_shell
def test_jobs_are_told_of_and_killed(box: Toolbox) -> None:
    text = call(box, "bash", command="echo here; sleep 60", background=True)[1]
    number = int(text.split()[1])
    call(box, "bash", command="sleep 0.3")
    assert call(box, "bash", job=number)[1] == f"here\n(job {number}: running)"
    assert call(box, "bash", job=number, kill=True)[1] == f"(job {number}: killed)"


def test_a_turnstile_is_fair_and_survives_exceptions() -> None:
    turn, order = Turnstile(), []

    def pass_through(number: int) -> None:
        with turn():
            order.append(number)
            if number % 3 == 0:
                raise ValueError

    with ThreadPoolExecutor(8) as threads:
        with turn():
            futures = []
            for number in range(8):
                futures.append(threads.submit(pass_through, number))
                while len(turn._waiting) < number + 1:
                    threading.Event().wait(0.001)
        for future in futures:
            future.exception()
    assert order == list(range(8))
    with turn():
        pass


@pytest.mark.compiler
def test_with_the_real_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan, edit, break, measure: on the CPU, with a kernel of one's own."""
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "cache"))
    path = Path(__file__).parents[2] / "problems" / "level1" / "softmax_rows.py"
    problem = load_problem(str(path), size="cpu")
    target = get("cpu")
    instance = materialize(problem, "cpu")
    planner = Planner.make(instance, target.facts())
    settings = Settings(target="cpu", baselines=("eager",), threads=1)
    with InlineWorker(problem, instance, settings, cache_dir=cache_dir()) as worker:
        room = cases.Room(
            cases.Store(tmp_path / "runs"), "run", "key", problem.hash, planner.assemble, worker
        )
        bench = Bench(problem, room, worker, planner.space)
        box = Toolbox(prepare(tmp_path / "work", bench, target.facts()), bench, "test")
        try:
            status, text = call(box, "apply_plan", plan={})
            assert status == "ok", text
            assert "x eager" in text
            kernel = box.folder.glob("kernels/*.cpp")[0]
            source = box.folder.text(kernel)
            assert call(box, "compile")[0] == "ok"
            call(box, "write", path=kernel, text=source + "\nnonsense\n")
            status, text = call(box, "compile")
            assert status == "compile_error" and "nonsense" in text
            for attempt in range(3):  # other work on the machine may make the clocks disagree
                call(box, "write", path=kernel, text=source + f"\n// edited, {attempt}\n")
                status, text = call(box, "profile", counters=True)
                if "two clocks" not in text:
                    break
            assert status == "ok", text
            assert "counters: " in text
        finally:
            box.close()
