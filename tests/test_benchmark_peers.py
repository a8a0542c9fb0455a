"""Parts of the benchmarks beside Ray, RLlib and other transports, with fakes for what must be installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from test_benchmarks import OURS, PEER, fake_python
from waiting import wait_until

from asyncrl.interfaces import DiscreteAction, EnvSpec
from benchmarks.harness import plot, report, runs, slow_envs, venvs
from benchmarks.learning import priority_decay
from benchmarks.peers import messages, rllib, stepping
from benchmarks.systems import messages as messages_script
from benchmarks.systems import step_times


@pytest.mark.parametrize("transport", ["ring", "in_place", "queue", "pipe", "memcpy"])
@pytest.mark.parametrize("size", [64, 4096])
def test_messages_arrive(transport: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than may be under way, so that space is given back."""
    monkeypatch.setattr(messages, "BUFFERED", 8)
    count, largest = 0, 0
    with messages.TRANSPORTS[transport](size) as take:

        def all_arrived() -> bool:
            nonlocal count, largest
            taken = take()
            count, largest = count + taken, max(largest, taken)
            return count >= 100

        wait_until(all_arrived, "100 messages")
    assert largest <= 8


def test_a_transport_that_fails_is_reported_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rates = dict.fromkeys(messages.SIZES, 1_000.0)
    python = fake_python(tmp_path, {"rates": rates, "versions": {"x": "1"}, "cores": 2, "environments": 1})
    monkeypatch.setattr(venvs, "python_of", lambda folder: python)
    monkeypatch.setattr(venvs, "install", lambda _, packages: "no wheel" if "ray" in packages[0] else "")
    monkeypatch.setattr(sys, "argv", ["x", "--venv", str(tmp_path), "--repeats", "2"])
    write = report.Report.write
    monkeypatch.setattr(report.Report, "write", lambda self: write(self, tmp_path))
    messages_script.main()
    record = json.loads((tmp_path / "messages.json").read_text())
    assert record["notes"]["ray_absent"] == "no wheel"
    assert record["figures"]["4_MiB/pipe"]["median"] == 1_000 * (4 << 20) / 1e6
    assert not [key for key in record["figures"] if "/ray" in key]


def test_pip_failing_is_a_reason(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ERROR: No matching distribution' >&2\nexit 1\n")
    python.chmod(0o755)
    assert venvs.install(str(python), ["nothing==1"]) == "No matching distribution"


def test_rllib_counts_with_its_limit_where_it_misses_the_target(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missed = {**PEER, "seconds": {"greedy": 30.0, "training": None}, "train_seconds": 90.0}
    monkeypatch.setattr(venvs, "python_of", lambda folder: fake_python(tmp_path, missed))
    monkeypatch.setattr(venvs, "install", lambda *_: "")
    monkeypatch.setattr(runs, "cli", lambda *_, **__: OURS)
    write = report.Report.write
    monkeypatch.setattr(report.Report, "write", lambda self: write(self, tmp_path))
    monkeypatch.setattr(sys, "argv", ["x", "--venv", str(tmp_path), "--only", "ppo", "--seeds", "2"])
    rllib.main()
    record = json.loads((tmp_path / "rllib_ppo.json").read_text())
    assert record["notes"]["rllib_ppo_training_reached"] == "0 of 2"
    assert record["figures"]["rllib_ppo_training_train_seconds"]["median"] == 90.0
    assert record["figures"]["rllib_ppo_greedy_to_asyncrl"]["median"] == 30.0 / OURS["train_seconds"]


def test_a_rollout_has_the_steps_of_its_environments() -> None:
    rollout = stepping.Environments("cartpole", 0).rollout()
    shapes = {name: values.shape for name, values in rollout.items()}
    rows = (stepping.ROWS, stepping.ENVS)
    assert shapes == {"obs": (*rows, 4), "action": rows, "reward": rows, "flags": rows}
    assert (rollout["reward"] == 1).all()
    assert rollout["flags"].any(), "random actions end episodes within 128 steps"


def test_delays_are_gamma_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(slow_envs, "time", SimpleNamespace(sleep=slept.append))
    env = slow_envs.Delayed(gymnasium.make("CartPole-v1"), 2.0, busy=False, uneven=False, variance=4.0)
    env._random = np.random.default_rng(0)
    env.env = SimpleNamespace(step=lambda _: None)
    for _ in range(40_000):
        env.step(0)
    assert np.mean(slept) == pytest.approx(2.0, rel=0.03)
    assert np.var(slept) == pytest.approx(4.0 * 2.0**2, rel=0.1)


def test_a_barrier_costs_what_the_largest_of_its_sums_costs() -> None:
    """Two exponential variables: the larger has mean 1.5, so a barrier after one step leaves two thirds."""
    monkeypatch = pytest.MonkeyPatch()
    with monkeypatch.context() as patch:
        patch.setattr(step_times, "ACTORS", 2)
        patch.setattr(step_times, "LENGTH", 1)
        assert step_times.barrier(1.0) == pytest.approx(2 / 3, rel=0.02)
    assert step_times.barrier(0.0) == 1.0


def test_labels_of_a_plot_stay_within_its_panel(tmp_path: Path) -> None:
    lines = [(name, [(1.0, 1.0), (2.0, 2.0)]) for name in "abcd"]
    plot.panels(tmp_path / "x.svg", [("", "", lines)])
    starts = [line.split('"')[1] for line in (tmp_path / "x.svg").read_text().split("<text x=")[-4:]]
    assert float(starts[-1]) < plot.WIDTH - plot.RIGHT


def test_factors_of_priorities_by_hand() -> None:
    """(1 + 3)^-1 on the priority |error|^0.5 is (1 + 3)^-2 on the error, and so is a ratio of 1/4.

    With two actions and an epsilon of 0.4 the greedy one has a probability of 0.8, the other one 0.2.
    """
    rows = {
        "staleness": np.array([0, 3, 0, 0]),
        "action": np.array([1, 1, 0, 1]),
        "obs": np.zeros((4, 2), np.float32),
        "extras": {"behaviour": np.array([[0.8, 0.4], [0.8, 0.4], [0.8, 0.4], [0.2, 0.4]])},
    }
    values = np.array([[0.0, 1.0]] * 4)  # the greedy action is 1 now; that of rows 2 and 3 was 0
    for exponents, found in (
        ((0.0, 1.0), [16, 1, 16, 16]),
        ((1.0, 0.0), [16, 16, 1, 16]),
        ((0.0, 0.0), [16] * 4),
    ):
        result = SimpleNamespace(priorities=np.full(4, 16.0, np.float32))
        core = SimpleNamespace(update=lambda _, made=result: made, action_values=lambda _: values)
        factors = priority_decay.WithFactors(core, exponents, alpha=0.5)
        assert factors.update(SimpleNamespace(**rows)).priorities.tolist() == pytest.approx(found, rel=1e-5)


def test_rows_have_the_behaviours_probability() -> None:
    """The share of actions is the mean of what the rows say."""
    record = priority_decay.DQNWithFactors(hidden_sizes=(4,), exploration_initial=0.4, exploration_final=0.4)
    spec = EnvSpec("any", (3,), "float32", DiscreteAction(2))
    policy, rng = record.make_policy(spec), np.random.default_rng(0)
    policy.assign_streams(0, 2_000, 2_000)
    policy.weights[:] = rng.normal(size=policy.weight_count)
    policy.weights_changed()
    obs = np.tile(rng.normal(size=3).astype(np.float32), (2_000, 1))
    action, extras = policy.act(obs, rng, 0)
    probability, epsilon = extras["behaviour"].T
    own = action == policy.greedy(obs)
    assert probability == pytest.approx(np.where(own, 1 - epsilon / 2, epsilon / 2), rel=1e-5)
    assert own.mean() == pytest.approx((1 - epsilon / 2).mean(), abs=0.04)
