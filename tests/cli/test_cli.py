"""Command line: flags to records, errors to texts and exit codes, signals to an orderly end."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from kept_runs import write_run
from waiting import PATIENCE_SECONDS

import asyncrl.actors.forkserver
from asyncrl import errors
from asyncrl.algorithms.dqn import DQN
from asyncrl.cli import plan, training
from asyncrl.cli.eval import EvalOptions
from asyncrl.cli.main import COMMANDS, main
from asyncrl.cli.train import parse as parse_train
from asyncrl.config import TrainerConfig
from asyncrl.envs.source import EnvSource
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.options import option_values
from asyncrl.policies.load import load
from asyncrl.show.metrics import EvaluationResult
from asyncrl.storage.checkpoint import CheckpointMeta, save
from asyncrl.storage.config_file import dump_config
from asyncrl.storage.run_directory import RunDirectory
from asyncrl.storage.run_files import write_run_files
from asyncrl.trainer.arguments import with_preset

ROOT = Path(__file__).parents[2]
TRAIN = ["train", "Unknown-v0", "--algo", "dqn"]


class FakeServer:
    log: ClassVar[list[str]] = []

    def start(self) -> None:
        self.log.append("start")

    def close(self) -> None:
        self.log.append("close")

    def kill(self) -> None:
        self.log.append("kill")


class FakeTrainer:
    """Trainer whose behaviour the test sets."""

    learns: Callable[[FakeTrainer], str]
    made: FakeTrainer
    url = None
    result = None
    updates = 8_000
    best = EvaluationResult(490.5, 3.0, 490.0, 10, 5, 20_000, 1.0)

    def snapshot(self) -> Any:
        return types.SimpleNamespace(best_evaluation=self.best)

    @classmethod
    def from_config(
        cls, config: TrainerConfig, algorithm: Any, *, server: Any = None, started: float = 0.0
    ) -> FakeTrainer:
        trainer = cls.made = cls()
        trainer.config, trainer.algorithm, trainer.server = config, algorithm, server
        trainer.stopped = threading.Event()
        trainer.reason, trainer.killed = "stopped", False
        return trainer

    def __enter__(self) -> FakeTrainer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stop(self, reason: str = "stopped") -> None:
        self.reason = reason
        self.stopped.set()

    def kill(self) -> None:
        self.killed = True

    def learn(self, *, on_snapshot: Any = None, progress: bool = True) -> Any:
        reason = type(self).learns(self)
        evaluation = (
            None if reason == "interrupted" else EvaluationResult(487.25, 12.5, 487.0, 100, 7, 31_000, 1.5)
        )
        summary = {
            "train_seconds": 1.5,
            "startup_seconds": 0.9,
            "env_steps": 31_000,
            "updates": self.updates,
            "eval": {"deterministic": True},
        }
        run_dir = Path(self.config.run_dir) if self.config.run_dir else None
        return training.TrainResult(None, evaluation, reason, summary, run_dir)  # type: ignore[arg-type]


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeTrainer]]:
    """`asyncrl train` with a trainer that ends immediately, and a fork server that starts nothing."""
    before = warnings.showwarning
    FakeServer.log.clear()
    monkeypatch.setattr(asyncrl.actors.forkserver, "ForkServer", FakeServer)
    monkeypatch.setattr(training, "Trainer", FakeTrainer)
    monkeypatch.setattr(FakeTrainer, "learns", lambda self: "total_steps", raising=False)
    yield FakeTrainer
    warnings.showwarning = before


def usage_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Error text of a wrong command line, which must end with exit code 2 and print nothing to standard output."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err


# --- flags to records


def test_every_kind_of_flag() -> None:
    line = (
        "Unknown-v0 --algo dqn --steps 200k --actors 2 --envs-per-actor 8 --seed 5 --run-dir runs/x "
        "--target-return 475 --max-seconds 120 --http off --device cpu --dqn.learning-rate 3e-4 "
        "--no-dqn.double --dqn.dueling --dqn.hidden-sizes 32,16 --dqn.max-grad-norm none "
        "--no-dqn.normalize-observations"
    )
    config, algorithm = parse_train(line.split())
    assert config == TrainerConfig(
        env="Unknown-v0",
        algo="dqn",
        total_steps=200_000,
        num_actors=2,
        envs_per_actor=8,
        seed=5,
        run_dir="runs/x",
        target_return=475,
        max_seconds=120,
        http="off",
        device="cpu",
    )
    assert algorithm == DQN(
        learning_rate=3e-4,
        double=False,
        dueling=True,
        hidden_sizes=(32, 16),
        max_grad_norm=None,
        normalize_observations=False,
    )


@pytest.mark.parametrize(
    ("given", "double", "dueling"),
    [
        ("--dqn.double false --dqn.dueling True", False, True),
        ("--dqn.double=no --dqn.dueling=on", False, True),
        ("--dqn.double --dqn.dueling off", True, False),
        ("--no-dqn.double --dqn.dueling=YES", False, True),
    ],
)
def test_a_switch_takes_yes_or_no(given: str, double: bool, dueling: bool) -> None:
    _, algorithm = parse_train(["--algo", "dqn", *given.split(), "Unknown-v0"])
    assert algorithm == DQN(double=double, dueling=dueling)


@pytest.mark.parametrize("given", ["--dqn.double=maybe", "--no-dqn.double=yes", "--no-dqn.double no"])
def test_a_switch_takes_nothing_else(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = usage_error(capsys, "train", "Unknown-v0", "--algo", "dqn", *given.split())
    flag, value = given.replace("=", " ").split()
    assert f"argument {flag}: must be given alone, or with yes or no, got '{value}'" in " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "value"),
    [("-100", -100.0), ("-0.5", -0.5), ("-1e3", -1000.0), ("-.5e2", -50.0), ("-1_000", -1000.0)],
)
def test_a_negative_number_is_a_value_in_any_form(text: str, value: float) -> None:
    config, _ = parse_train(["Unknown-v0", "--algo", "dqn", "--target-return", text])
    assert config.target_return == value


def test_evaluations_of_the_command_line_say_how_long_the_last_one_is(tmp_path: Path) -> None:
    line = ["Unknown-v0", "--algo", "dqn", "--eval-episodes", "5"]
    assert parse_train(line)[0].final_episodes == 5
    assert parse_train([*line, "--target-return", "475"])[0].final_episodes == 100
    file = tmp_path / "own.toml"
    file.write_text("[trainer]\ntarget_eval_episodes = 50\n", encoding="utf-8")
    assert parse_train([*line, "--config", str(file)])[0].final_episodes == 50


def test_a_port_is_a_number() -> None:
    config, _ = parse_train(
        ["Unknown-v0", "--algo=dqn", "--http=8080", "--num-actors=3", "--total-steps=1e6"]
    )
    assert (config.http, config.num_actors, config.total_steps) == (8080, 3, 1_000_000)


def test_keyword_arguments_of_a_preset_lie_below_those_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from asyncrl.algorithms import hyperparameters
    from asyncrl.algorithms.preset_files import Preset

    preset = Preset({}, {"env_kwargs": {"gravity": -9, "wind_power": 1.5}})
    monkeypatch.setattr(hyperparameters, "preset_for", lambda algorithm, env: preset)

    def parsed(*arguments: str) -> Mapping[str, Any]:
        found = parse_train(["LunarLander-v3", "--algo", "dqn", "--steps", "100", *arguments])
        assert isinstance(found, tuple)
        return found[0].env_kwargs

    given = ("--env-kwargs", "gravity:-8", "enable_wind:True")
    both = {"gravity": -8, "wind_power": 1.5, "enable_wind": True}
    assert parsed() == preset.run["env_kwargs"] and parsed(*given) == both
    assert with_preset("dqn", "LunarLander-v3", {})[1] == preset.run
    from_python = {"env_kwargs": {"gravity": -8, "enable_wind": True}}
    assert with_preset("dqn", "LunarLander-v3", from_python)[1] == {"env_kwargs": both}
    file = tmp_path / "config.toml"
    file.write_text("[trainer]\nenv_kwargs = { gravity = -7 }\n")
    assert parsed("--config", str(file)) == {"gravity": -7, "wind_power": 1.5}
    assert plan.parse(["LunarLander-v3", "--algo", "dqn", *given]).config.env_kwargs == both


def test_flags_win_over_the_file_and_the_file_over_the_preset(tmp_path: Path) -> None:
    preset = DQN.preset("CartPole-v1")
    assert preset != DQN()
    file = tmp_path / "run.toml"
    file.write_text(
        '[trainer]\nenv = "CartPole-v1"\nalgo = "dqn"\nseed = 3\nenvs_per_actor = 5\n'
        "[dqn]\ngamma = 0.5\nbatch_size = 7\n"
    )
    config, algorithm = parse_train(["--config", str(file), "--seed", "4", "--dqn.batch-size", "9"])
    assert (config.env, config.seed, config.envs_per_actor) == ("CartPole-v1", 4, 5)
    assert algorithm == dataclasses.replace(preset, gamma=0.5, batch_size=9)
    other, _ = parse_train(["Acrobot-v1", "--config", str(file)])
    assert other.env == "Acrobot-v1"


def test_a_run_trains_again_from_its_own_file(tmp_path: Path) -> None:
    config, algorithm = parse_train(["CartPole-v1", "--algo", "dqn", "--steps", "5k", "--dqn.gamma", "0.9"])
    file = tmp_path / "config.toml"
    file.write_text(dump_config(config, algorithm))
    assert parse_train(["--config", str(file)]) == (config, algorithm)


def test_eval_options() -> None:
    assert COMMANDS["eval"].parse(["runs/x", "--episodes", "5", "--json"]) == EvalOptions(
        run="runs/x", episodes=5, json=True
    )
    assert EvalOptions(run="x").checkpoint is None


# --- the program


def test_the_program_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "asyncrl", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stdout) == (0, f"asyncrl {asyncrl.__version__}\n")


# --- wrong arguments


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "a command is missing: one of train, tune, eval"),
        (["trian"], "unknown command trian; did you mean train?"),
        (["zzz"], "unknown command zzz"),
        (["--verbos"], "unknown option --verbos; did you mean --version?"),
        (["ui", "--http", "8000"], "unknown option --http; did you mean --port?"),
        (["train", "CartPole-v1", "--port", "8000"], "unknown option --port; did you mean --http?"),
        (["train"], "ENV is missing, for example"),
        (["train", "--algo"], "argument --algo: expected one argument"),
        (["train", "--algo", "dqn"], "ENV is missing, for example"),
        (["plan"], "the following arguments are required: ENV"),
        (
            ["train", "--algo", "dqn", "--env-kwargs", "a:1", "X-v0"],
            "ENV is missing, write it before --env-kwargs",
        ),
        (["train", "--algo", "dqn", "--wrapper", "a:B", "X-v0"], "ENV is missing, write it before --wrapper"),
        (["train", "CartPole-v1"], "--algo is missing; one of a2c, bc, c51, crossq"),
        (["train", "CartPole-v1", "--algo", "dqm"], "unknown algorithm dqm; did you mean dqn?"),
        (["train", "CartPole-v1", "--algo", "PPO2"], "unknown algorithm PPO2; did you mean ppo?"),
        ([*TRAIN, "--step", "5"], "unknown option --step; did you mean --steps?"),
        ([*TRAIN, "--actor=2"], "unknown option --actor; did you mean --actors?"),
        (
            [*TRAIN, "--learning-rate", "1"],
            "unknown option --learning-rate; did you mean --dqn.learning-rate?",
        ),
        ([*TRAIN, "--tau", "1"], "unknown option --tau; did you mean --dqn.tau?"),
        ([*TRAIN, "--dqn.leraning-rate=1"], "did you mean --dqn.learning-rate?"),
        ([*TRAIN, "--qqqqqqqq"], "unknown option --qqqqqqqq\n"),
        ([*TRAIN, "extra"], "unexpected argument 'extra'"),
        (
            [*TRAIN, "--dqn.hidden-sizes", "64", "64", "--seed", "1"],
            "unexpected argument '64'; write --dqn.hidden-sizes 64,64",
        ),
        (
            [*TRAIN, "--dqn.hidden-sizes=64", "32"],
            "unexpected argument '32'; write --dqn.hidden-sizes 64,32",
        ),
        ([*TRAIN, "--dqn.hidden-sizes", "64x64"], "write 64,64"),
        ([*TRAIN, "--actors", "0"], "argument --actors: num_actors must be at least 1, got 0"),
        ([*TRAIN, "--actors", "two"], "num_actors must be a whole number or none, got 'two'"),
        ([*TRAIN, "--steps", "1.0005k"], "total_steps must be a whole number or none, got '1.0005k'"),
        ([*TRAIN, "--device", "tpu"], "device must be one of auto, cpu, cuda, got 'tpu'"),
        ([*TRAIN, "--http", "99999"], "http must be auto, off or a port from 1 to 65535, got 99999"),
        (
            [*TRAIN, "--dqn.learning-rate", "-1"],
            "argument --dqn.learning-rate: learning_rate must be greater than 0, got -1.0",
        ),
        ([*TRAIN, "--dqn.learning-rate", "inf"], "learning_rate must be finite, got inf"),
        ([*TRAIN, "--steps", "1e20"], "total_steps must be below 2**63 in magnitude, got '1e20'"),
        *(
            (
                [*TRAIN, f"--{name}", ""],
                f"argument --{name}: {name.replace('-', '_')} must not be empty, got ''",
            )
            for name in ("run-dir", "init-from", "dataset", "demonstrations", "eval-env")
        ),
        (["eval"], "the following arguments are required: RUN"),
        (["eval", "runs/x", "--episodes", "0"], "argument --episodes: episodes must be at least 1, got 0"),
        (["eval", "runs/x", "--episode", "1"], "unknown option --episode; did you mean --episodes?"),
    ],
)
def test_wrong_arguments(
    capsys: pytest.CaptureFixture[str], trainer: type[FakeTrainer], arguments: list[str], text: str
) -> None:
    assert text in usage_error(capsys, *arguments)
    assert FakeServer.log == [], "a wrong argument takes no process to find"


def test_a_directory_that_holds_a_run_is_refused_before_a_process_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trainer: type[FakeTrainer]
) -> None:
    run = write_run(tmp_path / "x", summary={"env_steps": 5})
    assert main([*TRAIN, "--run-dir", str(run)]) == 1
    assert capsys.readouterr().err == (
        f"[ASYNC017] run_dir must be a new or empty directory, {run} holds a run: summary.json\n"
        f"  run_dir: {run}\n"
        f"  fix: give another directory, or go on with that run: asyncrl resume {run}\n"
    )
    assert FakeServer.log == []


def test_a_typo_in_the_file_is_the_users_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trainer: type[FakeTrainer]
) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[dqn]\nlearning_rat = 1.0\n")
    assert main([*TRAIN, "--config", str(file)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "[ASYNC017] run.toml sets an option that does not exist: dqn.learning_rat\n"
        f"  file: {file}\n"
        "  key: dqn.learning_rat\n"
        "  did you mean: dqn.learning_rate\n"
        "  fix: write dqn.learning_rate, or remove it; `asyncrl train --help` lists every option\n"
    )
    file.write_text("[trainer]\nnum_actors = 0\n")
    assert main([*TRAIN, "--config", str(file)]) == 1
    assert "run.toml: num_actors must be at least 1, got 0" in capsys.readouterr().err
    assert FakeServer.log == []


# --- ends


def test_a_run_prints_its_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trainer: type[FakeTrainer]
) -> None:
    trainer.learns = lambda self: "target_return"
    assert main([*TRAIN, "--run-dir", str(tmp_path / "x y")]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "stopped by    target_return\n"
        "best return   490.5 +/- 3.0 over 10 greedy episodes, after 20,000 steps\n"
        "final return  487.2 +/- 12.5 over 100 greedy episodes\n"
        "training      1.50 s, 31,000 steps, 8,000 updates\n"
        "start-up      0.90 s\n"
        f"files         {tmp_path / 'x y'}\n"
        f"next          asyncrl eval '{tmp_path / 'x y'}'\n"
    )
    assert isinstance(trainer.made.server, FakeServer)
    assert FakeServer.log == ["start", "close"]


def test_a_run_without_an_update_says_that_nothing_was_learned(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    trainer: type[FakeTrainer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainer, "updates", 0)
    assert main([*TRAIN, "--run-dir", str(tmp_path / "x")]) == 0
    out = capsys.readouterr().out
    text = "nothing was learned: the run ended before its first update, for which it needs more steps"
    assert f"31,000 steps, 0 updates\n              {text}\nstart-up" in out


@pytest.mark.parametrize(
    ("reason", "names", "rest"),
    [
        ("max_seconds", ["eval", "enjoy", "resume", "plot"], " --steps +100k"),
        ("stopped", ["eval", "enjoy", "resume", "plot"], ""),
        ("failed", ["resume"], ""),
    ],
)
def test_the_next_commands_fit_the_end(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    trainer: type[FakeTrainer],
    reason: str,
    names: list[str],
    rest: str,
) -> None:
    trainer.learns = lambda self: reason
    assert main([*TRAIN, "--run-dir", str(tmp_path / "x")]) == 0
    lines = [line.split(None, 3) for line in capsys.readouterr().out.splitlines() if "asyncrl " in line]
    commands = [" ".join(words).removeprefix("next ") for words in lines]
    wanted = [f"asyncrl {name} {tmp_path / 'x'}{rest if name == 'resume' else ''}" for name in names]
    assert commands == wanted


ERRORS = [
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, errors.AsyncRLError) and cls.code != "ASYNC000"
]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_is_its_text_and_its_code(
    capsys: pytest.CaptureFixture[str], trainer: type[FakeTrainer], kind: type[errors.AsyncRLError]
) -> None:
    error = kind("what happened", facts={"actor": 1}, fix="do this", remote_traceback="remote line")

    def fail(self: FakeTrainer) -> str:
        raise error

    trainer.learns = fail
    code = main(TRAIN)
    expected = {"EnvironmentFailed": 3, "ResourceError": 4, "StoppedWhileStarting": 130}
    assert code == next((expected[base.__name__] for base in kind.__mro__ if base.__name__ in expected), 1)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"{error}\n"
    assert "remote line" in err
    assert "Traceback" not in err
    assert FakeServer.log == ["start", "close"]


def test_a_warning_that_is_an_error_is_its_text(
    capsys: pytest.CaptureFixture[str], trainer: type[FakeTrainer]
) -> None:
    """As with `python -W error`."""

    def fail(self: FakeTrainer) -> str:
        raise errors.LittleDiskSpace("[ASYNC044] the checkpoints need more")

    trainer.learns = fail
    assert main(TRAIN) == 1
    assert capsys.readouterr() == ("", "[ASYNC044] the checkpoints need more\n")


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("num_actors must be at least 2, got 1", "--actors"),
        ("n_step must be at most 3, got 9", "--dqn.n-step"),
    ],
)
def test_an_option_that_only_the_run_refuses(
    capsys: pytest.CaptureFixture[str], trainer: type[FakeTrainer], text: str, flag: str
) -> None:
    def refuse(self: FakeTrainer) -> str:
        raise ValueError(text)

    trainer.learns = refuse
    assert main(TRAIN) == 2
    assert capsys.readouterr().err == f"asyncrl train: error: argument {flag}: {text}\n"


def test_a_bug_keeps_its_traceback(trainer: type[FakeTrainer]) -> None:
    def fail(self: FakeTrainer) -> str:
        raise ValueError("shapes do not match")

    trainer.learns = fail
    with pytest.raises(ValueError, match="shapes do not match"):
        main(TRAIN)
    assert FakeServer.log == ["start", "close"]


def test_warnings_are_sentences(capsys: pytest.CaptureFixture[str], trainer: type[FakeTrainer]) -> None:
    def warn(self: FakeTrainer) -> str:
        warnings.warn("[ASYNC021] 9 actors share 2 cores", errors.TooManyThreads, stacklevel=1)
        return "total_steps"

    trainer.learns = warn
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(TRAIN) == 0
    assert capsys.readouterr().err == "warning: [ASYNC021] 9 actors share 2 cores\n"


# --- signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_in_good_order(
    capfd: pytest.CaptureFixture[str], trainer: type[FakeTrainer], number: signal.Signals
) -> None:
    def interrupted(self: FakeTrainer) -> str:
        os.kill(os.getpid(), number)
        assert self.stopped.wait(PATIENCE_SECONDS)
        return self.reason

    trainer.learns = interrupted
    before = signal.getsignal(number)
    assert main(TRAIN) == 130
    assert signal.getsignal(number) is before
    out, err = capfd.readouterr()
    assert "final return  not evaluated\n" in out
    expected = (
        f"{number.name}: stopping, once more to kill\n"  # by a thread, which a signal does not wait for
    )
    until = time.monotonic() + PATIENCE_SECONDS
    while err != expected and time.monotonic() < until:
        err += capfd.readouterr().err
    assert err == expected
    assert not trainer.made.killed
    assert FakeServer.log == ["start", "close"]


def test_a_signal_before_there_is_a_run(
    capsys: pytest.CaptureFixture[str], trainer: type[FakeTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.sigtimedwait([], 5)

    monkeypatch.setattr(FakeTrainer, "from_config", slow)
    assert main(TRAIN) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert FakeServer.log == ["start", "close"]


SECOND_SIGNAL = """
import os, sys
sys.path[:0] = sys.argv[1:]
import test_cli
from asyncrl.cli import training
import asyncrl.actors.forkserver

def stuck(self):
    print("learning", flush=True)
    # In short waits, as a run's: CPython may enter a wait without a limit with a signal that it has not handled.
    while True:
        test_cli.threading.Event().wait(0.02)

test_cli.FakeTrainer.learns = stuck
test_cli.FakeTrainer.kill = lambda self: os.write(1, b"killed\\n")
training.Trainer = test_cli.FakeTrainer
asyncrl.actors.forkserver.ForkServer = test_cli.FakeServer
sys.exit(test_cli.main(test_cli.TRAIN))
"""


def test_the_second_signal_kills() -> None:
    command = [sys.executable, "-c", SECOND_SIGNAL, str(Path(__file__).parent), str(ROOT / "tests")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "learning\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "SIGINT: stopping, once more to kill\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out, err) == (130, "killed\n", "killed\n")


# --- eval


class FakeEvaluator:
    def __init__(
        self,
        server: Any,
        source: Any,
        spec: EnvSpec,
        policy: bytes,
        seed: int,
        max_episode_steps: int | None,
        deterministic: bool,
    ) -> None:
        self.offset, self.closed = seed, False
        self.success_rate, self.level_returns = None, dict[str, float]()
        assert deterministic and max_episode_steps is None
        assert source.name == spec.name

    async def evaluate(self, weights: Any, episodes: int) -> tuple[Any, Any]:
        returns = np.arange(episodes) + weights.sum() + self.offset
        return returns.astype(np.float64), np.full(episodes, 9)

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: type[FakeTrainer]) -> Path:
    """Run directory with one checkpoint of DQN on CartPole."""
    monkeypatch.setattr("asyncrl.actors.evaluator.RemoteEvaluator", FakeEvaluator)
    spec = EnvSpec("CartPole-v1", (4,), "float32", DiscreteAction(2))
    algorithm = DQN(hidden_sizes=(8,))
    weights = np.zeros(algorithm.make_policy(spec).weight_count, np.float32)
    weights[0] = 100.0
    (tmp_path / "checkpoints").mkdir()
    options = option_values(algorithm)
    meta = CheckpointMeta(env="CartPole-v1", algo="dqn", spec=spec, options=options, env_steps=1200)
    save(tmp_path / "checkpoints" / "latest", {"weights": weights}, meta)
    return tmp_path


def test_eval_prints_returns(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--episodes", "3"]) == 0
    assert capsys.readouterr().out == (
        "return       101.0 +/- 0.8 over 3 greedy episodes, from 100.0 to 102.0\n"
        "length       9.0 steps\n"
        "environment  CartPole-v1\n"
        "policy       latest, dqn on CartPole-v1 after 1,200 steps\n"
        f"file         {run / 'checkpoints' / 'latest'}\n"
    )
    assert FakeServer.log == ["start", "close"]


def test_eval_prints_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--episodes", "3", "--seed", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "checkpoint": str(run / "checkpoints" / "latest"),
        "env": "CartPole-v1",
        "trained_env": "CartPole-v1",
        "algo": "dqn",
        "env_steps": 1200,
        "policy_version": 0,
        "seed": 7,
        "episodes": 3,
        "deterministic": True,
        "return_mean": 108.0,
        "return_std": pytest.approx(np.sqrt(2 / 3)),
        "return_min": 107.0,
        "return_max": 109.0,
        "length_mean": 9.0,
        "success_rate": None,
    }


def test_eval_plays_the_best_unless_told_otherwise(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = EnvSpec("CartPole-v1", (4,), "float32", DiscreteAction(2))
    weights = np.zeros(DQN(hidden_sizes=(8,)).make_policy(spec).weight_count, np.float32)
    options = option_values(DQN(hidden_sizes=(8,)))
    meta = CheckpointMeta(
        env="CartPole-v1", algo="dqn", spec=spec, options=options, env_steps=800, return_mean=9.5
    )
    save(run / "checkpoints" / "best", {"weights": weights}, meta)
    assert main(["eval", str(run), "--episodes", "1"]) == 0
    best = "policy       best, dqn on CartPole-v1 after 800 steps, evaluated at 9.50 in training\n"
    assert best in capsys.readouterr().out
    assert main(["eval", str(run), "--episodes", "1", "--checkpoint", "latest"]) == 0
    assert "policy       latest, dqn on CartPole-v1 after 1,200 steps\n" in capsys.readouterr().out


def test_eval_plays_a_policy_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = load(run).save(run / "cartpole.policy")
    assert main(["eval", str(file), "--episodes", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["return_mean"] == 101.0
    assert main(["eval", str(file), "--checkpoint", "best"]) == 1
    assert "leave checkpoint out" in capsys.readouterr().err


def test_eval_of_what_is_not_there(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--checkpoint", "best"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("[ASYNC019] the run has no checkpoint 'best'; it has latest\n")
    assert f"  file: {run / 'checkpoints' / 'best'}\n" in err
    (run / "empty").mkdir()
    assert main(["eval", str(run / "empty")]) == 1
    assert f"{run / 'empty'} is no run's directory" in capsys.readouterr().err
    assert main(["eval", str(run / "gone")]) == 1
    assert "  fix: check the path; `asyncrl ls` lists the runs of a folder\n" in capsys.readouterr().err


def test_eval_of_another_algorithm(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = EnvSpec("CartPole-v1", (4,), "float32", DiscreteAction(2))
    state = {"weights": np.zeros(3, np.float32)}
    save(run / "checkpoints" / "best", state, CheckpointMeta(env="CartPole-v1", algo="zzz", spec=spec))
    assert main(["eval", str(run), "--checkpoint", "best"]) == 1
    assert "written by algorithm 'zzz', which this version does not have" in capsys.readouterr().err


def test_a_network_given_in_python_is_trained_again(tmp_path: Path) -> None:
    algorithm = DQN(network=lambda inputs, outputs: (inputs, outputs))  # type: ignore[arg-type,return-value]
    directory = RunDirectory(tmp_path / "run")
    config = TrainerConfig(env="CartPole-v1", algo="dqn", run_dir=str(tmp_path / "run"))
    write_run_files(directory, config, algorithm, EnvSource.from_user("CartPole-v1"))
    directory.close()
    file = tmp_path / "run" / "config.toml"
    assert "a function, kept in network.pkl\n" in file.read_text()
    again = parse_train(["--config", str(file), "--run-dir", "none"])[1]
    assert again.own_network(4, 2) == (4, 2)  # type: ignore[attr-defined]
    for other in (["--dqn.network", "mlp"], ["--algo", "qrdqn"]):
        assert parse_train(["--config", str(file), "--run-dir", "none", *other])[1].own_network is None  # type: ignore[attr-defined]


def test_another_environment_leaves_the_pickled_one_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[trainer]\nenv = "<lambda> in x.py:3"\nenv_file = "environment.pkl"\nalgo = "dqn"\n')
    same, _ = parse_train(["--config", str(file)])
    assert same.env_file == str(tmp_path / "environment.pkl")
    other, _ = parse_train(["CartPole-v1", "--config", str(file)])
    assert (other.env, other.env_file) == ("CartPole-v1", None)
