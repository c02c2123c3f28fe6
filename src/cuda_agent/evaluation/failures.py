"""Error texts of torch, CUDA and the system, sorted into verdict statuses."""

from __future__ import annotations

import re
import signal

# Status, what to look for, what to call it. The first that matches wins: one fault makes several
# messages, and the specific ones come first.
_PATTERNS: tuple[tuple[str, str, str], ...] = (
    (
        "out_of_memory",
        r"out of memory|OutOfMemory|can't allocate memory|std::bad_alloc|MemoryError|"
        r"Cannot allocate memory|failed to map segment|CUBLAS_STATUS_ALLOC_FAILED",
        "out of memory",
    ),
    ("runtime_error", r"illegal memory access|ILLEGAL_ADDRESS", "illegal memory access"),
    ("runtime_error", r"misaligned address|MISALIGNED_ADDRESS", "misaligned address"),
    ("runtime_error", r"device-side assert|ERROR_ASSERT\b", "device-side assert"),
    ("runtime_error", r"illegal instruction|ILLEGAL_INSTRUCTION", "illegal instruction"),
    (
        "runtime_error",
        r"too many resources requested|LAUNCH_OUT_OF_RESOURCES",
        "launch refused: too many registers or too much shared memory",
    ),
    ("runtime_error", r"invalid configuration|invalid argument|INVALID_VALUE", "launch refused"),
    ("runtime_error", r"unspecified launch failure|LAUNCH_FAILED", "launch failure"),
    ("runtime_error", r"no kernel image|NO_BINARY_FOR_GPU", "no kernel for this device"),
    ("timeout", r"launch timed out|LAUNCH_TIMEOUT", "launch timed out"),
)
_COMPILE = re.compile(
    r"Error building extension|BuildError|error: command .*(?:nvcc|g\+\+|ninja)|"
    r"triton\.compiler\.errors|CompilationError|NVRTC|SyntaxError|IndentationError|TabError"
)
_SIGNALS = {
    signal.SIGSEGV: "segmentation fault (an address outside its buffers)",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "integer division by zero",
    signal.SIGILL: "illegal instruction",
    signal.SIGABRT: "abort",
    signal.SIGXFSZ: "a file grew over the limit",
    signal.SIGXCPU: "processor time limit",
}
# After these the CUDA context is lost: no later call in the process succeeds.
_POISONED = re.compile(
    r"illegal memory access|misaligned address|device-side assert|unspecified launch failure|"
    r"illegal instruction|launch timed out|CUDA_ERROR|CUDA error|cudaError", re.I,
)


def classify(text: str, stage: str = "forward") -> tuple[str, str]:
    """(status, what happened) of an exception's text. `stage` is "load" while code is built."""
    for status, pattern, name in _PATTERNS:
        if re.search(pattern, text, re.I):
            return status, name
    if _COMPILE.search(text):
        return "compile_error", "does not compile"
    return "runtime_error", "exception"


def of_death(status: int | None, stderr: str) -> tuple[str, str]:
    """(status, sentence) for a process that ended. `status` as from os.waitpid, decoded by
    os.waitstatus_to_exitcode: negative for a signal."""
    found, name = classify(stderr[-4000:])
    if status is not None and status < 0:
        number = signal.Signals(-status)
        if number == signal.SIGABRT and name != "exception":
            return found, f"aborted: {name}"
        return "runtime_error", f"{_SIGNALS.get(number, 'killed')} ({number.name})"
    if found == "out_of_memory":
        return found, name
    return "runtime_error", f"the process exited with status {status} before it gave its result"


def loses_device(text: str) -> bool:
    """Whether the process must be thrown away after such an error."""
    return bool(_POISONED.search(text))


def tail(text: str, lines: int = 12, width: int = 400) -> str:
    """The last lines of an output, each cut to `width`."""
    return "\n".join(line[:width] for line in text.strip().splitlines()[-lines:])
