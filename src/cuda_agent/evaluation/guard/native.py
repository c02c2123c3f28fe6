"""Rules over the tokens of a candidate's C++ and CUDA sources."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cuda_agent.records import Finding, Track

_RULES: tuple[tuple[str, str, str], ...] = (
    ("A8", r"\b(ptrace|mprotect|process_vm_readv|process_vm_writev)\s*\(", "patches a process"),
    ("A8", r"\bRTLD_NEXT\b", "interposes a library function"),
    (
        "A8",
        r"\b(cudaEventElapsedTime|cudaEventRecord|cudaEventSynchronize|clock_gettime|gettimeofday)"
        r"\s*\([^;{}]*\)\s*(?:noexcept\s*)?\{",
        "defines the clock's own function",
    ),
    ("A5", r"#\s*define\s+(cudaEvent\w+|clock_gettime)\b", "redefines the clock's functions"),
    ("A2", r"[\w\])>]\s*(?:\.|->)\s*detach\s*\(\s*\)", "leaves a thread running after the call"),
    ("C5", r"\b(seccomp|SYS_\w+)\b|\bsyscall\s*\(", "makes system calls of its own"),
    ("C1", r"\bSCM_RIGHTS\b|\bsendmsg\s*\(|\b(?:dup2|fdopen)\s*\(", "uses file descriptors"),
    ("C2", r"\b_exit\s*\(|\b(?:kill|raise)\s*\(\s*\w", "ends the process that is being judged"),
    ("C3", r"\batexit\s*\(", "runs code when the process ends"),
    ("C15", r"\b(?:system|popen|execv\w*|execl\w*)\s*\(", "runs another program"),
)
_TORCH_CALL = re.compile(r"\b(?:at|torch)::(?:native::|_ops::)?(\w+)\s*\(")
_TORCH_ALLOWED = re.compile(
    r"empty\w*|zeros\w*|full|TensorOptions|Tensor|device|dtype|from_blob|IntArrayRef|"
    r"ScalarType|Device|kCUDA|kFloat\d*|optional|OptionalDeviceGuard|check\w*|init|"
    r"mm|mm_out|matmul|bmm|bmm_out|addmm|conv\w*|cudnn_convolution\w*"
)
_METHODS = re.compile(
    r"\.\s*(softmax|log_softmax|layer_norm|relu|relu_|gelu|sigmoid|tanh|sum|mean|exp|var|norm|"
    r"cumsum|argmax|max_pool\w*)\s*\("
)
_EXPORTED = re.compile(r'extern\s*"C"\s*\{?[^;{}()]*?\b(\w+)\s*\(')
_DECORATION = re.compile(
    r"(?:__launch_bounds__|__cluster_dims__|__attribute__|alignas)\s*\((?:[^()]|\([^()]*\))*\)"
)


def inspect(file: str, text: str, track: Track) -> list[Finding]:
    code = stripped(text)
    found = []
    for rule, pattern, what in _RULES:
        if hit := re.search(pattern, code):
            place = _place(file, code, hit.start())
            found.append(Finding(rule, f"{place}: {hit[0][:60]!r} {what}"))
    if hit := re.search(r'"[^"\n]*/proc/(?:self|%d|\d)', _comments_out(text)):
        found.append(Finding("C6", f"{_place(file, text, hit.start())}: reads {hit[0][1:40]}"))
    if track == "kernels":
        found += _torch_calls(file, code)
    return found


def _torch_calls(file: str, code: str) -> list[Finding]:
    calls = [m for m in _TORCH_CALL.finditer(code) if not _TORCH_ALLOWED.fullmatch(m[1])]
    if "torch/" in code or "ATen/" in code or calls:
        calls += list(_METHODS.finditer(code))
    return [
        Finding("E1", f"{_place(file, code, m.start())}: {m[0].strip()}...) computes with torch")
        for m in calls
    ]


def exported(kernels: Mapping[str, str]) -> set[str]:
    """Names of `extern "C"` functions; in a file with an extern "C" block, of all void ones."""
    names: set[str] = set()
    for text in kernels.values():
        code = _DECORATION.sub(" ", _comments_out(text))
        names |= {m[1] for m in _EXPORTED.finditer(code)}
        if re.search(r'extern\s*"C"\s*\{', code):
            names |= set(re.findall(r"\bvoid\s+(\w+)\s*\(", code))
    return names


def stripped(text: str) -> str:
    """Without comments, and strings emptied; line numbers stay."""
    code = _comments_out(text)
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', code)


def _comments_out(text: str) -> str:
    def blank(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith('"') else re.sub(r"[^\n]", " ", match[0])

    return re.sub(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', blank, text, flags=re.S)


def _place(file: str, code: str, position: int) -> str:
    return f"{file}, line {code.count(chr(10), 0, position) + 1}"
