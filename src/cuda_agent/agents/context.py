"""What a chat model is shown: the opening, what was compacted, and the turns since.

The context is a budget. When it nears its end the older turns are replaced by one summary: the best
candidate with its files, every attempt in a line, failures with their cause, and what the model
noted for itself (notes.md, its todo, remarks after measurements). The beginning of the conversation
stays the same between two compactions, so that endpoints find it in their caches.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from cuda_agent.agents.tools.toolbox import Toolbox
from cuda_agent.agents.transcript import ChatTurn, Compacted, Transcript
from cuda_agent.policies.chat import Dialect, Message
from cuda_agent.policies.textprotocol import RULES
from cuda_agent.records import Candidate, Problem

NOTES = "notes.md"
HIGH, LOW = 0.8, 0.45
"""Of the budget: compaction begins above the first and ends below the second."""

_KEPT_TURNS = 2
_REMARK, _CAUSE, _NOTES = 300, 200, 6000  # characters
_JUDGING = ("apply_plan", "compile", "verify", "profile", "submit")
_DEFAULT_RATE = 3.5  # characters a token, until the endpoint has counted

_SYSTEM = """\
You are a kernel engineer. You make a PyTorch module faster on {device}, by kernels of your own, in
a work folder with tools. A judge in another process decides what is correct and how fast it is.

{guide}

You have {turns} turns; each of your replies is one. Old turns are dropped when the conversation
grows long: keep in {notes} what you learned (what was slower and why, what the hardware showed).
Say in a sentence what you expect of a change before you measure it. Nobody answers questions: act.
"""


def opening(
    toolbox: Toolbox, problem: Problem, device: str, track: str, precision: str, turns: int,
    dialect: Dialect,
) -> tuple[Message, ...]:
    """System message and task."""
    guide = toolbox.folder.text("SKILL.md").split("---\n", 2)[-1].strip()
    system = _SYSTEM.format(device=device, guide=guide, turns=turns, notes=NOTES)
    if dialect == "text":
        system += f"\n# Tools\n\n{RULES}\n{toolbox.manual()}\n"
    task = (
        f"Make `{problem.name}` faster. Track `{track}`, precision `{precision}`, "
        f"{problem.dtype}.\nmodel.py:\n\n```python\n{problem.source.strip()}\n```\n"
    )
    return {"role": "system", "content": system}, {"role": "user", "content": task}


def messages(transcript: Transcript, start: Sequence[Message], dialect: Dialect) -> list[Message]:
    """The conversation as the endpoint gets it."""
    compacted = transcript.compacted or Compacted(0, "")
    made = [dict(message) for message in start]
    if compacted.summary:  # no two messages of one role in a row: some templates refuse that
        made[-1]["content"] += f"\n\n{compacted.summary}"
    for number, turn in enumerate(transcript.turns[compacted.upto :], compacted.upto):
        made += _turn(turn, number, dialect)
    return made


def _turn(turn: ChatTurn, number: int, dialect: Dialect) -> list[Message]:
    reply = turn.reply
    if dialect == "text" or not turn.answers:
        # Nothing is answered to nothing; some endpoints refuse empty messages.
        said = "\n".join(f"[{a.name}: {a.status}]\n{a.text}" for a in turn.answers)
        return [
            {"role": "assistant", "content": reply.text or reply.refusal or "(no text)"},
            {"role": "user", "content": "\n".join(p for p in (said, turn.note) if p) or "Go on."},
        ]
    calls = [
        {
            "id": f"t{number}_{index}", "type": "function",
            "function": {
                "name": answer.name or "none",
                "arguments": json.dumps(
                    answer.arguments if isinstance(answer.arguments, dict) else {}
                ),
            },
        }
        for index, answer in enumerate(turn.answers)
    ]
    made: list[Message] = [
        {"role": "assistant", "content": reply.text or None, "tool_calls": calls}
    ]
    for index, answer in enumerate(turn.answers):
        note = f"\n{turn.note}" if turn.note and index == len(calls) - 1 else ""
        made.append(
            {"role": "tool", "tool_call_id": f"t{number}_{index}", "content": answer.text + note}
        )
    return made


# --- the budget ---------------------------------------------------------------------------------


def tokens(conversation: Sequence[Message], transcript: Transcript, tools: str) -> int:
    """An estimate: characters over what the endpoint counted for the last request."""
    return int(_characters(conversation, tools) / _rate(transcript, tools)) + 1


def _rate(transcript: Transcript, tools: str) -> float:
    """Characters a token of the newest request that the endpoint counted and that can be written
    again, which is the case when nothing was compacted since."""
    for number in range(len(transcript.turns) - 1, -1, -1):
        usage = transcript.turns[number].reply.usage
        since = transcript.compacted.upto if transcript.compacted else 0
        if usage.prompt > 500 and not usage.estimated and number >= since + _KEPT_TURNS:
            head = Transcript(
                transcript.heading, None, transcript.turns[:number], transcript.compacted
            )
            sent = messages(head, transcript.heading.opening, _dialect(transcript))
            return min(8.0, max(1.0, _characters(sent, tools) / usage.prompt))
    return _DEFAULT_RATE


def _dialect(transcript: Transcript) -> Dialect:
    return "text" if transcript.heading.dialect == "text" else "tools"


def _characters(conversation: Sequence[Message], tools: str) -> int:
    return len(tools) + sum(
        len(str(m.get("content") or "")) + len(json.dumps(m.get("tool_calls") or "")) + 20
        for m in conversation
    )


def compact(
    transcript: Transcript, best: Candidate | None, notes: str, todo: str, limit: int, tools: str
) -> bool:
    """Drops old turns until the rest is below LOW of `limit` tokens; False where nothing is left
    to drop. `best` with its files, `notes` and `todo` go into the summary."""
    before = transcript.compacted.upto if transcript.compacted else 0
    rate = _rate(transcript, tools)
    start, dialect = transcript.heading.opening, _dialect(transcript)
    last = len(transcript.turns) - _KEPT_TURNS
    if last <= before:  # the newest turns alone are too long
        last = len(transcript.turns)
    for upto in range(before + 1, last + 1):
        summary = summarize(transcript.turns[:upto], best, notes, todo, int(limit * rate / 8))
        trial = Transcript(
            transcript.heading, None, transcript.turns, Compacted(upto, summary)
        )
        size = _characters(messages(trial, start, dialect), tools)
        if size < LOW * limit * rate or upto == last:
            transcript.compact(Compacted(upto, summary))
            return True
    return False


def summarize(
    turns: Sequence[ChatTurn], best: Candidate | None, notes: str, todo: str, room: int
) -> str:
    """`room`: characters for the best candidate's files."""
    parts = [f"(The first {len(turns)} turns were dropped. What matters of them:)"]
    attempts = [_attempt(number, turn) for number, turn in enumerate(turns, 1)]
    if lines := [line for line in attempts if line]:
        shown = lines if len(lines) <= 60 else [*lines[:20], "...", *lines[-40:]]
        parts.append("Attempts:\n" + "\n".join(shown))
    if notes.strip():
        parts.append(f"Your {NOTES}:\n{notes.strip()[-_NOTES:]}")
    if todo:
        parts.append(f"Your todo:\n{todo}")
    if best is not None:
        speedup = max((turn.speedup or 0.0 for turn in turns), default=0.0)
        own = {n: t for n, t in best.files.items() if n == "model_new.py" or "kernels/" in n}
        files = "\n".join(f"{n}:\n```\n{t}\n```" for n, t in own.items())
        if len(files) > room:
            files = f"{files[:room]}\n[... cut]"
        parts.append(f"The best candidate so far ({speedup:.3f}x eager):\n{files}")
    return "\n\n".join(parts)


def _attempt(number: int, turn: ChatTurn) -> str:
    judged = [a for a in turn.answers if a.name in _JUDGING]
    if not judged:
        return ""
    answer = judged[-1]
    lines = answer.text.strip().split("\n")
    if answer.status == "ok":
        told = "; ".join(line for line in lines[:3] if "ms a call" in line or "x eager" in line)
    else:
        told = " ".join(lines)[:_CAUSE]
    remark = " ".join(turn.reply.text.split())[:_REMARK]
    beside = f" | {remark}" if remark else ""
    return f"turn {number} {answer.name}: {answer.status} {told}{beside}"
