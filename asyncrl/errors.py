"""Exceptions and warnings of asyncrl.

    AsyncRLError                      code, what happened, the facts, one fix
    ├── UserError                     exit code 1: an error in the caller's own call or file
    │   ├── FactoryNotPicklable       ASYNC001
    │   ├── SpacesDoNotFit            ASYNC005  (also ValueError)
    │   ├── UnknownEnvironment        ASYNC006  (also ValueError)
    │   ├── BlockingCallInLoop        ASYNC014
    │   ├── DeviceNotAvailable        ASYNC016
    │   ├── ConfigurationError        ASYNC017  (also ValueError)
    │   └── CheckpointError           ASYNC019
    ├── EnvironmentFailed             exit code 3: the user's environment broke its contract
    │   ├── EnvironmentRaised         ASYNC002
    │   ├── EnvironmentNotBuilt       ASYNC004
    │   ├── NonFiniteStep             ASYNC011
    │   ├── ObservationOffSpace       ASYNC012
    │   ├── OldGymAPI                 ASYNC013
    │   ├── EnvironmentHung           ASYNC015
    │   ├── AutoresetUnknown          ASYNC018
    │   └── ParallelAPIBroken         ASYNC034
    ├── ResourceError                 exit code 4: the machine lacks a resource, or a process or ring was lost
    │   ├── ActorKilled               ASYNC003
    │   ├── PortInUse                 ASYNC007
    │   ├── SharedMemoryTooSmall      ASYNC008
    │   ├── GPUOutOfMemory            ASYNC009
    │   ├── ReplayTooLarge            ASYNC010
    │   ├── RingCorrupt               ASYNC023
    │   ├── TooFewDescriptors         ASYNC030
    │   └── GroupLost                 ASYNC032
    ├── StoppedWhileStarting          ASYNC031, exit code 130
    ├── TrainingDiverged              ASYNC022, exit code 1
    └── InferenceFailed               ASYNC033, exit code 1

    AsyncRLWarning (UserWarning)
    ├── SamplesTooStale               ASYNC020
    ├── TooManyThreads                ASYNC021
    ├── ActionValuesOutOfRange        ASYNC024
    ├── FilesNotWritten               ASYNC040
    ├── EvaluationIncomplete          ASYNC041
    ├── ListenerFailed                ASYNC042
    ├── RingQuarantined               ASYNC043
    ├── LittleDiskSpace               ASYNC044
    ├── StopTakesLong                 ASYNC045
    ├── OptionNotKept                 ASYNC046
    ├── TextLeftOut                   ASYNC047
    ├── ScheduleWithoutSteps          ASYNC048
    ├── ObservationsOfUnusualSize     ASYNC049
    └── ActionsBeyondBounds           ASYNC050

A wrong argument is a plain `ValueError` or `TypeError`: `num_slots must be a power of two, got 12`.
"""

from __future__ import annotations

import contextlib
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

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
    # Further lines of a fact, such as a stack, are indented below its name.
    lines = [head, *(f"  {name}: {shown(value)}".replace("\n", "\n    ") for name, value in facts.items())]
    if fix:
        lines.append(f"  fix: {fix}")
    if remote_traceback:
        lines.append("  remote traceback:")
        lines += ["    " + line for line in remote_traceback.rstrip().splitlines()]
    return "\n".join(lines)


class AsyncRLError(Described):
    """Base of all errors caused by the user, the environment or the machine.

    Attributes:
        code, exit_code: stable name, `ASYNCnnn`; exit status of the command line.
        what: what happened, in one sentence.
        facts: name to value, in the order of display.
        fix, remote_traceback: what to do, in one sentence; traceback of the process that failed, or None.
    """

    code: ClassVar[str] = "ASYNC000"
    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        what: str,
        *,
        facts: Mapping[str, object] | None = None,
        fix: str = "",
        remote_traceback: str | None = None,
    ) -> None:
        self.what, self.facts, self.fix = printable(what), dict(facts or {}), fix
        self.remote_traceback = remote_traceback and printable(remote_traceback, TRACEBACK_LIMIT)
        super().__init__(self.what)

    def __str__(self) -> str:
        return report(f"[{self.code}] {self.what}", self.facts, self.fix, self.remote_traceback)

    def __reduce__(self) -> tuple[object, ...]:
        kept = {"facts": self.facts, "fix": self.fix, "remote_traceback": self.remote_traceback}
        return partial(type(self), **kept), (self.what,)  # type: ignore[arg-type]


class UserError(AsyncRLError):
    """Error in the caller's own call, file or command line."""


class FactoryNotPicklable(UserError):
    """The environment factory cannot be sent to the actors."""

    code = "ASYNC001"


class SpacesDoNotFit(UserError, ValueError):
    """The algorithm cannot act in this environment's spaces."""

    code = "ASYNC005"


class UnknownEnvironment(UserError, ValueError):
    """No environment of that id is registered in the actors."""

    code = "ASYNC006"


class BlockingCallInLoop(UserError, RuntimeError):
    """A blocking method was called on a thread whose event loop is running."""

    code = "ASYNC014"


class DeviceNotAvailable(UserError):
    """The requested device is not available; asyncrl never falls back silently."""

    code = "ASYNC016"


class ConfigurationError(UserError, ValueError):
    """An option that does not exist, or a value outside its range, in a file or on the command line."""

    code = "ASYNC017"


class CheckpointError(UserError):
    """A checkpoint is damaged, or belongs to another environment, algorithm or version."""

    code = "ASYNC019"


class TrainingDiverged(AsyncRLError):
    """The loss or the weights became NaN or infinite; such weights are never published."""

    code = "ASYNC022"


class InferenceFailed(AsyncRLError):
    """The thread that runs the network for all actors has failed."""

    code = "ASYNC033"


class EnvironmentFailed(AsyncRLError):
    """The user's environment broke its contract."""

    exit_code = 3


class EnvironmentRaised(EnvironmentFailed):
    """An environment raised in an actor."""

    code = "ASYNC002"


class EnvironmentNotBuilt(EnvironmentFailed):
    """The environment's constructor failed; never retried."""

    code = "ASYNC004"


class NonFiniteStep(EnvironmentFailed):
    """A reward or observation was NaN or infinite; it was not stored."""

    code = "ASYNC011"


class ObservationOffSpace(EnvironmentFailed):
    """An observation has another shape than its space, or values that the space's dtype does not hold."""

    code = "ASYNC012"


class OldGymAPI(EnvironmentFailed):
    """The environment has the API from before Gymnasium 0.26, or its reset takes no seed."""

    code = "ASYNC013"


class EnvironmentHung(EnvironmentFailed):
    """A step exceeded `step_timeout_seconds`, or building and resetting exceeded `ready_timeout_seconds`."""

    code = "ASYNC015"


class AutoresetUnknown(EnvironmentFailed):
    """The autoreset mode of a vector environment is SAME_STEP or not declared."""

    code = "ASYNC018"


class ParallelAPIBroken(EnvironmentFailed):
    """An environment of several agents does not keep PettingZoo's parallel API."""

    code = "ASYNC034"


class ResourceError(AsyncRLError):
    """The machine lacks a resource, or a process or ring of the run was lost."""

    exit_code = 4


class ActorKilled(ResourceError):
    """An actor process died of a signal more often within a minute than `max_restarts` allows."""

    code = "ASYNC003"


class PortInUse(ResourceError):
    """The HTTP port is in use."""

    code = "ASYNC007"


class SharedMemoryTooSmall(ResourceError):
    """Shared memory for the rings cannot be reserved."""

    code = "ASYNC008"


class GPUOutOfMemory(ResourceError):
    """The device ran out of memory."""

    code = "ASYNC009"


class ReplayTooLarge(ResourceError):
    """The requested replay is larger than the machine's memory."""

    code = "ASYNC010"


class RingCorrupt(ResourceError):
    """The header of an actor's ring was overwritten more often within a minute than `max_restarts` allows."""

    code = "ASYNC023"


class TooFewDescriptors(ResourceError):
    """The process's limit of open file descriptors is too low for the run."""

    code = "ASYNC030"


class GroupLost(ResourceError):
    """A group of the run was killed, lost its connection, failed, or never joined."""

    code = "ASYNC032"


class StoppedWhileStarting(AsyncRLError):
    """The run was stopped before its actors and its network were ready; it leaves no policy."""

    code = "ASYNC031"
    exit_code = 130


class AsyncRLWarning(UserWarning):
    """Base of all warnings; the text begins with the code."""


_given: dict[Any, Any] = {}
"""Warnings that were given, in the form of `warnings`, which shows a text once."""


def warn(warning: AsyncRLWarning) -> None:
    """Give a warning of a run; any thread. It has no place: the threads of a run have no line of the user on the stack.

    `warnings.warn` would show a line of asyncio.
    """
    warnings.warn_explicit(warning, type(warning), "asyncrl", 0, "asyncrl", _given)


class SamplesTooStale(AsyncRLWarning):
    """ASYNC020: a large share of the produced samples is too stale to learn from."""


class TooManyThreads(AsyncRLWarning):
    """ASYNC021: more busy threads than cores."""


class ActionValuesOutOfRange(AsyncRLWarning):
    """ASYNC024: action values exceed the bound given by rewards and discount; learning has most likely diverged."""


class FilesNotWritten(AsyncRLWarning):
    """ASYNC040: a file of the run could not be written; training continues and the write is retried."""


class EvaluationIncomplete(AsyncRLWarning):
    """ASYNC041: an evaluation failed, or some of its episodes were cut off at a limit."""


class ListenerFailed(AsyncRLWarning):
    """ASYNC042: the user's callback for snapshots raised; training continues."""


class RingQuarantined(AsyncRLWarning):
    """ASYNC043: an environment overwrote the ring of its actor; the rows were discarded and the actor restarted."""


class LittleDiskSpace(AsyncRLWarning):
    """ASYNC044: the disk has too little space for all checkpoints that the run is to keep."""


class StopTakesLong(AsyncRLWarning):
    """ASYNC045: a run was asked to stop and has not ended yet; the text names what it waits for."""


class OptionNotKept(AsyncRLWarning):
    """ASYNC046: an option is a function that does not pickle; to resume the run the function must be given again."""


class TextLeftOut(AsyncRLWarning):
    """ASYNC047: a part of the observation is text, which no policy reads; training continues without it."""


class ScheduleWithoutSteps(AsyncRLWarning):
    """ASYNC048: a schedule is one over `total_steps`, which the run does not have, so its value never changes."""


class ObservationsOfUnusualSize(AsyncRLWarning):
    """ASYNC049: values of the first observations are in the hundreds, or all below a hundredth: little is learned."""


class ActionsBeyondBounds(AsyncRLWarning):
    """ASYNC050: actions of a dataset are outside of the environment's bounds, where no policy's action is."""


def environment_exceptions() -> tuple[type[BaseException], ...]:
    """Exceptions of a call of an environment that are its own; for an `except` around the call.

    KeyboardInterrupt is one only where no signal raises it, as in the processes of actors, which ignore SIGINT. In the
    main process it is the user's.
    """
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    by_signal = any(callable(signal.getsignal(number)) for number in signals)
    return (Exception, SystemExit) if by_signal else (Exception, SystemExit, KeyboardInterrupt)


@contextlib.contextmanager
def environment_calls(
    who: str, where: str, fix: str, facts: Callable[[], Mapping[str, object]]
) -> Iterator[None]:
    """Turn an exception of an environment into `EnvironmentRaised`: `who` raised it `where`. Errors of ours pass."""
    try:
        yield
    except AsyncRLError:
        raise
    except environment_exceptions() as error:
        raise EnvironmentRaised(
            f"{who} raised {type(error).__name__}{where and f' {where}'}: {error_text(error)}",
            facts=facts(),
            fix=fix,
            remote_traceback=traceback.format_exc(),
        ) from error


@contextlib.contextmanager
def single_error() -> Iterator[None]:
    """Raise the first error of an exception group instead of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__
