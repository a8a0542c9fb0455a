"""`asyncrl enjoy`: show a policy in the environment's own window or record it as a video."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.cli.flags import Parser, PolicyParser
from asyncrl.errors import ConfigurationError
from asyncrl.options import Count, NotNegative, Positive, check_options
from asyncrl.show.numbers import of_return

if TYPE_CHECKING:
    from asyncrl.envs.video import VideoWriter
    from asyncrl.policies.portable_policy import PortablePolicy


class WindowClosed(Exception):
    """Raised when the user closes the window; ends the command with exit code 0."""


@dataclass(frozen=True, kw_only=True)
class EnjoyOptions:
    """Options of `asyncrl enjoy`."""

    run: str
    """Directory of a run, a checkpoint file, a policy file, or hf://user/name."""

    video: str | None = None
    """File to record instead of a window: .mp4, .gif, .webm, .mkv or .mov; an existing one is replaced."""

    episodes: Count = 3
    """Episodes to play."""

    deterministic: bool = True
    """Greedy actions; otherwise actions are drawn as at the end of training."""

    fps: Positive | None = None
    """Frames per second of the video; none means the environment's own."""

    checkpoint: str | None = None
    """Checkpoint of the run: best, latest or a number of steps; none means best, or latest if nothing was evaluated."""

    seed: NotNegative = 0
    """Seed of the episodes."""

    def __post_init__(self) -> None:
        check_options(self)
        if self.fps is not None and self.video is None:
            raise ValueError("fps must come with video: a window has the environment's own pace")


def make_parser() -> Parser:
    """Flags of `asyncrl enjoy`."""
    return PolicyParser(
        "enjoy RUN [options]",
        "Show episodes with the policy of a run, in a window or as a video. The environment and "
        "the network of a run may be pickles, which run code: use only runs of people whom you trust.",
        EnjoyOptions,
    )


def run(options: EnjoyOptions) -> None:
    """Play and show episodes."""
    from asyncrl.envs.checks import close_env
    from asyncrl.envs.video import VideoWriter, frames_per_second, require_video
    from asyncrl.policies.load import load_named

    video = None if options.video is None else Path(options.video).expanduser()
    if video is not None:
        require_video(video)
    policy, file = load_named(options.run, options.checkpoint)
    if video is None:
        require_display()
    with contextlib.ExitStack() as stack:
        env = policy.built_env("human" if video is None else "rgb_array")
        stack.callback(close_env, env)
        print(f"policy       {policy.describe(file)}", flush=True)
        if video is None:
            with contextlib.suppress(WindowClosed):
                _show(policy, env, options, None)
            return
        fps = options.fps or frames_per_second(env)
        with VideoWriter(video, fps) as writer:
            _show(policy, env, options, writer)
        print(f"video        {video}, {writer.frames:,} frames, {writer.frames / fps:.1f} s", flush=True)


def _show(policy: PortablePolicy, env: Any, options: EnjoyOptions, writer: VideoWriter | None) -> None:
    from asyncrl.policies.playback import play, show

    def record() -> None:
        if writer is not None:
            show(policy, env, writer.write)
        elif window_closed():
            raise WindowClosed

    episodes = play(policy, env, options.episodes, options.seed, record, deterministic=options.deterministic)
    for number, episode in enumerate(episodes, 1):
        cut = ", ended here: it has no limit of its own" if episode.cut else ""
        text = f"return {of_return(episode.return_sum)}, {episode.length:,} steps{cut}"
        print(f"episode {number:<4} {text}", flush=True)
        if episode.agent_returns:
            each = ", ".join(f"{name} {of_return(value)}" for name, value in episode.agent_returns.items())
            print(f"{'':12} {each}", flush=True)


def window_closed() -> bool:
    """Whether the user has closed pygame's window, which gymnasium's environments do not check."""
    pygame = sys.modules.get("pygame")
    return pygame is not None and pygame.display.get_init() and bool(pygame.event.peek(pygame.QUIT))


def require_display() -> None:
    """Raise ConfigurationError if no window can be opened: on Linux without a display."""
    from asyncrl.envs.rendering import may_have_display

    if not may_have_display():
        raise ConfigurationError(
            "there is no display to open a window on",
            facts={"DISPLAY": "not set"},
            fix="record a video instead: asyncrl enjoy RUN --video out.mp4",
        )
