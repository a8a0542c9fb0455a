"""Environments that overwrite their actor's ring: the ring is emptied and used again, and the run continues."""

from __future__ import annotations

import gc
import os
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from waiting import PATIENCE_SECONDS

from asyncrl import DQN, PPO, Trainer, errors
from asyncrl.shm.ring import RingWriter
from asyncrl.shm.ring_layout import GRANTED, PUBLISHED, STATE

SMALL: dict[str, Any] = {
    "num_actors": 2,
    "envs_per_actor": 2,
    "http": "off",
    "device": "cpu",
    "eval_episodes": 2,
    "target_eval_episodes": 2,
    "report_interval_seconds": 0.02,
}


def everything(header: Any) -> None:
    header[:] = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, header.shape[0])


def published(header: Any) -> None:
    header[PUBLISHED] = 1 << 40


def published_back(header: Any) -> None:
    header[PUBLISHED] = 1


def granted(header: Any) -> None:
    header[GRANTED] += 3


def state(header: Any) -> None:
    header[STATE] = 77


class Overwrites(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole whose 60th step in a process overwrites the header of its ring, once per run or always."""

    def __init__(self, what: Any, once: Path | None) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.what, self.once, self.steps = what, once, 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 60:
            self.overwrite()
        return self.env.step(action)

    def overwrite(self) -> None:
        rings = [found for found in gc.get_objects() if isinstance(found, RingWriter)]
        if not rings:
            return  # in an evaluation
        if self.once is not None:
            try:
                os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        self.what(rings[0].header)


def factory(what: Any, once: Path | None) -> Any:
    return lambda: Overwrites(what, once)


def dqn(**options: Any) -> DQN:
    return DQN(
        hidden_sizes=(16,),
        learning_starts=50,
        replay_capacity=2_000,
        batch_size=16,
        samples_per_insert=4.0,
        **options,
    )


ALGORITHMS = {
    "dqn": lambda: dqn(),
    "dqn lockstep": lambda: dqn(discipline="lockstep"),
    "ppo": lambda: PPO(hidden_sizes=(16,), segment_length=32),
    "ppo lockstep": lambda: PPO(hidden_sizes=(16,), segment_length=32, discipline="lockstep"),
}


@pytest.mark.parametrize(
    ("algorithm", "what"),
    [
        *(("dqn", what) for what in (everything, published, published_back, granted, state)),
        ("ppo", everything),
        ("ppo", published_back),
        ("dqn lockstep", everything),
        ("ppo lockstep", granted),
    ],
)
def test_a_run_goes_on_without_the_rows_of_a_ring_that_was_overwritten(
    tmp_path: Path, algorithm: str, what: Any
) -> None:
    trainer = Trainer(factory(what, tmp_path / "once"), ALGORITHMS[algorithm](), **SMALL)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = trainer.learn(total_steps=3_000, max_seconds=PATIENCE_SECONDS)
    # The actor writes its own state word whenever it begins or ends to wait, perhaps before anybody has read it.
    healed = what is state and not caught
    assert healed or [str(w.message)[:10] for w in caught] == ["[ASYNC043]"]
    assert healed or "overwritten from outside" in str(caught[0].message)
    assert result.stop_reason == "total_steps"
    assert result.summary["actor_restarts"] == (0 if healed else 1)
    assert np.isfinite(result.policy.weights).all()


def test_a_run_whose_only_ring_is_overwritten_goes_on(tmp_path: Path) -> None:
    trainer = Trainer(factory(everything, tmp_path / "once"), dqn(), **{**SMALL, "num_actors": 1})
    with pytest.warns(errors.RingQuarantined, match="ASYNC043"):
        result = trainer.learn(total_steps=3_000, max_seconds=PATIENCE_SECONDS)
    assert (result.stop_reason, result.summary["actor_restarts"]) == ("total_steps", 1)


@pytest.mark.filterwarnings("ignore:.ASYNC043")
def test_rings_that_are_overwritten_again_and_again_end_the_run_which_keeps_its_weights(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    trainer = Trainer(factory(published, None), dqn(), run_dir=run, max_restarts=1, **SMALL)
    with pytest.raises(errors.RingCorrupt, match=r"ASYNC023.*overwritten from outside"):
        trainer.learn(total_steps=10**7)
    assert (run / "checkpoints" / "latest").exists()
    assert trainer.result is not None and trainer.result.summary["state"] == "failed"
