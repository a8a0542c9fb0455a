"""Alert at the end of a run: a POST of its summary to the user's webhook. It never delays or changes the run."""

from __future__ import annotations

import logging
import threading
import urllib.request
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

import msgspec

from asyncrl.version import __version__

LOGGER = logging.getLogger("asyncrl.alert")

ALERT_SECONDS = 10.0
"""Time limit of an alert; the end of the program waits as long for it."""


def send_summary(address: str, summary: dict[str, Any], run_dir: str | None) -> threading.Thread:
    """Begin to send the summary of a run; returns at once.

    The body is a JSON object with `text` and `content`, one sentence, which the webhooks of Slack, Mattermost and
    Discord show, `summary`, the content of `summary.json`, and `run_dir`. A failure is logged.

    Returns:
        The thread that waits for the answer, `ALERT_SECONDS` at most. The program does not end before it.
    """
    sentence = describe(summary)
    body = {"text": sentence, "content": sentence, "summary": summary, "run_dir": run_dir}
    sending = threading.Thread(
        target=_send, args=(address, body), name="asyncrl-alert", daemon=True
    )  # a server that trickles its answer must not hold the program
    waiting = threading.Thread(target=_wait_for, args=(sending, address), name="asyncrl-alert-limit")
    try:
        sending.start()
        waiting.start()
    except RuntimeError as error:  # the program ends, or no thread is to be had
        LOGGER.warning("the alert to %s was not sent: %s", _place(address), error)
    return waiting


def describe(summary: dict[str, Any]) -> str:
    """One sentence about a run: `dqn CartPole-v1 seed 0 finished (target_return): return 487.2, 31,000 steps, 12 s`."""
    name = f"{summary['algo']} {summary['env']} seed {summary['seed']}"
    mean = summary["eval"]["return_mean"]
    returned = "" if mean is None else f"return {mean:.1f}, "
    reason = "" if summary["state"] == summary["stop_reason"] else f" ({summary['stop_reason']})"
    error = f": {summary['error'].splitlines()[0]}" if summary["error"] else ""
    took = f"{returned}{summary['env_steps']:,} steps, {summary['wall_seconds']:.0f} s"
    return f"{name} {summary['state']}{reason}{error}: {took}"


def without_secrets(options: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Options by table for the page, whose readers may not know the webhook's path, which is a secret."""
    return {
        table: {
            name: f"{_place(value)}/..." if name == "on_end" and value else value
            for name, value in values.items()
        }
        for table, values in options.items()
    }


def _send(address: str, body: dict[str, Any]) -> None:
    try:
        request = urllib.request.Request(
            address,
            msgspec.json.encode(body),
            {"Content-Type": "application/json", "User-Agent": f"asyncrl/{__version__}"},
        )
        with urllib.request.urlopen(request, timeout=ALERT_SECONDS):
            pass
    except Exception as error:  # whatever it is, the run has ended
        if isinstance(error, HTTPError):
            error.close()  # it holds the connection
        LOGGER.warning("the alert to %s was not taken: %s", _place(address), str(error))


def _wait_for(sending: threading.Thread, address: str) -> None:
    sending.join(ALERT_SECONDS)
    if sending.is_alive():
        LOGGER.warning("the alert to %s was not answered within %.0f s", _place(address), ALERT_SECONDS)


def _place(address: str) -> str:
    """Scheme and host of an address without what may be secret."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
