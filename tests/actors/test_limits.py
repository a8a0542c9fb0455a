"""Limits on restarts of a process, with a test clock."""

from __future__ import annotations

from asyncrl.actors.limits import PAUSES_SECONDS, WINDOW_SECONDS, RestartBudget


def test_restarts_are_counted_in_a_window() -> None:
    now = [0.0]
    budget = RestartBudget(3, lambda: now[0])
    for _ in range(3):
        assert budget.spend(useful=True) is not None
        now[0] += 1.0
    assert budget.spend(useful=True) is None
    now[0] = WINDOW_SECONDS
    assert budget.spend(useful=True) is not None, "the first lies a minute back"
    assert budget.spend(useful=True) is None


def test_a_process_that_is_killed_once_an_hour_lives_for_ever() -> None:
    now = [0.0]
    budget = RestartBudget(1, lambda: now[0])
    for _ in range(100):
        assert budget.spend(useful=False) == 0.0
        now[0] += 3600.0


def test_the_pause_grows_only_over_lives_that_achieved_nothing() -> None:
    now = [0.0]
    budget = RestartBudget(1000, lambda: now[0])
    pauses = [budget.spend(useful=False) for _ in range(7)]
    assert pauses == [*PAUSES_SECONDS, 1.0, 1.0]
    assert budget.spend(useful=True) == 0.0
    assert budget.spend(useful=False) == PAUSES_SECONDS[1]
    now[0] += WINDOW_SECONDS
    assert budget.spend(useful=False) == 0.0, "forgotten after a healthy minute"


def test_a_budget_of_none() -> None:
    assert RestartBudget(0).spend(useful=True) is None
