import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from asyncrl.acting.stochastic import ActorLayout, StochasticPolicy
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec, MultiDiscreteAction
from asyncrl.networks.distributions import Categorical, DiagonalGaussian, SquashedGaussian, distribution

B = 50
BOX = BoxAction((-2.0, 0.0, -1.0), (2.0, 3.0, 1.0), (3,))


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gradients(made, evaluate, *leaves: Tensor):  # type: ignore[no-untyped-def]
    """Of a loss with random slopes for log-probability and entropy: ours, and autograd's through `evaluate`."""
    by_log_prob, by_entropy = draw(B, seed=7), draw(B, seed=8)
    ours = made.gradient(by_log_prob, by_entropy)
    tracked = [leaf.clone().requires_grad_() for leaf in leaves]
    log_prob, entropy = evaluate(*tracked)
    (by_log_prob * log_prob + by_entropy * entropy).sum().backward()
    return ours, [leaf.grad for leaf in tracked]


@pytest.mark.parametrize("size", [1, 2, 7])
def test_categorical(size: int) -> None:
    made, out = Categorical((size,)), draw(B, size) * 3
    action = torch.arange(B) % size

    def evaluate(logits: Tensor) -> tuple[Tensor, Tensor]:
        theirs = TorchCategorical(logits=logits)
        return theirs.log_prob(action), theirs.entropy()

    torch.testing.assert_close(made.evaluate(out, action), evaluate(out))
    (grad_out, grad_log_std), (expected,) = gradients(made, evaluate, out)
    torch.testing.assert_close(grad_out, expected)
    assert grad_log_std is None


def test_several_choices_are_independent() -> None:
    nvec = (3, 1, 4)
    made, out = Categorical(nvec), draw(B, sum(nvec)) * 2
    action = torch.stack([torch.arange(B) % n for n in nvec], dim=1)

    def evaluate(logits: Tensor) -> tuple[Tensor, Tensor]:
        parts = [TorchCategorical(logits=part) for part in logits.split(nvec, dim=1)]
        log_prob = sum(part.log_prob(action[:, i]) for i, part in enumerate(parts))
        return log_prob, sum(part.entropy() for part in parts)  # type: ignore[return-value]

    torch.testing.assert_close(made.evaluate(out, action), evaluate(out))
    (grad_out, _), (expected,) = gradients(made, evaluate, out)
    torch.testing.assert_close(grad_out, expected)


def test_categorical_by_hand() -> None:
    # p = 1/4, 3/4; action 1: log 3/4. d log p_1 = (-1/4, 1/4).
    made = Categorical((2,))
    log_prob, entropy = made.evaluate(torch.tensor([[0.0, np.log(3.0)]]), torch.tensor([1]))
    assert log_prob.item() == pytest.approx(np.log(0.75))
    assert entropy.item() == pytest.approx(-(0.25 * np.log(0.25) + 0.75 * np.log(0.75)))
    grad, _ = made.gradient(torch.ones(1).double(), torch.zeros(1).double())
    assert grad[0].tolist() == pytest.approx([-0.25, 0.25])


def test_diagonal_gaussian() -> None:
    made, out, action, log_std = DiagonalGaussian(3), draw(B, 3), draw(B, 3, seed=1), draw(3, seed=2)

    def evaluate(mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
        theirs = Independent(Normal(mean, log_std.exp()), 1)
        return theirs.log_prob(action), theirs.entropy()

    torch.testing.assert_close(made.evaluate(out, action, log_std), evaluate(out, log_std))
    ours, expected = gradients(made, evaluate, out, log_std)
    torch.testing.assert_close(list(ours), expected)


def test_squashed_gaussian() -> None:
    made, out, latent, log_std = SquashedGaussian(3), draw(B, 3), draw(B, 3, seed=1) * 2, draw(3, seed=2)

    def evaluate(mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
        gaussian = Independent(Normal(mean, log_std.exp()), 1)
        theirs = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])
        return theirs.log_prob(latent.tanh()).sum(dim=1), gaussian.entropy()

    torch.testing.assert_close(
        made.evaluate(out, latent, log_std), evaluate(out, log_std), rtol=1e-6, atol=1e-8
    )
    ours, expected = gradients(made, evaluate, out, log_std)
    torch.testing.assert_close(list(ours), expected, rtol=1e-5, atol=1e-6)


def test_squashed_log_density_holds_where_tanh_is_one() -> None:
    # 1 - tanh(u)^2 is 4 exp(-2 |u|) there; both signs alike.
    made, latent = SquashedGaussian(1), torch.tensor([[30.0], [-30.0]])
    log_prob, _ = made.evaluate(latent, latent, torch.zeros(1))
    expected = -0.5 * np.log(2 * np.pi) - (np.log(4.0) - 60.0)
    assert log_prob.tolist() == pytest.approx([expected, expected], rel=1e-6)


@pytest.mark.parametrize(
    ("action", "squashed", "kind"),
    [
        (DiscreteAction(4, start=-1), False, Categorical),
        (MultiDiscreteAction((2, 3)), False, Categorical),
        (BOX, False, DiagonalGaussian),
        (BOX, True, SquashedGaussian),
    ],
)
def test_says_of_a_row_what_the_policy_that_acted_stamped_on_it(action, squashed: bool, kind: type) -> None:  # type: ignore[no-untyped-def]
    layout = ActorLayout(5, (8,), action, squashed=squashed)
    policy = StochasticPolicy(EnvSpec("e", (5,), "float32", action), layout)
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.5, layout.weight_count).astype(np.float32)
    policy.load_weights(weights)
    obs = rng.normal(size=(B, 5)).astype(np.float32)
    acted, extras = policy.act(obs, rng, 0)
    made = distribution(layout)
    assert type(made) is kind
    log_std = torch.from_numpy(weights[layout.log_std]) if layout.gaussian else None
    seen = torch.from_numpy(np.asarray(extras["latent"] if squashed else acted))
    log_prob, _ = made.evaluate(torch.from_numpy(policy.outputs(obs)), seen, log_std)
    torch.testing.assert_close(
        log_prob, torch.from_numpy(np.asarray(extras["log_prob"])), rtol=1e-5, atol=1e-5
    )


def test_arguments_are_not_written() -> None:
    out, action, log_std, grads = draw(B, 3), draw(B, 3, seed=1), draw(3), (draw(B), draw(B))
    index = torch.arange(B) % 3
    before = [x.clone() for x in (out, action, log_std, *grads, index)]
    for made, acted in (
        (DiagonalGaussian(3), action),
        (SquashedGaussian(3), action),
        (Categorical((3,)), index),
    ):
        made.evaluate(out, acted, log_std)  # type: ignore[attr-defined]
        made.gradient(*grads)  # type: ignore[attr-defined]
        made.gradient(*grads)  # type: ignore[attr-defined]
    assert all(torch.equal(x, y) for x, y in zip((out, action, log_std, *grads, index), before, strict=True))


def test_gradient_can_be_asked_for_twice() -> None:
    out, grads = draw(B, 3), (draw(B, seed=3), draw(B, seed=4))
    for made, acted in ((DiagonalGaussian(3), draw(B, 3, seed=1)), (Categorical((3,)), torch.arange(B) % 3)):
        made.evaluate(out, acted, draw(3))  # type: ignore[attr-defined]
        first, second = made.gradient(*grads), made.gradient(*grads)  # type: ignore[attr-defined]
        assert torch.equal(first[0], second[0])


def test_axes_are_checked() -> None:
    with pytest.raises(AssertionError):
        Categorical((2, 3)).evaluate(torch.zeros(4, 2), torch.zeros(4, 2, dtype=torch.int64))
    with pytest.raises(AssertionError):
        DiagonalGaussian(2).evaluate(torch.zeros(4, 2), torch.zeros(4), torch.zeros(2))
    with pytest.raises(AssertionError):
        DiagonalGaussian(2).evaluate(torch.zeros(4, 2), torch.zeros(4, 2), None)
    with pytest.raises(AssertionError):
        DiagonalGaussian(2).gradient(torch.zeros(4), torch.zeros(4))
