"""Progress of a run towards its stopping rules, as numbers and as text."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.show.metrics import Snapshot
from asyncrl.show.numbers import duration, number

REACHED = {
    "total_steps": "all steps taken",
    "max_seconds": "time is up",
    "target_return": "target return reached",
    "target_training_return": "target training return reached",
}
"""Text of each stop reason that is a stopping rule."""

UNLIMITED = "until it is stopped"
"""Progress of a run without a stopping rule."""

ENDED = ("stopped", "failed")
"""States of a run that has ended."""

KNOWN_SECONDS = 1.0
"""Training time from which the mean rate says how long the rest takes."""


@dataclass(frozen=True)
class Stop:
    """A stopping rule with measurable progress.

    Attributes:
        text: the rule: `4,000 steps`, `20s`.
        fraction: fraction done; 1 at the stop.
        left_seconds: training time left at the mean rate so far, None before that is known and after all steps.
    """

    text: str
    fraction: float
    left_seconds: float | None


def stops(snapshot: Snapshot) -> list[Stop]:
    """Stops by steps and by seconds, nearest first."""
    found = []
    if snapshot.total_steps:
        known = snapshot.train_seconds >= KNOWN_SECONDS and snapshot.env_steps > 0
        steps = snapshot.total_steps - snapshot.env_steps
        left = steps * snapshot.train_seconds / snapshot.env_steps if known and steps > 0 else None
        found.append(Stop(f"{snapshot.total_steps:,} steps", snapshot.env_steps / snapshot.total_steps, left))
    if snapshot.max_seconds:
        done, left = snapshot.train_seconds, snapshot.max_seconds - snapshot.train_seconds
        found.append(Stop(duration(snapshot.max_seconds), done / snapshot.max_seconds, max(0.0, left)))
    # Both estimates are linear in training time, so the larger fraction is the shorter time.
    return sorted(found, key=lambda stop: -stop.fraction)


def targets(snapshot: Snapshot) -> list[str]:
    """Stops without measurable progress: target returns."""
    found = []
    if snapshot.target_return is not None:
        found.append(f"return {number(snapshot.target_return)}")
    if snapshot.target_training_return is not None:
        found.append(f"return/100 {number(snapshot.target_training_return)}")
    return found


def progress(snapshot: Snapshot) -> tuple[float | None, float | None]:
    """Fraction done (0 to 1) and seconds left of the nearest stop; None if unknown. A finished run is at 1."""
    if snapshot.stop_reason in REACHED:
        return 1.0, 0.0
    nearest = next(iter(stops(snapshot)), None)
    return (None, None) if nearest is None else (min(1.0, nearest.fraction), nearest.left_seconds)


def progress_text(snapshot: Snapshot) -> str:
    """Progress in words: `nearest stop: 4,000 steps, 25%, 30s left; also at return 475`."""
    if snapshot.final_evaluation is not None and snapshot.state not in ENDED:
        return _final_evaluation(snapshot.final_evaluation)
    if snapshot.stop_reason is not None:
        return _ended(snapshot)
    known = stops(snapshot)
    also = " or ".join([*(stop.text for stop in known[1:]), *targets(snapshot)])
    if not known:
        return f"until {also}" if also else UNLIMITED
    nearest = known[0]
    left = f", {duration(nearest.left_seconds)} left" if nearest.left_seconds is not None else ""
    text = f"nearest stop: {nearest.text}, {min(1.0, nearest.fraction):.0%}{left}"
    return f"{text}; also at {also}" if also else text


def progress_short(snapshot: Snapshot) -> str:
    """Progress in a few words: `1,000/4,000 steps, 30s left`."""
    if snapshot.final_evaluation is not None and snapshot.state not in ENDED:
        return _final_evaluation(snapshot.final_evaluation)
    limit = f"/{snapshot.total_steps:,}" if snapshot.total_steps else ""
    left = progress(snapshot)[1] if snapshot.stop_reason is None else None
    return f"{snapshot.env_steps:,}{limit} steps" + (f", {duration(left)} left" if left is not None else "")


def state_text(snapshot: Snapshot) -> str:
    """The run's state, with its reason once it has ended: `finished, target return reached`."""
    reason = snapshot.stop_reason
    if snapshot.state != "stopped" or reason is None:
        return snapshot.state
    return f"finished, {REACHED[reason]}" if reason in REACHED else reason


def _final_evaluation(episodes: tuple[int, int]) -> str:
    return f"final evaluation {episodes[0]}/{episodes[1]}"


def _ended(snapshot: Snapshot) -> str:
    """Progress of a run that has ended or is ending."""
    if snapshot.stop_reason in REACHED:
        return "100%"
    nearest = next(iter(stops(snapshot)), None)
    return "" if nearest is None else f"{min(1.0, nearest.fraction):.0%} of {nearest.text}"
