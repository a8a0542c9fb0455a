"""Curves as an image file. Only this module uses matplotlib, an optional extra (`asyncrl[plot]`)."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigurationError
from asyncrl.show.comparison import SettingResult
from asyncrl.show.curves import Curve, by_environment
from asyncrl.storage.atomic_file import write_atomically
from asyncrl.storage.disk_space import error_of_file

FORMATS = (".png", ".svg", ".pdf")
"""Suffixes of the files that are written."""
DASHES = ("-", "--", ":", "-.")
"""Kinds of lines: the second ten lines are dashed, as colours are ten."""
COLUMNS = 3
"""Most axes side by side."""
SLICE_INCHES, WIDE_RANGE = 2.8, 20.0
"""Height of a row of slices; ratio of the largest to the smallest number from which an axis is logarithmic."""
LABEL_CHARACTERS, LINE_INCHES = 56, 0.2
"""Width of a legend's lines and their height: a legend that is larger than its axes leaves them no room."""


def write_picture(
    path: Path, curves: Sequence[Curve], name: str, x_label: str, settings: Sequence[SettingResult] = ()
) -> None:
    """Write the curves with their bands to a PNG, SVG or PDF file, chosen by its suffix; folders are made.

    Every environment has axes of its own; one name has one colour and one kind of line everywhere.

    Args:
        path: the file.
        curves: at least one.
        name: what they show.
        x_label: `steps` or `seconds`.
        settings: performance profiles, which get axes of their own.

    Raises:
        ConfigurationError: another suffix, matplotlib is not installed, or the path cannot be written.
        ResourceError: the disk is full.
    """
    plots = by_environment(curves)
    columns = min(COLUMNS, count := len(plots) + bool(settings))
    rows, height = -(-count // columns), _row_inches(plots.values(), len(settings))
    figure = _figure(path, columns, height * rows)
    names = dict.fromkeys(curve.name for curve in curves)
    colours = {name: (f"C{i % 10}", DASHES[i // 10 % len(DASHES)]) for i, name in enumerate(names)}
    for i, (env, own) in enumerate(plots.items()):
        axes = figure.add_subplot(rows, columns, i + 1)
        _draw(axes, own, colours)
        axes.set(title=env, xlabel=x_label, ylabel=name)
        _finish(axes)
    if settings:
        axes = figure.add_subplot(rows, columns, count)
        _draw_profiles(axes, settings, colours)
        _finish(axes)
    _save(figure, path)


def write_slices(
    path: Path, slices: Mapping[str, Sequence[tuple[Any, float]]], name: str, title: str
) -> None:
    """Write axes for each option with its values and the results that runs had with them, as `write_picture` does.

    Args:
        path: the file.
        slices: value and result of every run by option; numbers of a wide range have a logarithmic axis, and other
            values a place each.
        name: what the results are.
        title: title of the picture.

    Raises:
        ConfigurationError, ResourceError: see `write_picture`.
    """
    rows, columns = -(-len(slices) // COLUMNS), min(COLUMNS, len(slices))
    figure = _figure(path, columns, SLICE_INCHES * rows)
    figure.suptitle(title)
    for i, (option, points) in enumerate(slices.items()):
        axes = figure.add_subplot(rows, columns, i + 1)
        x, y = [value for value, _ in points], [result for _, result in points]
        numbers = [value for value in x if isinstance(value, int | float) and not isinstance(value, bool)]
        if len(numbers) < len(x):
            x = list(map(str, x))
        elif min(numbers) > 0 and max(numbers) >= WIDE_RANGE * min(numbers):
            axes.set_xscale("log")
        axes.scatter(x, y, c=range(len(y)), cmap="viridis", s=24)  # later ones are lighter
        axes.set(xlabel=option, ylabel=name)
        axes.grid(alpha=0.3)
    _save(figure, path)


def _figure(path: Path, columns: int, inches: float) -> Any:
    """A figure of so many axes side by side. Raises `ConfigurationError` for another suffix, or without matplotlib."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigurationError(
            f"a picture's file must end in {', '.join(FORMATS)}, got {path.suffix or 'no suffix'}",
            facts={"file": path},
            fix="give a file that ends in .png, .svg or .pdf",
        )
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError(
            "a picture needs matplotlib, which is not installed",
            facts={"file": path},
            fix='pip install "asyncrl[plot]", or leave out --out to plot in the terminal',
        ) from error
    return Figure(figsize=(max(7.2, 4.8 * columns), inches), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, dpi=150, format=path.suffix.removeprefix(".").lower(), bbox_inches="tight")
    except ValueError as error:  # its sides have too many pixels
        raise ConfigurationError(
            f"the picture cannot be drawn: {error}",
            facts={"file": path},
            fix="plot fewer runs, or write an .svg",
        ) from error
    with error_of_file("the picture", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, [drawn.getvalue()])


def _draw(axes: Any, curves: Sequence[Curve], colours: dict[str, tuple[str, str]]) -> None:
    for curve in curves:
        marker = "o" if len(curve.x) == 1 else ""  # a line through one point is invisible
        colour, dashes = colours[curve.name]
        look = {"marker": marker, "linewidth": 1.6, "color": colour, "linestyle": dashes}
        axes.plot(curve.x, curve.line, label=_label(curve.label), **look)
        if curve.size:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)


def _row_inches(plots: Iterable[Sequence[Curve]], settings: int) -> float:
    """Height of a row of axes, with room for the longest legend."""
    lines = max(sum(_label(curve.label).count("\n") + 1 for curve in own) for own in plots)
    return 4.4 + LINE_INCHES * max(lines, 2 * settings)


def _label(text: str) -> str:
    """A legend's text, in lines that are no wider than axes."""
    return textwrap.fill(text, LABEL_CHARACTERS)


def _finish(axes: Any) -> None:
    """Grid, and the legend below the axes, where it hides no line and has the room that its labels need."""
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize="small")


def _draw_profiles(axes: Any, settings: Sequence[SettingResult], colours: dict[str, tuple[str, str]]) -> None:
    for own in settings:
        colour, dashes = colours.get(own.name, ("black", "-"))
        axes.plot(
            *(own.thresholds, own.profile),
            label=_label(f"{own.name}, {own.runs} runs"),
            linewidth=1.6,
            color=colour,
            linestyle=dashes,
        )
        axes.fill_between(own.thresholds, own.low, own.high, color=colour, alpha=0.2, linewidth=0)
    axes.set(
        title="Performance profile",
        xlabel="normalised score",
        ylabel="share of runs above it",
        ylim=(-0.03, 1.03),
    )
