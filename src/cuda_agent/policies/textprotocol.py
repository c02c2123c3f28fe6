"""Calls as text, for models without tool calls: one fenced action a turn.

    ```write kernels/a.cu          ```bash                ```edit
    ...the file...                 ls kernels             {"path": "a", "old": "x", "new": "y"}
    ```                            ```                    ```

The fence names the tool. `bash` takes its command as it stands, `write` a path beside its name and
the file below it, every other tool a JSON object, or nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from cuda_agent.policies.chat import Call

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^\n`]*)$", re.M)
_SHELLS = {"sh": "bash", "shell": "bash", "console": "bash"}

RULES = """\
You have no tool calls. Act by exactly one fenced block in a reply, whose first line names the tool:

```bash
ls kernels
```

```write kernels/a.cu
the whole file
```

```read
{"path": "model.py"}
```

`bash` takes its command as it stands and `write` the file as it stands; every other tool takes a
JSON object of its arguments, or an empty block. Only the first such block is carried out. Think
before it as you like; text after it is ignored.
"""


def find_call(text: str, tools: Collection[str]) -> tuple[Call | None, int]:
    """(the first fenced action, how many there are). A fence that names no tool is no action."""
    first, count = None, 0
    at = 0
    while opening := _FENCE.search(text, at):
        words = opening[2].split(None, 1)
        name = _SHELLS.get(words[0], words[0]) if words else ""
        closing = re.compile(rf"^ {{0,3}}{re.escape(opening[1])}[`~]*[ \t]*$", re.M).search(
            text, opening.end()
        )
        end = closing.start() if closing else len(text)
        body = text[opening.end() + 1 : max(opening.end() + 1, end)]
        at = closing.end() if closing else len(text)
        if name not in tools:
            named = _named(body, tools) if name in ("json", "action", "tool", "tool_call") else None
            if named is None:
                continue
            name, body = named
        count += 1
        if first is None:
            rest = words[1].strip() if len(words) > 1 else ""
            first = _call(name, rest, body, closed=closing is not None)
    return first, count


def _named(body: str, tools: Collection[str]) -> tuple[str, str] | None:
    """{"name": tool, "arguments": {...}}, which many models write of themselves."""
    try:
        data = json.loads(body, strict=False)
    except ValueError:
        return None
    if not isinstance(data, dict) or data.get("name") not in tools:
        return None
    arguments = data.get("arguments", data.get("parameters", {}))
    return str(data["name"]), arguments if isinstance(arguments, str) else json.dumps(arguments)


def _call(name: str, rest: str, body: str, closed: bool) -> Call:
    if not closed and name != "bash":
        return Call("text", name, problem="the fenced block does not end; was the reply cut off?")
    stripped = body.strip()
    if name == "bash" and not _is_object(stripped):
        return Call("text", name, {"command": body.rstrip("\n")})
    if name == "write" and rest:
        return Call("text", name, {"path": rest, "text": body})
    if not stripped:
        return Call("text", name, {})
    return parsed("text", name, stripped)


def _is_object(text: str) -> bool:
    if not text.startswith("{"):
        return False
    try:
        found: Any = json.loads(text, strict=False)
    except ValueError:
        return False
    return isinstance(found, dict)


def parsed(identifier: str, name: str, text: str) -> Call:
    """A call whose arguments are JSON text; what is wrong with them is said in `problem`."""
    try:
        return Call(identifier, name, json.loads(text or "{}", strict=False))
    except (ValueError, RecursionError) as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        said = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        return Call(identifier, name, problem=f"the arguments are not valid JSON: {said}{where}")
