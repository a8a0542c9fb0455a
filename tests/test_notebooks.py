"""All notebooks run from top to bottom in a real kernel, which may be interrupted, run again and restarted."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from waiting import PATIENCE_SECONDS

HERE = Path(__file__).parent
NOTEBOOKS = sorted((HERE.parent / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.slow


def session(*arguments):
    command = [sys.executable, "-W", "ignore", str(HERE / "kernel_session.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def value_of(cell):
    """Displayed value of the cell's last expression."""
    return next(o["data"]["text/plain"] for o in cell.outputs if o["output_type"] == "execute_result")


def html_of(cell):
    """Displayed HTML of the cell's last expression."""
    return next(o["data"]["text/html"] for o in cell.outputs if o["output_type"] == "execute_result")


def text_of(cell):
    """Printed output of the cell."""
    return "".join(o["text"] for o in cell.outputs if o["output_type"] == "stream")


def test_there_are_notebooks():
    assert len(NOTEBOOKS) == 3


def executed(name, tmp_path, shorter):
    """Code cells of a notebook with their outputs; `shorter` maps what its runs are to what they are here."""
    text = (HERE.parent / "notebooks" / name).read_text()
    for theirs, ours in shorter.items():
        assert theirs in text
        text = text.replace(theirs, ours)
    given, output = tmp_path / name, tmp_path / "executed.ipynb"
    given.write_text(text)
    session("run", given, output)
    return [c for c in nbformat.read(output, as_version=4).cells if c.cell_type == "code"]


def test_quickstart_runs_top_to_bottom(tmp_path):
    # That 475 is reached is tested in test_learning.py.
    shorter = {
        "target_return=475": "target_return=200",
        "seed=0)": "seed=0, target_eval_episodes=20)",
        "Trainer(Sign, algorithm,": "Trainer(Sign, algorithm, target_eval_episodes=20,",
    }
    cells = executed("01_quickstart.ipynb", tmp_path, shorter)
    assert "target_return" in value_of(cells[1])
    assert any("text/html" in o.get("data", {}) for o in cells[1].outputs), "the live card was not shown"
    assert "<circle" in html_of(cells[1]), "the result shows its learning curve"
    assert float(value_of(cells[3])) > 50  # one episode of a policy that reached 200; 20 is chance
    assert "data:video/mp4" in html_of(cells[4])
    assert float(value_of(cells[5])) > 15  # 10 is chance
    assert "max_seconds" in value_of(cells[7])


def test_anatomy_runs_top_to_bottom(tmp_path):
    cells = executed("02_anatomy_of_a_run.ipynb", tmp_path, {})
    assert "actor 1 [" in text_of(cells[1]) and "restarts: 1" in value_of(cells[2])
    assert "policy lag" in text_of(cells[3]) and "staleness" in text_of(cells[3])
    achieved = ast.literal_eval(value_of(cells[4]))
    assert achieved[1.0] < 2.0 < 16.0 < achieved[64.0]


def test_own_algorithm_runs_top_to_bottom(tmp_path):
    shorter = {
        "total_steps=60_000": "total_steps=10_000",
        "16, seed=0": "16, seed=0, target_eval_episodes=10",
    }
    cells = executed("03_own_algorithm.ipynb", tmp_path, shorter)
    assert "total_steps" in value_of(cells[2]) and "vpg CartPole-v1" in html_of(cells[2])
    assert "gae_lamda" in text_of(cells[3]) and "gae_lambda" in text_of(cells[3])


def test_the_life_of_a_kernel():
    seen = json.loads(session("life"))
    assert "dqn CartPole-v1 seed 1" in seen["card"], "`trainer` at the end of a cell is the card"
    assert seen["url_of_first"].startswith("http://127.0.0.1:"), "start() returns when the URL is known"
    assert seen["again"] == [True, "stopped", False, 1], (
        "a cell that runs again ends the run it started before"
    )
    assert seen["two_at_once"] == [1, 2] and seen["after_stop_all"] == [0, "stopped"]
    assert seen["interrupt"] == ["ok", "interrupted", True]
    assert seen["children_before_restart"] > 1 and seen["children_after_restart"] == 0
    assert seen["after_restart"] == "total_steps"
