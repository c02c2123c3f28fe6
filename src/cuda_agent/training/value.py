"""Stage 3, value pretraining: the critic learns what episodes are worth before it steers (3.3).

On all episodes, the bad ones too: V_target = V(s_t) + A_t with gamma 1 and lambda 0.95, loss
1/2 (V - V_target)^2. The targets are computed anew before each epoch, with the critic of then. The
actor stands still.

Departures from the paper:

1. The learning rate is that of the critic in PPO; epochs and batch are not in the paper.
2. With `model.critic = "shared"` only the value head learns here: its trunk is the actor's.
"""

from __future__ import annotations

from cuda_agent.training import batches, episodes
from cuda_agent.training.run import Training
from cuda_agent.training.update import assess, in_minibatches, value_loss


def run(training: Training) -> None:
    settings, learner = training.config.value, training.learner
    training.start("value")
    played = [e for e in episodes.collect(training) if e.teaches]
    passes = -(-len(played) // settings.batch)
    explained = [float("nan")]

    def step(i: int) -> dict[str, float]:
        epoch, index = divmod(i, passes)
        if index == 0:
            explained[0] = assess(learner, played)
        part = in_minibatches(training.config, played, settings.batch, f"value-{epoch}")[index]
        total = 0.0
        for batch in batches.micro_batches(part, training.config.micro_tokens, learner.device):
            loss = value_loss(learner, batch) * (len(batch) / len(part))
            loss.backward()
            total += float(loss.detach())
        learner.actor.clear()
        norm = learner.critic.step()
        if i + 1 == settings.epochs * passes:
            explained[0] = assess(learner, played)
        return {"value_loss": total, "critic_norm": norm, "explained_variance": explained[0]}

    total = settings.epochs * passes
    training.advance("value", total, step, unit=passes, critic_lr=settings.lr)
