"""Contract of every algorithm that learns from segments; every registered algorithm is tested."""

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from segment_rig import (
    SPECS,
    Guessing,
    acted,
    batch_of,
    iterate,
    observations,
    record,
    spec_of,
    weights_of,
)

from asyncrl.algorithms import ALGORITHMS
from asyncrl.algorithms.on_policy import OnPolicy
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import (
    RESET,
    TERMINATED,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    MultiDiscreteAction,
    Segment,
)
from asyncrl.networks.distributions import log_tanh_slope
from asyncrl.options import option_help
from asyncrl.protocols import Policy

NAMES = sorted(name for name, made in ALGORITHMS.items() if made.update_loop == "segments")

ACTOR_CRITICS = [name for name in NAMES if issubclass(ALGORITHMS[name], OnPolicy)]
CASES = [
    (name, kind)
    for name in NAMES
    for kind, spec in sorted(SPECS.items())
    if isinstance(spec.action, ALGORITHMS[name].action_kinds)
]

for_all = pytest.mark.parametrize("name", NAMES)
for_actor_critics = pytest.mark.parametrize("name", ACTOR_CRITICS)
for_every_kind = pytest.mark.parametrize(("name", "kind"), CASES)
# An update counts actions from 0 whatever their start is, and multiplies all bytes by a factor: 1 for cells.
for_updates = pytest.mark.parametrize(
    ("name", "kind"), [case for case in CASES if case[1] not in ("shifted", "cells")]
)
for_every_kind_of_actor_critics = pytest.mark.parametrize(
    ("name", "kind"), [case for case in CASES if case[0] in ACTOR_CRITICS]
)


def made(name: str, kind: str, seed: int = 0, **options: Any) -> tuple[Any, EnvSpec, Any]:
    algorithm = record(name, kind, **options)
    spec = spec_of(name, SPECS[kind])
    return algorithm, spec, algorithm.make_updater(spec, "cpu", seed)


@for_all
def test_record_is_frozen_picklable_and_documented(name: str) -> None:
    algorithm = record(name)
    assert algorithm.name == name and pickle.loads(pickle.dumps(algorithm)) == algorithm
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.segment_length = 3
    for option in option_help(ALGORITHMS[name]).values():
        assert option.help.endswith("."), option.name
    assert algorithm.row_correction in ("none", "power", "exponential")
    assert algorithm.samples_per_insert is None or algorithm.samples_per_insert > 0


@for_all
@pytest.mark.parametrize("kind", [DiscreteAction, MultiDiscreteAction, BoxAction])
def test_kinds_of_action_are_those_that_check_lets_through(
    name: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ALGORITHMS[name]
    others = tuple(other for other in (DiscreteAction, MultiDiscreteAction, BoxAction) if other is not kind)
    for kinds in (made.action_kinds, (kind,), others):
        monkeypatch.setattr(made, "action_kinds", kinds)
        for spec in (spec_of(name, spec) for spec in SPECS.values() if isinstance(spec.action, kind)):
            if issubclass(kind, kinds):
                made().check(spec)
                continue
            for refused in (made().check, made().layout, made().make_policy):
                with pytest.raises(SpacesDoNotFit, match=rf"{name} needs a .+ action space"):
                    refused(spec)


@for_actor_critics
def test_bounds_are_asked_for_where_they_are_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ALGORITHMS[name]().check(spec_of(name, SPECS["wide"]))
    with pytest.raises(SpacesDoNotFit, match=rf"{name}\.squashed needs finite bounds"):
        ALGORITHMS[name](squashed=True).check(spec_of(name, SPECS["wide"]))
    monkeypatch.setattr(ALGORITHMS[name], "needs_bounds", True)
    with pytest.raises(SpacesDoNotFit, match=rf"{name} needs finite bounds, and value 0"):
        ALGORITHMS[name]().check(spec_of(name, SPECS["wide"]))
    ALGORITHMS[name]().check(spec_of(name, SPECS["box"]))
    ALGORITHMS[name]().check(spec_of(name, SPECS["discrete"]))


@for_every_kind
def test_policy_acts_with_the_right_shapes(name: str, kind: str) -> None:
    algorithm, spec, core = made(name, kind)
    policy = algorithm.make_policy(spec)
    assert isinstance(policy, Policy)
    assert core.weight_count == policy.weight_count == len(weights_of(core))
    policy.load_weights(weights_of(core))
    policy = pickle.loads(pickle.dumps(policy))
    rng = np.random.default_rng(0)
    for streams in (1, 7):
        policy.assign_streams(2, streams, 10)
        obs = observations(spec, (streams,), rng)
        kept = obs.copy()
        action, extras = policy.act(obs, rng, total_steps=0)
        assert action.shape == (streams, *spec.action.shape) and action.dtype == spec.action.dtype
        fields = {f.name: f for f in algorithm.extra_fields(spec)}
        assert set(extras) == set(fields)
        for field, value in extras.items():
            assert value.shape == (streams, *fields[field].shape) and value.dtype == fields[field].dtype
        assert policy.greedy(obs).shape == action.shape
        assert (obs == kept).all() and policy.exploration_rate >= 0


@for_every_kind
def test_weights_written_in_place_act_as_loaded_ones_do(name: str, kind: str) -> None:
    """An actor copies new weights directly into `weights`; its process got the policy as a pickle."""
    algorithm, spec, core = made(name, kind)
    loaded, refreshed = (pickle.loads(pickle.dumps(algorithm.make_policy(spec))) for _ in range(2))
    loaded.load_weights(weights_of(core))
    own = refreshed.weights
    assert own.shape == (refreshed.weight_count,) and own.dtype == np.float32
    assert own.flags.c_contiguous and own.flags.writeable
    own[:] = weights_of(core)
    refreshed.weights_changed()
    assert refreshed.weights is own and loaded.exploration_rate == refreshed.exploration_rate
    obs = observations(spec, (7,), np.random.default_rng(0))
    for policy in (loaded, refreshed):
        policy.assign_streams(0, 7, 7)
    assert (loaded.greedy(obs) == refreshed.greedy(obs)).all()
    first, second = (policy.act(obs, np.random.default_rng(1), 0) for policy in (loaded, refreshed))
    assert (first[0] == second[0]).all()
    for field, values in first[1].items():
        assert (values == second[1][field]).all()


@for_every_kind_of_actor_critics
def test_policy_and_core_agree_on_log_probabilities(name: str, kind: str) -> None:
    algorithm, spec, core = made(name, kind)
    for seed in range(4):  # so that the statistics of the observations are not what they began with
        iterate(core, batch_of(algorithm, spec, core, seed))
    segment = acted(algorithm, spec, weights_of(core), seed=9, envs=5)
    with torch.no_grad():
        forward = core.nets.make_pass(segment.reward.size, gradient=False)
        core.nets.normalized(segment.obs, forward.x.numpy())
        out, value = forward.forward()
        taken = segment.extras.get("latent", segment.action)
        taken = torch.from_numpy(taken.reshape(out.shape[0], *taken.shape[2:]))
        taken = taken.view(out.shape) if core.nets.layout.gaussian else taken
        ours, _ = core.nets.distribution(out, taken, core.nets.log_std)
        if core.nets.layout.squashed:
            ours = ours - log_tanh_slope(taken).sum(dim=1)
    theirs = segment.extras["log_prob"].reshape(-1)
    assert value.shape == ours.shape == theirs.shape and np.ptp(theirs) > 0.01
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5, atol=1e-5)


@for_updates
def test_seed_decides_every_number(name: str, kind: str) -> None:
    algorithm, spec, first = made(name, kind, seed=1)
    again, other = (algorithm.make_updater(spec, "cpu", seed) for seed in (1, 2))
    assert (weights_of(first) == weights_of(again)).all() and (weights_of(first) != weights_of(other)).any()
    for seed in range(3):
        segments = batch_of(algorithm, spec, first, seed)
        iterate(first, segments)
        iterate(again, segments)
    assert (weights_of(first) == weights_of(again)).all() and first.metrics() == again.metrics()


@for_updates
def test_value_loss_falls_on_fixed_segments(name: str, kind: str) -> None:
    algorithm, spec, core = made(name, kind, gamma=0.0, max_grad_norm=None)
    segments = batch_of(algorithm, spec, core)
    for segment in segments:
        # The statistics of the observations stay where they were, so that the inputs are fixed as well.
        segment.fresh = False
        obs = segment.obs.reshape(*segment.reward.shape, -1).astype(np.float32)
        segment.reward = np.tanh(obs.mean(axis=2) - obs.mean())
    iterate(core, segments)
    loss = "train/value_loss" if name in ACTOR_CRITICS else "train/loss"
    first = core.metrics()[loss]
    for _ in range(60):
        iterate(core, segments)
    assert core.metrics()[loss] < 0.5 * first


@for_updates
def test_published_weights_are_a_copy(name: str, kind: str) -> None:
    algorithm, spec, core = made(name, kind)
    published = weights_of(core)
    kept = published.copy()
    iterate(core, batch_of(algorithm, spec, core))
    assert (published == kept).all() and (weights_of(core) != kept).any()
    now = weights_of(core)
    weights_of(core)[:] = 0
    assert (weights_of(core) == now).all()


@for_updates
def test_segments_are_neither_kept_nor_written(name: str, kind: str) -> None:
    algorithm, spec, core = made(name, kind)
    _, _, other = made(name, kind)
    segments = batch_of(algorithm, spec, core)
    originals = copy.deepcopy(segments)
    core.begin(segments, 0.0)
    other.begin(originals, 0.0)
    for segment, original in zip(segments, originals, strict=True):
        for field in ("obs", "last_obs", "action", "reward", "flags", "weight", "version"):
            assert (getattr(segment, field) == getattr(original, field)).all(), field
            getattr(segment, field)[...] = 1
        for value in segment.extras.values():
            value[...] = -1
    while core.step():
        assert other.step()
    assert not other.step() and (weights_of(core) == weights_of(other)).all()


@for_updates
@pytest.mark.parametrize(
    "at", [0, 1, 3, None], ids=["before a step", "after one", "later", "between iterations"]
)
def test_state_round_trips_to_the_same_numbers(name: str, kind: str, at: int | None) -> None:
    algorithm, spec, core = made(name, kind, epochs=3)
    batches = [batch_of(algorithm, spec, core, seed) for seed in range(4)]
    for batch in batches[:2]:
        iterate(core, batch)
    if at is not None:
        core.begin(batches[2], 0.3)
        for _ in range(at):
            assert core.step()
    other = algorithm.make_updater(spec, "cpu", 99)
    other.load_state_dict(pickle.loads(pickle.dumps(core.state_dict())))
    assert (weights_of(core) == weights_of(other)).all() and core.samples == other.samples
    if at is not None:
        going = True
        while going:
            going = core.step()
            assert other.step() == going
            assert (weights_of(core) == weights_of(other)).all() and core.metrics() == other.metrics()
    for batch in batches:
        iterate(core, batch, 0.5)
        iterate(other, batch, 0.5)
        assert (weights_of(core) == weights_of(other)).all() and core.metrics() == other.metrics()
    assert core.samples == other.samples


@for_updates
def test_state_is_a_copy_and_foreign_state_is_refused(name: str, kind: str) -> None:
    algorithm, spec, core = made(name, kind)
    batch = batch_of(algorithm, spec, core)
    core.begin(batch, 0.0)
    state = core.state_dict()
    frozen = pickle.dumps(state)
    while core.step():
        pass
    assert pickle.dumps(state) == frozen
    wider = record(name, kind, hidden_sizes=(17, 16)).make_updater(spec, "cpu", 0)
    before = weights_of(wider)
    for foreign in (state, {}, {**state, "more": 1}):
        with pytest.raises(ValueError):
            wider.load_state_dict(foreign)
        assert (weights_of(wider) == before).all()


@for_updates
def test_metrics_before_and_after_the_first_step(name: str, kind: str) -> None:
    algorithm, spec, core = made(name, kind)
    assert "train/loss" not in core.metrics() and not core.batch()
    iterate(core, batch_of(algorithm, spec, core))
    metrics = core.metrics()
    own = {"train/entropy", "train/value_loss"} if name in ACTOR_CRITICS else {"train/q_mean"}
    assert {"train/loss", "train/learning_rate"} | own <= set(metrics)
    assert all(type(value) is float and np.isfinite(value) for value in metrics.values())
    assert all(isinstance(array, np.ndarray) for array in core.batch().values()) and core.batch()


@for_all
def test_bad_numbers_show_in_the_loss(name: str) -> None:
    algorithm, spec, core = made(name, "discrete", epochs=1)
    segments = batch_of(algorithm, spec, core)
    segments[0].reward[segments[0].flags == 0] = np.nan
    iterate(core, segments)
    assert not np.isfinite(core.metrics()["train/loss"])


@for_all
def test_samples_leave_reset_rows_out(name: str) -> None:
    algorithm, spec, core = made(name, "discrete", epochs=3)
    segments = batch_of(algorithm, spec, core)
    iterate(core, segments)
    steps = sum(segment.steps for segment in segments)
    assert 0 < steps < sum(segment.flags.size for segment in segments) and core.samples == 3 * steps


@for_all
def test_shape_of_a_batch_may_change(name: str) -> None:
    algorithm, spec, core = made(name, "discrete", normalize_rewards=False)  # which is a state of each stream
    weights = weights_of(core)
    for envs, count in ((3, 2), (1, 1), (5, 3), (3, 2)):
        iterate(core, [acted(algorithm, spec, weights, seed=r, envs=envs, ring=r) for r in range(count)])
    assert np.isfinite(list(core.metrics().values())).all()


@for_all
def test_steps_beyond_an_iteration_are_refused(name: str) -> None:
    algorithm, spec, core = made(name, "discrete")
    with pytest.raises(RuntimeError, match="begin"):
        core.step()
    iterate(core, batch_of(algorithm, spec, core))
    with pytest.raises(RuntimeError, match="begin"):
        core.step()


def poisoned(segment: Segment) -> Segment:
    """Copy with huge values in all that nothing may depend on in RESET rows; observations whose value is used stay."""
    result = copy.deepcopy(segment)
    reset = (result.flags & RESET) != 0
    assert reset.any()
    result.reward[reset] = 1e6
    if "log_prob" in result.extras:
        result.extras["log_prob"][reset] = -1e6
    if result.action.dtype == np.float32:
        result.action[reset] = 1e3
    else:
        result.action[reset] = 0
    if "latent" in result.extras:
        result.extras["latent"][reset] = 1e3
    ended = np.zeros_like(reset)
    ended[:, 1:] = (result.flags[:, :-1] & TERMINATED) != 0
    assert (reset & ended).any()
    result.obs[reset & ended] = 255 if result.obs.dtype == np.uint8 else 1e6
    return result


@for_updates
def test_reset_rows_never_enter_a_gradient(name: str, kind: str) -> None:
    algorithm, spec, core = made(name, kind)
    _, _, other = made(name, kind)
    for seed in range(2):
        segments = [acted(algorithm, spec, weights_of(core), seed=seed, envs=6)]
        iterate(core, segments)
        iterate(other, [poisoned(segment) for segment in segments])
    assert (weights_of(core) == weights_of(other)).all()


@for_all
def test_reset_rows_are_bootstrapped_of(name: str) -> None:
    algorithm, spec, core = made(name, "discrete")
    _, _, other = made(name, "discrete")
    segments = batch_of(algorithm, spec, core)
    changed = copy.deepcopy(segments)
    for segment in changed:
        segment.obs[:, 1:][(segment.flags[:, :-1] & 2) != 0] += 1.0
    iterate(core, segments)
    iterate(other, changed)
    assert (weights_of(core) != weights_of(other)).any()


@for_all
def test_weight_zero_takes_a_row_out(name: str) -> None:
    options: Any = {"normalize_rewards": False, "gamma": 0.0}
    if name in ACTOR_CRITICS:
        options["normalize_advantages"] = False
    algorithm, spec, core = made(name, "discrete", **options)
    _, _, other = made(name, "discrete", **options)
    segments = batch_of(algorithm, spec, core)
    changed = copy.deepcopy(segments)
    for segment, poison in zip(segments, changed, strict=True):
        segment.weight[5:9] = poison.weight[5:9] = 0.0
        poison.reward[:, 5:9] = 100.0
    iterate(core, segments)
    iterate(other, changed)
    assert (weights_of(core) == weights_of(other)).all()


def matches(spec: EnvSpec) -> Any:
    """Reward 1 if the action equals the observation."""

    def reward(obs: np.ndarray, action: np.ndarray) -> np.ndarray:
        if isinstance(spec.action, BoxAction):
            return 1.0 - ((action - obs) ** 2).sum(axis=1)
        if isinstance(spec.action, MultiDiscreteAction):
            digits = np.stack([obs[:, :2].argmax(axis=1), obs[:, 2:].argmax(axis=1)], axis=1)
            return (action == digits).mean(axis=1)
        return (action == obs.argmax(axis=1)).astype(np.float32)

    return reward


def one_hot(shape: tuple[int, ...], rng: np.random.Generator, sizes: tuple[int, ...] = (4,)) -> np.ndarray:
    return np.concatenate([np.eye(n, dtype=np.float32)[rng.integers(0, n, shape)] for n in sizes], axis=-1)


IDENTITIES: dict[str, tuple[EnvSpec, Any, float]] = {
    "discrete": (EnvSpec("identity", (4,), "float32", DiscreteAction(4)), one_hot, 0.99),
    "multi": (
        EnvSpec("identities", (5,), "float32", MultiDiscreteAction((2, 3))),
        lambda shape, rng: one_hot(shape, rng, (2, 3)),
        0.99,
    ),
    "box": (
        EnvSpec("echo", (2,), "float32", BoxAction((-1.0,) * 2, (1.0,) * 2, (2,))),
        lambda shape, rng: rng.uniform(-0.8, 0.8, (*shape, 2)).astype(np.float32),
        0.95,
    ),
}


@pytest.mark.parametrize(
    ("name", "identity", "squashed"),
    [
        (name, identity, squashed)
        for name in NAMES
        for identity, squashed in (("discrete", False), ("multi", False), ("box", False), ("box", True))
        if isinstance(IDENTITIES[identity][0].action, ALGORITHMS[name].action_kinds)
    ],
)
def test_identity_is_learned(name: str, identity: str, squashed: bool) -> None:
    spec, observe, wanted = IDENTITIES[identity]
    spec = spec_of(name, spec)
    own: dict[str, Any] = {"squashed": squashed, "initial_log_std": -0.5} if name in ACTOR_CRITICS else {}
    algorithm = record(name, gamma=0.5, segment_length=16, **own)
    env = Guessing(spec, matches(spec), observe)
    core, policy = algorithm.make_updater(spec, "cpu", 0), algorithm.make_policy(spec)
    rng, reached = np.random.default_rng(0), -np.inf
    for _ in range(400):
        policy.load_weights(weights_of(core))
        reached = env.greedy_reward(policy)
        if reached >= wanted:
            break
        iterate(core, [env.segment(policy, algorithm.segment_length, rng)])
    assert reached >= wanted


@for_all
def test_a_bound_below_the_lag_of_lockstep_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="max_staleness must be at least 1 with discipline 'lockstep'"):
        ALGORITHMS[name](discipline="lockstep", max_staleness=0)
    ALGORITHMS[name](discipline="lockstep", max_staleness=1)
    ALGORITHMS[name](discipline="relaxed", max_staleness=0)


@for_actor_critics
def test_further_passes_see_observations_as_they_are_published(name: str) -> None:
    algorithm, spec = record(name, "wide", epochs=1, reuse_epochs=1), spec_of(name, SPECS["wide"])
    core = algorithm.make_updater(spec, "cpu", 0)
    segments = batch_of(algorithm, spec, core)
    iterate(core, segments)
    mean, scale = core.nets.statistics
    assert (mean != 0).all() and core.reuse()
    obs = np.concatenate([segment.obs.reshape(-1, 2) for segment in segments])
    np.testing.assert_allclose(core.batch()["obs"], np.clip((obs - mean) * scale, -10, 10), atol=1e-5)


def small_module(inputs: int, outputs: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, 8), torch.nn.LayerNorm(8), torch.nn.Tanh(), torch.nn.Linear(8, outputs)
    )


@for_actor_critics
@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_a_users_network_is_policy_and_value(name: str, kind: str) -> None:
    options: dict[str, Any] = {"gamma": 0.0, "max_grad_norm": None, "epochs": ALGORITHMS[name].epochs}
    algorithm, spec, core = made(name, kind, network=small_module, **options)
    assert {"1.weight", "3.bias"} <= set(core.nets.state_dict()["policy"]) & set(
        core.nets.state_dict()["value"]
    )
    segments, policy = batch_of(algorithm, spec, core), algorithm.make_policy(spec)
    policy.load_weights(weights_of(core))
    assert policy.weight_count == core.weight_count
    before = core.nets.parameters.clone()
    iterate(core, segments)
    first = core.metrics()["train/value_loss"]
    assert (core.nets.parameters != before).float().mean() > 0.9
    for _ in range(40):
        iterate(core, segments)
    assert core.metrics()["train/value_loss"] < first


def restless_module(inputs: int, outputs: int) -> torch.nn.Module:
    layers = torch.nn.BatchNorm1d(inputs), torch.nn.Linear(inputs, 16), torch.nn.Dropout(0.5)
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, outputs))


@pytest.mark.parametrize("recurrent", [None, "gru"])
@for_all
def test_rollouts_are_evaluated_by_the_network_that_acts(name: str, recurrent: str | None) -> None:
    """Without dropout, and with the running statistics of batch normalisation, which only gradient steps move."""
    if recurrent is not None and (ALGORITHMS[name].needs_agents or name not in ACTOR_CRITICS):
        return
    options: dict[str, Any] = {} if recurrent is None else {"recurrent": recurrent, "recurrent_size": 8}
    algorithm = record(name, network=restless_module, **options)
    spec = spec_of(name, SPECS["discrete"])
    core = algorithm.make_updater(spec, "cpu", 0)
    before = weights_of(core)
    segments = batch_of(algorithm, spec, core, 0)
    core.begin(segments, 0.0)
    rollout = core._rollout
    if name in ACTOR_CRITICS:
        first, second = ([part.copy() for part in rollout.evaluate(log_prob=True)] for _ in range(2))
        if recurrent is None:
            drawn = np.concatenate([segment.extras["log_prob"] for segment in segments])[rollout.trained]
            np.testing.assert_allclose(first[2][rollout.trained], drawn, rtol=1e-4, atol=1e-5)
    else:
        first, second = ([part.copy() for part in rollout.greatest_values()] for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True)), "dropout is active"
    assert (weights_of(core) == before).all(), "the statistics have moved"


@for_actor_critics
@pytest.mark.parametrize(
    ("old", "new"),
    [("entropy_coefficient", "ent_coef"), ("value_coefficient", "vf_coef"), ("trace_lambda", "gae_lambda")],
)
def test_old_names_of_options_are_refused(name: str, old: str, new: str) -> None:
    assert new in option_help(ALGORITHMS[name])
    with pytest.raises(TypeError, match=old):
        ALGORITHMS[name](**{old: 0.5})


@for_all
def test_a_batch_of_reset_rows_alone_has_finite_metrics(name: str) -> None:
    algorithm, spec, core = made(name, "discrete", segment_length=1)
    segment = acted(algorithm, spec, weights_of(core), envs=1)
    segment.flags[:] = RESET
    iterate(core, [segment])
    assert all(np.isfinite(list(core.metrics().values()))), core.metrics()


def unpaid(algorithm: Any, spec: EnvSpec, core: Any, seed: int = 0) -> list[Segment]:
    """Segments whose rewards are all 0."""
    return [
        dataclasses.replace(segment, reward=np.zeros_like(segment.reward))
        for segment in batch_of(algorithm, spec, core, seed)
    ]


@for_actor_critics
@pytest.mark.parametrize("kind", ["discrete", "multi"])
def test_before_the_first_reward_the_policy_stays_and_values_become_0(name: str, kind: str) -> None:
    """Every return is 0 then: what the values say is noise, and standardised advantages would follow it."""
    algorithm, spec, core = made(name, kind, ent_coef=0.0)
    start, errors = weights_of(core), []
    for seed in range(6):
        iterate(core, unpaid(algorithm, spec, core, seed))
        errors.append(core.metrics()["train/value_loss"])
    assert np.array_equal(weights_of(core), start)
    assert errors[-1] < errors[0]
    resumed = algorithm.make_updater(spec, "cpu", 1)
    resumed.load_state_dict(core.state_dict())
    iterate(resumed, unpaid(algorithm, spec, core, 7))
    assert np.array_equal(weights_of(resumed), start)
    iterate(core, batch_of(algorithm, spec, core, 8))
    assert not np.array_equal(weights_of(core), start), "a reward was seen"


@for_actor_critics
def test_after_a_reward_segments_without_one_count(name: str) -> None:
    algorithm, spec, core = made(name, "discrete", ent_coef=0.0)
    iterate(core, batch_of(algorithm, spec, core))
    old = core.state_dict()
    del old["rewarded"]  # as checkpoints from before
    for state in (core.state_dict(), old):
        resumed = algorithm.make_updater(spec, "cpu", 1)
        resumed.load_state_dict(state)
        iterate(resumed, unpaid(algorithm, spec, resumed, 1))
        assert resumed._rollout.rewarded  # the weights would move by Adam's momentum alone


@for_actor_critics
def test_values_that_were_learned_elsewhere_count_before_the_first_reward(name: str) -> None:
    algorithm, spec, core = made(name, "discrete", ent_coef=0.0)
    if (critics := core.critic_weights()) is None:
        pytest.skip("its critic sees all agents")
    core.begin_with_critics(critics)
    start = weights_of(core)
    iterate(core, unpaid(algorithm, spec, core))
    assert not np.array_equal(weights_of(core), start)
