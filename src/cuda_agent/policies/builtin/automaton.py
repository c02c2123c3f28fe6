"""All valid calls of one plan space as an automaton over tokens.

A plan is written as its departure from the default, in the order of the space, so that every plan
has exactly one spelling, and that spelling is the tokenizer's own encoding of its text. A path
through the automaton is a valid call, and every valid call is a path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from cuda_agent.policies.base import ToolCall
from cuda_agent.policies.builtin.render import call_text, compact
from cuda_agent.policies.builtin.tokenizer import Tokenizer
from cuda_agent.policies.space import PlanSpace

DONE = 0
"""The node after the end token; it has no edges."""

_Trie = dict[Any, Any]  # token -> subtrie; None -> node where an option ends
_PLAN, _SUBMIT = '{"name":"apply_plan', '{"name":"submit'


@dataclass
class Automaton:
    """`edges[node]` maps each token that may follow to the next node. `folded` is kept by
    tables.py."""

    start: int = DONE
    edges: list[dict[int, int]] = field(default_factory=lambda: [{}])
    folded: Any = field(default=None, repr=False)

    def walk(self, ids: Sequence[int]) -> list[tuple[int, ...]]:
        """The tokens that were allowed at each position of a call. Raises ValueError when `ids` is
        no whole call."""
        allowed, node = [], self.start
        for token in ids:
            allowed.append(tuple(self.edges[node]))
            if token not in self.edges[node]:
                raise ValueError(f"token {token} is not allowed at position {len(allowed) - 1}")
            node = self.edges[node][token]
        if node != DONE:
            raise ValueError("the call is not complete")
        return allowed


def encode_call(call: ToolCall, space: PlanSpace, tokenizer: Tokenizer) -> list[int]:
    """The ids of a call with its end token. Raises SettingsError for a plan outside the space."""
    return [*tokenizer.encode(call_text(call, space)), tokenizer.end]


def automaton(space: PlanSpace, tokenizer: Tokenizer, *, submit: bool = True) -> Automaton:
    """Built once for equal spaces. Without `submit` only plans are valid."""
    return _cached(_Key(space), tokenizer, submit)


class _Key:
    """A space by its content and order, for the cache."""

    def __init__(self, space: PlanSpace) -> None:
        self.space = space
        self.text = compact(space.to_json())

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.text == other.text


@lru_cache(maxsize=4096)
def _cached(key: _Key, tokenizer: Tokenizer, submit: bool) -> Automaton:
    return _Builder(key.space, tokenizer).build(submit)


class _Builder:
    """From the end to the start: an option is a text and the node that follows it.

    Texts end behind a name or a number, where the tokenizer cuts as well.
    """

    def __init__(self, space: PlanSpace, tokenizer: Tokenizer) -> None:
        self.space, self.tokenizer = space, tokenizer
        self.made = Automaton()
        self.end = self._node({tokenizer.end: DONE})

    def build(self, submit: bool) -> Automaton:
        later: list[tuple[str, int]] = []  # (region, its node) of the regions behind, in order
        for region in reversed(self.space.regions):
            if (node := self._region(region, later)) is not None:
                later.insert(0, (region, node))
        head = '","arguments":{"plan":{'
        regions = self._choice(self._after("", '":{', later))
        options = [(f'{head}"regions', regions)]
        options += self._graph(head, regions)
        starts = [(_PLAN, self._choice(options))]
        if submit:
            starts.append((_SUBMIT, self._choice([('","arguments":{}}', self.end)])))
        self.made.start = self._choice(starts)
        return self.made

    def _graph(self, head: str, regions: int) -> list[tuple[str, int]]:
        choices = [(n, o) for n, o in self.space.graph.items() if len(o) > 1]
        follow = [("},\"regions", regions)]
        return self._settings(choices, follow, head + '"graph":{"')

    def _region(self, region: str, later: list[tuple[str, int]]) -> int | None:
        """The node behind the region's name; None when it only has its default."""
        options: list[tuple[str, int]] = []
        for i, (skill, knobs) in enumerate(self.space.regions[region].items()):
            choices = [(n, o) for n, o in knobs.items() if len(o) > 1]
            inner = self._settings(choices, self._after("}}", "", later), '","knobs":{"')
            if i > 0:
                inner += self._after('"}', "", later)
            if inner:
                options.append((f'":{{"skill":"{skill}', self._choice(inner)))
        return self._choice(options) if options else None

    def _after(self, close: str, first: str, later: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """What may follow a region: one of those behind it, or the end of the plan."""
        comma = "" if first else ","
        names = [(f'{close}{first}{comma}"{region}', node) for region, node in later]
        return [*names, (f"{close}{first}}}}}}}}}", self.end)]

    def _settings(
        self, choices: Sequence[tuple[str, Sequence[Any]]], follow: list[tuple[str, int]], head: str
    ) -> list[tuple[str, int]]:
        """Options that begin with `head`: one or more `name: value`, then one of `follow`."""
        behind: list[tuple[str, int]] = []  # (name, node behind it) of the later choices
        for name, options in reversed(choices):
            nexts = [*((f',"{n}', node) for n, node in behind), *follow]
            text = self._choice([(f'"{t}', node) for t, node in nexts])
            plain = self._choice(nexts)
            values = [
                (f'":"{v}', text) if isinstance(v, str) else (f'":{compact(v)}', plain)
                for v in options[1:]
            ]
            behind.insert(0, (name, self._choice(values)))
        return [(head + name, node) for name, node in behind]

    def _choice(self, options: list[tuple[str, int]]) -> int:
        trie: _Trie = {}
        for text, target in options:
            place = trie
            for token in self.tokenizer.encode(text):
                place = place.setdefault(token, {})
            place[None] = target
        return self._freeze(trie)

    def _freeze(self, trie: _Trie) -> int:
        inner = {token: self._freeze(sub) for token, sub in trie.items() if token is not None}
        target = trie.get(None)
        if target is None:
            return self._node(inner)
        # "16" ends where "16384" goes on: both may follow.
        return self._node({**self.made.edges[target], **inner}) if inner else target

    def _node(self, edges: dict[int, int]) -> int:
        self.made.edges.append(edges)
        return len(self.made.edges) - 1
