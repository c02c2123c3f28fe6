"""PPO's maths against values computed by hand and against torchrl."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from cuda_agent.training import ppo

T, F = True, False


def test_gae_by_hand() -> None:
    """Three actions, reward 3 on the last; gamma 1, lambda 0.95.

    delta = [0.5 - 0.2, 1.0 - 0.5, 3 - 1.0] = [0.3, 0.5, 2.0]
    A_2 = 2.0;  A_1 = 0.5 + 0.95 * 2.0 = 2.4;  A_0 = 0.3 + 0.95 * 2.4 = 2.58
    """
    rewards = torch.tensor([[0.0, 0.0, 3.0]])
    values = torch.tensor([[0.2, 0.5, 1.0]])
    acted = torch.tensor([[T, T, T]])
    got, targets = ppo.advantages(rewards, values, acted, gamma=1.0, lam=0.95)
    assert torch.allclose(got, torch.tensor([[2.58, 2.4, 2.0]]))
    assert torch.allclose(targets, torch.tensor([[2.78, 2.9, 3.0]]))


def test_environment_tokens_are_as_if_they_were_not_there() -> None:
    rewards = torch.tensor([[9.0, 0.0, 9.0, 9.0, 0.0, 3.0, 9.0]])
    values = torch.tensor([[7.0, 0.2, 7.0, 7.0, 0.5, 1.0, 7.0]])
    acted = torch.tensor([[F, T, F, F, T, T, F]])
    got, targets = ppo.advantages(rewards, values, acted, gamma=1.0, lam=0.95)
    assert torch.allclose(got, torch.tensor([[0.0, 2.58, 0.0, 0.0, 2.4, 2.0, 0.0]]))
    assert torch.allclose(targets, torch.tensor([[0.0, 2.78, 0.0, 0.0, 2.9, 3.0, 0.0]]))


def test_gamma_discounts_by_actions_and_not_by_tokens() -> None:
    rewards = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
    acted = torch.tensor([[T, F, F, T]])
    got, _ = ppo.advantages(rewards, torch.zeros(1, 4), acted, gamma=0.5, lam=1.0)
    assert torch.allclose(got, torch.tensor([[0.5, 0.0, 0.0, 1.0]]))


def test_episodes_weigh_the_same_whatever_their_length() -> None:
    x = torch.tensor([[1.0, 100.0, 100.0], [3.0, 5.0, 100.0], [100.0, 100.0, 100.0]])
    acted = torch.tensor([[T, F, F], [T, T, F], [F, F, F]])
    assert float(ppo.episode_mean(x, acted)) == pytest.approx((1 + 4) / 2)


def test_surrogate_by_hand() -> None:
    """Ratios 1.5, 0.5, 1.5, 0.5, 1.1 with advantages +1, -1, -1, +1, +1 and clip 0.2 / 0.28:

    gains: min(1.5, 1.28) = 1.28; min(-0.5, -0.8) = -0.8; min(-1.5, -1.28) = -1.5; 0.5; 1.1
    """
    ratio = torch.tensor([[1.5, 0.5, 1.5, 0.5, 1.1, 77.0]])
    advantage = torch.tensor([[1.0, -1.0, -1.0, 1.0, 1.0, 5.0]])
    acted = torch.tensor([[T, T, T, T, T, F]])
    old = torch.full((1, 6), -3.0)
    got = ppo.surrogate(old + ratio.log(), old, advantage, acted, low=0.2, high=0.28)
    assert float(got.loss) == pytest.approx(-(1.28 - 0.8 - 1.5 + 0.5 + 1.1) / 5)
    assert got.clip_low == pytest.approx(1 / 5)
    assert got.clip_high == pytest.approx(1 / 5)
    assert got.ratio_max == pytest.approx(2.0)
    kl = sum(r - 1 - math.log(r) for r in (1.5, 0.5, 1.5, 0.5, 1.1)) / 5
    assert got.kl == pytest.approx(kl, rel=1e-5)


def test_clipped_tokens_have_no_gradient_and_masked_ones_neither() -> None:
    ratio = torch.tensor([[1.5, 0.5, 1.0, 1.0]])
    new = ratio.log().requires_grad_()
    advantage = torch.tensor([[1.0, -1.0, 1.0, 1.0]])
    acted = torch.tensor([[T, T, T, F]])
    ppo.surrogate(new, torch.zeros(1, 4), advantage, acted, low=0.2, high=0.28).loss.backward()
    assert new.grad is not None
    assert torch.allclose(new.grad, torch.tensor([[0.0, 0.0, -1 / 3, 0.0]]))


def test_value_loss_and_explained_variance_by_hand() -> None:
    values = torch.tensor([[1.0, 2.0, 9.0], [3.0, 9.0, 9.0]])
    targets = torch.tensor([[2.0, 2.0, 0.0], [1.0, 0.0, 0.0]])
    acted = torch.tensor([[T, T, F], [T, F, F]])
    loss = ppo.value_loss(values, targets, acted)
    assert float(loss) == pytest.approx(0.5 * ((1 + 0) / 2 + 4) / 2)
    # targets 2, 2, 1: variance 1/3; residuals 1, 0, -2: variance 7/3
    assert ppo.explained_variance(values, targets, acted) == pytest.approx(1 - 7)
    assert ppo.explained_variance(targets, targets, acted) == pytest.approx(1.0)
    assert math.isnan(ppo.explained_variance(values, torch.ones(2, 3), acted))


def test_normalized_advantages() -> None:
    x = torch.tensor([[1.0, 3.0, 50.0]])
    acted = torch.tensor([[T, T, F]])
    got = ppo.normalized(x, acted)
    assert torch.allclose(got, torch.tensor([[-1.0, 1.0, 0.0]]) / math.sqrt(2))
    assert torch.equal(ppo.normalized(torch.ones(1, 3), acted), torch.zeros(1, 3))


# --- torchrl ------------------------------------------------------------------------------------


def _torchrl(module: str) -> Any:
    return pytest.importorskip(module, reason="torchrl is not installed (extra `dev`)")


def test_gae_agrees_with_torchrl() -> None:
    functional = _torchrl("torchrl.objectives.value.functional")
    torch.manual_seed(0)
    b, t = 5, 9
    values, rewards = torch.randn(b, t), torch.randn(b, t)
    done = torch.zeros(b, t, 1, dtype=torch.bool)
    done[:, -1] = True
    following = torch.cat([values[:, 1:], torch.zeros(b, 1)], 1)
    want, targets = functional.generalized_advantage_estimate(
        0.97, 0.95, values[..., None], following[..., None], rewards[..., None], done, done
    )
    acted = torch.ones(b, t, dtype=torch.bool)
    got, got_targets = ppo.advantages(rewards, values, acted, gamma=0.97, lam=0.95)
    assert torch.allclose(got, want[..., 0], atol=1e-5)
    assert torch.allclose(got_targets, targets[..., 0], atol=1e-5)
    # Environment tokens spread between the actions change nothing at the actions.
    places = torch.sort(torch.rand(b, 3 * t).argsort(1)[:, :t], 1).values
    wide = [torch.randn(b, 3 * t).scatter(1, places, x) for x in (rewards, values)]
    mask = torch.zeros(b, 3 * t, dtype=torch.bool).scatter(1, places, True)
    spread, _ = ppo.advantages(*wide, mask, gamma=0.97, lam=0.95)
    assert torch.allclose(spread.gather(1, places), want[..., 0], atol=1e-5)


def test_clipped_loss_agrees_with_torchrl() -> None:
    """Categorical actions, one a state, asymmetric clip: both losses, and the actor's gradient."""
    objectives, nn = _torchrl("torchrl.objectives"), _torchrl("tensordict.nn")
    tensordict = _torchrl("tensordict")
    actors = _torchrl("torchrl.modules")
    torch.manual_seed(1)
    count, width, options = 64, 6, 4
    layer = torch.nn.Linear(width, options)
    actor = actors.ProbabilisticActor(
        nn.TensorDictModule(layer, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"], distribution_class=torch.distributions.Categorical,
    )
    critic = nn.TensorDictModule(
        torch.nn.Linear(width, 1), in_keys=["observation"], out_keys=["state_value"]
    )
    loss = objectives.ClipPPOLoss(
        actor, critic, clip_epsilon=(0.2, 0.28), entropy_bonus=False, critic_coeff=0.5,
        loss_critic_type="l2",
    )
    observation, action = torch.randn(count, width), torch.randint(options, (count,))
    advantage, old = torch.randn(count), torch.log(torch.rand(count) * 0.9 + 0.1)
    returns = torch.randn(count)
    data = tensordict.TensorDict(
        {
            "observation": observation, "action": action, "action_log_prob": old,
            "advantage": advantage[:, None], "value_target": returns[:, None],
        },
        [count],
    )
    answer = loss(data)
    want = answer["loss_objective"]
    (wanted,) = torch.autograd.grad(want, list(loss.actor_network_params.values(True, True))[:1])
    new = torch.log_softmax(layer(observation), -1).gather(1, action[:, None])
    acted = torch.ones(count, 1, dtype=torch.bool)
    values = critic.module(observation).detach()
    assert float(ppo.value_loss(values, returns[:, None], acted)) == pytest.approx(
        answer["loss_critic"].item(), rel=1e-5
    )
    got = ppo.surrogate(new, old[:, None], advantage[:, None], acted, low=0.2, high=0.28)
    assert got.loss.item() == pytest.approx(want.item(), rel=1e-5)
    grads = torch.autograd.grad(got.loss, list(layer.parameters()))
    assert any(g.shape == wanted.shape and torch.allclose(g, wanted, atol=1e-6) for g in grads)
    assert got.clip_high > 0 and got.clip_low > 0  # the clip was at work on both sides
