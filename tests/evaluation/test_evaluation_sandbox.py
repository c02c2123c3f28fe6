"""Escapes that must fail with the static rules switched off, and faults that must harm nobody."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import cases
import cuda_agent
from cuda_agent.evaluation import Judge, Pool, Settings, guard, sandbox
from cuda_agent.problems import materialize

pytestmark = pytest.mark.compiler

WALLS = sandbox.probe()
HEAD = """
import ctypes, os, pathlib, socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None)
"""
# Each is true where it succeeds. `SECRET`, `FOLDER`, `PORT`, `PACKAGE`, `UNIX`, `DATAGRAMS`: the
# test's own.
ESCAPES = {
    "reads_a_file": 'pathlib.Path("{SECRET}").read_text()',
    "writes_a_file": 'pathlib.Path("{FOLDER}", "written").write_text("x")',
    "edits_the_package": 'open("{PACKAGE}", "a")',
    "lists_a_folder": 'os.listdir("{FOLDER}")',
    "connects": 'socket.create_connection(("127.0.0.1", {PORT}), 2)',
    "connects_to_a_unix_socket": 'socket.socket(socket.AF_UNIX).connect("{UNIX}") is None',
    "sends_to_a_unix_socket": (
        'socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"x", "{DATAGRAMS}")'
    ),
    # By libc, past the interpreter's audit events: the wall is what should hold.
    "signals_the_judge": "libc.kill({JUDGE}, 0) == 0",
    "reads_the_judges_memory": 'libc.open(b"/proc/{JUDGE}/mem", 0) >= 0',
    "sees_the_judges_descriptors": 'os.listdir("/proc/{JUDGE}/fd")',
    "traces": "libc.ptrace(16, {JUDGE}, 0, 0) == 0 and libc.ptrace(17, {JUDGE}, 0, 0) == 0",
    "makes_namespaces": "libc.unshare(0x10000000) == 0",
    "reads_the_judges_environment": 'os.environ["CUDA_AGENT_TEST_SECRET"]',
}
needs = {"makes_namespaces": "seccomp", "signals_the_judge": "namespaces"}


@pytest.fixture(scope="module")
def judge(cache_dir: Path) -> Iterator[Judge]:
    problem = cases.problem()
    settings = Settings(
        target="cpu", baselines=("eager",), threads=1, deadline_s=3.0, compile_deadline_s=3.0,
        time_limit_s=0.1,
    )
    instance = materialize(problem, "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_AGENT_TEST_SECRET", "x")
        patch.setattr(guard, "review", lambda *_: guard.Review())
        pool = Pool("cpu", threads=1, memory_limit=6 << 30)
        with pool, Judge(problem, instance, settings, cache_dir=cache_dir, pool=pool) as made:
            yield made


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    folder = tmp_path_factory.mktemp("outside")
    (folder / "secret").write_text("x")
    package = Path(cuda_agent.__file__).with_name("errors.py")
    with (
        socket.socket() as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind(str(folder / "datagrams"))
        tcp.bind(("127.0.0.1", 0))
        unix.bind(str(folder / "socket"))
        tcp.listen()
        unix.listen()
        yield {
            "SECRET": folder / "secret", "FOLDER": folder, "PACKAGE": package,
            "PORT": tcp.getsockname()[1], "UNIX": folder / "socket", "JUDGE": os.getpid(),
            "DATAGRAMS": folder / "datagrams",
        }


def attempt(name: str, places: dict[str, object]) -> str:
    text = ESCAPES[name]
    for key, value in places.items():
        text = text.replace("{" + key + "}", str(value))
    return textwrap.dedent(f"""
        try:
            escaped = bool({text})
        except (OSError, KeyError):
            escaped = False
        if escaped:
            raise RuntimeError("escaped")
        """)


@pytest.mark.parametrize("name", ESCAPES)
def test_no_candidate_gets_out(judge: Judge, places: dict[str, object], name: str) -> None:
    if not WALLS.get(wall := needs.get(name, "Landlock"), "").startswith("works"):
        pytest.skip(f"{wall}: {WALLS.get(wall, 'missing')}")
    text = attempt(name, places)
    verdict = judge.judge(
        cases.candidate(cases.python(f"{text}\nreturn {cases.RIGHT}", HEAD), judge.problem)
    )
    assert verdict.ok, (verdict.feedback, verdict.findings)


@pytest.mark.parametrize("name", [n for n in ESCAPES if n != "reads_the_judges_environment"])
def test_outside_the_same_attempt_succeeds(places: dict[str, object], name: str) -> None:
    child = subprocess.Popen(["sleep", "20"])
    try:
        text = attempt(name, {**places, "JUDGE": child.pid})
        done = subprocess.run(
            [sys.executable, "-c", f"{HEAD}\n{text}"], capture_output=True, text=True
        )
    finally:
        child.kill()
        child.wait()
    if name in ("traces", "makes_namespaces") and not done.returncode:
        pytest.skip("this machine forbids it to everybody")
    assert "escaped" in done.stderr


def test_only_its_own_descriptors_are_open(judge: Judge) -> None:
    forward = f"""
    allowed = ("/dev/null", "socket:", "/memfd:", "{sys.prefix}", "/proc/")
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        if not path.startswith(allowed) and not path.endswith("/output"):
            raise RuntimeError("open: " + path)
    return {cases.RIGHT}
    """
    files = cases.python(textwrap.dedent(forward), HEAD)
    verdict = judge.judge(cases.candidate(files, judge.problem))
    assert verdict.ok, verdict.feedback


def test_what_nvidias_driver_does_at_its_start_is_allowed(judge: Judge) -> None:
    """It names its threads and listens on an abstract local socket; refused either, cuInit fails
    with error 304."""
    forward = f"""
    task = pathlib.Path(f"/proc/self/task/{{threading.get_native_id()}}/comm")
    task.write_text("cuda00001400006")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as own:
        own.bind(f"\\0cuda-uvmfd-1-{{os.getpid()}}")
        own.listen()
    return {cases.RIGHT}
    """
    files = cases.python(textwrap.dedent(forward), HEAD)
    verdict = judge.judge(cases.candidate(files, judge.problem))
    assert verdict.ok, verdict.feedback


def test_nothing_it_started_outlives_it(judge: Judge) -> None:
    if not WALLS["namespaces"].startswith("works"):
        pytest.skip(WALLS["namespaces"])
    daemon = 'subprocess.Popen(["sleep", "98.7654"], start_new_session=True)'
    files = cases.python(f"return {cases.RIGHT}", f"{HEAD}\n{daemon}")
    assert judge.judge(cases.candidate(files, judge.problem)).ok
    time.sleep(0.2)
    assert not [p for p in Path("/proc").glob("[0-9]*") if b"98.7654" in cmdline(p)]


def cmdline(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


FAULTS = {
    "fork_bomb": ("while True: os.fork()", {"timeout", "cheating", "runtime_error"}),
    "thread_bomb": (
        "while True: threading.Thread(target=time.sleep, args=(60,)).start()",
        {"runtime_error", "timeout", "out_of_memory"},
    ),
    "flood": ('while True: os.write(1, b"x" * 65536)', {"timeout", "runtime_error"}),
    "fills_its_folder": (
        'file = open("/".join([os.environ["TMPDIR"], "big"]), "wb")\n'
        'while True: file.write(b"x" * (1 << 20))',
        {"timeout", "runtime_error"},
    ),
    "memory_hog": (
        "held = []\nwhile True: held.append(torch.empty(1 << 26))", {"out_of_memory"}
    ),
    "native_recursion": (
        "sys.setrecursionlimit(1 << 30)\nf = ctypes.CFUNCTYPE(None)(lambda: f())\nf()",
        {"runtime_error"},
    ),
    "kills_itself": ("ctypes.CDLL(None).kill(os.getpid(), 9)", {"harness_error"}),
    "kills_its_first_process": ("assert ctypes.CDLL(None).kill(1, 9) == 0", {"runtime_error"}),
    "kills_all": ("assert ctypes.CDLL(None).kill(-1, 9) == 0", {"runtime_error"}),
    "stops_itself": ("ctypes.CDLL(None).kill(os.getpid(), 19)", {"timeout"}),
    "closes_all": ("os.closerange(0, 4096)", {"runtime_error", "cheating"}),
    "aborts": ("os.abort()", {"runtime_error"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_harms_nobody_in_either_order(judge: Judge, name: str) -> None:
    """The fault, an innocent one, the fault again: each as if it were alone."""
    body, expected = FAULTS[name]
    bad = cases.candidate(cases.python(f"{body}\nreturn {cases.RIGHT}", HEAD), judge.problem)
    innocent = cases.candidate(cases.native(), judge.problem)
    first, good, again = judge.judge(bad), judge.judge(innocent), judge.judge(bad)
    assert first.status in expected, (first.status, first.feedback)
    assert again.status in expected, (again.status, again.feedback)
    assert good.ok, (good.status, good.feedback, good.findings)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_forbids_what_it_should(machine: str) -> None:
    """The program run by a small interpreter of the kernel's packet filter."""
    column, architecture = sandbox._MACHINES[machine]

    def verdict(name: str, first: int = 0, second: int = 0, arch: int = architecture) -> int:
        data = {0: sandbox._CALLS[name][column], 4: arch, 16: first, 24: second}
        return run_filter(sandbox._filter(machine), data)

    allow, refused = 0x7FFF0000, 0x50001
    assert verdict("capset") == allow  # stands for what is not named
    assert verdict("ptrace") == verdict("mount") == verdict("seccomp") == refused
    assert verdict("clone", 0x00010F00) == allow  # a thread
    assert verdict("clone", 0x10000000) == refused  # a user namespace
    assert verdict("clone3") == 0x50026 and verdict("connect") == 0x5006F
    unix, internet, stream, datagrams, close_on_exec = 1, 2, 1, 2, 0x80000
    for call in ("socket", "socketpair"):
        assert verdict(call, unix, stream | close_on_exec) == allow
        assert verdict(call, unix, datagrams) == verdict(call, internet, stream) == 0x50061
    assert verdict("prctl", 15) == allow and verdict("prctl", 22) == refused
    assert verdict("capset", arch=1) == 0x80000000


def run_filter(lines: list[tuple[int, int, int, int]], data: dict[int, int]) -> int:
    held, at = 0, 0
    while True:
        operation, yes, no, constant = lines[at]
        at += 1
        if operation == 0x06:
            return constant
        if operation == 0x20:
            held = data[constant]
        elif operation == 0x54:
            held &= constant
        else:
            holds = {
                0x15: held == constant, 0x45: bool(held & constant), 0x35: held >= constant
            }[operation]
            at += yes if holds else no


@pytest.mark.parametrize("threads", [0, 1])
def test_a_process_with_threads_is_forked_without_namespaces(threads: int) -> None:
    """OpenBLAS keeps a pool; its handlers deadlock in a child that they did not see made."""
    text = f"""
        import os, threading
        from cuda_agent.evaluation import sandbox
        for _ in range({threads}):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        pid, isolated = sandbox.fork()
        if pid == 0:
            os._exit(7)
        print(isolated, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        capture_output=True, text=True, timeout=60, check=True,
    )
    possible = WALLS.get("namespaces", "").startswith("works")
    assert done.stdout.split() == [str(possible and not threads), "7"]
