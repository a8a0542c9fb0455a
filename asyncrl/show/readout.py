"""Text of a snapshot: labelled values for the terminal and the notebook card, and one line for pipes.

All values are printable ASCII, even if an environment's name or an error text is not, for any terminal, log file or
encoding.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from asyncrl.interfaces import Metrics
from asyncrl.show.evaluation_result import EvaluationResult
from asyncrl.show.group_statistics import GroupStatistics
from asyncrl.show.metrics import RUN_METRICS, Snapshot
from asyncrl.show.numbers import NONE, duration, number, plain
from asyncrl.show.progress import progress, progress_short, progress_text, state_text

LINE_LENGTH = 119
"""Maximum length of a line for pipes and log files."""

_RATES = ("time/fps", "async/receipt_per_second", "async/consumption_per_second", "updates_per_second")
_WAITS = ("async/learner_wait_fraction", "async/actor_wait_fraction")
_SHOWN = {metric.name: metric for metric in RUN_METRICS if metric.label}


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
        state: the run's state, with the reason after its end.
        fraction: progress to the nearest stopping rule, 0 to 1; None if a return is the only rule.
        progress: the nearest stop, with the time left.
        progress_short: the same in a few words.
        elapsed: time so far.
        counts: steps, episodes and time so far.
        speed: rates of production (environment steps), receipt, consumption (samples) and updates; wait fractions
            until training has ended.
        learning: returns, loss, updates, and epsilon if the algorithm has one.
        levels: mean return of each level of the last evaluation; empty without levels.
        pace: policy lag, staleness, samples per insert, and the rating in self-play.
        fusion: number of learner groups, their fusions, staleness or waiting; empty for a run with one group.
        logged: newest values of what the user logs.
        actors: number of actors in each state.
        error: first line of the error that ended the run, or "".
        ended: whether training has ended; rates are then those of all of it.
    """

    title: str
    state: str
    fraction: float | None
    progress: str
    progress_short: str
    elapsed: str
    counts: str
    speed: tuple[Field, ...]
    learning: tuple[Field, ...]
    levels: tuple[Field, ...]
    pace: tuple[Field, ...]
    fusion: tuple[Field, ...]
    logged: tuple[Field, ...]
    actors: str
    error: str
    ended: bool

    @property
    def groups(self) -> tuple[tuple[str, tuple[Field, ...]], ...]:
        """The three groups of values with their headings."""
        return (("Speed", self.speed), ("Learning", self.learning), ("Async", self.pace))

    def line(self) -> str:
        """The most important values on one line of at most `LINE_LENGTH` characters, for pipes and log files."""
        state = self.state.partition(",")[0]
        line = f"{self.elapsed} {state} {self.progress_short}"
        if self.error:
            line += f" | {self.error}"
            return line if len(line) <= LINE_LENGTH else f"{line[: LINE_LENGTH - 3]}..."
        for part in self._parts():
            if len(line) + len(part) <= LINE_LENGTH:
                line += part
        return line

    def _parts(self) -> list[str]:
        """Parts of the line after its head, the most important first."""
        values = {field.label: field.value for _, group in self.groups for field in group}
        evaluation = values["evaluation"].partition(" ")[0]
        return [
            f" | return {values['return/100']}, evaluation {evaluation}",
            *self._rates(values),
            *(f" | {field.label} {field.value}" for field in self.logged),
            *([] if self.ended else [_waits(values)]),
            f" | acting {values['acting'].partition(' (')[0]}",
            f" | loss {values['loss']}",
            f" | staleness {values['staleness'].replace(' updates', '').replace(' update', '')}",
            f" | samples/insert {values['samples/insert']}",
            f" | ring fill {values['ring fill']}",
            f" | discarded {values['discarded']}",
        ]

    def _rates(self, values: dict[str, str]) -> list[str]:
        """Parts with the rates; with several groups shorter ones, as their number and fusions come before them."""
        steps, updates = f"{values['env steps/s']} steps/s", f"{values['updates/s']} updates/s"
        if not self.fusion:
            return [f" | {steps}, {updates}"]
        shown = {field.label: field.value for field in self.fusion}
        count, _, mode = shown.pop("groups").split()
        fusions, _, stale = shown.pop("fusions").partition(", ")
        rest = [f"{label} {value}" for label, value in shown.items()]
        words = [f"{count} groups, {fusions} fusions", steps, updates, *rest, f"fusion {stale or mode}"]
        return [f" | {text}" for text in words]


def readout(snapshot: Snapshot) -> Readout:
    """Format `snapshot`. Pure; any thread."""
    elapsed = duration(snapshot.wall_seconds)
    ended = snapshot.stop_reason is not None
    if ended and snapshot.train_seconds > 0:  # the last interval was that of the final evaluation
        counts = {
            metric.name: snapshot.metrics[metric.of] or 0 for metric in RUN_METRICS if metric.kind == "rate"
        }
        overall: Metrics = {name: count / snapshot.train_seconds for name, count in counts.items()}
        snapshot = replace(snapshot, metrics=snapshot.metrics | overall)
    return Readout(
        title=plain(f"{snapshot.algo} {snapshot.env} seed {snapshot.seed}"),
        state=state_text(snapshot),
        fraction=progress(snapshot)[0],
        progress=progress_text(snapshot),
        progress_short=progress_short(snapshot),
        elapsed=elapsed,
        counts=f"{snapshot.env_steps:,} steps, {snapshot.episodes:,} episodes, {elapsed}",
        speed=tuple(_field(snapshot, name) for name in (_RATES if ended else (*_RATES, *_WAITS))),
        learning=_learning(snapshot),
        levels=_levels(snapshot.evaluation),
        pace=_pace(snapshot),
        fusion=_fusion(snapshot.groups),
        logged=tuple(Field(name, number(value)) for name, value in snapshot.logged.items()),
        actors=_actors(snapshot),
        error=plain((snapshot.error or "").partition("\n")[0]),
        ended=ended,
    )


def _waits(values: dict[str, str]) -> str:
    """Part of the line with who waits."""
    return f" | learner waits {values['learner waits']}, actors {values['actors wait']}"


def _learning(snapshot: Snapshot) -> tuple[Field, ...]:
    evaluation, best = snapshot.evaluation, snapshot.best_evaluation
    latest = NONE
    if evaluation is not None:
        latest = f"{number(evaluation.return_mean)} +/- {number(evaluation.return_std, 3)}"
    fields: tuple[Field, ...] = (
        _field(snapshot, "rollout/ep_rew_mean"),
        Field("evaluation", latest),
        Field("best", number(best.return_mean if best else None)),
        _field(snapshot, "train/loss"),
        Field("updates", f"{snapshot.updates:,}"),
    )
    if snapshot.exploration_rate is None:
        return fields
    return (*fields, _field(snapshot, "rollout/exploration_rate"))


def _levels(evaluation: EvaluationResult | None) -> tuple[Field, ...]:
    returns = {} if evaluation is None else evaluation.level_returns
    return tuple(Field(plain(name), number(value)) for name, value in returns.items())


def _pace(snapshot: Snapshot) -> tuple[Field, ...]:
    wanted = snapshot.samples_per_insert_target
    target = NONE if wanted is None else f"{wanted:.2f}"
    # The rating stands here as this group has a cell to spare in 80 columns and 24 lines.
    rating = () if snapshot.elo is None else (f"{snapshot.elo:.0f}, wins {snapshot.win_rate:.0%}",)
    now = ("consumption_per_production",) if snapshot.stop_reason is None else ()
    return (
        Field("acting", policy_lag(snapshot)),
        Field("staleness", staleness(snapshot)),
        Field("samples/insert", f"{snapshot.samples_per_insert_achieved:.2f}/{target}"),
        *(_field(snapshot, name) for name in now),
        _field(snapshot, "async/ring_fill"),
        _field(snapshot, "discarded_fraction"),
        Field("discipline", plain(snapshot.discipline or NONE)),
        *(Field("Elo", text) for text in rating),
    )


def _fusion(groups: tuple[GroupStatistics, ...]) -> tuple[Field, ...]:
    """Values of a run of several groups, the most important first.

    Only fused gradients make a group wait, and only `async` fuses deltas that are stale. A group that is neither
    training nor about to is named with its state.
    """
    if not groups:
        return ()
    first = groups[0]
    fusions = f"{first.fusions:,}"
    if first.fusion == "async":
        fusions += f", staleness {first.staleness_mean:.1f} (max {first.staleness_max})"
    fields = [Field("groups", plain(f"{len(groups)} by {first.fusion}")), Field("fusions", fusions)]
    away = [f"{group.rank} {group.state}" for group in groups if group.state not in ("training", "starting")]
    if away and len(away) < len(groups):
        fields.insert(1, Field("group", plain(", ".join(away))))
    if first.fusion == "gradients":
        most = max(groups, key=lambda group: group.wait_seconds)
        fields.append(Field("waits most", f"group {most.rank}, {duration(most.wait_seconds)}"))
    if first.fusion == "async":
        fields.append(Field("dropped", f"{first.discarded:,}"))
    return tuple(fields)


def _actors(snapshot: Snapshot) -> str:
    """Number of actors in each state: `2 actors running`, `1 actor running, 1 restarting`."""
    if not snapshot.actors:
        return "no actors yet"
    states = Counter("ended" if actor.state == "stopped" else actor.state for actor in snapshot.actors)
    (state, count), *others = states.most_common()
    first = f"{count} {'actor' if count == 1 else 'actors'} {state}"
    return ", ".join([first, *(f"{count} {state}" for state, count in others)])


def _field(snapshot: Snapshot, name: str) -> Field:
    """Labelled value of a metric. `Metric.form` is a format, or the number of significant digits for `number`."""
    metric, value = _SHOWN[name], snapshot.metrics[name]
    if metric.form.isdigit():
        return Field(metric.label, number(value, digits=int(metric.form)))
    return Field(metric.label, format(value, metric.form))


def policy_lag(snapshot: Snapshot) -> str:
    """Policy lag as text: `2.6 updates behind (p95 4)`."""
    mean, p95 = (snapshot.metrics[f"async/policy_lag_{part}"] for part in ("mean", "p95"))
    return f"{_updates(number(mean, digits=2))} behind (p95 {number(p95, digits=3)})"


def staleness(snapshot: Snapshot) -> str:
    """Staleness of the samples trained on as text: `2.1 updates (p95 5.2)`."""
    mean, p95 = (snapshot.metrics[f"async/staleness_{part}"] for part in ("mean", "p95"))
    return f"{_updates(number(mean, digits=3))} (p95 {number(p95, digits=3)})"


def _updates(count: str) -> str:
    return f"{count} update" if count == "1" else f"{count} updates"
