"""Connections: one whose other side is suspended, and the network interface that they use."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from group_rig import on_ranks

from asyncrl.groups.launch import free_port
from asyncrl.groups.peers import PeerLost, Peers, own_address

SUSPENDED = """
import os, signal, sys, time
import torch, torch.distributed as dist
from asyncrl.groups.peers import Peers

other = os.fork()
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=other != 0, wait_for_workers=False)
peers = Peers(store, "pair", 0 if other else 1, 2)
peers.sum(torch.zeros(1))
if not other:
    os.kill(os.getpid(), signal.SIGSTOP)
os.waitpid(other, os.WUNTRACED)
print(other, flush=True)
work = peers.begin_broadcast(torch.zeros(1), 1)
peers.close()
del peers, work
print("freed", flush=True)
"""


def test_a_connection_to_a_suspended_rank_is_freed_without_waiting(tmp_path: Path) -> None:
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen([sys.executable, "-c", SUSPENDED, str(free_port())], stdout=output)
    try:
        code = process.wait(30)
    finally:
        process.kill()
        other = int((tmp_path / "output").read_text().split()[0])
        os.kill(other, signal.SIGKILL)
    assert code == 0 and "freed" in (tmp_path / "output").read_text()


@pytest.mark.parametrize(("interface", "connects"), [("lo", True), ("nope9", False)])
def test_the_interface_in_the_environment_is_used(
    interface: str, connects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    store = dist.HashStore()

    def rank(index: int) -> bool:
        try:
            peers = Peers(store, "pair", index, 2, own_address("127.0.0.1", 1), connect_seconds=20)
        except PeerLost as error:
            assert "Unable to find address for: nope9" in str(error)
            return False
        peers.sum(torch.zeros(1))
        return True

    assert on_ranks(2, rank) == [connects] * 2


def test_a_host_name_that_has_an_ipv6_address_only_has_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET6, 2, 17, "", ("::1", 1, 0, 0))]
    )
    families: list[int] = []

    class Probe(socket.socket):
        def __init__(self, family: int, kind: int) -> None:
            families.append(family)
            super().__init__(socket.AF_INET, kind)

    monkeypatch.setattr(socket, "socket", Probe)
    own_address("127.0.0.1", 1)
    assert families == [socket.AF_INET6]
