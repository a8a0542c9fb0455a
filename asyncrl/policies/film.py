"""Short film of the best of a few greedy episodes, for a notebook."""

from __future__ import annotations

import base64
import contextlib
import math
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl.envs.video import VideoWriter, frames_per_second, require_video
from asyncrl.policies.playback import play, show
from asyncrl.policies.portable_policy import PortablePolicy


@dataclass(frozen=True)
class Film:
    """Video of one episode, which may be cut at the time limit.

    Attributes:
        return_sum, length: return and steps of the episode; None if it was cut.
        video: an MP4 file.
    """

    return_sum: float | None
    length: int | None
    video: bytes = field(repr=False)

    def _repr_html_(self) -> str:
        text = "an episode, cut: the time was over"
        if self.return_sum is not None:
            text = f"return {self.return_sum:,.1f}, {self.length:,} steps"
        source = base64.b64encode(self.video).decode()
        return (
            f'<figure style="margin:0"><video controls autoplay loop muted style="max-width:100%" '
            f'src="data:video/mp4;base64,{source}"></video><figcaption>{text}</figcaption></figure>'
        )


def film(policy: PortablePolicy, episodes: int, max_seconds: float, seed: int = 0) -> Film:
    """Play greedy episodes in this process and return the one with the highest return.

    Args:
        policy: acts; its environment is made with `render_mode="rgb_array"`.
        episodes: number of episodes.
        max_seconds: time limit; no step begins after it. A cut episode is returned only if none has ended.
        seed: seed of the first episode's reset.

    Raises:
        ConfigurationError: the environment cannot render, or imageio-ffmpeg is not installed.
        AsyncRLError: the environment fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        require_video(Path(folder) / "episode.mp4")
        env = policy.built_env("rgb_array")
        try:
            end, best = time.monotonic() + max_seconds, None
            for number in range(episodes):
                played = _one(policy, env, Path(folder) / f"{number}.mp4", seed + number, end)
                best = played if best is None else max(best, played, key=_return_of)
                if time.monotonic() >= end:
                    break
        finally:
            env.close()
    assert best is not None, "episodes is at least 1"
    return best


def _return_of(film: Film) -> float:
    return -math.inf if film.return_sum is None else film.return_sum


class _TimeIsOver(Exception):
    """Raised at the time limit to end an episode."""


def _one(policy: PortablePolicy, env: object, path: Path, seed: int, end: float) -> Film:
    episode = None
    with VideoWriter(path, frames_per_second(env)) as writer:

        def record() -> None:
            show(policy, env, writer.write)
            if time.monotonic() >= end:
                raise _TimeIsOver

        with contextlib.suppress(_TimeIsOver):
            (episode,) = play(policy, env, 1, seed, record)
    if episode is None:
        return Film(None, None, path.read_bytes())
    return Film(episode.return_sum, episode.length, path.read_bytes())
