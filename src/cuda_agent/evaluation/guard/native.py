"""Rules over the tokens of a candidate's C++ and CUDA sources."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cuda_agent.evaluation.guard import libraries, macros
from cuda_agent.records import Finding, Track

# A call of the system's function: not of a member, and not of one in a namespace.
_SYSTEM = r"(?<!\.)(?<!->)(?<!\w::)\b"
_RULES: tuple[tuple[str, str, str], ...] = (
    (
        "A8", _SYSTEM + r"(ptrace|mprotect|process_vm_readv|process_vm_writev)\s*\(",
        "patches a process",
    ),
    ("A8", r"\bRTLD_NEXT\b", "interposes a library function"),
    (
        "A8",  # after a type: `if (clock_gettime(...)) {` only asks
        r"\w(?:\s+|\s*[*&]\s*)"
        r"(cudaEventElapsedTime|cudaEventRecord|cudaEventSynchronize|clock_gettime|gettimeofday)"
        r"\s*\([^;{}]*\)\s*(?:noexcept\s*)?\{",
        "defines the clock's own function",
    ),
    ("A5", r"#\s*define\s+(cudaEvent\w+|clock_gettime)\b", "redefines the clock's functions"),
    ("C5", r"\b(seccomp|SYS_\w+)\b|" + _SYSTEM + r"syscall\s*\(", "makes system calls of its own"),
    (
        "C1", r"\bSCM_RIGHTS\b|" + _SYSTEM + r"(sendmsg|dup2|fdopen)\s*\(",
        "uses file descriptors",
    ),
    (
        "C2", _SYSTEM + r"_exit\s*\(|" + _SYSTEM + r"(kill|raise)\s*\(\s*\w",
        "ends the process that is being judged",
    ),
    ("C15", _SYSTEM + r"(system|popen|execv\w*|execl\w*)\s*\(", "runs another program"),
)
# A source that defines such a function itself, and includes no header that declares the system's.
_HEADERS = {
    "ptrace": r"sys/ptrace\.h", "mprotect": r"sys/mman\.h", "dup2": r"unistd\.h",
    "sendmsg": r"sys/socket\.h", "fdopen": r"(?:cstdio|stdio\.h)", "syscall": r"unistd\.h",
    "kill": r"(?:csignal|signal\.h|unistd\.h)", "raise": r"(?:csignal|signal\.h|unistd\.h)",
    "system": r"(?:cstdlib|stdlib\.h)", "atexit": r"(?:cstdlib|stdlib\.h)",
    "popen": r"(?:cstdio|stdio\.h)",
}
_STATEMENTS = {"return", "else", "do", "throw", "case", "and", "or", "not", "co_return", "goto"}
_DETACH = re.compile(r"(\w+|[\])>])\s*(?:\.|->)\s*detach\s*\(\s*\)")
_TENSOR_CALL = re.compile(
    r"(?:\.|->)\s*(?:to|contiguous|clone|view|reshape|t|transpose|cpu|cuda|flatten|data)"
    r"\s*(?:<[^<>]*>)?\s*\([^()]*\)$"
)
# Strings, raw ones too, and characters ('"' opens no string; 1'000 is a number).
_QUOTED = (
    r'\bR"(?P<mark>[^()\\\s"]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'
    r"(?<!\w)'(?:\\.|[^'\\\n])+'"
)
_ATEXIT = re.compile(
    _SYSTEM + r"atexit\s*\(\s*(?:\[\s*\]\s*(?:\(\s*\)\s*)?\{(?P<body>[^{}]*)\}|&?(?P<name>\w+))"
)
_CLEANING = re.compile(r"\b(?:\w*(?:free|Free|destroy|Destroy|close|Close|release|munmap)\w*)$")
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
    r"(?:__launch_bounds__|__cluster_dims__|__attribute__|alignas)\s*"
    r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
)


def external(text: str) -> list[str]:
    """Functions of others' libraries that a source calls."""
    return [name for _, name, _ in libraries.native(macros.expanded(stripped(text)))]


def inspect(file: str, text: str, track: Track) -> list[Finding]:
    code = stripped(text)
    searched = _without_own(code)
    pasted = _without_own(macros.expanded(code)) if "##" in code else ""
    found = []
    for rule, pattern, what in _RULES:
        if hit := re.search(pattern, searched):
            place = _place(file, code, hit.start())
            found.append(Finding(rule, f"{place}: {hit[0].strip()[:60]!r} {what}"))
        elif hit := re.search(pattern, pasted):
            said = f"{hit[0].strip()[:60]!r}, put together by a macro,"
            found.append(Finding(rule, f"{file}: {said} {what}"))
    if hit := next((m for m in _DETACH.finditer(code) if _is_thread(m, code)), None):
        place = _place(file, code, hit.start())
        found.append(Finding("A2", f"{place}: {hit[0]!r} leaves a thread running after the call"))
    if hit := next((m for m in _ATEXIT.finditer(searched) if not _cleans(m, code)), None):
        place = _place(file, code, hit.start())
        found.append(Finding("C3", f"{place}: {hit[0][:60]!r} runs code when the process ends"))
    if hit := re.search(r'"[^"\n]*/proc/(?:self|%d|\d)', _comments_out(text)):
        found.append(Finding("C6", f"{_place(file, text, hit.start())}: reads {hit[0][1:40]}"))
    if track == "kernels":
        found += _torch_calls(file, code)
        found += [
            Finding(rule, f"{_place(file, code, at)}: {name} of a library does the work")
            for at, name, rule in libraries.native(code) if rule
        ]
    return found


def _without_own(code: str) -> str:
    """With other names for functions that are called as the system's are and are the source's own:
    where they are declared, and, if no header declares the system's, where they are called.

    What is declared extern "C" is the system's; so are `::kill(...)` and `std::raise(...)`.
    """
    code = re.sub(rf"\bstd(?=\s*::\s*(?:{'|'.join(_HEADERS)})\b)", "   ", code)
    for name, header in _HEADERS.items():
        declared = [
            m for m in re.finditer(rf"([^;{{}}()=]*\b(\w+)\s+){name}(?=\s*\()", code)
            if m[2] not in _STATEMENTS and not re.search(r"\bextern\b", m[1])
        ]
        if not declared or re.search(r'extern\s*""\s*\{', code):
            continue
        mask = "_" * len(name)
        if re.search(rf"#\s*include\s*<{header}>", code):
            for m in declared:
                code = code[:m.end() - len(name)] + mask + code[m.end():]
        else:
            code = re.sub(rf"(?<!::)\b{name}(?=\s*\()", mask, code)
    return code


def _is_thread(detach: re.Match[str], code: str) -> bool:
    """Whether what is detached may be a thread: no tensor, in a source that has threads."""
    if not re.search(r"\bj?thread\b|\bpthread_", code):
        return False
    receiver = detach[1]
    if receiver == ")":
        return not _TENSOR_CALL.search(code[max(0, detach.start() - 200):detach.end(1)])
    return not re.search(rf"\bTensor\b\s*&?\s*(?:const\s+)?{re.escape(receiver)}\b", code)


def _cleans(atexit: re.Match[str], code: str) -> bool:
    """Whether all that the registered function calls frees or closes something."""
    body = atexit["body"]
    if body is None:
        defined = re.search(rf"\b{atexit['name']}\s*\(\s*(?:void)?\s*\)\s*\{{([^{{}}]*)\}}", code)
        body = defined[1] if defined else None
    if body is None or re.search(r"[^=!<>]=[^=]", re.sub(r"=\s*nullptr", "", body)):
        return False
    calls = re.findall(r"\b(\w+)\s*\(", body)
    deletes = bool(re.search(r"\bdelete\b", body))
    return (bool(calls) or deletes) and all(_CLEANING.match(name) for name in calls)


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
        code = _DECORATION.sub(" ", macros.expanded(_comments_out(text)))
        names |= {m[1] for m in _EXPORTED.finditer(code)}
        if re.search(r'extern\s*"C"\s*\{', code):
            names |= set(re.findall(r"\bvoid\s+(\w+)\s*\(", code))
    return names


def stripped(text: str) -> str:
    """Without comments, and strings emptied; line numbers stay."""
    def blank(match: re.Match[str]) -> str:
        return '""' + "\n" * match[0].count("\n")

    return re.sub(_QUOTED, blank, _comments_out(text), flags=re.S)


def _comments_out(text: str) -> str:
    def blank(match: re.Match[str]) -> str:
        return match[0] if match[0][0] in "\"'R" else re.sub(r"[^\n]", " ", match[0])

    return re.sub(_QUOTED + r"|//[^\n]*|/\*.*?\*/", blank, text, flags=re.S)


def _place(file: str, code: str, position: int) -> str:
    return f"{file}, line {code.count(chr(10), 0, position) + 1}"
