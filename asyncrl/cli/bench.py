"""`asyncrl bench ENV`: measure the speed of environment, actors, learner and all together, by `pilots.py`."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncrl.cli import plan
from asyncrl.cli.flags import Parser

if TYPE_CHECKING:
    from asyncrl.actors.forkserver import ForkServer
    from asyncrl.cli.pilots import Sides

OPTIONS = (*plan.OPTIONS[:2], "num_actors", *plan.OPTIONS[2:])
"""Options of the run that affect its speed."""
LIMITS = {
    **plan.LIMITS,
    "cores": "the cores, which actors and learner share: either is faster alone; more cores would help",
}
"""Text of each bottleneck, and what would relieve it."""


def make_parser(algorithm: str | None = None) -> Parser:
    """Flags of `asyncrl bench`, with those of `algorithm` if it is known."""
    text = (
        "Measure one environment, the actors, the learner and all together, and say which is the bottleneck."
    )
    return plan.pilot_parser("bench", text, OPTIONS, algorithm)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse. Raises SystemExit with code 2 for a wrong argument."""
    return plan.parse_pilot(arguments, make_parser)


def run(options: argparse.Namespace, server: ForkServer) -> None:
    """Measure and print. Raises what a run raises."""
    from asyncrl.actors.probe import trial
    from asyncrl.cli.pilots import Sides, actors_alone, learner_alone, run_pilot
    from asyncrl.envs.source import EnvSource

    config, algorithm, seconds = options.config, options.algorithm, options.seconds
    source = EnvSource.from_user(config.env).changed(config.env_kwargs, config.wrappers)
    bare = asyncio.run(trial(server, source, seconds))
    sides = Sides(
        bare.steps_per_second,
        actors_alone(config, algorithm, seconds),
        learner_alone(config, algorithm, seconds),
        run_pilot(config, algorithm, config.actors, config.envs_per_actor, seconds),
    )
    print(json.dumps(_facts(sides), allow_nan=False) if options.json else _text(sides))


def _facts(sides: Sides) -> dict[str, object]:
    return {
        "environment": {"env_steps_per_second": sides.env_steps_per_second},
        "actors": {"env_steps_per_second": sides.actor_steps_per_second},
        "learner": {
            "updates_per_second": sides.learner.updates_per_second,
            "env_steps_per_second": sides.learner_steps_per_second,
        },
        "together": dataclasses.asdict(sides.together),
        "limit": sides.limit,
    }


def _text(sides: Sides) -> str:
    both, enough = sides.together, sides.learner_steps_per_second
    rows = {
        "environment": f"{sides.env_steps_per_second:>10,.0f} steps/s    one, in one process, random actions",
        "actors": f"{sides.actor_steps_per_second:>10,.0f} steps/s    "
        f"{both.num_actors} x {both.envs_per_actor} environments with the policy, while the learner idles",
        "learner": f"{sides.learner.updates_per_second:>10,.0f} updates/s  while the actors stand still"
        + (f"; enough for {enough:,.0f} steps/s" if enough is not None else ""),
        "together": f"{both.env_steps_per_second:>10,.0f} steps/s    {both.updates_per_second:,.0f} updates/s; "
        f"learner waits {both.learner_wait_fraction:.0%}, actors {both.actor_wait_fraction:.0%}",
        "limit": f"  {LIMITS[sides.limit]}",
    }
    return "\n".join(f"{label:<11}{text}" for label, text in rows.items())
