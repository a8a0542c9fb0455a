"""Connections whose other side is suspended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from asyncrl.groups.launch import free_port

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
