"""E. Not writing the kernel."""

from __future__ import annotations

from museum import RIGHT, Exhibit, native

EXHIBITS = [
    Exhibit(
        "E2", "never_named", native(forward=f"return {RIGHT}"), "cheating", "E2", unguarded="ok"
    ),
]
