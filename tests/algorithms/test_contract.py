"""Contract of every algorithm that learns from replay; every registered algorithm is tested."""

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from asyncrl.algorithms import ALGORITHMS
from asyncrl.interfaces import (
    Agent,
    Batch,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    JointBatch,
    JointSequenceBatch,
    SequenceBatch,
    SequenceShape,
)
from asyncrl.networks.matmul_precision import MatmulPrecision
from asyncrl.networks.optimizer import FlatAdam
from asyncrl.options import option_help
from asyncrl.protocols import Algorithm, Policy, ReplayUpdater

SIZE = 32
SPECS = {
    "vector": EnvSpec("vector", (4,), "float32", DiscreteAction(3)),
    "shifted": EnvSpec("shifted", (2,), "float32", DiscreteAction(2, start=5)),
    "image": EnvSpec("image", (3, 4), "uint8", DiscreteAction(4)),
    "cells": EnvSpec("cells", (3, 4), "uint8", DiscreteAction(4), observation_kind="values"),
    "box": EnvSpec("box", (5,), "float32", BoxAction((-1.0, -2.0, 0.0), (1.0, 6.0, 0.5), (3,))),
    "image_box": EnvSpec("image_box", (3, 4), "uint8", BoxAction((-2.0,) * 2, (2.0,) * 2, (1, 2))),
}

NAMES = sorted(name for name, record in ALGORITHMS.items() if record.update_loop != "segments")
RECURRENT = [("vdn-gru", "vector"), ("qmix-lstm", "image")]
"""Algorithms with an option `recurrent` and its value, and the environment."""


def class_of(name: str) -> Any:
    """Record of an algorithm; "vdn-gru" is VDN with a GRU."""
    return ALGORITHMS[name.split("-")[0]]


CASES = [
    (name, kind)
    for name in NAMES
    for kind, spec in sorted(SPECS.items())
    if isinstance(spec.action, class_of(name).action_kinds)
] + RECURRENT

for_all = pytest.mark.parametrize("name", [*NAMES, *(name for name, _ in RECURRENT)])
for_every_kind = pytest.mark.parametrize(("name", "kind"), CASES)
# An update counts actions from 0 whatever their start is, and multiplies all bytes by a factor: 1 for cells.
for_updates = pytest.mark.parametrize(
    ("name", "kind"), [case for case in CASES if case[1] not in ("shifted", "cells")]
)


def spec_of(name: str, kind: str) -> EnvSpec:
    """Environment of that kind, of three agents if the algorithm needs several."""
    agents = tuple(map(Agent, "abc")) if class_of(name).needs_agents else ()
    return dataclasses.replace(SPECS[kind], agents=agents)


def record(name: str, **overrides: Any) -> Algorithm:
    sizes: dict[str, Any] = {"hidden_sizes": (16, 16), "batch_size": SIZE}
    name, _, cell = name.partition("-")
    if cell:
        sizes |= {"recurrent": cell}
    if cell or ALGORITHMS[name].update_loop == "sequences":
        sizes |= {"recurrent_size": 12, "sequence_length": 4, "burn_in": 3, "n_step": 2}
    if name == "crossq":  # 512 wide by default
        sizes |= {"critic_hidden_sizes": (16, 16)}
    given = {**sizes, **overrides}
    if (
        ALGORITHMS[name].update_loop == "dataset"
    ):  # no priorities, BC has no targets; statistics come with the data
        given = {"normalize_observations": False, **given}
        known = {field.name for field in dataclasses.fields(ALGORITHMS[name])}  # type: ignore[arg-type]
        given = {option: value for option, value in given.items() if option in known}
    made: Algorithm = ALGORITHMS[name](**given)
    return made


def actions(spec: EnvSpec, count: int, rng: np.random.Generator) -> np.ndarray:
    """Random actions in storage form, within the box if there is one."""
    if isinstance(spec.action, DiscreteAction):
        return rng.integers(0, spec.action.n, count)
    assert isinstance(spec.action, BoxAction)
    low, high = (np.array(bound, np.float32) for bound in (spec.action.low, spec.action.high))
    return rng.uniform(low, high, (count, len(low))).astype(np.float32).reshape(count, *spec.action.shape)


def lies_within(spec: EnvSpec, action: np.ndarray) -> bool:
    if isinstance(spec.action, DiscreteAction):
        return bool(((action >= 0) & (action < spec.action.n)).all())
    assert isinstance(spec.action, BoxAction)
    flat = action.reshape(len(action), -1)
    return bool(((flat >= np.array(spec.action.low)) & (flat <= np.array(spec.action.high))).all())


def observations(spec: EnvSpec, count: int, rng: np.random.Generator) -> np.ndarray:
    shape = (count, *spec.observation_shape)
    if spec.observation_dtype == "uint8":
        return rng.integers(0, 11 if spec.byte_factor == 1 else 256, shape, dtype=np.uint8)
    return rng.normal(size=shape).astype(spec.observation_dtype)


def filled_batch(algorithm: Any, spec: EnvSpec, seed: int = 0, size: int = SIZE) -> Any:
    """A batch of random transitions or sequences, of one agent or of all, of whom some wait."""
    rng = np.random.default_rng(seed)
    fields = algorithm.extra_fields(spec)
    if algorithm.update_loop == "sequences":
        return filled_sequences(algorithm.sequence_shape, spec, fields, rng, size)
    if algorithm.update_loop == "joint" and algorithm.sequence_shape is not None:
        return filled_joint_sequences(algorithm.sequence_shape, spec, fields, rng, size)
    if algorithm.update_loop == "joint":
        return filled_joint(spec, fields, rng, size)
    batch = Batch.allocate(size, spec, fields)
    batch.obs[:], batch.next_obs[:] = observations(spec, size, rng), observations(spec, size, rng)
    batch.action[:] = actions(spec, size, rng)
    fill_rest(batch, rng)
    return batch


def filled_sequences(
    shape: SequenceShape, spec: EnvSpec, fields: Any, rng: np.random.Generator, size: int
) -> SequenceBatch:
    """Sequences with episodes that begin anywhere, and rows that are not trained on."""
    batch = SequenceBatch.allocate(size, shape, spec, fields)
    batch.obs[:] = observations(spec, size * shape.rows, rng).reshape(batch.obs.shape)
    batch.action[:] = actions(spec, batch.action.size, rng).reshape(batch.action.shape)
    batch.begins[:] = rng.random(batch.begins.shape) < 0.2
    batch.begins[:, 0] = False
    batch.trained[:] = rng.random(batch.trained.shape) < 0.8
    batch.trained[:, 0] = True
    rows = shape.burn_in + np.arange(shape.length)
    batch.bootstrap[:] = rows + rng.integers(1, shape.n_step + 1, batch.bootstrap.shape)
    fill_rest(batch, rng)
    return batch


def filled_joint_sequences(
    shape: SequenceShape, spec: EnvSpec, fields: Any, rng: np.random.Generator, size: int, states: int = 0
) -> JointSequenceBatch:
    """Joint sequences whose agents wait now and then, each from the random sequences of one agent."""
    batch = JointSequenceBatch.allocate(size, shape, spec, fields, states)
    each = filled_sequences(shape, spec, fields, rng, size * spec.num_agents)
    each.reward[:], each.discount[:] = each.reward * each.trained, each.discount * each.trained
    row = np.broadcast_to(shape.burn_in + np.arange(shape.length), each.bootstrap.shape)
    each.bootstrap[~each.trained] = row[~each.trained]
    for name in ("obs", "begins", "action", "reward", "discount", "bootstrap", "trained"):
        to = getattr(batch, name)
        to[:] = getattr(each, name).reshape(to.shape)
    for name, values in batch.extras.items():
        values[:] = each.extras[name].reshape(values.shape)
    batch.weight[:] = rng.random(size)
    batch.ids[:], batch.version[:], batch.policy_updates[:] = np.arange(size), 0, 0
    batch.state[:] = rng.normal(size=batch.state.shape)
    return batch


def filled_joint(spec: EnvSpec, fields: Any, rng: np.random.Generator, size: int) -> JointBatch:
    batch = JointBatch.allocate(size, spec, fields)
    for rows in (batch.obs, batch.next_obs):
        rows[:] = observations(spec, size * spec.num_agents, rng).reshape(rows.shape)
    batch.action[:] = actions(spec, size * spec.num_agents, rng).reshape(batch.action.shape)
    batch.trained[:] = rng.random(batch.trained.shape) < 0.7
    batch.trained[:, 0] = True
    fill_rest(batch, rng)
    batch.reward[:], batch.discount[:] = batch.reward * batch.trained, batch.discount * batch.trained
    return batch


def fill_rest(batch: Any, rng: np.random.Generator) -> None:
    batch.reward[:] = rng.normal(size=batch.reward.shape)
    batch.discount[:] = np.where(rng.random(batch.discount.shape) < 0.5, 0.0, 0.9)
    batch.weight[:] = rng.random(batch.size)
    batch.ids[:], batch.version[:], batch.policy_updates[:] = np.arange(batch.size), 0, 0
    for values in batch.extras.values():
        values[:] = rng.normal(size=values.shape)


def arrays_of(batch: Any) -> dict[str, np.ndarray]:
    """Every array of a batch by name."""
    own = {name: value for name, value in vars(batch).items() if isinstance(value, np.ndarray)}
    return own | dict(batch.extras)


def permuted(batch: Any, order: np.ndarray) -> Any:
    own = {name: value[order] for name, value in vars(batch).items() if isinstance(value, np.ndarray)}
    extras = {name: value[order] for name, value in batch.extras.items()}
    return dataclasses.replace(batch, **own, extras=extras)


def weights_of(core: ReplayUpdater) -> np.ndarray:
    out = np.full(core.weight_count, np.nan, np.float32)
    core.write_weights(out)
    assert np.isfinite(out).all(), "every weight is written"
    return out


@for_all
def test_record_is_frozen_picklable_and_documented(name: str) -> None:
    algorithm = record(name)
    assert algorithm.name == name.split("-")[0] and pickle.loads(pickle.dumps(algorithm)) == algorithm
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.batch_size = 3  # type: ignore[attr-defined]
    for option in option_help(class_of(name)).values():
        assert option.help.endswith("."), option.name


@for_every_kind
def test_policy_acts_with_the_right_shapes(name: str, kind: str) -> None:
    algorithm, spec = record(name), spec_of(name, kind)
    policy = algorithm.make_policy(spec)
    assert isinstance(policy, Policy)
    policy.load_weights(weights_of(algorithm.make_updater(spec, "cpu", 0)))
    policy = pickle.loads(pickle.dumps(policy))
    rng = np.random.default_rng(0)
    for streams in (1, 7):
        policy.assign_streams(2, streams, 10)
        obs = observations(spec, streams, rng)
        kept = obs.copy()
        action, extras = policy.act(obs, rng, total_steps=0)
        assert action.shape == (streams, *spec.action.shape) and action.dtype == spec.action.dtype
        assert lies_within(spec, action), "storage form counts from 0, and a box has bounds"
        if algorithm.update_loop != "dataset":  # its rows are not written by actors
            assert set(extras) == {field.name for field in algorithm.extra_fields(spec)}
        greedy = policy.greedy(obs)
        assert greedy.shape == action.shape and greedy.dtype == action.dtype and lies_within(spec, greedy)
        assert (obs == kept).all() and 0 <= policy.exploration_rate <= 1


@for_every_kind
def test_weights_written_in_place_act_as_loaded_ones_do(name: str, kind: str) -> None:
    """An actor copies new weights directly into `weights`; its process got the policy as a pickle."""
    algorithm, spec = record(name), spec_of(name, kind)
    weights = weights_of(algorithm.make_updater(spec, "cpu", 3))
    loaded, refreshed = (pickle.loads(pickle.dumps(algorithm.make_policy(spec))) for _ in range(2))
    loaded.load_weights(weights)
    own = refreshed.weights
    assert own.shape == (refreshed.weight_count,) and own.dtype == np.float32
    assert own.flags.c_contiguous and own.flags.writeable
    own[:] = weights
    refreshed.weights_changed()
    assert refreshed.weights is own
    obs = observations(spec, 7, np.random.default_rng(0))
    for policy in (loaded, refreshed):
        policy.assign_streams(0, 7, 7)
    assert (loaded.greedy(obs) == refreshed.greedy(obs)).all()
    first, second = (policy.act(obs, np.random.default_rng(1), 0)[0] for policy in (loaded, refreshed))
    assert (first == second).all() and loaded.exploration_rate == refreshed.exploration_rate


@for_every_kind
def test_policy_and_core_count_the_same_weights(name: str, kind: str) -> None:
    algorithm = record(name)
    core = algorithm.make_updater(spec_of(name, kind), "cpu", 0)
    assert (
        core.weight_count == algorithm.make_policy(spec_of(name, kind)).weight_count == len(weights_of(core))
    )


@for_updates
def test_seed_decides_the_weights(name: str, kind: str) -> None:
    algorithm, spec = record(name), spec_of(name, kind)
    first, again, other = (weights_of(algorithm.make_updater(spec, "cpu", seed)) for seed in (1, 1, 2))
    assert (first == again).all() and (first != other).any()


@for_updates
def test_loss_falls_on_a_fixed_batch(name: str, kind: str) -> None:
    # targets at rest: bootstrapped from a batch this small, QR-DQN's would run away
    algorithm, spec = record(name, learning_rate=3e-3, tau=1e-6), spec_of(name, kind)
    core, batch = algorithm.make_updater(spec, "cpu", 0), filled_batch(record(name), spec_of(name, kind))
    if not any("target" in part for part in core.state_dict()):
        batch.discount[:] = 0.0  # nothing that is bootstrapped would be at rest
    core.update(batch)
    first = core.metrics()["train/loss"]
    updates = 0
    while core.metrics()["train/loss"] >= 0.3 * first and updates < 300:
        core.update(batch)
        updates += 1
    assert core.metrics()["train/loss"] < 0.3 * first


@for_updates
def test_published_weights_are_a_copy(name: str, kind: str) -> None:
    algorithm, spec = record(name), spec_of(name, kind)
    core, batch = algorithm.make_updater(spec, "cpu", 0), filled_batch(record(name), spec_of(name, kind))
    published = weights_of(core)
    kept = published.copy()
    for _ in range(3):  # an actor may be moved at every third update
        core.update(batch)
    assert (published == kept).all() and (weights_of(core) != kept).any()
    now = weights_of(core)
    weights_of(core)[:] = 0
    assert (weights_of(core) == now).all()


@for_updates
def test_batch_is_neither_kept_nor_written(name: str, kind: str) -> None:
    algorithm, spec = record(name), spec_of(name, kind)
    first, second = filled_batch(algorithm, spec, 0), filled_batch(algorithm, spec, 1)
    core, other = algorithm.make_updater(spec, "cpu", 0), algorithm.make_updater(spec, "cpu", 0)
    core.update(first)
    expected = arrays_of(filled_batch(algorithm, spec, 0))
    for field, values in arrays_of(first).items():
        assert (values == expected[field]).all(), field
        values[...] = 1
    core.update(second)
    other.update(filled_batch(algorithm, spec, 0))
    other.update(second)
    assert (weights_of(core) == weights_of(other)).all()


@for_updates
def test_state_round_trips_to_the_same_numbers(name: str, kind: str) -> None:
    algorithm, spec = record(name), spec_of(name, kind)
    core = algorithm.make_updater(spec, "cpu", 0)
    batches = [filled_batch(algorithm, spec, seed) for seed in range(8)]
    for batch in batches:
        core.update(batch)
    state = pickle.loads(pickle.dumps(core.state_dict()))
    other = algorithm.make_updater(spec, "cpu", 99)
    other.load_state_dict(state)
    for batch in batches:
        ours, theirs = core.update(batch).priorities, other.update(batch).priorities
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert (ours == theirs).all()
        assert (weights_of(core) == weights_of(other)).all()
        assert core.metrics() == other.metrics()


@for_updates
def test_state_is_a_copy_and_foreign_state_is_refused(name: str, kind: str) -> None:
    algorithm, spec = record(name), spec_of(name, kind)
    core, batch = algorithm.make_updater(spec, "cpu", 0), filled_batch(algorithm, spec_of(name, kind))
    core.update(batch)
    state = core.state_dict()
    frozen = pickle.dumps(state)
    core.update(batch)
    assert pickle.dumps(state) == frozen
    wider = record(name, hidden_sizes=(17, 16)).make_updater(spec, "cpu", 0)
    before = weights_of(wider)
    for foreign in (state, {}, {**state, "more": 1}):
        with pytest.raises(ValueError):
            wider.load_state_dict(foreign)
        assert (weights_of(wider) == before).all()


@for_updates
def test_permuted_batch_gives_permuted_priorities(name: str, kind: str) -> None:
    """Noise in the targets belongs to a place in the batch, so it is removed."""
    if class_of(name).update_loop == "dataset":
        pytest.skip("a dataset is sampled uniformly")
    algorithm, spec = record(name, prioritized=True), spec_of(name, kind)
    batch, order = filled_batch(algorithm, spec), np.random.default_rng(5).permutation(SIZE)
    core, other = algorithm.make_updater(spec, "cpu", 0), algorithm.make_updater(spec, "cpu", 0)
    for made in (core, other):
        if hasattr(made, "draw"):
            made.draw = lambda noise: noise.zero_()
    for seed in range(1, 4):
        core.update(filled_batch(algorithm, spec, seed))
        other.update(filled_batch(algorithm, spec, seed))
    ours, theirs = core.update(batch).priorities, other.update(permuted(batch, order)).priorities
    assert ours is not None and theirs is not None
    assert ours.shape == (SIZE,) and ours.dtype == np.float32 and (ours >= 0).all()
    np.testing.assert_allclose(theirs, ours[order], rtol=1e-5, atol=1e-6)


@for_updates
def test_wide_products_run_in_the_precision_asked_for(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[MatmulPrecision] = []
    monkeypatch.setattr(MatmulPrecision, "__enter__", lambda context: entered.append(context))
    monkeypatch.setattr(MatmulPrecision, "__exit__", lambda *_: None)
    # As on a processor with AMX: elsewhere "medium" reduces nothing.
    monkeypatch.setattr(MatmulPrecision, "reduced", property(lambda _: True))
    spec, sizes = spec_of(name, kind), {"hidden_sizes": (128, 128), "batch_size": 128}
    algorithm = record(name, matmul_precision="medium", **sizes)
    core = algorithm.make_updater(spec, "cpu", 0)
    core.update(filled_batch(algorithm, spec, size=128))
    assert entered and all(context is core.precision for context in entered)


@for_updates
def test_batch_size_may_change(name: str, kind: str) -> None:
    algorithm, spec = record(name), spec_of(name, kind)
    core = algorithm.make_updater(spec, "cpu", 0)
    for size in (SIZE, 5, SIZE):
        priorities = core.update(filled_batch(algorithm, spec, size=size)).priorities
        assert priorities is None or priorities.shape == (size,)
    assert np.isfinite(list(core.metrics().values())).all()


@for_updates
def test_metrics_before_and_after_the_first_update(name: str, kind: str) -> None:
    algorithm, spec = record(name), spec_of(name, kind)
    core = algorithm.make_updater(spec, "cpu", 0)
    assert "train/loss" not in core.metrics()
    core.update(filled_batch(algorithm, spec))
    metrics = core.metrics()
    assert {"train/loss", "train/learning_rate"} <= set(metrics)
    assert all(type(value) is float and np.isfinite(value) for value in metrics.values())


@for_updates
def test_bad_numbers_show_in_the_loss(name: str, kind: str) -> None:
    algorithm, spec = record(name), spec_of(name, kind)
    core, batch = algorithm.make_updater(spec, "cpu", 0), filled_batch(algorithm, spec_of(name, kind))
    if name == "bc":
        pytest.skip("no rewards are used")
    batch.reward[3] = np.nan
    core.update(batch)
    assert not np.isfinite(core.metrics()["train/loss"])


@for_updates
def test_an_update_stays_on_its_device(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device stands for a GPU: it refuses tensors of the CPU and reading a value back."""
    monkeypatch.setattr(FlatAdam, "step", lambda *_: None)  # its operation does not exist there
    algorithm: Any = record(name, prioritized=False, max_grad_norm=1.0)
    core = algorithm.make_updater(spec_of(name, kind), "meta", 0)
    for seed in range(3):
        core.update(filled_batch(algorithm, spec_of(name, kind), seed))
