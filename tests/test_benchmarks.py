"""Result files of benchmarks record versions, cores and environments of both sides. Nothing is measured here."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import wait_until

OURS = {
    "stop_reason": "target_return",
    "train_seconds": 2.0,
    "startup_seconds": 0.5,
    "process_seconds": 4.0,
    "env_steps": 1000,
    "env_steps_per_second": 500.0,
    "updates": 10,
    "episodes_return_mean": 480.0,
    "eval": {"return_mean": 500.0},
    "cores": 2,
    "environments": 16,
}
PEER = {
    "seconds": {"greedy": 4.0, "training": 5.0},
    "train_seconds": 6.0,
    "env_steps": 2000,
    "reached": True,
    "return_mean": 490.0,
    "env_steps_per_second": 300.0,
    "cores": 1,
    "environments": 8,
    "versions": {"stable-baselines3": "9.9.9", "torch": "0.0.1"},
}


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Import of a benchmark by its name; the environment variables that it sets are restored."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def fake_python(folder: Path, result: dict[str, Any]) -> str:
    """Fake interpreter that prints `result` for any script."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\ncat <<'END'\nsome talk\n{json.dumps(result)}\nEND\n")
    path.chmod(0o755)
    return str(path)


def measured(
    scripts: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, *flags: str
) -> dict[str, Any]:
    """Result file of a script whose own runs give `OURS` and whose peer prints `PEER`."""
    script, runs, harness = scripts(name), scripts("harness.runs"), scripts("harness.report")
    monkeypatch.setattr(runs, "cli", lambda *_, **__: OURS)
    write = harness.Report.write
    monkeypatch.setattr(harness.Report, "write", lambda report: write(report, folder))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
    monkeypatch.setattr(sys, "argv", [script.__file__, "--seeds", "2", *flags])
    script.main()
    (path,) = folder.glob("*.json")
    record: dict[str, Any] = json.loads(path.read_text())
    return record


@pytest.mark.parametrize(
    ("name", "flags", "has_peer"),
    [
        ("peers.cartpole", ("--algo", "dqn"), True),
        ("peers.cartpole", ("--algo", "ppo"), True),
        ("peers.off_policy", ("--only", "pendulum,cheetah"), True),
        ("peers.continuous_ppo", (), True),
        ("learning.distributional", (), False),
    ],
)
def test_every_figure_says_what_both_sides_had(
    scripts: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    flags: tuple[str, ...],
    has_peer: bool,
) -> None:
    peer = ("--peer-python", fake_python(tmp_path, PEER)) if has_peer else ()
    record = measured(scripts, monkeypatch, tmp_path, name, *flags, *peer)
    ours, theirs = {"cores": 2, "environments": 16}, {"cores": 1, "environments": 8}
    kinds = set()
    for key, figure in record["figures"].items():
        sides = figure["sides"]
        assert sides in ({"asyncrl": ours}, {"sb3": theirs}, {"sb3": theirs, "asyncrl": ours}), key
        assert (len(sides) == 2) == (figure["unit"] == "x"), "a ratio has both sides"
        kinds.add(len(sides))
    assert record["machine"]["usable_cores"] == len(os.sched_getaffinity(0))
    assert record["command"].startswith(f"python -m benchmarks.{name} --seeds 2")
    if has_peer:
        assert kinds == {1, 2}
        assert record["versions"]["stable-baselines3"] == "9.9.9"
        assert record["peers"] == {"sb3": PEER["versions"]}
        assert record["versions"]["torch"] != "0.0.1", "what this interpreter has is its own version"


def test_measures_take_turns(scripts: Callable[[str], Any]) -> None:
    calls: list[str] = []
    measures = {name: lambda name=name: calls.append(name) or len(calls) for name in "ab"}
    assert scripts("harness.report").by_turns(2, measures) == {"a": [1, 3], "b": [2, 4]}
    assert calls == ["a", "b", "a", "b"]


@pytest.mark.parametrize("missing", ["versions", "cores", "environments"])
def test_a_peer_must_say_what_it_ran_with(
    scripts: Callable[[str], Any], tmp_path: Path, missing: str
) -> None:
    python = fake_python(tmp_path, {name: value for name, value in PEER.items() if name != missing})
    with pytest.raises(ValueError, match=f"^benchmarks.peers.sb3_sac must print {missing}, got"):
        scripts("harness.runs").peer("sb3_sac", [], python)


def test_results_of_different_sides_make_no_figure(scripts: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match="results of one figure must have one side"):
        scripts("harness.report").Side.of([OURS, {**OURS, "environments": 32}])


@pytest.mark.parametrize("actors", ["num_actors = 3", "# num_actors is not set"])
def test_means_of_a_run_are_read_from_its_directory(
    scripts: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, actors: str
) -> None:
    def finish(line: list[str], **_: Any) -> None:
        folder = Path(line[line.index("--run-dir") + 1])
        folder.mkdir()
        (folder / "summary.json").write_text('{"env_steps": 7}')
        (folder / "config.toml").write_text(f"[trainer]\n{actors}\nenvs_per_actor = 4\n")

    monkeypatch.setattr(subprocess, "run", finish)
    cores = len(os.sched_getaffinity(0))
    summary = scripts("harness.runs").cli("CartPole-v1", "dqn", 0, [], 1.0)
    count = 3 if actors.startswith("num") else max(1, cores - 1)
    assert (summary["env_steps"], summary["cores"], summary["environments"]) == (7, cores, 4 * count)


def test_jitter_suspends_children_and_leaves_them_running(scripts: Callable[[str], Any]) -> None:
    conditions = scripts("harness.conditions")
    assert "jitter" not in conditions.CONDITIONS, "it is not measured unless asked for"
    line = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(line, stdin=subprocess.PIPE) as child, conditions.condition("jitter"):
        wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED, "SIGSTOP")
        wait_until(lambda: psutil.Process(child.pid).status() != psutil.STATUS_STOPPED, "SIGCONT")
        child.communicate(timeout=20)
    assert child.returncode == 0
    with pytest.raises(ValueError, match="condition must be one of quiet, one-core, busy, jitter, got 'odd'"):
        conditions.condition("odd").__enter__()


def test_a_suspension_that_is_cut_short_is_undone(scripts: Callable[[str], Any]) -> None:
    line = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(line, stdin=subprocess.PIPE) as child:
        with scripts("harness.conditions").suspensions(
            lambda _: [child.pid], (0.0, 0.0), (60.0, 60.0)
        ) as suspended:
            wait_until(lambda: suspended, "a suspension")
        assert suspended == [child.pid]
        child.communicate(timeout=20)
    assert child.returncode == 0


@pytest.mark.parametrize("case", ["dqn_64", "sac_64", "ppo_continuous"])
def test_updates_are_made_by_kernel_and_by_formula(scripts: Callable[[str], Any], case: str) -> None:
    """It replaces parts of the updaters, which may have changed."""
    ways = scripts("systems.loss_kernels").ways(case)
    assert set(ways) >= {"kernel", "formula"} and all(update() >= 1 for update in ways.values())
