"""The judge's end: the fork server, contestant processes, deadlines, and a pool of warm ones."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import cuda_agent
from cuda_agent.errors import ContestantFailure, HarnessError
from cuda_agent.evaluation import failures, protocol
from cuda_agent.evaluation.failures import tail

_START_S = 120.0  # importing torch on a cold, busy machine
# Errors whose message begins with the rule's id, and the verdict that they mean.
_REFUSED = {"BadOutput": "wrong", "UnjoinedWork": "cheating", "Tripped": "cheating"}
_KEPT_VARIABLES = (
    "PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CXX", "CC",
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_AGENT_HOME", "TMPDIR", "VIRTUAL_ENV",
    "TRITON_INTERPRET", "TORCH_CUDA_ARCH_LIST", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT",
)

# Memory that a forward frees stays with its process, whatever allocator state the process happens
# to be in. With glibc's usual thresholds eager took 1.1 ms in some processes and 3.1 ms in others
# (page faults on its temporaries), and speed-ups over it moved as much.
_KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


def child_environment(threads: int) -> dict[str, str]:
    """What a contestant may see: where programs are, how many threads to use, nothing else."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    root = str(Path(cuda_agent.__file__).resolve().parents[1])
    path = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        "OMP_WAIT_POLICY": "passive",  # idle threads of one side must not steal the other's time
        **kept,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",
        **_KEEP_MEMORY,
        "KINETO_LOG_LEVEL": "99",  # torch's profiler would write about itself
    }


class ForkServer:
    """One process with torch imported; `fork` gives a contestant in milliseconds."""

    def __init__(
        self, target: str, threads: int, memory_limit: int | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._target = target
        self._variables = dict(variables or {})
        self._threads = threads
        self._memory_limit = memory_limit
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: protocol.Channel | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin to start, without waiting."""
        with self._lock:
            self._ensure()

    def _ensure(self) -> protocol.Channel:
        if self._channel is not None and self._process is not None and self._process.poll() is None:
            return self._channel
        self._stop()
        ours, theirs = socket.socketpair()
        with theirs:
            module = "cuda_agent.evaluation.contestant"
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                env={**child_environment(self._threads), **self._variables}, cwd="/",
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                start_new_session=True,
            )
        self._channel = protocol.Channel(ours, protocol.REPLY_LIMIT)
        return self._channel

    def fork(self) -> Contestant:
        """A fresh contestant. Raises HarnessError when the server does not answer."""
        ours, theirs = socket.socketpair()
        scratch = Path(tempfile.mkdtemp(prefix="cuda-agent-contestant-"))
        output = os.open(scratch / "output", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": 1 << 30, "RLIMIT_NOFILE": 4096}
            if self._memory_limit is not None:
                limits["RLIMIT_AS"] = self._memory_limit
            request = {
                "op": "fork", "target": self._target, "limits": limits, "scratch": str(scratch),
            }
            made = self._exchange(request, (theirs.fileno(), output), _START_S)
        except BaseException:
            ours.close()
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        finally:
            theirs.close()
            os.close(output)
        return Contestant(made["pid"], ours, scratch, self, made["isolated"])

    def reap(self, pid: int, wait_s: float = 5.0) -> int | None:
        """Exit code of an ended child; None if it has not ended, or the server is gone."""
        with contextlib.suppress(HarnessError):
            request = {"op": "reap", "pid": pid, "wait_s": wait_s}
            status: int | None = self._exchange(request, (), wait_s + 30)["status"]
            return status
        return None

    def _exchange(
        self, request: dict[str, Any], fds: Iterable[int], seconds: float
    ) -> Mapping[str, Any]:
        with self._lock:
            seq = secrets.randbits(48)
            deadline = time.monotonic() + seconds
            channel = self._ensure()
            try:
                channel.send({**request, "seq": seq}, fds, deadline)
                reply, _ = channel.receive(deadline)
                return protocol.check_reply(request["op"], seq, reply)
            except (
                protocol.ChannelClosed, protocol.ChannelTimeout, protocol.ProtocolError
            ) as error:
                said = self._stop()
                raise HarnessError(
                    f"the contestants' fork server failed ({type(error).__name__}): {tail(said)}"
                ) from None

    def _stop(self) -> str:
        """End the server; what it wrote to its error output."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        said = b""
        if self._process is not None:
            try:
                said = self._process.communicate(timeout=5)[1]
            except subprocess.TimeoutExpired:
                self._process.kill()
                said = self._process.communicate()[1]
            self._process = None
        return said.decode(errors="replace")

    def close(self) -> None:
        with self._lock:
            self._stop()


class Contestant:
    """One untrusted process. Every exchange has a deadline; after a failure it is dead."""

    def __init__(
        self, pid: int, sock: socket.socket, scratch: Path, server: ForkServer, isolated: bool
    ) -> None:
        self.pid = pid  # isolated: of the first process of its namespaces, see sandbox.fork
        self.isolated = isolated
        self.scratch = scratch
        self.alive = True
        self.uses = 0
        self._server = server
        self._channel = protocol.Channel(sock, protocol.REPLY_LIMIT)

    def request(
        self, op: str, seconds: float, fds: Iterable[int] = (), **fields: Any
    ) -> Mapping[str, Any]:
        """Send `op` and return its checked answer.

        Raises ContestantFailure: it raised (runtime_error, out_of_memory, compile_error), died,
        overran `seconds` (timeout), or answered what is no answer (cheating). HarnessError when it
        was killed from outside.
        """
        if not self.alive:
            raise HarnessError("the contestant is gone")
        seq = secrets.randbits(48)
        deadline = time.monotonic() + seconds
        try:
            self._channel.send({"op": op, "seq": seq, **fields}, fds, deadline)
            reply, _ = self._channel.receive(deadline)
            answer = protocol.check_reply(op, seq, reply)
        except protocol.ChannelTimeout:
            self.kill()
            raise ContestantFailure(
                "timeout", f"no answer to {op} within {seconds:.3g} s: it hangs or is far too slow"
            ) from None
        except protocol.ChannelClosed:
            raise self._death() from None
        except protocol.ProtocolError as error:
            self.kill()
            raise ContestantFailure("cheating", f"C1: the result channel carried {error}") from None
        if answer.get("failed"):
            raise self._raised(answer)
        return answer

    def answers(self) -> bool:
        """Whether an idle contestant is still there: its socket must be open and silent."""
        if self.alive and select.select([self._channel.fileno()], [], [], 0)[0]:
            self.kill()
        return self.alive

    def _raised(self, answer: Mapping[str, Any]) -> ContestantFailure:
        text = answer["text"]
        status, name = failures.classify(f"{answer['error']}\n{text}", answer["stage"])
        for refused, verdict in _REFUSED.items():
            if answer["error"].endswith(refused):  # the message begins with the rule's id
                return ContestantFailure(verdict, text.splitlines()[0].partition(": ")[2])
        if failures.loses_device(text):
            self.kill()
        said = "" if name == "exception" else f"{name}: "
        return ContestantFailure(status, f"{said}{text.strip()}")

    def _death(self) -> Exception:
        code = self._server.reap(self.pid)
        said = self.output()
        self.kill()
        if code is None or code == -signal.SIGKILL:
            return HarnessError(f"the contestant was killed from outside: {tail(said, 4)}")
        status, sentence = failures.of_death(code, said)
        detail = tail(said)
        return ContestantFailure(status, f"{sentence}\n{detail}" if detail else sentence, said)

    def output(self) -> str:
        """The end of what it printed."""
        try:
            with open(self.scratch / "output", "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 8192))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def kill(self) -> None:
        """End the process and its group. Safe to call again."""
        if not self.alive:
            return
        self.alive = False
        self._channel.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)  # before it had made its own group
        self._server.reap(self.pid)
        shutil.rmtree(self.scratch, ignore_errors=True)


class Pool:
    """Warm contestants: spares that nobody has used.

    `isolated`: whether the latest one lives in namespaces of its own. `variables`: of their
    environment, beside those that every contestant has.
    """

    def __init__(
        self, target: str, threads: int, memory_limit: int | None = None, spares: int = 1,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._server = ForkServer(target, threads, memory_limit, variables)
        self._spares: list[Contestant] = []
        self._wanted = spares
        self.isolated = False
        self._closed = False
        self._server.start()

    def fresh(self) -> Contestant:
        """A process that has run nothing yet; the next spare is made meanwhile."""
        if self._closed:
            raise HarnessError("the pool of contestants is closed")
        while self._spares:
            spare = self._spares.pop()
            if spare.answers():
                return spare
        return self._fork()

    def refill(self) -> None:
        """Fork spares up to the wanted number: between two candidates, in milliseconds."""
        while not self._closed and len(self._spares) < self._wanted:
            self._spares.append(self._fork())

    def _fork(self) -> Contestant:
        made = self._server.fork()
        self.isolated = made.isolated
        return made

    def close(self) -> None:
        self._closed = True
        for spare in self._spares:
            spare.kill()
        self._spares.clear()
        self._server.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
