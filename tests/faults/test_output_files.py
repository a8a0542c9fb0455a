"""Pictures, videos, policies and models: on a full disk only the new file is lost, and no incomplete file remains."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import gymnasium
import numpy as np
import pytest
from waiting import PATIENCE_SECONDS

from asyncrl import DQN, errors
from asyncrl.cli.call_limit import CallLimit
from asyncrl.cli.main import main
from asyncrl.envs.source import EnvSource
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.options import option_values
from asyncrl.policies.portable_policy import PortablePolicy
from asyncrl.show.curves import Curve
from asyncrl.show.picture import write_picture
from asyncrl.show.video import VideoWriter
from asyncrl.storage.checkpoint_meta import CheckpointMeta


class HangingPicture(gymnasium.Env[Any, Any]):
    """Environment with episodes of nine steps, of which the third is never rendered."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(4, np.float32), 1.0, self.steps == 9, False, {}

    def render(self) -> Any:
        if self.steps == 3:
            signal.pause()
        return np.zeros((32, 48, 3), np.uint8)


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
    assert main(["export", str(policy), f"--{what}", str(older.parent / "no" / "file")]) == 1
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


@pytest.mark.usefixtures("full_disk")
def test_a_picture_that_finds_the_disk_full_says_so(older: Path) -> None:
    pytest.importorskip("matplotlib")
    line = np.arange(3.0)
    with pytest.raises(errors.ResourceError, match="the picture cannot be written: No space left"):
        write_picture(older, [Curve("dqn", line, line, line, line, 1)], "title", "steps", "return")


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


def test_an_environment_whose_render_hangs_ends_enjoy_and_leaves_no_half_video(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    policy = policy_file(tmp_path / "x.policy", "test_output_files:HangingPicture")
    videos = tmp_path / "videos"
    videos.mkdir()
    command = [sys.executable, "-m", "asyncrl", "enjoy", str(policy), "--video", str(videos / "out.mp4")]
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [*command, "--step-timeout-seconds", "2"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("[ASYNC015]")
    assert "did not return from render within 2 s" in done.stderr
    assert "signal.pause()" in done.stderr
    assert list(videos.iterdir()) == []


def test_calls_that_return_have_no_limit_together() -> None:
    hung: list[int] = []
    with CallLimit(0.3, "env", lambda: hung.append(1)) as limit:
        deadline = [0] * 8
        for _ in deadline:
            assert limit.ask("step", signal.sigtimedwait, [], 0.1) is None
    assert not hung


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
