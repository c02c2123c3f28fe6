"""The tools as an MCP server: a coding agent becomes a kernel engineer on a folder of its user's.

The same toolbox as in an episode, one call at a time. The server's process runs neither the
problem nor candidates: both live in the judge's process and its contestants, and a cancelled call
ends them, or the shell, at once.
"""

from __future__ import annotations

import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_agent.agents.judge_process import JudgeProcess
from cuda_agent.agents.loop import Room
from cuda_agent.agents.tools.base import Answer
from cuda_agent.agents.tools.judging import Bench
from cuda_agent.agents.tools.toolbox import Toolbox
from cuda_agent.agents.tools.workfolder import plans_text, prepare
from cuda_agent.errors import CudaAgentError
from cuda_agent.evaluation.settings import Settings
from cuda_agent.policies import PlanSpace
from cuda_agent.records import Problem, content_hash
from cuda_agent.store import Store
from cuda_agent.targets import DeviceFacts

if TYPE_CHECKING:  # the extra "agent" may be missing, and then only this server is
    from mcp.server.lowlevel import Server

LOOPBACK = "127.0.0.1"
NO_PLANS = '{"regions": [], "choices": {}, "note": "the graph cannot be captured: no plans"}\n'
_TICK_S = 1.0
_SHOWN = 200  # characters of a command's last line, in a progress notification

_INSTRUCTIONS = """\
Make the PyTorch module in model.py faster: write model_new.py and kernels/ in this folder, then
profile. Read SKILL.md first (read_skill cuda-agent). Only model_new.py and kernels/ are judged."""


class Guest:
    """The toolbox of one folder, called from a server's threads. The problem is examined meanwhile:
    a client waits seconds for a server, and calls wait for what they need."""

    def __init__(
        self, problem: Problem, settings: Settings, folder: Path, store: Store, cache: Path,
        facts: DeviceFacts,
    ) -> None:
        """Raises SettingsError, OutputError."""
        self.judge = JudgeProcess(problem, settings, cache)
        run = f"mcp-{content_hash(str(folder.resolve()), problem.hash)}"
        key = content_hash(settings.key, run)
        room = Room(store, run, key, problem.hash, self.judge.assemble, self.judge)
        bench = Bench(problem, room, self.judge, PlanSpace({}, {}))
        prepare(folder, bench, facts)
        self.toolbox = Toolbox(folder, bench, "mcp", max(1, facts.units))
        self._one = threading.Lock()
        self._waiting: set[object] = set()
        self._refused = ""
        self._ready = threading.Event()
        self.said = ""
        threading.Thread(target=self._examine, daemon=True).start()

    def _examine(self) -> None:
        try:
            found = self.judge.describe()
            plans = plans_text(found.space, found.regions) if found.space else NO_PLANS
            self.toolbox.folder.write("plans.json", plans)
        except CudaAgentError as error:
            self._refused = str(error)
            print(f"cuda-agent: {error}", file=sys.stderr)
        finally:
            self._ready.set()

    def call(self, name: str, arguments: Any, ticket: object) -> Answer:
        """One at a time. A `ticket` that was cancelled while it waited does nothing."""
        self._waiting.add(ticket)
        self._ready.wait()
        with self._one:
            if ticket not in self._waiting:
                return Answer("cancelled", "error")
            self._waiting.discard(ticket)
            self.said = ""
            if self._refused:
                return Answer(self._refused, "error")
            return self.toolbox.call(name, arguments, self._hear)

    def cancel(self, ticket: object) -> None:
        """Ends what the call started, in the judge and in the shell."""
        if ticket in self._waiting:
            self._waiting.discard(ticket)
            return
        self.judge.cancel()
        self.toolbox.shell.close()

    def _hear(self, text: str) -> None:
        lines = [line for line in text.splitlines() if line.strip()]
        self.said = lines[-1][:_SHOWN] if lines else self.said

    def close(self) -> None:
        self.toolbox.close()
        self.judge.close()


def make_server(guest: Guest) -> Server[Any]:
    """An MCP server with the guest's tools. Raises ImportError without the mcp package."""
    import anyio
    from mcp import types
    from mcp.server.lowlevel import Server

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        tools = [
            types.Tool(name=t.name, description=t.description, input_schema=t.parameters)
            for t in guest.toolbox.tools.values()
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        ticket, name, arguments = object(), params.name, params.arguments or {}
        answers: list[Answer] = []

        def work() -> None:
            answers.append(guest.call(name, arguments, ticket))

        async with anyio.create_task_group() as group:
            group.start_soon(_report, context, guest, name)
            try:
                await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(guest.cancel, ticket)
                raise
            group.cancel_scope.cancel()
        answer = answers[0]
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=answer.text)],
            is_error=answer.status == "error",
        )

    return Server(
        "cuda-agent", version=version("cuda-agent"), instructions=_INSTRUCTIONS,
        on_list_tools=list_tools, on_call_tool=call_tool,
    )


async def _report(context: Any, guest: Guest, name: str) -> None:
    """Progress, for as long as a call takes: seconds, and what a command printed last."""
    import anyio

    start = time.monotonic()
    while True:
        await anyio.sleep(_TICK_S)
        seconds = round(time.monotonic() - start, 1)
        said = guest.said or f"{name} is at work"
        await context.session.report_progress(seconds, None, f"{said} ({seconds:.0f} s)")


async def serve_stdio(server: Server[Any]) -> None:
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


async def serve_http(server: Server[Any], port: int) -> None:
    """At http://127.0.0.1:PORT/mcp, for this machine only."""
    import uvicorn

    app = server.streamable_http_app(host=LOOPBACK)
    config = uvicorn.Config(app, host=LOOPBACK, port=port, log_level="warning")
    await uvicorn.Server(config).serve()
