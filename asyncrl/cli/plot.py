"""`asyncrl plot RUN...`: plot learning curves in the terminal or to an image file."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from asyncrl.cli.flags import Parser
from asyncrl.cli.text_table import existing_run
from asyncrl.errors import ConfigurationError
from asyncrl.show.kept_run import KeptRun, find_runs

NAMES = {"eval/mean_reward": "greedy return", "rollout/ep_rew_mean": "training return"}


def make_parser() -> Parser:
    """Flags of `asyncrl plot`."""
    parser = Parser(
        "plot RUN... [options]",
        "Plot the return of runs: a line for every environment and algorithm, the mean of its seeds with a "
        "band of one standard deviation.",
    )
    parser.add_argument("RUN", nargs="+", help="directories of runs, or folders of them")
    parser.add_argument("--out", metavar="FILE", help="write a PNG, SVG or PDF instead (needs matplotlib)")
    parser.add_argument("--x", choices=("steps", "seconds"), default="steps", help="the axis (steps)")
    parser.add_argument("--metric", metavar="NAME", help="a name in metrics.jsonl, such as train/loss")
    parser.add_argument("--each", action="store_true", help="a line for each run")
    return parser


def run(options: argparse.Namespace) -> None:
    """Plot."""
    from asyncrl.show.curves import curves, default_metric

    runs: list[KeptRun] = []
    for path in options.RUN:
        runs += find_runs(Path(path).expanduser()) or [existing_run(path)]
    metric = options.metric or default_metric(runs)
    lines = curves(runs, metric, options.x, each=options.each)
    if not lines:
        raise ConfigurationError(
            f"no run has {metric}",
            facts={"runs": len(runs)},
            fix="name a metric that metrics.jsonl has, with --metric",
        )
    name = NAMES.get(metric, metric)
    if options.out:
        from asyncrl.show.picture import write_picture

        file = Path(options.out).expanduser()
        write_picture(file, lines, f"{name} over {options.x}", options.x, name)
        print(file)
    else:
        from asyncrl.show.text_plot import text_plot

        width = min(110, shutil.get_terminal_size((80, 24)).columns - 1)
        print(text_plot(lines, f"{name} over {options.x}", options.x, width=width))
