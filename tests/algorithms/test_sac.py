import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from continuous_rig import (
    SIZE,
    SPEC,
    SPECS,
    SACTwin,
    filled_batch,
    permuted,
    written,
)

from asyncrl.algorithms import maximum_entropy_update
from asyncrl.algorithms.maximum_entropy_update import MaximumEntropyUpdate, squashed_draw
from asyncrl.algorithms.sac import SAC, actor_loss, critic_loss
from asyncrl.interfaces import BoxAction, EnvSpec
from asyncrl.networks.gradients import vector_jacobian_product

SMALL: dict[str, Any] = {"hidden_sizes": (9, 8), "batch_size": SIZE, "prioritized": True}
SPEEDY: dict[str, Any] = {"learning_rate": 3e-3, "tau": 0.1}
DRAW = partial(vector_jacobian_product, squashed_draw)
EPS = 1e-4
"""Keeps rounding of vanishing gradients out of a comparison with autograd."""


def core_of(spec: Any = SPEC, seed: int = 3, **options: Any) -> MaximumEntropyUpdate:
    return SAC(**{**SMALL, **SPEEDY, **options}).make_updater(spec, "cpu", seed)


def without_kernels(spec: Any = SPEC, seed: int = 3, **options: Any) -> MaximumEntropyUpdate:
    """Like `core_of`, with formulas instead of kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maximum_entropy_update, "DrawKernel", lambda *_: DRAW)
        core = MaximumEntropyUpdate(
            *(SAC(**{**SMALL, **SPEEDY, **options}), spec, "cpu", seed),
            critic_loss=critic_loss,
            actor_loss=actor_loss,
        )
        state = core.state_dict()
        core.update(filled_batch(spec=spec))  # makes the buffers
        core.load_state_dict(state)
    return core


def noise_of(core: MaximumEntropyUpdate) -> torch.Tensor:
    assert core._buffers is not None
    return core._buffers.noise.clone()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_critics": 1, "critic_hidden_sizes": (7,)},
    {"num_critics": 3, "hidden_sizes": (9, 8, 7)},
    {"ent_coef": 0.3},
    {"ent_coef_initial": 0.1, "target_entropy": 1.5},
    {"actor_learning_rate": 1e-3},
    {"max_grad_norm": 0.05},
    {"policy_delay": 2},
    {"policy_delay": 3, "actor_learning_rate": 1e-3, "max_grad_norm": 0.05, "num_critics": 3},
]


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_updates_are_those_of_autograd(options: dict[str, Any], kernels: bool) -> None:
    core = (core_of if kernels else without_kernels)(adam_eps=EPS, **options)
    twin = SACTwin(core)
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


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_every_box_and_bytes(kind: str) -> None:
    spec = SPECS[kind]
    core = core_of(spec, adam_eps=EPS)
    twin = SACTwin(core)
    for seed in range(4):
        batch = filled_batch(seed=seed, spec=spec)
        core.update(batch)
        twin.update(batch, noise_of(core), True)
    twin.assert_same(core, rtol=1e-4, atol=1e-5)


def test_a_value_that_cannot_move_counts_in_no_action_value() -> None:
    """It is staged as 0; an actor's value for it would count only in the targets."""
    spec = EnvSpec("stuck", (4,), "float32", BoxAction((-1.0, 7.0, 0.0), (1.0, 7.0, 3.0), (3,)))
    core, other = core_of(spec), core_of(spec)
    for critics in (other.critics, other.target_critics):
        named = critics.state_dict()
        for c in range(2):
            named[f"{c}.0.weight"][:, 5] += 1.0
        critics.load_state_dict(named)
    for seed in range(5):
        batch = filled_batch(seed=seed, spec=spec)
        ours, theirs = core.update(batch).priorities, other.update(batch).priorities
        assert ours is not None and theirs is not None and (ours == theirs).all()
        assert (written(core) == written(other)).all()


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_policy_and_core_agree_on_every_action(kind: str) -> None:
    spec = SPECS[kind]
    core = core_of(spec)
    for seed in range(10):
        core.update(filled_batch(seed=seed, spec=spec))
    policy = core.config.make_policy(spec)
    policy.load_weights(written(core))
    batch = filled_batch(50, seed=1, spec=spec)
    mean = (
        SACTwin(core).policy(SACTwin(core).tensors(batch)["obs"]).chunk(2, dim=1)[0].tanh().detach().numpy()
    )
    low, high = np.array(spec.action.low), np.array(spec.action.high)
    expected = (low + (mean + 1) / 2 * (high - low)).reshape(batch.action.shape)
    np.testing.assert_allclose(policy.greedy(batch.obs), expected, rtol=1e-4, atol=1e-5)


# --- temperature ---


@pytest.mark.parametrize(("wanted", "grows"), [(50.0, True), (-50.0, False)])
def test_temperature_moves_towards_the_wanted_entropy(wanted: float, grows: bool) -> None:
    core = core_of(target_entropy=wanted, ent_coef_initial=0.5)
    seen = []
    for seed in range(6):
        core.update(filled_batch(seed=seed))
        seen.append(core.metrics()["train/ent_coef"])
    assert seen[0] == pytest.approx(0.5)
    assert all((b > a) == grows for a, b in itertools.pairwise(seen))
    assert seen[1] == pytest.approx(0.5 * math.exp(3e-3 if grows else -3e-3), rel=1e-4), "Adam's first step"


@pytest.mark.parametrize("delay", [1, 2])
def test_a_temperature_that_is_given_to_a_resumed_run_counts(delay: int) -> None:
    learned, given = core_of(policy_delay=delay), core_of(seed=4, ent_coef=0.2, policy_delay=delay)
    for seed in range(3):
        learned.update(filled_batch(seed=seed))
    given.load_state_dict(learned.state_dict())
    for seed in range(4):
        given.update(filled_batch(seed=seed))
    assert float(given.state_dict()["log_alpha"]) == pytest.approx(math.log(0.2))


def test_fixed_temperature_stays() -> None:
    core = core_of(ent_coef=0.2)
    for seed in range(4):
        core.update(filled_batch(seed=seed))
    assert core.metrics()["train/ent_coef"] == pytest.approx(0.2)
    assert float(core.state_dict()["log_alpha"]) == pytest.approx(math.log(0.2))


def test_wanted_entropy_is_minus_the_number_of_values() -> None:
    assert core_of().target_entropy == -2.0 and core_of(target_entropy=0.0).target_entropy == 0.0


# --- delays and targets ---


def test_delayed_actor_moves_at_every_third_update() -> None:
    core = core_of(policy_delay=3)
    before = core.state_dict()
    for update in range(1, 7):
        core.update(filled_batch(seed=update))
        after = core.state_dict()
        moved = {
            part: any(not torch.equal(before[part][name], after[part][name]) for name in after[part])
            for part in ("policy", "critics", "target_critics")
        }
        moved["log_alpha"] = before["log_alpha"] != after["log_alpha"]
        acts = update % 3 == 0
        assert moved == {"policy": acts, "log_alpha": acts, "critics": True, "target_critics": True}
        assert ("train/actor_loss" in core.metrics()) == (update >= 3)
        before = after


def test_importance_weight_of_zero_leaves_the_critics_alone() -> None:
    core = core_of(tau=1.0)
    batch = filled_batch()
    batch.weight[:] = 0
    before = core.state_dict()
    core.update(batch)
    after = core.state_dict()
    assert all(torch.equal(before["critics"][name], after["critics"][name]) for name in after["critics"])
    assert not torch.equal(before["policy"]["0.weight"], after["policy"]["0.weight"]), (
        "the actor has no weights"
    )


# --- what every core must do ---


def without_noise(core: MaximumEntropyUpdate, monkeypatch: pytest.MonkeyPatch) -> MaximumEntropyUpdate:
    monkeypatch.setattr(core, "draw", lambda noise: noise.zero_())
    return core


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_permuted_batch_gives_permuted_priorities(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SPECS[kind]
    core, other = (without_noise(core_of(spec), monkeypatch) for _ in range(2))
    batch, order = filled_batch(spec=spec), np.random.default_rng(5).permutation(SIZE)
    ours, theirs = core.update(batch).priorities, other.update(permuted(batch, order)).priorities
    assert ours is not None and theirs is not None and (ours > 0).all()
    assert ours.shape == (SIZE,) and ours.dtype == np.float32
    np.testing.assert_allclose(theirs, ours[order], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(written(other), written(core), rtol=1e-4, atol=1e-5)


def test_uniform_replay_has_no_priorities() -> None:
    assert core_of(prioritized=False).update(filled_batch()).priorities is None


def test_state_round_trips_to_the_same_bits_with_the_noise() -> None:
    core = core_of(policy_delay=2)
    for seed in range(4):  # the other stands elsewhere in the delay, and the actor's turn is not next
        core.update(filled_batch(seed=seed))
    other = core_of(seed=99, policy_delay=2)
    other.update(filled_batch())
    other.load_state_dict(core.state_dict())
    for seed in range(6):
        batch = filled_batch(seed=seed)
        ours, theirs = core.update(batch).priorities, other.update(batch).priorities
        assert ours is not None and theirs is not None and (ours == theirs).all()
        assert (written(core) == written(other)).all()
        assert core.metrics() == other.metrics()
    assert torch.equal(noise_of(core), noise_of(other))


def test_state_of_another_device_leaves_the_generator() -> None:
    core, other = core_of(), core_of(seed=4)
    noise = other.generator.get_state()
    other.load_state_dict({**core.state_dict(), "generator": torch.zeros(16, dtype=torch.uint8)})
    assert torch.equal(other.generator.get_state(), noise) and (written(core) == written(other)).all()


@pytest.mark.parametrize(
    "now", [{"actor_learning_rate": 1e-4}, {"max_grad_norm": 1.0}, {"policy_delay": 2}], ids=str
)
def test_rates_delay_and_clipping_may_change_with_the_optimisers_moments_kept(now: dict[str, Any]) -> None:
    """One optimiser becomes several, and one again."""
    core, several, again = core_of(), core_of(seed=4, **now), core_of(seed=5)
    for seed in range(3):
        core.update(filled_batch(seed=seed))
    several.load_state_dict(core.state_dict())
    again.load_state_dict(several.state_dict())
    for part in range(2):
        (whole,) = (moments[part] for moments in core.vector.moments)
        assert torch.equal(whole, torch.cat([moments[part] for moments in several.vector.moments]))
    core.update(filled_batch(seed=7))
    again.update(filled_batch(seed=7))
    assert (written(core) == written(again)).all()


@pytest.mark.parametrize("foreign", [{"hidden_sizes": (9, 7)}, {"num_critics": 3}], ids=str)
def test_foreign_state_is_refused_and_nothing_written(foreign: dict[str, Any]) -> None:
    core = core_of()
    before = core.state_dict()
    with pytest.raises(ValueError, match="state"):
        core.load_state_dict(core_of(seed=1, **foreign).state_dict())
    with pytest.raises(ValueError, match="state"):
        core.load_state_dict({})
    after = core.state_dict()
    for part in ("policy", "critics", "target_critics"):
        assert all(torch.equal(before[part][name], after[part][name]) for name in after[part])


def test_batch_is_not_kept_and_its_size_may_change() -> None:
    core, other = core_of(), core_of()
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


def test_learning_rate_falls_for_both_networks() -> None:
    core = core_of(
        learning_rate_schedule="linear", learning_rate_updates=2, actor_learning_rate=1e-3, ent_coef=0.1
    )
    weights = [written(core)]
    for seed in range(4):
        core.update(filled_batch(seed=seed))
        weights.append(written(core))
    assert [bool((a != b).any()) for a, b in itertools.pairwise(weights)] == [
        True,
        True,
        False,
        False,
    ]
    assert core.metrics()["train/learning_rate"] == 0.0


@pytest.mark.parametrize("options", [{}, {"policy_delay": 2}], ids=str)
def test_gradient_norm_is_that_before_clipping(options: dict[str, Any]) -> None:
    """Of the first update, before which both cores have the same weights."""
    free = core_of(policy_delay=1, actor_learning_rate=1e-3)
    core = core_of(max_grad_norm=1e-3, **options)
    for each in (free, core):
        each.update(filled_batch())
    gradient = free._gradient if not options else free.critics_gradient
    norm = core.metrics()["train/grad_norm"]
    assert norm == pytest.approx(float(torch.linalg.vector_norm(gradient)), rel=1e-5) and norm > 0.1
    if not options:
        assert norm == pytest.approx(free.metrics()["train/grad_norm"], rel=1e-5)


def test_bad_numbers_show() -> None:
    core, batch = core_of(), filled_batch()
    batch.reward[3] = np.nan
    priorities = core.update(batch).priorities
    assert priorities is not None and np.isnan(priorities[3]) and np.isfinite(priorities[:3]).all()
    assert not np.isfinite(core.metrics()["train/loss"])


@pytest.mark.parametrize("options", [{}, {"policy_delay": 2}], ids=str)
def test_mean_and_largest_of_the_values_are_reported(options: dict[str, Any]) -> None:
    core, filled = core_of(**options), filled_batch()
    twin = SACTwin(core)
    batch = twin.tensors(filled)
    expected = twin.judge(twin.critics, batch["obs"], batch["action"]).detach()
    core.update(filled)
    assert core.metrics()["train/q_mean"] == pytest.approx(float(expected.mean()), rel=1e-4, abs=1e-6)
    assert core.metrics()["train/q_max"] == pytest.approx(float(expected.abs().max()), rel=1e-4)


@pytest.mark.parametrize("options", [{}, {"policy_delay": 2, "max_grad_norm": 1.0}], ids=str)
def test_update_never_looks_at_a_value(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Condition of a CUDA graph: on the meta device, which has no values, everything must run."""
    monkeypatch.setattr(torch, "_fused_adam_", lambda *_, **__: None)  # has no meta kernel
    core = SAC(**{**SMALL, "prioritized": False, **options}).make_updater(SPEC, "meta", 0)
    for _ in range(4):
        core.update(filled_batch())
    with pytest.raises(RuntimeError, match="meta"):
        core.metrics()  # does look


@pytest.mark.skipif(
    not hasattr(torch.backends.mkldnn, "matmul"), reason="this torch has no precision of products to set"
)
def test_medium_precision_is_near_and_set_back() -> None:
    before = torch.backends.mkldnn.matmul.fp32_precision
    wide: dict[str, Any] = {"hidden_sizes": (128, 128), "batch_size": 128, "learning_rate": 1e-3}
    exact, rough = core_of(**wide), core_of(matmul_precision="medium", **wide)
    for seed in range(3):
        for core in (exact, rough):
            core.update(filled_batch(128, seed=seed))
    assert torch.backends.mkldnn.matmul.fp32_precision == before
    np.testing.assert_allclose(written(rough), written(exact), atol=0.01)
    assert (written(rough) != written(exact)).any() == rough.precision.reduced
    for name in ("train/loss", "train/q_mean"):
        assert rough.metrics()[name] == pytest.approx(exact.metrics()[name], rel=0.05, abs=0.01)


def test_correlated_actions_are_an_option() -> None:
    assert SAC(action_correlation=0.9).make_policy(SPEC).correlation == 0.9
    assert SAC().make_policy(SPEC).correlation == 0.0
    for bad in (1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match="action_correlation must be"):
            SAC(action_correlation=bad)
