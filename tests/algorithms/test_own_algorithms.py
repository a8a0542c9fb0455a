"""User-defined algorithms: registered by name, imported as module:Class, and explained like those of the package."""

from __future__ import annotations

import dataclasses
import inspect
import linecache
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import asyncrl
from asyncrl import DQN, Trainer
from asyncrl.algorithms.preset_files import load_presets
from asyncrl.algorithms.registry import ALGORITHMS, imported_algorithm
from asyncrl.cli.train import parse
from asyncrl.config import TrainerConfig
from asyncrl.errors import ConfigurationError
from asyncrl.options import option_help


@dataclass(frozen=True, kw_only=True)
class Mine(DQN):
    """Deep Q-learning of mine."""

    name: ClassVar[str] = "mine"

    margin: float = 0.5
    """Margin of mine."""


@pytest.fixture(autouse=True)
def only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ALGORITHMS, "_names", list(ALGORITHMS))
    monkeypatch.setattr(ALGORITHMS, "_records", dict(ALGORITHMS))


def test_a_registered_algorithm_is_found_by_its_name() -> None:
    with pytest.raises(ConfigurationError, match="no algorithm is called 'mine'"):
        Trainer("CartPole-v1", "mine")
    assert asyncrl.register(Mine) is Mine
    assert isinstance(Trainer("CartPole-v1", "mine").algorithm, Mine) and list(ALGORITHMS)[-1] == "mine"
    again = dataclasses.make_dataclass("Mine", [], bases=(Mine,), frozen=True, kw_only=True)
    asyncrl.register(again)  # a notebook's cell that runs again
    assert ALGORITHMS["mine"] is again and list(ALGORITHMS).count("mine") == 1


def test_a_command_line_takes_module_and_class() -> None:
    name = f"{__name__}:Mine"
    config, algorithm = parse(["CartPole-v1", "--algo", name, "--mine.margin", "0.25"])
    assert config.algo == "mine" and algorithm.margin == 0.25 and type(algorithm).__name__ == "Mine"
    assert isinstance(Trainer("CartPole-v1", name).algorithm, ALGORITHMS["mine"])
    with pytest.raises(ConfigurationError, match=r"cannot be imported: .* has no attribute 'Yours'"):
        imported_algorithm(f"{__name__}:Yours")
    with pytest.raises(ConfigurationError, match="cannot be imported: No module named 'no_such_module'"):
        imported_algorithm("no_such_module:Mine")
    for text in (":Mine", ".module:Mine"):  # no module, and a relative one
        with pytest.raises(ConfigurationError, match=f"the algorithm {text} cannot be imported"):
            imported_algorithm(text)
    with pytest.raises(
        ConfigurationError, match="json:dumps cannot be used: an algorithm must be a dataclass"
    ):
        imported_algorithm("json:dumps")
    with pytest.raises(ConfigurationError, match="cannot be used: name must be one that no algorithm"):
        imported_algorithm("asyncrl.algorithms.dqn:DQN")


def test_the_installed_command_finds_a_module_of_the_working_directory(tmp_path: Path) -> None:
    """A console script has its own folder on `sys.path`, not the working directory, as `python -m asyncrl` has."""
    (tmp_path / "my_module.py").write_text(
        inspect.getsource(sys.modules[__name__]).split("@pytest.fixture")[0]
    )
    script = "import sys; from asyncrl.cli.entry import main; sys.exit(main())"
    arguments = ["train", "CartPole-v1", "--algo", "my_module:Mine", "--mine.margn", "1"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(asyncrl.__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "unknown option --mine.margn; did you mean --mine.margin?" in done.stderr


def test_another_process_finds_the_algorithm_of_a_run_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = inspect.getsource(sys.modules[__name__]).split("@pytest.fixture")[0]
    (tmp_path / "my_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    run = tmp_path / "run"
    small: dict[str, Any] = {"num_actors": 1, "envs_per_actor": 2, "http": "off", "target_eval_episodes": 1}
    name = imported_algorithm("my_module:Mine")
    Trainer("CartPole-v1", ALGORITHMS[name](), run_dir=run, **small).learn(total_steps=50, progress=False)
    assert 'algorithm = "my_module:Mine"' in (run / "config.toml").read_text()
    code = (
        "from pathlib import Path; from asyncrl.policies.load import load_named; "
        "from asyncrl.storage.resume import options_of_run; print(load_named('run')[0].meta.algo); "
        "print(type(options_of_run(Path('run'))[1]).__module__)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(asyncrl.__file__).parent.parent)}

    def elsewhere(code: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-c", code]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )

    assert "the algorithm my_module:Mine cannot be imported" in elsewhere(code).stderr
    done = elsewhere("import sys; sys.path.append('.'); " + code)
    assert done.stdout.split() == ["mine", "my_module"], done.stderr


def test_a_learning_rate_as_a_function_replaces_the_schedule_of_a_preset() -> None:
    presets = load_presets("c51").items()
    env = next(name for name, preset in presets if preset.algorithm.get("learning_rate_schedule") == "linear")
    assert ALGORITHMS["c51"].preset(env, learning_rate=half).learning_rate_at(0, 0.5) == 0.5  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="learning_rate_schedule must be constant"):
        ALGORITHMS["c51"].preset(env, learning_rate=half, learning_rate_schedule="linear")


def half(progress: float) -> float:
    """Learning rate that falls from 1 to 0.001."""
    return max(1.0 - progress, 0.001)


def test_what_cannot_be_an_algorithm_is_refused() -> None:
    class Plain:
        name = "plain"

    with pytest.raises(TypeError, match=r"a dataclass with what .* lacks update_loop, action_kinds"):
        asyncrl.register(Plain)
    with pytest.raises(
        ValueError, match="name must be one that no algorithm of asyncrl has, got 'dqn' in DQN"
    ):
        asyncrl.register(DQN)


@pytest.mark.parametrize("record", [asyncrl.DQN, asyncrl.PPO, TrainerConfig])
def test_help_explains_every_option(record: Any) -> None:
    text = inspect.getdoc(record)
    assert text is not None and "Options:" in text
    for option in option_help(record).values():
        assert f"    {option.name}:\n" in text
        assert (
            option.help.split()[0] in text and f"default {option.default!r}" in " ".join(text.split())
        ) or (option.required)


def test_help_explains_an_own_algorithm_and_what_is_in_python_only() -> None:
    text = inspect.getdoc(asyncrl.register(Mine))
    assert text is not None and text.startswith("Deep Q-learning of mine.")
    assert "margin:\n        Margin of mine. (a number; default 0.5)" in text and "(in Python only)" in text


def test_a_record_of_a_notebook_has_its_docstrings() -> None:
    code = '''
@dataclass(frozen=True, kw_only=True)
class Cell(DQN):
    name: ClassVar[str] = "cell"
    margin: float = 0.5
    """Margin of the cell."""

    def check(self, spec):
        return super().check(spec)
'''
    file = "/tmp/ipykernel_1/2.py"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    space = {"__name__": "__main__", "dataclass": dataclass, "DQN": DQN, "ClassVar": ClassVar}
    exec(compile(code, file, "exec", dont_inherit=True), space)
    assert option_help(space["Cell"])["margin"].help == "Margin of the cell."
    assert option_help(space["Cell"])["gamma"].help == option_help(DQN)["gamma"].help
