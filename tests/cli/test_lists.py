"""`asyncrl ls` and `asyncrl diff`, over directories written by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kept_runs import write_run
from waiting import PATIENCE_SECONDS

from asyncrl.cli.main import main
from asyncrl.cli.text_table import age, text_table
from asyncrl.show.curves import curves
from asyncrl.show.kept_run import KeptRun, find_runs, is_run
from asyncrl.show.run_groups import differing_options, group_runs
from asyncrl.storage.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder with three runs and a directory that is no run."""
    write_run(
        tmp_path / "good",
        summary={"env_steps": 12_345, "eval": {"return_mean": 480.25}, "updates": 6000},
        evaluations=[(5000, 100.0), (10_000, 490.5), (12_000, 470.0)],
        age_seconds=7300,
    )
    write_run(tmp_path / "deep" / "er" / "killed", algo="ppo", seed=3, lines=[{"time/total_timesteps": 777}])
    write_run(
        tmp_path / "bad",
        summary={"state": "failed", "error": "[ASYNC022] no", "env_steps": 5},
        options={"gamma": 0.5},
        trainer={"num_actors": 2},
        age_seconds=100,
    )
    (tmp_path / "no run").mkdir()
    return tmp_path


def test_runs_are_found_in_the_order_of_their_age(folder: Path) -> None:
    assert [run.path.name for run in find_runs(folder)] == ["good", "bad", "killed"]
    assert [run.path.name for run in find_runs(folder / "good")] == ["good"]
    assert not is_run(folder / "no run") and find_runs(folder / "no run") == []


def test_what_a_run_says_of_itself(folder: Path) -> None:
    good, bad, killed = find_runs(folder)
    assert (good.env, good.algo, good.seed, good.state) == ("CartPole-v1", "dqn", 0, "finished")
    assert (good.env_steps, good.best, good.final) == (12_345, 490.5, 480.25)
    assert (bad.state, bad.best, bad.final) == ("failed", None, None)
    assert (killed.algo, killed.state, killed.env_steps) == ("ppo", "killed", 777)


def test_a_run_that_goes_on_holds_its_lock(tmp_path: Path) -> None:
    import os

    path = write_run(tmp_path / "x")
    for name in ("metrics.jsonl", "summary.json"):
        (path / name).unlink(missing_ok=True)
    directory = RunDirectory(path)
    try:
        run = KeptRun(path)
        assert (run.state, run.pid) == ("running", os.getpid())
    finally:
        directory.close()
    assert (KeptRun(path).state, KeptRun(path).pid) == ("killed", None)


def test_half_written_files_are_read_as_far_as_they_go(folder: Path) -> None:
    good = folder / "good"
    with (good / "metrics.jsonl").open("a") as file:
        file.write('{"eval/mean_reward": 500.0, "eval/tot')
    (good / "summary.json").write_text("{")
    (good / "config.toml").write_text("[trainer\n")
    run = KeptRun(good)
    assert (run.env, run.seed, run.state, run.best, run.final) == ("", None, "killed", 490.5, 470.0)


def test_a_run_that_failed_before_its_options_were_written_is_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = "[ASYNC004] The constructor of Maze failed.\n  fix: x"
    run = write_run(tmp_path / "s0", env="Maze", summary={"state": "failed", "error": error, "updates": 0})
    for name in ("config.toml", "metrics.jsonl"):
        (run / name).unlink()
    assert main(["ls", str(tmp_path)]) == 0
    words = capsys.readouterr().out.splitlines()[1].split()
    assert words[:7] == ["s0", "Maze", "dqn", "0", "failed", "0", "-"]
    assert main(["doctor", str(run)]) == 0
    assert "The constructor of Maze failed." in capsys.readouterr().out


def test_ls(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "env", "algo", "seed", "state", "steps", "best", "final", "age"]
    assert lines[1].split() == [
        *("good", "CartPole-v1", "dqn", "gamma=none,", "num_actors=none", "0"),
        *("finished", "12,345", "490.5", "480.2", "2", "h"),
    ]
    assert lines[2].split()[:11] == [
        *("bad", "CartPole-v1", "dqn", "gamma=0.5,", "num_actors=2"),
        *("0", "failed", "5", "-", "not", "evaluated"),
    ]
    assert lines[3].split()[:6] == [
        *("deep/er/killed", "CartPole-v1", "ppo", "num_actors=none", "3", "killed")
    ]


def test_ls_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(folder), "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in runs] == ["good", "bad", "deep/er/killed"]
    assert runs[0] | {"age_seconds": 0} == {
        "run": "good",
        "env": "CartPole-v1",
        "algo": "dqn",
        "group": "dqn gamma=none, num_actors=none",
        "seed": 0,
        "tags": [],
        "state": "finished",
        "steps": 12_345,
        "best": 490.5,
        "final": 480.25,
        "age_seconds": 0,
        "pid": None,
        "url": None,
        "command": None,
    }


def test_a_directory_that_only_looks_like_a_run_is_read_as_far_as_possible(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another program's `config.toml` beside `checkpoints/`, and a summary whose values are of other types."""
    (folder / "foreign" / "checkpoints").mkdir(parents=True)
    (folder / "foreign" / "config.toml").write_text('trainer = "x"\ndqn = 3\n')
    odd = write_run(folder / "odd", evaluations=[(100, 5.0)])
    summary = {"env_steps": None, "eval": None, "staleness": 3, "policy_lag": None, "updates": None}
    (odd / "summary.json").write_text(json.dumps(summary))
    (odd / "meta.json").write_text(json.dumps({"machine": None}))
    with (odd / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"eval/mean_reward": "high", "time/total_timesteps": "many"}) + "\n")
    assert main(["ls", str(folder), "--json"]) == 0
    rows = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
    assert len(rows) == 5
    assert (rows["foreign"]["env"], rows["foreign"]["seed"], rows["foreign"]["steps"]) == ("", None, 0)
    assert (rows["odd"]["env"], rows["odd"]["steps"], rows["odd"]["final"]) == ("CartPole-v1", 0, 5.0)
    assert main(["ls", str(folder)]) == 0
    for metric in ("eval/mean_reward", "train/loss"):
        drawn = curves(group_runs([KeptRun(folder / "odd")]), metric, "steps")
        assert len(drawn) == (metric != "train/loss")
    for name in ("foreign", "odd"):
        assert main(["doctor", str(folder / name)]) == 0
        assert main(["diff", str(folder / "good"), str(folder / name)]) == 0


def test_a_name_that_the_output_cannot_encode_is_escaped(folder: Path) -> None:
    (folder / "good").rename(folder / "l\xe4uft")
    done = subprocess.run(
        [sys.executable, "-m", "asyncrl", "ls", str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"l\\xe4uft" in done.stdout


def test_a_working_directory_that_was_deleted_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.delenv("ASYNCRL_RUNS", raising=False)
    monkeypatch.setattr("asyncrl.cli.live_runs.live_runs", list)
    assert main(["ls"]) == 1
    assert "the working directory was deleted" in capsys.readouterr().err


def test_ls_of_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCRL_RUNS", str(tmp_path))
    monkeypatch.setattr("asyncrl.cli.live_runs.live_runs", list)
    assert main(["ls"]) == 0
    assert capsys.readouterr().out == f"there are no runs in {tmp_path}\n"
    assert main(["ls", str(tmp_path / "nowhere")]) == 1
    assert "there is no folder" in capsys.readouterr().err


def test_diff(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(folder / "good"), str(folder / "bad")]) == 0
    text = capsys.readouterr().out
    options, outcome = (part.splitlines() for part in text.split("\n\n"))
    assert [line.split() for line in options] == [
        ["option", "A", "B"],
        ["trainer.num_actors", "not", "set", "2"],
        ["dqn.gamma", "not", "set", "0.5"],
    ]
    rows = {line[:20].strip(): line[20:].split() for line in outcome}
    assert rows["state"] == ["finished", "failed"]
    assert rows["best return"] == ["490.5", "-"]
    assert rows["steps"] == ["12,345", "5"]


def test_ls_of_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, final in enumerate((10.0, 20.0, 60.0)):
        path = write_run(tmp_path / f"r{seed}", seed=seed, summary={"eval": {"return_mean": final}})
        assert path.exists()
    write_run(tmp_path / "killed", seed=9)
    write_run(tmp_path / "other", options={"n_step": 1}, summary={})
    assert main(["ls", str(tmp_path), "--groups"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    figures = ["CartPole-v1", "dqn", "n_step=3", "3", "of", "4", "30.0", "30.0"]
    assert figures in [row[:8] for row in rows], "the killed run has no return"
    assert ["CartPole-v1", "dqn", "n_step=1", "1", "-", "-"] in [row[:6] for row in rows]
    assert ["n_step=1", "1", "-", "-", "-", "-"] in [row[2:] for row in rows], "one run has no interval"
    assert main(["ls", str(tmp_path), "--groups", "--json"]) == 0
    told = {row["group"]: row for row in json.loads(capsys.readouterr().out)}
    assert (told["dqn n_step=3"]["runs"], told["dqn n_step=3"]["evaluated"]) == (4, 3)
    assert 10.0 <= told["dqn n_step=3"]["low"] <= told["dqn n_step=3"]["high"] <= 60.0


def test_diff_of_two_groups_of_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, final in enumerate((10.0, 30.0)):
        write_run(tmp_path / "a" / str(seed), seed=seed, summary={"eval": {"return_mean": final}})
    write_run(tmp_path / "b", seed=5, options={"n_step": 1}, summary={"eval": {"return_mean": 7.0}})
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    options, outcome = capsys.readouterr().out.split("\n\n")
    assert [line.split() for line in options.splitlines()[1:]] == [["dqn.n_step", "3", "1"]]
    rows = {line[:20].strip(): line[20:].split() for line in outcome.splitlines()}
    assert (rows["runs"], rows["final return"]) == (["2", "1"], ["20.0", "7.00"])
    write_run(tmp_path / "a" / "else", options={"gamma": 0.5}, summary={})
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    err = capsys.readouterr().err
    assert "differ in more than the seed" in err and "dqn gamma=0.5" in err


def test_diff_of_equal_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(folder / "same", summary={})
    assert main(["diff", str(folder / "good"), str(folder / "same")]) == 0
    assert capsys.readouterr().out.startswith("the options are the same\n")
    assert differing_options([KeptRun(folder / "good"), KeptRun(folder / "same")]) == {}


def test_diff_of_two_algorithms_leaves_out_their_own_options(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_run(folder / "other", algo="ppo", trainer={"wrappers": ("a:B",)}, summary={})
    assert main(["diff", str(folder / "good"), str(other)]) == 0
    options = capsys.readouterr().out.split("\n\n")[0]
    assert "trainer.algo" in options and "dqn." not in options and "ppo." not in options
    assert ["trainer.wrappers", "nothing", "a:B"] in [line.split() for line in options.splitlines()]


def test_diff_of_what_is_no_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(folder / "good"), str(folder / "no run")]) == 1
    assert "is no run's directory" in capsys.readouterr().err
    file = folder / "picture.png"
    file.touch()
    assert main(["doctor", str(file)]) == 1
    assert f"{file} is no run's directory\n" in capsys.readouterr().err


def test_tables_keep_to_118_characters() -> None:
    rows = [["a" * 200, "b" * 30, "1"], ["short", "c", "1,000"]]
    lines = text_table(("run", "env", "steps"), rows, right=("steps",)).splitlines()
    assert max(map(len, lines)) <= 118
    assert "aaa~aaa" in lines[1] and lines[2].endswith("1,000")


def test_different_names_do_not_look_the_same() -> None:
    names = [f"dqn {'a' * 30}{rate}{'c' * 30}" for rate in (0.0005, 0.0003)]
    rows = [[name, "b" * 70, "1"] for name in names]
    cut = text_table(("group", "bounds", "runs"), rows).splitlines()
    assert cut[1] == cut[2]
    lines = text_table(("group", "bounds", "runs"), rows, apart=("group",)).splitlines()
    assert all(line.startswith(name) for line, name in zip(lines[1:], names, strict=True))
    long = [["a" * 200, "b" * 30, "1"], ["short", "c", "1"]]
    assert text_table(("group", "env", "n"), long, apart=("group",)) == text_table(
        ("group", "env", "n"), long
    )


def test_groups_that_differ_in_the_middle_of_their_names_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i, rate in enumerate((0.0005, 0.0003, 0.0003)):
        options = {
            "batch_size": 64 + i // 2,
            "discipline": "lockstep",
            "learning_rate": rate,
            "n_step": 1 + i // 2,
        }
        actors = {"num_actors": 1 + i // 2, "envs_per_actor": 64 + i // 2, "eval_episodes": 100 + i // 2}
        write_run(tmp_path / str(i), options=options, trainer=actors, summary={})
    assert main(["ls", str(tmp_path), "--groups"]) == 0
    out = capsys.readouterr().out
    assert "learning_rate=0.0005" in out and "learning_rate=0.0003" in out


def test_diff_shows_both_values_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = [f"{'x' * 80}{i}{'y' * 80}" for i in range(2)]
    for i, side in enumerate(sides):
        write_run(tmp_path / str(i), trainer={"env_kwargs": {"map": side}}, summary={})
    assert main(["diff", str(tmp_path / "0"), str(tmp_path / "1")]) == 0
    out = capsys.readouterr().out
    assert sides[0] in out and sides[1] in out


def test_names_that_are_copied_are_not_shortened() -> None:
    rows = [["run" * 15, "b" * 90, "1"], ["short", "c", "1,000"]]
    lines = text_table(("run", "algo", "steps"), rows, right=("steps",), whole=("run",)).splitlines()
    assert lines[1].startswith("run" * 15 + "  b") and "bbb~bbb" in lines[1] and len(lines[1]) == 118
    rows[0][0] = "run" * 60
    lines = text_table(("run", "algo", "steps"), rows, right=("steps",), whole=("run",)).splitlines()
    assert lines[1].startswith("run" * 60 + "  bbbbbbbbbbb~bbbbbbbbbbbb  ")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59, "59 s"), (60, "1 min"), (3700, "1 h"), (200_000, "2 d")],
)
def test_ages(seconds: float, text: str) -> None:
    assert age(seconds) == text
