"""`predict(obs, deterministic=False)`: independent draws that a seed decides, whatever the exploration of training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrl.acting.box import BoxLayout, DeterministicPolicy, SquashedGaussianPolicy
from asyncrl.acting.noise import GaussianNoise, OrnsteinUhlenbeckNoise
from asyncrl.acting.policies import QLayout, QPolicy
from asyncrl.acting.schedules import EpsilonSchedule
from asyncrl.acting.stochastic import ActorLayout, StochasticPolicy
from asyncrl.acting.trained_policy import TrainedPolicy
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec

BOX = BoxAction((-1.0,), (1.0,), (1,))
OBS = np.zeros(4, np.float32)


def spec_of(action: Any) -> EnvSpec:
    return EnvSpec("test", (4,), "float32", action)


def made(kind: str) -> Any:
    """A policy that explores in training in streams that differ and in ways that last over steps."""
    if kind == "dqn":
        epsilon = EpsilonSchedule(1.0, 0.5, 1000, ladder=7.0, repeat=20)
        return QPolicy(spec_of(DiscreteAction(3)), QLayout(4, (8,), 3), epsilon)
    if kind == "noisy":
        layout = QLayout(4, (8, 8), 3, noisy=True)
        return QPolicy(spec_of(DiscreteAction(3)), layout, EpsilonSchedule(0.0, 0.0))
    if kind == "ppo":
        return StochasticPolicy(spec_of(DiscreteAction(3)), ActorLayout(4, (8,), DiscreteAction(3)))
    layout = BoxLayout(4, (8,), BOX, gaussian=kind == "sac")
    if kind == "sac":
        return SquashedGaussianPolicy(spec_of(BOX), layout, random_steps=10**6, correlation=0.9)
    noise = GaussianNoise(0.1, 1.0) if kind == "ladder" else OrnsteinUhlenbeckNoise(0.1, theta=0.1)
    return DeterministicPolicy(spec_of(BOX), layout, noise, random_steps=10**6)


def trained(kind: str, seed: int | None = 0) -> TrainedPolicy:
    """The policy with weights that are drawn from one seed; small ones, far from the bounds."""
    policy = made(kind)
    scale = 1.0 if kind == "noisy" else 0.1
    weights = (scale * np.random.default_rng(5).normal(size=policy.weight_count)).astype(np.float32)
    return TrainedPolicy(spec_of(BOX), policy, weights, np.random.default_rng(seed))


def draws(model: TrainedPolicy, calls: int) -> np.ndarray:
    return np.array([np.ravel(model.predict(OBS, deterministic=False)[0])[0] for _ in range(calls)], float)


def correlation(series: np.ndarray) -> float:
    """Correlation of neighbours, and so of successive calls."""
    return float(np.corrcoef(series[:-1], series[1:])[0, 1])


FAMILIES = ("dqn", "noisy", "ppo", "sac", "ou", "ladder")


@pytest.mark.parametrize("kind", FAMILIES)
def test_calls_give_independent_draws(kind: str) -> None:
    series = draws(trained(kind), 2000)
    assert len(set(series.tolist())) > 1
    assert abs(correlation(series)) < 0.08


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_seed_decides_the_draws(kind: str) -> None:
    first, again, other = (draws(trained(kind, seed), 40).tolist() for seed in (1, 1, 2))
    assert first == again != other
    model = trained(kind, None)
    model.rng = np.random.default_rng(1)
    assert draws(model, 40).tolist() == first


def test_every_row_of_a_batch_explores_alike() -> None:
    """On a ladder of rates the last row of a batch would explore ten times as much, or 128 times as little."""
    rows = np.zeros((4000, 4), np.float32)
    taken = trained("ladder").predict(rows, deterministic=False)[0][:, 0]
    for half in np.split(taken, 2):
        assert half.std() == pytest.approx(0.1, rel=0.1)
    model = trained("dqn")
    greedy = model.predict(rows)[0][0]
    for half in np.split(model.predict(rows, deterministic=False)[0], 2):
        assert (half == greedy).mean() == pytest.approx(1 - 0.5 * 2 / 3, abs=0.04), "epsilon is 0.5"


@pytest.mark.parametrize(("kind", "expected"), [("sac", 0.9), ("ou", 0.9)])
def test_noise_goes_on_over_the_steps_of_a_film(kind: str, expected: float) -> None:
    model = trained(kind)
    model.keeps_exploring = True
    series = draws(model, 4000)
    assert correlation(series) == pytest.approx(expected, abs=0.05)


def test_repeated_random_actions_go_on_over_the_steps_of_a_film() -> None:
    model = trained("dqn")
    series = draws(model, 3000)
    model.keeps_exploring = True
    assert (np.diff(draws(model, 3000)) == 0).mean() > (np.diff(series) == 0).mean() + 0.2
