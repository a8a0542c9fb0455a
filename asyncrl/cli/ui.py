"""`asyncrl ui`: serve a page over all runs of a folder, live and finished, until Ctrl-C."""

from __future__ import annotations

import argparse
from pathlib import Path

from asyncrl.cli.flags import Parser
from asyncrl.cli.interrupts import run_until_signal
from asyncrl.cli.run_name import existing_folder

HIGHEST_PORT = 65535


def make_parser() -> Parser:
    """Flags of `asyncrl ui`."""
    parser = Parser(
        "ui [FOLDER] [--port PORT]",
        "Serve a page over all runs of a folder, live and finished, on this machine only.",
    )
    parser.add_argument("FOLDER", nargs="?", help="folder of runs (runs, or ASYNCRL_RUNS)")
    parser.add_argument("--port", type=_port, default=0, metavar="PORT", help="port; 0 takes any free one")
    return parser


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > HIGHEST_PORT:
        raise argparse.ArgumentTypeError(
            f"port must be a whole number from 0 to {HIGHEST_PORT}, got {text!r}"
        )
    return int(text)


def run(options: argparse.Namespace) -> None:
    """Serve until Ctrl-C.

    Raises:
        ConfigurationError: there is no such folder.
        PortInUse: the port is taken (ASYNC007).
    """
    import contextlib
    import logging

    folder = existing_folder(options.FOLDER, "ui")
    logging.getLogger("asyncrl.server").addHandler(logging.StreamHandler())  # tracebacks, to stderr
    with contextlib.suppress(KeyboardInterrupt):
        run_until_signal(_serve(folder.resolve(), options.port))


async def _serve(folder: Path, port: int) -> None:
    import asyncio
    import secrets
    import sys

    from asyncrl.server.folder import FolderServer
    from asyncrl.show.console import READABLE_TOKEN, is_readable_by_others

    token = secrets.token_urlsafe(15)
    server = FolderServer(folder, port=port, token=token)
    await server.start()
    print(f"page {server.url}/#token={token}\nruns of {folder}, Ctrl-C ends", flush=True)
    if is_readable_by_others(sys.stdout):
        print(READABLE_TOKEN.format("label and delete runs"), flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await server.close()
