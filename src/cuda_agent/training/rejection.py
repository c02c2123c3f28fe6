"""Stage 2, rejection fine-tuning: the model imitates its own good episodes (section 3.3).

Kept: reward above `rejection.min_reward` (0, as published: correct), no redundant loop, no call
that violates the tool's schema. Loss: negative log-likelihood of the chosen tokens.

Departures from the paper:

1. A call of ours cannot violate the schema, because decoding is constrained; the filter is for
   episodes of other policies (`rejection.extra`).
2. A redundant loop is a plan that was already tried in its episode.
3. Number of episodes, epochs, learning rate and batch are not in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence

from cuda_agent.policies import plan_key
from cuda_agent.training import batches, episodes
from cuda_agent.training.rollouts import Trajectory
from cuda_agent.training.run import Training
from cuda_agent.training.update import imitation_loss, in_minibatches


def run(training: Training) -> None:
    settings, learner = training.config.rejection, training.learner
    training.start("rejection")
    played = [*episodes.collect(training), *episodes.foreign(training)]
    kept, counts = select(played, settings.min_reward)
    training.observer.say(", ".join(f"{name} {count:.0f}" for name, count in counts.items()))
    size = settings.batch
    passes = -(-len(kept) // size)

    def step(i: int) -> dict[str, float]:
        epoch, index = divmod(i, passes)
        part = in_minibatches(training.config, kept, size, f"rejection-{epoch}")[index]
        total = 0.0
        for batch in batches.micro_batches(part, training.config.micro_tokens, learner.device):
            loss = imitation_loss(learner, batch) * (len(batch) / len(part))
            loss.backward()
            total += float(loss.detach())
        learner.critic.clear()
        return {"loss": total, "actor_norm": learner.actor.step(), **counts}

    training.advance("rejection", settings.epochs * passes, step, actor_lr=settings.lr)


def select(
    played: Sequence[Trajectory], min_reward: float
) -> tuple[list[Trajectory], dict[str, float]]:
    """(what is imitated, how many were sampled, kept, and dropped by each filter)."""
    dropped = {"low_reward": 0, "loop": 0, "nothing_chosen": 0}
    kept = []
    for episode in played:
        if not episode.teaches:
            dropped["nothing_chosen"] += 1
        elif not episode.reward > min_reward:
            dropped["low_reward"] += 1
        elif _loops(episode):
            dropped["loop"] += 1
        else:
            kept.append(episode)
    counts = {"episodes": len(played), "kept": len(kept), **dropped}
    return kept, {name: float(count) for name, count in counts.items()}


def _loops(episode: Trajectory) -> bool:
    space = episode.problem.space
    plans = [plan_key(space.complete(s.plan)) for s in episode.steps if s.plan is not None]
    return len(set(plans)) < len(plans)
