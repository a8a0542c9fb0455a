"""Driver of a real Jupyter kernel in a separate process, for `test_notebooks.py`: its client leaves sockets open.

python kernel_session.py run NOTEBOOK OUTPUT     executes all cells and writes the notebook with its outputs
python kernel_session.py life                    prints what was seen: run again, two at once, interrupt, restart
"""

from __future__ import annotations

import ast
import json
import sys
import time
from typing import Any

import nbformat
import psutil
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from waiting import PATIENCE_SECONDS

OPTIONS = "num_actors=1, envs_per_actor=4, total_steps=10**8, target_eval_episodes=2"
START = f"trainer = Trainer('CartPole-v1', 'dqn', seed={{seed}}, {OPTIONS})\ntrainer.start()\ntrainer"
RUN = f"trainer = Trainer('CartPole-v1', 'dqn', http='off', {OPTIONS})\nresult = await trainer.run()"


def run(path: str, output: str) -> None:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=PATIENCE_SECONDS, kernel_name="python3").execute()
    nbformat.write(notebook, output)


class Kernel:
    """A kernel with functions to execute cells in it."""

    def __init__(self) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE_SECONDS)

    def execute(self, code: str, value: str = "None") -> Any:
        """Execute a cell, then evaluate `value`; a cell that raises prints its error."""
        content = self.reply_to(self.client.execute(code, user_expressions={"value": f"{value}"}))
        assert content["status"] == "ok", content["traceback"]
        (found,) = content["user_expressions"].values()
        assert found["status"] == "ok", found
        return ast.literal_eval(found["data"]["text/plain"])

    def reply_to(self, message: str) -> dict[str, Any]:
        while True:
            reply = self.client.get_shell_msg(timeout=PATIENCE_SECONDS)
            if reply["parent_header"].get("msg_id") == message:
                return reply["content"]

    def wait_for_output(self, message: str, kind: str) -> str:
        """HTML of the cell's next output of this kind."""
        while True:
            output = self.client.get_iopub_msg(timeout=PATIENCE_SECONDS)
            if output["msg_type"] == kind and output["parent_header"].get("msg_id") == message:
                return output["content"]["data"]["text/html"]

    def wait_until(self, condition: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.execute("", condition):
            assert time.monotonic() < deadline, condition
            time.sleep(0.05)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def life() -> None:
    kernel, seen = Kernel(), {}
    try:
        kernel.execute("import asyncrl; from asyncrl import Trainer; cards = []")
        first = kernel.client.execute(START.format(seed=1))
        seen["card"] = kernel.wait_for_output(first, "display_data")
        assert kernel.reply_to(first)["status"] == "ok"
        seen["url_of_first"] = kernel.execute("first = trainer", "trainer.url")
        kernel.execute(START.format(seed=1))
        seen["again"] = kernel.execute(
            "", "[first.done, first.result.stop_reason, trainer.done, len(asyncrl.running())]"
        )
        kernel.execute(START.format(seed=2))
        seen["two_at_once"] = kernel.execute("", "[t.config.seed for t in asyncrl.running()]")
        kernel.execute("asyncrl.stop_all()")
        seen["after_stop_all"] = kernel.execute("", "[len(asyncrl.running()), trainer.result.stop_reason]")
        seen |= _interrupted(kernel)
        seen |= _restarted(kernel)
        print(json.dumps(seen))
    finally:
        kernel.close()


def _interrupted(kernel: Kernel) -> dict[str, Any]:
    running = kernel.client.execute(RUN)
    kernel.wait_for_output(running, "update_display_data")
    kernel.manager.interrupt_kernel()
    status = kernel.reply_to(running)["status"]
    return {
        "interrupt": [status, kernel.execute("", "result.stop_reason"), kernel.execute("", "trainer.done")],
    }


def _restarted(kernel: Kernel) -> dict[str, Any]:
    kernel.execute(START.format(seed=3))
    kernel.wait_until("trainer.snapshot().env_steps > 0")
    children = psutil.Process(kernel.execute("import os", "os.getpid()")).children(recursive=True)
    kernel.manager.restart_kernel(now=True)
    kernel.client.wait_for_ready(timeout=PATIENCE_SECONDS)
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
    kernel.execute("import asyncrl; from asyncrl import Trainer")
    return {
        "children_before_restart": len(children),
        "children_after_restart": len(alive),
        "after_restart": kernel.execute(RUN.replace("10**8", "2_000"), "result.stop_reason"),
    }


if __name__ == "__main__":
    {"run": run, "life": life}[sys.argv[1]](*sys.argv[2:])
