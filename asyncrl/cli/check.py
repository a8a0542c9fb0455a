"""`asyncrl check ENV`: spaces, speed and problems of an environment, and the algorithms that fit."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asyncrl.cli.flags import Parser, add_flags, finite_number
from asyncrl.cli.interrupts import run_until_signal
from asyncrl.config import TrainerConfig
from asyncrl.show.numbers import of_return

if TYPE_CHECKING:
    from asyncrl.actors.forkserver import ForkServer
    from asyncrl.envs.trial import Trial


OPTIONS = ("env_kwargs", "wrappers", "agent_id", "pad_spaces", "policies")
"""Options of a run that change its environment."""
LISTED = 6
"""Most agents that are named."""


def make_parser() -> Parser:
    """Flags of `asyncrl check`."""
    parser = Parser("check ENV [options]", "Try an environment with random actions, in a process of its own.")
    parser.add_argument("ENV", help="CartPole-v1, package:Env-v0 or module:Class")
    add_flags(parser, TrainerConfig, only=OPTIONS, brief=True)
    parser.add_argument(
        "--seconds", type=finite_number, default=2.0, metavar="X", help="seconds of steps (2)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse. Raises SystemExit with code 2 for a wrong argument."""
    parser = make_parser()
    parsed = parser.parse_exactly(arguments)
    given = {name: value for name, value in vars(parsed).items() if name in OPTIONS}
    try:
        parsed.config = TrainerConfig(env=parsed.ENV, algo="any", **given)
    except ValueError as error:
        parser.error(str(error))
    return parsed


def run(options: argparse.Namespace, server: ForkServer) -> None:
    """Try the environment and print the result. Raises the errors that a run would raise."""
    from asyncrl.actors.probe import trial
    from asyncrl.envs.source import EnvSource

    config = options.config
    source = EnvSource.from_user(config.env).changed(config.env_kwargs, config.wrappers, **config.of_agents)
    facts = _facts(run_until_signal(trial(server, source, options.seconds)))
    print(json.dumps(facts, allow_nan=False) if options.json else _text(facts))


def _facts(trial: Trial) -> dict[str, Any]:
    from asyncrl.algorithms.action_spaces import supported_algorithms
    from asyncrl.algorithms.preset_files import preset_for
    from asyncrl.algorithms.registry import ALGORITHMS

    spec = trial.spec
    supported = [name for name in supported_algorithms(spec).split(", ") if name in ALGORITHMS]
    return {
        "env": spec.name,
        "observation": {"shape": list(spec.observation_shape), "dtype": spec.observation_dtype},
        "action": str(spec.action),
        "max_episode_steps": spec.max_episode_steps,
        "own_limit": spec.own_limit,
        "reward_threshold": spec.reward_threshold,
        "vector_envs": spec.vector_envs,
        "agents": [agent.name for agent in spec.agents],
        "state_values": spec.state_values,
        "policies": {policy.name: [agent.name for agent in policy.spec.agents] for policy in spec.policies},
        "autoreset": trial.autoreset or None,
        "steps_per_second": trial.steps_per_second,
        "build_seconds": trial.build_seconds,
        "reset_seconds": trial.reset_seconds,
        "random": {
            "steps": trial.steps,
            "episodes": trial.episodes,
            "length_mean": trial.length_mean,
            "return_mean": trial.return_mean,
            "reward_low": trial.reward_low if trial.reward_low <= trial.reward_high else None,
            "reward_high": trial.reward_high if trial.reward_low <= trial.reward_high else None,
        },
        "algorithms": supported,
        "presets": [name for name in supported if preset_for(name, spec.name)],
        "problems": list(trial.problems),
    }


def _text(facts: dict[str, Any]) -> str:
    shape, dtype = facts["observation"]["shape"], facts["observation"]["dtype"]
    random, limit = facts["random"], facts["max_episode_steps"]
    vector = facts["vector_envs"]
    rows = {
        "environment": facts["env"]
        + (f", a vector of {vector}, autoreset {facts['autoreset']}" if vector else ""),
        **_agents(facts["agents"], facts["policies"]),
        "observation": f"{dtype} of shape ({', '.join(map(str, shape))})",
        **(
            {"state": f"{facts['state_values']:,} values, for a central critic"}
            if facts["state_values"]
            else {}
        ),
        "action": facts["action"],
        "episodes": _limits(limit, facts["own_limit"])
        + (f"; solved at {facts['reward_threshold']:g}" if facts["reward_threshold"] is not None else ""),
        "speed": f"{rate_text(facts['steps_per_second'])} steps/s in one process; "
        f"built in {facts['build_seconds']:.2f} s, reset in {1000 * facts['reset_seconds']:.1f} ms",
        "random": _random(random),
        "algorithms": ", ".join(facts["algorithms"]) or "none",
        "presets": ", ".join(facts["presets"]) or "none",
        "problems": "none seen" if not facts["problems"] else facts["problems"][0],
    }
    lines = [f"{label:<13}{text}" for label, text in rows.items()]
    return "\n".join([*lines, *(f"{'':<13}{text}" for text in facts["problems"][1:])])


def _limits(registered: int | None, own: int | None) -> str:
    if registered or own:
        return f"at most {registered or own:,} steps" + ("" if registered else ", by its own limit")
    return "no time limit"


def _agents(names: list[str], policies: dict[str, list[str]]) -> dict[str, str]:
    """Row of the agents, or of each policy's; none for an environment of one agent."""
    if not names:
        return {}
    if policies:
        each = (f"policy {policy}: {_listed(own)}" for policy, own in policies.items())
        return {"agents": f"{len(names)}; {'; '.join(each)}"}
    return {"agents": f"{len(names)} that share one policy: {_listed(names)}"}


def _listed(names: list[str]) -> str:
    if len(names) <= LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:LISTED])} and {len(names) - LISTED} more"


def rate_text(per_second: float) -> str:
    """Return a rate with separators of thousands, below 10 with two digits."""
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"


def _random(random: dict[str, Any]) -> str:
    if not random["episodes"]:
        return f"no episode ended within {random['steps']:,} step{'s' * (random['steps'] != 1)}"
    value = random["return_mean"]
    mean = "no finite return" if value is None else f"return {of_return(value)}"
    episodes = f"{random['episodes']:,} episode{'s' * (random['episodes'] != 1)}"
    return f"{episodes}, {mean}, {random['length_mean']:.1f} steps on average"
