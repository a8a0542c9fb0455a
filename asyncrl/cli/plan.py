"""`asyncrl plan ENV`: measure the fastest numbers of actors, environments and threads, and the bottleneck."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asyncrl.algorithms import ALGORITHMS, preset_options
from asyncrl.algorithms.registry import algorithm_name, imported_algorithm
from asyncrl.cli.flags import Parser, add_flags, finite_number, given_flags, merged
from asyncrl.cli.interrupts import run_until_signal
from asyncrl.cli.text_table import text_table
from asyncrl.cli.train_flags import (
    above_preset,
    answer,
    check_algorithm,
    last_value,
    reported_as_usage,
)
from asyncrl.config import TrainerConfig, usable_cores
from asyncrl.options import option_values

if TYPE_CHECKING:
    from asyncrl.actors.forkserver import ForkServer
    from asyncrl.cli.pilots import Pilot, Sides

OPTIONS = (
    "algo",
    "seed",
    "num_actors",
    "envs_per_actor",
    "total_steps",
    "device",
    "env_kwargs",
    "wrappers",
    "agent_id",
    "pad_spaces",
    "policies",
    "torch_threads",
)
"""Options of the run that affect its speed."""
LIMITS = {
    "actors": "the actors; more cores for actors, or a faster environment, would help",
    "learner": "the learner; fewer updates per step (samples_per_insert, epochs) or a smaller network would help",
    "cores": "the cores, which actors and learner share: either is faster alone; more cores would help",
}
"""Text of each bottleneck, and what would relieve it."""


def make_parser(algorithm: str | None = None) -> Parser:
    """Flags of `asyncrl plan`, with those of `algorithm` if it is known."""
    parser = Parser(
        "plan ENV --algo ALGO [options]",
        "Train for a few seconds with several numbers of actors and environments, compare the speeds, and say what "
        "limits the fastest: environment, actors, learner or cores. --actors measures one number alone.",
        answer=lambda flag: answer(flag, algorithm),
    )
    parser.add_argument("ENV", help="CartPole-v1, package:Env-v0 or module:Class")
    add_flags(parser, TrainerConfig, only=OPTIONS, brief=True)
    parser.add_argument(
        "--seconds", type=finite_number, default=3.0, metavar="X", help="seconds of each measurement (3)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--cores", type=int, metavar="N", help="maximum of actors times threads (the cores of this machine)"
    )
    parser.add_argument(
        "--env-threads",
        metavar="KEY",
        help="keyword argument of the environment's constructor with its number of threads: 1, 2, 4, ... are tried",
    )
    parser.add_argument(
        "--batch-sizes",
        type=_counts,
        default=(),
        metavar="N,N",
        help="batch sizes tried at the fastest numbers",
    )
    if algorithm is not None:
        group = parser.add_argument_group(f"options of {algorithm}")
        add_flags(group, ALGORITHMS[algorithm], prefix=f"{algorithm}.", brief=True)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse, and make the records `config` and `algorithm`. Raises SystemExit with code 2 for a wrong argument."""
    algo = algorithm_name(imported_algorithm(last_value(arguments, "--algo") or ""))
    parser = make_parser(algo if algo in ALGORITHMS else None)
    parsed = parser.parse_exactly(arguments)
    check_algorithm(parser, algo)
    if parsed.cores is not None and parsed.cores < 1:
        parser.error("--cores must be at least 1")
    flags = {**given_flags(parsed, TrainerConfig), "algo": algo}
    parsed.fixed = "num_actors" in flags
    if parsed.fixed and (parsed.env_threads or parsed.batch_sizes):
        parser.error(
            "--actors measures one number alone: it goes with neither --env-threads nor --batch-sizes"
        )
    rest = {"env": parsed.ENV, **preset_options(algo, parsed.ENV)}
    if "env_kwargs" in flags:
        flags["env_kwargs"] = above_preset(algo, parsed.ENV, flags["env_kwargs"])
    parsed.config = merged(parser, TrainerConfig, flags, rest)
    record: Any = ALGORITHMS[algo]
    given = given_flags(parsed, record, f"{algo}.")
    tuned = option_values(record.preset(parsed.ENV))
    parsed.algorithm = merged(parser, record, given, tuned, prefix=f"{algo}.")
    if parsed.algorithm.update_loop == "dataset":
        parser.error(f"argument --algo: {algo} learns from a dataset alone: it has no actors to plan")
    if parsed.batch_sizes:
        from asyncrl.cli.pilots import batch_option

        if not batch_option(parsed.algorithm):
            parser.error(f"--batch-sizes: {algo} has no option that sets the rows of an update")
    return parsed


def _counts(text: str) -> tuple[int, ...]:
    """Parse whole numbers above 0, separated by commas."""
    numbers = tuple(int(part) for part in text.split(",") if part.strip().isdecimal())
    if len(numbers) != text.count(",") + 1 or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"must be whole numbers above 0 such as 64,256, got {text!r}")
    return numbers


def run(options: argparse.Namespace, server: ForkServer) -> int:
    """Measure and print; returns the exit code. Raises what a run raises."""
    try:
        sides, pilots = _measure(options, server)
    except ValueError as error:  # a rule between options that is checked when a run is built
        return reported_as_usage(error, "plan", options.config.algo)
    if options.json:
        print(json.dumps(_facts(sides, pilots), allow_nan=False))
    else:
        print(_text(sides, pilots, options.config.total_steps, options.env_threads))
    return 0


def _measure(options: argparse.Namespace, server: ForkServer) -> tuple[Sides, list[Pilot]]:
    """Measure the runs, then environment, actors and learner alone with the numbers of the fastest run."""
    from asyncrl.actors.probe import trial
    from asyncrl.cli.pilots import Sides, actors_alone, fastest, learner_alone, plan, run_pilot, with_threads
    from asyncrl.envs.source import EnvSource

    config, algorithm, seconds = options.config, options.algorithm, options.seconds
    source = EnvSource.from_user(config.env).changed(config.env_kwargs, config.wrappers, **config.of_agents)
    bare = run_until_signal(trial(server, source, seconds))
    if options.fixed:
        pilots = [run_pilot(config, algorithm, config.actors, config.envs, seconds)]
    else:
        live = sys.stderr.isatty() and not options.json
        cores = options.cores or usable_cores()
        pilots = plan(
            config,
            algorithm,
            seconds,
            cores=cores,
            env_threads=options.env_threads,
            batch_sizes=options.batch_sizes,
            on_pilot=_show if live else lambda pilot: None,
        )
    best = fastest(pilots)
    if options.env_threads is not None:
        config = with_threads(config, options.env_threads, best.env_threads)
    config = dataclasses.replace(config, num_actors=best.num_actors, envs_per_actor=best.envs_per_actor)
    actors, learner = (side(config, algorithm, seconds) for side in (actors_alone, learner_alone))
    return Sides(bare.steps_per_second, actors, learner, best), pilots


def _facts(sides: Sides, pilots: Sequence[Pilot]) -> dict[str, object]:
    return {
        "fastest": dataclasses.asdict(sides.together),
        "pilots": [dataclasses.asdict(pilot) for pilot in pilots],
        "environment": {"env_steps_per_second": sides.env_steps_per_second},
        "actors": {"env_steps_per_second": sides.actor_steps_per_second},
        "learner": {
            "updates_per_second": sides.learner.updates_per_second,
            "env_steps_per_second": sides.learner_steps_per_second,
        },
        "limit": sides.limit,
    }


def _show(pilot: Pilot) -> None:
    settings = f"{pilot.num_actors} actors with {pilot.envs_per_actor} environments"
    print(f"{settings}: {pilot.env_steps_per_second:,.0f} steps/s", file=sys.stderr, flush=True)


def _table(pilots: Sequence[Pilot]) -> str:
    """Table of the pilots; columns of what they do not vary are left out."""
    from asyncrl.cli.pilots import efficiency

    columns: dict[str, list[str]] = {"actors": [str(pilot.num_actors) for pilot in pilots]}
    if any(pilot.env_threads > 1 for pilot in pilots):
        columns["threads"] = [str(pilot.env_threads) for pilot in pilots]
    columns["envs each"] = [str(pilot.envs_per_actor) for pilot in pilots]
    if len({pilot.batch_size for pilot in pilots}) > 1:
        columns["batch"] = [str(pilot.batch_size) for pilot in pilots]
    columns["steps/s"] = [f"{pilot.env_steps_per_second:,.0f}" for pilot in pilots]
    if any(pilot.cores > pilots[0].cores for pilot in pilots):
        columns["of linear"] = [f"{efficiency(pilot, pilots[0]):.0%}" for pilot in pilots]
    columns |= {
        "updates/s": [f"{pilot.updates_per_second:,.0f}" for pilot in pilots],
        "learner waits": [f"{pilot.learner_wait_fraction:.0%}" for pilot in pilots],
        "actors wait": [f"{pilot.actor_wait_fraction:.0%}" for pilot in pilots],
        "actors' memory": [f"{pilot.actor_bytes / 1e6:,.0f} MB" for pilot in pilots],
    }
    return text_table(tuple(columns), list(zip(*columns.values(), strict=True)))


def _text(
    sides: Sides, pilots: Sequence[Pilot], total_steps: int | None, env_threads: str | None = None
) -> str:
    best, enough = sides.together, sides.learner_steps_per_second
    fastest = f"fastest      --actors {best.num_actors} --envs-per-actor {best.envs_per_actor}"
    if env_threads is not None:
        fastest += f" --env-kwargs {env_threads}:{best.env_threads}"
    if total_steps is not None and best.env_steps_per_second > 0:
        minutes = total_steps / best.env_steps_per_second / 60
        fastest += f": {total_steps:,} steps in {minutes:,.1f} minutes"
    pace = f"; enough for {enough:,.0f} steps/s" if enough is not None else ""
    lines = [
        _table(pilots),
        "",
        fastest,
        f"environment  {sides.env_steps_per_second:,.0f} steps/s: one, in one process, with random actions",
        f"actors       {sides.actor_steps_per_second:,.0f} steps/s while the learner is idle",
        f"learner      {sides.learner.updates_per_second:,.0f} updates/s while the actors are idle{pace}",
        f"limit        {LIMITS[sides.limit]}",
        "note         speed alone: with fewer environments, data are fresher and fewer steps may be needed",
    ]
    return "\n".join(lines)
