"""Policy file: acts the same without torch, runs no code on load, and refuses invalid files."""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from portable_policies import BOX, CASES, make_network, portable, small
from safetensors.numpy import load_file
from tensor_files import rewritten
from waiting import PATIENCE_SECONDS

import asyncrl
from asyncrl.envs.source import EnvSource
from asyncrl.errors import CheckpointError
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.policies.policy_file import PolicyFile, read_policy_file, write_policy
from asyncrl.policies.portable_policy import PortablePolicy


@pytest.mark.parametrize("case", CASES)
def test_every_algorithm_acts_the_same_from_its_file(case: str, tmp_path: Path) -> None:
    algorithm, action = CASES[case]
    policy = portable(algorithm, EnvSpec("any", (6,), "float32", action))
    again = asyncrl.load(policy.save(tmp_path / "new" / "folder" / "x.policy"))
    obs = np.random.default_rng(1).normal(size=(50, 6)).astype(np.float32) * 3
    assert np.array_equal(again.predict(obs)[0], policy.predict(obs)[0])
    for made in (policy, again):
        made.rng = np.random.default_rng(2)
    explored = [made.predict(obs, deterministic=False)[0] for made in (policy, again)]
    assert np.array_equal(*explored)
    assert (again.algorithm, again.spec, again.meta.env_steps) == (algorithm, policy.spec, 12)


def test_loading_and_acting_need_no_torch(tmp_path: Path) -> None:
    policy = portable(
        asyncrl.PPO(normalize_observations=True), EnvSpec("any", (3,), "float32", BOX), "Pendulum-v1"
    )
    policy.save(tmp_path / "x.policy")
    code = (
        "import sys, json, asyncrl\n"
        f"policy = asyncrl.load({str(tmp_path / 'x.policy')!r})\n"
        "action, _ = policy.predict([0.25, -1.0, 2.0])\n"
        "assert 'torch' not in sys.modules and 'gymnasium' not in sys.modules\n"
        "env = policy.make_env()\n"
        "assert env.unwrapped.spec.id == 'Pendulum-v1' and 'torch' not in sys.modules\n"
        "print(json.dumps(action.tolist()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert json.loads(done.stdout) == policy.predict([0.25, -1.0, 2.0])[0].tolist()


ALONE = """
import re, sys
from importlib.abc import MetaPathFinder

class Refused(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2].split(","):
            raise ImportError(name)

sys.meta_path.insert(0, Refused())
import asyncrl
policy = asyncrl.load(sys.argv[1])
obs = [0.25, -1.0, 2.0]
print(policy.predict(obs)[0].tolist(), policy.values(obs), policy.log_prob([0, 0, 0], [0, 0]))
policy.save(sys.argv[1] + ".again")
"""


def test_a_policy_needs_only_the_packages_that_the_page_names(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "saving.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^pip install ((?:\w[\w-]* ?)+)$", page.split("### Without torch")[1], flags=re.M)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.split(r"[<>=; ]", entry)[0] for entry in project["dependencies"]}
    assert set(line.split()) < needed and "torch" in needed
    refused = ",".join(name.replace("-", "_") for name in needed - set(line.split()))
    spec = EnvSpec("Pendulum-v1", (3,), "float32", BOX)
    algorithm = asyncrl.PPO(normalize_observations=True)
    made = portable(algorithm, spec)
    critics = algorithm.make_updater(spec, "cpu", 0).critic_weights()
    policy = PortablePolicy(algorithm, made.weights, made.meta, made.source, critics)
    file = policy.save(tmp_path / "x.policy", critics=True)
    command = [sys.executable, "-c", ALONE, str(file), refused]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    obs = [0.25, -1.0, 2.0]
    expected = policy.predict(obs)[0].tolist(), policy.values(obs), policy.log_prob([0, 0, 0], [0, 0])
    assert (done.returncode, done.stdout) == (0, " ".join(map(str, expected)) + "\n"), done.stderr
    assert Path(f"{file}.again").exists()


def test_any_reader_of_safetensors_reads_the_weights(tmp_path: Path) -> None:
    policy = small()
    tensors = load_file(policy.save(tmp_path / "x.policy"))
    assert list(tensors) == ["weights"]
    assert tensors["weights"].tolist() == policy.weights.tolist()


def test_an_own_network_needs_its_code_or_trust(tmp_path: Path) -> None:
    spec = EnvSpec("CartPole-v1", (4,), "float32", DiscreteAction(2))
    policy = portable(asyncrl.DQN(network=make_network), spec)
    file = policy.save(tmp_path / "x.policy")
    obs = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    with pytest.raises(CheckpointError, match="network of its own") as caught:
        asyncrl.load(file)
    assert "trusted=True" in caught.value.fix
    for options in ({"network": make_network}, {"trusted": True}):
        assert np.array_equal(asyncrl.load(file, **options).predict(obs)[0], policy.predict(obs)[0])


def test_the_factory_makes_the_environment_again(tmp_path: Path) -> None:
    gravity = 3.0
    file = small(lambda: gymnasium.make("Pendulum-v1", g=gravity)).save(tmp_path / "x.policy")
    again = asyncrl.load(file)
    assert again.make_env().unwrapped.g == 3.0
    assert again.make_env("rgb_array").render_mode == "rgb_array"
    assert asyncrl.load(again.save(tmp_path / "y.policy")).make_env().unwrapped.g == 3.0


def test_an_id_is_kept_with_its_keyword_arguments_and_wrappers_as_text(tmp_path: Path) -> None:
    source = EnvSource.from_user("Pendulum-v1")
    changed = source.changed({"g": 3.0}, ["gymnasium.wrappers:FlattenObservation"])
    file = small(changed).save(tmp_path / "x.policy")
    assert read_policy_file(file).environment_kind == "changed"
    env = asyncrl.load(file).make_env("rgb_array")
    assert isinstance(env, gymnasium.wrappers.FlattenObservation)
    assert (env.unwrapped.g, env.render_mode) == (3.0, "rgb_array")


class Malicious:
    """Object whose unpickling makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("place", ["environment", "network"])
def test_a_malicious_pickle_runs_nothing_on_load(place: str, tmp_path: Path) -> None:
    evil, made = pickle.dumps(Malicious(tmp_path / "made")), tmp_path / "made"
    policy = small()
    file = PolicyFile(policy.meta, policy.weights)
    if place == "environment":
        write_policy(tmp_path / "x", replace(file, environment_kind="factory", environment=evil))
        loaded = asyncrl.load(tmp_path / "x")
        loaded.predict(np.zeros(4))
        assert not made.exists()
        with pytest.raises(asyncrl.AsyncRLError):
            loaded.make_env()
    else:
        write_policy(tmp_path / "x", replace(file, network=evil))
        with pytest.raises(CheckpointError):
            asyncrl.load(tmp_path / "x")
        assert not made.exists()
        with pytest.raises(CheckpointError):
            asyncrl.load(tmp_path / "x", trusted=True)
    assert made.exists(), "the pickle was malicious"


def refusal(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        asyncrl.load(path)
    assert caught.value.facts["file"] == path
    assert str(caught.value).startswith("[ASYNC019]")
    return caught.value


def test_every_flipped_bit_and_every_cut_is_refused(tmp_path: Path) -> None:
    good = small(lambda: None).save(tmp_path / "good").read_bytes()
    header = 8 + struct.unpack("<Q", good[:8])[0]
    rng, bad = np.random.default_rng(0), tmp_path / "bad"
    # Every bit of the length and of the header's digits, one of each of its other bytes, and 300 of the tensors.
    digits = {at for at in range(header) if at < 8 or good[at : at + 1].isdigit()}
    bits = [
        8 * at + bit
        for at in range(header)
        for bit in (range(8) if at in digits else rng.integers(8, size=1))
    ]
    for bit in [*bits, *rng.integers(8 * header, 8 * len(good), 300).tolist()]:
        data = bytearray(good)
        data[bit // 8] ^= 1 << (bit % 8)
        bad.write_bytes(data)
        refusal(bad)
    for end in [0, 7, 8, 9, len(good) - 1, *rng.integers(8, len(good), 20).tolist()]:
        bad.write_bytes(good[:end])
        refusal(bad)
    bad.write_bytes(good + b"\0")
    assert refusal(bad).facts["failed check"] == "length"


def metadata(**values: Any) -> Any:
    return lambda table: table["__metadata__"].update(values)


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (metadata(version="1"), "format version"),
        (metadata(version="3"), "format version"),
        (metadata(format="pt"), "header"),
        (metadata(header="[]"), "header"),
        (metadata(header="[" * 100_000), "header"),
        (metadata(header='{"environment": "id", "meta": {}}'), "header"),
        (metadata(header=3), "header"),
        (lambda table: table["__metadata__"].pop("sha256") and None, "header"),
        (lambda table: table.pop("__metadata__") and None, "header"),
        (lambda table: [table], "header"),
        (lambda table: table["weights"].update(shape=[2**40], data_offsets=[0, 2**42]), "length"),
        (lambda table: table["weights"].update(shape=[2**70]), "header"),
        (lambda table: table["weights"].update(shape=[-1]), "header"),
        (lambda table: table["weights"].update(dtype="F64"), "header"),
        (lambda table: table["weights"].update(data_offsets=[0, 2**62]), "header"),
        (lambda table: table["weights"].update(data_offsets=[4, 4]), "header"),
        (lambda table: table["weights"].update(shape=[1] * 40), "header"),
        (lambda table: table.update(code=table["weights"]), "header"),
        (lambda table: table.pop("weights") and None, "length"),
        (lambda table: table.update(environment=table.pop("weights")), "header"),
    ],
)
def test_a_header_that_lies_is_refused(change: Any, check: str, tmp_path: Path) -> None:
    file = rewritten(small().save(tmp_path / "x"), change)
    assert refusal(file).facts["failed check"] == check


@pytest.mark.parametrize("frames", [0, 2, -1])
def test_the_specification_of_a_stack_is_refused(frames: int, tmp_path: Path) -> None:
    policy = small()
    meta = replace(policy.meta, spec=replace(policy.meta.spec, frame_stack=frames))
    write_policy(tmp_path / "x", PolicyFile(meta, policy.weights))
    assert f"must be 1, got {frames}" in refusal(tmp_path / "x").what


def test_a_length_beyond_the_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(struct.pack("<Q", 2**60) + b"{}")
    assert refusal(tmp_path / "x").facts["failed check"] == "length"
    with (tmp_path / "sparse").open("wb") as file:
        file.write(struct.pack("<Q", 2**33) + b"{")
        file.truncate(2**34)  # 16 GiB that take no space
    assert refusal(tmp_path / "sparse").facts["failed check"] == "length"


@pytest.mark.parametrize("own", [False, True])
def test_weights_that_do_not_fit_are_refused_before_they_are_read(own: bool, tmp_path: Path) -> None:
    file = tmp_path / "x"
    policy = small()
    write_policy(file, PolicyFile(policy.meta, policy.weights, network=b"pickle" if own else None))
    values = 2**36  # 256 GiB that take no space

    def claim(table: Any) -> None:
        table["weights"].update(shape=[values], data_offsets=[0, 4 * values])
        if own:
            table["network"]["data_offsets"] = [4 * values, 4 * values + 6]

    data = rewritten(file, claim).read_bytes()
    header = 8 + struct.unpack("<Q", data[:8])[0]
    with file.open("r+b") as opened:
        opened.truncate(header + 4 * values + (6 if own else 0))
    assert refusal(file).facts["failed check"] == ("network" if own else "options")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hidden_sizes": (10**9, 10**9)}, "weights, it holds"),
        ({"hidden_sizes": (9,)}, "weights, it holds"),
        ({"learnin_rate": 1.0}, "learnin_rate"),
        ({"gamma": 7.0}, "gamma"),
    ],
)
def test_options_that_do_not_fit_the_weights_are_refused(options: Any, says: str, tmp_path: Path) -> None:
    policy = small()
    meta = replace(policy.meta, options={**policy.meta.options, **options})
    write_policy(tmp_path / "x", PolicyFile(meta, policy.weights))
    assert says in refusal(tmp_path / "x").what


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    policy = small()
    write_policy(tmp_path / "x", PolicyFile(policy.meta, policy.weights * np.float32(np.nan)))
    assert refusal(tmp_path / "x").facts["failed check"] == "weights"


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none").facts["failed check"] == "open"
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe").facts["failed check"] == "open"
    torch.save({"weights": torch.zeros(3)}, tmp_path / "torch")
    assert refusal(tmp_path / "torch").facts["failed check"] in ("header", "length")


def test_a_directory_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    """The error was of `.name.123.tmp`, a file that nobody has heard of."""
    for write in (small().save, small().export_onnx):
        with pytest.raises(
            IsADirectoryError, match="a policy is one file; name one in this directory"
        ) as raised:
            write(tmp_path)
        assert raised.value.filename == str(tmp_path) and not list(tmp_path.iterdir())


def test_saving_replaces_the_old_file_whole(tmp_path: Path) -> None:
    file = tmp_path / "x.policy"
    small().save(file)
    again = small()
    again.weights[:] = 1.0
    again.save(str(file))
    assert read_policy_file(file).weights.tolist() == again.weights.tolist()
    assert list(tmp_path.iterdir()) == [file]


def test_the_text_of_a_policy_says_what_it_is(tmp_path: Path) -> None:
    assert repr(small()) == "<policy: dqn on CartPole-v1 after 12 steps>"


def test_a_frame_stack_comes_with_its_environment(tmp_path: Path) -> None:
    spec = EnvSpec("CartPole-v1", (4,), "float32", DiscreteAction(2))
    policy = portable(asyncrl.DQN(hidden_sizes=(8,), frame_stack=3), spec)
    again = asyncrl.load(policy.save(tmp_path / "x.policy"))
    env = again.make_env()
    stack, _ = env.reset(seed=0)
    assert stack.shape == (3, 4)
    assert np.array_equal(stack[0], stack[2]), "the first observation is repeated"
    first, state = policy.predict(stack[2], episode_start=True)
    assert again.predict(stack)[0] == first
    newest = env.step(first)[0]
    assert again.predict(newest)[0] == policy.predict(newest[2], state=state, episode_start=False)[0]


def test_a_convolutional_network_of_ours_needs_no_trust(tmp_path: Path) -> None:
    spec = EnvSpec("CartPole-v1", (3, 10, 10), "uint8", DiscreteAction(2))
    policy = portable(asyncrl.DQN(), spec)
    obs = np.random.default_rng(0).integers(256, size=(20, 3, 10, 10), dtype=np.uint8)
    again = asyncrl.load(policy.save(tmp_path / "x.policy"))
    assert np.array_equal(again.predict(obs)[0], policy.predict(obs)[0])


def test_exploration_by_a_function_is_kept_as_the_rate_at_its_end(tmp_path: Path) -> None:
    spec = EnvSpec("CartPole-v1", (4,), "float32", DiscreteAction(2))
    policy = portable(
        asyncrl.DQN(hidden_sizes=(8,), exploration=lambda progress: 1.0 - 0.75 * progress), spec
    )
    again = asyncrl.load(policy.save(tmp_path / "x.policy"))
    obs = np.zeros((10, 4), np.float32)
    again.predict(obs, deterministic=False)
    assert again.policy.exploration_rate == pytest.approx(0.25)


def test_an_algorithm_that_is_not_registered_is_named(tmp_path: Path) -> None:
    policy = small()
    write_policy(tmp_path / "x", PolicyFile(replace(policy.meta, algo="os"), policy.weights))
    error = refusal(tmp_path / "x")
    assert "written by algorithm 'os'" in error.what
    assert error.fix == "import the module that registers it, or use the asyncrl that wrote it"
