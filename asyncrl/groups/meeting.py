"""Start of a job: every rank publishes its card in the store, and the ranks are refused if they do not match.

A card holds the rank's host, process, versions and options. All ranks read all cards, so all raise the same error.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import stat
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import metadata
from typing import Any

from asyncrl.errors import ConfigurationError, GroupLost, StoppedWhileStarting
from asyncrl.groups.peers import dist
from asyncrl.groups.place import Place

JOIN_SECONDS = 120.0
"""Time limit for the other ranks to join; torch alone may take half a minute to load on a busy machine."""
LOOK_SECONDS = 0.05
"""Interval at which the store is polled."""
_FAREWELL_SECONDS = 5.0
_TRY_SECONDS = 2.0
"""Time limit of one try to reach the store."""
_CUT_SECONDS = 30
"""Time without acknowledgement after which a connection to the store ends."""
_PART_BYTES = 4 << 20
"""Bytes of one value of the store; torch ends the connection at 8 MiB."""
_SHOWN = 5
"""Most differences in an error message."""

Card = dict[str, Any]


def open_store(place: Place, *, every_life: bool, cancelled: Callable[[], bool] = lambda: False) -> Any:
    """Open the job's store, for all lives of its ranks or only this one.

    Raises:
        GroupLost: it does not answer, or this rank cannot serve it.
        StoppedWhileStarting: `cancelled` returned True.
    """
    serves = place.rank == 0 and not place.agent_store
    if not serves:
        _wait_for_server(place, cancelled)
    try:
        store = dist.TCPStore(
            place.host,
            place.port,
            is_master=serves,
            timeout=timedelta(seconds=JOIN_SECONDS),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except (RuntimeError, dist.DistError) as error:
        if not serves:
            raise _unreachable(place, error) from error
        raise GroupLost(
            f"Rank 0 on {place.machine} cannot serve the store of the job.",
            facts={"address": f"{place.host}:{place.port}", "cause": str(error).partition("\n")[0]},
            fix="end the program that uses this port, or give all ranks another MASTER_PORT",
        ) from error
    _end_when_cut(place.port)
    return dist.PrefixStore("asyncrl" if every_life else f"asyncrl/{place.life}", store)


def _end_when_cut(port: int) -> None:
    """Let the system end connections to the store that are not acknowledged; torch waits for answers without limit."""
    if socket.getdefaulttimeout() is not None:  # a socket object would make torch's socket non-blocking
        return
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the folder's own descriptor, closed since
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family != socket.AF_UNIX and connection.getpeername()[1] == port:
                    _limit_silence(connection)


def _limit_silence(connection: socket.socket) -> None:
    options = {
        "TCP_KEEPIDLE": 10,
        "TCP_KEEPINTVL": 5,
        "TCP_KEEPCNT": 4,
        "TCP_USER_TIMEOUT": _CUT_SECONDS * 1000,
    }
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _wait_for_server(place: Place, cancelled: Callable[[], bool]) -> None:
    """Wait until the store accepts connections; torch's own wait cannot be ended, and prints a trace at every try."""
    deadline = time.monotonic() + JOIN_SECONDS
    while True:
        try:
            socket.create_connection((place.host, place.port), _TRY_SECONDS).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise _unreachable(place, error) from error
        _raise_if(cancelled)
        time.sleep(LOOK_SECONDS)


def _unreachable(place: Place, error: Exception) -> GroupLost:
    return GroupLost(
        f"Rank {place.rank} on {place.machine} cannot reach rank 0.",
        facts={"address": f"{place.host}:{place.port}", "cause": str(error).partition("\n")[0]},
        fix="start rank 0 too, give every rank its address, and let the port through the firewall",
    )


def _raise_if(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise StoppedWhileStarting("The run was stopped while it waited for the other groups.")


def card_of(place: Place, options: Mapping[str, Any]) -> Card:
    """Make this rank's card; `options` must be equal on all ranks."""
    names = ("asyncrl", "torch", "numpy", "gymnasium")
    return {
        "host": place.machine,
        "pid": os.getpid(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in names}},
        "options": json.loads(json.dumps(dict(options), default=str)),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def meet(
    store: Any,
    place: Place,
    card: Card,
    *,
    seconds: float = JOIN_SECONDS,
    cancelled: Callable[[], bool] = lambda: False,
) -> list[Card]:
    """Publish `card` and wait for the cards of all ranks; returns them in the order of ranks.

    Raises:
        GroupLost: ranks have not joined after `seconds`; the text names them. Or the store, and rank 0, are lost.
        StoppedWhileStarting: `cancelled` returned True.
        ConfigurationError: ranks differ in versions or options.
    """
    try:
        cards = _cards(store, place, card, seconds, cancelled)
    except (RuntimeError, dist.DistError) as error:
        raise _store_lost(place, "The store of the job is lost", error) from error
    differences = _differences(cards)
    if differences:
        with contextlib.suppress(RuntimeError):  # rank 0 does not wait for ever
            _let_all_read(store, place)
        raise ConfigurationError(
            "the groups of a run must be alike, and they differ",
            facts=dict(differences[:_SHOWN]),
            fix="start every rank with the same versions and options",
        )
    return cards


def _cards(store: Any, place: Place, card: Card, seconds: float, cancelled: Callable[[], bool]) -> list[Card]:
    """Publish `card` and wait for those of all ranks; see `meet`."""
    store.set(_key(place.rank), json.dumps(card))
    deadline = time.monotonic() + seconds
    missing = list(range(place.size))
    while missing := [rank for rank in missing if not store.check([_key(rank)])]:
        _raise_if(cancelled)
        if time.monotonic() > deadline:
            raise _not_come(place, missing, seconds)
        time.sleep(LOOK_SECONDS)
    cards = [json.loads(store.get(_key(rank))) for rank in range(place.size)]
    store.add("read", 1)
    return cards


def hand_out(store: Any, place: Place, start: bytes) -> bytes:
    """Return rank 0's `start` on every rank. Raises `GroupLost`."""
    try:
        if place.rank == 0:
            parts = [start[at : at + _PART_BYTES] for at in range(0, len(start), _PART_BYTES)]
            for index, part in enumerate(parts):
                store.set(f"start/{index}", part)
            store.set("start", str(len(parts)))
            return start
        return b"".join(store.get(f"start/{index}") for index in range(int(store.get("start"))))
    except (RuntimeError, dist.DistError) as error:
        raise _store_lost(place, "Rank 0 is lost; it has not said what the run begins with", error) from error


def _store_lost(place: Place, what: str, error: Exception) -> GroupLost:
    facts = {"cause": str(error).partition("\n")[0], "noticed by": f"rank {place.rank} on {place.machine}"}
    return GroupLost(f"{what}.", facts=facts, fix="look at the output of rank 0")


def _key(rank: int) -> str:
    return f"card/{rank}"


def _not_come(place: Place, missing: list[int], seconds: float) -> GroupLost:
    named = ", ".join(str(rank) for rank in missing)
    come = place.size - len(missing)
    return GroupLost(
        f"Rank{'s' * (len(missing) > 1)} {named} of {place.size} did not come within {seconds:.0f} s.",
        facts={"came": f"{come} of {place.size}", "waiting": f"rank {place.rank} on {place.machine}"},
        fix="start the missing ranks, and look at their output for an error",
    )


def _differences(cards: list[Card]) -> list[tuple[str, str]]:
    """Names of the versions and options that differ, with the value of rank 0 and of the other rank."""
    found = []
    for part in ("versions", "options"):
        first = cards[0][part]
        for rank, card in enumerate(cards):
            for name in sorted({*first, *card[part]}):
                here, there = first.get(name), card[part].get(name)
                if here != there:
                    text = f"{here} on rank 0 ({cards[0]['host']}), {there} on rank {rank} ({card['host']})"
                    found.append((name, text))
    return found


def _let_all_read(store: Any, place: Place) -> None:
    """On rank 0, which may serve the store, wait until all ranks have read the cards."""
    deadline = time.monotonic() + _FAREWELL_SECONDS
    while place.rank == 0 and store.add("read", 0) < place.size and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
