"""`asyncrl plot`: curves over seeds, as text and as image files."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kept_runs import write_run

from asyncrl.cli.main import main
from asyncrl.show.curves import TRAINING, Curve, curves, default_metric, read_one
from asyncrl.show.kept_run import EVALUATION, KeptRun, find_runs
from asyncrl.show.picture import write_picture
from asyncrl.show.run_groups import group_runs
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


def drawn(folder: Path, metric: str = EVALUATION, **options: object) -> list[Curve]:
    return curves(group_runs(find_runs(folder)), metric, "steps", **options)  # type: ignore[arg-type]


def test_mean_and_band_over_the_seeds_that_reach_a_step(folder: Path) -> None:
    dqn, ppo = sorted(drawn(folder), key=lambda curve: curve.label)
    assert (dqn.label, ppo.label) == ("dqn, 2 seeds", "ppo")
    np.testing.assert_array_equal(dqn.x, [100, 300, 400, 500, 600])
    np.testing.assert_array_equal(dqn.line, [10, 30, 40, 50, 70])
    np.testing.assert_array_equal(dqn.count, [2, 2, 2, 2, 1])
    np.testing.assert_array_equal(dqn.low, [0, 20, 30, 40, 70])
    np.testing.assert_array_equal(dqn.high, [20, 40, 50, 60, 70])
    np.testing.assert_array_equal(ppo.x, [100, 500])


def test_a_line_for_each_run(folder: Path) -> None:
    assert {curve.label for curve in drawn(folder, each=True)} == {"a", "b", "c"}


def test_seconds_are_those_of_the_reports(folder: Path) -> None:
    found = read_one(KeptRun(folder / "b"), EVALUATION)
    np.testing.assert_allclose(found.seconds, [4.0, 10.0, 12.0])  # beyond the last report: its time
    np.testing.assert_array_equal(found.values, [20, 50, 70])
    np.testing.assert_allclose(read_one(KeptRun(folder / "a"), TRAINING).seconds, [3, 4, 5, 6, 7])


def test_the_last_of_several_values_at_one_step_counts(tmp_path: Path) -> None:
    write_run(tmp_path / "d", lines=lines(), evaluations=[(100, 5.0), (500, 30.0), (500, 20.0)])
    found = read_one(KeptRun(tmp_path / "d"), EVALUATION)
    assert (found.steps.tolist(), found.values.tolist()) == ([100, 500], [5, 20])


def test_the_training_return_where_nothing_was_evaluated(tmp_path: Path, folder: Path) -> None:
    assert default_metric(find_runs(folder)) == EVALUATION
    run = KeptRun(write_run(tmp_path / "never", lines=lines(), evaluations=[(500, 1.0)]))
    assert default_metric([run]) == TRAINING


def test_one_evaluation_where_there_is_no_training_return(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"time/total_timesteps": 300, "rollout/ep_rew_mean": None, "train/loss": 0.5}
    run = write_run(tmp_path / "dataset", lines=[entry], evaluations=[(300, 159.0)])
    assert default_metric([KeptRun(run)]) == EVALUATION
    assert main(["plot", str(run)]) == 0 and "159" in capsys.readouterr().out


def test_in_the_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["plot", str(folder)]) == 0
    plot, table = (part.splitlines() for part in capsys.readouterr().out.split("\n\n"))
    assert plot[0] == "greedy return over steps, CartPole-v1"
    assert max(map(len, plot)) < 80 and len(plot) + len(table) < 24
    assert all(line.isascii() for line in plot)
    assert set(plot[-2:]) == {"  * dqn, 2 seeds", "  o ppo"}
    assert "*" in "".join(plot[1:-2]) and "." in "".join(plot[1:-2]) and "o" in "".join(plot[1:-3])
    assert plot[-3].split() == ["100", "steps", "600"]
    assert [line.split() for line in table[1:]] == [
        ["CartPole-v1", "dqn", "2", "55.0", "55.0", "[40.0,", "70.0]"],
        ["CartPole-v1", "ppo", "1", "5.00", "5.00", "-"],
    ]


def test_every_environment_has_axes_of_its_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(folder / "d", env="Acrobot-v1", evaluations=[(100, -500.0), (500, -80.0)])
    assert main(["plot", str(folder)]) == 0
    plots = capsys.readouterr().out.split("\n\n")
    assert [plot.splitlines()[0].rpartition(", ")[2] for plot in plots[:2]] == ["CartPole-v1", "Acrobot-v1"]
    assert "-500" in plots[1] and "-500" not in plots[0]


def test_normalised_scores_over_environments(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(folder / "d", env="Own-v0", evaluations=[(100, 0.0), (500, 7.5)])
    assert main(["plot", str(folder), "--normalise", "random,reference"]) == 1
    assert "--normalise Own-v0=RANDOM,REFERENCE" in capsys.readouterr().err
    scales = ["--normalise", "CartPole-v1=0,100", "--normalise", "Own-v0=0,10"]
    assert main(["plot", str(folder), *scales]) == 0
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    (row,) = [line.split() for line in table[1:]]  # ppo has no run of Own-v0
    assert table[0].startswith("over 2 environments")
    assert row[:3] == ["dqn", "3", "0.650"], "of 0.4 and 0.7, and of 0.75 with the weight of both"
    assert row[5] == "0.650", "mean of 0.55 and 0.75"
    assert main(["plot", str(folder), "--normalise", "CartPole-v1=5,5"]) == 1
    assert "two different finite numbers" in capsys.readouterr().err
    for scale in ("nan,500", "0,inf", "-inf,inf"):
        assert main(["plot", str(folder), "--normalise", f"CartPole-v1={scale}"]) == 1
        assert "two different finite numbers" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [["--metric", "train/loss"], ["--x", "seconds"], ["--line", "iqm"], ["--each"], ["--normalise", "a=0,1"]],
)
def test_a_page_and_a_search_refuse_what_they_would_ignore(
    folder: Path, tmp_path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for more in (["--out", str(folder / "page.html")], []):
        with pytest.raises(SystemExit) as exited:
            main(["plot", str(folder), *flags, *more])
        assert exited.value.code == 2
        assert f"argument {flags[0]}: does not go with" in capsys.readouterr().err
        (folder / "study.db").write_text("a search")  # of the second turn
    assert not (folder / "page.html").exists()


def test_as_a_page_in_one_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "new" / "folder" / "comparison.HTML"
    assert main(["plot", str(folder), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    page = out.read_text()
    data = page.partition('id="data">')[2].partition("</script>")[0]
    assert set(json.loads(data)) == {"runs", "steps mean", "steps iqm", "seconds mean", "seconds iqm"}
    assert "connect-src 'none'" in page


def test_a_rising_line_rises(folder: Path) -> None:
    (curve,) = drawn(folder / "a")
    rows = [line.partition("|")[2] for line in text_plot([curve], "t", "steps").splitlines() if "|" in line]
    assert rows[0].rstrip().endswith("*") and rows[-1].startswith("*")
    assert len(rows[0].rstrip()) > len(rows[len(rows) // 2].rstrip()) > len(rows[-1].rstrip())


def test_a_short_curve_is_drawn_in_its_place() -> None:
    def curve(x: list[float], y: list[float]) -> Curve:
        at, line = np.array(x), np.array(y)
        return Curve("env", "", "", at, line, line, line, np.ones_like(line))

    long = curve([0.0, 1000.0], [0.0, 10.0])
    rows = text_plot(
        [curve([750.0], [2.0]), curve([400.0, 401.0], [9.0, 9.0]), long], "t", "steps"
    ).splitlines()
    plot = [line.partition("|")[2].ljust(72) for line in rows if "|" in line]
    for mark, share in (("*", 0.75), ("o", 0.4)):
        (found,) = [row.index(mark) for row in plot if mark in row]
        assert abs(found - share * 71) <= 1, "one mark at its step"


@pytest.mark.parametrize(
    ("low", "high"),
    [(12_300.0, 12_340.0), (1.0, 1.0001), (4_000_000.0, 4_000_400.0), (-3.7e13, -1e12), (0.0, 500.0)],
)
def test_labels_of_an_axis_differ(low: float, high: float) -> None:
    x, y = np.array([0.0, 1.0]), np.array([low, high])
    text = text_plot([Curve("env", "", "", x, y, y, y, np.ones(2))], "t", "steps")
    labels = [line.partition("|")[0].strip() for line in text.splitlines() if "|" in line]
    shown = [label for label in labels if label]
    assert len(set(shown)) == len(shown) == 5 and not any(re.search("e.*M", label) for label in shown)


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (-0.1, 0.3, ["0.3", "0.2", "0.1", "0", "-0.1"]),
        (0.0, 999_999.6, ["1M", "750k", "500k", "250k", "0"]),
        (0.0, 9_999.96, ["10k", "7500", "5000", "2500", "0"]),
    ],
)
def test_labels_are_as_short_as_what_they_round_to(low: float, high: float, wanted: list[str]) -> None:
    x, y = np.array([0.0, 999_999.0]), np.array([low, high])
    lines = text_plot([Curve("env", "", "", x, y, y, y, np.ones(2))], "t", "steps").splitlines()
    labels = [line.partition("|")[0].strip() for line in lines if "|" in line]
    assert [label for label in labels if label] == wanted
    assert lines[-2].split() == ["0", "steps", "1M"]


def test_many_curves_have_marks_and_lines_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(3.0)
    curves = [Curve("X-v1", f"run {i}", "", x, x + i, x + i, x + i, np.ones(3)) for i in range(40)]
    legend = text_plot(curves, "return", "steps").splitlines()[-40:]
    assert len({line.split()[0] for line in legend}) == 40
    pytest.importorskip("matplotlib")
    looks = []

    def plot(axes: Any, *data: Any, **look: Any) -> None:
        looks.append((look["color"], look["linestyle"]))

    monkeypatch.setattr("matplotlib.axes.Axes.plot", plot)
    for name in ("_save", "_finish"):
        monkeypatch.setattr(f"asyncrl.show.picture.{name}", lambda *_: None)
    write_picture(Path("x.png"), curves, "return", "steps")
    assert len(set(looks)) == 40


def test_a_single_point_and_a_flat_line_are_drawn(tmp_path: Path) -> None:
    write_run(tmp_path / "x", evaluations=[(100, 5.0)])
    (point,) = drawn(tmp_path / "x")
    assert "|*" in text_plot([point], "t", "steps")


@pytest.mark.parametrize("name", ["curve.png", "curve.svg"])
def test_as_a_picture(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out = folder / "new" / name
    assert main(["plot", str(folder / "a"), str(folder / "b"), "--out", str(out), "--x", "seconds"]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    head = out.read_bytes()[:200]
    assert head.startswith(b"\x89PNG") if name.endswith("png") else b"<?xml" in head


def test_mistakes(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["plot", str(folder), "--metric", "train/nothing"]) == 1
    assert "no run has train/nothing" in capsys.readouterr().err
    assert main(["plot", str(folder / "nowhere")]) == 1
    assert "nowhere does not exist" in capsys.readouterr().err
    for name, got in (("x.doc", ".doc"), ("x.jpg", ".jpg"), ("x", "no suffix")):
        assert main(["plot", str(folder), "--out", str(folder / name)]) == 1
        assert f"a picture's file must end in .png, .svg, .pdf, got {got}\n" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", str(folder), "--out", str(folder / "x.png")]) == 1
    assert 'pip install "asyncrl[plot]"' in capsys.readouterr().err
    assert main(["plot", str(folder)]) == 0, "the terminal needs no matplotlib"


# --- numbers of the user's own, and metrics that no run has -------------------------------------------------


def test_a_metric_that_no_run_has_is_answered_with_those_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [{**line, "probe/score": 0.1 * i, "mine": None} for i, line in enumerate(lines())]
    write_run(tmp_path / "a", lines=own, evaluations=[(100, 0.0)])
    assert main(["plot", str(tmp_path), "--metric", "probe/scor"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "[ASYNC017] no run has probe/scor" and told[1] == "  runs: 1"
    assert told[2].startswith("  nearest: probe/score") and "  logged: probe/score" in told
    assert "  rollout: rollout/ep_rew_mean" in told
    assert told[-1] == "  fix: did you mean --metric probe/score?"
    assert main(["plot", str(tmp_path), "--metric", "zzzz"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[-1] == "  fix: name one of these with --metric" and not any(
        "nearest" in line for line in told
    )


def test_a_metric_that_is_not_reported_yet_is_no_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No training episode has ended: another metric with a similar name is no answer."""
    write_run(tmp_path / "a", lines=[{"time/total_timesteps": 50, "train/q_mean": 1.0}])
    assert main(["plot", str(tmp_path)]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "[ASYNC017] no run has reported rollout/ep_rew_mean"
    assert told[-1] == "  fix: name one of these with --metric"


def test_a_run_without_a_report_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a")
    assert main(["plot", str(tmp_path)]) == 1
    assert capsys.readouterr().err.endswith("fix: wait until a run has reported\n")


def test_a_number_of_ones_own_is_plotted_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, scale in (("a", 1.0), ("b", 2.0)):
        own = [{**line, "probe/score": scale * i} for i, line in enumerate(lines())]
        write_run(tmp_path / name, lines=own)
    write_run(tmp_path / "c", lines=[{**lines()[0], "other": 7.0}])
    assert main(["plot", str(tmp_path / "a"), "--metric", "probe/score"]) == 0
    assert capsys.readouterr().out.startswith("probe/score over steps, CartPole-v1")
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert re.search(r"^probe/score +4 +8$", capsys.readouterr().out, flags=re.M)
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "c")]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^probe/score +4 +-$", out, flags=re.M) and re.search(r"^other +- +7$", out, flags=re.M)
