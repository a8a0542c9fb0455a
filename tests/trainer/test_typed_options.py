"""Mistakes in options: refused when the script runs, and found before by a type checker.

mypy checks this file with the package, and fails where it no longer finds one of the mistakes: `type: ignore` is then
unused.
"""

from __future__ import annotations

import pytest

from asyncrl import DQN, PPO, Callback, Snapshot, Trainer


class Mine(Callback):
    """A callback as a user writes it."""

    def on_report(self, trainer: Trainer, snapshot: Snapshot) -> bool:
        """Stop after ten updates."""
        return bool(snapshot.updates < 10)


def test_what_is_right_is_taken_by_both() -> None:
    algorithm = DQN(learning_rate=lambda progress: 1e-3 * progress)
    trainer = Trainer("CartPole-v1", algorithm, num_actors=2, total_steps=10, run_dir=None)
    assert trainer.config.num_actors == 2 and isinstance(Mine(), Callback)


def test_what_is_wrong_is_found_by_both() -> None:
    with pytest.raises(TypeError, match="no option 'num_actor'; did you mean num_actors"):
        Trainer("CartPole-v1", "dqn", num_actor=2)  # type: ignore[call-arg]
    with pytest.raises((TypeError, ValueError), match="num_actors"):
        Trainer("CartPole-v1", "dqn", num_actors="two")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got the class PPO; write PPO\(\)"):
        Trainer("CartPole-v1", PPO)  # type: ignore[arg-type]
