"""What a candidate's Python does while it runs, named by the interpreter's own audit events.

The static rules read a text, and a text can be disguised; what it asks of the interpreter cannot. A
hook that was set before any foreign code ran sees it, and no Python takes a hook away. Native code
could: so this accuses, and excuses nobody.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import CodeType
from typing import Any

_EVENTS = {
    "sys._getframe": "A7: walks the callers' frames",
    "sys._current_frames": "A7: walks the callers' frames",
    "sys.settrace": "A7: traces its callers",
    "sys.setprofile": "A7: traces its callers",
    "gc.get_objects": "B15: searches the process for tensors of others",
    "gc.get_referrers": "B15: searches the process for tensors of others",
    "gc.get_referents": "B15: searches the process for tensors of others",
    "code.__new__": "A6: makes code objects",
    "function.__new__": "A6: makes functions from code objects",
    "os.system": "C15: runs a shell",
    "marshal.loads": "C14: runs what it decodes",
}
_FUNCTION_PARTS = {"__code__", "__defaults__", "__kwdefaults__"}
_INSTALLS = "C15: installs packages while it is judged"
_INSTALLERS = {"pip", "pip3", "conda", "mamba", "uv"}
# Modules that do a candidate's bidding: who called them is who asked.
_GO_BETWEENS = ("/inspect.py", "/traceback.py", "/subprocess.py", "/importlib/__init__.py")


class Tripped(RuntimeError):
    """A candidate did what no kernel's host code has a use for. The message begins with the id."""


class Tripwire:
    """Set once in a process, before a candidate is loaded. `seen`: the first thing noticed, which
    also is not done: the call raises Tripped."""

    def __init__(self, folders: Sequence[str]) -> None:
        self.folders = tuple(folders)
        self.seen = ""
        self._inside = False

    def set(self) -> None:
        sys.addaudithook(self._hook)

    def raise_if_tripped(self) -> None:
        if self.seen:
            raise Tripped(self.seen)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.seen or self._inside:
            return
        said = _EVENTS.get(event) or _by_arguments(event, args)
        if not said:
            return
        self._inside = True  # asking for the frame is such an event as well
        try:
            frame: Any = sys._getframe(1)
            while frame is not None and _goes_between(frame.f_code.co_filename, event):
                frame = frame.f_back
            file = frame.f_code.co_filename if frame is not None else ""
            if file.startswith(self.folders) or file == "<string>":
                self.seen = f"{said} ({event}, line {frame.f_lineno} of {file.rpartition('/')[2]})"
        finally:
            self._inside = False
        self.raise_if_tripped()


def _goes_between(file: str, event: str) -> bool:
    imports = file.startswith("<frozen importlib") or "/site-packages/pip/" in file
    return file.endswith(_GO_BETWEENS) or (event == "import" and imports)


def _by_arguments(event: str, args: tuple[Any, ...]) -> str:
    if event in ("os.kill", "os.killpg"):  # signal 0 only asks whether a process lives
        return "C2: sends signals" if args[1] else ""
    if event == "exec" and isinstance(args[0], CodeType):
        made = not args[0].co_filename.startswith(("/", "<frozen"))
        return "C14: runs text that is made at run time" if made else ""
    if event == "object.__setattr__" and args[1] in _FUNCTION_PARTS:
        return "A6: swaps the code of a function"
    if event == "open" and str(args[0]).startswith("/proc/") and str(args[0]).endswith("/mem"):
        return "C6: reads the memory of a process"
    if event == "subprocess.Popen":
        words = {str(word).rpartition("/")[2] for word in args[1] or ()}
        return _INSTALLS if words & _INSTALLERS else ""
    if event == "import":
        return _INSTALLS if args[0].partition(".")[0] in _INSTALLERS else ""
    return ""
