"""Curves as an image file. Only this module uses matplotlib, an optional extra (`asyncrl[plot]`)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from asyncrl.errors import ConfigurationError
from asyncrl.show.curves import Curve
from asyncrl.storage.atomic_file import write_atomically
from asyncrl.storage.disk_space import error_of_file


def write_picture(path: Path, curves: Sequence[Curve], title: str, x_label: str, y_label: str) -> None:
    """Write the curves with their bands to a PNG, SVG or PDF file, chosen by the file's suffix.

    Raises:
        ConfigurationError: matplotlib is not installed or cannot write this format, or the path cannot be written.
        ResourceError: the disk is full.
    """
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
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for curve in curves:
        marker = "o" if len(curve.x) == 1 else ""  # a line through one point is invisible
        (line,) = axes.plot(curve.x, curve.mean, marker=marker, label=curve.label, linewidth=1.6)
        if curve.seeds > 1:
            axes.fill_between(curve.x, curve.low, curve.high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, dpi=150, format=path.suffix.removeprefix("."))
    except ValueError as error:
        raise ConfigurationError(
            f"the picture cannot be written: {error}",
            facts={"file": path},
            fix="give a file that ends in .png, .svg or .pdf",
        ) from error
    with error_of_file("the picture", path):
        write_atomically(path, [drawn.getvalue()])
