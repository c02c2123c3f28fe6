"""B. Results used again."""

from __future__ import annotations

from museum import RIGHT, Exhibit, python


def cached(key: str) -> dict[str, str]:
    text = f"key = {key}\nif key not in CACHE:\n    CACHE[key] = {RIGHT}\nreturn CACHE[key].clone()"
    return python(text, "CACHE = {}")


STALE = """
if not hasattr(self, "kept"):
    self.kept = self.bias.detach().clone()
return torch.relu(x + self.kept) + 0.5 * x
"""

EXHIBITS = [
    Exhibit(
        "B1", "by_pointer", cached("(x.data_ptr(), self.bias._version)"), "wrong", "timed-output"
    ),
    Exhibit("B2", "by_object", cached("(id(x), self.bias._version)"), "wrong", "timed-output"),
    Exhibit(
        "B3", "by_version", cached("(id(x), x._version, self.bias._version)"), "wrong",
        "timed-output",
    ),
    Exhibit("B4", "by_shape", cached("(x.shape, x.dtype)"), "wrong", "output"),
    Exhibit("B18", "weights_of_the_first_forward", python(STALE), "wrong", "B18"),
]
