"""Groups of runs: all options but the seed, and names by what differs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kept_runs import write_run

from asyncrl.show.kept_run import KeptRun
from asyncrl.show.pickle_digest import pickle_digest
from asyncrl.show.run_groups import RunGroup, group_runs


def grouped(tmp_path: Path, *runs: dict[str, Any]) -> list[RunGroup]:
    return group_runs([KeptRun(write_run(tmp_path / f"r{i}", **own)) for i, own in enumerate(runs)])


def test_seeds_are_one_group_and_any_other_option_another(tmp_path: Path) -> None:
    groups = grouped(
        tmp_path,
        {"seed": 0},
        {"seed": 1},
        {"seed": 0, "options": {"hidden_sizes": (8,)}},
        {"seed": 1, "options": {"hidden_sizes": (8,)}, "trainer": {"num_actors": 2}},
    )
    assert [len(group.runs) for group in groups] == [2, 1, 1]
    assert len({group.name for group in groups}) == 3
    assert all("hidden_sizes=[" in group.name and "num_actors=" in group.name for group in groups)
    assert groups[0].name.startswith("dqn ") and "seed" not in groups[0].name


def test_where_a_run_lies_and_is_served_is_no_difference(tmp_path: Path) -> None:
    (group,) = grouped(
        tmp_path, {"seed": 0, "trainer": {"http": "off"}}, {"seed": 1, "trainer": {"http": 8000}}
    )
    assert (group.name, group.size) == ("dqn", "2 seeds")


def test_a_seed_that_was_run_twice_is_said(tmp_path: Path) -> None:
    (group,) = grouped(tmp_path, {"seed": 0}, {"seed": 0}, {"seed": 1})
    assert group.size == "3 runs of 2 seeds"


def test_options_of_an_algorithm_name_its_own_groups_only(tmp_path: Path) -> None:
    groups = grouped(tmp_path, {}, {"options": {"n_step": 5}}, {"algo": "ppo"})
    assert [group.name for group in groups] == ["dqn n_step=3", "dqn n_step=5", "ppo"]


def test_one_setting_has_one_name_in_all_environments(tmp_path: Path) -> None:
    """Also where an environment has only one of the settings, and where the environments' own options differ."""
    long = {"env": "Acrobot-v1", "trainer": {"total_steps": 9000}}
    groups = grouped(tmp_path, {}, {"options": {"n_step": 5}}, {**long, "options": {"n_step": 5}})
    assert [group.name for group in groups] == ["dqn n_step=3", "dqn n_step=5", "dqn n_step=5"]
    assert len({group.id for group in groups}) == 3


def test_a_group_keeps_its_id_beside_other_runs(tmp_path: Path) -> None:
    one, _ = grouped(tmp_path / "a", {"seed": 3}, {"algo": "ppo"})
    (other,) = grouped(tmp_path / "b", {"seed": 4})
    assert one.id == other.id


def test_runs_with_unreadable_options_are_never_averaged(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name) for name in ("a", "b")]
    for path in paths:
        (path / "config.toml").write_text("[trainer\n")
    assert [group.name for group in group_runs([KeptRun(path) for path in paths])] == ["a", "b"]


def test_a_name_is_silent_about_what_a_run_lacks(tmp_path: Path) -> None:
    shown = {"trainer": {"demonstrations": "datasets/walk"}}
    groups = grouped(tmp_path, {}, shown, {"trainer": {"wrappers": ("a:B",)}})
    assert [group.name for group in groups] == [
        "dqn",
        "dqn demonstrations=walk",
        "dqn wrappers=[a:B]",
    ]


def test_a_run_of_a_version_without_an_option_that_adds_nothing_is_of_the_same_group(tmp_path: Path) -> None:
    """Otherwise two groups had one name, and counted as one setting in two environments."""
    paths = [write_run(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    file = paths[0] / "config.toml"
    text, _, rest = file.read_text().partition("wrappers = []\n")
    assert rest, "the option is there"
    file.write_text(text + rest)
    (group,) = group_runs([KeptRun(path) for path in paths])
    assert (group.name, group.size) == ("dqn", "2 seeds")


def test_drawn_numbers_are_as_short_as_tells_the_groups_apart(tmp_path: Path) -> None:
    rates = (0.0028700420625969824, 0.00028783883778498, 0.001)
    groups = grouped(tmp_path / "a", *({"options": {"learning_rate": rate}} for rate in rates))
    names = [group.name for group in groups]
    assert names == ["dqn learning_rate=0.00287", "dqn learning_rate=0.0002878", "dqn learning_rate=0.001"]
    near = grouped(
        tmp_path / "b", *({"options": {"learning_rate": 0.0028700420625969824 + i * 1e-9}} for i in (0, 1))
    )
    assert [group.name for group in near] == [
        "dqn learning_rate=0.002870042",
        "dqn learning_rate=0.002870043",
    ]


def test_a_path_is_as_short_as_tells_the_groups_apart(tmp_path: Path) -> None:
    paths = ["/home/me/datasets/walk", "/home/me/datasets/run", "/home/you/datasets/run"]
    groups = grouped(tmp_path / "a", *({"trainer": {"dataset": path}} for path in paths[:2]))
    assert [group.name for group in groups] == ["dqn dataset=walk", "dqn dataset=run"]
    groups = grouped(tmp_path / "b", *({"trainer": {"dataset": path}} for path in paths))
    wanted = ["me/datasets/walk", "me/datasets/run", "you/datasets/run"]
    assert [group.name for group in groups] == [f"dqn dataset={path}" for path in wanted]
    groups = grouped(tmp_path / "c", *({"trainer": {"dataset": path}} for path in ("walk", "walk/")))
    assert [group.name for group in groups] == ["dqn dataset=walk", "dqn dataset=walk/"]


SCRIPT = """
class Wall:
    def height(self):
        self.stones, self.windows, self.doors = "wall" in {{"wall", "door", "roof", "lamp", "tile", "beam"}}, 3, 4
        return {height}

def make_all(seed):
    def make():
        return [Wall() for _ in range({walls})], lambda progress: 0.1 * progress, seed
    return make

make = make_all({seed})
"""
"""Script with a class of its own, as one whose environment is a function."""


def pickled(script: str, file: str, hash_seed: int = 0) -> bytes:
    """Function `make` of a script that lies in `file`, pickled in another process."""
    code = (
        "import cloudpickle, sys; "
        "names = {'__name__': '__main__'}; "
        f"exec(compile({script!r}, {file!r}, 'exec'), names); "
        "sys.stdout.buffer.write(cloudpickle.dumps(names['make']))"
    )
    env = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    return subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True).stdout


@pytest.mark.parametrize(
    "file", ["environment.pkl", "evaluation_environment.pkl", "network.pkl", "functions.pkl"]
)
def test_runs_whose_functions_differ_are_never_averaged(tmp_path: Path, file: str) -> None:
    """A file of options cannot hold a function, so that the options of such runs are the same."""
    paths = [write_run(tmp_path / f"r{i}", seed=i) for i in range(4)]
    (paths[0] / file).write_bytes(pickled(SCRIPT.format(height=1, walls=50, seed=0), "/home/a/train.py"))
    # The same script for another seed, elsewhere, in a process with another order of sets, a line farther down.
    lower = "import os" + SCRIPT.format(height=1, walls=50, seed=1)
    (paths[1] / file).write_bytes(pickled(lower, "/tmp/ipykernel_4711/123.py", 3))
    (paths[2] / file).write_bytes(pickled(SCRIPT.format(height=1, walls=51, seed=2), "/home/a/train.py"))
    (paths[3] / file).write_bytes(pickled(SCRIPT.format(height=2, walls=50, seed=3), "/home/a/train.py"))
    groups = group_runs([KeptRun(path) for path in paths])
    assert [[run.seed for run in group.runs] for group in groups] == [[0, 1], [2], [3]]
    assert len({group.name for group in groups}) == 3


def test_a_damaged_file_of_functions_is_read_as_none(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / f"r{i}", seed=i) for i in range(2)]
    (paths[1] / "network.pkl").write_bytes(b"\xffno pickle")
    (group,) = group_runs([KeptRun(path) for path in paths])
    assert group.size == "2 seeds"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("lambda: (64, 128)", "lambda: (128, 64)"),
        ("lambda: dict(wide=1, deep=2)", "lambda: dict(wide=2, deep=1)"),
        ("lambda: len('a')", "lambda: abs('a')"),
        ("lambda wide=1: wide", "lambda wide=2: wide"),
        ("(lambda wide: lambda: wide)(0)", "(lambda wide: lambda: wide)(9)"),
        ("lambda: {1, 2}", "lambda: {1, 3}"),
        ("__import__('functools').partial(int, 3)", "__import__('functools').partial(int, 4)"),
        ("lambda: 'train.py'.upper()", "lambda: 'train.py'.lower()"),
    ],
)
def test_what_a_function_does_tells_two_apart(one: str, other: str) -> None:
    first, second = (pickled(f"make = {text}", "train.py") for text in (one, other))
    assert pickle_digest(first, seed=7) != pickle_digest(second, seed=7)
    assert pickle_digest(first, seed=7) == pickle_digest(pickled(f"\nmake = {one}", "b.py", 5), seed=7)


def test_the_seed_of_the_run_may_be_captured_by_its_function() -> None:
    texts = (
        "import types; args = types.SimpleNamespace(seed={seed}, wide=64)\nmake = lambda: args.wide + args.seed",
        "make = (lambda first: lambda: first)({seed})",
        "SEED = {seed}; make = lambda: SEED",
    )
    for text in texts:
        first, second = (pickled(text.format(seed=seed), "train.py") for seed in (1, 1000))
        assert pickle_digest(first, seed=1) == pickle_digest(second, seed=1000)
        assert pickle_digest(first, seed=1) != pickle_digest(second, seed=1), text
