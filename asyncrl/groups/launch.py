"""Launch of ranks on this machine with torch's elastic launcher, as `torchrun` does.

`gradients` and `average` have one agent for all ranks, which ends the others if one rank dies. With `async` every rank
has its own agent, so that the others continue and a dead one may be restarted.
"""

from __future__ import annotations

import logging
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

SHUTDOWN_SECONDS = 20
"""Time limit for a rank to end in the normal order before its agent kills it."""

Failure = dict[str, Any]


class Launch:
    """Running ranks of one job.

    Args:
        command: command of each rank; a rank reads its place from its environment.
        ranks: number of ranks.
        alone: whether each rank has its own agent.
        max_restarts: restarts of a dead rank. With one agent per rank not of rank 0, as the others end with it.
        on_end: called with the failures when all ranks have ended; on one of the launch's threads.
    """

    def __init__(
        self,
        command: Sequence[str],
        ranks: int,
        *,
        alone: bool,
        max_restarts: int,
        on_end: Callable[[list[Failure]], None],
    ) -> None:
        for name in ("", ".agent.server.api"):  # the run's own error has what matters of these logs
            logging.getLogger(f"torch.distributed.elastic{name}").setLevel(logging.CRITICAL)
        self._command, self._on_end = list(command), on_end
        self._failures: list[Failure] = []
        self._lock = threading.Lock()
        agents, each = (ranks, 1) if alone else (1, ranks)
        endpoint, job = f"127.0.0.1:{free_port()}", uuid.uuid4().hex
        self._threads = [
            threading.Thread(
                target=self._run,
                args=(LaunchConfig(**_options(agents, each, node, endpoint, job, max_restarts)),),
                name=f"asyncrl-agent-{node}",
                daemon=True,
            )
            for node in range(agents)
        ]
        self._left = agents
        for thread in self._threads:
            thread.start()

    def join(self, seconds: float) -> bool:
        """Wait for the agents, at most `seconds` each; returns whether all have ended."""
        for thread in self._threads:
            thread.join(seconds)
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, config: LaunchConfig) -> None:
        try:
            elastic_launch(config, self._command[0])(*self._command[1:])
        except ChildFailedError as error:
            self._note(
                {"rank": rank, "pid": failure.pid, "exit_code": failure.exitcode}
                for rank, failure in error.failures.items()
            )
        except BaseException as error:
            self._note([{"rank": None, "pid": 0, "exit_code": 1, "text": str(error)}])
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._on_end(list(self._failures))

    def _note(self, failures: Any) -> None:
        with self._lock:
            self._failures.extend(failures)


def _options(agents: int, each: int, node: int, endpoint: str, job: str, max_restarts: int) -> dict[str, Any]:
    options = {
        "min_nodes": agents,
        "max_nodes": agents,
        "nproc_per_node": each,
        "run_id": job,
        "rdzv_backend": "static",
        "rdzv_endpoint": endpoint,
        "rdzv_configs": {"rank": node, "timeout": 60},
        "max_restarts": max_restarts if node or agents == 1 else 0,
        "shutdown_timeout": SHUTDOWN_SECONDS,
    }
    if not hasattr(LaunchConfig, "shutdown_timeout"):  # older versions of torch: always 30 seconds
        del options["shutdown_timeout"]
    return options


def free_port() -> int:
    """Find a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def describe_failure(failure: Failure, host: str) -> str:
    """Describe a failed rank: its number, host, process and exit."""
    code = int(failure["exit_code"])
    how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    text = f": {failure['text']}" if failure.get("text") else ""
    who = "the launcher" if failure["rank"] is None else f"rank {failure['rank']}"
    return f"{who} on {host} (pid {failure['pid']}) {how}{text}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
