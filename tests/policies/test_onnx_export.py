"""ONNX models act like the policies from which they were written, in onnxruntime and without asyncrl."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from portable_policies import BOX, CASES, make_network, portable
from waiting import PATIENCE_SECONDS

import asyncrl
from asyncrl.cli.main import main
from asyncrl.envs.observations import rows_of
from asyncrl.errors import ConfigurationError
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec, Leaf, MultiDiscreteAction

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

UNBOUNDED = BoxAction((-1.0, -float("inf")), (1.0, float("inf")), (2,))
MORE = {
    "dqn dueling": (asyncrl.DQN(dueling=True, hidden_sizes=(8, 8)), DiscreteAction(3, -1)),
    "c51 dueling": (asyncrl.C51(dueling=True, hidden_sizes=(8, 8)), DiscreteAction(3)),
    "qrdqn dueling": (asyncrl.QRDQN(dueling=True, hidden_sizes=(8, 8)), DiscreteAction(3)),
    "ppo relu": (asyncrl.PPO(activation="relu"), DiscreteAction(4)),
    "ppo gaussian": (asyncrl.PPO(normalize_observations=True), UNBOUNDED),
    "ppo frames": (asyncrl.PPO(frame_stack=3, normalize_observations=True), DiscreteAction(4)),
    "sac frames": (asyncrl.SAC(frame_stack=2), BOX),
    "sac integers": (asyncrl.SAC(), BoxAction((-9.0,) * 2, (20.0,) * 2, (2,), "int64")),
    "ppo int32": (asyncrl.PPO(), MultiDiscreteAction((3, 2), (1, -1), (), "int32")),
    "dqn int32": (asyncrl.DQN(), DiscreteAction(3, 4, "int32")),
    "ppo float16": (asyncrl.PPO(), BoxAction((-1.0,), (1.0,), (1,), "float16")),
    "sac table": (asyncrl.SAC(), BoxAction((-1.0,) * 6, (2.0,) * 6, (2, 3))),
}

CHOICES = [case for case, (_, action) in (CASES | MORE).items() if not isinstance(action, BoxAction)]


def session(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize(
    "case", [case for case in CASES | MORE if case != "r2d2"]
)  # see test_recurrent_policies
def test_the_model_acts_as_the_policy(case: str, dtype: str, tmp_path: Path) -> None:
    algorithm, action = (CASES | MORE)[case]
    policy = portable(algorithm, EnvSpec("any", (2, 3), dtype, action))
    rng = np.random.default_rng(1)
    policy.weights[:] += rng.normal(scale=1.0 if case in CHOICES else 0.1, size=policy.weights.shape)
    layout: Any = policy.policy.layout
    if dtype == "uint8" and getattr(layout, "normalized", False):
        policy.weights[layout.obs_mean] += 127.0
        policy.weights[layout.obs_scale] /= 64.0
    policy.policy.load_weights(policy.weights)
    model = session(policy.export_onnx(tmp_path / "x.onnx"))
    frames = algorithm.frame_stack
    for rows in (1, 200):
        shape = (rows, 2, 3) if frames == 1 else (rows, frames, 2, 3)
        obs = rng.normal(scale=3.0, size=shape).astype(dtype)
        if dtype == "uint8":
            obs = rng.choice([0, 255], size=shape).astype(np.uint8)
        expected = policy.predict(obs)[0]
        (got,) = model.run(None, {"obs": obs})
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        if expected.dtype == np.float32:
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-5)
        else:
            assert np.array_equal(got, expected)
    assert len(np.unique(expected, axis=0)) > 1, "the actions differ"


@pytest.mark.parametrize("frames", [1, 2])
def test_an_observation_that_is_one_number_is_a_model_too(frames: int, tmp_path: Path) -> None:
    policy = portable(asyncrl.DQN(frame_stack=frames), EnvSpec("any", (), "float32", DiscreteAction(3)))
    model = session(policy.export_onnx(tmp_path / "x.onnx"))
    obs = np.linspace(-3, 3, 10, dtype=np.float32).reshape((10,) if frames == 1 else (5, 2))
    assert np.array_equal(model.run(None, {"obs": obs})[0], policy.predict(obs)[0])


IMAGES = {
    "small, channels last, frames": ((10, 11, 4), asyncrl.DQN(frame_stack=2), DiscreteAction(3)),
    "small, one channel, dueling": ((12, 12), asyncrl.DQN(dueling=True, frame_stack=3), DiscreteAction(3)),
    "noisy": ((2, 12, 12), asyncrl.Rainbow(network="small"), DiscreteAction(3)),
    "nature, atoms": ((4, 40, 36), asyncrl.C51(network="nature", dueling=True), DiscreteAction(3)),
    "impala": ((17, 13, 3), asyncrl.PPO(network="impala"), DiscreteAction(3)),
    "small, layer normalisation": ((30, 30, 3), asyncrl.PQN(), DiscreteAction(3)),
    "small, SAC": ((3, 10, 10), asyncrl.SAC(), BOX),
}


@pytest.mark.parametrize("case", IMAGES)
def test_convolutional_networks_act_alike(case: str, tmp_path: Path) -> None:
    shape, algorithm, action = IMAGES[case]
    policy = portable(algorithm, EnvSpec("any", shape, "uint8", action))
    frames = () if algorithm.frame_stack == 1 else (algorithm.frame_stack,)
    rng, drawn = np.random.default_rng(1), policy.weights.copy()
    obs = (rng.random((40, *frames, *shape)) < rng.random((40, *[1] * len((*frames, *shape))))).astype(
        np.uint8
    ) * 255
    expected = np.zeros(1)
    while len(np.unique(expected, axis=0)) == 1:  # weights for which the actions differ
        policy.weights[:] = drawn + rng.normal(scale=0.06, size=drawn.shape)
        policy.policy.load_weights(policy.weights)
        expected = policy.predict(obs)[0]
    (got,) = session(policy.export_onnx(tmp_path / "x.onnx")).run(None, {"obs": obs})
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-5)


def leaves(mask: int = 0, *, camera: bool = False) -> tuple[Leaf, ...]:
    """Arrays of a Dict observation of every kind, with a mask of so many actions, and an image or none."""
    found = [
        Leaf(("arm", "angle"), "values", (2, 2)),
        Leaf(("gear",), "choices", (), (3,), (-1,)),
        Leaf(("hands",), "choices", (2,), (2, 4), (0, 5)),
    ]
    if mask:
        found.append(Leaf(("action_mask",), "values", (mask,)))
    if camera:
        found.append(Leaf(("camera",), "image", (12, 10, 3)))
    return tuple(found)


def structured(action: Any, parts: tuple[Leaf, ...]) -> EnvSpec:
    as_bytes = any(leaf.kind == "image" for leaf in parts)
    size = sum(leaf.row_bytes if as_bytes else leaf.values for leaf in parts)
    return EnvSpec("any", (size,), "uint8" if as_bytes else "float32", action, leaves=parts)


def random_leaf(leaf: Leaf, rows: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    if leaf.path == ("action_mask",):
        return (rng.random((rows, *leaf.shape)) < 0.4).astype(np.float32)
    if leaf.kind == "image":
        return rng.choice([0, 255], (rows, *leaf.shape)).astype(np.uint8)
    if leaf.kind == "values":
        return rng.normal(size=(rows, *leaf.shape)).astype(np.float32)
    first, counts = (np.array(of).reshape(leaf.shape) for of in (leaf.first, leaf.choices))
    return first + rng.integers(0, counts, (rows, *leaf.shape))


TWO_ACTIONS = MultiDiscreteAction((2, 3))
STRUCTURED = {
    "dqn, mask": (asyncrl.DQN(), structured(DiscreteAction(4, 1), leaves(4))),
    "dqn, frames, mask": (asyncrl.DQN(frame_stack=2), structured(DiscreteAction(4), leaves(4))),
    "dqn, image, mask": (asyncrl.DQN(), structured(DiscreteAction(4), leaves(4, camera=True))),
    "ppo, image": (asyncrl.PPO(), structured(DiscreteAction(4), leaves(camera=True))),
    "ppo, multidiscrete, mask": (asyncrl.PPO(), structured(TWO_ACTIONS, leaves(5))),
    "ppo, normalised": (asyncrl.PPO(normalize_observations=True), structured(DiscreteAction(3), leaves())),
    "sac": (asyncrl.SAC(), structured(BOX, leaves())),
    "ppo, own network": (asyncrl.PPO(network=make_network), structured(DiscreteAction(3), leaves())),
    "dqn, own network, image, mask": (
        asyncrl.DQN(network=make_network),
        structured(DiscreteAction(4), leaves(4, camera=True)),
    ),
    "dqn, a choice alone": (
        asyncrl.DQN(hidden_sizes=(8,)),
        structured(DiscreteAction(3), (Leaf((), "choices", (), (6,), (-2,)),)),
    ),
}


@pytest.mark.parametrize("case", STRUCTURED)
def test_structured_observations_are_one_input_for_each_array(case: str, tmp_path: Path) -> None:
    algorithm, spec = STRUCTURED[case]
    policy, rng, frames, rows = portable(algorithm, spec), np.random.default_rng(1), algorithm.frame_stack, 60
    policy.weights[:] += rng.normal(scale=0.1, size=policy.weights.shape)
    policy.policy.load_weights(policy.weights)
    parts = {leaf.path: random_leaf(leaf, rows * frames, rng) for leaf in spec.leaves}
    packed = [
        rows_of(_nested({path: part[i] for path, part in parts.items()}), spec) for i in range(rows * frames)
    ]
    stack = (rows,) if frames == 1 else (rows, frames)
    expected = policy.predict(np.stack(packed).reshape(*stack, -1))[0]
    model = session(policy.export_onnx(tmp_path / "x.onnx"))
    given = {
        ".".join(("obs", *leaf.path)): parts[leaf.path].reshape(*stack, *leaf.shape) for leaf in spec.leaves
    }
    (got,) = model.run(None, given)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-5)
    assert len(np.unique(expected, axis=0)) > 1, "the actions differ"


def _nested(parts: dict[tuple[str, ...], Any]) -> Any:
    """The observation with these parts, by their paths."""
    if () in parts:
        return parts[()]
    made: dict[str, Any] = {}
    for path, part in parts.items():
        inside = made
        for key in path[:-1]:
            inside = inside.setdefault(key, {})
        inside[path[-1]] = part
    return made


@pytest.mark.parametrize("algorithm", [asyncrl.DQN, asyncrl.PPO, asyncrl.R2D2])
def test_a_network_of_the_users_own_acts_alike(algorithm: Any, tmp_path: Path) -> None:
    policy = portable(
        algorithm(network=make_network), EnvSpec("any", (4,), "float32", DiscreteAction(3)), seed=1
    )
    obs = np.random.default_rng(0).normal(scale=3.0, size=(200, 4)).astype(np.float32)
    expected, state = policy.predict(obs)
    given = {"obs": obs} | ({} if state is None else {"state": np.zeros_like(state)})
    got = session(policy.export_onnx(tmp_path / "x.onnx")).run(None, given)
    np.testing.assert_array_equal(got[0], expected)
    if state is not None:
        np.testing.assert_allclose(got[1], state, rtol=1e-4, atol=2e-5)
    assert len(np.unique(expected)) > 1, "the actions differ"


class Unexportable(torch.nn.Linear):
    """A network with an operation that ONNX lacks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.special.bessel_j0(x))


def test_bounds_hold_where_an_action_is_clipped(tmp_path: Path) -> None:
    policy = portable(asyncrl.PPO(), EnvSpec("any", (3,), "float32", BOX))
    policy.weights[:] = np.random.default_rng(0).normal(size=policy.weights.shape)
    policy.policy.load_weights(policy.weights)
    (got,) = session(policy.export_onnx(tmp_path / "x.onnx")).run(
        None, {"obs": np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)}
    )
    assert got.min(axis=0).tolist() == [-1.0, -2.0]
    assert got.max(axis=0).tolist() == [3.0, 2.0]


def test_the_command_writes_a_model_that_runs_without_asyncrl(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = portable(asyncrl.DQN(), EnvSpec("CartPole-v1", (4,), "float32", DiscreteAction(2)))
    file, model = policy.save(tmp_path / "x.policy"), tmp_path / "x.onnx"
    assert main(["export", str(file), "--onnx", str(model), "--policy", str(tmp_path / "y.policy")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "policy       dqn on CartPole-v1 after 12 steps",
        f"onnx         {model}",
        f"file         {tmp_path / 'y.policy'}",
    ]
    code = (
        "import sys, numpy, onnxruntime\n"
        f"model = onnxruntime.InferenceSession({str(model)!r}, providers=['CPUExecutionProvider'])\n"
        "print(*model.run(None, {'obs': numpy.eye(4, dtype='float32')})[0])\n"
        "assert 'asyncrl' not in sys.modules and 'torch' not in sys.modules\n"
        "assert model.get_modelmeta().custom_metadata_map == {'env': 'CartPole-v1', 'algo': 'dqn'}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    expected = policy.predict(np.eye(4, dtype=np.float32))[0]
    assert done.stdout.split() == [str(action) for action in expected]
    assert np.array_equal(asyncrl.load(tmp_path / "y.policy").weights, policy.weights)


def test_what_cannot_be_exported_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = EnvSpec("CartPole-v1", (4,), "float32", DiscreteAction(2))
    own = portable(asyncrl.DQN(network=Unexportable), spec)
    with pytest.raises(ConfigurationError, match=r"cannot export the policy's network: .*bessel_j0"):
        own.export_onnx(tmp_path / "x.onnx")
    own.policy = object()  # type: ignore[assignment]
    with pytest.raises(ConfigurationError, match="only policies of asyncrl are exported, got object"):
        own.export_onnx(tmp_path / "x.onnx")
    file = str(portable(asyncrl.DQN(), spec).save(tmp_path / "x.policy"))
    with pytest.raises(SystemExit) as ended:
        main(["export", file])
    assert ended.value.code == 2
    assert "--onnx policy.onnx" in capsys.readouterr().err
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnx" else found(name))
    assert main(["export", file, "--onnx", str(tmp_path / "x.onnx")]) == 1
    assert 'pip install "asyncrl[onnx]"' in capsys.readouterr().err
    assert not (tmp_path / "x.onnx").exists()
