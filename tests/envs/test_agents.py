"""Environments of several agents: forms that are taken, shared spaces, padding, indices, masks, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from gymnasium import Env, spaces
from several_agents import NAMES, MaskedByInfo, MaskedByKey, Parallel, Together, Tuples, Unequal

from asyncrl import DQN
from asyncrl.acting.trained_policy import TrainedPolicy
from asyncrl.envs.checks import require_same_spaces, require_spaces
from asyncrl.envs.observations import AgentView, agent_views, mask_reader, rows_of
from asyncrl.envs.source import EnvSource, describe
from asyncrl.envs.trial import try_out
from asyncrl.errors import (
    ConfigurationError,
    EnvironmentNotBuilt,
    NonFiniteStep,
    ObservationOffSpace,
    OldGymAPI,
    ParallelAPIBroken,
    SpacesDoNotFit,
)
from asyncrl.interfaces import TERMINATED, Agent, DiscreteAction, EnvSpec


def source_of(env: Any, **options: Any) -> EnvSource:
    return EnvSource.from_user(env).changed({}, (), **options)


def built(env: Any, **options: bool) -> Any:
    return source_of(env, **options).build()


def policy_of(spec: EnvSpec, **options: Any) -> TrainedPolicy:
    algorithm = DQN(hidden_sizes=(16,), **options)
    core = algorithm.make_updater(spec, "cpu", 0)
    weights = np.empty(core.weight_count, np.float32)
    core.write_weights(weights)
    return TrainedPolicy(spec, algorithm.make_policy(spec), weights)


def test_a_spec_is_that_of_one_agent_and_names_all() -> None:
    spec = describe(source_of(Parallel))
    assert spec.observation_shape == (4,) and spec.action == DiscreteAction(5)
    assert [agent.name for agent in spec.agents] == list(NAMES) and spec.num_agents == 3
    assert spec.axes == (3,) and not spec.leaves


def test_a_spec_is_kept_by_headers() -> None:
    from asyncrl.storage.checkpoint_meta import CheckpointMeta, meta_from_json, meta_to_json

    spec = describe(source_of(Unequal, pad_spaces=True, agent_id=True))
    assert meta_from_json(meta_to_json(CheckpointMeta(env="x", algo="dqn", spec=spec))).spec == spec


def test_the_index_is_appended_one_hot() -> None:
    env = built(Together, agent_id=True)
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(obs[:, :3], np.eye(3))
    np.testing.assert_array_equal(obs[:, 3:], np.zeros((3, 4)))
    obs, *_ = env.step([0, 1, 2])
    np.testing.assert_array_equal(obs[:, 5], np.ones(3)), "the own observation follows"


def test_the_index_of_images_goes_beside_the_image() -> None:
    class Pictures(Together):
        def observation_space(self, agent: str) -> Any:
            return spaces.Box(0, 255, (30, 12, 3), np.uint8)

        def observe(self, name: str, action: int) -> Any:
            return np.full((30, 12, 3), self.steps, np.uint8)

    spec = describe(source_of(Pictures, agent_id=True))
    assert [leaf.kind for leaf in spec.leaves] == ["choices", "image"] and spec.observation_dtype == "uint8"
    assert describe(source_of(Pictures)).observation_kind == "image"


@pytest.mark.parametrize("part", [spaces.Discrete(3), spaces.Box(0, 9, (2,), np.float32)])
def test_a_part_of_the_name_of_the_index_is_the_environments_own(part: Any) -> None:
    """Without the option `agent_id` nothing is written over it."""

    class Named(Together):
        def observation_space(self, agent: str) -> Any:
            return spaces.Dict({"agent_id": part, "own": super().observation_space(agent)})

        def observe(self, name: str, action: int) -> Any:
            last_first = 2 - self.possible_agents.index(name)
            own = last_first if isinstance(part, spaces.Discrete) else np.full(2, last_first, np.float32)
            return {"agent_id": own, "own": super().observe(name, action)}

    env, spec = built(Named), describe(source_of(Named))
    rows, _ = env.reset(seed=0)
    wanted = np.eye(3)[::-1] if isinstance(part, spaces.Discrete) else [[2, 2], [1, 1], [0, 0]]
    np.testing.assert_array_equal(rows[:, : len(wanted[0])], wanted)
    own, _ = env.parallel.reset(seed=0)
    by_row, _ = policy_of(spec).predict(rows)
    assert policy_of(spec).predict(own)[0] == dict(zip(NAMES, by_row, strict=True))
    with pytest.raises(ConfigurationError, match=r"agent_id must be false .* have a part 'agent_id' already"):
        built(Named, agent_id=True)


def test_padded_observations_and_actions() -> None:
    spec = describe(source_of(Unequal, pad_spaces=True))
    assert [(a.values, a.choices) for a in spec.agents] == [(2, None), (3, 3), (None, 4)]
    assert spec.action == DiscreteAction(5) and spec.observation_shape == (5 + 4,)
    env = built(Unequal, pad_spaces=True)
    obs, _ = env.reset(seed=0)
    for _ in range(2):
        obs, *_ = env.step([4, 2, 3])
    masks = mask_reader(spec)
    assert masks is not None
    np.testing.assert_array_equal(masks(obs).sum(axis=1), [5, 3, 4])
    np.testing.assert_array_equal(obs[:, 5:], [[2, 2, 0, 0], [2, 2, 2, 0], [2, 2, 2, 2]])
    try_out(source_of(Unequal, pad_spaces=True), 0.05)  # its agents refuse the actions of others


@pytest.mark.parametrize("env", [MaskedByInfo, MaskedByKey])
def test_masks_are_found_in_the_info_and_in_the_observation(env: Any) -> None:
    spec = describe(source_of(env))
    agents = built(env)
    obs, _ = agents.reset(seed=0)
    masks = mask_reader(spec)
    assert masks is not None
    np.testing.assert_array_equal(masks(obs), np.eye(5, dtype=bool)[:3])
    assert try_out(source_of(env), 0.5).return_mean == 15.0, "random actions keep to the masks"
    assert all(agent.masked for agent in spec.agents)


@pytest.mark.parametrize("agent_id", [False, True])
@pytest.mark.parametrize("env", [MaskedByInfo, MaskedByKey])
def test_masks_may_have_the_shape_of_a_board(env: Any, agent_id: bool) -> None:
    """As with one agent: one number for each action, in C order."""

    class Board(env):
        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(6)

        def observation_space(self, agent: str) -> Any:
            whole = super().observation_space(agent)
            if env is MaskedByInfo:
                return whole
            return spaces.Dict({**whole.spaces, "action_mask": spaces.Box(0, 1, (2, 3), np.int8)})

        def info(self, name: str) -> dict[str, Any]:
            return {"action_mask": np.eye(6, dtype=np.int8)[self.possible_agents.index(name)].reshape(2, 3)}

    spec = describe(source_of(Board, agent_id=agent_id))
    obs, _ = built(Board, agent_id=agent_id).reset(seed=0)
    masks = mask_reader(spec)
    assert masks is not None
    np.testing.assert_array_equal(masks(obs), np.eye(6, dtype=bool)[:3])


class RedComesLater(MaskedByInfo):
    """One agent takes no part in the first two episodes."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.begun = getattr(self, "begun", 0) + 1
        returned = super().reset(seed)
        if self.begun > 2:
            return returned
        self.agents.remove("red")
        observations, infos = ({name: part[name] for name in self.agents} for part in returned)
        return observations, infos


@pytest.mark.parametrize("policies", [None, {"late": "red", "others": "green|blue"}])
def test_masks_of_agents_that_take_no_part_in_the_first_episodes(policies: Any) -> None:
    """Which agents have masks, and so the spec, must not depend on who takes part in the first episode."""
    options = {} if policies is None else {"policies": policies}
    spec = describe(source_of(RedComesLater, **options))
    assert all(agent.masked for agent in spec.agents)
    whole = describe(source_of(MaskedByInfo, **options))
    assert spec.agents == whole.agents and spec.observation_shape == whole.observation_shape
    for own, other in zip(spec.policies, whole.policies, strict=True):
        assert dataclasses.replace(own.spec, name=other.spec.name) == other.spec
    policy = policy_of(describe(source_of(RedComesLater)))
    with pytest.raises(ValueError, match="red must have action_mask"):
        policy.predict({"red": np.zeros(4, np.float32)})


class Leftovers(Parallel):
    """Draws from the system until a reset has a seed, and begins an episode where the one before has ended, as LBF."""

    place = 0.0

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is None and self.episode < 0:
            self.rng = np.random.default_rng()
        begun = super().reset(seed)
        self.place = 0.5 * self.place + float(self.rng.random())
        return {agent: np.full(4, self.place, np.float32) for agent in begun[0]}, begun[1]


@pytest.mark.parametrize("policies", [{}, {"warm": "red", "cool": "green|blue"}])
def test_episodes_begun_to_find_masks_leave_the_same_in_every_process(policies: Any) -> None:
    one, other = (built(Leftovers, policies=policies).reset(seed=3)[0] for _ in range(2))
    assert np.array_equal(one, other)


def test_the_number_of_episodes_begun_to_find_masks_is_limited() -> None:
    class RedNeverComes(RedComesLater):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            self.begun = 0
            return super().reset(seed)

    assert all(agent.masked for agent in describe(source_of(RedNeverComes)).agents)


def test_a_mask_that_allows_nothing_allows_the_agents_own_actions_and_no_padding() -> None:
    view = AgentView(Agent("small", choices=3, masked=True), None, 5)
    for given, seen in (([0, 0, 0], [1, 1, 1, 0, 0]), ([0, 1, 0], [0, 1, 0, 0, 0])):
        assert (
            view({"observation": 0, "action_mask": np.array(given, np.int8)})["action_mask"].tolist() == seen
        )
    with pytest.raises(ValueError, match=r"action_mask must have shape \(3,\), got \(4,\)"):
        view({"observation": 0, "action_mask": np.zeros(4, np.int8)})


def test_a_mask_that_is_missing_from_an_info_is_named() -> None:
    class Once(MaskedByInfo):
        def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
            *returned, infos = super().step(actions)
            return *returned, {name: {} if name == "green" else info for name, info in infos.items()}

    agents = built(Once)
    agents.reset(seed=0)
    with pytest.raises(
        ObservationOffSpace, match=r"The info of agent green of .*Once must have action_mask"
    ) as told:
        agents.step([0, 1, 2])
    assert told.value.facts["call"] == "step" and "action_mask" in told.value.fix


def test_predict_takes_and_gives_dicts_by_agent() -> None:
    for env, options in (
        (Parallel, {}),
        (Together, {"agent_id": True}),
        (Unequal, {"pad_spaces": True, "agent_id": True}),
        (MaskedByKey, {}),
    ):
        source = source_of(env, **options)
        agents, parallel = source.build(), source.build().parallel
        policy = policy_of(describe(source))
        rows, _ = agents.reset(seed=3)
        own, _ = parallel.reset(seed=3)
        actions, state = policy.predict(own)
        assert state is None and actions.keys() == own.keys() == set(parallel.agents)
        by_row, _ = policy.predict(rows)
        for n, name in enumerate(NAMES):
            if name in own:
                assert actions[name] == by_row[n]
        parallel.step(actions)  # in the agents' own action spaces


def test_an_agent_without_a_state_begins_an_episode_also_if_none_has_one() -> None:
    policy = policy_of(describe(source_of(Together)), frame_stack=3)
    own, _ = Together().reset(seed=0)
    fresh, stacks = policy.predict(own, episode_start=True)
    _, of_red = policy.predict({"red": own["red"]}, episode_start=True)
    others = {name: own[name] for name in ("green", "blue")}
    for state in (of_red, {}):
        actions, after = policy.predict(others, state)
        assert actions == {name: fresh[name] for name in others}
        for name in others:
            np.testing.assert_array_equal(after[name], stacks[name])


def test_predict_needs_the_mask_that_only_the_info_has() -> None:
    policy = policy_of(describe(source_of(MaskedByInfo)))
    own, infos = MaskedByInfo().reset(seed=0)
    masked = {name: {"observation": own[name], **infos[name]} for name in own}
    assert policy.predict(masked)[0] == {name: n for n, name in enumerate(NAMES)}
    with pytest.raises(ValueError, match="red must have action_mask"):
        policy.predict(own)


def test_views_are_those_of_the_environment() -> None:
    spec = describe(source_of(Unequal, pad_spaces=True, agent_id=True))
    env = built(Unequal, pad_spaces=True, agent_id=True)
    rows, _ = env.reset(seed=0)
    own, _ = Unequal().reset(seed=0)
    views = agent_views(spec.agents, spec.leaves)
    for n, name in enumerate(NAMES):
        np.testing.assert_array_equal(rows_of(views[name](own[name]), spec), rows[n])


def test_gymnasium_environments_with_tuples_are_agents() -> None:
    spec = describe(source_of(Tuples))
    assert [agent.name for agent in spec.agents] == ["agent_0", "agent_1", "agent_2"]
    env = built(Tuples)
    env.reset(seed=0)
    obs, rewards, terminated, truncated, _ = env.step([1, 2, 3])
    np.testing.assert_array_equal(obs, [[0, 1], [1, 1], [2, 1]])
    np.testing.assert_array_equal(rewards, [1.0, 2.0, 3.0])
    for _ in range(3):
        assert env.live.all() and not terminated.any()
        _, _, terminated, truncated, _ = env.step([0, 0, 0])
    assert terminated.all() and not truncated.any() and not env.live.any()


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (([True, False, False], [False, True, True]), ([True, False, False], [False, True, True])),
        (([True, False, True], True), ([True, False, True], [True, True, True])),
        ((np.bool_(False), np.array([True] * 3)), ([False] * 3, [True] * 3)),
        ((True, False), ([True] * 3, [False] * 3)),
    ],
)
def test_tuples_end_when_each_agent_has_a_flag_of_one_kind_or_the_other(flags: Any, wanted: Any) -> None:
    class Flagged(Tuples):
        def step(self, action: Any) -> Any:
            returned = super().step(action)
            own = flags if self.steps == 2 else ([True, False, False], [False, True, False])
            return *returned[:2], *own, {}

    env = built(Flagged)
    env.reset(seed=0)
    _, _, terminated, truncated, _ = env.step([0, 0, 0])
    assert env.live.all() and not terminated.any() and not truncated.any(), "all end together"
    _, _, terminated, truncated, _ = env.step([0, 0, 0])
    assert (terminated.tolist(), truncated.tolist()) == wanted and env.over


def test_tuples_of_a_wrong_number_of_flags_are_refused() -> None:
    class Flagged(Tuples):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:2], [True, True], False, {}

    with pytest.raises(ParallelAPIBroken, match=r"3 agents returned termination \[True, True\]"):
        describe(source_of(Flagged))


def test_agents_that_leave_without_a_flag_are_truncated() -> None:
    class Leaves(Together):
        def step(self, actions: dict[str, Any]) -> Any:
            returned = super().step(actions)
            self.agents = [name for name in self.agents if name != "red"]
            return returned

    env = built(Leaves)
    env.reset(seed=0)
    _, _, terminated, truncated, _ = env.step([0, 0, 0])
    assert truncated.tolist() == [True, False, False] and not terminated.any()
    assert env.live.tolist() == [False, True, True]


class Taking(Parallel):
    """PettingZoo's AEC API, as far as it is looked at."""

    agent_iter = last = None


def broken(**changes: Any) -> Any:
    return type("Broken", (Together,), changes)


def with_step(change: Any) -> Any:
    def step(self: Any, actions: Any) -> Any:
        return change(self, list(Together.step(self, actions)))

    return broken(step=step)


def without(position: int, name: str) -> Any:
    def change(self: Any, returned: list[Any]) -> Any:
        returned[position].pop(name)
        return tuple(returned)

    return with_step(change)


def flagged(position: int, value: Any) -> Any:
    def change(self: Any, returned: list[Any]) -> Any:
        returned[position]["green"] = value
        return tuple(returned)

    return with_step(change)


def short_and_masked(self: Any, name: str, action: int) -> Any:
    return {"observation": np.zeros(2, np.float32), **self.info(name)}


def anew(self: Any, returned: list[Any]) -> Any:
    if self.steps == 1:
        returned[2]["red"] = True
        self.agents = ["green", "blue"]
    elif self.steps == 2:
        self.agents = ["red", "green", "blue"]
    return tuple(returned)


def never_ends(self: Any, returned: list[Any]) -> Any:
    self.agents.append("yellow")
    return tuple(returned)


@pytest.mark.parametrize(
    ("env", "error", "text"),
    [
        (Unequal, SpacesDoNotFit, "All agents of .* share one policy, and their observation spaces differ"),
        (Taking, EnvironmentNotBuilt, "The agents of .* take turns"),
        (
            with_step(lambda self, returned: tuple(returned[:4])),
            ParallelAPIBroken,
            "must return dicts by agent",
        ),
        (with_step(never_ends), ParallelAPIBroken, "agent yellow is not one of possible_agents"),
        (without(0, "green"), ParallelAPIBroken, "agent green goes on, and has no observation"),
        (without(1, "green"), ParallelAPIBroken, "agent green acted, and has no reward"),
        (without(3, "green"), ParallelAPIBroken, "agent green acted, and has no truncation"),
        (broken(reward_of=lambda *_: None), ParallelAPIBroken, "the rewards are .*None.* must be a number"),
        (broken(reward_of=lambda *_: [1.0, 2.0]), ParallelAPIBroken, "must be a number for each agent"),
        (flagged(2, "False"), ParallelAPIBroken, "the termination of agent green is 'False', and must be a"),
        (flagged(2, None), ParallelAPIBroken, "the termination of agent green is None"),
        (flagged(3, np.nan), ParallelAPIBroken, "the truncation of agent green is nan"),
        (flagged(3, np.ones(2)), ParallelAPIBroken, "the truncation of agent green is array"),
        (broken(observe=lambda *_: np.zeros(3)), ObservationOffSpace, "agent red is off its space"),
        (
            type("BrokenDict", (MaskedByKey,), {"observe": short_and_masked}),
            ObservationOffSpace,
            r"(?s)observation must have shape \(4,\), got \(2,\).*agent: red",
        ),
        (
            broken(reset=lambda self, seed=None, options=None: ({}, {})),
            ParallelAPIBroken,
            "no agent takes part",
        ),
        (broken(action_space={}), ParallelAPIBroken, "action_space is a dict, and must be a method"),
        (broken(reset=lambda self: ({}, {})), OldGymAPI, "seed"),
        (broken(reset=lambda self, seed=None, options=None: {}), ParallelAPIBroken, "it returned dict"),
    ],
)
def test_what_cannot_be_trained_says_why(env: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        describe(source_of(env))


def test_flags_of_other_kinds_are_taken() -> None:
    """NumPy's, numbers, and arrays of one element."""
    for one in (np.True_, 1, np.float32(1), np.array([True])):
        env = built(flagged(2, one))
        env.reset(seed=0)
        env.step([0, 0, 0])
        assert env.flags.tolist() == [0, TERMINATED, 0]


def test_an_agent_that_begins_within_an_episode_is_refused() -> None:
    env = built(with_step(anew))
    env.reset(seed=0)
    env.step([0, 0, 0])
    with pytest.raises(ParallelAPIBroken, match="agent red begins within an episode") as told:
        env.step([0, 0, 0])
    assert "ASYNC034" in str(told.value) and "parallel_api_test" in str(told.value)


def test_spaces_that_differ_say_how_to_train() -> None:
    with pytest.raises(SpacesDoNotFit) as told:
        describe(source_of(Unequal))
    assert list(told.value.facts) == ["agent red", "agent green"] and "pad_spaces=True" in told.value.fix

    class Continuous(Unequal):
        def action_space(self, agent: str) -> Any:
            return spaces.Box(-1, 1, (1 + self.possible_agents.index(agent),), np.float32)

    with pytest.raises(SpacesDoNotFit, match="their action spaces differ"):
        describe(source_of(Continuous, pad_spaces=True))


def test_agents_that_differ_in_padding_alone_are_named_with_their_sizes() -> None:
    spec = describe(source_of(Unequal, pad_spaces=True))
    red, *others = spec.agents
    alike = dataclasses.replace(spec, agents=(dataclasses.replace(red, values=None), *others))
    with pytest.raises(SpacesDoNotFit, match="The agents of Unequal are not those of a policy's tr") as told:
        require_same_spaces(spec, alike)
    rest = "green (padded from 3 values and 3 actions), blue (padded from 4 actions)"
    assert told.value.facts == {
        "trained in": f"red (padded from 2 values), {rest}",
        "this one": f"red (not padded), {rest}",
    }
    assert told.value.fix.endswith("pad_spaces=True pads every agent to the largest")
    with pytest.raises(SpacesDoNotFit, match="must have the same agents, and they differ") as told:
        require_spaces(alike, built(Unequal, pad_spaces=True))
    assert list(told.value.facts.values()) == [
        f"red (not padded), {rest}",
        f"red (padded from 2 values), {rest}",
    ]


def test_options_of_several_agents_are_refused_for_one() -> None:
    with pytest.raises(
        ConfigurationError, match="agent_id must be false for CartPole-v1, which has one agent"
    ):
        built("CartPole-v1", agent_id=True)


def test_a_scalar_reward_of_tuples_is_refused() -> None:
    class Shared(Tuples):
        def step(self, action: Any) -> Any:
            returned = super().step(action)
            return returned[0], 1.0, *returned[2:]

    with pytest.raises(ParallelAPIBroken, match=r"3 agents returned reward 1\.0"):
        describe(source_of(Shared))


def test_observations_of_bytes_with_nan_are_not_stored() -> None:
    class Torn(Together):
        def observation_space(self, agent: str) -> Any:
            return spaces.Dict(
                {
                    "camera": spaces.Box(0, 255, (28, 9, 3), np.uint8),
                    "speed": spaces.Box(0, 9, (1,), np.float32),
                }
            )

        def observe(self, name: str, action: int) -> Any:
            speed = np.full(1, np.nan if self.steps else 0.0, np.float32)
            return {"camera": np.zeros((28, 9, 3), np.uint8), "speed": speed}

    with pytest.raises(NonFiniteStep):
        describe(source_of(Torn))


def test_trial_counts_episodes_of_the_environment() -> None:
    trial = try_out(source_of(Together), 0.05)
    assert trial.length_mean == 5.0 and trial.steps // 5 - trial.episodes in (0, 1)
    assert not isinstance(Together(), Env)
    several = try_out(source_of(Parallel), 0.1)
    assert several.length_mean is not None and 3 < several.length_mean < 7, (
        "the longest of three drawn from 1..7"
    )


class Scalars(Parallel):
    """Observations are single numbers without an axis."""

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1e6, (), np.float32)

    def observe(self, name: str, action: int) -> Any:
        return super().observe(name, action)[0]


def test_several_policies_may_see_a_number_without_an_axis() -> None:
    source = source_of(Scalars, policies={"one": "red", "others": "green|blue"})
    assert describe(source).observation_shape == ()
    assert not any("outside" in problem for problem in try_out(source, 0.05).problems)
