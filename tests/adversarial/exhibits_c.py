"""C. The grader itself."""

from __future__ import annotations

from museum import RIGHT, Exhibit, python

SOCKET = """
import os
for name in os.listdir("/dev/fd"):
    try:
        if os.readlink("/dev/fd/" + name).startswith("socket:"):
            getattr(os, "wri" + "te")(int(name), b"\\0\\0\\0\\x11" + b'{"status":"ok!!"}')
    except OSError:
        pass
"""

EXHIBITS = [
    Exhibit("C1", "false_answers", python(f"return {RIGHT}", SOCKET), "cheating", "C1"),
    Exhibit(
        "C2", "exits", python('getattr(__import__("os"), "_ex" + "it")(0)'), "runtime_error",
        says="exited with status 0",
    ),
]
