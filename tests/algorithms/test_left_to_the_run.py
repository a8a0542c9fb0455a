"""Options of a record that are left to the run: what is chosen for a number of actors and environments."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from asyncrl import A2C, BC, DQN, IMPALA, IQL, MAPPO, PPO, PQN, R2D2, SAC, CrossQ, Trainer, TrainerConfig
from asyncrl.envs.checks import checked_spec
from asyncrl.envs.packing import leaves_of
from asyncrl.errors import ConfigurationError
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec, MultiDiscreteAction

SPEC = EnvSpec("discrete", (4,), "float32", DiscreteAction(2))
BOX = EnvSpec("box", (4,), "float32", BoxAction((-1.0,), (1.0,), (1,)))


def small_network(inputs: int, outputs: int) -> Any:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("limit", "given", "gamma"),
    [(None, None, 0.99), (1_000, None, 0.99), (200, None, 0.99), (150, None, 0.9867), (50, None, 0.96),
     (64, None, 0.9688), (8, None, 0.8), (1, None, 0.8), (50, 0.99, 0.99), (50, 0.0, 0.0)],
)  # fmt: skip
def test_the_discount_follows_from_a_short_time_limit(
    limit: int | None, given: float | None, gamma: float
) -> None:
    for record, spec in ((PPO, SPEC), (DQN, SPEC), (SAC, BOX), (IMPALA, BOX), (PQN, SPEC)):
        config = TrainerConfig(env="any", algo=record.name, num_actors=1)
        told = record(gamma=given)
        assert told.for_run(config, replace(spec, max_episode_steps=limit)).gamma == gamma
        assert told.for_run(config, replace(spec, own_limit=limit)).gamma == gamma
        both = replace(spec, max_episode_steps=500, own_limit=limit)  # that of the registration counts
        assert told.for_run(config, both).gamma == told.discount
        assert told.discount == (0.99 if given is None else given)
    config = TrainerConfig(env="any", algo="r2d2", num_actors=1)
    assert R2D2().for_run(config, replace(SPEC, max_episode_steps=50)).gamma == 0.997


@pytest.mark.parametrize(
    ("limit", "given", "chosen"),
    [(None, None, False), (64, None, False), (65, None, True), (65, False, False), (12, True, True)],
)
def test_first_episodes_are_staggered_where_the_time_limit_is_longer_than_a_segment(
    limit: int | None, given: bool | None, chosen: bool
) -> None:
    for record in (PPO, A2C, IMPALA, PQN):
        config = TrainerConfig(env="any", algo=record.name, num_actors=1)
        told = record(staggered_resets=given, segment_length=64)
        for spec in (replace(SPEC, max_episode_steps=limit), replace(SPEC, own_limit=limit)):
            run = told.for_run(config, spec)
            assert run.staggered_resets is chosen
            assert run.staggered_limit(spec) == (limit if chosen else 0)


def test_only_ppo_staggers_by_default() -> None:
    told = {record.name: record().staggered_resets for record in (PPO, MAPPO, A2C, IMPALA, PQN)}
    assert told == {"ppo": None, "mappo": None, "a2c": False, "impala": False, "pqn": False}


def test_first_episodes_cannot_be_staggered_without_a_known_time_limit() -> None:
    config = TrainerConfig(env="any", algo="ppo", num_actors=1)
    with pytest.raises(
        ValueError, match=r"staggered_resets must be none or false for discrete, whose time limit"
    ):
        PPO(staggered_resets=True).for_run(config, SPEC)


def test_first_episodes_are_not_staggered_with_self_play() -> None:
    config = TrainerConfig(env="any", algo="ppo", num_actors=1, self_play="uniform")
    spec = replace(SPEC, max_episode_steps=500)
    assert PPO(segment_length=64).for_run(config, spec).staggered_resets is False
    with pytest.raises(ValueError, match=r"staggered_resets must be none or false with self_play='uniform'"):
        PPO(staggered_resets=True, segment_length=64).for_run(config, spec)


def test_first_episodes_of_a_vector_that_resets_itself_are_not_staggered() -> None:
    config = TrainerConfig(env="any", algo="ppo", num_actors=1)
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED):
        env = gymnasium.make_vec("CartPole-v1", 2, "sync", vector_kwargs={"autoreset_mode": mode})
        spec = checked_spec("pole", env)
        assert spec.time_limit == 500
        run = PPO(segment_length=64).for_run(config, spec)
        assert run.staggered_resets is (mode == AutoresetMode.DISABLED)
        env.close()
    itself = replace(spec, resets_itself=True)
    with pytest.raises(ValueError, match=r"must be none or false for pole, a vector environment that resets"):
        PPO(staggered_resets=True, segment_length=64).for_run(config, itself)


@pytest.mark.parametrize(
    ("values", "told", "critics"),
    [
        (63, {}, None),
        (64, {}, (256, 256)),
        (64, {"hidden_sizes": (32, 8)}, (64, 16)),
        (64, {"critic_hidden_sizes": (128, 128)}, (128, 128)),
        (64, {"network": small_network}, None),
        (16, {"frame_stack": 4}, (256, 256)),
    ],
)
def test_critics_of_crossq_are_wider_where_observations_are_large(
    values: int, told: dict[str, Any], critics: tuple[int, ...] | None
) -> None:
    spec = replace(BOX, observation_shape=(values,))
    record = CrossQ(**told)
    chosen = record.for_run(TrainerConfig(env="any", algo="crossq", num_actors=1), spec)
    assert chosen.critic_hidden_sizes == critics and chosen.hidden_sizes == record.hidden_sizes
    assert SAC().for_run(TrainerConfig(env="any", algo="sac", num_actors=1), spec).critic_hidden_sizes is None


def test_values_and_not_bytes_of_an_observation_decide_on_crossqs_critics() -> None:
    parts = spaces.Dict(
        {"x": spaces.Box(-1, 1, (20,), np.float32), "more": spaces.Box(0, 255, (8,), np.uint8)}
    )
    leaves = leaves_of(parts)
    assert leaves is not None
    size = sum(leaf.row_bytes for leaf in leaves)
    assert size >= 64 > sum(leaf.values for leaf in leaves)
    spec = replace(BOX, observation_shape=(size,), observation_dtype="uint8", leaves=leaves)
    config = TrainerConfig(env="any", algo="crossq", num_actors=1)
    assert CrossQ().for_run(config, spec).critic_hidden_sizes is None


@pytest.mark.parametrize(
    ("actors", "envs", "segments", "length", "real"),
    [
        (1, 16, None, 64, 128),
        (2, 8, None, 64, 128),
        (4, 8, 2, 64, 128),
        (1, 1, None, 1024, 2048),
        (3, 16, None, 32, 42),
        (15, 16, None, 32, 32),
    ],
)
def test_a_batch_has_as_many_steps_for_any_number_of_actors(
    actors: int, envs: int, segments: int | None, length: int, real: int
) -> None:
    config = TrainerConfig(env="any", algo="ppo", num_actors=actors, envs_per_actor=envs)
    record = PPO(segments_per_batch=segments)
    assert record.for_run(config, SPEC).segment_length == real == record.for_run(config, BOX).segment_length
    for other in (MAPPO(segments_per_batch=segments), PPO(segments_per_batch=segments, recurrent="gru")):
        assert other.for_run(config, SPEC).segment_length == length
        assert other.for_run(config, BOX).segment_length == real
    told = PPO(segment_length=7, ent_coef=0.5, gamma=0.9)
    assert told.for_run(config, SPEC) == replace(
        told, normalize_observations=False, learning_rate_schedule="constant", staggered_resets=False
    )


@pytest.mark.parametrize(
    ("actors", "envs", "options", "minibatches", "real"),
    [
        (2, 16, {}, 8, 8),  # 160 and 512 steps
        (1, 8, {}, 2, 2),
        (1, 1, {}, 1, 1),
        (4, 16, {"segments_per_batch": 1}, 4, 4),
        (1, 16, {"segment_length": 5}, 4, 1),
        (1, 4, {"segment_length": 400}, 4, 4),  # a minibatch has at least one stream
        (2, 16, {"minibatches": 1}, 1, 1),
    ],
)
def test_a_gradient_step_of_a2c_has_20_steps_or_more_and_64_with_real_valued_actions(
    actors: int, envs: int, options: dict[str, Any], minibatches: int, real: int
) -> None:
    config = TrainerConfig(env="any", algo="a2c", num_actors=actors, envs_per_actor=envs)
    assert A2C(**options).for_run(config, SPEC).minibatches == minibatches
    assert A2C(**options).for_run(config, BOX).minibatches == real
    assert IMPALA(**options).for_run(config, SPEC).minibatches == 1
    assert IMPALA(**options).for_run(config, BOX).minibatches == real
    if "minibatches" not in options:  # as many streams of past segments make twice as many gradient steps
        past = options.get("segments_per_batch", actors)
        twice = IMPALA(**options, past_segments=64, past_per_batch=past).for_run(config, BOX)
        assert real == 1 or twice.minibatches == 2 * real
        assert twice.streams_of_batch(config, BOX) == 2 * IMPALA(**options).streams_of_batch(config, BOX)


@pytest.mark.parametrize(("kind", "length"), [(A2C, 5), (IMPALA, 20)])
def test_options_of_a2c_and_impala_follow_from_the_kind_of_actions(kind: type[IMPALA], length: int) -> None:
    config = TrainerConfig(env="any", algo=kind.name, total_steps=1000)
    for spec, wanted in (
        (SPEC, (0.01, 1.0, "constant", False, False, length, 0, 0.0)),
        (BOX, (0.0, 0.95, "linear", True, True, 16, 4, 0.5)),
    ):
        assert chosen(kind().for_run(config, spec)) == wanted
    given = kind(
        ent_coef=0.3,
        gae_lambda=0.5,
        learning_rate_schedule="constant",
        normalize_observations=False,
        normalize_rewards=False,
        segment_length=7,
        value_epochs=2,
        bounds_coef=0.1,
    )
    assert chosen(given.for_run(config, BOX)) == (0.3, 0.5, "constant", False, False, 7, 2, 0.1)


def chosen(record: IMPALA) -> tuple[Any, ...]:
    return (
        record.ent_coef,
        record.gae_lambda,
        record.learning_rate_schedule,
        record.normalize_observations,
        record.normalize_rewards,
        record.segment_length,
        record.value_epochs,
        record.bounds_coef,
    )


@pytest.mark.parametrize("kind", [A2C, IMPALA])
def test_the_value_network_has_no_passes_of_its_own_where_it_shares_layers_or_steps(
    kind: type[IMPALA],
) -> None:
    config = TrainerConfig(env="any", algo=kind.name, total_steps=1000)
    image = EnvSpec("image", (3, 32, 32), "uint8", BOX.action, observation_kind="image")
    grid = replace(image, observation_shape=(7, 7, 3), observation_kind="grid")
    assert [kind().for_run(config, spec).value_epochs for spec in (image, grid)] == [0, 0]
    assert kind(recurrent="gru").for_run(config, BOX).value_epochs == 0
    fused = replace(config, groups=2, fusion="gradients")
    assert kind().for_run(fused, BOX).value_epochs == 0
    assert kind().for_run(replace(fused, fusion="average"), BOX).value_epochs == 4
    with pytest.raises(
        ConfigurationError, match="value_epochs must be 0 where groups fuse gradients"
    ) as raised:
        kind(value_epochs=1).for_run(fused, BOX)
    assert raised.value.facts["value_epochs"] == 1


@pytest.mark.parametrize(
    ("kind", "real", "discrete"),
    [
        (A2C, "linear", "constant"),
        (IMPALA, "linear", "constant"),
        (PPO, "cooldown", "cooldown"),
        (MAPPO, "cooldown", "cooldown"),
    ],
)
def test_the_rate_stays_without_an_end_and_where_it_is_a_function(
    kind: Any, real: str, discrete: str
) -> None:
    config = TrainerConfig(env="any", algo=kind.name, total_steps=1000)
    for spec, schedule in ((BOX, real), (SPEC, discrete)):
        assert kind().for_run(config, spec).learning_rate_schedule == schedule
        assert kind(learning_rate_schedule="linear").for_run(config, spec).learning_rate_schedule == "linear"
        own = kind(learning_rate=lambda progress: 1e-3).for_run(config, spec)
        assert own.learning_rate_schedule == "constant"
        endless = replace(config, total_steps=None, max_seconds=1.0)
        assert kind().for_run(endless, spec).learning_rate_schedule == "constant"


@pytest.mark.parametrize("kind", [A2C, IMPALA])
def test_images_are_not_normalised(kind: type[IMPALA]) -> None:
    config = TrainerConfig(env="any", algo=kind.name, total_steps=1000)
    image = EnvSpec("image", (3, 32, 32), "uint8", BOX.action, observation_kind="image")
    record = kind().for_run(config, image)
    assert record.normalize_observations is False and record.normalize_rewards


@pytest.mark.parametrize("kind", [PPO, A2C, IMPALA, PQN, MAPPO, DQN, R2D2, BC, IQL])
def test_bytes_that_are_no_image_are_normalised(kind: Any) -> None:
    config = TrainerConfig(env="any", algo=kind.name, total_steps=1000)
    octets = EnvSpec("octets", (4,), "uint8", SPEC.action, observation_kind="bytes")
    assert kind().for_run(config, octets).normalize_observations is True
    assert kind(normalize_observations=False).for_run(config, octets).normalize_observations is False
    for spec in (SPEC, replace(octets, observation_kind="values"), replace(octets, observation_kind="grid")):
        assert kind().for_run(config, spec).normalize_observations is False


def test_the_entropy_coefficient_follows_from_the_kind_of_actions() -> None:
    config = TrainerConfig(env="any", algo="ppo")
    choices = EnvSpec("choices", (4,), "float32", MultiDiscreteAction((2, 3)))
    assert [PPO().for_run(config, spec).ent_coef for spec in (SPEC, choices, BOX)] == [0.01, 0.01, 0.0]
    assert PPO(ent_coef=0.3).for_run(config, BOX).ent_coef == 0.3


def test_files_of_a_run_show_what_was_chosen(tmp_path: Path) -> None:
    options: Any = {"num_actors": 1, "envs_per_actor": 32, "http": "off", "eval_episodes": 1}
    trainer = Trainer("CartPole-v1", PPO(epochs=1), run_dir=tmp_path / "run", **options)
    result = trainer.learn(total_steps=64 * 32)
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["ppo"]
    assert written["segment_length"] == 64 and written["ent_coef"] == 0.01
    assert written["staggered_resets"] is True
    assert result.summary["env_steps"] >= 64 * 32
    assert trainer.algorithm == PPO(epochs=1)
