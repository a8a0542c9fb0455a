import math

import numpy as np
import pytest
import torch

from asyncrl.losses.td import bootstrap, dqn_loss, dqn_loss_gradient, dueling, dueling_gradient, td_error


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values).unsqueeze(1)


def test_dueling_by_hand() -> None:
    q = dueling(column(10.0, -1.0), torch.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]]))
    assert q.tolist() == [[8.0, 9.0, 13.0], [-2.0, -2.0, 1.0]]


def test_dueling_gradient_is_that_of_autograd() -> None:
    value = torch.randn(5, 1, requires_grad=True)
    advantage = torch.randn(5, 3, requires_grad=True)
    grad_q = torch.randn(5, 3)
    dueling(value, advantage).backward(grad_q)
    assert value.grad is not None and advantage.grad is not None
    expected = torch.cat((value.grad, advantage.grad), dim=1)
    torch.testing.assert_close(dueling_gradient(grad_q), expected)


def test_bootstrap_single_takes_the_best_and_double_asks_the_online_network() -> None:
    next_q = torch.tensor([[1.0, 5.0], [7.0, 2.0], [3.0, 4.0]])
    next_q_online = torch.tensor([[9.0, 0.0], [0.0, 9.0], [6.0, 6.0]])
    assert bootstrap(next_q).tolist() == [[5.0], [7.0], [4.0]]
    assert bootstrap(next_q, next_q_online).tolist() == [[1.0], [2.0], [3.0]], (
        "the first of equal actions counts"
    )


def test_td_error_by_hand() -> None:
    q = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    action = torch.tensor([[1], [0], [1]])
    # 2 - (0.5 + 0.25 * 8) = -0.5; a termination bootstraps nothing: 3 - 10 = -7; 6 - (1 + 1 * -2) = 7
    td = td_error(q, action, column(0.5, 10.0, 1.0), column(0.25, 0.0, 1.0), column(8.0, 1e9, -2.0))
    assert td.tolist() == [[-0.5], [-7.0], [7.0]]
    assert q.tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "the action values are not written"


def test_huber_loss_with_weights_by_hand() -> None:
    # |td| = 0.5 -> 0.125; 3 -> 2.5 (linear from 1 on); 2 -> 1.5. Weights 1, 0.5, 0: 0.125 + 1.25
    td, weight = column(0.5, -3.0, 2.0), column(1.0, 0.5, 0.0)
    assert dqn_loss(td, weight, 1.0).item() == 1.375
    # delta 2: 0.125, 2 * (3 - 1) = 4, 2
    assert dqn_loss(td, column(1.0, 1.0, 1.0), 2.0).item() == 6.125


def test_squared_loss_with_weights_by_hand() -> None:
    assert dqn_loss(column(0.5, -3.0, 2.0), column(1.0, 0.5, 0.25), None).item() == 0.125 + 2.25 + 0.5


def test_loss_gradient_by_hand() -> None:
    td, weight, action = column(0.5, -3.0, 2.0), column(1.0, 0.5, 0.25), torch.tensor([[0], [1], [1]])
    assert dqn_loss_gradient(td, action, weight, 2, 1.0).tolist() == [[0.5, 0.0], [0.0, -0.5], [0.0, 0.25]]
    assert dqn_loss_gradient(td, action, weight, 2, None).tolist() == [[0.5, 0.0], [0.0, -1.5], [0.0, 0.5]]


def slow_loss(q, next_q, next_q_online, action, rewards, gamma, terminated, weight, delta):  # type: ignore[no-untyped-def]
    """The papers' formulas, one item and one reward at a time."""
    total = 0.0
    for i in range(len(action)):
        target = sum(gamma**k * r for k, r in enumerate(rewards[i]))
        if not terminated[i]:
            chooser = next_q[i] if next_q_online is None else next_q_online[i]
            best = max(range(len(chooser)), key=lambda a: chooser[a])
            target += gamma ** len(rewards[i]) * next_q[i][best]
        delta_i = q[i][action[i]] - target
        inside = delta is None or abs(delta_i) <= delta
        total += weight[i] * (delta_i**2 / 2 if inside else delta * (abs(delta_i) - delta / 2))
    return total / len(action)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("delta", [None, 0.5, 1.0])
def test_whole_loss_is_the_papers_formula(double: bool, delta: float | None) -> None:
    rng = np.random.default_rng(7)
    size, actions, gamma = 40, 3, 0.9
    q, next_q, next_q_online = rng.normal(0, 2, (3, size, actions))
    action, weight = rng.integers(0, actions, size), rng.random(size)
    rewards = [list(rng.normal(size=rng.integers(1, 4))) for _ in range(size)]
    terminated = rng.random(size) < 0.3
    online = next_q_online if double else None
    expected = slow_loss(q, next_q, online, action, rewards, gamma, terminated, weight, delta)

    n_step = [sum(gamma**k * r for k, r in enumerate(row)) for row in rewards]
    discount = [0.0 if end else gamma ** len(row) for row, end in zip(rewards, terminated, strict=True)]
    next_value = bootstrap(torch.tensor(next_q), None if online is None else torch.tensor(online))
    td = td_error(
        torch.tensor(q), torch.tensor(action).unsqueeze(1), *map(column64, (n_step, discount)), next_value
    )
    assert math.isclose(dqn_loss(td, column64(weight / size), delta).item(), expected, rel_tol=1e-12)


def column64(values) -> torch.Tensor:  # type: ignore[no-untyped-def]
    return torch.tensor(np.asarray(values, np.float64)).unsqueeze(1)


@pytest.mark.parametrize("delta", [None, 1.0])
def test_loss_gradient_is_that_of_autograd(delta: float | None) -> None:
    q = torch.randn(30, 4, requires_grad=True)
    action, weight, target = torch.randint(0, 4, (30, 1)), torch.rand(30, 1), torch.randn(30, 1) * 2
    td = q.gather(1, action) - target
    dqn_loss(td, weight, delta).backward()
    assert q.grad is not None
    torch.testing.assert_close(dqn_loss_gradient(td.detach(), action, weight, 4, delta), q.grad)


def test_axes_are_checked() -> None:
    flat, good = torch.zeros(3), torch.zeros(3, 1)
    action = torch.zeros(3, 1, dtype=torch.int64)
    for call in (
        lambda: dueling(flat, torch.zeros(3, 2)),
        lambda: bootstrap(torch.zeros(3, 2), torch.zeros(3, 1)),
        lambda: td_error(torch.zeros(3, 2), action, flat, good, good),
        lambda: td_error(torch.zeros(3, 2), action[:, 0], good, good, good),
        lambda: dqn_loss(good, flat, None),
        lambda: dqn_loss_gradient(good, action, flat, 2, None),
    ):
        with pytest.raises(AssertionError):
            call()
