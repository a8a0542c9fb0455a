"""Which environments of other libraries train, with which command.

Installs the libraries, in the versions pinned here, into an environment of its own, which sees the packages of this
interpreter (asyncrl, torch). Then `asyncrl check` and a short `asyncrl train` run for every case. Writes
`results/environments.json` and the table of `docs/environments.md`. A library that cannot be installed is reported as
absent, with pip's reason.

    python -m benchmarks.peers.environments --venv /tmp/environments
    python -m benchmarks.peers.environments --venv /tmp/environments --only minigrid envpool

This file is also the module of the environments that need a function of the user's: `environments:crafter`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
RESULT, PAGE = ROOT / "benchmarks" / "results" / "environments.json", ROOT / "docs" / "environments.md"
MARK = "<!-- The rest is written by benchmarks/peers/environments.py. -->\n"
TRAIN_SECONDS, CHECK_SECONDS = 400, 200
"""Time limits of one command. Libraries of this list take up to twenty seconds to import beside a busy neighbour."""


@dataclass(frozen=True)
class Library:
    """A library with its pinned packages, and the cases to try.

    Attributes:
        name: what `--only` and the table call it.
        packages: what is installed, name==version.
        cases: arguments of `asyncrl train` for each case, without `train`.
        refused: cases that must be refused, each with a word that the fix must name.
    """

    name: str
    packages: tuple[str, ...]
    cases: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


LIBRARIES = (
    Library("MinAtar", ("MinAtar==1.0.15",), ("minatar.gym:MinAtar/Breakout-v1 --algo dqn",)),
    Library(
        "MiniGrid",
        ("minigrid==3.2.0",),
        (
            "minigrid:MiniGrid-Empty-5x5-v0 --algo ppo",
            "minigrid:MiniGrid-Empty-5x5-v0 --algo ppo --wrapper minigrid.wrappers:ImgObsWrapper",
        ),
    ),
    Library("BabyAI", ("minigrid==3.2.0",), ("minigrid:BabyAI-GoToRedBallGrey-v0 --algo ppo",)),
    Library(
        "EnvPool",
        ("envpool==1.2.5",),
        ("environments:envpool_cartpole --algo ppo", "environments:envpool_pendulum --algo sac"),
    ),
    Library(
        "JAX of Gymnasium",
        ("jax==0.10.2", "flax==0.12.8"),
        ("phys2d/CartPole-v1 --algo ppo", "tabular/Blackjack-v0 --algo dqn --envs-per-actor 1"),
    ),
    Library(
        "PettingZoo",
        ("pettingzoo==1.27.0", "mpe2==1.1.1", "supersuit==3.11.0"),
        (
            "mpe2:simple_spread_v3 --algo ppo",
            "mpe2:simple_speaker_listener_v4 --algo ppo --pad-spaces",
            "environments:agents --algo ppo --wrapper asyncrl.envs.vectors:SameStep",
        ),
        (("mpe2:simple_speaker_listener_v4 --algo ppo", "pad_spaces=True"),),
    ),
    Library(
        "MO-Gymnasium",
        ("mo-gymnasium==1.3.2",),
        ("mo_gymnasium:deep-sea-treasure-v0 --algo dqn --wrapper mo_gymnasium.wrappers:LinearReward",),
        (("mo_gymnasium:deep-sea-treasure-v0 --algo dqn", "mo_gymnasium.wrappers:LinearReward"),),
    ),
    Library(
        "Crafter",
        ("crafter==1.8.3",),
        ("environments:crafter --algo ppo",),
        (("crafter:Env --algo ppo", "write a gymnasium.Env of a dozen lines"),),
    ),
    Library(
        "Gymnasium-Robotics",
        ("gymnasium-robotics==1.4.2", "mujoco==3.11.0"),
        ("gymnasium_robotics:FetchReach-v4 --algo sac", "gymnasium_robotics:PointMaze_UMaze-v3 --algo sac"),
    ),
    Library(
        "dm_control",
        ("shimmy==2.0.1", "dm-control==1.0.44", "mujoco==3.11.0"),
        ("shimmy:dm_control/cartpole-balance-v0 --algo sac",),
    ),
    Library(
        "PyBullet",
        ("pybullet==3.2.7", "pybullet-envs-gymnasium==0.6.0"),
        ("pybullet_envs_gymnasium:HopperBulletEnv-v0 --algo sac",),
    ),
    Library("panda-gym", ("panda-gym==3.0.7",), ("panda_gym:PandaReach-v3 --algo sac",)),
    Library(
        "popgym", ("popgym==1.0.7",), ("popgym:popgym-RepeatPreviousEasy-v0 --algo ppo --ppo.recurrent gru",)
    ),
    Library(
        "highway-env", ("highway-env==1.12.1",), ("highway_env:highway-fast-v0 --algo dqn --max-seconds 60",)
    ),
    Library(
        "flappy-bird-gymnasium",
        ("flappy-bird-gymnasium==0.4.0",),
        ("flappy_bird_gymnasium:FlappyBird-v0 --algo dqn",),
    ),
)


# --- environments that need a function ----------------------------------------------------------------------------


def envpool_cartpole() -> Any:
    """EnvPool's vector of 8; EnvPool ignores the seed of `reset`, so every actor must draw its own."""
    import envpool  # type: ignore[import-not-found]

    return envpool.make("CartPole-v1", env_type="gymnasium", num_envs=8, seed=own_seed())


def envpool_pendulum() -> Any:
    """EnvPool's vector of 8, with real-valued actions."""
    import envpool

    return envpool.make("Pendulum-v1", env_type="gymnasium", num_envs=8, seed=own_seed())


def own_seed() -> int:
    """Seed that no other process has."""
    return int.from_bytes(os.urandom(3), "little")


def agents() -> Any:
    """Three agents of PettingZoo, for one policy that all of them share."""
    import mpe2.simple_spread_v3
    import supersuit

    return supersuit.pettingzoo_env_to_vec_env_v1(mpe2.simple_spread_v3.parallel_env())


def crafter() -> Any:
    """Crafter, whose class is neither gym's nor gymnasium's, as a gymnasium environment."""
    import crafter as library  # type: ignore[import-not-found]
    import gymnasium
    import numpy as np

    class Crafter(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        action_space = gymnasium.spaces.Discrete(17)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            if seed is not None or not hasattr(self, "game"):
                self.game = library.Env(seed=seed)
            return self.game.reset(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            obs, reward, done, info = self.game.step(action)
            died = bool(info["discount"] == 0)
            return obs, float(reward), died, done and not died, info

    return Crafter()


# --- trying them ----------------------------------------------------------------------------------------------------


def main() -> None:
    """Install, try, and write the result and the page."""
    from benchmarks.harness import venvs

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--venv", type=Path, required=True, help="environment to install into; made if it is missing"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="LIBRARY", help="other rows stay as they are in the result file"
    )
    parser.add_argument("--steps", default="2k", help="steps of each training (2k)")
    parser.add_argument(
        "--page", action="store_true", help="write the page from the result file, and nothing else"
    )
    given = parser.parse_args()
    wanted = {name.lower() for name in given.only or [library.name for library in LIBRARIES]}
    if unknown := wanted - {library.name.lower() for library in LIBRARIES}:
        parser.error(
            f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(x.name for x in LIBRARIES)}"
        )
    rows: list[dict[str, Any]] = json.loads(RESULT.read_text())["notes"]["rows"] if RESULT.exists() else []
    for library in [] if given.page else LIBRARIES:
        if library.name.lower() not in wanted:
            continue
        own = tried(library, venvs.python_of(given.venv), given.steps)
        order = [other.name for other in LIBRARIES]
        rows = [row for row in rows if row["library"] in order and row["library"] != library.name] + own
        rows.sort(key=lambda row: order.index(row["library"]))
        write(rows, given.steps)
    write_page(rows)


def tried(library: Library, python: str, steps: str) -> list[dict[str, Any]]:
    """Install a library and try its cases; one row for each."""
    from benchmarks.harness import venvs

    print(f"== {library.name}", flush=True)
    pins = sorted({package for other in LIBRARIES for package in other.packages})
    if reason := venvs.install(python, library.packages, pins):
        return [{"library": library.name, "packages": library.packages, "state": "absent", "reason": reason}]
    rows = [case(library, python, arguments, steps) for arguments in library.cases]
    rows += [case(library, python, arguments, steps, fix) for arguments, fix in library.refused]
    for row in rows:
        print(f"   {row['state']:<9}{row['command']}  {row['reason']}", flush=True)
    return rows


def case(library: Library, python: str, arguments: str, steps: str, fix: str = "") -> dict[str, Any]:
    """Check an environment and train in it; `fix` is a part of the advice, if it must be refused.

    The `state` of the row is trains, refused, fails or absent.
    """
    row: dict[str, Any] = {"library": library.name, "packages": library.packages}
    row |= {"command": f"asyncrl train {arguments}", "observation": "", "steps_per_second": None}
    env, _, rest = arguments.partition(" --algo ")
    changing = ("--wrapper", "--env-kwargs", "--pad-spaces")
    changes = rest.split()[1:] if any(flag in rest for flag in changing) else []
    done = asyncrl(python, ["check", env, *changes, "--seconds", "1", "--json"], CHECK_SECONDS)
    if done.returncode == 0:
        found = json.loads(done.stdout.splitlines()[-1])
        shape = "x".join(map(str, found["observation"]["shape"]))
        row |= {
            "observation": f"{found['observation']['dtype']} {shape}",
            "steps_per_second": found["steps_per_second"],
        }
        flags = ["--steps", steps, "--actors", "1", "--run-dir", "none", "--http", "off"]
        done = asyncrl(python, ["train", *arguments.split(), *flags], TRAIN_SECONDS)
    state, reason = ("trains", "") if done.returncode == 0 and not fix else judged(done, fix)
    return {**row, "state": state, "reason": reason}


def asyncrl(python: str, arguments: Sequence[str], seconds: int) -> subprocess.CompletedProcess[str]:
    """Run a command of this checkout; its time limit reads like a failure."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}", "PYTHONWARNINGS": "ignore", "NO_COLOR": "1"}
    command = [python, "-m", "asyncrl", *arguments]
    try:
        return subprocess.run(
            command, cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"not done after {seconds} s")


def judged(done: subprocess.CompletedProcess[str], fix: str) -> tuple[str, str]:
    """State and reason of a command: refused if it failed with the advice that it must give, else fails."""
    lines = [line.strip() for line in done.stderr.splitlines()]
    error = next((line for line in lines if line.startswith("[ASYNC")), lines[-1] if lines else "no output")
    advice = next((line for line in lines if line.startswith("fix: ")), "")
    if done.returncode and fix and fix in advice:
        return "refused", advice.removeprefix("fix: ")
    return "fails", error if done.returncode else "it was not refused"


def write(rows: Sequence[dict[str, Any]], steps: str) -> None:
    """Write the result file: the rows, the machine, the commit and the versions."""
    from benchmarks.harness.report import Report

    report = Report("environments")
    report.note("steps", steps)
    report.note("rows", list(rows))
    report.write()


def write_page(rows: Sequence[dict[str, Any]]) -> None:
    """Write the table of the page."""
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    lines = ["| library | observation | command | what happens |", "|---|---|---|---|"]
    for row in rows:
        packages = ", ".join(package.replace("==", " ") for package in row["packages"])
        if row["state"] == "absent":
            lines.append(f"| {packages} | | | could not be installed: {row['reason']} |")
            continue
        what = row["state"] if row["state"] == "trains" else f"{row['state']}: {row['reason']}"
        lines.append(f"| {packages} | {row['observation']} | `{row['command']}` | {what} |")
    PAGE.write_text(head + MARK + "\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
