"""Output of the terminal view, on a terminal and elsewhere."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from snapshots import make_actor, make_snapshot
from waiting import PATIENCE_SECONDS, wait_until

import asyncrl
import asyncrl.show.console as console_module
import asyncrl.show.readout as readout_module
from asyncrl.actors.statistics import ActorStatistics
from asyncrl.show.console import TOKEN_IS_READABLE, RunConsole, is_worth_showing, script_console
from asyncrl.show.group_statistics import GroupStatistics
from asyncrl.show.metrics import EvaluationResult, Snapshot
from asyncrl.show.numbers import duration, number, plain
from asyncrl.show.progress import progress, progress_text
from asyncrl.show.readout import LINE_LENGTH, readout
from asyncrl.show.screen import screen

LINE = (
    "12s training 1,000/4,000 steps, 30s left | return 123.5, evaluation 200 | "
    "3,400 steps/s, 810 updates/s | loss 0.0123"
)
URL = "http://127.0.0.1:43211/#token=abcdefghijklmnopqrst"
FIELDS = (
    "env steps/s",
    "received/s",
    "samples/s",
    "updates/s",
    "learner waits",
    "actors wait",
    "return/100",
    "evaluation",
    "loss",
)
FIELDS += (
    "discipline",
    "acting",
    "staleness",
    "samples/insert",
    "samples/step now",
    "ring fill",
    "discarded",
    "left",
)


def drawn(
    snapshot: Snapshot,
    *,
    width: int = 100,
    height: int = 40,
    url: str | None = None,
    notice: str = "",
    returns: Sequence[tuple[int, float]] = (),
) -> list[str]:
    """The screen as plain lines."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(screen(snapshot, width, height, url=url, notice=notice, returns=returns))
    return capture.get().splitlines()


# --- words ----------------------------------------------------------------------------------------------


def test_the_line_says_the_most_important() -> None:
    assert readout(make_snapshot()).line() == LINE


def test_the_line_adds_what_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    added = " | staleness 2.1 (p95 5.2) | samples/insert 3.98/4.00 | ring fill 62% | discarded 0.2%"
    monkeypatch.setattr(readout_module, "LINE_LENGTH", 300)
    assert readout(make_snapshot()).line().endswith(f" | loss 0.0123{added}")
    whole = readout(make_snapshot()).line().split(" | ")
    for limit in range(60, 300):
        monkeypatch.setattr(readout_module, "LINE_LENGTH", limit)
        line = readout(make_snapshot()).line()
        parts = iter(whole)
        assert len(line) <= limit and all(part in parts for part in line.split(" | ")), "a part and its order"


def test_the_line_of_a_run_that_has_just_begun() -> None:
    unknown = dict.fromkeys(("return_mean", "loss", "exploration_rate", "evaluation", "best_evaluation"))
    start = {"env_steps": 0, "train_seconds": 0.0, "samples_per_insert_target": None, "target_return": None}
    line = readout(make_snapshot(state="starting", **unknown, **start)).line()
    assert line.startswith("12s starting 0/4,000 steps | return -, evaluation - | 3,400 steps/s")


def test_the_line_of_a_run_that_has_ended_has_the_rates_of_all_of_it() -> None:
    """Those of the last interval are of the final evaluation, in which actors wait and nothing is learned."""
    last = {"env_steps_per_second": 0.0, "updates_per_second": 0.0, "actor_wait_fraction": 1.0}
    counts = {"updates": 2000, "received_steps": 900, "consumed_samples": 3500}
    words = readout(make_snapshot(state="finished", stop_reason="total_steps", **counts, **last))
    assert " | 100 steps/s, 200 updates/s | acting" in words.line() and "waits" not in words.line()
    shown = {field.label: field.value for _, group in words.groups for field in group}
    assert (shown["received/s"], shown["samples/s"]) == ("90", "350")
    assert not {"learner waits", "actors wait", "samples/step now"} & set(shown)


def test_the_line_of_a_run_that_failed() -> None:
    failed = make_snapshot(state="failed", stop_reason="failed", error="[ASYNC002] actor 1\n  env: x")
    assert readout(failed).line() == "12s failed 1,000/4,000 steps | [ASYNC002] actor 1"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"target_return": None, "error": "[ASYNC002] " + "boom " * 100, "state": "failed"},
        {"state": "evaluating", "final_evaluation": (37, 100)},
        {"stop_reason": "target_training_return", "state": "stopped"},
        {"env": "a.package.of.mine:AnEnvironmentWithAnUnreasonablyLongNameThatGoesOnForEverAndEver-v17" * 2},
    ],
)
def test_a_line_for_pipes_is_shorter_than_120(more: dict[str, Any]) -> None:
    line = readout(make_snapshot(**{**LARGE, **more})).line()
    assert 40 < len(line) <= LINE_LENGTH < 120
    assert "10,000,000/40,000,000 steps" in line or "final evaluation 37/100" in line


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "nearest stop: 4,000 steps, 25%, 30s left; also at return 475"),
        ({"target_return": None}, "nearest stop: 4,000 steps, 25%, 30s left"),
        (
            {"max_seconds": 20.0, "target_return": None},
            "nearest stop: 20s, 50%, 10s left; also at 4,000 steps",
        ),
        (
            {"max_seconds": 80.0, "target_training_return": 300.0},
            "nearest stop: 4,000 steps, 25%, 30s left; also at 1m20s or return 475 or return/100 300",
        ),
        ({"train_seconds": 0.01, "target_return": None}, "nearest stop: 4,000 steps, 25%"),
        ({"env_steps": 4_000, "target_return": None}, "nearest stop: 4,000 steps, 100%"),
        ({"total_steps": None}, "until return 475"),
        ({"total_steps": None, "target_return": None}, "until it is stopped"),
        ({"state": "evaluating", "final_evaluation": (37, 100)}, "final evaluation 37/100"),
        ({"state": "stopped", "stop_reason": "target_return"}, "100%"),
        ({"state": "stopped", "stop_reason": "stopped"}, "25% of 4,000 steps"),
        ({"state": "failed", "stop_reason": "failed", "final_evaluation": (3, 9)}, "25% of 4,000 steps"),
    ],
)
def test_progress_says_which_stop_is_the_nearest(fields: dict[str, Any], text: str) -> None:
    assert progress_text(make_snapshot(**fields)) == text


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("target_return", "finished, target return reached"),
        ("total_steps", "finished, all steps taken"),
        ("stopped", "stopped"),
        ("interrupted", "interrupted"),
    ],
)
def test_the_end_says_why(reason: str, text: str) -> None:
    assert readout(make_snapshot(state="stopped", stop_reason=reason)).state == text


def test_the_rating_is_that_of_self_play() -> None:
    assert any("Elo" in line and "1310" in line for line in drawn(make_snapshot()))
    assert not any("Elo" in line for line in drawn(make_snapshot(elo=None, win_rate=None)))


def test_exploration_is_that_of_algorithms_with_epsilon() -> None:
    assert any("exploration" in line for line in drawn(make_snapshot(exploration_rate=0.0)))
    assert not any("exploration" in line for line in drawn(make_snapshot(exploration_rate=None)))


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604])
def test_a_token_in_a_file_that_others_can_read_is_said(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "log.txt"
    with file.open("w") as stream:
        file.chmod(mode)
        console = RunConsole(stream=stream)
        console.url = "http://127.0.0.1:1/#token=secret"
        console.show(make_snapshot())
        console.close(60)
    lines = file.read_text().splitlines()
    assert "page http://127.0.0.1:1/#token=secret" in lines
    assert (TOKEN_IS_READABLE in lines) is (mode != 0o600)


def test_no_text_of_a_run_can_steer_a_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\r\nCart\u202ePole[red]é"
    snapshot = make_snapshot(env=evil, error=evil, actors=(make_actor(last_error=evil),))
    shown = [readout(snapshot).line(), *drawn(snapshot, url=evil)]
    assert not any(c in text for text in shown for c in "\x1b\x07\r\u202e")
    assert "[red]" in "".join(shown)
    assert plain("\x1b\n\u202e") == r"\x1b\n\u202e"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (0.25, 30.0)),
        ({"total_steps": None, "max_seconds": 40.0}, (0.25, 30.0)),
        ({"total_steps": 4000, "max_seconds": 20.0}, (0.5, 10.0)),
        ({"total_steps": None}, (None, None)),
        ({"env_steps": 5000}, (1.0, None)),
        ({"env_steps": 0}, (0.0, None)),
        ({"train_seconds": 0.9}, (0.25, None)),
        ({"stop_reason": "target_return"}, (1.0, 0.0)),
        ({"stop_reason": "interrupted"}, (0.25, 30.0)),
        ({"train_seconds": 0.0}, (0.25, None)),
    ],
)
def test_progress_is_that_of_the_rule_that_ends_first(
    fields: dict[str, float | None], expected: tuple[float | None, float | None]
) -> None:
    assert progress(make_snapshot(**fields)) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (475.0, "475"),
        (123.456, "123.5"),
        (-1234.5, "-1,234"),
        (1e-05, "1e-05"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.9, "0s"),
        (59.9, "59s"),
        (65, "1m05s"),
        (3600, "1h00m"),
        (90061, "25h01m"),
        (float("nan"), "-"),
        (-1, "-"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# --- the screen -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 79, 80, 95, 111, 112, 160])
def test_the_screen_has_every_field_at_every_width(width: int) -> None:
    lines = drawn(make_snapshot(), width=width)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    for name in FIELDS:
        assert name in text, name
    for value in (
        "3,400",
        "123.5",
        "2.1 updates (p95 5.2)",
        "2.6 updates behind (p95 4)",
        "3.98/4.00",
        "running",
    ):
        assert value in text, value


MANY = tuple(make_actor(i, last_error="boom" if i == 60 else "") for i in range(64))
LARGE = {
    "total_steps": 40_000_000,
    "env_steps": 10_000_000,
    "env_steps_per_second": 123_456.0,
    "staleness_mean": 12_345.6,
    "staleness_p95": 40_960.0,
    "policy_lag_mean": 12.3,
    "policy_lag_p95": 24.0,
    "evaluation": replace(make_snapshot().evaluation, return_mean=4_521.3),  # type: ignore[type-var]
    "best_evaluation": replace(make_snapshot().evaluation, return_mean=4_720.9),  # type: ignore[type-var]
    "elo": None,
    "win_rate": None,
}
EVALUATION = make_snapshot().evaluations[0]
NOTICE = "SIGINT: stopping, once more to kill"
GROUPS = {
    "gradients": (
        GroupStatistics(0, "m", "gradients", "training", fusions=4_200_000, wait_seconds=7261.0),
        GroupStatistics(1, "m", "gradients", "training", fusions=4_200_000, wait_seconds=3.0),
    ),
    "average": tuple(GroupStatistics(rank, "m", "average", "training", fusions=42_000) for rank in range(8)),
    "async": (
        GroupStatistics(0, "m", "async", "training", fusions=42_000, staleness_mean=1.26, staleness_max=17),
        GroupStatistics(1, "m", "async", "ended"),
    ),
}


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("height", [24, 30])
@pytest.mark.parametrize("actors", [(), MANY[:2], MANY])
@pytest.mark.parametrize("notice", ["", NOTICE])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"error": "[ASYNC011] reward is nan", "target_training_return": 300.0},
        {"error": "[ASYNC011] reward is nan", "groups": GROUPS["async"]},
    ],
)
def test_the_screen_is_whole_at_80_by_24(
    width: int, height: int, actors: tuple[ActorStatistics, ...], notice: str, more: dict[str, Any]
) -> None:
    snapshot = make_snapshot(**LARGE, **more, actors=actors)
    lines = drawn(snapshot, width=width, height=height, url=URL, notice=notice)
    text = "\n".join(lines)
    assert len(lines) <= height
    assert lines[0].rstrip() == URL
    assert notice or not lines[-1].strip(), "the echo of Ctrl-C behind a full line would scroll the screen"
    for part in (
        *FIELDS,
        notice,
        "12 updates behind (p95 24)",
        "12,346 updates (p95 40,960)",
        "4,521",
        "4,721",
    ):
        assert part in text, part
    assert "\u2026" not in text, "nothing is cut"
    if more:
        assert "[ASYNC011] reward is nan" in text
    if actors == MANY:
        assert re.search(r"and \d\d more", text)
        assert "actor 60: boom" in text or height == 24, "messages come before an actor's error"
    elif actors:
        assert "4000" in text and "4001" in text


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (120, 40)])
@pytest.mark.parametrize("env", ["e" * 30, "package.module:Environment" * 3, "e" * 200])
@pytest.mark.parametrize("actors", [MANY[:2], MANY])
def test_a_long_name_does_not_make_the_screen_higher_than_its_window(
    size: tuple[int, int], env: str, actors: tuple[ActorStatistics, ...]
) -> None:
    snapshot = make_snapshot(**LARGE, env=env, actors=actors, episodes=1_234_567, wall_seconds=123_456.0)
    url = f"http://a-long-name.of-a-machine.of.a-cluster.example.org:46581/#token={'t' * 20}"
    for address in (URL, url):
        lines = drawn(snapshot, width=size[0], height=size[1], url=address)
        assert len(lines) <= size[1] and not lines[-1].strip()
        assert "4,521" in "".join(lines)


GROUP_TEXTS = {
    "gradients": ("groups 2 by gradients", "fusions 4,200,000", "waits most group 0, 2h01m"),
    "average": ("groups 8 by average", "fusions 42,000"),
    "async": ("groups 2 by async", "group 1 ended", "fusions 42,000, staleness 1.3 (max 17)"),
}


@pytest.mark.parametrize("fusion", GROUPS)
@pytest.mark.parametrize("size", [(80, 24), (120, 30), (60, 20)])
def test_several_groups_have_a_line_on_the_screen(fusion: str, size: tuple[int, int]) -> None:
    snapshot = make_snapshot(**LARGE, actors=MANY, groups=GROUPS[fusion])
    lines = drawn(snapshot, width=size[0], height=size[1], url=URL)
    assert len(lines) <= size[1] and max(map(len, lines)) <= size[0]
    for text in GROUP_TEXTS[fusion]:
        assert any(text in line for line in lines), text
    assert not any("groups" in line for line in drawn(make_snapshot()))


@pytest.mark.parametrize("size", [(80, 24), (120, 30)])
def test_what_the_user_logs_has_a_line_on_the_screen(size: tuple[int, int]) -> None:
    logged = {f"probe/number_{i}": 1234.5 * i for i in range(30)}
    for own in (logged, {"x" * 80: 1.0}):
        snapshot = make_snapshot(**LARGE, actors=MANY, groups=GROUPS["async"], logged=own)
        lines = drawn(snapshot, width=size[0], height=size[1], url=URL)
        assert len(lines) <= size[1] and max(map(len, lines)) <= size[0]
        name = next(iter(own))[:40]
        assert sum(name in line for line in lines) == 1
    line = readout(make_snapshot(logged={"probe": 0.5, **logged})).line()
    assert " 810 updates/s | probe 0.5" in line and len(line) <= LINE_LENGTH, "where there is room"


@pytest.mark.parametrize("size", [(80, 24), (120, 30), (60, 20)])
def test_levels_have_a_line_on_the_screen_and_leave_other_labels_whole(size: tuple[int, int]) -> None:
    levels = {f"length {i}": 123.4 * i for i in range(1, 13)}
    evaluation = EvaluationResult(100.0, 3.0, 10.0, 5, 1, 1000, 2.0, level_returns=levels)
    snapshot = make_snapshot(actors=MANY[:2], evaluation=evaluation)
    lines = drawn(snapshot, width=size[0], height=size[1], url=URL)
    assert len(lines) <= size[1] and max(map(len, lines)) <= size[0]
    assert any(line.startswith("levels    length 1 123.4   length 2 246.8") for line in lines)
    assert not any("\u2026" in line for line in lines)


@pytest.mark.parametrize("fusion", GROUPS)
def test_the_line_for_pipes_has_the_groups(fusion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = readout(make_snapshot(groups=GROUPS[fusion]))
    count, fusions = len(GROUPS[fusion]), GROUPS[fusion][0].fusions
    assert f" | {count} groups, {fusions:,} fusions | 3,400 steps/s" in shown.line()
    assert len(shown.line()) <= LINE_LENGTH
    monkeypatch.setattr(readout_module, "LINE_LENGTH", 300)
    last = {
        "gradients": " | waits most group 0, 2h01m | fusion gradients",
        "average": " | 810 updates/s | fusion average",
        "async": " | group 1 ended | dropped 0 | fusion staleness 1.3 (max 17)",
    }
    assert last[fusion] in shown.line()


@pytest.mark.parametrize("notice", ["", NOTICE])
@pytest.mark.parametrize("actors", [MANY[:2], MANY])
@pytest.mark.parametrize("more", [{}, {"error": "[ASYNC011] reward is nan " * 9, "state": "failed"}])
def test_a_small_window_shows_address_state_returns_and_actors(
    notice: str, actors: tuple[ActorStatistics, ...], more: dict[str, Any]
) -> None:
    lines = drawn(make_snapshot(**more, actors=actors), width=50, height=14, url=URL, notice=notice)
    text = "\n".join(lines)
    assert len(lines) <= 14 and max(map(len, lines)) <= 50
    assert lines[0] == URL
    for part in ("dqn CartPole-v1 seed 3", "return/100 123.5", "evaluation 200", "env steps/s 3,400", notice):
        assert part in text, part
    assert "nearest stop: 4,000 steps" in text
    assert f"{len(actors)} actors running" in text
    assert not more or "[ASYNC011] reward is nan" in text
    assert more or "acting 2.6 updates behind" in text


@pytest.mark.parametrize("size", [(20, 6), (50, 3), (79, 10), (120, 12), (10, 40)])
def test_no_window_is_too_small(size: tuple[int, int]) -> None:
    width, height = size
    lines = drawn(make_snapshot(), width=width, height=height)
    assert max(map(len, lines)) <= width
    assert "".join(lines).startswith("dqn CartPole")


def test_after_the_end_actors_are_shown_as_ended() -> None:
    ended = make_snapshot(
        state="stopped", stop_reason="total_steps", actors=(make_actor(0, state="stopped"),)
    )
    assert any(re.search(r"4000\s+ended .* -  ", line) for line in drawn(ended, height=24))
    assert any("1 actor ended" in line for line in drawn(ended, width=50))


def test_the_screen_lists_as_many_actors_as_there_is_room_for() -> None:
    lines = drawn(make_snapshot(actors=MANY), height=40)
    assert len(lines) == 40
    assert any(f"and {64 - sum('running' in line for line in lines)} more" in line for line in lines)


@pytest.mark.parametrize(
    ("mean", "text"), [(0.0, "0 updates"), (1.0, "1 update"), (0.96, "0.96 updates"), (35.4, "35 updates")]
)
def test_policy_lag_in_words(mean: float, text: str) -> None:
    pace = {field.label: field.value for field in readout(make_snapshot(policy_lag_mean=mean)).pace}
    assert pace["acting"] == f"{text} behind (p95 4)"


def test_a_free_pace_and_no_limit_draw_too() -> None:
    free = make_snapshot(total_steps=None, target_return=None, samples_per_insert_target=None, actors=())
    assert any("until it is stopped" in line for line in drawn(free))


def test_a_notice_is_drawn_at_once_and_stays() -> None:
    stream = io.StringIO()
    console = RunConsole(stream=stream, live=True)
    console.interval_seconds = 1000.0
    console.show(make_snapshot())
    wait_until(lambda: "staleness" in stream.getvalue(), "the first screen")
    console.notify("SIGINT: stopping, once more to kill")
    wait_until(lambda: "once more to kill" in stream.getvalue(), "the notice")
    console.show(make_snapshot(state="stopped", stop_reason="interrupted"))
    console.close()
    assert stream.getvalue().rindex("once more to kill") > stream.getvalue().rindex("interrupted")


# --- the return curve -----------------------------------------------------------------------------------

RISING = [(100 * i, 10.0 * i) for i in range(1, 41)]


@pytest.mark.parametrize("width", [120, 160])
@pytest.mark.parametrize("height", [24, 31, 60])
@pytest.mark.parametrize("actors", [(), MANY[:2], MANY])
@pytest.mark.parametrize("notice", ["", NOTICE])
def test_a_wide_window_draws_the_returns_in_the_lines_that_are_left(
    width: int, height: int, actors: tuple[ActorStatistics, ...], notice: str
) -> None:
    unrated = {"elo": None} if height == 24 else {}  # the rating's line is the curve's there
    snapshot = make_snapshot(**{**LARGE, **unrated}, actors=actors)
    lines = drawn(snapshot, width=width, height=height, url=URL, notice=notice, returns=RISING)
    text = "\n".join(lines)
    assert len(lines) <= height and max(map(len, lines)) <= width
    for part in (*FIELDS, notice):
        assert part in text, part
    if notice and height == 24:
        return  # its line is the curve's
    begin = next(i for i, line in enumerate(lines) if line.startswith("return   * training"))
    end = next(i for i, line in enumerate(lines) if "environment steps -" in line)
    assert end - begin >= 4 and lines[end].split()[0] == "+100" and lines[end].split()[-1] == "4000"
    columns = [line.rstrip().rfind("*") for line in lines[begin + 1 : end]]
    assert columns[0] > width - 5 and columns == sorted(columns, reverse=True), "it rises to the right"
    if actors:
        assert (" 4000 " in text and " 4001 " in text) or "more" in text


def test_the_curve_marks_the_evaluations_and_leaves_out_what_is_not_finite() -> None:
    evaluations = tuple(
        replace(EVALUATION, env_steps=steps, return_mean=mean)
        for steps, mean in ((100, 500.0), (4000, 0.0), (200, float("nan")))
    )
    returns = [*RISING, (4100, float("nan"))]
    lines = drawn(make_snapshot(evaluations=evaluations), width=120, height=31, returns=returns)
    marks = [
        (i, line.index("|o") if "|o" in line else line.rindex("o"))
        for i, line in enumerate(lines)
        if "o" in line and "|" in line
    ]
    (top, first), (bottom, last) = marks
    assert top < bottom and first < 12 and last > 115


@pytest.mark.parametrize("returns", [[], [(100, 5.0)], [(100, 5.0), (100, 6.0)]])
def test_there_is_no_curve_of_less_than_two_points(returns: list[tuple[int, float]]) -> None:
    plain_lines = drawn(make_snapshot(), width=120)
    assert drawn(make_snapshot(), width=120, returns=returns) == plain_lines
    assert not any("o evaluation" in line for line in plain_lines)
    assert not any("o evaluation" in line for line in drawn(make_snapshot(), width=119, returns=RISING))


def test_the_view_keeps_the_returns_of_the_whole_run() -> None:
    console = RunConsole(stream=io.StringIO(), live=False)
    for steps in range(1, 2001):
        console.show(make_snapshot(env_steps=steps, return_mean=float(steps)))
        console.show(make_snapshot(env_steps=steps, return_mean=0.0, state="evaluating"))
    console.show(make_snapshot(env_steps=2001, return_mean=None))
    console.close()
    kept = console._returns
    assert kept[0] == (1, 1.0) and kept[-1] == (2000, 2000.0) and 200 <= len(kept) <= 400
    assert all(mean == steps for steps, mean in kept)


# --- the view of a script -------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """Stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> tuple[Terminal, io.StringIO]:
    """Replace standard output by a terminal, and standard error, in a process that is no notebook.

    Called in the test: pytest gives the process its own streams again after the fixtures.
    """
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(console_module, "in_kernel", lambda: False)
    out, errors = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", errors)
    return out, errors


def test_a_terminal_has_one_screen_and_further_runs_get_lines_that_name_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal, errors = on_terminal(monkeypatch)
    first, second = script_console(), script_console()
    assert first is not None and second is not None
    assert (first.live, second.live) == (True, False)
    first.show(make_snapshot())
    wait_until(lambda: "samples/insert" in terminal.getvalue(), "the screen")
    second.show(make_snapshot(seed=4))
    second.close(60)
    first.close(60)
    assert "dqn CartPole-v1 seed 4: 12s training 1,000/4,000 steps" in errors.getvalue()
    third = script_console()
    assert third is not None and third.live, "the screen is free again"
    third.close()


@pytest.mark.parametrize("reason", ["no terminal", "no terminal, in colour", "dumb", "child"])
def test_elsewhere_lines_go_to_standard_error(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, errors = on_terminal(monkeypatch)
    if reason.startswith("no terminal"):
        monkeypatch.setattr(terminal, "isatty", lambda: False)
        if reason.endswith("colour"):
            monkeypatch.setenv("FORCE_COLOR", "1")
    elif reason == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    else:
        monkeypatch.setattr("multiprocessing.process.parent_process", lambda: object())
    view = script_console()
    assert view is not None and not view.live
    view.follow(make_snapshot(), URL)
    view.close(60)
    assert errors.getvalue().splitlines() == [f"page {URL}", "dqn CartPole-v1 seed 3", LINE]
    assert terminal.getvalue() == ""


def test_a_notebook_and_the_other_ranks_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    monkeypatch.setattr(console_module, "LEADS", False)
    assert script_console() is None
    monkeypatch.setattr(console_module, "LEADS", True)
    monkeypatch.setattr(console_module, "in_kernel", lambda: True)
    assert script_console() is None


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"state": "starting", "env_steps": 0, "wall_seconds": 9.0}, False),
        ({"state": "starting", "env_steps": 0, "wall_seconds": 11.0}, True),
        ({"state": "failed", "env_steps": 0}, False),
        ({"state": "failed", "env_steps": 1}, True),
        ({"state": "training", "env_steps": 0}, True),
    ],
)
def test_an_error_before_training_is_not_preceded_by_zeros(fields: dict[str, Any], shown: bool) -> None:
    assert is_worth_showing(make_snapshot(**fields)) is shown


# --- not a terminal -------------------------------------------------------------------------------------


def test_lines_come_every_ten_seconds_and_at_the_end() -> None:
    stream, now, looks = io.StringIO(), [0.0], [0]

    def clock() -> float:
        looks[0] += 1
        return now[0]

    console = RunConsole(stream=stream, clock=clock)
    assert console.interval_seconds == 10.0
    for second in range(36):
        now[0], before = float(second), looks[0]
        console.show(make_snapshot(env_steps=second))
        # The drawing thread has looked at this one; whether it draws it is its own business.
        wait_until(lambda before=before: looks[0] > before, "a look at the clock")  # type: ignore[misc]
        due = second // 10 + 2  # the first line is the title
        wait_until(lambda due=due: stream.getvalue().count("\n") >= due, f"line {due}")  # type: ignore[misc]
    console.show(make_snapshot(env_steps=99, state="stopped", stop_reason="total_steps"))
    console.close()
    console.close()
    steps = re.findall(r"(\d+)/4,000 steps", stream.getvalue())
    assert steps == ["0", "10", "20", "30", "99"]
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("target", [None, 475.0])
def test_a_run_without_a_limit_says_so_once(target: float | None) -> None:
    stream = io.StringIO()
    console = RunConsole(stream=stream)
    console.show(make_snapshot(total_steps=None, target_return=target))
    console.close()
    said = stream.getvalue().count("no limit: goes on until it is stopped\n")
    assert said == (1 if target is None else 0)


def test_an_ascii_stream_is_enough() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    console = RunConsole(stream=stream)
    console.show(make_snapshot(env="Zähler-v0"))
    console.close()
    assert rb"Z\xe4hler-v0" in raw.getvalue()
    assert not console.broken


@pytest.mark.parametrize("live", [False, True])
def test_a_closed_stream_ends_the_view_and_nothing_else(live: bool) -> None:
    stream = io.StringIO()
    console = RunConsole(stream=stream, live=live)
    stream.close()
    console.show(make_snapshot())
    wait_until(lambda: console.broken, "the view to notice")
    console.show(make_snapshot())
    console.close()


def test_no_standard_output_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    console = RunConsole()
    console.show(make_snapshot())
    console.close()
    assert console.broken


class Stalled(io.StringIO):
    """Stream whose reader has stopped reading."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.released = threading.Event(), threading.Event()
        self.writes = 0

    def write(self, text: str) -> int:
        self.entered.set()
        self.released.wait(PATIENCE_SECONDS)
        self.writes += 1
        return super().write(text)


def test_a_stalled_stream_holds_nobody_up() -> None:
    stream = Stalled()
    console = RunConsole(stream=stream)
    console.show(make_snapshot())
    assert stream.entered.wait(PATIENCE_SECONDS)
    for _ in range(1000):
        console.show(make_snapshot())
    console.close(timeout_seconds=0.05)
    assert stream.writes == 0, "all of it while the first write hangs"
    stream.released.set()
    wait_until(
        lambda: not any(t.name == "asyncrl-console" for t in threading.enumerate()), "the thread's end"
    )


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from snapshots import make_snapshot
from asyncrl.show.console import TOKEN_IS_READABLE, RunConsole
console = RunConsole()
console.show(make_snapshot())
sys.stdin.readline()
console.show(make_snapshot(state="stopped"))
console.close()
print("result")
print("end", file=sys.stderr)
"""


@contextlib.contextmanager
def showing(environment: dict[str, str] | None = None, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Process that shows a run, waits for a line of input and shows its end; killed if a test fails."""
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]))
    root = str(Path(asyncrl.__file__).parents[1])
    given = {**os.environ, "PYTHONPATH": root, "COLUMNS": "100", "LINES": "30", "TERM": "xterm-256color"}
    given.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=given | (environment or {}),
        **options,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen[bytes]) -> None:
    """Let the process show the end; it must succeed and print nothing else."""
    _, errors = process.communicate(b"\n", timeout=PATIENCE_SECONDS)
    assert (process.returncode, errors) == (0, b"end\n")


def test_a_reader_that_leaves_breaks_nothing() -> None:
    with showing(stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().decode().rstrip() for _ in range(2)]
        assert lines == ["dqn CartPole-v1 seed 3", LINE]
        process.stdout.close()
        finish(process)


def test_a_closed_standard_output_breaks_nothing() -> None:
    with showing(preexec_fn=lambda: os.close(1)) as process:
        finish(process)


def on_a_terminal(**environment: str) -> str:
    """Output of a process on its own terminal."""
    ours, theirs = pty.openpty()
    parts: list[bytes] = []

    def read() -> None:
        # Linux says EIO when the other side is gone.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 65536):
                parts.append(part)

    reader = threading.Thread(target=read, daemon=True)
    try:
        with showing(environment, stdout=theirs) as process:
            os.close(theirs)
            reader.start()
            wait_until(lambda: b"810" in b"".join(parts), "the first screen")
            finish(process)
        reader.join(PATIENCE_SECONDS)
    finally:
        os.close(ours)
    return b"".join(parts).decode()


COLOUR = re.compile(r"\x1b\[[\d;]*\b(?:3\d|9\d|38;\d+;\d+)m")


def test_a_terminal_gets_a_screen_in_colour_that_is_redrawn() -> None:
    text = on_a_terminal()
    assert COLOUR.search(text)
    assert text.count("samples/insert") >= 2
    assert "\x1b[1A" in text
    assert text.rindex("\x1b[?25h") > text.rindex("samples/insert"), "the cursor comes back"
    assert text.rstrip().endswith("result")


def test_no_color_is_obeyed() -> None:
    assert not COLOUR.search(on_a_terminal(NO_COLOR="1"))


def test_a_dumb_terminal_gets_lines() -> None:
    text = on_a_terminal(TERM="dumb")
    assert "\x1b" not in text
    assert text.splitlines()[:2] == ["dqn CartPole-v1 seed 3", LINE]


def test_a_snapshot_is_not_needed() -> None:
    console = RunConsole(stream=io.StringIO())
    console.start()
    console.close()
    assert not console.broken
    assert replace(make_snapshot(), seed=4).seed == 4
