"""Pictures, videos, policies and models: on a full disk only the new file is lost, and no incomplete file remains."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from waiting import PATIENCE_SECONDS

from asyncrl import DQN, errors
from asyncrl.cli.main import main
from asyncrl.envs.source import EnvSource
from asyncrl.envs.video import VideoWriter
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.options import option_values
from asyncrl.policies.portable_policy import PortablePolicy
from asyncrl.show.curves import Curve
from asyncrl.show.picture import write_picture
from asyncrl.storage.checkpoint_meta import CheckpointMeta


def policy_file(path: Path, env: Any) -> Path:
    source, algorithm = EnvSource.from_user(env), DQN(hidden_sizes=(8,))
    spec = EnvSpec(source.name, (4,), "float32", DiscreteAction(2))
    meta = CheckpointMeta(env=source.name, algo="dqn", spec=spec, options=option_values(algorithm))
    weights = np.zeros(algorithm.make_policy(spec).weight_count, np.float32)
    return PortablePolicy(algorithm, weights, meta, source).save(path)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return policy_file(tmp_path / "x.policy", "CartPole-v1")


@pytest.fixture
def full_disk(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make fsync of every file fail as on a full disk, after its bytes are written."""

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)


@pytest.fixture
def older(tmp_path: Path) -> Iterator[Path]:
    """File that is to be replaced; at the end it must be unchanged and the only file."""
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "file.png"
    path.write_text("older")
    yield path
    assert path.read_text() == "older"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("what", ["policy", "onnx"])
@pytest.mark.usefixtures("full_disk")
def test_an_export_that_finds_the_disk_full_says_so(
    what: str, older: Path, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")
    assert main(["export", str(policy), f"--{what}", str(older)]) == 4
    said = capsys.readouterr().err
    assert "the policy cannot be written: No space left on device" in said
    assert str(older) in said
    assert main(["export", str(policy), f"--{what}", str(older / "below" / "file")]) == 1
    assert "cannot be written: Not a directory" in capsys.readouterr().err


@pytest.mark.usefixtures("full_disk")
def test_a_picture_that_finds_the_disk_full_says_so(older: Path) -> None:
    pytest.importorskip("matplotlib")
    line = np.arange(3.0)
    with pytest.raises(errors.ResourceError, match="the picture cannot be written: No space left"):
        write_picture(older, [Curve("X-v1", "dqn", "", line, line, line, line, line)], "return", "steps")


def test_a_video_that_finds_the_disk_full_leaves_the_older_one(
    older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    imageio_ffmpeg.get_ffmpeg_exe()
    popen = subprocess.Popen

    def small_files(command: list[str], **options: Any) -> Any:
        limit = (4096, 4096)
        return popen(command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit), **options)

    monkeypatch.setattr(subprocess, "Popen", small_files)
    noise = np.random.default_rng(0)
    with (
        pytest.raises(errors.ResourceError, match="the video cannot be written"),
        VideoWriter(older.with_suffix(".mp4"), 30.0) as writer,
    ):
        for _ in range(30):
            writer.write(noise.integers(0, 255, (200, 300, 3), np.uint8))
    (left,) = older.parent.iterdir()
    assert left.name == "file.png"


@pytest.mark.parametrize("lack", ["space", "limit"])
def test_a_dataset_that_finds_the_disk_full_keeps_what_was_written(
    lack: str,
    policy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """HDF5 itself crashes the process."""
    minari = pytest.importorskip("minari")
    free, looked = shutil.disk_usage, []

    def usage(path: Path) -> Any:
        looked.append(path)
        return free(path)._replace(free=10_000) if lack == "space" and len(looked) > 1 else free(path)

    def limit() -> int | None:
        return 100_000 if lack == "limit" and len(looked) > 1 else None

    monkeypatch.setattr("asyncrl.storage.dataset.FLUSH_STEPS", 300)
    monkeypatch.setattr("asyncrl.storage.dataset.file_size_limit", limit)
    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert main(["record", str(policy), "--steps", "2000", "--out", str(tmp_path / "data-v0")]) == 4
    said = capsys.readouterr().err
    words = {"space": "No space left on device", "limit": "File too large"}[lack]
    assert f"the dataset cannot be written: {words}" in said
    found = minari.MinariDataset(tmp_path / "data-v0" / "data")
    assert found.total_steps >= 300
    assert f"written: {found.total_steps:,} steps, {found.total_episodes:,} episodes" in said


def test_a_full_standard_output_is_said_in_one_line() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    command = [sys.executable, "-m", "asyncrl", "presets"]
    full: IO[str]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS
        )
    assert done.returncode == 4
    assert done.stderr == "the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("interval", [10.0, 1e-3], ids=["closing-lines", "progress"])
def test_a_run_whose_output_is_full_trains_and_does_not_end_as_if_all_were_well(
    interval: float, tmp_path: Path
) -> None:
    """It ended with code 0 and without a word, whether the progress or the closing lines were lost first."""
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    script = f"""
        import sys
        from asyncrl.cli import entry
        from asyncrl.show import console

        console.LINE_SECONDS = {interval}
        if {interval} > 1:
            console.is_worth_showing = lambda snapshot: False
        sys.exit(entry.main())
    """
    command = ["train", "CartPole-v1", "--algo", "dqn", "--steps", "300", "--http", "off", "--actors", "1"]
    command += ["--target-eval-episodes", "2", "--run-dir", str(tmp_path / "run")]
    full: IO[str]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
    assert (done.returncode, done.stderr) == (4, "the output cannot be written: No space left on device\n")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["state"] == "finished"


@pytest.mark.parametrize(("code", "exits"), [(errno.ENOSPC, 4), (errno.EACCES, 1)])
def test_a_directory_of_a_run_that_cannot_be_made(
    code: int, exits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk is a lack of a resource, a folder without permission a wrong path."""

    def refused(self: Path, *_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), str(self))

    monkeypatch.setattr(Path, "mkdir", refused)
    options = ["--algo", "dqn", "--steps", "100", "--actors", "1"]
    assert main(["train", "CartPole-v1", "--run-dir", str(tmp_path / "run"), *options]) == exits
    assert f"run_dir cannot be written: {os.strerror(code)}" in capsys.readouterr().err
