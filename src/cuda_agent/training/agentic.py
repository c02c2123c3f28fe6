"""Stage 4, multi-turn PPO: the policy sees each verdict before it acts again (section 3.3).

Asymmetric clip, gamma 1 and lambda 0.95 over the policy's own tokens; what the environment wrote is
seen and never learnt. The reward comes once, on the last token.

Departures from the paper:

1. Episodes have `environment.turns` plans (8), not 150 turns of shell commands: a plan that is
   applied is also compiled, verified and profiled.
2. Advantages and losses run over the tokens that were a choice. A token that the grammar forces has
   probability 1 whatever the weights are, and would only dilute them.
3. The paper reports one reward for an episode; which verdict it is paid for is not said. Ours is
   the best one, or the final one with `environment.outcome = "final"`; both are in the metrics.
4. Numbers 1 to 3 of warmup.py.
"""

from __future__ import annotations

from cuda_agent.training import ppo_stage
from cuda_agent.training.run import Training


def run(training: Training) -> None:
    turns = training.config.environment.turns
    ppo_stage.run(training, "agentic", training.config.agentic, turns=turns)
