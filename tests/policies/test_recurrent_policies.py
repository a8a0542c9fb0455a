"""Trained recurrent policies: state kept by the caller, files, playback, and refused calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from portable_policies import portable
from waiting import PATIENCE_SECONDS

import asyncrl
from asyncrl.envs.recall import Recall
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec
from asyncrl.policies.playback import play

SPEC = EnvSpec("any", (4,), "float32", DiscreteAction(2, 1))


def policy_of(cell: str = "gru", spec: EnvSpec = SPEC, **options: Any) -> Any:
    algorithm = asyncrl.PPO(recurrent=cell, recurrent_size=5, hidden_sizes=(6,), **options)
    policy = portable(algorithm, spec, "asyncrl/Recall-v0")
    rng = np.random.default_rng(3)
    policy.weights[:] = rng.normal(size=policy.weights.shape)
    policy.policy.load_weights(policy.weights)
    return policy


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_caller_keeps_the_state(cell: str) -> None:
    """A batch of episodes that begin at different times acts like each episode alone."""
    policy, rng = policy_of(cell), np.random.default_rng(0)
    obs = rng.normal(size=(40, 3, 4)).astype(np.float32)
    starts = rng.random((40, 3)) < 0.1
    starts[0] = True
    state: Any = None
    batched = []
    for row, start in zip(obs, starts, strict=True):
        action, state = policy.predict(row, state=state, episode_start=start)
        assert state.shape == (3, 5 if cell == "gru" else 10)
        batched.append(action)
    for stream in range(3):
        own: Any = None
        for t in range(40):
            action, own = policy.predict(obs[t, stream], own, bool(starts[t, stream]))
            assert action.shape == () and own.ndim == 1 and action == batched[t][stream]
    forgotten = [policy.predict(row)[0] for row in obs]
    assert (np.array(forgotten) != np.array(batched)).any(), "without the state it acts otherwise"
    assert {1, 2} == set(np.unique(batched))


def test_state_is_a_copy_and_checked() -> None:
    policy, obs = policy_of(), np.ones((2, 4), np.float32)
    _, state = policy.predict(obs)
    kept = state.copy()
    first = policy.predict(obs, state, np.array([True, False]))
    again = policy.predict(obs, state, np.array([True, False]))
    assert (state == kept).all() and (first[1] == again[1]).all() and (first[0] == again[0]).all()
    assert (first[1][0] == kept[0]).all() and (first[1][1] != kept[1]).any()
    with pytest.raises(
        ValueError, match=r"episode_start must have shape \(2,\) or be one bool, got shape \(3,\)"
    ):
        policy.predict(obs, state, np.zeros(3, bool))
    with pytest.raises(ValueError, match=r"state must be what the last predict returned, of shape \(2, 5\)"):
        policy.predict(obs, np.zeros((3, 5)))
    assert policy.recurrent and not portable(asyncrl.PPO(), SPEC).recurrent
    drawn, _ = policy.predict(
        np.ones((2000, 4), np.float32), np.repeat(state[:1], 2000, 0), deterministic=False
    )
    assert {1, 2} == set(drawn), "the less likely action has 5 % here: missing in 2,000 draws once in 1e44"


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (np.full(5, np.nan), "state must be finite, got nan among its values"),
        ([0.0, 0.0, np.inf, 0.0, 0.0], "state must be finite, got inf among its values"),
        (np.zeros(5, complex), "state must hold real numbers, got complex128"),
        (["0"] * 5, "state must hold numbers, got text"),
        ({"red": np.zeros(5)}, "state must hold real numbers, got object"),
    ],
)
def test_a_state_that_says_nothing_is_refused(state: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        policy_of().predict(np.ones(4, np.float32), state)
    with pytest.raises(ValueError, match=text):
        policy_of().probabilities(np.ones(4, np.float32), state)
    stacked = portable(asyncrl.DQN(frame_stack=5), EnvSpec("any", (1,), "float32", DiscreteAction(2)))
    with pytest.raises(ValueError, match=text):
        stacked.predict(np.ones(1, np.float32), state, False)


def test_stacks_of_frames_come_with_the_state() -> None:
    policy = policy_of(frame_stack=2)
    stack = np.ones((2, 4), np.float32)
    _, state = policy.predict(stack, None, True)
    _, after = policy.predict(stack, state, False)
    assert state.shape == after.shape == (5,) and (state != after).any()
    with pytest.raises(ValueError, match=r"the policy sees 2 frames, got \(4,\); give stacks$"):
        policy.predict(np.ones(4, np.float32), state, False)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_file_acts_the_same_without_torch(cell: str, tmp_path: Path) -> None:
    policy = policy_of(cell, EnvSpec("any", (4,), "float32", BoxAction((-3.0,), (3.0,), (1,))))
    policy.save(tmp_path / "x.policy")
    code = (
        "import sys, asyncrl\n"
        f"policy = asyncrl.load({str(tmp_path / 'x.policy')!r})\n"
        "state = None\n"
        "for t in range(5):\n"
        "    action, state = policy.predict([0.25, -1.0, 2.0, t], state, t == 0)\n"
        "assert 'torch' not in sys.modules and policy.recurrent\n"
        "print(float(action[0]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    state = None
    for t in range(5):
        action, state = policy.predict([0.25, -1.0, 2.0, t], state, t == 0)
    assert float(done.stdout) == pytest.approx(float(action[0]), abs=1e-6)


def test_playing_carries_the_state() -> None:
    policy, seen = policy_of(), []
    predict = policy.predict

    def watched(obs: Any, state: Any = None, **options: Any) -> Any:
        seen.append((obs, state))
        return predict(obs, state, **options)

    policy.predict = watched
    assert [episode.length for episode in play(policy, Recall(delay=4), 2, seed=0)] == [5, 5]
    for first in (0, 5):
        assert seen[first][1] is None
        state: Any = None
        for obs, given in seen[first : first + 5]:
            assert given is state or (given == state).all()
            _, state = predict(obs, state)


RECURRENT = {
    "gru": (asyncrl.PPO(recurrent="gru", recurrent_size=5, hidden_sizes=(6, 7)), DiscreteAction(3, 1), (4,)),
    "lstm": (
        asyncrl.IMPALA(recurrent="lstm", recurrent_size=5, normalize_observations=True),
        BoxAction((-2.0,), (2.0,), (1,)),
        (4,),
    ),
    "r2d2": (asyncrl.R2D2(recurrent_size=5, hidden_sizes=(8,), dueling=True), DiscreteAction(3), (4,)),
    "images": (asyncrl.PPO(recurrent="gru", recurrent_size=5, frame_stack=2), DiscreteAction(3), (12, 12)),
}


@pytest.mark.parametrize("case", RECURRENT)
def test_the_onnx_model_acts_and_remembers_as_the_policy(case: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    algorithm, action, shape = RECURRENT[case]
    policy = portable(algorithm, EnvSpec("any", shape, "uint8" if len(shape) == 2 else "float32", action))
    rng = np.random.default_rng(2)
    policy.weights[:] += rng.normal(scale=0.3 if len(shape) == 1 else 0.05, size=policy.weights.shape)
    policy.policy.load_weights(policy.weights)
    path = policy.export_onnx(tmp_path / "x.onnx")
    model = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    frames = () if algorithm.frame_stack == 1 else (algorithm.frame_stack,)
    state = np.zeros((6, algorithm.cell.state_size), np.float32)
    expected_state: Any = None
    acted = []
    for step in range(30):
        obs = rng.normal(scale=2.0, size=(6, *frames, *shape)).astype(np.float32)
        obs = obs if len(shape) == 1 else (obs > 0).astype(np.uint8) * 255
        starts = rng.random(6) < 0.1 if step else np.ones(6, np.bool_)
        state = np.where(starts[:, None], np.float32(0), state)
        expected, expected_state = policy.predict(obs, expected_state, starts)
        got, state = model.run(["action", "next_state"], {"obs": obs, "state": state})
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(state, expected_state, rtol=1e-4, atol=2e-5)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5)
        acted.append(expected)
    assert len(np.unique(np.concatenate(acted), axis=0)) > 1, "the actions differ"
