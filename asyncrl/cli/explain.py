"""`asyncrl explain OPTION`: print the documentation of one option.

It is collected from the records, the presets and the table of other libraries' names.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.algorithms import ALGORITHMS
from asyncrl.algorithms.other_names import other_names
from asyncrl.algorithms.preset_files import load_presets
from asyncrl.algorithms.registry import algorithm_name
from asyncrl.cli.flags import SHORT, Parser, flag_of, metavar, shown
from asyncrl.config import TrainerConfig
from asyncrl.options import Option, describe, near_miss, option_help

RUN = "run"
WIDTH = 100


def make_parser() -> Parser:
    """Flags of `asyncrl explain`."""
    parser = Parser(
        "explain OPTION",
        "Tell what an option does, its type, range, defaults, presets and names elsewhere.",
        epilog="Written as in Python (samples_per_insert), on the command line (--dqn.samples-per-insert), or in\n"
        "Stable-Baselines3, CleanRL and RLlib (buffer_size).",
    )
    parser.add_argument("OPTION", help="name of the option")
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse. Raises SystemExit with code 2 for a wrong argument."""
    parser = make_parser()
    # The option may be written as a flag, but this command has no such flag.
    plain = [word if word in ("-h", "--help") else word.removeprefix("--") for word in arguments]
    return parser.parse_exactly(plain)


def run(options: argparse.Namespace) -> None:
    """Print the explanation."""
    text, known = explain(options.OPTION)
    if not known:
        make_parser().error(text)
    print(text)


def explain(name: str) -> tuple[str, bool]:
    """Explanation of an option, or a hint at the right name; and whether the option is known.

    Args:
        name: in any form: `samples_per_insert`, `--dqn.samples-per-insert`, `dqn.tau`, `buffer_size`.
    """
    prefix, _, option = name.removeprefix("--").removeprefix("no-").replace("-", "_").rpartition(".")
    option = {flag.removeprefix("--"): name for name, flag in SHORT.items()}.get(option, option)
    only = algorithm_name(prefix) if prefix else None
    owners = _owners(option)
    if only is not None and only in owners:
        owners = {only: owners[only]}
    if owners:
        return _explanation(option, owners), True
    other = other_names().get(option)
    if other is None:
        return _metric(name) if "/" in name else (_unknown(name, option), False)
    said = f"{option} is a name of other libraries" + (f": {other.note}" if other.note else "")
    found = [_explanation(ours, where) for ours in other.ours if (where := _owners(ours))]
    if other.ours:
        said = said.replace(" libraries", f" libraries; asyncrl calls it {' or '.join(other.ours)}", 1)
    return "\n\n".join([textwrap.fill(said, WIDTH, break_on_hyphens=False), *found]), True


def _unknown(name: str, option: str) -> str:
    """Hint for a name that is no option, here or elsewhere; one of our options is named before another library's."""
    if algorithm_name(name) in ALGORITHMS:
        return f"{name} is an algorithm; `asyncrl train --help {algorithm_name(name)}` lists its options"
    if re.fullmatch(r"ASYNC\d+", name):
        return f"{name} is the code of an error or a warning; docs/troubleshooting.md explains it"
    records: tuple[type, ...] = (TrainerConfig, *ALGORITHMS.values())
    ours = {known for record in records for known in option_help(record)}
    miss = near_miss(option, ours) or near_miss(option, other_names())
    hint = f"; did you mean {miss}?" if miss else "; `asyncrl train --help ALGO` lists them all"
    return f"there is no option {option}{hint}"


def _metric(name: str) -> tuple[str, bool]:
    """Meaning and unit of a metric by its public name, `train/loss`, and whether the table has it."""
    # Imported here: the table loads numba, and most names are those of options.
    from asyncrl.show.metrics import EVALUATION_METRICS, RUN_METRICS

    row = next((row for row in (*RUN_METRICS, *EVALUATION_METRICS) if row.name == name), None)
    if row is None:
        text = f"{name} is no option; docs/metrics.md and the pages of the algorithms explain the metrics"
        return text, False
    return f"{name} is a metric: {row.help}" + (f" ({row.unit})" if row.unit else ""), True


def _owners(option: str) -> dict[str, Option]:
    """Options of this name, by the record that has them (`run` or an algorithm)."""
    records: Mapping[str, type] = {RUN: TrainerConfig, **ALGORITHMS}
    return {
        name: known[option] for name, record in records.items() if option in (known := option_help(record))
    }


def _explanation(name: str, owners: Mapping[str, Option]) -> str:
    whose = "every run" if RUN in owners else ", ".join(owners)
    lines = [*textwrap.wrap(f"{name}: option of {whose}", WIDTH, subsequent_indent="  "), ""]
    texts = _grouped({owner: option.text for owner, option in owners.items()})
    for text, of in texts.items():
        said = text if len(texts) == 1 else f"{', '.join(of)}: {text}"
        lines += [*textwrap.wrap(said, WIDTH - 2, initial_indent="  ", subsequent_indent="  "), ""]
    return "\n".join([*lines, *_facts(name, owners)])


def _facts(name: str, owners: Mapping[str, Option]) -> list[str]:
    example = next((owner for owner in (RUN, "dqn", "ppo", "sac") if owner in owners), next(iter(owners)))
    of_run, option = example == RUN, owners[example]
    value = "" if option.type is bool else f" {metavar(option)}"
    facts = {
        "flag": [flag_of(name, "" if of_run else f"{example}.") + value],
        "python": [
            f"{'Trainer(env, algorithm, ' if of_run else ALGORITHMS[example].__name__ + '('}{name}=...)"
        ],
        "file": [f"[{'trainer' if of_run else example}] {name} = ..."],
        "type": [_by_owner({owner: describe(option.type) for owner, option in owners.items()})],
        "range": [_by_owner({owner: option.range for owner, option in owners.items()})],
        "default": [_by_owner({owner: _default(option) for owner, option in owners.items()})],
        "presets": _presets(name, owners),
        "elsewhere": [
            ", ".join(sorted(other for other, entry in other_names().items() if name in entry.ours))
        ],
    }
    lines = []
    for label, texts in facts.items():
        for number, text in enumerate(filter(None, texts)):
            indent = f"  {label if number == 0 else '':<11}"
            indents: dict[str, Any] = {"initial_indent": indent, "subsequent_indent": " " * len(indent)}
            lines += textwrap.wrap(text, WIDTH, break_on_hyphens=False, **indents)
    return lines


def _default(option: Option) -> str:
    if option.required:
        return ""
    return "nothing" if option.default in ({}, (), "") else shown(option.default)


def _grouped(texts: Mapping[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for owner, text in texts.items():
        groups.setdefault(text, []).append(owner)
    return groups


def _by_owner(texts: Mapping[str, str]) -> str:
    """`16.0 for dqn, c51; 256.0 for sac`, or only the text if it is the same for all."""
    groups = {text: of for text, of in _grouped(texts).items() if text}
    if len(groups) == 1 and len(texts) == sum(map(len, groups.values())):
        return next(iter(groups))
    return "; ".join(f"{text} for {', '.join(of)}" for text, of in groups.items())


def _presets(name: str, owners: Mapping[str, Option]) -> list[str]:
    """One line per value: `32.0 in CartPole-v1 (c51, dqn), LunarLander-v3 (dqn)`."""
    values: dict[str, dict[str, list[str]]] = {}
    for algorithm in ALGORITHMS if RUN in owners else owners:
        for env, preset in load_presets(algorithm).items():
            settings = preset.run if RUN in owners else preset.algorithm
            if name in settings:
                value = settings[name]
                text = shown(tuple(value) if isinstance(value, list) else value)
                values.setdefault(text, {}).setdefault(env, []).append(algorithm)
    return [
        f"{value} in " + ", ".join(f"{env} ({', '.join(algorithms)})" for env, algorithms in envs.items())
        for value, envs in values.items()
    ]
