"""Runs with an inference server: equal numbers, and every way in which a side can end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resume_rig import numbers, trainer_of
from waiting import PATIENCE_SECONDS, wait_until

from asyncrl import DQN, PPO, R2D2, SAC, Rainbow, Trainer
from asyncrl.algorithms import ALGORITHMS
from asyncrl.cli.main import main
from asyncrl.errors import ConfigurationError, InferenceFailed
from asyncrl.learning.inference_server import InferenceServer
from asyncrl.storage.config_file import read_config
from asyncrl.storage.resume_rules import FIXED_IN_LOCKSTEP

SMALL: dict[str, Any] = {
    "num_actors": 2,
    "envs_per_actor": 4,
    "http": "off",
    "seed": 1,
    "target_eval_episodes": 2,
    "report_interval_seconds": 0.05,
}


def finish(trainer: Trainer) -> Any:
    return asyncio.run(asyncio.wait_for(trainer.wait(), PATIENCE_SECONDS))


class Gate:
    """Gate before each answer of the server: waits until it is opened, or raises.

    Attributes:
        open: answers may be given.
        reached: the server has come to an answer.
        broken: it raises then.
    """

    def __init__(self) -> None:
        self.open, self.reached, self.broken = threading.Event(), threading.Event(), False

    def answer(self, server: InferenceServer, batch: Any) -> None:
        self.reached.set()
        assert self.open.wait(PATIENCE_SECONDS)
        if self.broken:
            raise RuntimeError("the layers do not fit")
        ANSWER(server, batch)


SERVER = {"inference": "server"}
ANSWER, DELAYS = InferenceServer._answer, np.random.default_rng(0)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(InferenceServer, "_answer", lambda server, batch: gate.answer(server, batch))
    yield gate
    gate.open.set()


def small(**options: Any) -> Trainer:
    algorithm = DQN(hidden_sizes=(16,), learning_starts=100, discipline="relaxed", inference="server")
    return Trainer("CartPole-v1", algorithm, **{**SMALL, **options})


FAMILIES: dict[str, tuple[str, Any]] = {
    "replay, choices": ("CartPole-v1", DQN(learning_starts=100, hidden_sizes=(16,), discipline="relaxed")),
    "replay, box": (
        "Pendulum-v1",
        SAC(learning_starts=100, hidden_sizes=(16,), samples_per_insert=4.0, discipline="relaxed"),
    ),
    "segments, choices": ("CartPole-v1", PPO(segment_length=32, hidden_sizes=(16,))),
    "segments, box": ("Pendulum-v1", PPO(segment_length=32, hidden_sizes=(16,), normalize_observations=True)),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_trains_and_counts_its_steps(name: str) -> None:
    env, algorithm = FAMILIES[name]
    seen: list[Any] = []
    trainer = Trainer(env, replace(algorithm, inference="server"), **SMALL)
    result = trainer.learn(total_steps=1_000, on_snapshot=seen.append)
    row = 2 * 4 * (32 if isinstance(algorithm, PPO) else 1)
    assert result.stop_reason == "total_steps"
    assert 1_000 <= result.summary["env_steps"] <= 1_000 + row
    assert result.summary["updates"] > 0 and result.summary["policy_version"] > 1
    last = seen[-1]
    assert sum(actor.env_steps for actor in last.actors) == result.summary["env_steps"]
    sizes = [s.inference_batch_size for s in seen if s.inference_batch_size]
    assert sizes and all(2 <= size <= 8 for size in sizes), "halves of 4 environments of 2 actors"
    assert all(0 <= s.inference_wait_fraction <= 1 for s in seen if s.inference_wait_fraction is not None)


def test_actors_of_a_convolutional_network_do_not_load_torch() -> None:
    loaded: set[bool] = set()

    def look(snapshot: Any) -> None:
        for actor in snapshot.actors:
            if actor.pid and actor.env_steps:
                loaded.add("libtorch" in Path(f"/proc/{actor.pid}/maps").read_text())

    algorithm = DQN(
        network="small",
        frame_stack=2,
        inference="server",
        learning_starts=100,
        batch_size=8,
        replay_capacity=1_000,
    )
    trainer = Trainer("asyncrl/Catch-v0", algorithm, **SMALL)
    result = trainer.learn(total_steps=400, on_snapshot=look)
    assert result.summary["env_steps"] >= 400 and result.summary["episodes"] > 10
    assert loaded == {False}


def dawdle(server: InferenceServer, batch: Any) -> None:
    """Answer late, sometimes after the next request of another actor."""
    assert len(batch) == 1, "outputs may depend on the rows of a pass"
    time.sleep(DELAYS.exponential(0.001))
    ANSWER(server, batch)


@pytest.mark.parametrize(
    "name", ["dqn", pytest.param("ppo", marks=pytest.mark.slow), pytest.param("sac", marks=pytest.mark.slow)]
)
def test_in_lockstep_single_environments_give_the_numbers_of_actors_that_run_the_network(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two halves use the generator in a different order, so only actors with one environment are bitwise comparable."""
    monkeypatch.setattr(InferenceServer, "_answer", dawdle)
    found = []
    for inference in ("actor", "server"):
        trainer = trainer_of(name, None, {"inference": inference}, envs_per_actor=1)
        found.append(numbers(trainer, trainer.learn(total_steps=250)))
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "synchronous"])
def test_in_lockstep_a_run_is_exact_and_goes_on_exactly(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = []
    for answer in (ANSWER, dawdle):
        monkeypatch.setattr(InferenceServer, "_answer", answer)
        trainer = trainer_of(name, None, SERVER)
        whole.append(numbers(trainer, trainer.learn(total_steps=600)))
    assert whole[0] == whole[1]
    trainer_of(name, tmp_path / "run", SERVER).learn(total_steps=300)
    second = Trainer.resume(tmp_path / "run", 600)
    assert len(second.resumed_from) == 1, "nothing begins anew"
    assert numbers(second, second.learn()) == whole[0]
    assert "inference" in FIXED_IN_LOCKSTEP
    with pytest.raises(ConfigurationError, match="inference may not change"):
        Trainer.resume(tmp_path / "run", "+100", inference="actor")


def test_an_actor_that_is_killed_while_it_waits_is_started_again(gate: Gate) -> None:
    trainer = small()
    trainer.start(total_steps=600)
    wait_until(gate.reached.is_set, "a request")
    wait_until(lambda: (s := trainer.snapshot()) is not None and s.actors and s.actors[0].pid, "an actor")
    victim = trainer.snapshot().actors[0].pid  # type: ignore[union-attr]
    os.kill(victim, signal.SIGKILL)

    def restarted() -> bool:
        actor = trainer.snapshot().actors[0]  # type: ignore[union-attr]
        return actor.restarts == 1 and actor.pid not in (0, victim)

    wait_until(restarted, "another life")
    gate.open.set()
    result = finish(trainer)
    assert result.summary["actor_restarts"] == 1 and 600 <= result.summary["env_steps"] <= 608


def test_a_run_stops_while_actors_wait(gate: Gate) -> None:
    trainer = small()
    trainer.start(total_steps=1_000_000)
    wait_until(gate.reached.is_set, "a request")
    trainer.stop()
    threading.Timer(0.2, gate.open.set).start()
    result = finish(trainer)
    assert result.stop_reason == "stopped" and result.summary["env_steps"] < 1_000_000


def test_a_server_that_fails_ends_the_run_by_name(gate: Gate, tmp_path: Path) -> None:
    trainer = small(run_dir=tmp_path / "run")
    trainer.start(total_steps=1_000_000)
    wait_until(gate.reached.is_set, "a request")
    gate.broken = True
    gate.open.set()
    with pytest.raises(InferenceFailed, match="RuntimeError: the layers do not fit") as raised:
        finish(trainer)
    assert raised.value.code == "ASYNC033" and isinstance(raised.value.__cause__, RuntimeError)
    assert trainer.snapshot().state == "failed"  # type: ignore[union-attr]


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(ValueError, match="inference must be actor where noisy is set, got server"):
        Rainbow(inference="server")
    for record in (PPO, R2D2):
        with pytest.raises(ValueError, match="inference must be actor where recurrent is set, got server"):
            record(inference="server", recurrent="gru")
    with pytest.raises(ValueError, match="inference must be one of actor, server, got 'gpu'"):
        DQN(inference="gpu")  # type: ignore[arg-type]


def test_a_policy_that_cannot_be_served_is_refused_before_its_actors_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        DQN, "make_policy", lambda record, spec: Rainbow(hidden_sizes=(16,)).make_policy(spec)
    )
    with pytest.raises(ConfigurationError, match="has noisy weights"):
        small().learn(total_steps=100)


def test_it_is_an_option_of_the_algorithm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        TypeError, match=r"no option 'inference'; it is an option of DQN: write DQN\(inference="
    ):
        Trainer("CartPole-v1", DQN(), inference="server")  # type: ignore[call-arg]
    with pytest.raises(SystemExit):
        main(["train", "CartPole-v1", "--algo", "ppo", "--inference", "server"])
    assert "--ppo.inference" in capsys.readouterr().err
    file = tmp_path / "config.toml"
    file.write_text('[trainer]\nenv = "CartPole-v1"\nalgo = "ppo"\ninference = "server"\n[ppo]\n')
    with pytest.raises(ConfigurationError, match=r"trainer\.inference") as raised:
        read_config(file, ALGORITHMS)
    assert raised.value.facts["did you mean"] == "ppo.inference"
    options = ["--steps", "300", "--actors", "1", "--http", "off", "--ppo.inference", "server"]
    assert main(["train", "CartPole-v1", "--algo", "ppo", "--run-dir", str(tmp_path / "x"), *options]) == 0
    assert read_config(tmp_path / "x" / "config.toml", ALGORITHMS)["ppo"]["inference"] == "server"
    last = json.loads((tmp_path / "x" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["async/inference_batch_size"] > 0


@pytest.mark.slow
def test_cartpole_is_solved_by_ppo() -> None:
    env = "CartPole-v1"
    algorithm = PPO.preset(env, inference="server")
    trainer = Trainer(env, algorithm, **{**PPO.preset_options(env), "seed": 0, "http": "off"})
    result = trainer.learn(target_return=475.0, total_steps=100_000)
    assert result.stop_reason == "target_return", result.summary
