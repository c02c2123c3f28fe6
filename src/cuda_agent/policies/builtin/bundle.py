"""A model with its tokenizer: what is loaded, sampled from, trained and saved together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from cuda_agent.errors import SettingsError
from cuda_agent.policies.base import Step
from cuda_agent.policies.builtin import foreign
from cuda_agent.policies.builtin.automaton import encode_call
from cuda_agent.policies.builtin.language_model import Critic, LanguageModel
from cuda_agent.policies.builtin.model import CausalLM, Config
from cuda_agent.policies.builtin.render import feedback, opening
from cuda_agent.policies.builtin.tokenizer import Tokenizer, shipped
from cuda_agent.policies.space import PlanSpace
from cuda_agent.policies.task import Task


@dataclass
class Builtin:
    model: LanguageModel
    tokenizer: Tokenizer

    @classmethod
    def untrained(
        cls, seed: int = 0, config: Config | None = None, critic: Critic = "shared"
    ) -> Builtin:
        """Random weights; the global generator is left as it was."""
        tokenizer = shipped()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = CausalLM(config or Config(vocab_size=len(tokenizer)), critic)
        return cls(model, tokenizer)

    @classmethod
    def load(
        cls, folder: str | Path, critic: Critic = "none", lora_rank: int = 0
    ) -> Builtin:
        """A builtin model, or any other causal model that transformers reads, see foreign.py, of
        which only adapters of `lora_rank` learn unless that is 0.

        Raises SettingsError when the folder holds no model with its tokenizer.
        """
        if foreign.is_foreign(folder):
            return cls(*foreign.load(folder, critic, lora_rank))
        if lora_rank:
            raise SettingsError("model.lora_rank is for other models; the builtin one is small.")
        return cls(CausalLM.load(folder, critic), Tokenizer.load(folder))

    def save(self, folder: str | Path, dtype: torch.dtype | None = None) -> None:
        """A folder that `load` and transformers read; `dtype` of the weights, else the model's."""
        self.model.save(folder, dtype)
        self.tokenizer.save(folder)

    @property
    def device(self) -> torch.device:
        return self.model.device

    # --- streams --------------------------------------------------------------------------------

    def begin(self, task: Task) -> list[int]:
        """The stream up to where the first call starts."""
        t = self.tokenizer
        return [t.task, *t.encode(opening(task)), t.call]

    def answer(self, step: Step) -> list[int]:
        """What the environment appends behind a call: its feedback and the mark of the next."""
        t = self.tokenizer
        return [t.result, *t.encode(feedback(step)), t.call]

    def stream(self, task: Task, space: PlanSpace, steps: Sequence[Step]) -> list[int]:
        """A whole episode so far, up to where the next call starts."""
        ids = self.begin(task)
        for step in steps:
            ids += encode_call(step.call, space, self.tokenizer) + self.answer(step)
        return ids
