"""The shell's side of the walls: `python -P -m cuda_agent.agents.tools.inside ROOT PROTECTED...`.

Goes behind the walls of evaluation/sandbox.py, then keeps one bash and passes on what it is told.
Everything here may be killed or lied to by what runs in that bash: it holds nothing of value, and
the other side (shell.py) believes none of it. Messages are lines of JSON:

    in   {"run": n, "text": command}   {"job": n, "text": command}   {"kill": n}
         {"halt": true} stop every process but this one, {"halt": false} let them go on
    out  {"ready": true}   {"out": text}   {"end": n, "code": status}   {"started": n}
         {"halted": true or false}   {"died": status}
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import json
import os
import resource
import select
import selectors
import shlex
import signal
import subprocess
import sys

from cuda_agent.evaluation import sandbox

JOBS = ".scratch/jobs"
_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 1, 32, 4096
_MEMORY_BYTES = 16 << 30  # of addresses, for a process; CUDA reserves more than any machine has
_STATUS = 9  # bash's own descriptor for "end" and "started"


def main(root: str, protected: list[str]) -> int:
    """Returns in the outer process only, when all that ran inside has ended."""
    if not (sandbox.landlock_version() and sandbox.seccomp_works()):
        say({"refused": "this kernel offers no Landlock or no seccomp"})
        return 1
    pid, isolated = sandbox.fork()
    if pid:
        return _wait_outside(pid)
    if not isolated:
        say({"refused": "this kernel allows no namespaces of its own to a process"})
        os._exit(1)
    try:
        _go_inside(root, protected)
        Supervisor().work()
    except OSError as error:
        say({"refused": f"the walls could not be built: {error}"})
    os._exit(0)


def _wait_outside(pid: int) -> int:
    """Until the inside ends, or nobody is left to give orders: then it ends with this process."""
    os.close(1)
    waiting = select.poll()
    waiting.register(0, 0)  # tells only that its writer is gone
    waiting.register(os.pidfd_open(pid), select.POLLIN)
    waiting.poll()
    if os.waitpid(pid, os.WNOHANG)[0] == 0:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return 0


def _go_inside(root: str, protected: list[str]) -> None:
    os.setsid()
    os.chdir(root)
    for path in protected:  # only where mounts are allowed; the other side checks as well
        _bind_read_only(path)
    limits = {
        resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 1 << 30, resource.RLIMIT_NOFILE: 4096,
    }
    if not os.path.exists("/dev/nvidiactl"):
        limits[resource.RLIMIT_AS] = _MEMORY_BYTES
    for kind, value in limits.items():
        sandbox.limit(kind, value)
    sandbox.close_descriptors(keep=(0, 1, 2))
    sandbox.confine([], [root, "/dev/shm"])


def _bind_read_only(path: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    name = os.fsencode(path)
    if libc.mount(name, name, None, ctypes.c_ulong(_MS_BIND), None) == 0:
        flags = ctypes.c_ulong(_MS_BIND | _MS_REMOUNT | _MS_RDONLY)
        libc.mount(b"none", name, None, flags, None)


def say(message: dict[str, object]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


class Supervisor:
    """One bash, and three things to listen to: orders, what bash prints, how commands end."""

    def __init__(self) -> None:
        printed, bash_out = os.pipe()
        ends, bash_status = os.pipe()
        self.output, self.ends = printed, ends
        self.jobs: dict[int, int] = {}  # number: process group
        self._unread = b""
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        os.dup2(bash_status, _STATUS)
        self.bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-s"], stdin=subprocess.PIPE,
            stdout=bash_out, stderr=bash_out, pass_fds=(_STATUS,),
        )
        os.close(_STATUS)
        os.close(bash_out)
        os.close(bash_status)
        for fd in (self.output, self.ends):
            os.set_blocking(fd, False)
        self._tell("set -m")

    def work(self) -> None:
        say({"ready": True})
        with selectors.DefaultSelector() as selector:
            for fd in (0, self.output, self.ends):
                selector.register(fd, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select(timeout=0.5)}
                if self.output in ready:
                    self._pass_on()
                if self.ends in ready:
                    self._ended()
                if 0 in ready and not self._order():
                    return
                if (status := self.bash.poll()) is not None:
                    self._pass_on()
                    say({"died": status})
                    return

    def _tell(self, line: str) -> None:
        assert self.bash.stdin is not None
        self.bash.stdin.write(line.encode() + b"\n")
        self.bash.stdin.flush()

    def _order(self) -> bool:
        data = os.read(0, 1 << 20)
        if not data:
            return False
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))
        return True

    def _obey(self, order: dict[str, object]) -> None:
        text = shlex.quote(str(order.get("text", "")))
        if "run" in order:
            end = f"printf 'end %d %d\\n' {order['run']} $? >&{_STATUS}"
            self._tell(f"eval {text} </dev/null; {end}")
        elif "job" in order:
            number = order["job"]
            path = shlex.quote(f"{os.getcwd()}/{JOBS}/{number}")
            self._tell(
                f"( ( eval {text} ); echo $? >{path}.code ) >{path}.out 2>&1 </dev/null "
                f"{_STATUS}>&- & printf 'started %d %d\\n' {number} $! >&{_STATUS}; disown $!"
            )
        elif "kill" in order:
            group = self.jobs.get(int(str(order["kill"])))
            if group is not None and group > 1:
                with contextlib.suppress(OSError):
                    os.killpg(group, signal.SIGKILL)
        elif "halt" in order:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGSTOP if order["halt"] else signal.SIGCONT)
            say({"halted": order["halt"]})

    def _pass_on(self) -> None:
        """All that was printed so far, a piece at a time."""
        while True:
            try:
                data = os.read(self.output, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                return
            say({"out": self._decode(data)})
            if len(data) < 1 << 16:
                return

    def _ended(self) -> None:
        data = os.read(self.ends, 1 << 12)
        self._pass_on()
        for line in data.decode(errors="replace").splitlines():
            words = line.split()
            if len(words) != 3 or not all(w.isdigit() for w in words[1:]):
                continue
            number, value = int(words[1]), int(words[2])
            if words[0] == "end":
                say({"end": number, "code": value})
            elif words[0] == "started":
                self.jobs[number] = value
                say({"started": number})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
