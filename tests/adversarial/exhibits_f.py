"""F. Weak correctness."""

from __future__ import annotations

from museum import RIGHT, Exhibit, python

EXHIBITS = [
    Exhibit("F1", "zeros", python("return torch.zeros_like(x)"), "wrong", "output"),
    Exhibit("F6", "input_returned", python("return x"), "wrong", "output"),
    Exhibit("F6", "input_copied", python("return x.clone()"), "wrong", "output"),
    Exhibit("F7", "inputs_moved", python(f"out = {RIGHT}\nx.add_(1)\nreturn out"), "wrong", "F7"),
]
