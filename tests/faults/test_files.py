"""Files of a run: forged files are refused with a short error, and a file that cannot be written affects no other."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import pickle
import platform
import random
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fakes import CountingEnv, RandomPolicy, SimpleEnv
from snapshots import make_snapshot
from tensor_files import joined, sealed, split, with_header
from waiting import PATIENCE_SECONDS

from asyncrl import DQN, errors
from asyncrl.actors.episodes import EpisodePlayer
from asyncrl.actors.streams import PlainStreams
from asyncrl.cli import eval as eval_command
from asyncrl.cli.eval import EvalOptions
from asyncrl.config import TrainerConfig
from asyncrl.envs.checks import spec_of
from asyncrl.envs.source import EnvSource
from asyncrl.errors import printable
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.learning.divergence import Divergence
from asyncrl.options import option_values
from asyncrl.policies.load import load as load_policy
from asyncrl.policies.portable_policy import PolicyOrigin
from asyncrl.run.saving import CheckpointSaver
from asyncrl.show.metrics import EvaluationResult, flat
from asyncrl.show.writers import CsvWriter, JsonlWriter, RunWriters
from asyncrl.storage import disk_space
from asyncrl.storage.checkpoint import CheckpointFolder, CheckpointMeta, load, read_policy, save
from asyncrl.storage.disk_space import state_bytes, warn_of_little_space
from asyncrl.storage.run_directory import RunDirectory

SPEC = EnvSpec("CartPole-v1", (4,), "float32", DiscreteAction(2))
ALGORITHM = DQN(hidden_sizes=(8,))
WEIGHT_COUNT = ALGORITHM.make_policy(SPEC).weight_count


def meta(**changes: Any) -> CheckpointMeta:
    values = {"env": "CartPole-v1", "algo": "dqn", "spec": SPEC, "options": option_values(ALGORITHM)}
    return CheckpointMeta(**{**values, **changes})


def refused(path: Path, reader: Callable[[Path], object] = load) -> errors.CheckpointError:
    with pytest.raises(errors.CheckpointError) as raised:
        reader(path)
    text = str(raised.value)
    assert text.startswith("[ASYNC019] ")
    assert str(path) in text
    assert len(text.splitlines()) <= 4
    assert len(text) < 900
    assert raised.value.__cause__ is None or isinstance(raised.value.__cause__, OSError)
    return raised.value


# --- checkpoints that somebody else wrote -------------------------------------------------------------------------


def good(path: Path) -> bytes:
    """Write a good checkpoint; returns its bytes."""
    save(path, {"weights": np.zeros(WEIGHT_COUNT, np.float32), "core": {"step": 3}}, meta())
    return path.read_bytes()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: r.pop("env"), "'env'"),
        (lambda r: r.pop("spec"), "spec must be an object, got NoneType"),
        (lambda r: r["spec"].pop("action"), "spec.action must be an object, got NoneType"),
        (lambda r: r["spec"]["action"].pop("kind"), "spec.action.kind must be one of discrete"),
        (lambda r: r["spec"]["action"].update(kind=["discrete"]), "spec.action.kind must be one of discrete"),
        (lambda r: r["spec"].update(action=[1]), "spec.action must be an object, got list"),
        (lambda r: r.update(moon_phase=3), "CheckpointMeta has no moon_phase"),
        (lambda r: r["spec"].update(frames=3), "EnvSpec has no frames"),
        (lambda r: r.update(seed="three"), "CheckpointMeta.seed: Expected `int`, got `str`"),
        (lambda r: r["spec"].update(observation_shape="4"), "EnvSpec.observation_shape: Expected `array`"),
        (lambda r: r["spec"].update(observation_dtype="object"), "observation_dtype must be of numbers"),
        (lambda r: r["spec"].update(observation_dtype="floot"), "floot"),
        (lambda r: r.update(options=[1]), "CheckpointMeta.options: Expected `object`, got `array`"),
    ],
)
def test_a_foreign_header_is_named(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    path = tmp_path / "latest"
    good(path)
    with_header(path, lambda header: change(header["meta"]) and None)
    error = refused(path)
    assert says in error.what
    assert error.facts["failed check"] == "header"


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("env=CartPole", "header"),
        ("[1]", "header"),
        ('{"state": [], "meta": [1]}', "the header must be an object, got list"),
        ('{"state": 3, "meta": {}}', "header"),
        ("[" * 200_000, "nested too deep"),
        ("1" * 10_000, "header"),
    ],
)
def test_a_header_that_is_no_json_object_is_named(tmp_path: Path, header: str, says: str) -> None:
    path = tmp_path / "latest"
    good(path)
    with_header(path, lambda _: header)
    assert says in refused(path).what


def test_a_state_that_is_none_is_named_in_a_few_words(tmp_path: Path) -> None:
    path = tmp_path / "latest"
    for tree, says in (
        (["list", 1, 2], "it holds a list, not a dict"),
        ([], "its tree is not in order"),
        (["eval", "1"], "its tree is not in order"),
        ([["dict"]], "state"),
        (["dict", ["core"]], "state"),
        (["dict", 3], "state"),
        (["dict", [1.5, 2]], "its tree is not in order"),
        ("[" * 600 + "]" * 600, "unhashable"),
        ('["list",' * 900 + "1" + "]" * 900, "nested too deep"),
        (["dict", ["core", ["list"] + [0] * 200_000]], "more than 100,000 values"),
        (["dict", ["weights", ["array", "1"]]], "it lacks '1'"),
        (["dict", ["a", ["array", "0"]], ["b", ["array", "0"]]], "it lacks '0'"),
        (["dict", ["a", ["bytes", "0"]]], "array 0 is float32"),
        (["dict", ["a", ["bfloat16", "0"]]], "array 0 is float32"),
    ):
        good(path)
        written = json.loads(tree) if isinstance(tree, str) else tree
        with_header(path, lambda header, written=written: header.update(state=written))  # type: ignore[misc]
        error = refused(path)
        assert says in error.what
        assert error.facts["failed check"] == "state"


def test_a_pickle_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    mark, path = tmp_path / "executed", tmp_path / "latest"

    class Malicious:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(mark),)

    torch.save({"core": Malicious()}, path)
    assert refused(path).facts["failed check"] == "header"
    path.write_bytes(pickle.dumps({"core": Malicious()}) + bytes(200))
    assert refused(path).facts["failed check"] == "header"
    assert not mark.exists()


def test_what_is_no_file_or_says_another_size_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "latest"
    good(path)
    os.truncate(path, 1 << 42)  # sparse: a reader that allocates first would fail in another way
    assert refused(path).facts["failed check"] == "length"
    os.mkfifo(tmp_path / "pipe")
    assert "it is not a file" in refused(tmp_path / "pipe").what
    assert "Is a directory" in refused(tmp_path).what or "not a file" in refused(tmp_path).what
    path.write_text(
        "import gymnasium, and further lines of a program, more of them than the header of a policy has\n" * 9
    )
    assert refused(path).what.endswith("it is not a file that asyncrl wrote")
    good(path)
    with_header(path, lambda header: header.update(more=" " * (33 << 20)))
    assert "at most 33554432 are read" in refused(path).what


def test_mutated_headers_and_arrays_are_refused_or_read(tmp_path: Path) -> None:
    path, rng = tmp_path / "latest", random.Random(1)
    table, arrays = split(good(path))
    header = table["__metadata__"]["header"].encode()
    outcomes = {"refused": 0, "read": 0}
    for i in range(400):
        pair = [bytearray(header), bytearray(arrays)]
        mutated = pair[i % 2]
        for _ in range(rng.randint(1, 4)):
            mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        table["__metadata__"]["header"] = pair[0].decode(errors="replace")
        path.write_bytes(sealed(joined(table, bytes(pair[1]))))
        try:
            load_policy(path)
            outcomes["read"] += 1
        except errors.CheckpointError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 10


def test_a_damaged_checkpoint_offers_the_one_before_it(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for steps in (100, 200):
        folder.save({"weights": np.zeros(3, np.float32)}, meta(env_steps=steps))
    damaged = (tmp_path / "200").read_bytes()[:-1]
    (tmp_path / "200").write_bytes(damaged)
    assert refused(tmp_path / "latest").fix == f"use the one before it, {tmp_path / '100'}"


def test_only_a_checkpoint_that_is_whole_is_offered(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for steps in (100, 200, 300):
        folder.save({"weights": np.zeros(3, np.float32)}, meta(env_steps=steps))
    for name in ("300", "200"):
        data = bytearray((tmp_path / name).read_bytes())
        data[-1] ^= 1
        (tmp_path / name).write_bytes(data)
    assert refused(tmp_path / "latest").fix == f"use the one before it, {tmp_path / '100'}"
    (tmp_path / "100").write_bytes(b"")
    assert refused(tmp_path / "latest").fix == "choose another checkpoint of the run"


def test_as_many_checkpoints_are_kept_as_the_run_is_told(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path, checkpoints_kept=2)
    folder = directory.checkpoints
    assert folder is not None
    for steps in (100, 200, 300):
        folder.save({"weights": np.zeros(3, np.float32)}, meta(env_steps=steps), best=steps == 100)
    assert folder.steps() == [200, 300]
    assert load(tmp_path / "checkpoints" / "best")[1].env_steps == 100
    directory.close()
    with pytest.raises(ValueError, match="checkpoints_kept must be at least 1, got 0"):
        TrainerConfig(env="CartPole-v1", algo="dqn", checkpoints_kept=0)


def test_too_little_space_for_the_checkpoints_is_said_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = ALGORITHM.make_updater(SPEC, "cpu", 0)
    state = core.state_dict()
    save(tmp_path / "file", {"core": state, "weights": np.zeros(WEIGHT_COUNT, np.float32)}, meta())
    written = (tmp_path / "file").stat().st_size
    estimated = state_bytes(state) + 4 * WEIGHT_COUNT + 16_384
    assert written <= estimated <= written + 16_384

    def free(number: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=number))

    free(5 * estimated)
    warn_of_little_space(tmp_path, 3, state, WEIGHT_COUNT)
    free(5 * estimated - 1)
    with pytest.warns(errors.LittleDiskSpace, match=r"ASYNC044.*5 files.*lower checkpoints_kept"):
        warn_of_little_space(tmp_path, 3, state, WEIGHT_COUNT)


class UnusedServer:
    def start(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("weights", "options", "says"),
    [
        (WEIGHT_COUNT + 5, {}, f"a policy of {WEIGHT_COUNT:,} weights, it holds {WEIGHT_COUNT + 5:,}"),
        (WEIGHT_COUNT - 5, {}, f"it holds {WEIGHT_COUNT - 5:,}"),
        (WEIGHT_COUNT, {"learnin_rate": 1.0}, "learnin_rate"),
        (WEIGHT_COUNT, {"hidden_sizes": [10**9, 10**9]}, "does not fit"),
        (WEIGHT_COUNT, {"hidden_sizes": "wide"}, "hidden_sizes"),
    ],
)
def test_weights_that_do_not_fit_their_options_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: int, options: dict[str, Any], says: str
) -> None:
    class Plays:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        async def evaluate(self, weights: Any, episodes: int) -> Any:
            return np.ones(episodes), np.ones(episodes, np.int64)

        async def close(self) -> None: ...

    monkeypatch.setattr("asyncrl.actors.evaluator.RemoteEvaluator", Plays)
    path = tmp_path / "latest"
    told = {**option_values(ALGORITHM), **options}
    save(path, {"weights": np.zeros(weights, np.float32)}, meta(options=told))
    play = EvalOptions(run=str(path), episodes=1)
    error = refused(path, lambda _: eval_command.run(play, UnusedServer()))  # type: ignore[arg-type]
    assert says in error.what


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "latest", {"weights": np.full(WEIGHT_COUNT, np.nan, np.float32)}, meta())
    assert "NaN or infinite" in refused(tmp_path / "latest", read_policy).what


# --- directories --------------------------------------------------------------------------------------------------


def test_a_directory_with_a_checkpoint_and_no_metrics_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest").write_bytes(b"hours of work")
    with pytest.raises(errors.ConfigurationError, match="holds a run: checkpoints/latest"):
        RunDirectory(tmp_path)
    (tmp_path / "checkpoints" / "latest").unlink()
    RunDirectory(tmp_path).close()


def test_a_folder_of_runs_is_not_made_a_run_which_would_hide_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        RunDirectory(tmp_path / name).close()
        (tmp_path / name / "config.toml").touch()
    with pytest.raises(errors.ConfigurationError, match="is a folder of runs: a and 1 more") as refused:
        RunDirectory(tmp_path)
    assert f"such as {tmp_path}/NAME" in str(refused.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"], "nothing is left in it"
    RunDirectory(tmp_path, goes_on=True).close()  # it may have been made a run earlier


def test_two_runs_in_one_directory_are_refused_and_the_holder_is_named(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path)
    with pytest.raises(
        errors.ConfigurationError, match=f"in use by a run that goes on: pid {os.getpid()} on"
    ):
        RunDirectory(tmp_path)
    first.close()
    RunDirectory(tmp_path).close()


@pytest.mark.parametrize("before", ["", "pid 4194305 on {node}"])
def test_the_holder_is_named_although_it_has_only_just_taken_the_lock(tmp_path: Path, before: str) -> None:
    RunDirectory(tmp_path).close()
    lock = tmp_path / ".lock"
    lock.write_text(before.format(node=platform.node()))
    with lock.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        me = f"pid {os.getpid()} on {platform.node()}"
        telling = threading.Timer(0.2, lambda: lock.write_text(me))
        telling.start()
        with pytest.raises(errors.ConfigurationError, match=f"a run that goes on: {me}"):
            RunDirectory(tmp_path)
        telling.join()


def test_a_lock_is_not_opened_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("not a lock")
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").symlink_to(precious)
    with pytest.raises(errors.ConfigurationError, match=r"(?s)symbolic links.*\.lock"):
        RunDirectory(run)
    assert precious.read_text() == "not a lock"


def test_a_forked_child_of_the_caller_does_not_keep_the_lock(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    reader, writer = os.pipe()
    here, there = os.pipe()
    child = os.fork()
    if child == 0:  # it lives until the pipe is closed
        os.close(writer)
        os.write(there, b"runs")
        os.read(reader, 1)
        os._exit(0)
    try:
        assert os.read(here, 4) == b"runs"
        directory.close()
        RunDirectory(tmp_path / "run").close()
    finally:
        os.close(writer)
        os.waitpid(child, 0)
        for descriptor in (reader, here, there):
            os.close(descriptor)


def test_of_runs_that_start_together_one_holds_the_directory(tmp_path: Path) -> None:
    code = (
        "import sys; from asyncrl.storage.run_directory import RunDirectory; sys.stdin.read(1)\n"
        "try: RunDirectory(sys.argv[1]); print('holds', flush=True)\n"
        "except Exception as error: print(error, flush=True)\n"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    runs = [subprocess.Popen(command, **pipes) for _ in range(3)]
    for run in runs:
        run.stdin.write(".")
        run.stdin.flush()
    said = [run.stdout.readline() for run in runs]
    for run in runs:
        run.communicate(timeout=PATIENCE_SECONDS)
    (holder,) = [run for run, line in zip(runs, said, strict=True) if line == "holds\n"]
    refusals = [line for line in said if line != "holds\n"]
    assert all(f"in use by a run that goes on: pid {holder.pid} on" in line for line in refusals), said


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RunDirectory(tmp_path)
    directory.write_json("summary.json", {"loss": float("nan"), "max": [float("inf"), 1.0]})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"loss": None, "max": [None, 1.0]}

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            directory.write_json("summary.json", {})
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == [".lock"]
    directory.close()


# --- metrics ------------------------------------------------------------------------------------------------------


def test_a_report_that_cannot_be_written_is_missing_and_the_others_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = RunWriters(tmp_path)
    files = [tmp_path / "metrics.jsonl", tmp_path / "progress.csv"]
    writers.write(make_snapshot(env_steps=1))
    before = [file.read_bytes() for file in files]
    write = os.write

    def half(descriptor: int, data: bytes) -> int:
        return write(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.warns(
        errors.FilesNotWritten, match=r"ASYNC040.*No space left on device.*training goes on"
    ) as warned:
        writers.write(make_snapshot(env_steps=2))
        writers.write(make_snapshot(env_steps=3))
    assert len(warned) == 1
    assert [file.read_bytes() for file in files] == before
    monkeypatch.undo()
    writers.write(make_snapshot(env_steps=4))
    lines = [json.loads(line)["time/total_timesteps"] for line in files[0].read_text().splitlines()]
    assert lines == [1, 4]
    assert len(files[1].read_text().splitlines()) == 3
    writers.close()


@pytest.mark.parametrize("writer", [JsonlWriter, CsvWriter])
def test_a_file_that_vanishes_is_made_again(tmp_path: Path, writer: Any) -> None:
    path = tmp_path / "run" / "numbers"
    path.parent.mkdir()
    writing = writer(path)
    writing.write(flat(make_snapshot()), 1)
    first = path.read_bytes()
    path.unlink()
    path.parent.rmdir()
    writing.write(flat(make_snapshot()), 1)
    assert path.read_bytes() == first
    writing.close()


def test_tensorboard_goes_on_after_a_write_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    writers = RunWriters(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda *_: 0)
        with pytest.warns(errors.FilesNotWritten):
            writers.write(make_snapshot(env_steps=1))
    writers.write(make_snapshot(env_steps=2))
    writers.close()
    (file,) = (tmp_path / "tb").iterdir()
    assert {event.step for event in EventFileLoader(str(file)).Load() if event.summary.value} == {2}


# --- checkpoints that cannot be written ---------------------------------------------------------------------------


class EmptySaver(CheckpointSaver):
    """Saver of a run whose state is empty."""

    async def _take(self, *, rows: bool) -> dict[str, Any]:
        counters = {"loop": {"inserted_steps": self._learner.inserted_steps}}
        return {
            "core": {},
            "critics": None,
            "run": {"learner": {**counters, "publisher": {"updates": self._learner.updates}}},
        }


class FakeLearner:
    inserted_steps, updates, policy_version, reward_scale = 0, 5, 1, 0.5

    async def current_weights(self) -> Any:
        return np.zeros(3, np.float32), 1


def saver(
    directory: RunDirectory,
    learner: Any,
    schedule: Any = None,
    on_saved: Callable[[str], None] = lambda _: None,
) -> CheckpointSaver:
    from asyncrl.learning.clock import TrainClock

    config = TrainerConfig(env="CartPole-v1", algo="dqn")
    run: Any = SimpleNamespace(
        config=config,
        origin=PolicyOrigin(ALGORITHM, EnvSource.from_user("CartPole-v1"), meta()),
        directory=directory,
        clock=TrainClock(),
        learner=learner,
        schedule=schedule or SimpleNamespace(evaluations=(), best=None, best_weights=None),
        reporter=SimpleNamespace(episodes=SimpleNamespace(count=0)),
        env_kwargs=SimpleNamespace(state=lambda: {"number": 0}),
        callbacks=SimpleNamespace(checkpoint=on_saved),
    )
    return EmptySaver(run)


def test_a_checkpoint_that_fails_is_told_once_and_the_best_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, learner = RunDirectory(tmp_path), FakeLearner()
    folder = tmp_path / "checkpoints"
    best = np.ones(3, np.float32)

    async def main() -> None:
        saving = saver(directory, learner)
        assert await saving.save_latest()
        learner.inserted_steps = 10
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.warns(errors.FilesNotWritten, match=r"ASYNC040.*No space left") as warned:
                await saving.save_best(EvaluationResult(9.0, 0.0, 1.0, 1, 1, 10, 1.0), best)
                assert await saving.save_latest() == ""
                with pytest.raises(errors.ResourceError, match=r"cannot be written: .*No space left"):
                    await saving.save_on_request()
            assert len(warned) == 1
        assert load(folder / "latest")[1].env_steps == 0
        assert not (folder / "best").exists()
        learner.inserted_steps = 20
        assert await saving.save_latest() == str(folder / "20")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    asyncio.run(main())
    assert (read_policy(folder / "best").weights == best).all()
    assert load(folder / "best")[1].env_steps == 10
    assert load(folder / "latest")[1].env_steps == 20
    directory.close()


def test_a_header_has_the_counters_of_its_state_although_the_learner_has_gone_on(tmp_path: Path) -> None:
    class GoingOn(FakeLearner):
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name == "updates":
                self.inserted_steps, self.updates = self.inserted_steps + 8, value + 1
            return value

    async def main() -> None:
        path = Path(await saver(directory, GoingOn()).save_latest())
        state, header = load(path)
        loop, publisher = (state["run"]["learner"][name] for name in ("loop", "publisher"))
        assert (header.env_steps, header.updates) == (loop["inserted_steps"], publisher["updates"])
        assert path.name == str(header.env_steps)
        assert header.reward_scale == 0.5

    directory = RunDirectory(tmp_path)
    asyncio.run(main())
    directory.close()


def test_a_state_is_written_once_unless_its_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The callbacks are told once of a path and its weights."""
    directory, learner = RunDirectory(tmp_path), FakeLearner()
    saved: list[Path] = []
    told: list[str] = []
    write = CheckpointFolder.save

    def counted(self: CheckpointFolder, *args: Any, **options: Any) -> Path:
        saved.append(write(self, *args, **options))
        return saved[-1]

    monkeypatch.setattr(CheckpointFolder, "save", counted)

    async def main() -> None:
        schedule = SimpleNamespace(evaluations=(), best=None, best_weights=None)
        saving = saver(directory, learner, schedule, told.append)
        path = await saving.save_latest()
        assert await saving.save_latest() == path == await saving.save_on_request()
        assert len(saved) == 1
        await saving.save_latest(np.ones(3, np.float32))  # other weights act
        assert len(saved) == 2
        Path(path).unlink()
        await saving.save_latest(np.ones(3, np.float32))
        assert len(saved) == 3
        assert Path(path).exists()
        schedule.evaluations = (1,)
        await saving.save_latest(np.ones(3, np.float32))
        learner.updates += 1
        await saving.save_latest(np.ones(3, np.float32))
        assert len(saved) == 5
        assert len(told) == 2

    asyncio.run(main())
    directory.close()


def test_a_limit_of_file_sizes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    assert disk_space.reason_of(error) == "[Errno 27] File too large"
    monkeypatch.setattr(disk_space, "file_size_limit", lambda: 4096)
    assert disk_space.reason_of(error).endswith("; `ulimit -f` allows files of 4,096 bytes")
    assert "ulimit" not in disk_space.reason_of(OSError(errno.ENOSPC, "full"))


def test_a_plan_beyond_the_limit_of_file_sizes_is_an_error_that_names_it(tmp_path: Path) -> None:
    """A run whose actor dies then ends with this error, and not with one of the supervision."""
    script = """
        import resource
        from asyncrl.actors import forkserver
        from asyncrl.errors import ResourceError
        from asyncrl.shm.unnamed_file import unnamed_file

        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        file = unnamed_file("payload")
        try:
            forkserver._write(file, bytes(1000), "actor")
        except ResourceError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert "`ulimit -f` allows 100 bytes" in done.stdout, done.stderr


def test_a_checkpoint_that_fails_at_any_call_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CheckpointFolder(tmp_path, keep=1)
    names = ("open", "fsync", "replace", "link", "unlink", "close")
    calls = 0

    def counting(function: Callable[..., Any], fails_at: int) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == fails_at:
                raise OSError(5, "Input/output error")
            return function(*arguments, **options)

        return call

    def state(steps: int) -> dict[str, Any]:
        return {"weights": np.full(2_000, steps, np.float32)}

    folder.save(state(0), meta(env_steps=0), best=True)
    failed = step = 0
    while not failed or failed == step:  # until one save meets no failure
        step += 1
        calls = 0
        with monkeypatch.context() as patched:
            for name in names:
                patched.setattr(os, name, counting(getattr(os, name), step))
            try:
                folder.save(state(step), meta(env_steps=step), best=True)
            except OSError:
                failed += 1
            if calls < step:
                break
        for name in ("latest", "best"):
            read = read_policy(tmp_path / name)
            assert (read.weights == read.meta.env_steps).all()
    assert failed >= 6
    folder.save(state(step), meta(env_steps=step), best=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["latest", "best", str(step)])


def test_a_save_that_is_cancelled_ends_before_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a run cancels the periodic save and saves again: two threads in one folder would spoil their files."""
    directory, learner = RunDirectory(tmp_path), FakeLearner()
    entered, released, log = threading.Event(), threading.Event(), []
    write = CheckpointFolder.save

    def slow(self: CheckpointFolder, state: Any, meta: CheckpointMeta, **options: Any) -> Path:
        log.append(f"begin {meta.env_steps}")
        entered.set()
        assert released.wait(PATIENCE_SECONDS)
        path = write(self, state, meta, **options)
        log.append(f"end {meta.env_steps}")
        return path

    monkeypatch.setattr(CheckpointFolder, "save", slow)

    async def main() -> None:
        saving = saver(directory, learner)
        periodic = asyncio.create_task(saving.save_latest())
        await asyncio.to_thread(entered.wait, 10)
        periodic.cancel()
        await asyncio.wait({periodic})
        learner.inserted_steps = 10
        last = asyncio.create_task(saving.save_latest())
        for _ in range(5):
            await asyncio.sleep(0)
        released.set()
        await last

    asyncio.run(main())
    assert log == ["begin 0", "end 0", "begin 10", "end 10"]
    assert load(tmp_path / "checkpoints" / "latest")[1].env_steps == 10
    directory.close()


# --- what errors say ----------------------------------------------------------------------------------------------


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class RaisesUnspeakable(SimpleEnv):
    def step(self, action: Any) -> Any:
        raise Unspeakable


def test_an_exception_whose_str_raises_is_named_by_its_type() -> None:
    with pytest.raises(
        errors.EnvironmentRaised, match=r"raised Unspeakable in an evaluation: .*str.* raised Runtime"
    ):
        EpisodePlayer(EnvSource.from_user(RaisesUnspeakable), RandomPolicy()).play(1, 0)


def test_texts_of_errors_are_short_and_drive_no_terminal() -> None:
    error = errors.EnvironmentRaised(
        "\x1b[2J\x1b]0;owned\x07" + "x" * 10_000_000,
        facts={"said": "\x1b[31mred", "bad": Unspeakable()},
        remote_traceback="\x9b31m" + "y" * 10_000_000,
    )
    text = str(error)
    assert str(pickle.loads(pickle.dumps(errors.EnvironmentRaised(error.what)))) == f"[ASYNC002] {error.what}"
    assert len(text) < 30_000
    assert "10,000," in text
    assert "said: \\x1b[31mred" in text
    assert "bad: (a Unspeakable whose text cannot be shown" in text
    assert all(c.isprintable() or c == "\n" for c in text)
    stack = str(errors.ActorKilled("gone", facts={"where": "\nline one\nline two", "pid": 3}))
    assert stack == "[ASYNC003] gone\n  where: \n    line one\n    line two\n  pid: 3"
    assert printable("naïve 機械\ttab\nline") == "naïve 機械\ttab\nline"


@pytest.mark.parametrize(
    ("which", "value"),
    [
        *((1, value) for value in (None, "1.5", np.str_("1.5"), b"1.5", 1j, np.timedelta64(5, "s"))),
        *((2, value) for value in (None, float("nan"), "False", np.str_("False"), 1j)),
        *((3, value) for value in (None, np.float32("nan"), b"no")),
    ],
)
def test_what_is_no_real_number_is_no_reward_and_no_end(which: int, value: Any) -> None:
    class Wrong(CountingEnv):
        def step(self, action: Any) -> Any:
            returned = [*super().step(action)]
            returned[which] = value
            return tuple(returned)

    env = Wrong()
    streams = PlainStreams([env], spec_of("wrong", env))
    obs = np.zeros((1, 4), np.float32)
    streams.reset([0], obs)
    what = ("", "reward; it must return a number", "terminated; it must return a bool")[min(which, 2)]
    says = f"(?s)step returned .* as {what.replace('terminated', 'truncated') if which == 3 else what} there"
    with pytest.raises(errors.OldGymAPI, match=says):
        streams.step(np.zeros(1, np.int64), obs, np.zeros(1))
    with pytest.raises(errors.OldGymAPI, match=says):
        EpisodePlayer(EnvSource.from_user(Wrong), RandomPolicy()).play(1, 0)


@pytest.mark.parametrize("read", [load, read_policy, load_policy])
def test_a_path_with_a_nul_is_refused_as_every_other_that_cannot_be_read(read: Any) -> None:
    with pytest.raises(errors.CheckpointError, match=r"(?s)ASYNC019.*the path has a NUL.*file: a\\x00b"):
        read(Path("a\0b"))


def test_a_run_directory_with_a_nul_is_refused() -> None:
    with pytest.raises(errors.ConfigurationError, match="run_dir must be a path without a NUL"):
        RunDirectory("a\0b")


def test_a_batch_that_cannot_be_saved_does_not_hide_the_divergence(tmp_path: Path) -> None:
    divergence = Divergence(lambda: tmp_path / "gone", lambda: {"obs": np.zeros(2)})
    with pytest.raises(errors.TrainingDiverged) as raised:
        divergence.check(float("nan"), 3)
    assert raised.value.facts["last finite loss"] == "none was reported"
    assert "not saved (FileNotFoundError" in str(raised.value.facts["batch saved"])


# --- episodes without an end --------------------------------------------------------------------------------------


def test_an_episode_without_an_end_is_ended_at_the_limit_of_steps() -> None:
    player = EpisodePlayer(EnvSource.from_user(SimpleEnv), RandomPolicy(), max_envs=2)
    returns, lengths = player.play(3, 0, max_steps=11)
    assert (returns.tolist(), lengths.tolist(), player.cut_episodes) == ([11.0] * 3, [11] * 3, 3)


def test_episodes_are_ended_as_they_stand_when_the_time_is_over() -> None:
    player = EpisodePlayer(EnvSource.from_user(SimpleEnv), RandomPolicy(), max_envs=2)
    returns, lengths = player.play(5, 0, max_seconds=0.05)
    assert len(returns) == player.cut_episodes == 2
    assert (lengths >= 1).all()


@pytest.mark.parametrize("limits", [{"max_steps": 7}, {"max_steps": 10**9, "max_seconds": 0.05}])
def test_a_vector_without_ends_is_ended_too(limits: dict[str, Any]) -> None:
    import gymnasium

    mode = gymnasium.vector.AutoresetMode.NEXT_STEP
    vector = gymnasium.vector.SyncVectorEnv([SimpleEnv, SimpleEnv], autoreset_mode=mode)
    player = EpisodePlayer(EnvSource.from_user(lambda: vector), RandomPolicy())
    _, lengths = player.play(4, 0, **limits)
    if "max_seconds" in limits:
        assert len(lengths) == player.cut_episodes == 2
    else:
        assert (lengths.tolist(), player.cut_episodes) == ([7] * 4, 4)
