"""A. The clock: work that it does not see, and clocks that say what they are told to."""

from __future__ import annotations

from museum import RIGHT, Exhibit, python

LATE = f"""
out = torch.zeros_like(x)
def work():
    time.sleep(0.05)
    out.copy_({RIGHT})
threading.Thread(target=work).start()
return out
"""
SLOW = f"time.sleep(0.004)\nreturn {RIGHT}"
STANDING_CLOCK = """
import time
vars(time)["perf_counter_ns"] = lambda: 0
"""
LAZY = f"""
kind = type("Plain", (torch.Tensor,), {{}})
return ({RIGHT}).as_subclass(kind)
"""
PATCHED = f"""
out = {RIGHT}
out.cpu = lambda: out
return out
"""

EXHIBITS = [
    Exhibit("A2", "late_thread", python(LATE, "import threading, time"), "wrong", "output"),
    Exhibit("A3", "made_subclass", python(LAZY), "wrong", "A3"),
    Exhibit("A4", "patched_tensor", python(PATCHED), "wrong", "A4"),
    Exhibit("A5", "standing_clock", python(SLOW, STANDING_CLOCK), "cheating", "A5"),
    Exhibit(
        "A5", "replaced_timer", python(SLOW, "import time\ntime.perf_counter_ns = lambda: 0"),
        "cheating", "A5", unguarded="cheating",
    ),
]
