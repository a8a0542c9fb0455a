"""A run of which a part fails while it is built: it closes all that it has built, and raises that very error.

That no process, thread or descriptor is left is checked after every test (`conftest.py`).
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from asyncrl import DQN, Trainer
from asyncrl.learning.replay_loop import ReplayLoop
from asyncrl.run.run import Run

STEPS = ("_serve_page", "_probe", "_make_actors", "_make_evaluator", "_make_learner", "_make_saver")
"""Steps of building, in their order."""


class Failed(Exception):
    """Error of a part."""


@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_fails_while_it_is_built_closes_all_that_it_has_built(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step fails at its end, when all of its parts exist."""
    make, close = getattr(Run, step), ReplayLoop.close
    closed: list[ReplayLoop] = []
    failure = Failed(step)

    async def fails_later(self: Run, *arguments: Any) -> None:
        await make(self, *arguments)
        raise failure

    def fails(self: Run, *arguments: Any) -> None:
        make(self, *arguments)
        raise failure

    def noted(self: ReplayLoop) -> None:
        closed.append(self)
        close(self)

    monkeypatch.setattr(Run, step, fails_later if inspect.iscoroutinefunction(make) else fails)
    monkeypatch.setattr(ReplayLoop, "close", noted)
    with Trainer("CartPole-v1", DQN(), num_actors=1, device="cpu") as trainer:
        with pytest.raises(Failed) as raised:
            trainer.learn(total_steps=1_000, progress=False)
        assert raised.value is failure and trainer.result is None
    assert len(closed) == (step == "_make_saver"), "it may hold memory of a GPU"
