"""Live card of a notebook: one output that shows the run during training and its last state afterwards.

Only this module uses IPython: for the card, the running cell, and to detect a kernel. An Interrupt of a cell that waits
for runs stops them, and the cell gets their results; by default the kernel cancels the cell, and its result is lost. A
second Interrupt calls the kernel's own handler: it cancels the cell, and the runs are killed if they do not end.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from types import FrameType
from typing import Any

from asyncrl.show.metrics import Snapshot
from asyncrl.show.readout import Field, Readout, readout

HISTORY_POINTS = 240
FOLLOW_SECONDS = 0.5
"""Minimum time between two redraws of a card that follows a run."""

# Colours of the notebook's theme (JupyterLab's variables), or of the system if it has none.
INK = "var(--jp-content-font-color1, CanvasText)"
MUTED = "var(--jp-content-font-color2, GrayText)"
LINE = "var(--jp-border-color2, rgba(128,128,128,.35))"
ACCENT = "#2f7fd6"
STATE_COLOURS = {"training": "#1c9b5e", "evaluating": "#2f7fd6", "failed": "#d1403a"}


class LiveCard:
    """A card in the output of the cell that first calls `show`.

    The first `show` must run in the cell, as it creates the output; later ones may come from any thread.

    Raises:
        ImportError: IPython is not installed; importing this module does not need it.
    """

    def __init__(self) -> None:
        try:
            self._display: Any = import_module("IPython.display").display
        except ImportError:
            raise ImportError("the live card needs IPython: pip install 'asyncrl[notebook]'") from None
        self._handle: Any = None
        self._returns: list[tuple[float, float]] = []
        self._shown_at = -float("inf")

    def follow(self, snapshot: Snapshot) -> None:
        """Redraw the card if the last redraw is old enough or the run has ended."""
        if snapshot.stop_reason is not None or time.monotonic() - self._shown_at >= FOLLOW_SECONDS:
            self.show(snapshot)

    def show(self, snapshot: Snapshot) -> None:
        """Create or redraw the card."""
        self._shown_at = time.monotonic()
        if snapshot.return_mean is not None:
            self._returns.append((snapshot.wall_seconds, snapshot.return_mean))
            if len(self._returns) > HISTORY_POINTS:  # thinned, so that the curve still covers the whole run
                del self._returns[1::2]
        words = readout(snapshot)
        self.show_text(f"{words.title}: {words.line()}", card_html(snapshot, self._returns))

    def show_text(self, text: str, html: str) -> None:
        """Create or redraw the card with this content."""
        bundle = {"text/html": html, "text/plain": text}
        if self._handle is None:
            self._handle = self._display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def card_html(snapshot: Snapshot, returns: Sequence[tuple[float, float]] = ()) -> str:
    """The card as HTML: inline styles, no script, no external resources, every text escaped.

    Args:
        snapshot: the run.
        returns: seconds since the run began, rising, and mean return then, for the small curve.
    """
    words = readout(snapshot)
    colour = STATE_COLOURS.get(snapshot.state, MUTED)
    head = (
        f'<div style="display:flex;gap:10px;align-items:baseline;flex-wrap:wrap">'
        f'<b style="font-size:15px">{escape(words.title)}</b>'
        f'<span style="color:{colour};font-weight:600">&#9679; {escape(words.state)}</span></div>'
    )
    groups = (*words.groups, ("Levels", words.levels), ("Logged", words.logged))
    grid = "".join(_group(name, fields) for name, fields in groups if fields)
    error = f'<div style="color:#d1403a;margin-top:8px">{escape(words.error)}</div>' if words.error else ""
    return box(
        f'{head}{_bar(words)}<div style="display:flex;gap:12px 36px;flex-wrap:wrap;margin-top:12px">'
        f"{grid}{_curve(returns)}</div>{error}"
    )


def box(inner: str) -> str:
    """A card around `inner`, in the colours of the notebook's theme."""
    return (
        f'<div style="color:{INK};border:1px solid {LINE};border-radius:8px;padding:14px 18px;max-width:48em;'
        f'font:13px/1.5 system-ui,sans-serif;font-variant-numeric:tabular-nums">{inner}</div>'
    )


def _bar(words: Readout) -> str:
    if words.fraction is None:
        return f'<div style="color:{MUTED}">{escape(words.progress_short)}</div>'
    text = f'<div style="color:{MUTED}">{words.fraction:.0%}, {escape(words.progress_short)}</div>'
    return (
        f'<div style="height:6px;border-radius:3px;background:{LINE};margin:10px 0 4px">'
        f'<div style="height:6px;border-radius:3px;background:{ACCENT};width:{words.fraction:.1%}">'
        f"</div></div>{text}"
    )


def _group(name: str, fields: tuple[Field, ...]) -> str:
    rows = "".join(
        f'<div style="display:flex;justify-content:space-between;gap:14px">'
        f'<span style="color:{MUTED}">{escape(field.label)}</span><span>{escape(field.value)}</span></div>'
        for field in fields
    )
    return f'<div style="min-width:190px;flex:1"><b>{name}</b>{rows}</div>'


def _curve(returns: Sequence[tuple[float, float]]) -> str:
    """Returns so far as a small inline SVG line, `width` 720 by `height` 56; "" at fewer than two moments."""
    points = [point for point in returns if abs(point[1]) < float("inf")]
    if not points or points[-1][0] <= points[0][0]:
        return ""
    begin, seconds = points[0][0], points[-1][0] - points[0][0]
    values = [value for _, value in points]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    path = " ".join(
        f"{(at - begin) / seconds * 720:.1f},{52 - (value - low) / span * 48:.1f}" for at, value in points
    )
    return (
        f'<div style="flex-basis:100%"><span style="color:{MUTED}">return over time, '
        f"{low:,.4g} to {high:,.4g}</span>"
        f'<svg viewBox="0 0 720 56" preserveAspectRatio="none" style="width:100%;height:56px;display:block">'
        f'<polyline points="{path}" fill="none" stroke="{ACCENT}" stroke-width="2" '
        f'vector-effect="non-scaling-stroke"/></svg></div>'
    )


class ShownByCard:
    """Mixin that displays a run: the live card as last value of a notebook cell, one line elsewhere."""

    config: Any

    def snapshot(self) -> Snapshot | None:
        """The newest snapshot, None before the first."""
        raise NotImplementedError

    def _show_in(self, card: LiveCard) -> None:
        raise NotImplementedError

    def __repr__(self) -> str:
        snapshot = self.snapshot()
        if snapshot is None:
            return f"Trainer({self.config.env!r}, {self.config.algo!r}, seed={self.config.seed}): not started"
        return f"Trainer: {readout(snapshot).line()}"

    def _repr_html_(self) -> str:
        snapshot = self.snapshot()
        return box(escape(repr(self))) if snapshot is None else card_html(snapshot)

    def _ipython_display_(self) -> None:
        card, snapshot = live_card(), self.snapshot()
        if card is None:
            print(repr(self))
        elif snapshot is None:
            card.show_text(repr(self), self._repr_html_())
            self._show_in(card)
        else:
            card.show(snapshot)
            if snapshot.stop_reason is None:
                self._show_in(card)


@dataclass(frozen=True)
class Cell:
    """One execution of a notebook cell.

    Attributes:
        key: the cell's id, or its code if the frontend sends no id.
        execution: id of the execution.
    """

    key: str
    execution: str

    def is_again(self, earlier: Cell) -> bool:
        """Whether this is another execution of the same cell as `earlier`."""
        return self.key == earlier.key and self.execution != earlier.execution


def running_cell() -> Cell | None:
    """The running cell, None outside a Jupyter kernel."""
    kernel = _kernel()
    if kernel is None:
        return None
    request = kernel.get_parent("shell")
    key = request.get("metadata", {}).get("cellId") or request.get("content", {}).get("code", "")
    execution = request.get("header", {}).get("msg_id", "")
    return Cell(str(key), str(execution)) if key and execution else None


def in_kernel() -> bool:
    """Whether this process is a Jupyter kernel."""
    return _kernel() is not None


def live_card() -> LiveCard | None:
    """A card for the running cell, or None outside a Jupyter kernel."""
    return LiveCard() if in_kernel() else None


def _kernel() -> Any:
    if "IPython" not in sys.modules:
        return None
    return getattr(import_module("IPython").get_ipython(), "kernel", None)


# --- interrupts ------------------------------------------------------------------------------------------------------

_stops: list[Callable[[], None]] = []
_kernels_handler: Any = None
_interrupted = False


@contextlib.contextmanager
def interrupt_stops(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first SIGINT inside the block, in the main thread of a kernel; elsewhere do nothing."""
    global _kernels_handler, _interrupted
    if not in_kernel() or threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _stops:
        _interrupted = False
        _kernels_handler = signal.signal(signal.SIGINT, _handle)
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)
        if not _stops and signal.getsignal(signal.SIGINT) is _handle:
            signal.signal(signal.SIGINT, _kernels_handler)


def _handle(number: int, frame: FrameType | None) -> None:
    global _interrupted
    if _interrupted and callable(_kernels_handler):
        _kernels_handler(number, frame)
        return
    _interrupted = True
    for stop in tuple(_stops):
        stop()
