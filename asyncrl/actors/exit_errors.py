"""Errors for a process that ended (ASYNC003) or that hung and was killed (ASYNC015)."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil

from asyncrl.actors.server_process import ChildExit
from asyncrl.errors import ActorKilled, EnvironmentHung

_GIB = 2.0**30
_SCARCE = 0.1
"""Share of free memory below which an unexplained SIGKILL is attributed to the kernel's out-of-memory killer."""


def how_it_ended(status: int) -> str:
    """Describe an exit status, e.g. `was killed by SIGSEGV (Segmentation fault)`."""
    if status >= 0:
        return f"exited with status {status} without a word"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name} ({signal.strsignal(-status) or 'unknown'})"


def actor_killed(
    who: str, exit: ChildExit, restarts: int, *, crash: str = "", log: Path | None = None
) -> ActorKilled:
    """Return ASYNC003.

    Args:
        who: subject, e.g. `Actor 0`.
        exit: exit of its last life.
        restarts: number of restarts before.
        crash: report of its interpreter on a fatal signal, "" without one.
        log: file of its output, None if that is standard error.
    """
    if exit.server_lost:
        return ActorKilled(
            f"{who} was killed because the fork server died.",
            facts={"pid": exit.pid},
            fix="start the run again; if nobody killed the server, the machine may be out of memory",
        )
    again = "" if restarts == 0 else f", after {restarts} restart{'s' if restarts > 1 else ''}"
    facts: dict[str, object] = {"pid": exit.pid, "restarts": restarts}
    output = "what it wrote to standard error" if log is None else "its log"
    fix = f"look at {output}; native code in the environment is the usual cause"
    if log is not None:
        facts["log"] = log
    if crash:
        facts["where"] = "\n" + crash.rstrip()
        fix = "mend the native code that is called there, or keep the environment from calling it"
    if exit.status == -signal.SIGKILL:
        memory = psutil.virtual_memory()
        facts["most memory it had resident"] = f"{exit.max_rss_bytes / _GIB:.2f} GiB"
        facts["memory of the machine"] = (
            f"{memory.available / _GIB:.2f} GiB free of {memory.total / _GIB:.2f} GiB"
        )
        fix = "unless somebody sent it, memory ran out: lower num_actors or envs_per_actor"
        if memory.available < _SCARCE * memory.total or exit.max_rss_bytes > memory.total / 2:
            facts["looks like"] = "out of memory"
    return ActorKilled(f"{who} {how_it_ended(exit.status)}{again}.", facts=facts, fix=fix)


def actor_too_large(actor: int, pid: int, private_bytes: int, limit_bytes: int) -> ActorKilled:
    """Return ASYNC003 for an actor that is killed for its private memory."""
    return ActorKilled(
        f"Actor {actor} was killed because its private memory of {private_bytes:,} bytes exceeds max_actor_bytes.",
        facts={"pid": pid, "max_actor_bytes": f"{limit_bytes:,}"},
        fix="mend what leaks in the environment, raise max_actor_bytes, or lower envs_per_actor",
    )


def build_hung(who: str, seconds: float, stack: str) -> EnvironmentHung:
    """Return ASYNC015 for a process that hung while it built and reset environments.

    Args:
        who: subject, e.g. `The environment CartPole-v1`.
        seconds: duration of the wait.
        stack: its Python stacks, most recent call first.
    """
    what = f"{who} was not built and reset within {seconds:.1f} s."
    return _hung(what, {"seconds": f"{seconds:.1f}"}, stack, "ready_timeout_seconds")


def evaluation_hung(name: str, seconds: float, stack: str) -> EnvironmentHung:
    """Return ASYNC015 for an environment that hung in an evaluation; see `build_hung` for the arguments."""
    what = f"The environment {name} did not return for {seconds:.1f} s in an evaluation."
    return _hung(what, {"seconds": f"{seconds:.1f}"}, stack, "step_timeout_seconds")


def actor_hung(
    actor: int, env: int, seconds: float, ready: bool, median_step_seconds: float | None, stack: str
) -> EnvironmentHung:
    """Return ASYNC015 for an actor.

    Args:
        actor: index of the actor.
        env: index of the environment that hangs, -1 if unknown.
        seconds: time without a heartbeat, in which the supervisor was awake.
        ready: whether it had built and reset its environments.
        median_step_seconds: median duration of an environment step before, or None without steps.
        stack: its Python stacks, most recent call first.
    """
    where = f"Environment {env} of actor {actor}" if env >= 0 else f"An environment of actor {actor}"
    what = (
        f"did not return for {seconds:.1f} s" if ready else f"was not built and reset within {seconds:.1f} s"
    )
    median = "no step yet" if median_step_seconds is None else f"{median_step_seconds * 1e3:.3f} ms"
    facts = {"actor": actor, "seconds": f"{seconds:.1f}", "median step time": median}
    option = "step_timeout_seconds" if ready else "ready_timeout_seconds"
    return _hung(f"{where} {what}.", facts, stack, option)


def _hung(what: str, facts: dict[str, object], stack: str, option: str) -> EnvironmentHung:
    return EnvironmentHung(
        what,
        facts={**facts, "stack (most recent call first)": "\n" + (stack.rstrip() or "  not available")},
        fix=f"mend what hangs there, or raise {option} if it only takes that long",
    )
