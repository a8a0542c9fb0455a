"""`asyncrl plot`: curves over seeds, as text and as image files."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from kept_runs import write_run

from asyncrl.cli.main import main
from asyncrl.show.curves import TRAINING, curves, default_metric, series
from asyncrl.show.kept_run import EVALUATION, KeptRun, find_runs
from asyncrl.show.text_plot import text_plot


def lines(scale: float = 1.0) -> list[dict[str, float]]:
    return [
        {"time/total_timesteps": 100 * i, "time/time_elapsed": 2.0 + i * scale, TRAINING: float(i)}
        for i in range(1, 6)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two seeds of DQN and one of PPO."""
    write_run(tmp_path / "a", seed=0, lines=lines(), evaluations=[(100, 0.0), (300, 20.0), (500, 40.0)])
    write_run(tmp_path / "b", seed=1, lines=lines(2.0), evaluations=[(100, 20.0), (400, 50.0), (600, 70.0)])
    write_run(tmp_path / "c", algo="ppo", lines=lines(), evaluations=[(100, 5.0), (500, 5.0)])
    return tmp_path


def test_mean_and_band_over_seeds(folder: Path) -> None:
    dqn, ppo = sorted(curves(find_runs(folder), EVALUATION, "steps"), key=lambda curve: curve.label)
    assert (dqn.label, dqn.seeds) == ("dqn on CartPole-v1, 2 seeds", 2)
    assert (dqn.x[0], dqn.x[-1]) == (100, 500), "where both seeds are"
    assert (dqn.mean[0], dqn.low[0], dqn.high[0]) == (10, 0, 20)
    assert (dqn.mean[-1], dqn.low[-1], dqn.high[-1]) == (50, 40, 60)
    assert (ppo.label, ppo.seeds) == ("ppo on CartPole-v1", 1)
    np.testing.assert_array_equal(ppo.x, [100, 500])


def test_a_line_for_each_run(folder: Path) -> None:
    assert {curve.label for curve in curves(find_runs(folder), EVALUATION, "steps", each=True)} == {
        "a",
        "b",
        "c",
    }


def test_seconds_are_those_of_the_reports(folder: Path) -> None:
    x, y = series(KeptRun(folder / "b"), EVALUATION, "seconds")
    np.testing.assert_allclose(x, [4.0, 10.0, 12.0])  # beyond the last report: its time
    np.testing.assert_array_equal(y, [20, 50, 70])
    x, _ = series(KeptRun(folder / "a"), TRAINING, "seconds")
    np.testing.assert_allclose(x, [3, 4, 5, 6, 7])


def test_the_last_of_several_values_at_one_step_counts(tmp_path: Path) -> None:
    write_run(tmp_path / "d", lines=lines(), evaluations=[(100, 5.0), (500, 30.0), (500, 20.0)])
    x, y = series(KeptRun(tmp_path / "d"), EVALUATION, "steps")
    assert (x.tolist(), y.tolist()) == ([100, 500], [5, 20])


def test_the_training_return_where_nothing_was_evaluated(tmp_path: Path, folder: Path) -> None:
    assert default_metric(find_runs(folder)) == EVALUATION
    run = KeptRun(write_run(tmp_path / "never", lines=lines(), evaluations=[(500, 1.0)]))
    assert default_metric([run]) == TRAINING


def test_in_the_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["plot", str(folder)]) == 0
    text = capsys.readouterr().out.splitlines()
    assert text[0] == "greedy return over steps"
    assert max(map(len, text)) < 80 and len(text) < 24 and all(line.isascii() for line in text)
    assert {"  * dqn on CartPole-v1, 2 seeds", "  o ppo on CartPole-v1"} == set(text[-2:])
    assert "*" in "".join(text[1:-2]) and "." in "".join(text[1:-2]) and "o" in "".join(text[1:-3])
    assert text[-3].split() == ["100", "steps", "500"]


def test_a_rising_line_rises(folder: Path) -> None:
    (curve,) = curves([KeptRun(folder / "a")], EVALUATION, "steps")
    rows = [line.partition("|")[2] for line in text_plot([curve], "t", "steps").splitlines() if "|" in line]
    assert rows[0].rstrip().endswith("*") and rows[-1].startswith("*")
    assert len(rows[0].rstrip()) > len(rows[len(rows) // 2].rstrip()) > len(rows[-1].rstrip())


def test_a_single_point_and_a_flat_line_are_drawn(tmp_path: Path) -> None:
    run = KeptRun(write_run(tmp_path / "x", evaluations=[(100, 5.0)]))
    (point,) = curves([run], EVALUATION, "steps")
    assert "|*" in text_plot([point], "t", "steps")


@pytest.mark.parametrize("name", ["curve.png", "curve.svg"])
def test_as_a_picture(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out = folder / name
    assert main(["plot", str(folder / "a"), str(folder / "b"), "--out", str(out), "--x", "seconds"]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    head = out.read_bytes()[:200]
    assert head.startswith(b"\x89PNG") if name.endswith("png") else b"<?xml" in head


def test_mistakes(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["plot", str(folder), "--metric", "train/nothing"]) == 1
    assert "no run has train/nothing" in capsys.readouterr().err
    assert main(["plot", str(folder / "nowhere")]) == 1
    assert "nowhere does not exist" in capsys.readouterr().err
    assert main(["plot", str(folder), "--out", str(folder / "x.doc")]) == 1
    assert "the picture cannot be written" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", str(folder), "--out", str(folder / "x.png")]) == 1
    assert 'pip install "asyncrl[plot]"' in capsys.readouterr().err
    assert main(["plot", str(folder)]) == 0, "the terminal needs no matplotlib"
