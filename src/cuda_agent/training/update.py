"""One PPO update from a batch of episodes; warmup.py and agentic.py share it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from cuda_agent.training import batches, ppo
from cuda_agent.training.batches import Batch
from cuda_agent.training.config import Config
from cuda_agent.training.learner import Learner
from cuda_agent.training.rollouts import Trajectory

_SUMMED = ("actor_loss", "value_loss", "entropy", "kl", "clip_low", "clip_high", "distance")


def update(
    learner: Learner, episodes: Sequence[Trajectory], minibatch: int, seed: int
) -> dict[str, float]:
    """Changes the weights by `ppo.epochs` passes over the episodes that teach; metrics by name.

    `explained_variance` is that of the values before the update; the rest are means over the
    optimizer's steps, but `ratio_max`, the largest, and `ratio_first`, that of the first step,
    which is 1 when rollout and update agree.
    """
    settings = learner.config.ppo
    taught = [e for e in episodes if e.teaches]
    if not taught:
        return {}
    metrics = {"explained_variance": assess(learner, taught)}
    if settings.normalize:
        normalize(taught)
    steps: list[dict[str, float]] = []
    for epoch in range(settings.epochs):
        order = list(taught)
        random.Random(f"{seed}-{epoch}").shuffle(order)
        for i in range(0, len(order), minibatch):
            steps.append(_step(learner, order[i : i + minibatch]))
    for name in steps[0]:
        metrics[name] = sum(step[name] for step in steps) / len(steps)
    metrics["ratio_first"] = steps[0]["ratio_max"]
    metrics["ratio_max"] = max(step["ratio_max"] for step in steps)
    return metrics


def assess(learner: Learner, episodes: Sequence[Trajectory]) -> float:
    """Gives every choice its advantage and value target under the critic as it is; returns the
    explained variance of its values."""
    settings = learner.config.ppo
    order = sorted(episodes, key=lambda e: len(e.ids))
    values: list[Tensor] = []
    targets: list[Tensor] = []
    done = 0
    for batch in batches.micro_batches(order, learner.config.micro_tokens, learner.device):
        with torch.no_grad():
            value = batches.critic(learner.model, batch)
        acted = batch.acted_B_K
        advantage, target = ppo.advantages(
            batch.rewards_B_K, value, acted, gamma=settings.gamma, lam=settings.lam
        )
        rows = zip(advantage.tolist(), target.tolist())
        for episode, (a, t) in zip(order[done : done + len(batch)], rows):
            count = len(episode.chosen)
            episode.advantages, episode.targets = a[:count], t[:count]
        done += len(batch)
        values.append(value[acted])
        targets.append(target[acted])
    all_values, all_targets = torch.cat(values)[None], torch.cat(targets)[None]
    everywhere = torch.ones_like(all_values, dtype=torch.bool)
    return ppo.explained_variance(all_values, all_targets, everywhere)


def normalize(episodes: Sequence[Trajectory]) -> None:
    """Advantages to zero mean and unit deviation over all choices."""
    flat = torch.tensor([a for e in episodes for a in e.advantages])[None]
    numbers = iter(ppo.normalized(flat, torch.ones_like(flat, dtype=torch.bool))[0].tolist())
    for episode in episodes:
        episode.advantages = [next(numbers) for _ in episode.advantages]


def value_loss(learner: Learner, batch: Batch) -> Tensor:
    """Of assessed episodes."""
    values = batches.critic(learner.model, batch)
    return ppo.value_loss(values, batch.targets_B_K, batch.acted_B_K)


def imitation_loss(learner: Learner, batch: Batch) -> Tensor:
    """Negative log-likelihood of the choices, averaged as PPO's loss is."""
    logprobs, _ = batches.actor(learner.model, batch, learner.config.ppo.temperature)
    return -ppo.episode_mean(logprobs, batch.acted_B_K)


def _step(learner: Learner, episodes: Sequence[Trajectory]) -> dict[str, float]:
    """One step of both optimizers from one minibatch, accumulated over micro-batches."""
    order = sorted(episodes, key=lambda e: len(e.ids))
    sums = dict.fromkeys(_SUMMED, 0.0)
    ratio_max = 1.0
    for batch in batches.micro_batches(order, learner.config.micro_tokens, learner.device):
        share = len(batch) / len(order)
        loss, found = _loss(learner, batch)
        (loss * share).backward()
        ratio_max = max(ratio_max, found.pop("ratio_max"))
        for name, value in found.items():
            sums[name] += value * share
    sums["actor_norm"], sums["critic_norm"] = learner.actor.step(), learner.critic.step()
    return {**sums, "ratio_max": ratio_max}


def _loss(learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, float]]:
    settings = learner.config.ppo
    acted = batch.acted_B_K
    logprobs, entropy_B_K, values = batches.both(learner.model, batch, settings.temperature)
    clipped = ppo.surrogate(
        logprobs, batch.logprobs_B_K, batch.advantages_B_K, acted,
        low=settings.clip_low, high=settings.clip_high,
    )
    of_values = ppo.value_loss(values, batch.targets_B_K, acted)
    entropy = ppo.episode_mean(entropy_B_K, acted)
    distance = _distance(learner, batch, logprobs)
    loss = clipped.loss + of_values - settings.entropy * entropy + settings.kl * distance
    return loss, {
        "actor_loss": float(clipped.loss.detach()), "value_loss": float(of_values.detach()),
        "entropy": float(entropy.detach()), "distance": float(distance.detach()),
        "kl": clipped.kl, "clip_low": clipped.clip_low, "clip_high": clipped.clip_high,
        "ratio_max": clipped.ratio_max,
    }


def _distance(learner: Learner, batch: Batch, logprobs_B_K: Tensor) -> Tensor:
    """Estimate of KL(now || the stage's first policy), k3 as in ppo.Surrogate; 0 where unused."""
    if learner.reference is None:
        return torch.zeros((), device=learner.device)
    with torch.no_grad():
        first, _ = batches.actor(learner.reference, batch, learner.config.ppo.temperature)
    log_ratio = first - logprobs_B_K
    return ppo.episode_mean(log_ratio.exp() - 1 - log_ratio, batch.acted_B_K)


def in_minibatches(
    config: Config, episodes: Sequence[Trajectory], size: int, seed: str
) -> list[list[Trajectory]]:
    """A shuffled pass in minibatches, each sorted by length."""
    order = list(episodes)
    random.Random(f"{config.seed}-{seed}").shuffle(order)
    parts = [order[i : i + size] for i in range(0, len(order), size)]
    return [sorted(part, key=lambda e: len(e.ids)) for part in parts]
