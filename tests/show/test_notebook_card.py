"""Card of a notebook: its content, and that it is one output that is redrawn."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from snapshots import make_snapshot
from waiting import PATIENCE_SECONDS

import asyncrl
from asyncrl.show.notebook import HISTORY_POINTS, LiveCard, card_html, live_card

CURVE = [(1.0, 1.0), (2.0, 2.0), (3.0, 5.0)]
"""Seconds and returns."""


class Balance(HTMLParser):
    """Parser that checks that every element is closed in order; collects tags and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parse(html: str) -> Balance:
    parser = Balance()
    parser.feed(html)
    parser.close()
    assert not parser.open
    return parser


def test_the_card_says_what_the_terminal_says() -> None:
    text = " ".join(parse(card_html(make_snapshot(), CURVE)).text)
    for part in (
        "dqn CartPole-v1 seed 3",
        "training",
        "25%",
        "30s left",
        "env steps/s 3,400",
        "3.98/4.00",
        "acting 2.6 updates behind (p95 4)",
        "staleness 2.1 updates (p95 5.2)",
    ):
        assert part in text, part


def test_the_card_is_complete_in_itself_and_runs_nothing() -> None:
    evil = "<script>alert(1)</script>\"'<img src=x onerror=alert(1)>"
    parsed = parse(card_html(make_snapshot(env=evil, error=evil, state="failed"), CURVE))
    assert set(parsed.tags) <= {"div", "span", "b", "svg", "polyline"}
    assert evil in "".join(parsed.text)
    assert not re.search(r"https?:|url\(|\son\w+=", card_html(make_snapshot(), CURVE))


def test_the_curve_spans_its_box_and_leaves_out_what_is_not_finite() -> None:
    returns = [(10.0, 5.0), (20.0, float("nan")), (30.0, 1.0), (40.0, float("inf")), (90.0, 9.0)]
    (points,) = re.findall(r'points="([^"]+)"', card_html(make_snapshot(), returns))
    assert points == "0.0,28.0 180.0,52.0 720.0,4.0", "at their times"
    assert "polyline" not in card_html(make_snapshot(), [(10.0, 5.0)])
    assert "polyline" in card_html(make_snapshot(), [(10.0, 5.0), (20.0, 5.0)])


def test_a_run_without_a_limit_has_no_bar() -> None:
    assert "width:25.0%" in card_html(make_snapshot())
    assert "width:" not in card_html(make_snapshot(total_steps=None)).replace("max-width:", "").replace(
        "min-width:", ""
    )


class FakeDisplay:
    """Fake of IPython's `display` and of the handle that it returns."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []
        self.updates: list[dict[str, str]] = []

    def __call__(self, bundle: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw and display_id
        self.shown.append(bundle)
        return self

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.updates.append(bundle)


def test_one_output_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("IPython.display")
    display = FakeDisplay()
    monkeypatch.setattr(module, "display", display)
    card = LiveCard()
    for i in range(3):
        card.show(make_snapshot(return_mean=float(i), env_steps=1000 * i, wall_seconds=10.0 + i))
    assert len(display.shown) == 1 and len(display.updates) == 2
    assert "polyline" in display.updates[-1]["text/html"]
    assert display.updates[-1]["text/plain"].startswith(
        "dqn CartPole-v1 seed 3: 12s training 2,000/4,000 steps"
    )


def test_a_long_run_keeps_a_short_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("IPython.display")
    monkeypatch.setattr(module, "display", FakeDisplay())
    card = LiveCard()
    for i in range(5 * HISTORY_POINTS):
        card.show(make_snapshot(return_mean=float(i), wall_seconds=float(i)))
    assert HISTORY_POINTS / 2 <= len(card._returns) <= HISTORY_POINTS
    assert card._returns[0] == (0.0, 0.0) and card._returns[-1] == (5 * HISTORY_POINTS - 1,) * 2
    (points,) = re.findall(r'points="([^"]+)"', card_html(make_snapshot(), card._returns))
    x, y = zip(*(map(float, point.split(",")) for point in points.split()), strict=True)
    straight = [52 - 48 * at / 720 for at in x]
    assert max(abs(a - b) for a, b in zip(y, straight, strict=True)) < 0.2, (
        "what rises evenly is a straight line"
    )


def test_ipython_is_needed_on_use_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", None)
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    assert "<div" in card_html(make_snapshot())
    with pytest.raises(ImportError, match=r"the live card needs IPython: pip install 'asyncrl\[notebook\]'"):
        LiveCard()


def test_outside_a_kernel_there_is_no_card() -> None:
    assert live_card() is None


def test_a_kernel_shows_one_output_updated_from_another_thread() -> None:
    for module in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(module)
    # In a process of its own, because the kernel's client keeps sockets for the life of the process.
    paths = f"{Path(__file__).parents[1]}{os.pathsep}{Path(asyncrl.__file__).parents[1]}"
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE],
        input=CELL,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    (output,) = json.loads(done.stdout)
    assert output["output_type"] == "display_data"
    assert "4,000/4,000 steps" in output["data"]["text/html"]
    assert "stopped" in output["data"]["text/plain"]


EXECUTE = """
import json, sys
import nbclient, nbformat
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(sys.stdin.read())])
nbclient.NotebookClient(notebook, timeout=50).execute()
print(json.dumps(notebook.cells[0].outputs))
"""

CELL = """
import threading
from snapshots import make_snapshot
from asyncrl.show.notebook import live_card
card = live_card()
card.show(make_snapshot())
thread = threading.Thread(target=lambda: card.show(make_snapshot(state="stopped", env_steps=4000)))
thread.start()
thread.join()
"""
