"""Datasets read into a ring: every step in its place, and clear errors for what does not fit."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from datasets import write_dataset
from gymnasium import spaces

from asyncrl import errors
from asyncrl.envs.packing import packed
from asyncrl.envs.source import EnvSource, describe
from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED, Agent
from asyncrl.replay.dataset_replay import DatasetReplay
from asyncrl.saved_state import restore, saved
from asyncrl.storage.dataset import dataset_id, open_dataset, read_dataset

minari = pytest.importorskip("minari")


class Walk(gymnasium.Env[Any, Any]):
    """Dict observations of a walk; episodes of 2, 3 and 4 steps, each third one is truncated."""

    observation_space = spaces.Dict({"at": spaces.Box(-99, 99, (2,)), "cell": spaces.Discrete(9, start=1)})
    action_space = spaces.Box(-2.0, 4.0, (1, 2))
    episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.step_ = self.episode + 1, 0
        return self.seen(), {}

    def seen(self) -> Any:
        return {"at": np.array((self.episode, self.step_), np.float32), "cell": np.int64(1 + self.step_)}

    def step(self, action: Any) -> Any:
        self.step_ += 1
        ends = self.step_ == 2 + self.episode % 3
        cut = self.episode % 3 == 2
        return self.seen(), 10.0 * self.episode + self.step_, ends and not cut, ends and cut, {}


def rows_of(obs: Any) -> Any:
    return packed(Walk())._packed(obs)


@pytest.fixture
def walk(tmp_path: Path) -> Path:
    return write_dataset(
        tmp_path / "walk",
        Walk,
        lambda obs, rng: rng.uniform(-2, 4, (1, 2)).astype(np.float32),
        steps=30,
        stored=rows_of,
    )


def test_every_step_is_in_the_ring(walk: Path) -> None:
    spec = describe(EnvSource.from_user(Walk))
    segment, ring = read_dataset(str(walk), spec, ahead=3)
    with segment:
        at = 0
        for number, episode in enumerate(minari.MinariDataset(str(walk / "data"))):
            steps = len(episode)
            for step in range(steps + 1):
                assert ring.obs[0, at + step, :2].tolist() == [number, step]
                assert ring.obs[0, at + step, 2:].argmax() == step and ring.obs[0, at + step, 2:].sum() == 1
            np.testing.assert_array_equal(ring.action[0, at : at + steps], episode.actions)
            np.testing.assert_array_equal(ring.reward[0, at : at + steps], episode.rewards)
            last = TRUNCATED if number % 3 == 2 else TERMINATED
            assert ring.flags[0, at : at + steps + 1].tolist() == [0] * (steps - 1) + [last, RESET]
            at += steps + 1
        assert ring.published() == ring.granted == at + 3 and (ring.flags[0, at : at + 3] == RESET).all()
        steps = np.count_nonzero(ring.flags[0, :at] & RESET == 0)
        assert not ring.incarnation.any() and ring.statistics().env_steps == steps >= 30
        del ring


class Talk(Walk):
    """The same in a Tuple behind a text, which a dataset does not have."""

    observation_space = spaces.Tuple([spaces.Text(5), *Walk.observation_space.values()])  # type: ignore[assignment]

    def seen(self) -> Any:
        return "yes", *super().seen().values()


def test_a_tuple_with_text_is_read_as_it_was_written(tmp_path: Path) -> None:
    def act(obs: Any, rng: np.random.Generator) -> Any:
        return np.zeros((1, 2), np.float32)

    folder = write_dataset(
        tmp_path / "talk", Talk, act, steps=5, stored=lambda obs: packed(Talk())._packed(obs)
    )
    segment, ring = read_dataset(str(folder), describe(EnvSource.from_user(Talk)), ahead=1)
    with segment:
        cells = ring.obs[0, :7, 2:].argmax(axis=1)
        assert ring.obs[0, :7, :2].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [1, 3]]
        assert cells.tolist() == [0, 1, 2, 0, 1, 2, 3]
        ring.close()


def test_a_dataset_is_found_by_folder_data_and_name(walk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(walk.parent))
    for name in (str(walk), str(walk / "data"), "walk"):
        assert open_dataset(name).total_episodes > 5


class OtherActions(Walk):
    """The same with another upper bound."""

    action_space = spaces.Box(-2.0, 3.0, (1, 2))


class OtherCells(Walk):
    """The same with cells that count from 0."""

    observation_space = spaces.Dict({"at": spaces.Box(-99, 99, (2,)), "cell": spaces.Discrete(10)})


@pytest.mark.parametrize(
    ("env", "text", "has"),
    [
        ("CartPole-v1", "another observation space than CartPole-v1", "float32 of shape (4,)"),
        (OtherActions, "another action space than OtherActions", "Box from -2 to 3 of shape (1, 2)"),
        (
            OtherCells,
            "another observation space than OtherCells",
            "at values of shape (2,), cell choices [10] from [0]",
        ),
    ],
)
def test_other_spaces_are_refused(env: Any, text: str, has: str, walk: Path) -> None:
    with pytest.raises(errors.SpacesDoNotFit, match=text) as refused:
        read_dataset(str(walk), describe(EnvSource.from_user(env)), ahead=1)
    facts = refused.value.facts
    assert facts["of the environment"] == has != facts["of the dataset"]


def test_no_dataset_an_empty_and_a_damaged_one(
    walk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "own"))
    with pytest.raises(
        errors.ConfigurationError, match=r"there is no dataset in .*nowhere: it has no data/metadata"
    ):
        open_dataset(str(tmp_path / "nowhere"))
    spec = describe(EnvSource.from_user(Walk))
    with h5py.File(walk / "data" / "main_data.hdf5", "a") as file:
        file["episode_2"]["rewards"][1] = np.nan
    with pytest.raises(
        errors.ConfigurationError, match=r"a reward of the dataset .* is NaN or infinite"
    ) as refused:
        read_dataset(str(walk), spec, ahead=1)
    assert refused.value.facts["episode"] == 2
    with h5py.File(walk / "data" / "main_data.hdf5", "a") as file:
        del file["episode_1"]
    with pytest.raises(errors.ConfigurationError, match=r"the dataset .* cannot be read: .*episode_1"):
        read_dataset(str(walk), spec, ahead=1)
    write_dataset(tmp_path / "empty", Walk, steps=0, stored=rows_of)
    with pytest.raises(errors.ConfigurationError, match=r"the dataset .* is empty"):
        read_dataset(str(tmp_path / "empty"), spec, ahead=1)


def test_choices_out_of_range_are_refused(tmp_path: Path) -> None:
    """A loss would read and write beyond its arrays by them."""
    folder = write_dataset(tmp_path / "pole", steps=30)
    spec = describe(EnvSource.from_user("CartPole-v1"))
    for wrong in (2, -1):
        with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
            file["episode_0"]["actions"][3] = wrong
        with pytest.raises(
            errors.ConfigurationError, match=r"cannot be read: .*an action is not one of Discrete\(2\)"
        ):
            read_dataset(str(folder), spec, ahead=1)


def test_actions_beyond_the_bounds_are_told_and_kept(walk: Path) -> None:
    spec = describe(EnvSource.from_user(Walk))
    with h5py.File(walk / "data" / "main_data.hdf5", "a") as file:
        file["episode_0"]["actions"][:] = [[[-2.5, 0.0]], [[4.00001, -2.00001]]]
        file["episode_1"]["actions"][0] = [[0.0, 7.0]]
        steps = sum(len(file[name]["actions"]) for name in file)
    says = (
        rf"ASYNC050\] 2 of {steps} actions .* outside of the bounds of .*Walk.* from -2 to 4 .*, by up to 3;"
    )
    with pytest.warns(errors.ActionsBeyondBounds, match=says):
        segment, ring = read_dataset(str(walk), spec, ahead=1)
    assert ring.action[0, 0].tolist() == [[-2.5, 0.0]] and 7.0 in ring.action[0]
    segment.close()


@pytest.mark.parametrize(
    ("name", "wrong", "text"),
    [
        ("rewards", np.array([b"one"] * 3), r"rewards must be an array of real numbers, got"),
        ("rewards", np.ones((3, 1)), r"rewards must have shape \[T\], got \(3, 1\)"),
        ("actions", np.array([0, 0.5, 1]), r"actions must be int64, got 0\.5 among float64"),
        ("actions", np.int64(1), r"actions must be an array of real numbers, got int64 of sha"),
        ("actions", np.zeros(3, np.complex64), r"of real numbers, got complex64 of shape \(3,\)"),
        ("rewards", np.array([0, 1e300, 0]), r"a reward of the dataset .* is NaN or infinite"),
    ],
)
def test_values_of_another_type_are_refused(name: str, wrong: Any, text: str, tmp_path: Path) -> None:
    """Text and scalars ended in a traceback; a half was cut to a whole number, an imaginary part cut off."""
    folder = write_dataset(tmp_path / "typed", "CartPole-v1", lambda obs, rng: 1, steps=1)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        episode = file["episode_0"]
        for column in list(episode):
            if isinstance(episode[column], h5py.Dataset):
                short = episode[column][: 4 if column == "observations" else 3]
                del episode[column]
                episode[column] = wrong if column == name else short
    with pytest.raises(errors.ConfigurationError, match=text) as refused:
        read_dataset(str(folder), describe(EnvSource.from_user("CartPole-v1")), ahead=1)
    assert refused.value.facts["episode"] == 0


class Cells(gymnasium.Env[Any, Any]):
    """Observations of whole numbers, which are stored as they are; episodes of one step."""

    observation_space, action_space = spaces.Box(-9, 9, (2,), np.int16), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.int16), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.int16), 0.0, True, False, {}


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 0.5, 40_000.0])
def test_whole_numbers_that_are_none_are_refused(wrong: float, tmp_path: Path) -> None:
    """NaN became -32768, and 40,000 another number."""
    folder = write_dataset(tmp_path / "cells", Cells, lambda obs, rng: 1, steps=3)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        del file["episode_1"]["observations"]
        file["episode_1"]["observations"] = np.array([[0, 1], [wrong, 0]])
    with pytest.raises(
        errors.ConfigurationError, match=rf"observations must be int16, got {wrong}"
    ) as refused:
        read_dataset(str(folder), describe(EnvSource.from_user(Cells)), ahead=1)
    assert refused.value.facts["episode"] == 1


def test_a_damaged_file_and_counts_that_are_none(walk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """h5py raises RuntimeError for some damage; Minari returns the counts of the metadata as they are."""
    spec, metadata = describe(EnvSource.from_user(Walk)), walk / "data" / "metadata.json"
    kept = json.loads(metadata.read_text())
    for count, text in (("x", "invalid literal"), ([], "int"), (3, "more steps than its metadata.json says")):
        metadata.write_text(json.dumps({**kept, "total_steps": count}))
        with pytest.raises(errors.ConfigurationError, match=rf"cannot be read: .*{text}"):
            read_dataset(str(walk), spec, ahead=1)
    metadata.write_text(json.dumps(kept))
    monkeypatch.setattr(h5py.Group, "__iter__", lambda self: (_ for _ in ()).throw(RuntimeError("damaged")))
    with pytest.raises(errors.ConfigurationError, match=r"cannot be read: RuntimeError: damaged"):
        read_dataset(str(walk), spec, ahead=1)


def test_a_dataset_without_a_step_is_empty(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "cells", Cells, lambda obs, rng: 1, steps=2)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        for episode in file.values():
            for column in ("observations", "actions", "rewards", "terminations", "truncations"):
                first = episode[column][: int(column == "observations")]
                del episode[column]
                episode[column] = first
    with pytest.raises(errors.ConfigurationError, match=r"is empty: it has no steps"):
        read_dataset(str(folder), describe(EnvSource.from_user(Cells)), ahead=1)


@pytest.mark.parametrize(
    ("name", "got"), [("actions", "1 and 5"), ("observations/at", "4 and 1"), ("rewards", "4 and 5")]
)
def test_an_episode_whose_columns_differ_in_length_is_refused(walk: Path, name: str, got: str) -> None:
    """An axis of one would be repeated for every step."""
    with h5py.File(walk / "data" / "main_data.hdf5", "a") as file:
        episode = file["episode_2"]
        assert len(episode["rewards"]) == 4
        for path in (name, "observations/cell") if name.startswith("observations") else (name,):
            first = episode[path][:1]
            del episode[path]
            episode[path] = first
    spec = describe(EnvSource.from_user(Walk))
    with pytest.raises(errors.ConfigurationError, match=rf"one observation more, got {got}"):
        read_dataset(str(walk), spec, ahead=1)


@pytest.mark.parametrize("name", ["terminations", "truncations"])
def test_an_end_within_an_episode_is_refused(walk: Path, name: str) -> None:
    """Values would be bootstrapped, and n-step returns summed, over the end of an episode."""
    spec = describe(EnvSource.from_user(Walk))
    read_dataset(str(walk), spec, ahead=1)[0].close()
    with h5py.File(walk / "data" / "main_data.hdf5", "a") as file:
        assert len(file["episode_2"][name]) == 4
        file["episode_2"][name][1] = True
    with pytest.raises(errors.ConfigurationError, match=r"ends before its last step") as refused:
        read_dataset(str(walk), spec, ahead=1)
    assert refused.value.facts["episode"] == 2
    assert refused.value.facts["ends within"] == "1, the first at step 1 of 4"
    with h5py.File(walk / "data" / "main_data.hdf5", "a") as file:
        del file["episode_2"][name]
        file["episode_2"][name] = np.zeros(3, np.bool_)
    with pytest.raises(errors.ConfigurationError, match=r"of 4 rewards must have as many ends, got"):
        read_dataset(str(walk), spec, ahead=1)


def test_names_of_datasets(tmp_path: Path) -> None:
    assert dataset_id(tmp_path / "hopper-medium-v2") == "hopper-medium-v2"
    assert dataset_id(tmp_path / "my data") == "my-data-v0"


def test_several_agents_are_refused(walk: Path) -> None:
    spec = dataclasses.replace(describe(EnvSource.from_user(Walk)), agents=(Agent("a"), Agent("b")))
    with pytest.raises(
        errors.SpacesDoNotFit, match="has 2 agents, and an episode of a Minari dataset has one"
    ):
        read_dataset(str(walk), spec, ahead=1)


def test_a_dataset_of_the_same_actions_and_other_observations_is_another_one(walk: Path) -> None:
    segment, ring = read_dataset(str(walk), describe(EnvSource.from_user(Walk)), ahead=1)
    with segment:

        def replay() -> DatasetReplay:
            return DatasetReplay(ring, n_step=1, gamma=0.9, rng=np.random.default_rng(0))

        state = saved(replay())
        restore(replay(), state)
        ring.obs[0, 3] += 1
        with pytest.raises(errors.ConfigurationError, match="it holds other steps"):
            restore(replay(), state)
