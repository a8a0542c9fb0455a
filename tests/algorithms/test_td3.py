from typing import Any

import numpy as np
import pytest
import torch
from continuous_rig import SIZE, SPEC, SPECS, TD3Twin, filled_batch, permuted, written

from asyncrl.acting.noise import GaussianNoise, OrnsteinUhlenbeckNoise
from asyncrl.algorithms import ALGORITHMS
from asyncrl.algorithms.continuous_update import DeterministicUpdate
from asyncrl.algorithms.ddpg import DDPG
from asyncrl.algorithms.td3 import TD3
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec

SMALL: dict[str, Any] = {"hidden_sizes": (9, 8), "batch_size": SIZE, "prioritized": True}
SPEEDY: dict[str, Any] = {"learning_rate": 3e-3, "tau": 0.1}
EPS = 1e-4
"""Keeps rounding of vanishing gradients out of a comparison with autograd."""

both = pytest.mark.parametrize("record", [TD3, DDPG])


def core_of(record: type = TD3, spec: Any = SPEC, seed: int = 3, **options: Any) -> DeterministicUpdate:
    core: DeterministicUpdate = record(**{**SMALL, **SPEEDY, **options}).make_updater(spec, "cpu", seed)
    return core


def noise_of(core: DeterministicUpdate) -> torch.Tensor:
    assert core._buffers is not None
    return core._buffers.noise.clone()


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize(
    ("record", "options"),
    [
        (TD3, {}),
        (TD3, {"num_critics": 3, "policy_delay": 1, "target_noise": 0.6}),
        (TD3, {"target_noise": 0.0, "critic_hidden_sizes": (7,)}),
        (TD3, {"actor_learning_rate": 1e-3, "max_grad_norm": 0.05, "policy_delay": 3}),
        (DDPG, {}),
        (DDPG, {"hidden_sizes": (9, 8, 7), "policy_delay": 2}),
        (DDPG, {"actor_learning_rate": 1e-4, "max_grad_norm": 0.05}),
    ],
    ids=str,
)
def test_updates_are_those_of_autograd(record: type, options: dict[str, Any], kernels: bool) -> None:
    core = core_of(record, adam_eps=EPS, **options)
    if not kernels:
        core.kernels = False
    twin = TD3Twin(core)
    for update in range(1, 13):
        batch = filled_batch(seed=update)
        priorities = core.update(batch).priorities
        acting = update % core.config.policy_delay == 0
        expected = twin.update(batch, noise_of(core), acting)
        assert priorities is not None
        torch.testing.assert_close(torch.from_numpy(priorities), expected, rtol=1e-4, atol=1e-5)
        metrics = core.metrics()
        assert metrics["train/loss"] == pytest.approx(twin.losses["critics"], rel=1e-4)
        if acting:
            assert metrics["train/actor_loss"] == pytest.approx(twin.losses["policy"], rel=1e-4, abs=1e-5)
    twin.assert_same(core, rtol=1e-4, atol=1e-5)


@both
@pytest.mark.parametrize("kind", sorted(SPECS))
def test_every_box_and_bytes(record: type, kind: str) -> None:
    spec = SPECS[kind]
    core = core_of(record, spec, adam_eps=EPS)
    twin = TD3Twin(core)
    for update in range(1, 5):
        batch = filled_batch(seed=update, spec=spec)
        core.update(batch)
        twin.update(batch, noise_of(core), update % core.config.policy_delay == 0)
    twin.assert_same(core, rtol=1e-4, atol=1e-5)
    policy = core.config.make_policy(spec)
    policy.load_weights(written(core))
    obs = filled_batch(50, seed=1, spec=spec)
    action = twin.policy(twin.tensors(obs)["obs"]).tanh().detach().numpy()
    low, high = np.array(spec.action.low), np.array(spec.action.high)  # type: ignore[union-attr]
    expected = (low + (action + 1) / 2 * (high - low)).reshape(obs.action.shape)
    np.testing.assert_allclose(policy.greedy(obs.obs), expected, rtol=1e-3, atol=1e-4)


def test_actor_and_all_targets_wait_for_the_second_update() -> None:
    core = core_of()
    before = core.state_dict()
    for update in range(1, 7):
        core.update(filled_batch(seed=update))
        after = core.state_dict()
        moved = {
            part: any(not torch.equal(before[part][name], after[part][name]) for name in after[part])
            for part in ("policy", "target_policy", "critics", "target_critics")
        }
        acts = update % 2 == 0
        assert moved == {"policy": acts, "target_policy": acts, "critics": True, "target_critics": acts}
        assert ("train/actor_loss" in core.metrics()) == (update >= 2)
        before = after


def test_targets_begin_where_the_networks_do() -> None:
    state = core_of().state_dict()
    for name in ("policy", "critics"):
        assert all(torch.equal(value, state[f"target_{name}"][key]) for key, value in state[name].items())


def test_ddpg_draws_no_noise() -> None:
    core = core_of(DDPG)
    before = core.generator.get_state()
    core.update(filled_batch())
    assert torch.equal(core.generator.get_state(), before)


def test_target_noise_moves_the_target() -> None:
    still, moved = core_of(target_noise=0.0), core_of(target_noise=0.5)
    ours, theirs = still.update(filled_batch()).priorities, moved.update(filled_batch()).priorities
    assert ours is not None and theirs is not None
    ends = filled_batch().discount == 0
    assert (ours[ends] == theirs[ends]).all() and (ours[~ends] != theirs[~ends]).any()


@both
def test_options_of_exploration_reach_the_policy(record: type) -> None:
    options = {"exploration_scale": 0.4, "exploration_scale_last": 0.1, "exploration_theta": 0.3}
    assert record(exploration_noise="ou", **options).make_policy(SPEC).noise == OrnsteinUhlenbeckNoise(
        0.4, 0.1, 0.3
    )
    assert record(**options).make_policy(SPEC).noise == GaussianNoise(0.4, 0.1)


@pytest.mark.parametrize("name", ["ddpg", "sac", "td3"])
def test_options_of_size_and_of_random_steps_are_heard(name: str) -> None:
    made = ALGORITHMS[name](hidden_sizes=(9, 8), critic_hidden_sizes=(7,), learning_starts=77)
    core: Any = made.make_updater(SPEC, "cpu", 0)
    assert core.critics.sizes == core.target_critics.sizes == (4 + 2, 7, 1)
    assert core.layout.hidden == (9, 8)
    policies: Any = [
        ALGORITHMS[name](learning_starts=77, **o).make_policy(SPEC) for o in ({}, {"random_steps": 5})
    ]
    assert [policy.random_steps for policy in policies] == [77, 5]


# --- what every core must do ---


@both
def test_permuted_batch_gives_permuted_priorities(record: type, monkeypatch: pytest.MonkeyPatch) -> None:
    core, other = core_of(record), core_of(record)
    for each in (core, other):
        monkeypatch.setattr(each, "draw", lambda noise: noise.zero_())
    batch, order = filled_batch(), np.random.default_rng(5).permutation(SIZE)
    ours, theirs = core.update(batch).priorities, other.update(permuted(batch, order)).priorities
    assert ours is not None and theirs is not None and (ours > 0).all()
    assert ours.shape == (SIZE,) and ours.dtype == np.float32
    np.testing.assert_allclose(theirs, ours[order], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(written(other), written(core), rtol=1e-4, atol=1e-5)


@both
def test_uniform_replay_has_no_priorities(record: type) -> None:
    assert core_of(record, prioritized=False).update(filled_batch()).priorities is None


@both
def test_state_round_trips_to_the_same_bits_with_the_noise(record: type) -> None:
    core = core_of(record)
    for seed in range(4):  # the other stands elsewhere in the delay, and the actor's turn is not next
        core.update(filled_batch(seed=seed))
    other = core_of(record, seed=99)
    other.update(filled_batch())
    other.load_state_dict(core.state_dict())
    for seed in range(6):
        batch = filled_batch(seed=seed)
        ours, theirs = core.update(batch).priorities, other.update(batch).priorities
        assert ours is not None and theirs is not None and (ours == theirs).all()
        assert (written(core) == written(other)).all()
        assert core.metrics() == other.metrics()
    assert torch.equal(core.generator.get_state(), other.generator.get_state())


def test_state_of_the_other_algorithm_is_refused() -> None:
    core = core_of()
    before = written(core)
    with pytest.raises(ValueError, match="state"):
        core.load_state_dict(core_of(DDPG, seed=1).state_dict())
    assert (written(core) == before).all()


@both
def test_batch_is_not_kept_and_its_size_may_change(record: type) -> None:
    core, other = core_of(record), core_of(record)
    first = filled_batch()
    core.update(first)
    for name in ("obs", "action", "reward", "discount", "next_obs", "weight"):
        assert (getattr(first, name) == getattr(filled_batch(), name)).all()
        getattr(first, name)[...] = 1
    other.update(filled_batch())
    for size in (SIZE, 5, SIZE):
        core.update(filled_batch(size, seed=size))
        other.update(filled_batch(size, seed=size))
    assert (written(core) == written(other)).all()


@both
def test_published_weights_are_a_copy(record: type) -> None:
    core = core_of(record)
    published = written(core)
    kept = published.copy()
    for seed in range(2):
        core.update(filled_batch(seed=seed))
    assert (published == kept).all() and (written(core) != kept).any()
    now = written(core)
    written(core)[:] = 0
    assert (written(core) == now).all()


@both
def test_metrics_before_and_after_the_first_update(record: type) -> None:
    core = core_of(record)
    assert set(core.metrics()) == {"train/learning_rate"}
    for seed in range(2):
        core.update(filled_batch(seed=seed))
    metrics = core.metrics()
    names = ("loss", "actor_loss", "q_mean", "q_max", "value_low", "value_high", "learning_rate", "grad_norm")
    assert set(metrics) == {f"train/{name}" for name in names}
    assert all(type(value) is float and np.isfinite(value) for value in metrics.values())


@both
def test_mean_and_largest_of_the_values_are_reported(record: type) -> None:
    core, filled = core_of(record), filled_batch()
    twin = TD3Twin(core)
    batch = twin.tensors(filled)
    expected = twin.judge(twin.critics, batch["obs"], batch["action"]).detach()
    core.update(filled)
    assert core.metrics()["train/q_mean"] == pytest.approx(float(expected.mean()), rel=1e-4, abs=1e-6)
    assert core.metrics()["train/q_max"] == pytest.approx(float(expected.abs().max()), rel=1e-4)


@both
def test_update_never_looks_at_a_value(record: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Condition of a CUDA graph: on the meta device, which has no values, everything must run."""
    monkeypatch.setattr(torch, "_fused_adam_", lambda *_, **__: None)  # has no meta kernel
    core = record(**{**SMALL, "prioritized": False}).make_updater(SPEC, "meta", 0)
    for _ in range(4):
        core.update(filled_batch())
    with pytest.raises(RuntimeError, match="meta"):
        core.metrics()  # does look


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"exploration_theta": 0.0}, "exploration_theta must be greater than 0 and at most 1, got 0.0"),
        ({"exploration_theta": 1.5}, "exploration_theta must be greater than 0 and at most 1, got 1.5"),
        ({"exploration_scale": float("inf")}, "exploration_scale must be at least 0 and finite, got inf"),
        ({"exploration_scale": -0.1}, "exploration_scale must be at least 0 and finite, got -0.1"),
        (
            {"exploration_scale": 0.0, "exploration_scale_last": 0.1},
            "exploration_scale must be greater than 0 where exploration_scale_last is given, got 0.0",
        ),
        ({"num_critics": 0}, "num_critics must be at least 1, got 0"),
        ({"target_noise": -1.0}, "target_noise must be at least 0, got -1.0"),
        ({"policy_delay": 0}, "policy_delay must be at least 1, got 0"),
        ({"actor_learning_rate": 0.0}, "actor_learning_rate must be greater than 0, got 0.0"),
        ({"critic_hidden_sizes": ()}, "critic_hidden_sizes must name at least one width"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TD3(**options)


@pytest.mark.parametrize("name", ["ddpg", "sac", "td3"])
@pytest.mark.parametrize(
    ("action", "text"),
    [
        (DiscreteAction(3), r"needs a Box action space, and env has Discrete\(3\)"),
        (
            BoxAction((-1.0, -np.inf), (1.0, 1.0), (2,)),
            r"needs finite bounds, and value 1 of env's actions lies in \[-inf, 1.0\]",
        ),
        (BoxAction((0.0,), (1e300,), (1,)), r"value 0 of env's actions lies in \[0.0, 1e\+300\]"),
    ],
)
def test_actions_that_do_not_fit_are_refused(name: str, action: Any, text: str) -> None:
    spec = EnvSpec("env", (2,), "float32", action)
    with pytest.raises(SpacesDoNotFit, match=text) as caught:
        ALGORITHMS[name]().check(spec)
    fits = (
        "a2c, c51, dqn, impala, ppo, pqn, qrdqn, r2d2, rainbow"
        if isinstance(action, DiscreteAction)
        else "a2c, impala, ppo"
    )
    assert caught.value.facts["algorithms that fit"] == fits
