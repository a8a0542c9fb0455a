"""Summary of a run: the content of `summary.json`, and its POST to the user's webhook.

The POST never delays or changes the run.
"""

from __future__ import annotations

import logging
import threading
import urllib.request
from dataclasses import asdict
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

import msgspec

from asyncrl.interfaces import Distribution
from asyncrl.show.evaluation_result import BY_NAME
from asyncrl.show.group_statistics import summary_of
from asyncrl.show.metrics import EvaluationResult, Snapshot
from asyncrl.show.numbers import of_return
from asyncrl.version import __version__

LOGGER = logging.getLogger("asyncrl.alert")

ALERT_SECONDS = 10.0
"""Time limit of an alert; the end of the program waits as long for it."""

SAME = (
    *("error", "stop_reason", "env_steps", "updates", "episodes", "policy_version"),
    *("wall_seconds", "train_seconds", "startup_seconds"),
)
"""Entries that a snapshot has too, in the order of the file."""
COMPLETE = ("total_steps", "max_seconds", "target_return", "target_training_return")
"""Stop reasons that are options of the run; only a run that ended by one of them gets a final evaluation."""
ENDED_EARLY = ("failed", "interrupted", "stopped")
"""Stop reasons that are also the run's state at its end; that of any other is `"finished"`."""


def summarize(last: Snapshot, final: EvaluationResult | None, actor_wait_seconds: float) -> dict[str, Any]:
    """Make the content of `summary.json`; rates and fractions are over all of `train_seconds`.

    Times to a target are on the training clock, which is paused while an evaluation holds training.
    `time_to_target_seconds` belongs to a confirmed evaluation, `time_to_training_target_seconds` to the mean of
    the last 100 training episodes. Time, steps and updates to the greedy target are those at which the weights that
    passed were copied, not those at which their evaluation ended.

    Args:
        last: the run's last snapshot.
        final: evaluation of the weights that the run returns, None if there was none.
        actor_wait_seconds: mean over the actors of the time spent waiting for a grant while the training clock ran.
    """
    seconds = max(last.train_seconds, 1e-9)
    return {
        **{name: getattr(last, name) for name in ("algo", "env", "seed")},
        "state": last.stop_reason if last.stop_reason in ENDED_EARLY else "finished",
        **{name: getattr(last, name) for name in SAME},
        **_to_target(last, final),
        "episodes_return_mean": last.return_mean,
        "eval": {
            "return_mean": final.return_mean if final else None,
            "return_std": final.return_std if final else None,
            "episodes": final.episodes if final else 0,
            **{name: returns for name in BY_NAME if final and (returns := getattr(final, name))},
        },
        **({"opponents": [asdict(opponent) for opponent in last.opponents]} if last.opponents else {}),
        "env_steps_per_second": last.env_steps / seconds,
        "updates_per_second": last.updates / seconds,
        "staleness": _over_all(last, "async/staleness") | {"discarded_fraction": last.discarded_fraction},
        "staleness_versions": _over_all(last, "async/staleness_versions"),
        "policy_lag": _over_all(last, "async/policy_lag"),
        "samples_per_insert": {
            "target": last.samples_per_insert_target,
            "achieved": last.samples_per_insert_achieved,
        },
        "learner_wait_fraction": min(1.0, last.learner_wait_seconds / seconds),
        "actor_wait_fraction": min(1.0, actor_wait_seconds / seconds),
        "actor_restarts": last.actor_restarts,
        **summary_of(last.groups),
    }


def _over_all(last: Snapshot, name: str) -> dict[str, float]:
    """Mean, 95th percentile and largest value since the start."""
    whole = last.distributions.get(name, Distribution())
    return {"mean": whole.mean, "p95": whole.p95, "max": whole.max}


def _to_target(last: Snapshot, final: EvaluationResult | None) -> dict[str, Any]:
    """Time, steps and updates to the target that ended the run; None for other targets."""
    reached = final if last.stop_reason == "target_return" else None
    trained = last.stop_reason == "target_training_return"
    return {
        "time_to_target_seconds": reached.train_seconds if reached else None,
        "steps_to_target": reached.env_steps if reached else None,
        "updates_to_target": reached.updates if reached else None,
        "time_to_training_target_seconds": last.train_seconds if trained else None,
        "steps_to_training_target": last.env_steps if trained else None,
    }


def send_summary(address: str, summary: dict[str, Any], run_dir: str | None) -> threading.Thread:
    """Begin to send the summary of a run; returns at once.

    The body is a JSON object with `text` and `content`, one sentence, which the webhooks of Slack, Mattermost and
    Discord show, `summary`, the content of `summary.json`, and `run_dir`. A failure is logged.

    Returns:
        The thread that waits for the answer, `ALERT_SECONDS` at most. The program does not end before it.
    """
    sentence = describe(summary)
    body = {"text": sentence, "content": sentence, "summary": summary, "run_dir": run_dir}
    # A daemon: a server that trickles its answer must not hold the program.
    sending = threading.Thread(target=_send, args=(address, body), name="asyncrl-alert", daemon=True)
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
    returned = "" if mean is None else f"return {of_return(mean)}, "
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


class _Unfollowed(urllib.request.HTTPRedirectHandler):
    """Refuses to follow a redirection, which would be a GET without the summary."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        """Raise `HTTPError`; the new address may be secret."""
        raise HTTPError(req.full_url, code, "it redirects; give the address that takes the POST", headers, fp)


def _send(address: str, body: dict[str, Any]) -> None:
    try:
        request = urllib.request.Request(
            address,
            msgspec.json.encode(body),
            {"Content-Type": "application/json", "User-Agent": f"asyncrl/{__version__}"},
        )
        with urllib.request.build_opener(_Unfollowed).open(request, timeout=ALERT_SECONDS):
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
