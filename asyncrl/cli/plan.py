"""`asyncrl plan ENV`: measure the fastest numbers of actors and environments on this machine, by `pilots.py`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from asyncrl.algorithms import ALGORITHMS, preset_options
from asyncrl.algorithms.registry import algorithm_name, imported_algorithm
from asyncrl.cli.flags import Parser, add_flags, finite_number, given_flags, merged
from asyncrl.cli.text_table import text_table
from asyncrl.cli.train_flags import answer, check_algorithm, last_value
from asyncrl.config import TrainerConfig, usable_cores
from asyncrl.options import option_values

if TYPE_CHECKING:
    from asyncrl.cli.pilots import Pilot

OPTIONS = (
    "algo",
    "seed",
    "envs_per_actor",
    "total_steps",
    "device",
    "env_kwargs",
    "wrappers",
    "torch_threads",
)
"""Options of the run that affect its speed."""
LIMITS = {
    "actors": "the actors; more cores for actors, or a faster environment, would help",
    "learner": "the learner; fewer updates per step (samples_per_insert, epochs) or a smaller network would help",
}
"""Text of each bottleneck, and what would relieve it."""


def make_parser(algorithm: str | None = None) -> Parser:
    """Flags of `asyncrl plan`, with those of `algorithm` if it is known."""
    text = "Train for a few seconds with several numbers of actors and environments, and compare the speeds."
    parser = pilot_parser("plan", text, OPTIONS, algorithm)
    parser.add_argument("--cores", type=int, metavar="N", help="most actors (the cores of this machine)")
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse. Raises SystemExit with code 2 for a wrong argument."""
    parsed = parse_pilot(arguments, make_parser)
    if parsed.cores is not None and parsed.cores < 1:
        make_parser().error("--cores must be at least 1")
    return parsed


def pilot_parser(command: str, text: str, options: Sequence[str], algorithm: str | None) -> Parser:
    """Flags of a command that trains for a few seconds, with those of `algorithm` if it is known.

    `options` of the run become flags, and `text` is the description.
    """
    parser = Parser(f"{command} ENV --algo ALGO [options]", text, answer=lambda flag: answer(flag, algorithm))
    parser.add_argument("ENV", help="CartPole-v1, package:Env-v0 or module:Class")
    add_flags(parser, TrainerConfig, only=options, brief=True)
    parser.add_argument(
        "--seconds", type=finite_number, default=3.0, metavar="X", help="each measurement (3)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    if algorithm is not None:
        group = parser.add_argument_group(f"options of {algorithm}")
        add_flags(group, ALGORITHMS[algorithm], prefix=f"{algorithm}.", brief=True)
    return parser


def parse_pilot(arguments: Sequence[str], make: Callable[[str | None], Parser]) -> argparse.Namespace:
    """Parse, and make the records `config` and `algorithm`. Raises SystemExit with code 2 for a wrong argument."""
    algo = algorithm_name(imported_algorithm(last_value(arguments, "--algo") or ""))
    parser = make(algo if algo in ALGORITHMS else None)
    parsed = parser.parse_exactly(arguments)
    check_algorithm(parser, algo)
    flags = {**given_flags(parsed, TrainerConfig), "algo": algo}
    parsed.config = merged(
        parser, TrainerConfig, flags, {"env": parsed.ENV, **preset_options(algo, parsed.ENV)}
    )
    record: Any = ALGORITHMS[algo]
    given = given_flags(parsed, record, f"{algo}.")
    tuned = option_values(record.preset(parsed.ENV))
    parsed.algorithm = merged(parser, record, given, tuned, prefix=f"{algo}.")
    return parsed


def run(options: argparse.Namespace) -> None:
    """Measure and print. Raises what a run raises."""
    from asyncrl.cli.pilots import fastest, plan

    cores = options.cores or usable_cores()
    live = sys.stderr.isatty() and not options.json
    pilots = plan(
        options.config, options.algorithm, cores, options.seconds, _show if live else lambda pilot: None
    )
    best = fastest(pilots)
    if options.json:
        facts = {
            "fastest": dataclasses.asdict(best),
            "pilots": [dataclasses.asdict(pilot) for pilot in pilots],
        }
        print(json.dumps(facts, allow_nan=False))
    else:
        print(_text(pilots, best, options.config.total_steps))


def _show(pilot: Pilot) -> None:
    settings = f"{pilot.num_actors} actors with {pilot.envs_per_actor} environments"
    print(f"{settings}: {pilot.env_steps_per_second:,.0f} steps/s", file=sys.stderr, flush=True)


def _text(pilots: Sequence[Pilot], best: Pilot, total_steps: int | None) -> str:
    header = ("actors", "envs each", "steps/s", "updates/s", "learner waits", "actors wait", "actors' memory")
    rows = [
        (
            str(pilot.num_actors),
            str(pilot.envs_per_actor),
            f"{pilot.env_steps_per_second:,.0f}",
            f"{pilot.updates_per_second:,.0f}",
            f"{pilot.learner_wait_fraction:.0%}",
            f"{pilot.actor_wait_fraction:.0%}",
            f"{pilot.actor_bytes / 1e6:,.0f} MB",
        )
        for pilot in pilots
    ]
    fastest = f"fastest  --actors {best.num_actors} --envs-per-actor {best.envs_per_actor}"
    if total_steps is not None and best.env_steps_per_second > 0:
        minutes = total_steps / best.env_steps_per_second / 60
        fastest += f": {total_steps:,} steps in {minutes:,.1f} minutes"
    lines = [
        text_table(header, rows),
        "",
        fastest,
        f"limit    {LIMITS[best.limit]}",
        "note     speed alone: with fewer environments at once, data are fresher and fewer steps may be needed",
    ]
    return "\n".join(lines)
