"""Drives a real Jupyter kernel in a process of its own, for `test_notebooks.py`: its client leaves sockets open.

python kernel_session.py run NOTEBOOK OUTPUT     executes all cells and writes the notebook with its outputs
python kernel_session.py interrupt               prints {"seconds", "ename", "done"} of an interrupted run
"""

from __future__ import annotations

import json
import queue
import sys
import time
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient


def run(path: str, output: str) -> None:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=110, kernel_name="python3").execute()
    nbformat.write(notebook, output)


def interrupt() -> None:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        _execute(client, "from asyncrl import Trainer; trainer = Trainer('CartPole-v1', 'dqn', http='off')")
        running = client.execute("await trainer.run()")
        deadline = time.monotonic() + 60
        while not _card_was_redrawn(client):
            assert time.monotonic() < deadline, "the live card was not redrawn"
        before = time.monotonic()
        manager.interrupt_kernel()
        reply = _reply_to(client, running)
        seconds = time.monotonic() - before
        done = _execute(client, "assert trainer.done")["status"] == "ok"
        print(json.dumps({"seconds": seconds, "ename": reply.get("ename"), "done": done}))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _execute(client: Any, code: str) -> dict[str, Any]:
    return _reply_to(client, client.execute(code))


def _reply_to(client: Any, message_id: str) -> dict[str, Any]:
    while True:
        reply = client.get_shell_msg(timeout=60)
        if reply["parent_header"].get("msg_id") == message_id:
            return reply["content"]


def _card_was_redrawn(client: Any) -> bool:
    try:
        return client.get_iopub_msg(timeout=0.2)["msg_type"] == "update_display_data"
    except queue.Empty:
        return False


if __name__ == "__main__":
    {"run": run, "interrupt": interrupt}[sys.argv[1]](*sys.argv[2:])
