"""Video files from frames, by the ffmpeg of imageio-ffmpeg: one wheel, no other package, no network.

(gymnasium's recorder needs moviepy, which installs six packages for the same ffmpeg.)
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import ConfigurationError, ResourceError, error_text

FORMATS = (".mp4", ".gif", ".webm", ".mkv", ".mov")
"""Supported file name endings."""
DEFAULT_FPS = 30.0
"""Frames per second if the environment's metadata has no `render_fps`."""
LEAST_PIXELS = 128
"""Longer side, in pixels, below which frames are enlarged by a whole factor."""

# H.264 needs even sides (a row or column is added), and old players support only this pixel format.
_FILM = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p"]
# A palette of the video's own colours: with the default palette a GIF is dithered everywhere.
_GIF = ["-vf", "split[a][b];[a]palettegen[p];[b][p]paletteuse"]


def frames_per_second(env: Any) -> float:
    """Frames per second that the environment's metadata gives for its pictures."""
    return float((getattr(env, "metadata", None) or {}).get("render_fps") or DEFAULT_FPS)


def require_video(path: Path) -> None:
    """Check that a video can be written, before anything is played.

    Raises:
        ConfigurationError: the ending is none of `FORMATS`, the folder does not exist, or imageio-ffmpeg is missing.
    """
    facts = {"video": path}
    if path.suffix.lower() not in FORMATS:
        endings = ", ".join(FORMATS)
        raise ConfigurationError(
            f"the video's name must end with one of {endings}, got {path.name!r}",
            facts=facts,
            fix="name it out.mp4",
        )
    if not path.parent.is_dir():
        what = f"the video cannot be written: there is no folder {path.parent}"
        raise ConfigurationError(what, facts=facts, fix="make the folder, or name another one")
    if not os.access(path.parent, os.W_OK):
        what = f"the video cannot be written: the folder {path.parent} may not be written to"
        raise ConfigurationError(what, facts=facts, fix="name another folder")
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        what = "a video needs the package imageio-ffmpeg, which is not installed"
        raise ConfigurationError(what, facts=facts, fix='pip install "asyncrl[video]"')


def as_pixels(frame: Any) -> NDArray[np.uint8]:
    """Convert an environment's picture to bytes `[height, width, 3]`; a small one is enlarged by a whole factor.

    Bytes `[height, width]` or with 1, 3 or 4 channels (the fourth, opacity, is left out), bools, and floats from 0 to
    1 are pictures.

    Raises:
        ValueError: `frame` is none of these.
    """
    image: NDArray[Any] = np.asarray(frame)
    given = f"{image.dtype} {image.shape}" if image.dtype != object else type(frame).__name__
    if image.ndim == 2:
        image = image[..., None]
    fits = image.ndim == 3 and image.shape[2] in (1, 3, 4) and image.size > 0
    if fits and image.dtype.kind == "f":
        fits = bool((image >= 0).all() and (image <= 1).all())  # not where one is NaN
        image = np.rint(image * 255) if fits else image
    elif fits and image.dtype.kind == "b":
        image = image * np.uint8(255)
    else:
        fits = fits and image.dtype == np.uint8
    if not fits:
        raise ValueError(f"frame must be uint8 [height, width, 3], or floats from 0 to 1, got {given}")
    pixels = np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image[..., :3]
    factor = -(-LEAST_PIXELS // max(pixels.shape[:2]))
    if factor > 1:
        pixels = pixels.repeat(factor, axis=0).repeat(factor, axis=1)
    return np.ascontiguousarray(pixels, np.uint8)


class VideoWriter:
    """Writer of frames of one size to a video file; a context manager whose exit finishes the file.

    Args:
        path: the file; an existing one is replaced at the end. Its suffix chooses the format.
        fps: frames per second.
        longest_side: longer side of the video in pixels, to which larger frames are reduced; None keeps their size.

    Raises:
        ResourceError: at the end, if ffmpeg failed (a full disk) and the block has not raised an error itself.
    """

    def __init__(self, path: Path, fps: float, longest_side: int | None = None) -> None:
        self.path, self.fps = path, fps
        self._longest_side = longest_side
        self.frames = 0
        self._shape: tuple[int, ...] = ()
        self._ffmpeg: subprocess.Popen[bytes] | None = None
        # In the video's folder, for the rename at the end: an older video stays until the new one is complete.
        self._unfinished = path.absolute().with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")

    def write(self, frame: Any) -> None:
        """Append a picture, see `as_pixels`. Raises ValueError if it is none, or of another size."""
        image = as_pixels(frame)
        if self._ffmpeg is None:
            self._ffmpeg = self._start(image.shape)
        if image.shape != self._shape:
            raise ValueError(f"frame must have the first one's shape {self._shape}, got {image.shape}")
        assert self._ffmpeg.stdin is not None
        try:
            self._ffmpeg.stdin.write(image.data)
        except BrokenPipeError:
            self._finish()
        self.frames += 1

    def _start(self, shape: tuple[int, ...]) -> subprocess.Popen[bytes]:
        import imageio_ffmpeg

        self._shape = shape
        size, rate = f"{shape[1]}x{shape[0]}", str(self.fps)
        frames = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-video_size", size, "-framerate", rate, "-i", "-"]
        output = _GIF if self.path.suffix.lower() == ".gif" else _FILM
        if self._longest_side is not None and max(shape[:2]) > self._longest_side:
            width, height = (self._longest_side, -2) if shape[1] >= shape[0] else (-2, self._longest_side)
            output = [output[0], f"scale={width}:{height},{output[1]}", *output[2:]]
        # imageio_ffmpeg's `write_frames` leaves pipes open.
        program = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error"]
        command = [*program, *frames, *output, str(self._unfinished)]
        # In a session of its own: a terminal sends Ctrl-C to the whole foreground group, and ffmpeg ends with an error.
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )

    def _finish(self) -> None:
        """Let ffmpeg finish the file. Raises ResourceError if it failed."""
        if self._ffmpeg is None:
            return
        try:
            _, said = self._ffmpeg.communicate()
            if self._ffmpeg.returncode:
                text = said.decode(errors="replace").strip() or f"ffmpeg ended with {self._ffmpeg.returncode}"
                raise OSError(text)
            self._unfinished.replace(self.path)
        except OSError as error:
            raise ResourceError(
                f"the video cannot be written: {error_text(error)}",
                facts={"video": self.path},
                fix="make space, or name another file",
            ) from error
        finally:
            self.drop()

    def drop(self) -> None:
        """Kill ffmpeg and remove its unfinished file; no effect if the video is finished. Any thread."""
        ffmpeg, self._ffmpeg = self._ffmpeg, None
        if ffmpeg is not None:
            ffmpeg.kill()
            ffmpeg.wait()
            with contextlib.suppress(OSError):  # a folder that became read-only; `_finish` reports it
                self._unfinished.unlink(missing_ok=True)

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._finish()
        except ResourceError:
            if error is None:  # otherwise the block's own error is the one to report
                raise
