"""The first cause in a compiler's output, with the source line and a caret.

Knows g++ and clang ("a.cpp:3:5: error: ..."), NVRTC and nvcc ("a.cu(3): error: ..."), ptxas and the
linker, which name no line: theirs is looked up by the name that they complain of. Paths are
shortened to file names: where a build ran helps nobody, and differs each time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cuda_agent.records import Diagnostic

_WIDTH = 120  # characters of a source line that are shown, around the caret
_MESSAGE = 400

_SUFFIX = r"\.(?:cu|cuh|cpp|cxx|cc|c|hpp|hxx|h|inl|py)"
_FILE = rf"(?P<file>[\w.+/-]+{_SUFFIX}|[\w.+/-]*/[\w.+-]+)"
_KIND = r"(?:catastrophic |fatal |internal )?[Ee]rror(?: #\d+)?:\s*(?P<text>.*)"
_GNU = re.compile(rf"^{_FILE}:(?P<line>\d+):(?:(?P<column>\d+):)?\s*{_KIND}")
_EDG = re.compile(rf'^"?{_FILE}"?\((?P<line>\d+)\)\s*:\s*{_KIND}')
_PTXAS = re.compile(r"^ptxas.*?\b(?:error|fatal)\s*:\s*(?P<text>.*)")
_LINKER = re.compile(
    r"(?P<text>undefined reference to .*|multiple definition of .*|cannot find -l\S+)"
)
_FROM = re.compile(rf"^{_FILE}:(?P<line>\d+):(?:(?P<column>\d+):)?\s+required from")
_DURING = re.compile(rf"detected during.*|instantiation of .* at line|at line \d+ of {_FILE}")
_GUTTER = re.compile(r"^\s*\d*\s*\| ?")
_PATH = re.compile(r"(?:(?<=[\s\"'`(=:,])|^)(?:/[\w.+@~-]+)+/([\w.+-]+)", re.M)


def shorten(text: str) -> str:
    """`text` with every absolute path cut to its last part."""
    return _PATH.sub(r"\1", text)


def first_cause(log: str, sources: Mapping[str, str]) -> Diagnostic | None:
    """The first error of a compiler, an assembler or a linker; None where there is none.

    `sources`: the candidate's files. An error inside of a system's header is laid to the line of
    the candidate that led there.
    """
    lines = log.replace("\0", "").splitlines()
    own = {name.rpartition("/")[2]: text for name, text in sources.items()}
    for i, line in enumerate(lines):
        if found := _GNU.match(line) or _EDG.match(line):
            return _placed(found, lines, i, own)
        if found := _PTXAS.match(line) or _LINKER.search(line):
            text = _readable(found["text"])
            if "aborted due to" not in text:
                return _looked_up(text, own)
    return None


def _placed(
    found: re.Match[str], lines: Sequence[str], i: int, own: Mapping[str, str]
) -> Diagnostic:
    name, number = found["file"].rpartition("/")[2], int(found["line"])
    column = found.groupdict().get("column")
    source, caret = _excerpt(lines, i + 1)
    note = ""
    for line in lines[i + 1 : i + 12]:
        if _GNU.match(line) or _EDG.match(line):
            break
        if _DURING.search(line):
            note = shorten(line.strip())
            break
    if name not in own:
        ways = [m for m in map(_FROM.match, lines[:i]) if m]
        ours = [m for m in ways if m["file"].rpartition("/")[2] in own]
        if ours:  # the innermost line of the candidate's own
            note = f"in {name}, required from here"
            name, number = ours[-1]["file"].rpartition("/")[2], int(ours[-1]["line"])
            column, source, caret = ours[-1]["column"], "", ""
    text = own.get(name, "").splitlines()
    if not source and 0 < number <= len(text):
        source = text[number - 1].expandtabs(8)
        caret = " " * (int(column) - 1) + "^" if column else ""
    at = int(column) if column else caret.find("^") + 1 or None
    return _diagnostic(_message(found["text"]), name, number, at, source, caret, note)


def _excerpt(lines: Sequence[str], start: int) -> tuple[str, str]:
    """(source line, line with the caret) as the compiler shows them; "" where it does not."""
    if start + 1 >= len(lines):
        return "", ""
    source, caret = lines[start], lines[start + 1]
    if set(caret) - set(" \t|^~"):
        return "", ""
    if (gutter := _GUTTER.match(source)) and "|" in caret:
        return source[gutter.end() :], caret[gutter.end() :]
    return source.removeprefix("  "), caret.removeprefix("  ")


def _diagnostic(
    message: str, file: str, line: int, column: int | None, source: str, caret: str, note: str
) -> Diagnostic:
    """Indentation is taken off, and a long line cut around its caret."""
    indent = len(source) - len(source.lstrip())
    source, caret = source.strip(), caret[indent:].rstrip()
    if (place := max(caret.find("^"), 0)) and len(source) > _WIDTH:
        cut = max(0, min(place - _WIDTH // 2, len(source) - _WIDTH))
        source, caret = source[cut:], caret[cut:]
    source = source[:_WIDTH]
    return Diagnostic(message, file, line, column, source, caret[: len(source) + 1], note[:_WIDTH])


def _looked_up(text: str, own: Mapping[str, str]) -> Diagnostic:
    """An error without a place: the first line that has the name in it, a definition first."""
    names = re.findall(r"[`'‘\"]([\w:~.]+)[^`'’\"]*['’\"]", text)
    places = [
        (file, number, line.expandtabs(8))
        for file, content in own.items() if not file.endswith(".py")
        for number, line in enumerate(content.splitlines(), 1)
    ]
    for name in names:
        word = re.escape(name.rpartition("::")[2])
        for pattern in (rf"__global__.*\b({word})\s*\(", rf"\b({word})\b"):
            for file, number, line in places:
                if hit := re.search(pattern, line):
                    at = hit.start(1)
                    return _diagnostic(text, file, number, at + 1, line, " " * at + "^", "")
    return Diagnostic(text)


def _message(text: str) -> str:
    return shorten(text.strip())[:_MESSAGE]


def _readable(text: str) -> str:
    """ptxas counts in hexadecimal and names functions by their symbols."""
    text = re.sub(r"\b0x([0-9a-f]+)\b", lambda m: str(int(m[1], 16)), text)
    return _message(re.sub(r"_Z(\d+)(\w+)", lambda m: m[2][: int(m[1])], text))


def of_syntax(name: str, error: SyntaxError) -> Diagnostic:
    """Of Python's own parser."""
    text = (error.text or "").rstrip("\n").expandtabs(8)
    column = error.offset or 0
    caret = " " * (column - 1) + "^" if column > 0 else ""
    said, line = _message(error.msg), error.lineno or 0
    return _diagnostic(said, name, line, column or None, text, caret, "")


def render(found: Diagnostic) -> str:
    """"file:line:column: error: ..." and below it the source line and the caret."""
    place = ":".join(str(p) for p in (found.file, found.line, found.column) if p)
    lines = [f"{place}: error: {found.message}" if place else f"error: {found.message}"]
    lines += [f"    {part}" for part in (found.source, found.caret) if part.strip()]
    return "\n".join([*lines, *([f"    ({found.note})"] if found.note else [])])
