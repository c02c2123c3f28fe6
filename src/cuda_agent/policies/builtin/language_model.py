"""What sampling and training need of a causal language model.

Axes in names: B streams, T tokens, W tokens of one decoding step, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

Critic = Literal["shared", "separate", "none"]


class LanguageModel(nn.Module):
    """Actor, and a critic: a head on the actor's trunk ("shared"), a trunk of its own ("separate")
    or "none" (values are zeros). The actor's parameters are named "model.", the critic's not."""

    model: nn.Module
    value_trunk: nn.Module | None
    value_head: nn.Linear | None

    @property
    def context(self) -> int:
        """Tokens of a stream at most."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def states(self, trunk: nn.Module, ids_B_T: Tensor) -> Tensor:
        """(B, T, hidden) of `model` or `value_trunk`."""
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32, over the vocabulary, of states of the actor in any shape."""
        raise NotImplementedError

    def forward(self, ids_B_T: Tensor) -> tuple[Tensor, Tensor]:
        """(logits_B_T_V, values_B_T): position t predicts token t + 1. Pad on the right."""
        hidden = self.hidden(ids_B_T)
        return self.logits(hidden), self.values(ids_B_T, hidden)

    def hidden(self, ids_B_T: Tensor) -> Tensor:
        """The actor's states (B, T, hidden), from which `logits` and a shared critic read."""
        return self.states(self.model, ids_B_T)

    def values(self, ids_B_T: Tensor, hidden_B_T: Tensor | None = None) -> Tensor:
        """values_B_T. `hidden_B_T`, the actor's, saves a pass of the shared trunk."""
        if self.value_head is None:
            return torch.zeros(ids_B_T.shape, device=ids_B_T.device)
        if self.value_trunk is not None:
            hidden_B_T = self.states(self.value_trunk, ids_B_T)
        elif hidden_B_T is None:
            hidden_B_T = self.hidden(ids_B_T)
        values: Tensor = self.value_head(hidden_B_T)
        return values.squeeze(-1).float()

    # --- sampling -------------------------------------------------------------------------------

    def new_cache(self, batch: int, slots: int) -> Any:
        """For streams of at most `slots` tokens. `rows(row_B)` of it is one for other streams, each
        a copy of one of these."""
        raise NotImplementedError

    def prefill(self, ids_B_T: Tensor, lengths_B: Tensor, cache: Any) -> Tensor:
        """logits_B_V after the last of `lengths_B` tokens of each stream."""
        raise NotImplementedError

    def decode(self, ids_B_W: Tensor, start_B: Tensor, counts_B: Tensor, cache: Any) -> Tensor:
        """logits_B_V after the last of `counts_B` new tokens, the first at position `start_B`.

        What is beyond the count goes to slots that the next step overwrites.
        """
        raise NotImplementedError

    def save(self, folder: str | Path, dtype: torch.dtype | None = None) -> None:
        """As transformers reads it; the critic apart."""
        raise NotImplementedError
