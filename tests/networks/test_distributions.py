import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal, TanhTransform, TransformedDistribution

from asyncrl.acting.stochastic import ActorLayout, StochasticPolicy
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec, MultiDiscreteAction
from asyncrl.networks.distributions import categorical, diagonal_gaussian, log_tanh_slope

B = 50
BOX = BoxAction((-2.0, 0.0, -1.0), (2.0, 3.0, 1.0), (3,))


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [1, 2, 7])
def test_categorical(size: int) -> None:
    logits, action = draw(B, size) * 3, torch.arange(B) % size
    theirs = Categorical(logits=logits)
    expected = theirs.log_prob(action), theirs.entropy()
    torch.testing.assert_close(categorical(logits, action, (size,)), expected)


def test_several_choices_are_independent() -> None:
    nvec = (3, 1, 4)
    logits, action = draw(B, sum(nvec)) * 2, torch.stack([torch.arange(B) % n for n in nvec], dim=1)
    parts = [Categorical(logits=part) for part in logits.split(nvec, dim=1)]
    log_prob = torch.stack([part.log_prob(action[:, i]) for i, part in enumerate(parts)]).sum(dim=0)
    entropy = torch.stack([part.entropy() for part in parts]).sum(dim=0)
    torch.testing.assert_close(categorical(logits, action, nvec), (log_prob, entropy))


def test_categorical_by_hand() -> None:
    # p = 1/4, 3/4; action 1: log 3/4.
    log_prob, entropy = categorical(torch.tensor([[0.0, math.log(3.0)]]), torch.tensor([1]), (2,))
    assert log_prob.item() == pytest.approx(math.log(0.75))
    assert entropy.item() == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))


@pytest.mark.parametrize("of_each_row", [False, True])
def test_diagonal_gaussian(of_each_row: bool) -> None:
    mean, action = draw(B, 3), draw(B, 3, seed=1)
    log_std = draw(*((B, 3) if of_each_row else (3,)), seed=2)
    theirs = Independent(Normal(mean, log_std.exp()), 1)
    expected = theirs.log_prob(action), theirs.entropy()
    torch.testing.assert_close(diagonal_gaussian(mean, action, log_std), expected)


def test_density_of_a_squashed_gaussian_leaves_out_the_slope_of_tanh() -> None:
    mean, latent, log_std = draw(B, 3), draw(B, 3, seed=1) * 2, draw(3, seed=2)
    theirs = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])
    log_prob, _ = diagonal_gaussian(mean, latent, log_std)
    squashed = log_prob - log_tanh_slope(latent).sum(dim=1)
    torch.testing.assert_close(squashed, theirs.log_prob(latent.tanh()).sum(dim=1), rtol=1e-6, atol=1e-8)


def test_slope_of_tanh_holds_where_tanh_is_one() -> None:
    # 1 - tanh(u)^2 is 4 exp(-2 |u|) there; both signs alike.
    u = torch.tensor([0.0, 1.0, 30.0, -30.0])
    expected = [0.0, math.log(1 - math.tanh(1.0) ** 2), math.log(4.0) - 60.0, math.log(4.0) - 60.0]
    assert log_tanh_slope(u).tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("action", "squashed"),
    [(DiscreteAction(4, start=-1), False), (MultiDiscreteAction((2, 3)), False), (BOX, False), (BOX, True)],
)
def test_log_probability_is_what_the_policy_stamped(action, squashed: bool) -> None:  # type: ignore[no-untyped-def]
    layout = ActorLayout(5, (8,), action, squashed=squashed)
    policy = StochasticPolicy(EnvSpec("e", (5,), "float32", action), layout)
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.5, layout.weight_count).astype(np.float32)
    policy.load_weights(weights)
    obs = rng.normal(size=(B, 5)).astype(np.float32)
    acted, extras = policy.act(obs, rng, 0)
    out, log_std = torch.from_numpy(policy.outputs(obs)), torch.from_numpy(weights[layout.log_std])
    seen = torch.from_numpy(np.asarray(extras["latent"] if squashed else acted))
    if layout.gaussian:
        log_prob, _ = diagonal_gaussian(out, seen, log_std)
    else:
        log_prob, _ = categorical(out, seen, layout.choices)
    if squashed:
        log_prob -= log_tanh_slope(seen).sum(dim=1)
    stamped = torch.from_numpy(np.asarray(extras["log_prob"]))
    torch.testing.assert_close(log_prob, stamped, rtol=1e-5, atol=1e-5)


def test_arguments_are_not_written() -> None:
    given = out, action, log_std, index = draw(B, 3), draw(B, 3, seed=1), draw(3), torch.arange(B) % 3
    before = [x.clone() for x in given]
    diagonal_gaussian(out, action, log_std)
    categorical(out, index, (3,))
    assert all(torch.equal(x, y) for x, y in zip(given, before, strict=True))


def test_axes_are_checked() -> None:
    with pytest.raises(AssertionError):
        categorical(torch.zeros(4, 2), torch.zeros(4, 2, dtype=torch.int64), (2, 3))
    with pytest.raises(AssertionError):
        diagonal_gaussian(torch.zeros(4, 2), torch.zeros(4), torch.zeros(2))
    with pytest.raises(AssertionError):
        diagonal_gaussian(torch.zeros(4, 2), torch.zeros(4, 2), torch.zeros(3))
