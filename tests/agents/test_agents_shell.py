"""The shell: it lasts, ends what overruns, and lets nothing out."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cuda_agent
from cuda_agent.agents.tools import shell as shell_module
from cuda_agent.agents.tools.folder import Folder
from cuda_agent.agents.tools.shell import Shell, ShellUnavailable
from cuda_agent.evaluation import sandbox

WALLS = sandbox.probe()
MISSING = [f"{name}: {text}" for name, text in WALLS.items() if not text.startswith("works")]
behind_walls = pytest.mark.skipif(bool(MISSING), reason="; ".join(MISSING))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "work").mkdir()
    made = Shell(Folder(tmp_path / "work"))
    yield made
    made.close()


@behind_walls
def test_state_lasts_from_one_command_to_the_next(shell: Shell) -> None:
    assert shell.run("x=5; f() { echo f$1; }; mkdir sub; cd sub; export Y=7").code == 0
    ran = shell.run("echo $x; f 1; pwd; sh -c 'echo $Y'; echo oops >&2; (exit 3)")
    assert ran.text == f"5\nf1\n{shell.folder.root}/sub\n7\noops\n" and ran.code == 3
    assert shell.run("cat").text == ""  # no input to wait for
    assert "unexpected EOF" in shell.run("echo 'open").text
    assert shell.run("printf '%s' 'a\nb'").text == "a\nb"


@behind_walls
def test_output_comes_while_the_command_runs(shell: Shell) -> None:
    seen: list[tuple[float, str]] = []
    start = time.monotonic()
    shell.run("echo one; sleep 0.6; echo two", tell=lambda t: seen.append((time.monotonic(), t)))
    assert "".join(t for _, t in seen) == "one\ntwo\n"
    assert seen[0][0] - start < seen[-1][0] - start - 0.4


@behind_walls
def test_what_would_move_a_terminal_is_taken_off(shell: Shell) -> None:
    assert shell.run(r"printf 'a\033[31mred\033[0m\033]0;title\007b\x08\x9bc\tü\n'").text == (
        "aredb�c\tü\n"
    )


@behind_walls
@pytest.mark.parametrize(
    "command", ["while :; do :; done", "sleep 60", "trap '' TERM INT; sleep 60 & wait",
                "kill -STOP $$", "kill -STOP 2; sleep 60", "exec 9>&-"],
)  # fmt: skip
def test_a_command_that_overruns_is_ended_with_all_it_started(shell: Shell, command: str) -> None:
    shell.run("(sleep 97.531 &) ; x=5")
    ran = shell.run(command, timeout_s=0.7)
    assert ran.code is None and "stopped after 0.7 s" in ran.note and ran.seconds < 5
    assert not any(b"97.531" in _cmdline(p) for p in Path("/proc").glob("[0-9]*"))
    assert shell.run("echo new$x").text == "new\n"


def _cmdline(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


@behind_walls
@pytest.mark.parametrize(
    "command", ["exit 4", "kill -9 $$", "exec true", "kill -9 -1", "kill -9 2", "set -e; false"]
)
def test_a_shell_that_ends_itself_is_followed_by_a_new_one(shell: Shell, command: str) -> None:
    ran = shell.run(command, timeout_s=10)
    assert "ended" in ran.note and ran.seconds < 5
    assert shell.run("echo new").text == "new\n"


@behind_walls
def test_endless_output_is_stopped(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_module, "MAX_OUTPUT", 1 << 20)
    ran = shell.run("yes", timeout_s=30)
    assert "printed more than 1 MiB" in ran.note and len(ran.text) < 2 << 20


@behind_walls
def test_a_disk_that_fills_up_stops_the_command(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.run("true")
    free = shutil.disk_usage(shell.folder.root).free
    monkeypatch.setattr(shell_module, "MIN_FREE", free - (64 << 20))
    ran = shell.run("head -c 300M /dev/zero > big; sleep 60", timeout_s=30)
    assert "of disk are left" in ran.note and ran.seconds < 20
    monkeypatch.setattr(shell_module, "MIN_FREE", 0)
    assert shell.run("rm big; echo new").text == "new\n"


@behind_walls
def test_forks_without_end_are_bounded_and_ended(shell: Shell) -> None:
    before = _processes()
    ran = shell.run("bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 60", timeout_s=2)
    assert ran.code is None and ran.seconds < 20
    assert _processes() < before + 20
    assert shell.run("echo alive").text == "alive\n"


def _processes() -> int:
    return len([n for n in os.listdir("/proc") if n.isdigit()])


@behind_walls
def test_jobs_run_beside_commands(shell: Shell) -> None:
    job = shell.start("echo first; while ! test -e go; do sleep 0.05; done; echo second; exit 6")
    _until(lambda: _printed(shell, job) > 0)
    assert shell.look(job) == ("first\n", "running")
    shell.run("touch go")
    _until(lambda: shell.folder.exists(f".scratch/jobs/{job}.code"))
    assert shell.look(job) == ("second\n", "ended with status 6")
    other = shell.start("sleep 98.642")
    shell.kill(other)
    _until(lambda: not any(b"98.642" in _cmdline(p) for p in Path("/proc").glob("[0-9]*")))
    with pytest.raises(KeyError):
        shell.look(999)


def _printed(shell: Shell, job: int) -> int:
    path = shell.folder.root / ".scratch" / "jobs" / f"{job}.out"
    return path.stat().st_size if path.exists() else 0


def _until(done: object, seconds: float = 10.0) -> None:
    assert callable(done)
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


@behind_walls
def test_nothing_runs_while_halted(shell: Shell) -> None:
    job = shell.start("while :; do echo x; sleep 0.01; done")
    _until(lambda: _printed(shell, job) > 4)
    with shell.halted():
        time.sleep(0.1)
        size = _printed(shell, job)
        time.sleep(0.3)
        assert _printed(shell, job) == size
    _until(lambda: _printed(shell, job) > size)
    assert shell.run("echo on").text == "on\n"


@behind_walls
def test_a_shell_that_will_not_halt_is_ended(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell_module, "_ANSWER_S", 0.5)
    shell.run("kill -STOP 2 & sleep 0.1", timeout_s=1)
    shell.run("true", timeout_s=0.5)
    shell.start("sleep 5")
    with shell.halted():
        pass
    assert shell.run("echo new").text == "new\n"


# --- escapes ------------------------------------------------------------------------------------

# Each prints "escaped" where it succeeds. SECRET, FOLDER, PORT, PACKAGE, PID: the test's own.
ESCAPES = {
    "reads_a_file": "cat SECRET && echo escaped",
    "reads_through_a_link": "ln -sf SECRET link; cat link && echo escaped",
    "writes_a_file": "echo x > FOLDER/written && echo escaped",
    "lists_a_folder": "ls FOLDER && echo escaped",
    "makes_a_hard_link": "ln SECRET hard && cat hard && echo escaped",
    "edits_the_package": "echo '#' >> PACKAGE && echo escaped",
    "connects": "exec 3<>/dev/tcp/127.0.0.1/PORT && echo escaped",
    "makes_a_socket": "python -c 'import socket; socket.socket()' && echo escaped",
    "signals": "kill -0 PID && echo escaped",
    "sees_others": "ls -d /proc/PID/fd && echo escaped",
    "reads_memory": "head -c 1 /proc/PID/mem && echo escaped",
    "reads_environments": "cat /proc/*/environ | tr '\\0' '\\n' | grep TEST_HIDDEN && echo escaped",
    "reads_its_environment": "env | grep TEST_HIDDEN && echo escaped",
    "leaves_by_chroot": "chroot / true && echo escaped",
    "makes_namespaces": "unshare -r true && echo escaped",
    "mounts": "mount -t tmpfs none . && echo escaped",
    "overwrites_what_is_protected": "{ echo x > model.py; } && echo escaped",
    "replaces_what_is_protected": "{ rm -f model.py && echo x > model.py; } && echo escaped",
}


@pytest.fixture(scope="module")
def prison(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, dict[str, str]]]:
    base = tmp_path_factory.mktemp("base")
    (base / "work").mkdir()
    (base / "work" / "model.py").write_text("original")
    (base / "outside").mkdir()
    (base / "outside" / "secret").write_text("x")
    child = subprocess.Popen(["sleep", "600"])
    with socket.socket() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_HIDDEN", "x")
        server.bind(("127.0.0.1", 0))
        server.listen()
        names = {
            "SECRET": str(base / "outside" / "secret"), "FOLDER": str(base / "outside"),
            "PORT": str(server.getsockname()[1]), "PID": str(child.pid),
            "PACKAGE": str(Path(cuda_agent.__file__).with_name("errors.py")),
        }
        made = Shell(Folder(base / "work"), [str(base / "work" / "model.py")])
        yield made, names
        made.close()
    child.send_signal(signal.SIGKILL)
    child.wait()


def _filled(name: str, names: dict[str, str]) -> str:
    text = ESCAPES[name]
    for key, value in names.items():
        text = text.replace(key, value)
    return text


@behind_walls
@pytest.mark.parametrize("name", ESCAPES)
def test_nothing_gets_out(prison: tuple[Shell, dict[str, str]], name: str) -> None:
    shell, names = prison
    ran = shell.run(_filled(name, names), timeout_s=20)
    assert "escaped" not in ran.text, ran.text
    assert (shell.folder.root / "model.py").read_text() == "original"
    assert "escaped" in shell.run("echo escaped").text


@pytest.mark.parametrize(
    "name", [n for n in ESCAPES if n not in ("makes_namespaces", "mounts", "edits_the_package",
                                             "leaves_by_chroot", "reads_memory")],
)  # fmt: skip
def test_outside_the_same_attempt_succeeds(
    prison: tuple[Shell, dict[str, str]], tmp_path: Path, name: str
) -> None:
    _, names = prison
    (tmp_path / "model.py").write_text("original")
    (tmp_path / "secret").write_text("x")
    names = {**names, "FOLDER": str(tmp_path), "SECRET": str(tmp_path / "secret")}
    done = subprocess.run(
        ["bash", "-c", _filled(name, names)], capture_output=True, text=True, cwd=tmp_path,
        timeout=30,
    )
    assert "escaped" in done.stdout, done.stderr


def test_without_its_walls_there_is_no_shell(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process in which the kernel's refusal is imitated: the inside must give up by itself."""
    (tmp_path / "sitecustomize.py").write_text(
        "from cuda_agent.evaluation import sandbox\nsandbox.landlock_version = lambda: 0\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ShellUnavailable, match="Landlock"):
        shell.run("echo x")


@behind_walls
def test_a_command_is_halted_from_another_thread_and_not_charged_for_it(shell: Shell) -> None:
    shell.run("true")
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(
            shell.run, "for i in 1 2 3 4 5 6; do sleep 0.1; done; echo done", timeout_s=1.5
        )
        time.sleep(0.2)
        with shell.halted():
            time.sleep(1.6)
            assert not future.done()
        ran = future.result(timeout=10)
    assert ran.text == "done\n" and ran.seconds > 2
