"""Text of a snapshot: labelled values for the terminal, its one-line form and the notebook card.

Values are printable ASCII, whatever an environment's name or an error text holds, so that any terminal, log file or
encoding can take them.
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.show.metrics import RUN_METRICS, Snapshot

NONE = "-"

_SHOWN = {metric.field: metric for metric in RUN_METRICS if metric.label}


@dataclass(frozen=True)
class Field:
    """One labelled value."""

    label: str
    value: str


@dataclass(frozen=True)
class Readout:
    """A snapshot as text.

    Attributes:
        title: algorithm, environment and seed.
        state: the run's state, with the reason once it has ended.
        fraction: progress to the nearest stopping rule, 0 to 1, or None where a return is the only one.
        progress: the same as text, with the time left.
        speed: rates of production (environment steps), receipt, consumption (samples) and updates; who waits.
        learning: returns, loss, exploration.
        pace: policy lag, staleness and samples per insert.
        error: first line of the error that ended the run, or "".
    """

    title: str
    state: str
    fraction: float | None
    progress: str
    speed: tuple[Field, ...]
    learning: tuple[Field, ...]
    pace: tuple[Field, ...]
    error: str

    @property
    def groups(self) -> tuple[tuple[str, tuple[Field, ...]], ...]:
        """The three groups of values with their headings."""
        return (("Speed", self.speed), ("Learning", self.learning), ("Async", self.pace))

    def line(self) -> str:
        """All of it on one line, for logs."""
        parts = [f"{self.title} {self.state}", self.progress]
        parts += [", ".join(f"{field.label} {field.value}" for field in group) for _, group in self.groups]
        return " | ".join([*parts, self.error] if self.error else parts)


def readout(snapshot: Snapshot) -> Readout:
    """Format `snapshot`. Pure; any thread."""
    fraction, left = progress(snapshot)
    reason = f" ({snapshot.stop_reason})" if snapshot.stop_reason else ""
    return Readout(
        title=plain(f"{snapshot.algo} {snapshot.env} seed {snapshot.seed}"),
        state=snapshot.state + reason,
        fraction=fraction,
        progress=_progress_text(snapshot, fraction, left),
        speed=_speed(snapshot),
        learning=_learning(snapshot),
        pace=_pace(snapshot),
        error=plain((snapshot.error or "").partition("\n")[0]),
    )


def progress(snapshot: Snapshot) -> tuple[float | None, float | None]:
    """Fraction done (0 to 1) and seconds left, by steps or seconds, whichever ends first; None if unknown."""
    done: list[tuple[float, float | None]] = []
    if snapshot.total_steps:
        rate = snapshot.env_steps / snapshot.train_seconds if snapshot.train_seconds > 0 else 0.0
        missing = max(0, snapshot.total_steps - snapshot.env_steps)
        done.append((snapshot.env_steps / snapshot.total_steps, missing / rate if rate > 0 else None))
    if snapshot.max_seconds:
        seconds = snapshot.train_seconds
        done.append((seconds / snapshot.max_seconds, max(0.0, snapshot.max_seconds - seconds)))
    if not done:
        return None, None
    known = [left for _, left in done if left is not None]
    return min(1.0, max(share for share, _ in done)), min(known) if known else None


def _progress_text(snapshot: Snapshot, fraction: float | None, left: float | None) -> str:
    steps = f"{snapshot.env_steps:,}"
    if snapshot.total_steps:
        steps += f"/{snapshot.total_steps:,}"
    words = [f"{steps} steps"]
    if fraction is not None:
        words.append(f"{fraction:.0%}")
    words.append(f"{duration(snapshot.wall_seconds)} elapsed")
    if left is not None and snapshot.stop_reason is None:
        words.append(f"{duration(left)} left")
    if snapshot.target_return is not None:
        words.append(f"until return {number(snapshot.target_return)}")
    if snapshot.training_target is not None:
        words.append(f"until return/100 {number(snapshot.training_target)}")
    return ", ".join(words)


def _speed(snapshot: Snapshot) -> tuple[Field, ...]:
    return (
        _field(snapshot, "env_steps_per_second"),
        _field(snapshot, "received_steps_per_second"),
        _field(snapshot, "consumed_samples_per_second"),
        _field(snapshot, "updates_per_second"),
        _field(snapshot, "learner_wait_fraction"),
        _field(snapshot, "actor_wait_fraction"),
    )


def _learning(snapshot: Snapshot) -> tuple[Field, ...]:
    evaluation, best = snapshot.evaluation, snapshot.best_evaluation
    return (
        _field(snapshot, "return_mean"),
        Field("evaluation", number(evaluation.return_mean if evaluation else None)),
        Field("best", number(best.return_mean if best else None)),
        _field(snapshot, "loss"),
        _field(snapshot, "exploration_rate"),
    )


def _pace(snapshot: Snapshot) -> tuple[Field, ...]:
    wanted = snapshot.samples_per_insert_target
    target = NONE if wanted is None else f"{wanted:.2f}"
    return (
        Field("discipline", plain(snapshot.discipline or NONE)),
        Field("acting", policy_lag(snapshot)),
        Field("staleness", staleness(snapshot)),
        Field("samples/insert", f"{snapshot.samples_per_insert_achieved:.2f}/{target}"),
        _field(snapshot, "consumption_per_production"),
        _field(snapshot, "ring_fill"),
        _field(snapshot, "discarded_fraction"),
    )


def _field(snapshot: Snapshot, name: str) -> Field:
    """The labelled value of a metric: its form is a format, or the significant digits of `number`."""
    metric = _SHOWN[name]
    value = getattr(snapshot, name)
    if metric.form.isdigit():
        return Field(metric.label, number(value, digits=int(metric.form)))
    return Field(metric.label, format(value, metric.form))


def policy_lag(snapshot: Snapshot) -> str:
    """Policy lag as text: `2.6 updates behind (p95 4)`."""
    mean, p95 = number(snapshot.policy_lag_mean, digits=2), number(snapshot.policy_lag_p95, digits=3)
    return f"{_updates(mean)} behind (p95 {p95})"


def staleness(snapshot: Snapshot) -> str:
    """Staleness of the samples trained on as text: `2.1 updates (p95 5.2)`."""
    mean, p95 = number(snapshot.staleness_mean, digits=3), number(snapshot.staleness_p95, digits=3)
    return f"{_updates(mean)} (p95 {p95})"


def _updates(count: str) -> str:
    return f"{count} update" if count == "1" else f"{count} updates"


def number(value: float | None, digits: int = 4) -> str:
    """Format a number with `digits` significant digits, a large one without a fraction, None as "-"."""
    if value is None:
        return NONE
    if abs(value) >= 10 ** (digits - 1) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def percent(fraction: float) -> str:
    """A fraction in whole percent."""
    return f"{fraction:.0%}"


def duration(seconds: float) -> str:
    """Seconds as `7s`, `2m05s` or `3h07m`."""
    if not 0 <= seconds < 1e9:
        return NONE
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def plain(text: str) -> str:
    """`text` in printable ASCII with escapes for all else, so that no text can send control codes to a terminal."""
    ascii_only = text.encode("ascii", "backslashreplace").decode("ascii")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in ascii_only)
