"""Entry point of the command: imports the command line and calls it. A signal during the imports ends it quietly, too.

It imports nothing of its own, so that nothing precedes the `try`.
"""

import os

INTERRUPTED = 130
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals that end a command, unless they are ignored (`nohup`); `interrupts.py` has those of a run."""
received: list[int] = []
"""Those that have come. An import may swallow the KeyboardInterrupt: one in a callback of its locks is only printed."""


def main() -> int:
    """Run the command of `sys.argv`; returns its exit code."""
    try:
        _heed_signals()
        from asyncrl.cli.main import main as run
        from asyncrl.cli.output import exit_if_unread
        from asyncrl.run.switching import own_process

        with own_process():
            code = run()
        exit_if_unread(code)
        return code
    except KeyboardInterrupt:
        _say_interrupted()
        return INTERRUPTED
    finally:
        # Python notes a KeyboardInterrupt that leaves a string it executes (`dataclass` does), and ends by the signal,
        # without the exit code, though the error was caught since. Executing another string clears that note.
        exec("")


def _heed_signals() -> None:
    """Let `SIGNALS` raise KeyboardInterrupt, and note them."""
    import signal

    for name in SIGNALS:
        number = getattr(signal, name)
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    received.append(number)
    raise KeyboardInterrupt


def _say_interrupted() -> None:
    import contextlib

    with contextlib.suppress(OSError):  # the terminal may be gone
        os.write(2, b"interrupted\n")
