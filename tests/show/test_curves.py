"""Curves of groups against a slow twin: the statistic at a step is that of the runs that reach it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from kept_runs import write_run

from asyncrl.show.curves import NEAR, POINTS, TRAINING, Series, curve, curves, read_series
from asyncrl.show.kept_run import EVALUATION, KeptRun
from asyncrl.show.run_groups import group_runs

LINES = {"mean": 0.0, "iqm": 0.25}


def value_at(series: Series, x: float, held: float) -> float | None:
    """Value of a run at `x`, interpolated; beyond its ends that of the end up to `held` away, then None."""
    points = list(zip(series.steps, series.values, strict=True))
    for (_, y), beyond in ((points[0], points[0][0] - x), (points[-1], x - points[-1][0])):
        if 0 < beyond <= held:
            return float(y)
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= x <= x1:
            return float(y0 + (x - x0) / (x1 - x0) * (y1 - y0))
    return float(points[0][1]) if len(points) == 1 and points[0][0] == x else None


def random_series(random: np.random.Generator) -> Series:
    """Uneven points: 1 to 40 of them, from and to anywhere."""
    count = int(random.integers(1, 40))
    first, gaps = random.integers(0, 300), random.integers(1, 50, size=count)
    steps = np.cumsum(gaps) + float(first)
    return Series(steps, steps / 100, random.normal(size=count) * 100)


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("seed", range(25))
def test_random_runs(line: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    runs = [random_series(random) for _ in range(int(random.integers(1, 9)))]
    drawn = curve(runs, "steps", line, env="X", name="dqn", size="")
    assert np.isfinite(drawn.line).all() and (np.diff(drawn.x) > 0).all()
    held = NEAR * (drawn.x[-1] - drawn.x[0])
    for i, x in enumerate(drawn.x):
        there = [value for run in runs if (value := value_at(run, float(x), held)) is not None]
        cut = int(LINES[line] * len(there))
        kept = sorted(there)[cut : len(there) - cut]
        assert drawn.count[i] == len(there)
        assert drawn.line[i] == pytest.approx(sum(kept) / len(kept), rel=1e-9, abs=1e-9)
        for bound in (drawn.line, drawn.low, drawn.high):
            assert min(there) - 1e-9 <= bound[i] <= max(there) + 1e-9
        assert drawn.low[i] <= drawn.high[i]
    ends = {float(run.steps[-1]) for run in runs} | {float(run.steps[0]) for run in runs}
    assert drawn.x[0] == min(ends) and drawn.x[-1] == max(ends)


def test_a_single_run_keeps_its_points() -> None:
    run = Series(np.array([10.0, 30.0]), np.array([1.0, 3.0]), np.array([5.0, 9.0]))
    drawn = curve([run], "seconds", "mean", env="X", name="dqn")
    assert drawn.x.tolist() == [1.0, 3.0] and drawn.line.tolist() == [5.0, 9.0]
    assert drawn.low.tolist() == drawn.line.tolist() == drawn.high.tolist()


def test_the_last_value_is_that_of_all_runs_that_end_a_few_steps_apart() -> None:
    runs = [
        Series(np.array([100.0, end]), np.array([1.0, 2.0]), np.array([0.0, last]))
        for end, last in ((1000.0, 10.0), (1040.0, 30.0), (900.0, 20.0))
    ]
    drawn = curve(runs, "steps", "mean", env="X", name="ppo")
    assert drawn.x.tolist() == [100, 900, 1000, 1040]
    assert drawn.count.tolist() == [3, 3, 2, 2]  # values are held for 47 steps, a twentieth of 940
    assert drawn.line[-1] == 20.0


def test_long_runs_are_thinned_to_both_ends() -> None:
    steps = np.arange(5000.0)
    drawn = curve([Series(steps, steps, steps)] * 2, "steps", "mean", env="X", name="dqn")
    assert drawn.x.size == POINTS and (drawn.x[0], drawn.x[-1]) == (0, 4999)
    np.testing.assert_allclose(drawn.line, drawn.x)


def test_values_that_are_no_numbers_are_missing_points(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    entries = [
        {"time/total_timesteps": i, "time/time_elapsed": i, TRAINING: y}
        for i, y in enumerate([1, float("nan"), None, "x", 5])
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    series = read_series(KeptRun(path), [TRAINING])[TRAINING]
    assert (series.steps.tolist(), series.values.tolist()) == ([0, 4], [1, 5])


@pytest.mark.parametrize("of", ["time/total_timesteps", "time/time_elapsed", TRAINING])
def test_a_line_that_no_axis_holds_is_left_out_and_one_with_a_large_whole_number_is_not(
    of: str, tmp_path: Path
) -> None:
    line = {"time/total_timesteps": 100, "time/time_elapsed": 1, TRAINING: 2}
    path = write_run(tmp_path / "a", lines=[line, {**line, of: float("nan")}, {**line, of: float("inf")}])
    series = read_series(KeptRun(path), [TRAINING])[TRAINING]
    assert [part.tolist() for part in (series.steps, series.seconds, series.values)] == [[100], [1], [2]]
    path = write_run(tmp_path / "b", lines=[line, {**line, "time/total_timesteps": 200, TRAINING: 10**30}])
    assert read_series(KeptRun(path), [TRAINING])[TRAINING].values.tolist() == [2, 1e30]


def test_rates_of_an_interval_without_steps_are_left_out(tmp_path: Path) -> None:
    line = {"time/total_timesteps": 100, "time/time_elapsed": 1, "time/fps": 100.0, "train/loss": 1.0}
    path = write_run(tmp_path / "a", lines=[line, {**line, "time/fps": 0.0, "train/loss": 0.5}])
    found = read_series(KeptRun(path), ["time/fps", "train/loss"])
    assert found["time/fps"].values.tolist() == [100.0] and found["train/loss"].values.tolist() == [0.5]


def test_runs_with_different_networks_are_two_lines_and_environments_are_apart(tmp_path: Path) -> None:
    points = [(100, 0.0), (200, 10.0)]
    for i, own in enumerate(
        [
            {},
            {"seed": 1},
            {"options": {"hidden_sizes": (8,)}},
            {"env": "Acrobot-v1"},
            {"env": "Acrobot-v1", "seed": 1},
        ]
    ):
        write_run(tmp_path / str(i), evaluations=points, **own)  # type: ignore[arg-type]
    groups = group_runs([KeptRun(tmp_path / str(i)) for i in range(5)])
    drawn = curves(groups, EVALUATION, "steps")
    assert [(c.env, c.size, len(c.x)) for c in drawn] == [
        ("CartPole-v1", "2 seeds", 2),
        ("CartPole-v1", "", 2),
        ("Acrobot-v1", "2 seeds", 2),
    ]


def test_a_curve_says_how_many_runs_it_has(tmp_path: Path) -> None:
    """One of three was killed before its first evaluation."""
    for seed in range(3):
        write_run(tmp_path / str(seed), seed=seed, evaluations=[(100, 1.0), (200, 2.0)] if seed else [])
    groups = group_runs([KeptRun(tmp_path / str(seed)) for seed in range(3)])
    (drawn,) = curves(groups, EVALUATION, "steps")
    assert drawn.label.endswith(", 2 of 3 seeds") and drawn.count.tolist() == [2, 2]


def test_returns_are_normalised_and_nothing_else(tmp_path: Path) -> None:
    lines = [{"time/total_timesteps": i, "time/time_elapsed": i, "train/loss": 7.0} for i in (1, 2)]
    groups = group_runs(
        [KeptRun(write_run(tmp_path / "a", lines=lines, evaluations=[(1, 20.0), (2, 260.0)]))]
    )
    scales = {"CartPole-v1": (20.0, 500.0)}
    assert curves(groups, EVALUATION, "steps", scales=scales)[0].line.tolist() == [0.0, 0.5]
    assert curves(groups, "train/loss", "steps", scales=scales)[0].line.tolist() == [7.0, 7.0]
