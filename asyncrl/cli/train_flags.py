"""Flags of `asyncrl train`: the run's in sections, those of the chosen algorithm, and hints for all others.

asyncrl train --help          options of a run
asyncrl train --help dqn      and those of DQN
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence

from asyncrl.algorithms import ALGORITHMS, preset_options
from asyncrl.algorithms.other_names import answer as other_answer
from asyncrl.algorithms.other_names import closest_algorithm, other_names
from asyncrl.algorithms.registry import algorithm_name
from asyncrl.cli.flags import Parser, add_flags, count, flag_of
from asyncrl.cli.output import print_error
from asyncrl.config import TrainerConfig
from asyncrl.errors import AsyncRLError
from asyncrl.options import near_miss, option_help, texts_of_mapping

NOT_A_FIELD = ("config", "seeds", "jobs")
"""Flags of the command that are no options of a run."""
FIRST = (
    "algo",
    "seed",
    "num_actors",
    "envs_per_actor",
    "env_kwargs",
    "wrappers",
    "agent_id",
    "pad_spaces",
    "policies",
    "self_play",
    "self_play_fraction",
    "self_play_interval",
    "self_play_versions",
    "init_from",
    "dataset",
    "demonstrations",
    "demonstration_fraction",
)
"""Options of the first section of help, "what"."""
SECTIONS = {
    "stopping": "total_steps",
    "evaluation": "eval_interval_steps",
    "machine": "device",
    "groups": "groups",
    "files": "run_dir",
    "page": "http",
}
"""First option of every further section: it goes on to the first of another one, in the order of `TrainerConfig`."""
WITHOUT_HELP = ("env", "env_file", "eval_env_file")
"""Options without a flag in help: the first argument, and one that only a run's own `config.toml` sets."""


def sections() -> dict[str, list[str]]:
    """Options of the run by section of help."""
    found = {"what": list(FIRST), **{title: [] for title in SECTIONS}}
    starts, title = {name: title for title, name in SECTIONS.items()}, "what"
    for name in option_help(TrainerConfig):
        title = starts.get(name, title)
        if name not in (*FIRST, *WITHOUT_HELP):
            found[title].append(name)
    return found


def make_parser(algorithms: Sequence[str] | None = None) -> Parser:
    """Flags of `asyncrl train` with those of `algorithms` (names, None for all); each of these is imported."""
    names = list(ALGORITHMS) if algorithms is None else list(algorithms)
    parser = Parser(
        "train ENV --algo ALGO [options]",
        "Train an agent until --steps, --max-seconds, --target-return or Ctrl-C ends it.",
        epilog=textwrap.fill(f"algorithms: {' '.join(ALGORITHMS)}", 79) + "\n"
        "`asyncrl explain OPTION` tells all about one. `asyncrl presets` lists other\n"
        "defaults for known environments.",
        add_help=False,
        answer=lambda flag: answer(flag, names[0] if len(names) == 1 else None),
    )
    add_run_flags(parser, names)
    return parser


def add_run_flags(
    parser: Parser, algorithms: Sequence[str], skip: Sequence[str] = (), seeds: bool = True
) -> None:
    """Add the environment and the flags of a run in sections, then those of `algorithms`.

    Args:
        parser: gets them.
        algorithms: their names.
        skip: options of a run without a flag.
        seeds: whether there are flags for a run per seed.
    """
    for title, options in sections().items():
        group = parser.add_argument_group(title)
        if title == "what":
            group.add_argument("ENV", nargs="?", help="CartPole-v1, package:Env-v0 or module:Class")
            group.add_argument(
                "-h", "--help", action="help", help="Show this; --help dqn adds options of dqn"
            )
            group.add_argument("--config", metavar="FILE", help="TOML file with options; flags override it")
            if seeds:
                group.add_argument(
                    "--seeds", metavar="N|N,N", help="A run for each of N seeds from --seed, or of these"
                )
                add_jobs(group)
        add_flags(group, TrainerConfig, only=options, skip=skip, brief=True)
    for name in algorithms:
        group = parser.add_argument_group(f"options of {name}")
        add_flags(group, ALGORITHMS[name], prefix=f"{name}.", brief=True)


def add_jobs(group: argparse._ActionsContainer) -> None:
    """Add the flag for the number of runs at a time."""
    group.add_argument("--jobs", type=count, metavar="N", help="Runs at a time (as the cores allow)")


def algorithms_named(arguments: Sequence[str]) -> list[str]:
    """Algorithms named in a request for help, after `--help` or by `--algo`."""
    words = [word.removeprefix("--algo=") for word in arguments]
    found = [name for word in words if (name := algorithm_name(word)) in ALGORITHMS]
    return list(dict.fromkeys(found))


def last_value(arguments: Sequence[str], flag: str) -> str | None:
    """Last value of a flag in unparsed arguments, None if it is not given."""
    value = None
    for index, word in enumerate(arguments):
        if word == flag:
            value = arguments[index + 1] if index + 1 < len(arguments) else None
        elif word.startswith(f"{flag}="):
            value = word.removeprefix(f"{flag}=")
    return value


def above_preset(algorithm: str, env: str, texts: Sequence[str]) -> list[str]:
    """Keyword arguments of the environment as KEY:VALUE: those of the preset, and after them, above them, `texts`."""
    given = {text.partition(":")[0] for text in texts}
    below = preset_options(algorithm, env).get("env_kwargs", {})
    return [*texts_of_mapping({key: value for key, value in below.items() if key not in given}), *texts]


def answer(flag: str, algorithm: str | None) -> str | None:
    """Hint for a flag that does not exist; None if only the most similar flag can be named.

    Args:
        flag: as written.
        algorithm: the chosen algorithm, None if there is none.
    """
    name = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
    if name == "env":
        return "the environment is the first argument: asyncrl train CartPole-v1 --algo dqn"
    prefix, _, option = name.rpartition(".")
    owner = algorithm_name(prefix) if prefix else algorithm
    if owner is not None and owner in ALGORITHMS and owner != algorithm:
        return _of_another(owner, option, algorithm)
    if prefix and owner not in ALGORITHMS:
        return None
    own = option_help(ALGORITHMS[owner]) if owner is not None and owner in ALGORITHMS else {}
    if not prefix and option in own:
        return f"did you mean {flag_of(option, f'{owner}.')}?"
    return _of_another_library(option, owner if own else None)


def _of_another(owner: str, option: str, algorithm: str | None) -> str:
    """Hint for an option of an algorithm that was not chosen."""
    if algorithm is None:
        return (
            f"add --algo {owner}"
            if option in option_help(ALGORITHMS[owner])
            else f"--algo {owner} is missing"
        )
    text = f"the run is of {algorithm}, not of {owner}"
    if option in option_help(ALGORITHMS[algorithm]):
        text += f"; write {flag_of(option, f'{algorithm}.')}"
    return text


def _of_another_library(option: str, algorithm: str | None) -> str | None:
    own = option_help(ALGORITHMS[algorithm]) if algorithm else {}
    of_run = {*option_help(TrainerConfig), *NOT_A_FIELD}
    found = other_answer(option, {*own, *of_run})
    if found is None:
        return None
    ours, note = found
    if ours is None and other_names()[option].ours:
        ours = other_names()[option].ours[0]
        whose = "which " + (
            f"{algorithm} does not have" if algorithm else "is an option of the algorithm: give --algo"
        )
        return f"asyncrl calls it {ours}, {whose}"
    if ours is None:
        return note
    flag = "ENV" if ours == "env" else flag_of(ours, f"{algorithm}." if ours in own else "")
    return f"asyncrl calls it {flag}" + (f" ({note})" if note else "")


def check_algorithm(parser: Parser, name: str) -> None:
    """Exit with code 2 unless `name` is an algorithm; "" means that none was given."""
    if not name:
        parser.error(f"--algo is missing; one of {', '.join(ALGORITHMS)}")
    if (closest := closest_algorithm(name)[1]) and name not in ALGORITHMS:
        parser.error(closest)
    if name not in ALGORITHMS and (miss := near_miss(name.lower(), ALGORITHMS)):
        parser.unknown("algorithm", name, miss)
    if name not in ALGORITHMS:
        own = "one of your own is written module:Class"
        parser.error(f"unknown algorithm {name}; one of {', '.join(ALGORITHMS)}; {own}")


def reported_as_usage(error: ValueError, command: str, algorithm: str | None) -> int:
    """Report an error that begins with an option's name like a wrong flag, and return exit code 2; raise any other."""
    name = str(error).split(" ", 1)[0]
    of_algorithm = option_help(ALGORITHMS[algorithm]) if algorithm is not None else {}
    if isinstance(error, AsyncRLError) or name not in {*option_help(TrainerConfig), *of_algorithm}:
        raise error
    flag = flag_of(name, "" if name in option_help(TrainerConfig) else f"{algorithm}.")
    print_error(f"asyncrl {command}: error: argument {flag}: {error}")
    return 2
