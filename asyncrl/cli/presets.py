"""`asyncrl presets`: list tuned settings by environment and algorithm, and the returns that they reached."""

from __future__ import annotations

import argparse

from asyncrl.algorithms.preset_files import is_family, load_presets
from asyncrl.algorithms.registry import ALGORITHMS, algorithm_name
from asyncrl.cli.flags import Parser
from asyncrl.cli.text_table import text_table


def make_parser() -> Parser:
    """Flags of `asyncrl presets`."""
    parser = Parser(
        "presets [ENV or ALGO]",
        "List the settings that are tuned for an environment, and the greedy return that they reached.",
        epilog="`asyncrl train ENV --algo ALGO` takes them; flags override them.",
    )
    parser.add_argument("NAME", nargs="?", help="an environment or an algorithm; prints the settings too")
    return parser


def run(options: argparse.Namespace) -> None:
    """Print the list."""
    rows = [
        (env, algo, preset.reached or "not measured")
        for algo in ALGORITHMS
        for env, preset in load_presets(algo).items()
    ]
    name = options.NAME
    if name is not None:
        rows = [
            row
            for row in rows
            if algorithm_name(name) == row[1] or name.lower() in row[0].lower() or is_family(row[0], name)
        ]
        if not rows:
            make_parser().error(f"no preset is for {name}; `asyncrl presets` lists all")
    print(text_table(("environment", "algorithm", "reached (greedy return)"), sorted(rows)))
    if name is not None:
        for env, algo, _ in sorted(rows):
            print("\n" + _settings(env, algo))


def _settings(env: str, algo: str) -> str:
    """Settings of a preset in the form of a config file."""
    preset = load_presets(algo)[env]
    lines = [f"# {algo} in {env}"]
    for table, options in (("trainer", preset.run), (algo, preset.algorithm)):
        lines += [f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in options.items())]
    return "\n".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else str(value)
