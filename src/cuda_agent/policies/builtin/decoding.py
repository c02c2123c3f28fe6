"""Sampling calls under the automaton of each stream's plan space, many streams at once.

Every call sampled is valid. Forced tokens cost no choice and no step of their own: they go through
the model together with the choice before them. Log-probabilities are those of the constrained
distribution (softmax over the allowed tokens alone), and `constrained_logprobs` gives the same
numbers from a whole forward pass in training.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cuda_agent.errors import SettingsError
from cuda_agent.policies.base import ToolCall
from cuda_agent.policies.builtin.automaton import Automaton, automaton
from cuda_agent.policies.builtin.bundle import Builtin
from cuda_agent.policies.builtin.model import Cache
from cuda_agent.policies.builtin.tables import WIDTH, Blocks, Tables, blocks
from cuda_agent.policies.space import PlanSpace

_LOOK_EVERY = 4  # steps between looks at whether all streams are done, each of which waits


@dataclass(frozen=True)
class Generation:
    """A call as it was sampled. `ids` ends with the end token; `allowed[t]` are the tokens that
    were possible at position t (one alone: forced), `logprobs[t]` is 0 for a forced token."""

    ids: tuple[int, ...]
    allowed: tuple[tuple[int, ...], ...]
    logprobs: tuple[float, ...]
    call: ToolCall


def constrained_logprobs(
    logits_B_T_V: Tensor, allowed_B_T_A: Tensor, ids_B_T: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """(logprobs_B_T, entropy_B_T) of `ids` in the distribution over the allowed tokens, float32.

    Args:
        logits_B_T_V: scores of the token at each position (already shifted by the caller).
        allowed_B_T_A: token ids, padded with -1. Where nothing is allowed both results are 0.
    """
    picked = logits_B_T_V.gather(-1, allowed_B_T_A.clamp(min=0)).float() / temperature
    return _distribution(picked, allowed_B_T_A >= 0, allowed_B_T_A == ids_B_T[..., None])


def _distribution(scores: Tensor, valid: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores.masked_fill(~valid, -torch.inf)
    empty = ~valid.any(-1, keepdim=True)
    logprobs = torch.log_softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(~valid, 0.0)
    entropy = -(logprobs.exp() * logprobs * valid).sum(-1)
    return (logprobs * (chosen & valid)).sum(-1), entropy


def sample(
    builtin: Builtin,
    streams: Sequence[Sequence[int]],
    spaces: Sequence[PlanSpace],
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    greedy: bool = False,
    submit: bool = True,
) -> list[Generation]:
    """One call for each stream, which ends with the call token.

    `generator` must live on the model's device. Without `submit` every call applies a plan.
    Raises SettingsError when a stream leaves no room in the model's context.
    """
    if not streams:
        return []
    machines = [automaton(space, builtin.tokenizer, submit=submit) for space in spaces]
    folded = [blocks(machine) for machine in machines]
    with torch.inference_mode():
        trace = _Decoder(builtin, streams, folded).run(temperature, generator, greedy)
    return [
        _generation(builtin, machine, part, *choices)
        for machine, part, choices in zip(machines, folded, trace)
    ]


def fits(builtin: Builtin, stream: Sequence[int], space: PlanSpace) -> bool:
    """Whether the longest call would still fit behind `stream` in the model's context."""
    part = blocks(automaton(space, builtin.tokenizer))
    room = builtin.model.context - len(stream)
    return len(part.prefix) + part.tokens <= room


class _Decoder:
    """One batch from its streams to its choices."""

    def __init__(
        self, builtin: Builtin, streams: Sequence[Sequence[int]], folded: Sequence[Blocks]
    ) -> None:
        self.model, self.device = builtin.model, builtin.device
        unique = list({id(part): part for part in folded}.values())
        self.tables, offsets = Tables.make(unique, self.device)
        offset_of = {id(part): offset for part, offset in zip(unique, offsets)}
        states = [offset_of[id(part)] + part.start for part in folded]
        self.state_B = torch.tensor(states, device=self.device)
        self.steps = max(part.steps for part in folded)
        whole = [[*stream, *part.prefix] for stream, part in zip(streams, folded)]
        self.lengths = [len(ids) for ids in whole]
        # Equal streams, as of the first turns on one problem, are read once.
        first = {tuple(ids): i for i, ids in reversed(list(enumerate(whole)))}
        self.unique = sorted(first.values())
        row = {i: n for n, i in enumerate(self.unique)}
        self.row_of = [row[first[tuple(ids)]] for ids in whole]
        width = max(self.lengths)
        longest = max(n + part.tokens for n, part in zip(self.lengths, folded))
        limit = self.model.context
        if longest > limit:
            raise SettingsError(
                f"the longest call would end at token {longest}, beyond the model's context of "
                f"{limit}; end the episode where `fits` says no."
            )
        self.slots = max(width, longest + WIDTH)
        padded = [ids + [builtin.tokenizer.pad] * (width - len(ids)) for ids in whole]
        self.ids_B_T = torch.tensor(padded, device=self.device)

    def run(
        self, temperature: float, generator: torch.Generator | None, greedy: bool
    ) -> list[tuple[list[int], list[float]]]:
        """For each stream the options taken (indices into its nodes' entries), and their
        log-probabilities."""
        if self.steps == 0:  # every call is forced
            return [([], [])] * len(self.lengths)
        position_B = torch.tensor(self.lengths, device=self.device)
        cache = self.model.new_cache(len(self.unique), self.slots)
        logits_B_V = self.model.prefill(
            self.ids_B_T[self.unique], position_B[self.unique], cache
        )
        if len(self.unique) < len(self.lengths):
            row_B = torch.tensor(self.row_of, device=self.device)
            logits_B_V, cache = logits_B_V[row_B], cache.rows(row_B)
        chosen: list[Tensor] = []
        logprobs: list[Tensor] = []
        for step in range(self.steps):
            choice_B, logprob_B, entry_B = self._choose(logits_B_V, temperature, generator, greedy)
            chosen.append(choice_B)
            logprobs.append(logprob_B)
            if step + 1 == self.steps:
                break
            logits_B_V, position_B = self._advance(entry_B, position_B, cache)
            if step % _LOOK_EVERY == 0 and not bool(self.tables.options_N[self.state_B].any()):
                break
        taken = torch.stack(chosen, 1).tolist()
        return list(zip(taken, torch.stack(logprobs, 1).tolist()))

    def _choose(
        self, logits_B_V: Tensor, temperature: float, generator: torch.Generator | None,
        greedy: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(option, its log-probability, its entry in the tables) for each stream."""
        t = self.tables
        options = torch.arange(t.most, device=self.device)
        entries_B_A = t.first_N[self.state_B][:, None] + options
        valid_B_A = options < t.options_N[self.state_B][:, None]
        tokens_B_A = t.ids_E_W[entries_B_A.clamp(max=len(t.next_E) - 1), 0]
        scores = logits_B_V.gather(-1, tokens_B_A).float() / temperature
        scores = scores.masked_fill(~valid_B_A, -torch.inf)
        noisy = scores
        if not greedy:
            noise = torch.empty_like(scores).exponential_(generator=generator)
            noisy = scores - noise.log()  # Gumbel: the largest is a sample of the softmax
        choice_B = noisy.argmax(-1)
        chosen = options == choice_B[:, None]
        logprob_B, _ = _distribution(scores, valid_B_A, chosen)
        return choice_B, logprob_B, t.first_N[self.state_B] + choice_B

    def _advance(self, entry_B: Tensor, position_B: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        t = self.tables
        done_B = t.options_N[self.state_B] == 0
        entry_B = entry_B.clamp(max=len(t.next_E) - 1)
        counts_B = t.counts_E[entry_B].masked_fill(done_B, 0)
        self.state_B = torch.where(done_B, self.state_B, t.next_E[entry_B])
        logits = self.model.decode(t.ids_E_W[entry_B], position_B, counts_B, cache)
        return logits, position_B + counts_B


def _generation(
    builtin: Builtin, machine: Automaton, part: Blocks, taken: list[int], logprobs: list[float]
) -> Generation:
    """Follows the choices through the automaton."""
    ids = list(part.prefix)
    numbers = [0.0] * len(ids)
    node = part.start
    for choice, logprob in zip(taken, logprobs):
        if part.first[node] == part.first[node + 1]:
            break
        entry = part.first[node] + choice
        block = part.block[entry]
        ids += block
        numbers += [logprob, *[0.0] * (len(block) - 1)]
        node = part.next[entry]
    data = json.loads(builtin.tokenizer.decode(ids))
    return Generation(
        tuple(ids), tuple(machine.walk(ids)), tuple(numbers), ToolCall.from_json(data)
    )
