"""Walls around one contestant, made of what Linux itself offers.

`fork` puts a child into namespaces of its own: it sees no other process and no network, and when it
ends, everything that it started ends. `confine` then takes files away (Landlock) and system calls
(seccomp), before any of a candidate's code runs. bubblewrap builds the same walls, but only around
a program that it starts; a fork of a process with torch imported would lose what makes it fast.

Where the kernel refuses one wall the others still stand. `python -m cuda_agent.evaluation.sandbox`
tries each from inside and prints which hold.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
# Processes and threads that a contestant may have; inductor's and OpenMP's pools fit.
_MAX_TASKS = 1024

# New: mounts, hostname, IPC, users, process ids, network.
_NAMESPACES = {
    "NEWNS": 0x00020000, "NEWUTS": 0x04000000, "NEWIPC": 0x08000000,
    "NEWUSER": 0x10000000, "NEWPID": 0x20000000, "NEWNET": 0x40000000,
}  # fmt: skip
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000

# Numbers of system calls: x86-64, and the table that arm64 shares with other new architectures.
_CALLS: Mapping[str, tuple[int, int]] = {
    "clone": (56, 220), "clone3": (435, 435), "prctl": (157, 167), "socket": (41, 198),
    "socketpair": (53, 199), "connect": (42, 203),
    "capset": (126, 91), "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446), "seccomp": (317, 277), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "kexec_load": (246, 104),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "swapon": (167, 224),
    "reboot": (169, 142),
}  # fmt: skip
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column, AUDIT_ARCH_*
_NOT_FOR_CANDIDATES = [name for name in _CALLS if name not in (
    "clone", "clone3", "prctl", "socket", "socketpair", "connect", "capset",
    "landlock_create_ruleset",
    "landlock_add_rule", "landlock_restrict_self",
)]  # fmt: skip


class SandboxError(OSError):
    """A wall that this kernel offers could not be built."""


def _column() -> int | None:
    known = sys.platform == "linux" and platform.machine() in _MACHINES
    return _MACHINES[platform.machine()][0] if known else None


def knows_calls() -> bool:
    """Whether `system_call` works here: Linux, on a machine whose numbers are known."""
    return _column() is not None


def system_call(name: str, *arguments: object) -> int:
    """A system call by its number; -1 when it failed, with ctypes' errno set. Keeps the
    interpreter's lock, so that a child made by `clone` holds it."""
    column = _column()
    assert column is not None
    return int(ctypes.PyDLL(None, use_errno=True).syscall(
        ctypes.c_long(_CALLS[name][column]),
        *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments),
    ))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


# --- namespaces ---------------------------------------------------------------------------------


def fork() -> tuple[int, bool]:
    """(pid, isolated): as os.fork, pid 0 in the child, alone in new namespaces where the kernel
    allows them. The pid then is that of the namespaces' first process, which waits for the child
    and ends as it did; killing it kills all that the child started. A death by signal n reaches the
    parent as exit status 128 + n.

    A process with several threads is forked in the ordinary way: no library's fork handlers run for
    the other, and what such threads hold (OpenBLAS's pool does) would stay locked in the child.
    """
    if _column() is None or len(os.listdir("/proc/self/task")) != 1:
        return os.fork(), False
    flags = sum(_NAMESPACES.values()) | signal.SIGCHLD
    uid, gid = os.getuid(), os.getgid()
    pid = system_call("clone", flags, 0, 0, 0, 0)
    if pid < 0:
        return os.fork(), False
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        try:
            _first_process(uid, gid)
        except BaseException as error:
            os.write(2, f"sandbox: {error}\n".encode())
            os._exit(70)
    return pid, True


def die_with_parent() -> None:
    """Be killed when the parent ends, however it ends."""
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _first_process(uid: int, gid: int) -> None:
    """What the namespaces' first process does; returns in its child, the contestant."""
    die_with_parent()
    with contextlib.suppress(OSError):  # already denied where an outer namespace did so
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE)
    # Both may be refused inside of a container; Landlock still keeps other processes away.
    _mount(b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _mount(b"tmpfs", b"/dev/shm", b"tmpfs", _MS_NOSUID | _MS_NODEV)
    with contextlib.suppress(OSError):  # per namespace since Linux 6.14
        Path("/proc/sys/kernel/pid_max").write_text(str(_MAX_TASKS))
    child = os.fork()
    if child == 0:
        die_with_parent()
        limit(resource.RLIMIT_NPROC, _MAX_TASKS)  # counted in this namespace only
        return
    os.closerange(0, 1 << 16)  # or the judge would not see the contestant's end
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _mount(source: bytes, place: bytes, kind: bytes | None, flags: int) -> bool:
    return bool(_libc().mount(source, place, kind, ctypes.c_ulong(flags), None) == 0)


def limit(kind: int, value: int) -> None:
    """Set a resource limit, as far as the hard limit allows."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def close_descriptors(keep: Iterable[int]) -> None:
    """Close all descriptors of this process but `keep`."""
    kept = set(keep)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))


# --- files and system calls ---------------------------------------------------------------------


def confine(readable: Iterable[str | Path], writable: Iterable[str | Path]) -> None:
    """From here on this process and its children read only system folders and `readable`, write
    only below `writable`, and make none of the system calls that candidates have no use for.

    Raises SandboxError when a wall that the kernel offers fails, or another thread is running:
    threads that exist already would stay outside.
    """
    if len(os.listdir("/proc/self/task")) != 1:
        raise SandboxError("a contestant must be confined before it has threads")
    if _column() is None:
        return
    if _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise SandboxError("no_new_privs was refused")
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # memory short: this one goes first
    _drop_capabilities()
    if landlock_version():
        _landlock([*system_folders(), *map(str, readable)], [str(path) for path in writable])
    if seccomp_works():
        _seccomp()


def system_folders() -> list[str]:
    """What any program here needs: libraries, compilers, Python and its packages, CUDA."""
    fixed = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/nix", "/proc",
             "/sys", "/dev")
    variables = ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "PATH", "VIRTUAL_ENV")
    named = [p for v in variables for p in os.environ.get(v, "").split(os.pathsep)]
    compilers = [os.path.dirname(os.environ.get(v, "")) for v in ("CXX", "CC")]
    python = [sys.prefix, sys.base_prefix, *sys.path]
    found = [*fixed, *python, *named, *compilers]
    return [p for p in dict.fromkeys(found) if p and p != "/" and os.path.isabs(p)]


def _drop_capabilities() -> None:
    header = struct.pack("=Ii", 0x20080522, 0)  # version 3, this process
    if system_call("capset", header, bytes(24)) != 0:
        raise SandboxError("capabilities could not be dropped")


def landlock_version() -> int:
    """The version of Landlock's interface; 0 where there is none."""
    if _column() is None:
        return 0
    return max(0, system_call("landlock_create_ruleset", None, 0, 1))


_READ = 0b1101  # execute, read files, read folders
_WRITE = 0b10 | 0b1111111110000  # write files; remove and make whatever
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_FILE_ONLY = 0b111 | _TRUNCATE | _IOCTL  # the rights that a rule for a file may name


def _landlock(readable: list[str], writable: list[str]) -> None:
    version = landlock_version()
    # NVIDIA's driver names its threads, and will not start where it may not. Held open for good:
    # a folder of /proc that nobody holds can be made anew, and the rule would be lost.
    own_threads = f"/proc/self/fd/{os.open('/proc/self/task', os.O_PATH | os.O_CLOEXEC)}"
    since = ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL))
    handled = _READ | _WRITE | sum(right for first, right in since if version >= first)
    network = 0b11 if version >= 4 else 0  # bind and connect, with TCP
    scoped = 0b11 if version >= 6 else 0  # abstract sockets and signals of others
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    attributes = struct.pack("=QQQ", handled, network, scoped)
    ruleset = system_call("landlock_create_ruleset", attributes, size, 0)
    if ruleset < 0:
        raise SandboxError("Landlock refused the rule set")
    devices = [path for path in _devices() if os.path.exists(path)]
    rules = [(p, _READ) for p in readable]
    rules += [(own_threads, 0b10 | _TRUNCATE)]
    rules += [(p, _READ | 0b10 | _TRUNCATE | _IOCTL) for p in devices]
    rules += [(p, _READ | _WRITE | _REFER | _TRUNCATE) for p in writable]
    try:
        for path, rights in rules:
            _landlock_rule(ruleset, path, rights & handled)
        if system_call("landlock_restrict_self", ruleset, 0) != 0:
            raise SandboxError("Landlock refused to restrict the process")
    finally:
        os.close(ruleset)


def _devices() -> list[str]:
    plain = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")]
    nvidia = [str(p) for p in Path("/dev").glob("nvidia*")] + ["/dev/dri"]
    return [*plain, *nvidia]


def _landlock_rule(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # nothing there: nothing to allow
    try:
        if not os.path.isdir(path):
            rights &= _FILE_ONLY
        rule = struct.pack("=Qi", rights, fd)
        if system_call("landlock_add_rule", ruleset, 1, rule, 0) != 0:
            raise SandboxError(f"Landlock refused a rule for {path}")
    finally:
        os.close(fd)


def seccomp_works() -> bool:
    """Whether the kernel filters system calls: it knows our way to return an error."""
    if _column() is None:
        return False
    action = struct.pack("=I", 0x00050000)  # SECCOMP_RET_ERRNO
    return system_call("seccomp", 2, 0, action) == 0  # SECCOMP_GET_ACTION_AVAIL


def _seccomp() -> None:
    filters = _filter(platform.machine())
    program = b"".join(struct.pack("=HBBI", *line) for line in filters)
    text = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(filters), ctypes.addressof(text))
    if system_call("seccomp", 1, 0, head) != 0:  # SECCOMP_SET_MODE_FILTER
        raise SandboxError("the filter of system calls was refused")


def _filter(machine: str) -> list[tuple[int, int, int, int]]:
    """A program for the kernel's packet filter: (operation, jump if true, if false, constant)."""
    column, architecture = _MACHINES[machine]
    load, equal, any_bit, at_least, mask, give = 0x20, 0x15, 0x45, 0x35, 0x54, 0x06
    number, arch, first, second = 0, 4, 16, 24  # offsets in struct seccomp_data
    allow, kill = 0x7FFF0000, 0x80000000
    not_permitted, no_such_call = 0x50001, 0x50026  # EPERM, ENOSYS
    no_family, refused = 0x50061, 0x5006F  # EAFNOSUPPORT, ECONNREFUSED
    lines = [
        (load, 0, 0, arch), (equal, 1, 0, architecture), (give, 0, 0, kill),
        (load, 0, 0, number),
        (at_least, 0, 1, 0x40000000), (give, 0, 0, not_permitted),  # x32 has numbers of its own
    ]  # fmt: skip
    for name in _NOT_FOR_CANDIDATES:
        lines += [(equal, 0, 1, _CALLS[name][column]), (give, 0, 0, not_permitted)]
    # clone3 takes its flags in memory, where no filter can look; callers then use clone.
    lines += [(equal, 0, 1, _CALLS["clone3"][column]), (give, 0, 0, no_such_call)]
    lines += [(equal, 0, 1, _CALLS["connect"][column]), (give, 0, 0, refused)]
    # NVIDIA's driver listens on a local socket. A socket of datagrams could send to any path, one
    # of streams has to connect first.
    unix, stream, sequential, kinds = 1, 1, 5, 0xF
    for name in ("socket", "socketpair"):
        lines += [
            (equal, 0, 8, _CALLS[name][column]), (load, 0, 0, first), (equal, 0, 5, unix),
            (load, 0, 0, second), (mask, 0, 0, kinds), (equal, 1, 0, stream),
            (equal, 0, 1, sequential), (give, 0, 0, allow), (give, 0, 0, no_family),
        ]  # fmt: skip
    new = sum(_NAMESPACES.values())
    lines += [
        (equal, 0, 4, _CALLS["clone"][column]), (load, 0, 0, first), (any_bit, 0, 1, new),
        (give, 0, 0, not_permitted), (give, 0, 0, allow),
        (equal, 0, 3, _CALLS["prctl"][column]), (load, 0, 0, first),
        (equal, 0, 1, _PR_SET_SECCOMP), (give, 0, 0, not_permitted),
        (give, 0, 0, allow),
    ]  # fmt: skip
    return lines


def walls(isolated: bool) -> str:
    """The walls in force around an untrusted candidate, for a verdict: "namespaces, Landlock 7,
    seccomp"."""
    standing = ["namespaces"] if isolated else []
    standing += [f"Landlock {version}"] if (version := landlock_version()) else []
    standing += ["seccomp"] if seccomp_works() else []
    return ", ".join(standing) or "none"


# --- what holds here ----------------------------------------------------------------------------


def probe() -> dict[str, str]:
    """Each wall tried from inside of a contestant's place, in a sentence each."""
    command = [sys.executable, "-P", "-m", __name__]
    paths = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, env=environment, check=True
        )
        found: dict[str, str] = json.loads(done.stdout)
        return found
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return {"sandbox": f"could not be tried: {error}"}


def _try_all() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        secret, own = Path(folder, "secret"), Path(folder, "own")
        secret.write_text("x")
        own.mkdir()
        end, other = os.pipe()
        landlock, seccomp = landlock_version(), seccomp_works()
        pid, isolated = fork()
        if pid == 0:
            os.close(end)
            try:
                confine([], [own])
                found = _inside(secret, own, isolated, landlock, seccomp)
                os.write(other, json.dumps(found).encode())
            except OSError as error:
                os.write(other, json.dumps({"sandbox": f"failed: {error}"}).encode())
            os._exit(0)
        os.close(other)
        os.waitpid(pid, 0)
        text = os.read(end, 65536)
        os.close(end)
        return dict(json.loads(text or b"{}"))


def _inside(
    secret: Path, own: Path, isolated: bool, landlock: int, seccomp: bool
) -> dict[str, str]:
    hidden = len([name for name in os.listdir("/proc") if name.isdigit()]) <= 2
    names, files, calls = "works", f"works (version {landlock})", "works"
    if not isolated:
        names = "not allowed here: no new user namespaces"
    elif not hidden:
        names = "works, but the numbers of other processes are visible"
    if not landlock:
        files = "not in this kernel: files are open to candidates"
    elif _succeeds(secret.read_text) or not _succeeds(lambda: Path(own, "x").write_text("")):
        files = "does not hold"
    if not seccomp:
        calls = "not in this kernel"
    elif _succeeds(socket.socket):
        calls = "does not hold: a socket was made"
    return {"namespaces": names, "Landlock": files, "seccomp": calls}


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    print(json.dumps(_try_all()))
