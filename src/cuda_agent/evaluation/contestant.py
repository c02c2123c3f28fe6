"""The untrusted side: `python -P -m cuda_agent.evaluation.contestant FD`.

The process started so is a fork server. It imports torch once, never touches a device and runs no
foreign code; for each request it forks a child, the contestant, which gets one socket and nothing
else: no expected output, no tolerance, no seed of the inputs. It gets a candidate's files and the
tensors in its arenas, runs what it is told to, and copies outputs into arenas that the judge owns.
It lives behind the walls of sandbox.py.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cuda_agent import targets
from cuda_agent.evaluation import builder, protocol, sandbox
from cuda_agent.evaluation.loading import Loaded
from cuda_agent.evaluation.recorder import OpRecorder
from cuda_agent.evaluation.session import Session
from cuda_agent.evaluation.tripwire import Tripwire

_TEXT_LIMIT = 8_000


# --- the fork server ----------------------------------------------------------------------------


def serve(fd: int) -> None:
    """Fork children until the judge's end of the socket closes; then end them all."""
    channel = protocol.Channel(socket.socket(fileno=fd), protocol.REQUEST_LIMIT)
    with OpRecorder():  # the first use imports for seconds; children inherit the result
        torch.empty(1).add_(1)
    gc.collect()
    gc.freeze()  # what was imported is never garbage: collections in the children stay short
    children: dict[int, bool] = {}
    while True:
        try:
            request, fds = channel.receive(accept_fds=True)
        except (protocol.ChannelClosed, protocol.ProtocolError):
            break
        if request["op"] == "fork":
            pid, isolated = sandbox.fork()
            if pid == 0:
                _become_contestant(request, isolated, *fds)
            for inherited in fds:
                os.close(inherited)
            children[pid] = isolated
            channel.send({"seq": request["seq"], "pid": pid, "isolated": isolated})
        else:
            status = _reap(request["pid"], request["wait_s"])
            if status is not None and children.pop(request["pid"], False) and status > 128:
                status = 128 - status  # a signal, as the first process of its namespaces tells it
            channel.send({"seq": request["seq"], "status": status})
    for pid in children:
        for end in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(pid, signal.SIGKILL)


def _reap(pid: int, wait_s: float) -> int | None:
    """The exit code of an ended child (negative: signal), None if it still runs.

    A child is not waited for before the judge asks, so its number is not given to another.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # a child of a server before this one
            return None
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.002)


def _become_contestant(
    request: Mapping[str, Any], isolated: bool, sock: int, output: int
) -> None:
    code = 70
    try:
        os.setsid()
        sandbox.die_with_parent()
        null = os.open(os.devnull, os.O_RDONLY)
        for source, place in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, place)
        sandbox.close_descriptors(keep=(0, 1, 2, sock))
        for name, value in request["limits"].items():
            sandbox.limit(getattr(resource, name), value)
        channel = protocol.Channel(socket.socket(fileno=sock), protocol.REQUEST_LIMIT)
        Contestant(request["target"], channel, Path(request["scratch"]), isolated).work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# --- the contestant -----------------------------------------------------------------------------


class Contestant:
    """Answers one request after another until the judge hangs up."""

    def __init__(
        self, target_name: str, channel: protocol.Channel, scratch: Path, isolated: bool
    ) -> None:
        self.scratch = scratch
        self.isolated = isolated
        self.target = targets.get(target_name)
        self.session = Session(self.target)
        self.channel = channel
        self.loaded: Loaded | None = None
        self.tripwire: Tripwire | None = None

    def work(self) -> None:
        while True:
            try:
                request, fds = self.channel.receive(accept_fds=True)
            except protocol.ChannelClosed:
                return
            reply: dict[str, Any]
            try:
                try:
                    reply = getattr(self, f"do_{request['op']}")(request, fds)
                finally:  # whatever came of it: a candidate may catch what the tripwire raised
                    if self.tripwire is not None:
                        self.tripwire.raise_if_tripped()
            except BaseException as error:  # SystemExit of the candidate as well
                reply = _failure(error, request["op"])
            self.channel.send({"seq": request["seq"], **reply})

    def do_confine(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        """Takes files and system calls away: once, before foreign code runs or a thread starts."""
        self.tripwire = Tripwire(request["writable"])
        self.tripwire.set()
        writable = [*request["writable"], str(self.scratch)]
        if self.isolated:
            writable.append("/dev/shm")  # private to these namespaces
        for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
            os.environ[name] = str(self.scratch)
        tempfile.tempdir = None  # asked anew
        sandbox.confine(request["readable"], writable)
        return {}

    def do_build(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        """Compile foreign sources; nothing of them runs here."""
        return builder.build(request)

    def do_load(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        self.do_unload(request, [])
        self.loaded = Loaded(request, self.target.torch_device())
        self.loaded.load()
        answer: dict[str, Any] = {"missing": [], "unexpected": []}
        if request["state"] is not None:
            answer = self.do_state(request["state"], fds)
        self.session.forward = self.loaded.forward
        cuda = self.target.torch_device().type == "cuda"
        if request["compile_mode"] and cuda:
            self.session.before_call = torch.compiler.cudagraph_mark_step_begin
        self.target.synchronize()
        return answer

    def do_state(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        assert self.loaded is not None
        arena = self.target.open_arena(request["arena"], fds[0] if fds else None)
        try:
            return self.loaded.set_state(request, arena)
        finally:
            self.target.synchronize()
            arena.close()

    def do_unload(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        self.session.forward = self.session.before_call = None
        if self.loaded is not None:
            self.loaded.unload()
            self.loaded = None
        return {}

    def do_inputs(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        arena = self.target.open_arena(request["arena"], fds[0] if fds else None)
        self.session.attach_inputs(
            request["set"], arena, request["tree"], request["slots"], request["private"]
        )
        return {}

    def do_outputs(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        arena = self.target.open_arena(request["arena"], fds[0] if fds else None)
        self.session.attach_outputs(
            arena, request["slots"], request["count"], request["step"], request["pad"]
        )
        return {}

    def do_drop(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        self.session.drop()
        return {}

    def do_run(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        return self.session.run(request["set"], request["slot"], request["record"])

    def do_prepare(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        self.session.prepare()
        return {}

    def do_call(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        return self.session.call(request["set"], request["slot"])

    def do_burst(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        return self.session.burst(request["sets"], request["slots"], request["copy_only"])

    def do_trace(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        return self.session.trace(request["set"])


def _failure(error: BaseException, stage: str) -> dict[str, Any]:
    """Type, message and the frames outside of this package and torch."""
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if "/torch/" not in f.filename and "/cuda_agent/" not in f.filename
    ]
    lines = traceback.format_list(frames)[-6:]
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    head = f"{name}: {error}"
    log = str(getattr(error, "log", ""))
    text = f"{head[: _TEXT_LIMIT // 2]}\n{''.join(lines)}{log}"
    return {"failed": True, "error": name[:200], "text": text[:_TEXT_LIMIT], "stage": stage}


if __name__ == "__main__":
    serve(int(sys.argv[1]))
