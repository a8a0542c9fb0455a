"""A metric is added in two places: one line in the part that measures it, and its row in the table."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_SECONDS

ROW = '    Metric("async/planted", "planted units", "A planted number", charted=True),\n'
LINE = '            "async/planted": 4321.5,\n'
PROGRAM = f"""
import importlib.util, json, sys, time, urllib.request

def add_line(module, after, line):
    '''Import `module` with `line` added to its source.'''
    spec = importlib.util.find_spec(module)
    source = spec.loader.get_source(module)
    assert source.count(after) == 1
    sys.modules[module] = loaded = importlib.util.module_from_spec(spec)
    exec(compile(source.replace(after, after + line), spec.origin, "exec"), vars(loaded))

add_line("asyncrl.show.metrics", "RUN_METRICS: Final = (\\n", {ROW!r})
add_line("asyncrl.learning.publication", '            "train/n_updates": self.updates,\\n', {LINE!r})

from asyncrl import Trainer

def read(path):
    return urllib.request.urlopen(f"{{trainer.url}}{{path}}", timeout={PATIENCE_SECONDS}).read()

options = dict(num_actors=1, envs_per_actor=1, report_interval_seconds=0.1, target_eval_episodes=1)
with Trainer("CartPole-v1", "dqn", run_dir=sys.argv[1], http="auto", **options) as trainer:
    trainer.start(max_seconds={PATIENCE_SECONDS})
    while 4321.5 not in json.loads(read("/history"))["planted"]:  # a moment a second
        time.sleep(0.05)
    found = {{path: read(path).decode() for path in ("/stats", "/history", "/metrics")}}
    found["attribute"] = trainer.snapshot().planted
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What a run with the planted metric has shown, and its directory."""
    run_dir = tmp_path_factory.mktemp("runs") / "planted"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(run_dir)],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), run_dir


def test_it_is_on_every_page_and_an_attribute(planted: tuple[dict[str, Any], Path]) -> None:
    found, _ = planted
    stats = json.loads(found["/stats"])
    assert stats["async/planted"] == stats["planted"] == found["attribute"] == 4321.5
    assert 4321.5 in json.loads(found["/history"])["planted"]
    assert "# HELP asyncrl_planted A planted number. Unit: planted units.\n" in found["/metrics"]
    assert "\nasyncrl_planted 4321.5\n" in found["/metrics"]


def test_it_is_in_every_file(planted: tuple[dict[str, Any], Path]) -> None:
    _, run_dir = planted
    entries = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert entries[-1]["async/planted"] == 4321.5
    with (run_dir / "progress.csv").open(newline="") as file:
        assert [*csv.DictReader(file)][-1]["async/planted"] == "4321.5"


def test_it_is_in_tensorboard(planted: tuple[dict[str, Any], Path]) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    _, run_dir = planted
    (file,) = (run_dir / "tb").iterdir()
    values = [value for event in EventFileLoader(str(file)).Load() for value in event.summary.value]
    assert 4321.5 in [value.tensor.float_val[0] for value in values if value.tag == "async/planted"]
