"""The MCP server, as the official SDK's own client sees it: over stdio and over HTTP."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the mcp package is not installed: pip install '.[agent]'")

import anyio
from mcp import Client, StdioServerParameters

from cuda_agent.evaluation import sandbox

pytestmark = pytest.mark.compiler
WALLED = all(text.startswith("works") for text in sandbox.probe().values())

PROBLEM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + 0.5 * x

def get_inputs():
    return [torch.randn(256, 512)]
"""
HEAD = """
import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
"""
GOOD = f"{HEAD}        return torch.where(x > 0, 1.5 * x, 0.5 * x)\n"
ENDLESS = f"{HEAD}        while True:\n            pass\n"
WRONG = f"{HEAD}        return torch.relu(x)\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mcp")
    (folder / "problem.py").write_text(PROBLEM)
    (folder / "secret").write_text("secret")
    return folder


def command(place: Path, name: str, *more: str) -> tuple[list[str], dict[str, str]]:
    arguments = [
        "-m", "cuda_agent", "mcp", str(place / "problem.py"), "--folder", str(place / name),
        "--target", "cpu", "--baselines", "eager", *more,
    ]
    kept = {n: v for n, v in os.environ.items() if n in ("PATH", "HOME", "PYTHONPATH", "LANG")}
    return arguments, {**kept, "CUDA_AGENT_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"}


def visit(place: Path, name: str, talk: Callable[[Client], Awaitable[None]]) -> None:
    """Starts a server over stdio on a folder of that name, and talks to it."""
    arguments, environment = command(place, name)

    async def main() -> None:
        parameters = StdioServerParameters(
            command=sys.executable, args=arguments, env=environment, cwd=str(place)
        )
        async with Client(parameters, read_timeout_seconds=120) as client:
            await talk(client)

    anyio.run(main)


async def call(client: Client, name: str, **arguments: Any) -> tuple[bool, str]:
    result = await client.call_tool(name, arguments)
    return bool(result.is_error), result.content[0].text  # type: ignore[union-attr]


def judges() -> set[int]:
    """Processes that judge for a server that this test started."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if b"cuda_agent.agents.judge_process" in (path / "cmdline").read_bytes() and (
                parent in children({os.getpid()})
            ):
                found.add(int(path.name))
        except (OSError, ValueError):
            continue
    return found


def test_list_call_and_readable_errors(place: Path) -> None:
    async def talk(client: Client) -> None:
        tools = {t.name: t for t in (await client.list_tools()).tools}
        assert {"read", "write", "apply_plan", "profile", "submit"} <= set(tools)
        assert tools["read"].input_schema["required"] == ["path"]
        assert "relu" in (await call(client, "read", path="model.py"))[1]
        for path in ("../secret", str(place / "secret"), "/etc/passwd"):
            failed, text = await call(client, "read", path=path)
            assert failed and "work folder" in text
        os.symlink(place / "secret", place / "work" / "kernels" / "link.cpp")
        failed, text = await call(client, "read", path="kernels/link.cpp")
        assert failed and "links are not followed" in text
        assert await call(client, "fly") == (True, await _unknown(client))
        failed, text = await call(client, "read", path=3)
        assert failed and "must be of type string" in text
        assert await call(client, "write", path="model_new.py", text=WRONG) == (
            False, "wrote model_new.py, 6 lines"
        )
        failed, text = await call(client, "verify")
        assert not failed and text.startswith("wrong")  # a verdict, not an error of the call
        failed, text = await call(client, "apply_plan", plan={})
        assert not failed and "x eager" in text, text
        await call(client, "write", path="model_new.py", text=GOOD)
        failed, text = await call(client, "submit")
        assert not failed and "submitted" in text, text

    visit(place, "work", talk)


async def _unknown(client: Client) -> str:
    names = ", ".join(t.name for t in (await client.list_tools()).tools)
    return f"there is no tool 'fly'; there are {names}"


def test_cancellation_kills_the_evaluation(place: Path) -> None:
    async def talk(client: Client) -> None:
        failed, text = await call(client, "write", path="model_new.py", text=ENDLESS)
        assert not failed, text
        before = judges()
        assert before
        said, contestants = "", set[int]()

        async def look() -> None:
            while not contestants:
                await anyio.sleep(0.2)
                contestants.update(children(before))

        heard: list[str] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            heard.append(message or "")

        async with anyio.create_task_group() as group:
            with anyio.move_on_after(6) as scope:
                group.start_soon(look)
                result = await client.call_tool("profile", {}, progress_callback=hear)
                said = str(result)
            group.cancel_scope.cancel()
        assert scope.cancelled_caught and not said, said
        assert contestants and len(heard) >= 3 and heard[0].startswith("profile is at work")
        deadline = time.monotonic() + 8
        while any(Path(f"/proc/{pid}").exists() for pid in before | contestants):
            assert time.monotonic() < deadline, "the judge or its contestants were not killed"
            await anyio.sleep(0.1)
        await call(client, "read", path="model_new.py")
        await call(client, "write", path="model_new.py", text=GOOD)
        failed, text = await call(client, "verify")
        assert not failed and text.startswith(("ok", "cheating\ntwo clocks")), text

    visit(place, "cancelled", talk)
    assert not judges()


def children(parents: set[int]) -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent in parents:
            found.add(int(path.name))
    return found


@pytest.mark.skipif(not WALLED, reason="no shell here: a wall is missing")
def test_progress_while_a_call_takes_long_and_a_command_is_cancelled(place: Path) -> None:
    async def talk(client: Client) -> None:
        heard: list[tuple[float, str]] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            heard.append((progress, message or ""))

        text = "for i in 1 2 3 4 5 6; do echo step $i; sleep 0.6; done"
        result = await client.call_tool("bash", {"command": text}, progress_callback=hear)
        assert not result.is_error and len(heard) >= 2
        assert [p for p, _ in heard] == sorted(p for p, _ in heard)
        assert "step" in heard[-1][1] and "s)" in heard[-1][1]
        start = time.monotonic()
        with anyio.move_on_after(1.5) as scope:
            await call(client, "bash", command="sleep 97.135", timeout_s=60)
        assert scope.cancelled_caught
        assert await call(client, "bash", command="echo again") == (False, "again")
        assert time.monotonic() - start < 20
        assert not [
            p for p in Path("/proc").glob("[0-9]*") if _has(p, b"97.135")
        ]

    visit(place, "commands", talk)


def _has(process: Path, text: bytes) -> bool:
    try:
        return text in (process / "cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture
def http(place: Path) -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments, environment = command(place, "http", "--http", str(port))
    server = subprocess.Popen([sys.executable, *arguments], env=environment, cwd=place)
    deadline = time.monotonic() + 60
    while socket.socket().connect_ex(("127.0.0.1", port)):
        assert time.monotonic() < deadline and server.poll() is None
        time.sleep(0.1)
    yield port
    server.terminate()
    server.wait(20)


def test_over_http_on_loopback(place: Path, http: int) -> None:
    async def main() -> None:
        async with Client(f"http://127.0.0.1:{http}/mcp", read_timeout_seconds=60) as client:
            assert "read" in {t.name for t in (await client.list_tools()).tools}
            assert "relu" in (await call(client, "read", path="model.py"))[1]
            failed, text = await call(client, "read", path="../secret")
            assert failed and "not followed" in text

    anyio.run(main)
    own = socket.gethostbyname(socket.gethostname())
    if not own.startswith("127."):
        with socket.socket() as outside:
            assert outside.connect_ex((own, http)) != 0


def test_bad_input_is_a_sentence_before_anything_is_served(place: Path) -> None:
    arguments, environment = command(place, "bad")
    arguments[3] = str(place / "nothing.py")
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2 and done.stdout == "" and "nothing.py" in done.stderr
    assert "Traceback" not in done.stderr
