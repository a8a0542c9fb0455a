"""Printable text of values that come from environments, files and exceptions.

Control characters are escaped, and long texts are shortened to a limit.
"""

from __future__ import annotations

from collections.abc import Mapping

TEXT_LIMIT, TRACEBACK_LIMIT = 4_000, 20_000
"""Maximum number of characters of a message or one fact, and of a remote traceback."""


def printable(text: str, limit: int = TEXT_LIMIT) -> str:
    """Escape control characters except newline and tab, and shorten to `limit` characters by a cut in the middle."""
    shown_whole = _escaped(text[: limit + 1])
    if len(shown_whole) <= limit:
        return shown_whole
    mark = f" [... {len(text):,} characters in all ...] "
    half = max(1, (limit - len(mark)) // 2)
    return _escaped(text[:half])[:half] + mark + _escaped(text[-half:])[-half:]


def _escaped(text: str) -> str:
    if all(line.isprintable() for line in text.split("\n")):
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def shown(value: object) -> str:
    """`str(value)` as `printable` text, or a replacement text if `str` raises."""
    try:
        return printable(str(value))
    except Exception as broken:
        return f"(a {type(value).__name__} whose text cannot be shown: str() raised {type(broken).__name__})"


def error_text(error: BaseException) -> str:
    """Message of an exception; the name of its class if it has none."""
    return shown(error) or type(error).__name__


class Described(Exception):
    """Exception whose text is complete: what happened, the facts and the fix, not a message alone."""


def describe_error(error: BaseException) -> str:
    """Text of an error that ended a run: `str` of an `AsyncRLError`, type and message of any other exception."""
    if isinstance(error, Described):
        return str(error)
    kind, text = type(error).__name__, error_text(error)
    return kind if text == kind else f"{kind}: {text}"


def report(head: str, facts: Mapping[str, object], fix: str, remote_traceback: str | None) -> str:
    """Text of an error in lines: head, facts, fix, and the traceback of another process."""
    lines = [head, *(f"  {name}: {shown(value)}" for name, value in facts.items())]
    if fix:
        lines.append(f"  fix: {fix}")
    if remote_traceback:
        lines.append("  remote traceback:")
        lines += ["    " + line for line in remote_traceback.rstrip().splitlines()]
    return "\n".join(lines)
