"""Dict, Tuple, Discrete and MultiDiscrete observations as rows, and action masks, from the space to the learner."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from dataclasses import replace
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from waiting import PATIENCE_SECONDS

from asyncrl import DQN, IMPALA, PPO, QRDQN, R2D2, SAC, Trainer
from asyncrl.acting.images import CombinedNetwork
from asyncrl.acting.trained_policy import TrainedPolicy
from asyncrl.algorithms.r2d2 import rescale, rescale_inverse
from asyncrl.algorithms.rollout import forbid
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.envs.observations import FORBIDDEN, Unpacker, mask_reader, pack, rows_of
from asyncrl.envs.packing import MaskFromInfo, PackedObservations, packed
from asyncrl.envs.source import EnvSource, describe
from asyncrl.envs.trial import try_out
from asyncrl.errors import NonFiniteStep, ObservationOffSpace, OldGymAPI, SpacesDoNotFit
from asyncrl.interfaces import (
    Batch,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    Leaf,
    MultiDiscreteAction,
    SequenceBatch,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors would import torch with this module
VECTORS = spaces.Dict(
    {
        "b": spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(-1, 1, (2, 2), np.float64))),
        "a": spaces.MultiDiscrete([2, 4]),
        "c": spaces.MultiBinary(3),
    }
)
IMAGES = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (28, 12, 3), np.uint8),
        "map": spaces.Box(0, 255, (9, 9), np.uint8),
        "speed": spaces.Box(-9, 9, (2,), np.float32),
        "gear": spaces.Discrete(3),
    }
)


class Plain(gymnasium.Env[Any, Any]):
    """Environment with random samples of its space; rewards the action 1."""

    def __init__(self, space: spaces.Space[Any], actions: int = 3) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(actions)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return (
            self.observation_space.sample(),
            float(action == 1),
            False,
            bool(self.np_random.random() < 0.1),
            {},
        )


def spec_of(space: spaces.Space[Any], actions: int = 3) -> EnvSpec:
    return describe(EnvSource.from_user(lambda: Plain(space, actions)))


@pytest.mark.parametrize(
    "space", [VECTORS, spaces.Discrete(5, start=-2), spaces.MultiDiscrete([3, 2]), spaces.Tuple((VECTORS,))]
)
def test_rows_of_vectors_are_gymnasiums_flattening(space: Any) -> None:
    spec = spec_of(space)
    space.seed(0)
    for _ in range(20):
        obs = space.sample()
        wanted = spaces.flatten(space, obs).astype(np.float32)
        row = pack(obs, spec)
        assert row.dtype == np.float32 and row.shape == spec.observation_shape == (spec.observation_values,)
        np.testing.assert_array_equal(row, wanted)


def test_images_stay_bytes_and_come_back() -> None:
    spec = spec_of(IMAGES)
    assert spec.observation_dtype == "uint8"
    assert spec.observation_shape == (28 * 12 * 3 + 9 * 9 + 2 * 4 + 3 * 4,)
    assert spec.observation_values == 28 * 12 * 3 + 81 + 2 + 3
    IMAGES.seed(0)
    samples = [IMAGES.sample() for _ in range(6)]
    rows = np.stack([pack(obs, spec) for obs in samples])
    out = np.empty((6, spec.observation_values), np.float32)
    Unpacker(spec)(rows, out)
    for obs, values in zip(samples, out, strict=True):
        wanted = {k: v / np.float32(255) if v.dtype == np.uint8 else v for k, v in obs.items()}
        one_hot = np.eye(3, dtype=np.float32)[obs["gear"]]
        parts = [wanted["camera"].ravel(), one_hot, wanted["map"].ravel(), wanted["speed"]]
        np.testing.assert_allclose(values, np.concatenate(parts), rtol=1e-6)
    stacks = rows.reshape(2, 3, -1)
    stacked = np.empty((2, 3 * spec.observation_values), np.float32)
    Unpacker(spec.stacked(3))(stacks, stacked)
    np.testing.assert_array_equal(stacked.reshape(6, -1), out)


def test_leaves_are_kept_by_headers() -> None:
    from asyncrl.storage.checkpoint_meta import CheckpointMeta, meta_from_json, meta_to_json

    meta = CheckpointMeta(env="x", algo="dqn", spec=spec_of(IMAGES))
    assert meta_from_json(pickle.loads(pickle.dumps(meta_to_json(meta)))).spec == meta.spec


def test_observations_off_their_space_are_told() -> None:
    class Wrong(Plain):
        def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            return {"camera": np.zeros((28, 12, 3), np.uint8)}, {}

    with pytest.raises(ObservationOffSpace, match="the observation must hold gear, got dict of camera"):
        packed(Wrong(IMAGES)).reset(seed=0)
    spec = spec_of(spaces.Discrete(3))
    with pytest.raises(ValueError, match="a choice must be from 0 to 2, got 3"):
        pack(3, spec)
    assert not isinstance(packed(Plain(spaces.Box(0, 1, (2,)))), PackedObservations)


def test_predict_takes_what_the_environment_gives() -> None:
    for space in (VECTORS, IMAGES, spaces.Discrete(4)):
        spec = spec_of(space)
        algorithm = DQN()
        core = algorithm.make_updater(spec, "cpu", 0)
        weights = np.empty(core.weight_count, np.float32)
        core.write_weights(weights)
        policy = TrainedPolicy(spec, algorithm.make_policy(spec), weights)
        obs = space.sample()
        row = pack(obs, spec)
        assert policy.predict(obs)[0] == policy.predict(row)[0]
        np.testing.assert_array_equal(policy.predict(np.stack([row, row]))[0], [policy.predict(row)[0]] * 2)
    batch = {"a": np.zeros((4, 2), np.int64)}
    made = rows_of(batch, spec_of(spaces.Dict({"a": spaces.MultiDiscrete([2, 2])})))
    assert made.tolist() == [[1, 0, 1, 0]] * 4
    several = spec_of(spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)}))
    stacks = {"a": np.array([[0, 1], [1, 1], [0, 0]]), "b": np.array([[1, 1], [0, 1], [0, 0]])}
    assert rows_of(stacks, several)[1].tolist() == [[0, 1, 1, 0], [0, 1, 0, 1]]
    with pytest.raises(ValueError, match="all leaves of a batch must have the same first axes"):
        rows_of({"a": np.zeros(3, int), "b": np.zeros(2, int)}, several)


def test_images_go_to_convolutions_and_the_rest_to_a_layer() -> None:
    spec = spec_of(IMAGES).stacked(2)
    network = DQN(frame_stack=2).network_for(spec_of(IMAGES))
    assert isinstance(network, CombinedNetwork) and "28x12x3, 2 frames" in network.text
    module = network(spec.observation_values, 3)
    rows = torch.rand(4, spec.observation_values, requires_grad=True)
    out = module(rows)
    (gradient,) = torch.autograd.grad(out.sum(), rows)
    assert out.shape == (4, 3) and (gradient.abs().sum(dim=0) > 0).float().mean() > 0.95
    assert [first.in_channels for first, *_ in module.convolutions] == [6, 2]


def filled(algorithm: Any, spec: EnvSpec, space: Any) -> Batch:
    rng, batch = np.random.default_rng(0), Batch.allocate(16, algorithm.stacked_spec(spec))
    for array in (batch.obs, batch.next_obs):
        rows = array.reshape(-1, array.shape[-1])
        rows[:] = [pack(space.sample(), spec) for _ in range(rows.shape[0])]
    batch.action[:] = rng.integers(0, 2, batch.action.shape)
    batch.reward[:], batch.discount[:], batch.weight[:] = rng.normal(size=16), 0.0, 1.0
    return batch


@pytest.mark.parametrize("options", [{}, {"frame_stack": 2}, {"normalize_observations": True}])
@pytest.mark.parametrize("space", [VECTORS, IMAGES])
def test_learners_take_rows(space: Any, options: dict[str, Any]) -> None:
    for record, action in ((DQN, DiscreteAction(3)), (SAC, BoxAction((-1.0,), (1.0,), (1,)))):
        spec = replace(spec_of(space), action=action)
        algorithm = record(**options, learning_rate=1e-3, tau=1e-6)
        core, batch = algorithm.make_updater(spec, "cpu", 0), filled(algorithm, spec_of(space), space)
        core.update(batch)
        first = core.metrics()["train/loss"]
        for _ in range(60):
            core.update(batch)
        assert core.metrics()["train/loss"] < 0.7 * first
        weights = np.empty(core.weight_count, np.float32)
        core.write_weights(weights)
        policy = algorithm.make_policy(spec)
        policy.load_weights(weights)
        assert policy.greedy(batch.obs).shape[0] == 16


def fold(inputs: int, outputs: int, observation_shape: tuple[int, ...]) -> torch.nn.Module:
    """A user's network that folds the rows back."""
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, observation_shape), torch.nn.Flatten(), torch.nn.Linear(inputs, outputs)
    )


@pytest.mark.parametrize("space", [VECTORS, IMAGES], ids=["floats", "bytes"])
@pytest.mark.parametrize("frames", [1, 3])
def test_a_network_of_the_users_own_is_given_the_shape_of_its_rows(
    space: spaces.Space[Any], frames: int
) -> None:
    dqn, spec = DQN(network=fold, frame_stack=frames), spec_of(space)
    values = 16 if space is VECTORS else 28 * 12 * 3 + 81 + 5
    dqn.make_policy(spec)
    network: Any = dqn.network_for(spec)
    assert network.observation_shape == ((values,) if frames == 1 else (frames, values))


def test_leaves_of_another_kind_are_refused_instead_of_converted() -> None:
    spec = spec_of(IMAGES)
    good = {**IMAGES.sample(), "gear": 1}
    image = good["camera"]
    for change, text in (
        ({"camera": image / 255.0}, "camera must be bytes from 0 to 255, got float64"),
        ({"camera": image.astype(np.int64) + 300}, "camera must be bytes from 0 to 255, got int64"),
        ({"gear": 1.5}, r"gear must be of whole numbers, got 1\.5"),
        ({"gear": np.nan}, "gear must be of whole numbers, got nan"),
        ({"gear": None}, "gear must be of real numbers, got object"),
        ({"speed": np.array(["1", "2"])}, "speed must be of real numbers, got <U1"),
        ({"speed": np.array([1j, 2])}, "speed must be of real numbers, got complex128"),
    ):
        with pytest.raises(ValueError, match=text):
            pack({**good, **change}, spec)
    whole = {**good, "gear": np.float64(1.0), "camera": image.astype(np.int64)}
    np.testing.assert_array_equal(pack(whole, spec), pack(good, spec))
    for obs in ([good], tuple(good.values())):
        with pytest.raises(ValueError, match=r"the observation must hold camera, got (list|tuple)"):
            pack(obs, spec)


def test_predict_says_what_it_takes_where_it_gets_a_list_of_rows_or_other_numbers() -> None:
    spec = spec_of(VECTORS)
    for obs, got in (
        ([np.zeros(spec.observation_shape, np.float32)] * 2, "a list of ndarray"),
        ([[0.0] * 3], "a list of list"),
        ([], "an empty list"),
        (np.zeros(spec.observation_shape), rf"float64 of shape \({spec.observation_shape[0]},\)"),
    ):
        with pytest.raises(ValueError, match=rf"float32 rows of shape .* np\.stack\(rows\)\), got {got}"):
            rows_of(obs, spec)
    with pytest.raises(ValueError, match="must hold"):
        rows_of({"other": 0}, spec)


def test_keys_that_are_no_text_are_refused() -> None:
    space = spaces.Dict({1: spaces.Discrete(2)})  # type: ignore[dict-item]
    with pytest.raises(
        SpacesDoNotFit, match=r"ASYNC005\] The keys of a Dict observation must be text, got 1"
    ):
        packed(Plain(space))


@pytest.mark.parametrize("call", ["reset", "step"])
def test_the_old_api_is_named_with_structured_observations_too(call: str) -> None:
    class Old(Plain):
        def reset(self, **kwargs: Any) -> Any:
            obs, info = super().reset(**kwargs)
            return obs if call == "reset" else (obs, info)

        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, terminated or truncated, info

    with pytest.raises(OldGymAPI, match=rf"ASYNC013\] .*: {call} returned"):
        describe(EnvSource.from_user(lambda: Old(VECTORS)))


# --- action masks -----------------------------------------------------------------------------------------------------

MASKED = spaces.Dict(
    {"observation": spaces.Box(-1, 1, (3,), np.float32), "action_mask": spaces.MultiBinary(4)}
)


class OneAllowed(gymnasium.Env[Any, Any]):
    """Environment with some allowed actions at each step; others raise. Reward 1 for the last allowed one."""

    observation_space, action_space = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._see()

    def _see(self) -> tuple[Any, dict[str, Any]]:
        self.mask = self.np_random.random(4) < 0.5
        self.mask[self.np_random.integers(4)] = True
        return self.np_random.uniform(-1, 1, 4).astype(np.float32), {"action_mask": self.mask.astype(np.int8)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.mask[action]:
            raise RuntimeError(f"action {action} is not allowed by {self.mask}")
        reward = float(action == np.flatnonzero(self.mask)[-1])
        self.steps += 1
        obs, info = self._see()
        return obs, reward, self.steps == 20, False, info


class OnlyOne(OneAllowed):
    """Environment that always allows the same action only."""

    def __init__(self, only: int) -> None:
        self.only = only

    def _see(self) -> tuple[Any, dict[str, Any]]:
        self.mask = np.arange(4) == self.only
        return np.zeros(4, np.float32), {"action_mask": self.mask.astype(np.int8)}


class TwoAllowed(gymnasium.Env[Any, Any]):
    """Environment with several components of an action; one choice of each is allowed, others raise."""

    def __init__(self, action_space: Any, mask: list[int], allowed: Any) -> None:
        self.action_space, self.mask, self.allowed = action_space, np.array(mask, np.int8), allowed
        self.observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(len(mask))})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return {"action_mask": self.mask}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action) and action.tolist() == self.allowed
        return *self.reset()[:1], 1.0, False, False, {}


COMPONENTS = {
    "vector": (spaces.MultiDiscrete([3, 2], start=[5, 0]), [0, 0, 1, 1, 0], [7, 0]),
    "matrix": (spaces.MultiDiscrete([[3, 2], [2, 2]]), [0, 0, 1, 1, 0, 0, 1, 1, 0], [[2, 0], [1, 0]]),
    "binary": (spaces.MultiBinary(2), [0, 1, 1, 0], [1, 0]),
}
"""Action space, mask and the action that it allows."""


def test_checks_and_trials_take_allowed_actions_only() -> None:
    for only in range(4):
        source = EnvSource.from_user(lambda only=only: MaskFromInfo(OnlyOne(only)))
        assert describe(source).action == DiscreteAction(4)
        assert try_out(source, 0.02).steps > 0


@pytest.mark.parametrize("components", COMPONENTS.values(), ids=COMPONENTS)
def test_checks_and_trials_take_allowed_choices_of_each_component(components: Any) -> None:
    source = EnvSource.from_user(lambda: TwoAllowed(*components))
    describe(source)
    assert try_out(source, 0.02).steps > 0


def test_masks_of_another_size_than_the_action_are_refused() -> None:
    spec = replace(spec_of(VECTORS), leaves=(), observation_shape=(1,))
    masked = replace(spec, leaves=(Leaf(("action_mask",), "values", (4,)),), observation_shape=(4,))
    with pytest.raises(SpacesDoNotFit, match=r"ASYNC005\] action_mask of .* must have 3 numbers.*got 4"):
        mask_reader(masked)
    real = replace(masked, action=BoxAction((-1.0,), (1.0,), (1,)))
    assert mask_reader(real) is None, "a box has no choices to forbid"
    with pytest.raises(SpacesDoNotFit, match=r"MaskFromInfo needs Discrete, .* got Box"):
        MaskFromInfo(gymnasium.make("Pendulum-v1"))


def test_non_finite_values_beside_images_are_told_as_such() -> None:
    class Diverged(Plain):
        def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            obs, info = super().reset(**kwargs)
            return {**obs, "speed": np.array([0, np.nan], np.float32)}, info

    with pytest.raises(NonFiniteStep, match=r"ASYNC011\]"):
        packed(Diverged(IMAGES)).reset(seed=0)


def test_masks_are_read_out_of_rows_of_either_kind() -> None:
    image = spaces.Dict({**MASKED.spaces, "camera": spaces.Box(0, 255, (9, 9), np.uint8)})
    board = spaces.Dict(
        {**MASKED.spaces, "action_mask": spaces.Box(0, 1, (8, 8), np.uint8)}
    )  # an image itself
    for space, actions in ((MASKED, 4), (image, 4), (board, 64)):
        spec = spec_of(space, actions=actions)
        samples = [space.sample() for _ in range(30)]
        rows = np.stack([pack(obs, spec) for obs in samples])
        read = mask_reader(spec)
        assert read is not None
        for mask, obs in zip(read(rows), samples, strict=True):
            wanted = obs["action_mask"].reshape(-1).astype(bool)
            assert (mask == (wanted if wanted.any() else True)).all()
        stacked = mask_reader(spec.stacked(2))
        assert stacked is not None
        np.testing.assert_array_equal(stacked(rows.reshape(15, 2, -1)), read(rows[1::2]))
    assert mask_reader(spec_of(VECTORS)) is None


def test_a_component_without_an_allowed_choice_has_all_of_them() -> None:
    spec = dataclasses.replace(spec_of(MASKED, actions=4), action=MultiDiscreteAction((1, 3)))
    given = np.array([[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0], [1, 1, 0, 1]])
    rows = np.stack([pack({"observation": np.zeros(3), "action_mask": mask}, spec) for mask in given])
    read = mask_reader(spec)
    assert read is not None
    wanted = [[1, 1, 1, 1], [1, 0, 1, 0], [1, 1, 1, 1], [1, 1, 0, 1]]
    assert read(rows).astype(int).tolist() == wanted


@pytest.mark.parametrize("record", [DQN, QRDQN, R2D2, PPO, IMPALA])
def test_no_policy_takes_a_forbidden_action(record: Any) -> None:
    spec = spec_of(MASKED, actions=4)
    algorithm = record()
    core, policy = algorithm.make_updater(spec, "cpu", 0), algorithm.make_policy(spec)
    weights = np.empty(core.weight_count, np.float32)
    core.write_weights(weights)
    policy.load_weights(weights)
    policy.assign_streams(0, 64, 64)
    read, rng = mask_reader(spec), np.random.default_rng(0)
    assert read is not None
    taken = set()
    for step in (0, 10**9) * 10:
        obs = np.stack([pack(MASKED.sample(), spec) for _ in range(64)])
        mask = read(obs)
        actions, _ = policy.act(obs, rng, step)
        assert mask[np.arange(64), actions].all() and mask[np.arange(64), policy.greedy(obs)].all()
        taken |= set(actions.tolist())
    assert taken == {0, 1, 2, 3}


def test_targets_bootstrap_from_allowed_actions() -> None:
    spec = spec_of(MASKED, actions=4)
    algorithm = DQN(double=False, prioritized=True, huber_delta=None, bound_targets=False)
    core, batch = algorithm.make_updater(spec, "cpu", 0), Batch.allocate(16, spec)
    batch.obs[:] = [pack(MASKED.sample(), spec) for _ in range(16)]
    batch.next_obs[:] = [pack(MASKED.sample(), spec) for _ in range(16)]
    batch.action[:], batch.reward[:], batch.discount[:], batch.weight[:] = 1, 0.5, 0.9, 1.0
    staged = StagedBatch(16, spec, torch.device("cpu"))
    staged.stage(batch)
    q, next_q = core.action_values(batch.obs), core.action_values(batch.next_obs)
    read = mask_reader(spec)
    assert read is not None and staged.next_mask is not None
    best = np.where(read(batch.next_obs), next_q, -np.inf).max(axis=1)
    wanted = np.abs(q[:, 1] - (0.5 + 0.9 * best))
    result = core.update(batch)
    assert result.priorities is not None
    np.testing.assert_allclose(result.priorities, wanted, rtol=1e-4, atol=1e-5)


def test_sequences_bootstrap_from_allowed_actions() -> None:
    spec = spec_of(MASKED, actions=4)
    algorithm = R2D2(sequence_length=3, burn_in=2, n_step=2, batch_size=8, double=False)
    batch = SequenceBatch.allocate(8, algorithm.sequence_shape, spec, algorithm.extra_fields(spec))
    batch.obs[:] = np.reshape([pack(MASKED.sample(), spec) for _ in range(8 * 7)], batch.obs.shape)
    batch.begins[:], batch.trained[:], batch.action[:], batch.weight[:] = False, True, 1, 1.0
    batch.reward[:], batch.discount[:], batch.extras["state"][:] = 0.5, 0.9, 0.0
    batch.bootstrap[:] = [3, 5, 6]
    core, read = algorithm.make_updater(spec, "cpu", 0), mask_reader(spec)
    core.update(batch)
    assert read is not None and core._buffers is not None
    wanted = read(batch.obs[:, [3, 5, 6]].reshape(24, -1))
    assert (core._buffers.batch.next_mask.numpy() == wanted).all() and not wanted.all()
    _, next_out, _, staged = core._buffers.loss_arguments()
    staged.next_mask[:] = torch.eye(4, dtype=torch.bool)[[2]]  # one action is left: it is the one that counts
    result = core._loss_of(*core._buffers.loss_arguments())
    target = rescale(0.5 + 0.9 * rescale_inverse(next_out[:, 2:3]).clamp(staged.low, staged.high))
    errors = (target - core._buffers.loss_arguments()[0][:, 1:2]).abs().view(8, 3)
    torch.testing.assert_close(result.priorities[:, 0], 0.9 * errors.amax(1) + 0.1 * errors.mean(1))


def test_forbidden_logits_have_no_probability_and_no_gradient() -> None:
    out = torch.randn(3, 4)
    mask = torch.tensor([[True, False, True, True]] * 3)
    out = forbid(out, mask, slice(0, 3))
    out.requires_grad_(True)
    probabilities = out.softmax(dim=1)
    entropy = -(probabilities * out.log_softmax(dim=1)).sum()
    (gradient,) = torch.autograd.grad(out.log_softmax(dim=1)[:, 0].sum() + entropy, out)
    assert (probabilities[:, 1] == 0).all() and (gradient[:, 1] == 0).all() and torch.isfinite(gradient).all()
    assert out.detach()[0, 1] == float(FORBIDDEN)


# What is allowed next is drawn at random here, and prioritized replay prefers rows whose error is chance.
UNIFORM = DQN.preset("CartPole-v1", prioritized=False, dueling=False)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [UNIFORM, PPO.preset("CartPole-v1")])
def test_masked_actions_are_learned_through_real_actors(algorithm: Any) -> None:
    def make() -> Any:
        return MaskFromInfo(OneAllowed())

    options = {**algorithm.preset_options("CartPole-v1"), "eval_interval_steps": 4000}
    with Trainer(make, algorithm, seed=0, http="off", **options) as trainer:
        result = trainer.learn(target_return=18.0, total_steps=40_000, max_seconds=2 * PATIENCE_SECONDS)
    assert result.stop_reason == "target_return", result.evaluation


@pytest.mark.slow
def test_frozen_lake_is_learned_from_its_discrete_observations() -> None:
    def make() -> Any:
        return gymnasium.make("FrozenLake-v1", is_slippery=False)

    algorithm = DQN.preset("CartPole-v1", exploration_steps=8000, gamma=0.95)
    options = {**DQN.preset_options("CartPole-v1"), "eval_interval_steps": 2000}
    with Trainer(make, algorithm, seed=0, http="off", **options) as trainer:
        result = trainer.learn(target_return=1.0, total_steps=40_000, max_seconds=2 * PATIENCE_SECONDS)
    assert result.stop_reason == "target_return", result.evaluation
    assert result.policy.predict(0)[0] in (1, 2)  # down or right
