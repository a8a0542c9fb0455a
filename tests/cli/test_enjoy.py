"""`asyncrl enjoy`: a window, a video, and clear errors if neither is possible."""

from __future__ import annotations

import errno
import functools
import importlib.util
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from waiting import PATIENCE_SECONDS

from asyncrl import DQN, PPO, errors, load
from asyncrl.cli import enjoy
from asyncrl.cli.enjoy import EnjoyOptions
from asyncrl.cli.main import COMMANDS, main
from asyncrl.envs.source import EnvSource
from asyncrl.envs.video import VideoWriter, as_pixels, require_video
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.options import option_values
from asyncrl.policies.portable_policy import PortablePolicy
from asyncrl.storage.checkpoint_meta import CheckpointMeta

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")


class Coloured(gymnasium.Env[Any, Any]):
    """Environment of five steps whose picture has the step as red channel."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    fails = ""

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.fails == "step":
            raise RuntimeError("the rope broke")
        return np.full(4, np.nan if self.fails == "NaN" else 0, np.float32), 2.0, self.steps == 5, False, {}

    def render(self) -> Any:
        picture = np.zeros((131, 148, 3), np.uint8)
        picture[..., 0] = 40 * self.steps
        return None if self.fails == "render" else picture


def save(path: Path, env: Any) -> str:
    """Save a policy file of that environment."""
    source = EnvSource.from_user(env)
    spec = EnvSpec(source.name, (4,), "float32", DiscreteAction(2))
    algorithm = DQN(hidden_sizes=(8,))
    meta = CheckpointMeta(env=source.name, algo="dqn", spec=spec, options=option_values(algorithm))
    weights = np.zeros(algorithm.make_policy(spec).weight_count, np.float32)
    return str(PortablePolicy(algorithm, weights, meta, source).save(path))


def frames(path: Path, shape: tuple[int, ...] = (132, 148, 3)) -> tuple[str, Any]:
    """ffmpeg's description of a video, and its frames `[frames, *shape]`."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_SECONDS)
    return done.stderr.decode(), np.frombuffer(done.stdout, np.uint8).reshape(-1, *shape)


@pytest.mark.parametrize("ending", ["mp4", "gif"])
def test_episodes_are_recorded_frame_by_frame(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, video = save(tmp_path / "x.policy", Coloured), tmp_path / f"out.{ending}"
    assert main(["enjoy", file, "--video", str(video), "--episodes", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "policy       dqn on Coloured after 0 steps",
        "episode 1    return 10.0, 5 steps",
        "episode 2    return 10.0, 5 steps",
        f"video        {video}, 12 frames, 1.2 s",
    ]
    head, pictures = frames(video, (131 if ending == "gif" else 132, 148, 3))
    assert "10 fps" in head
    assert len(pictures) == 12
    reds = pictures[:, :131].mean(axis=(1, 2))
    assert np.allclose(reds[:, 0], [40 * step for step in (0, 1, 2, 3, 4, 5) * 2], atol=12)
    assert np.allclose(reds[:, 1:], 0, atol=12)


class PaysAction(Coloured):
    """Environment whose reward is the action."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, float(action), *rest


def test_actions_may_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = EnvSource.from_user(PaysAction)
    spec = EnvSpec(source.name, (4,), "float32", DiscreteAction(2))
    algorithm = PPO(hidden_sizes=(8,))
    meta = CheckpointMeta(env=source.name, algo="ppo", spec=spec, options=option_values(algorithm))
    weights = np.zeros(algorithm.make_policy(spec).weight_count, np.float32)
    file = str(PortablePolicy(algorithm, weights, meta, source).save(tmp_path / "x.policy"))

    def returns(*flags: str) -> list[str]:
        assert main(["enjoy", file, "--video", str(tmp_path / "x.gif"), "--episodes", "4", *flags]) == 0
        return [
            line.split()[3] for line in capsys.readouterr().out.splitlines() if line.startswith("episode")
        ]

    assert returns() == ["0.0,"] * 4
    drawn = returns("--no-deterministic")
    assert drawn == returns("--no-deterministic") and len(set(drawn)) > 1
    assert returns("--no-deterministic", "--seed", "1") != drawn
    assert main(["eval", file, "--episodes", "50", "--json", "--no-deterministic"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert 1.5 < record["return_mean"] < 3.5 and record["deterministic"] is False
    assert main(["eval", file, "--episodes", "5"]) == 0
    assert "over 5 greedy episodes" in capsys.readouterr().out


def test_the_pace_of_a_video_may_be_chosen(tmp_path: Path) -> None:
    video = tmp_path / "out.mp4"
    file = save(tmp_path / "x.policy", Coloured)
    assert main(["enjoy", file, "--video", str(video), "--episodes", "1", "--fps", "25"]) == 0
    assert "25 fps" in frames(video)[0]


def test_a_window_is_the_environments_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    file = save(tmp_path / "x.policy", "CartPole-v1")
    assert main(["enjoy", file, "--episodes", "1"]) == 0
    assert "episode 1    return " in capsys.readouterr().out


def test_a_closed_window_ends_it_in_good_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    file = save(tmp_path / "x.policy", "CartPole-v1")
    looks, real = [], enjoy.window_closed

    def look() -> bool:
        looks.append(real())
        if len(looks) == 4:
            pygame.event.post(pygame.event.Event(pygame.QUIT))
        return looks[-1]

    monkeypatch.setattr(enjoy, "window_closed", look)
    assert main(["enjoy", file, "--episodes", "1"]) == 0
    assert looks == [False] * 4 + [True]
    assert "episode 1" not in capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["enjoy", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_what_cannot_be_shown_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def blind() -> Any:
        return gymnasium.wrappers.TransformObservation(Coloured(), lambda obs: obs, None)

    video = ["--video", str(tmp_path / "out.mp4")]
    err = refusal(capsys, save(tmp_path / "blind", blind), *video)
    assert "blind can render as 'rgb_array', but its factory does not say so" in err
    assert "def make(render_mode=None)" in err
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(Coloured, "metadata", {"render_modes": ["ansi"]})
    err = refusal(capsys, save(tmp_path / "ansi", Coloured))
    assert "Coloured cannot render as 'human'" in err
    assert "its render modes are ansi" in err
    monkeypatch.setattr(Coloured, "metadata", {})
    assert "it has no render modes" in refusal(capsys, save(tmp_path / "none", Coloured), *video)
    vector = save(tmp_path / "vector", lambda: gymnasium.make_vec("CartPole-v1", num_envs=2))
    assert "makes a vector of environments" in refusal(capsys, vector, *video)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    assert f"the folder {tmp_path} may not be written to" in refusal(capsys, str(tmp_path / "vector"), *video)
    assert not (tmp_path / "out.mp4").exists()


def test_a_factory_of_gymnasium_make_is_made_again_with_the_mode(tmp_path: Path) -> None:
    steps = 7
    file = save(tmp_path / "x", lambda: gymnasium.make("CartPole-v1", max_episode_steps=steps))
    env = load(file).make_env("rgb_array")
    assert (env.render_mode, env.spec.max_episode_steps) == ("rgb_array", 7)
    env.reset()
    assert env.render().shape == (400, 600, 3)
    env.close()


def test_pictures_ask_for_no_display_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = load(save(tmp_path / "x", "CartPole-v1"))
    monkeypatch.setattr("sys.platform", "linux")
    for display, driver in (("", "dummy"), (":0", "")):
        for name, value in (("DISPLAY", display), ("WAYLAND_DISPLAY", ""), ("SDL_VIDEODRIVER", "")):
            monkeypatch.setenv(name, value)
        policy.make_env("rgb_array").close()
        assert os.environ["SDL_VIDEODRIVER"] == driver


def test_no_display_no_package_and_a_wrong_name_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save(tmp_path / "x", "CartPole-v1")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert "--video out.mp4" in refusal(capsys, file)
    # A missing run comes before a missing display.
    assert "--video" not in refusal(capsys, str(tmp_path / "missing"))
    assert "must end with one of .mp4" in refusal(capsys, file, "--video", str(tmp_path / "x.avi"))
    assert "there is no folder" in refusal(capsys, file, "--video", str(tmp_path / "no" / "x.mp4"))
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "imageio_ffmpeg" else found(name, *rest),
    )
    assert 'pip install "asyncrl[video]"' in refusal(capsys, file, "--video", str(tmp_path / "x.mp4"))
    monkeypatch.undo()
    require_video(tmp_path / "x.mp4")


@pytest.mark.parametrize("fails", ["step", "render"])
def test_an_environment_that_fails_is_named(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Coloured, "fails", fails)
    file = save(tmp_path / "x", Coloured)
    assert main(["enjoy", file, "--video", str(tmp_path / "x.mp4")]) == 3
    err = capsys.readouterr().err
    said = {
        "step": "RuntimeError in step: the rope broke",
        "render": "frame must be uint8 [height, width, 3]",
    }
    assert err.startswith("[ASYNC002] Coloured raised ")
    assert said[fails] in err


def test_an_observation_that_is_not_finite_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Coloured, "fails", "NaN")
    assert main(["enjoy", save(tmp_path / "x", Coloured), "--video", str(tmp_path / "x.mp4")]) == 3
    assert "[ASYNC011] The environment Coloured gave observations that are NaN" in capsys.readouterr().err


def test_frames_of_another_size_are_refused(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "x.mp4", 5.0) as writer:
        writer.write(np.zeros((120, 130, 3), np.uint8))
        with pytest.raises(ValueError, match="shape"):
            writer.write(np.zeros((130, 120, 3), np.uint8))
    assert len(frames(tmp_path / "x.mp4", (120, 130, 3))[1]) == 1


def test_a_video_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.mp4").mkdir()
    with (
        pytest.raises(errors.ResourceError, match="directory"),
        VideoWriter(tmp_path / "x.mp4", 5.0) as writer,
    ):
        for _ in range(100):
            writer.write(np.zeros((200, 300, 3), np.uint8))


def test_a_folder_that_became_read_only_is_reported_as_the_video(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    (tmp_path / "x.mp4").mkdir()
    monkeypatch.setattr(Path, "unlink", read_only)
    with (
        pytest.raises(errors.ResourceError, match="the video cannot be written"),
        VideoWriter(tmp_path / "x.mp4", 5.0) as writer,
    ):
        writer.write(np.zeros((200, 300, 3), np.uint8))


def test_ctrl_c_finishes_the_video_and_is_reported_as_itself(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to its whole foreground group, and ffmpeg would end with an error code."""
    with pytest.raises(KeyboardInterrupt), VideoWriter(tmp_path / "x.mp4", 5.0) as writer:
        writer.write(np.zeros((120, 130, 3), np.uint8))
        assert writer._ffmpeg is not None and os.getpgid(writer._ffmpeg.pid) != os.getpgrp()
        raise KeyboardInterrupt
    assert len(frames(tmp_path / "x.mp4", (120, 130, 3))[1]) == 1
    (tmp_path / "y.mp4").mkdir()
    with pytest.raises(KeyboardInterrupt), VideoWriter(tmp_path / "y.mp4", 5.0) as writer:
        writer.write(np.zeros((120, 130, 3), np.uint8))
        raise KeyboardInterrupt
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.mp4", "y.mp4"]


def test_options() -> None:
    assert COMMANDS["enjoy"].parse(["runs/x", "--episodes", "2"]) == EnjoyOptions(run="runs/x", episodes=2)
    with pytest.raises(SystemExit):
        COMMANDS["enjoy"].parse(["runs/x", "--fps", "3"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, bool, np.uint8])
@pytest.mark.parametrize("shape", [(10, 12), (10, 12, 1), (10, 12, 3), (10, 12, 4)])
def test_pictures_of_every_kind_become_pixels_and_small_ones_are_enlarged(dtype: Any, shape: Any) -> None:
    picture = np.zeros(shape, dtype)
    picture[2, 3] = 255 if dtype is np.uint8 else 1
    pixels = as_pixels(picture)
    assert (pixels.dtype, pixels.shape) == (np.uint8, (110, 132, 3))
    assert (pixels[22:33, 33:44] == 255).all() and pixels.sum() == 11 * 11 * 3 * 255


def test_floats_are_rounded_and_large_pictures_stay() -> None:
    assert as_pixels(np.full((200, 128, 3), 0.5)).tolist() == np.full((200, 128, 3), 128).tolist()


@pytest.mark.parametrize(
    "frame",
    [None, np.zeros((9, 9, 2), np.uint8), np.full((9, 9, 3), 2.0), np.full((9, 9, 3), np.nan), np.zeros(9)],
)
def test_what_is_no_picture_is_refused(frame: Any) -> None:
    with pytest.raises(ValueError, match="frame must be uint8"):
        as_pixels(frame)


class Sized(Coloured):
    """The same, whose observations have as many values as a file says."""

    def __init__(self, size: Path, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.observation_space = gymnasium.spaces.Box(-1, 1, (int(size.read_text()),), np.float32)

    def reset(self, **_: Any) -> Any:
        return np.zeros(self.observation_space.shape, np.float32), super().reset()[1]

    def step(self, action: Any) -> Any:
        return np.zeros(self.observation_space.shape, np.float32), *super().step(action)[1:]


def test_a_policy_does_not_play_in_an_environment_that_has_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (size := tmp_path / "size").write_text("4")
    policy, film = save(tmp_path / "policy", functools.partial(Sized, size)), tmp_path / "film.gif"
    for command in (["eval", policy, "--episodes", "2"], ["enjoy", policy, "--video", str(film)]):
        size.write_text("4")
        assert main(command) == 0, capsys.readouterr().err
        film.unlink(missing_ok=True)
        size.write_text("5")
        assert main(command) == 1
        told = capsys.readouterr().err
        assert "[ASYNC005] The observation space of" in told and "this one: ((5,), 'float32'" in told
    assert not film.exists()
    assert load(policy).make_env().observation_space.shape == (5,), "the user may look at it"
