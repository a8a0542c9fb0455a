"""Python blocks of the README and of pages without a test of their own run, with fewer steps."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from types import CodeType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch.distributed as dist

from asyncrl import DQN, Trainer, TrainResult
from asyncrl.groups.launch import free_port

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.usefixtures("short_evaluations")
SHORT = {
    "README.md": ("200_000", "1_500"),
    "docs/index.md": ("200_000", "1_500"),
    "docs/migrating.md": ("100_000", "4_000"),
    "docs/recurrent.md": ("100_000", "2_000"),
    "docs/groups.md": ("200_000", "3_000"),
    "docs/notebooks.md": ("20_000", "1_500"),
    "docs/goals.md": ("8_000", "1_200"),
}
"""What the page says, and what is run in its place."""
OF_OTHER_LIBRARIES = ("import stable_baselines3", "from stable_baselines3")
TESTED_ELSEWHERE = {
    "docs/callbacks.md": "test_callbacks_page.py",
    "docs/data.md": "test_data_page.py",
    "docs/extending.md": "test_callbacks_page.py",
    "docs/multi-agent.md": "test_multi_agent_page.py",
    "docs/resume.md": "test_docs_resume.py",
    "docs/saving.md": "test_docs_saving.py",
    "docs/search.md": "test_search_page.py",
}


def blocks(page: str) -> list[str]:
    """Python blocks of a page in order, shortened."""
    text = (ROOT / page).read_text(encoding="utf-8").replace(*SHORT.get(page, ("", "")))
    found = re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)
    return [block for block in found if not block.startswith(OF_OTHER_LIBRARIES)]


def run(block: str, space: dict[str, Any]) -> dict[str, Any]:
    """Run a block like a notebook cell: `await` is allowed at top level."""
    code: CodeType = compile(block, "docs", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = eval(code, space)
    if inspect.isawaitable(made):

        async def wait() -> None:
            await made

        asyncio.run(wait())
    return space


def test_every_page_with_python_is_run_by_a_test() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    with_python = {str(page.relative_to(ROOT)) for page in pages if "```python" in page.read_text("utf-8")}
    assert with_python == {*SHORT, *TESTED_ELSEWHERE, "docs/observations.md"}
    for test in TESTED_ELSEWHERE.values():
        assert (ROOT / "tests" / test).exists()


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/migrating.md"])
def test_what_is_trained_acts(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(page)
    found = run(block, {"obs": np.zeros(4, np.float32)})
    assert isinstance(found["result"], TrainResult) and found["action"] in (0, 1)


@pytest.mark.slow
def test_goals_are_relabelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("docs/goals.md")
    result = run(block, {})["result"]
    assert result.summary["updates"] > 0 and result.policy.algorithm.n_sampled_goal == 4


@pytest.mark.slow
def test_a_recurrent_policy_is_trained_kept_and_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    training, playing = blocks("docs/recurrent.md")
    space = run(training, {})
    space["result"].policy.save("recall.policy")
    run(playing, space)
    assert space["terminated"] or space["truncated"]
    own_env, with_state, masked, atari = blocks("docs/observations.md")
    run(own_env, space)
    run(with_state, space)
    assert isinstance(run(masked, {"Trainer": Trainer, "DQN": DQN}), dict)
    pytest.importorskip("ale_py")
    run(atari, {"Trainer": Trainer, "DQN": DQN})


@pytest.fixture(scope="module")
def libuv_of_torch_has_started() -> None:
    """Start torch's libuv, whose first store opens a pipe for the whole process; that is not a leak of a test."""
    dist.TCPStore("127.0.0.1", free_port(), is_master=True, wait_for_workers=False)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("libuv_of_torch_has_started")
def test_groups_train_together() -> None:
    (block,) = blocks("docs/groups.md")
    run(block, {"Trainer": Trainer})


@pytest.mark.slow
def test_the_cells_of_a_notebook_train() -> None:
    waiting, background = blocks("docs/notebooks.md")
    space = run(waiting, {})
    assert isinstance(space["result"], TrainResult)
    run(background, space)
    assert space["trainer"].url
    space["trainer"].stop()
    asyncio.run(space["trainer"].wait())


def test_an_own_environment_is_taken() -> None:
    block = next(block for block in blocks("docs/extending.md") if "MyEnv" in block)
    made = run(block, {"Trainer": Trainer, "MyEnv": lambda size: gymnasium.make("CartPole-v1")})
    assert isinstance(made["trainer"], Trainer)
