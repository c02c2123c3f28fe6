"""PPO's tensor maths: advantages, clipped surrogate, value loss, and what the metrics need.

Pure functions. Tensors are [B, T]: B episodes, T tokens, padded on the right. `acted_B_T` is True
where the policy chose the token; tokens that the environment wrote (openings, feedback) and padding
are False and enter nothing. Losses are averaged over an episode's own action tokens first and over
episodes then, as arXiv 2602.24286 (section 3.3) writes them: a long episode weighs no more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def advantages(
    rewards_B_T: Tensor, values_B_T: Tensor, acted_B_T: Tensor, *, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """(advantages, value targets), both [B, T] float and 0 where `acted_B_T` is False.

    A_t = sum_l (gamma lam)^l delta_{t+l},  delta_t = r_t + gamma V(s_{t+1}) - V(s_t)

    over action tokens only: the state after an action is the one before the *next action*, whatever
    the environment wrote in between; after the last action V is 0. The target is V(s_t) + A_t.
    Schulman et al., arXiv 1506.02438, eq. 16.
    """
    rewards, values = rewards_B_T.float(), values_B_T.float()
    result = torch.zeros_like(values)
    next_value = torch.zeros_like(values[:, 0])
    running = torch.zeros_like(next_value)
    for t in reversed(range(values.shape[1])):
        acted = acted_B_T[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        running = torch.where(acted, delta + gamma * lam * running, running)
        next_value = torch.where(acted, values[:, t], next_value)
        result[:, t] = torch.where(acted, running, 0.0)
    return result, torch.where(acted_B_T, values + result, 0.0)


def episode_mean(x_B_T: Tensor, acted_B_T: Tensor) -> Tensor:
    """Scalar: mean over each episode's action tokens, then over episodes that have any."""
    counts_B = acted_B_T.sum(1)
    sums_B = torch.where(acted_B_T, x_B_T, 0.0).sum(1)
    return (sums_B / counts_B.clamp(min=1)).sum() / (counts_B > 0).sum().clamp(min=1)


def normalized(x_B_T: Tensor, acted_B_T: Tensor) -> Tensor:
    """Zero mean and unit deviation over all action tokens; 0 elsewhere. A batch whose advantages
    are all equal teaches nothing and becomes 0."""
    chosen = x_B_T[acted_B_T]
    if chosen.numel() < 2:
        return torch.zeros_like(x_B_T)
    scaled = (x_B_T - chosen.mean()) / (chosen.std() + 1e-8)
    return torch.where(acted_B_T, scaled, 0.0)


@dataclass(frozen=True)
class Surrogate:
    """The actor's loss with a gradient; the rest are floats over action tokens.

    clip_low: share of tokens held by the lower clip (ratio < 1 - low, advantage < 0).
    clip_high: share held by the upper clip (ratio > 1 + high, advantage > 0).
    kl: E[ratio - 1 - log ratio], an unbiased estimate of KL(old || new) that is never negative
        (Schulman, "Approximating KL divergence", k3).
    ratio_max: largest importance ratio or its inverse, whichever is larger; 1 when on policy.
    """

    loss: Tensor
    kl: float
    clip_low: float
    clip_high: float
    ratio_max: float


def surrogate(
    logprobs_B_T: Tensor,
    old_logprobs_B_T: Tensor,
    advantages_B_T: Tensor,
    acted_B_T: Tensor,
    *,
    low: float,
    high: float,
) -> Surrogate:
    """-E[min(ratio A, clip(ratio, 1 - low, 1 + high) A)], float32. An asymmetric clip (high > low)
    lets rare tokens grow faster than common ones shrink: DAPO, arXiv 2503.14476, eq. 10."""
    log_ratio = torch.where(acted_B_T, logprobs_B_T.float() - old_logprobs_B_T.float(), 0.0)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - low, 1 + high)
    gain = torch.minimum(ratio * advantages_B_T, clipped * advantages_B_T)
    with torch.no_grad():
        tokens = acted_B_T.sum().clamp(min=1)
        below = (ratio < 1 - low) & (advantages_B_T < 0) & acted_B_T
        above = (ratio > 1 + high) & (advantages_B_T > 0) & acted_B_T
        kl = torch.where(acted_B_T, ratio - 1 - log_ratio, 0.0).sum() / tokens
        widest = log_ratio.abs().max().exp() if log_ratio.numel() else torch.ones(())
    return Surrogate(
        -episode_mean(gain, acted_B_T), float(kl), float(below.sum() / tokens),
        float(above.sum() / tokens), float(widest),
    )


def value_loss(values_B_T: Tensor, targets_B_T: Tensor, acted_B_T: Tensor) -> Tensor:
    """1/2 E[(V - target)^2], arXiv 2602.24286, section 3.3; float32 scalar."""
    return 0.5 * episode_mean((values_B_T.float() - targets_B_T).square(), acted_B_T)


def explained_variance(values_B_T: Tensor, targets_B_T: Tensor, acted_B_T: Tensor) -> float:
    """1 - Var(target - V) / Var(target) over action tokens: 1 perfect, 0 as good as a constant,
    negative worse. NaN where the targets do not vary."""
    targets = targets_B_T[acted_B_T].double()
    residual = targets - values_B_T[acted_B_T].double()
    if targets.numel() < 2 or float(targets.var()) < 1e-12:
        return float("nan")
    return float(1 - residual.var() / targets.var())
