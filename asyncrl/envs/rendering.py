"""Environments for use outside of a run: built with a render mode, and with stacked frames."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from asyncrl.envs.changes import unpack_changes
from asyncrl.envs.checks import close_env
from asyncrl.envs.registered import find
from asyncrl.envs.source import EnvSource
from asyncrl.errors import ConfigurationError, error_text

if TYPE_CHECKING:
    import gymnasium


def build_rendering(source: EnvSource, mode: str) -> gymnasium.Env[Any, Any]:
    """Build one environment that renders in `mode`, such as `"human"` or `"rgb_array"`.

    A factory is called with `render_mode=mode` if it has that parameter. Otherwise, if its environment was made by
    `gymnasium.make`, the environment's spec is made again with the mode.

    Raises:
        ConfigurationError: it has no such mode, or its factory has no way to choose it, or it is a vector.
        AsyncRLError: it cannot be built; see `EnvSource.build`.
    """
    from gymnasium.vector import VectorEnv

    if mode != "human" and not may_have_display():  # pygame complains of each one that it does not find
        os.environ["SDL_VIDEODRIVER"] = "dummy"
    env: Any = source.build()
    try:
        if isinstance(env, VectorEnv):
            what = f"{source.name} makes a vector of environments, of which none can be shown alone"
            raise _cannot_render(source, mode, what, "give a factory of one environment")
        if env.render_mode == mode:
            return env  # type: ignore[no-any-return]
        modes = [str(known) for known in env.metadata.get("render_modes", ())]
        if mode not in modes and not (mode == "human" and "rgb_array" in modes):
            raise _cannot_render(source, mode, f"{source.name} cannot render as {mode!r}", _other(modes))
        again: Any = source.build(mode)
        if again.render_mode != mode:
            close_env(again)
            again = _made_again(source, env, mode)
    except BaseException:
        close_env(env)
        raise
    close_env(env)
    return again  # type: ignore[no-any-return]


def may_have_display() -> bool:
    """Whether a window could be opened: False on Linux if no display is named in the process's environment."""
    known = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in known)


def can_render(source: EnvSource, mode: str) -> bool | None:
    """Whether the environment's class has the render mode; builds nothing. None if only building it would tell.

    Raises:
        AsyncRLError: its id is unknown (ASYNC006).
    """
    from gymnasium import Env
    from gymnasium.envs.registration import EnvSpec, load_env_creator

    named = _named(source)
    if isinstance(named, EnvSpec):
        entry = named.entry_point
        named = load_env_creator(entry) if isinstance(entry, str) else entry
    if not isinstance(named, type) or not issubclass(named, Env):
        return None
    modes = named.metadata
    return mode in modes.get("render_modes", ()) if isinstance(modes, Mapping) else None


def _named(source: EnvSource) -> Any:
    """The registered spec or the factory of a source, without its changes."""
    if source.kind in ("id", "changed"):
        changed = source.kind == "changed"
        env_id = unpack_changes(source.payload)[0] if changed else source.payload.decode()
        return find(env_id, source.main_only)
    source.require_present()
    return pickle.loads(source.payload)


def with_frame_stack(env: Any, frames: int) -> Any:
    """Wrap `env` so that its observations are stacks of the last `frames`, the input of policies with a frame stack."""
    from gymnasium.vector import VectorEnv
    from gymnasium.wrappers import FrameStackObservation

    from asyncrl.envs.vectors import StackedFrames

    if frames == 1:
        return env
    if isinstance(env, VectorEnv):
        return StackedFrames(env, frames)
    return FrameStackObservation(env, frames, padding_type="reset")


def _made_again(source: EnvSource, env: Any, mode: str) -> gymnasium.Env[Any, Any]:
    """Make the same environment with the render mode, from the spec that gymnasium recorded."""
    import gymnasium

    from asyncrl.envs.packing import MaskFromMethod, PackedObservations, packed

    own = env
    while isinstance(own, PackedObservations | MaskFromMethod):  # which `packed` puts around it again
        own = own.env
    try:
        spec = own.spec
        if spec is None or hasattr(env, "agents_spec"):
            raise ValueError("it was not made by gymnasium.make")
        again: Any = packed(gymnasium.make(spec, render_mode=mode))
    except Exception as error:  # also that of a wrapper without a spec
        raise _no_choice(source, mode, error_text(error)) from error
    if again.render_mode != mode:
        close_env(again)
        raise _no_choice(source, mode, f"it was made with {again.render_mode!r}")
    return again  # type: ignore[no-any-return]


def _other(modes: list[str]) -> str:
    return (
        f"its render modes are {', '.join(modes)}" if modes else "it has no render modes: write its render()"
    )


def _no_choice(source: EnvSource, mode: str, reason: str) -> ConfigurationError:
    what = f"{source.name} can render as {mode!r}, but its factory does not say so, and it cannot be changed: {reason}"
    fix = "give the factory an argument: `def make(render_mode=None)`, passed on to the environment"
    return _cannot_render(source, mode, what, fix)


def _cannot_render(source: EnvSource, mode: str, what: str, fix: str) -> ConfigurationError:
    return ConfigurationError(what, facts={"environment": source.name, "render mode": mode}, fix=fix)
