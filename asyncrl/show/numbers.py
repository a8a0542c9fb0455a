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


def of_return(value: float | None, like: float | None = None) -> str:
    """Format a return: four digits as a rule, one decimal from 10 to 10,000, three digits below 0.01, None as "-".

    Args:
        value: the return, or a deviation or bound of returns.
        like: a return beside which it is shown, whose number of decimals it takes.
    """
    if value is None:
        return NONE
    size = abs(value if like is None else like)
    if 0 < size < 0.01:
        return f"{value:.3g}"
    decimals = 0 if size >= 10_000 else 1 if size >= 10 or size == 0 else 2 if size >= 1 else 3
    return f"{value:,.{decimals}f}" if size >= 10_000 else f"{value:.{decimals}f}"


def with_deviation(mean: float, deviation: float) -> str:
    """Format a mean return and its deviation with as many decimals as the larger of them: `0.955 +/- 0.031`."""
    size = max(abs(mean), abs(deviation))
    return f"{of_return(mean, size)} +/- {of_return(deviation, size)}"


def interval(low: float | None, high: float | None) -> str:
    """Format an interval of returns with as many decimals as the larger bound: `[492.0, 500.0]`; None as "-"."""
    if low is None or high is None:
        return NONE
    size = max(abs(low), abs(high))
    return f"[{of_return(low, size)}, {of_return(high, size)}]"


def with_interval(value: float, low: float | None, high: float | None) -> str:
    """Format a return and an interval around it, if there is one: `497.3 [492.0, 500.0]`."""
    if low is None or high is None:
        return of_return(value)
    return f"{of_return(value, max(abs(low), abs(high)))} {interval(low, high)}"


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
