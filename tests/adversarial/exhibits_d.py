"""D. Knowing which phase it is in."""

from __future__ import annotations

from museum import RIGHT, Exhibit, python

COUNTING = f"""
self.calls = getattr(self, "calls", 0) + 1
right = {RIGHT}
return right if self.calls < 12 else torch.zeros_like(x)
"""

EXHIBITS = [Exhibit("D2", "call_counter", python(COUNTING), "wrong")]
