"""Stage 1, single-turn PPO: one plan, one verdict, one reward (arXiv 2602.24286, section 3.3).

Departures from the paper:

1. The base model is not a pretrained LLM but the builtin model from random weights, unless
   `model.path` names one. So the warm-up teaches the tool's language as well as its use.
2. An action is a plan for our code generators, a tool call of some twenty tokens, not the text of a
   kernel. Constrained decoding makes every call valid.
3. Number of steps, epochs, temperature and a bonus for entropy are not in the paper; they are
   settings of ours (training/config.py).
"""

from __future__ import annotations

from cuda_agent.training import ppo_stage
from cuda_agent.training.run import Training


def run(training: Training) -> None:
    ppo_stage.run(training, "warmup", training.config.warmup, turns=1)
