"""Readable numbers and texts in printable ASCII."""

from __future__ import annotations

NONE = "-"


def number(value: float | None, digits: int = 4) -> str:
    """Format a number with `digits` significant digits, large ones without a fraction, None as "-"."""
    if value is None:
        return NONE
    if abs(value) >= 10 ** (digits - 1) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def duration(seconds: float) -> str:
    """Format seconds as `7s`, `2m05s` or `3h07m`."""
    if not 0 <= seconds < 1e9:
        return NONE
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def plain(text: str) -> str:
    """Escape everything but printable ASCII, so that no text can send control codes to a terminal."""
    ascii_only = text.encode("ascii", "backslashreplace").decode("ascii")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in ascii_only)
