"""`asyncrl doctor RUN`: faults of a run, one option to change for each, and the evidence."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
import textwrap
from typing import TYPE_CHECKING

from asyncrl.cli.flags import Parser, flag_of
from asyncrl.cli.text_table import existing_run

if TYPE_CHECKING:
    from asyncrl.show.diagnosis import Finding

WELL = "Nothing stands out."
UNKNOWN = "the options of the run are unknown, so that no advice is given."


def make_parser() -> Parser:
    """Flags of `asyncrl doctor`."""
    parser = Parser(
        "doctor RUN [--all] [--json]",
        "Say what is wrong with a run, which option to change, and what shows it.",
    )
    parser.add_argument("RUN", help="directory of a run, finished or not")
    parser.add_argument("--all", action="store_true", help="every finding, not only the most serious one")
    parser.add_argument("--json", action="store_true", help="print every finding as one JSON array")
    return parser


def run(options: argparse.Namespace) -> None:
    """Print the findings."""
    from asyncrl.show.diagnosis import diagnose
    from asyncrl.show.evidence import collect

    kept = existing_run(options.RUN)
    if not kept.options:
        print(f"{kept.path / 'config.toml'} is missing or damaged: {UNKNOWN}", file=sys.stderr)
    findings = diagnose(collect(kept))
    if options.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings]))
        return
    if not findings:
        print(WELL)
    else:
        shown = findings if options.all else findings[:1]
        print("\n\n".join(_text(finding, kept.algo) for finding in shown))
        if len(findings) > len(shown):
            print(f"\n{len(findings) - len(shown)} more: asyncrl doctor {shlex.quote(options.RUN)} --all")
    machine = kept.meta.get("machine")
    if isinstance(machine, dict) and "matrix_products" in machine:
        print(f"\nMatrix products on the CPU: {machine['matrix_products']}.")


def _text(finding: Finding, algo: str) -> str:
    lines = [finding.sentence]
    if finding.option:
        lines += _indented("change", f"{_flag(finding.option, algo)} to {finding.change}")
    return "\n".join([*lines, *_indented("evidence", finding.evidence)])


def _indented(label: str, text: str) -> list[str]:
    indent = f"  {label:<10}"
    return textwrap.wrap(text, 110, initial_indent=indent, subsequent_indent=" " * 12, break_on_hyphens=False)


def _flag(option: str, algo: str) -> str:
    from asyncrl.config import TrainerConfig
    from asyncrl.options import option_help

    return flag_of(option, "" if option in option_help(TrainerConfig) else f"{algo}.")
