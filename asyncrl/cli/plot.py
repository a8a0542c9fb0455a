"""`asyncrl plot RUN...`: compare runs by their curves and results, in the terminal, as a picture or as a page."""

from __future__ import annotations

import argparse
import difflib
import math
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.cli.flags import Parser
from asyncrl.cli.text_table import existing_run, text_table
from asyncrl.errors import ConfigurationError
from asyncrl.show.kept_run import KeptRun, find_runs, is_logged
from asyncrl.show.numbers import interval, of_return, with_interval
from asyncrl.show.run_groups import RunGroup, group_runs

if TYPE_CHECKING:
    from asyncrl.show.comparison import GroupResult, SettingResult
    from asyncrl.show.curves import Curve

NAMES = {"eval/mean_reward": "greedy return", "rollout/ep_rew_mean": "training return"}
KNOWN_SCALES = "random,reference"
STUDY = "study.db"
"""File in the directory of a search, which is shown as its trials."""
SCREEN_LINES = 23
CHOICES = ("x", "metric", "line", "each", "normalise")
"""Flags that say what a plot shows."""


def make_parser() -> Parser:
    """Flags of `asyncrl plot`."""
    parser = Parser(
        "plot RUN... [options]",
        "Compare runs. Runs that share all options but the seed are one line: the mean of those that reach a step, "
        "with the 95 % bootstrap interval as its band. Every environment has axes of its own.",
    )
    parser.add_argument("RUN", nargs="+", help="directories of runs, folders of them, or that of a search")
    parser.add_argument(
        "--out", metavar="FILE", help="write a .png, .svg or .pdf (needs matplotlib) or an .html page"
    )
    parser.add_argument("--x", choices=("steps", "seconds"), default="steps", help="horizontal axis (steps)")
    parser.add_argument("--metric", metavar="NAME", help="a name in metrics.jsonl, such as train/loss")
    parser.add_argument(
        "--line", choices=("mean", "iqm"), default="mean", help="mean or interquartile mean (mean)"
    )
    parser.add_argument("--each", action="store_true", help="a line for each run")
    parser.add_argument(
        "--normalise",
        action="append",
        metavar="SCORES",
        help="show returns as scores, 0 for a random and 1 for a reference policy, and statistics over environments: "
        "random,reference takes known returns, ENV=LOW,HIGH gives those of one environment; may be repeated",
    )
    return parser


def run(options: argparse.Namespace) -> None:
    """Plot."""
    from asyncrl.show.comparison import over_environments, results
    from asyncrl.show.curves import curves, default_metric

    if len(options.RUN) == 1 and (search := Path(options.RUN[0]).expanduser() / STUDY).is_file():
        _refuse_choices(options, "the directory of a search, whose trials are plotted")
        return _plot_trials(search.parent, options.out)
    runs: dict[Path, KeptRun] = {}
    for path in options.RUN:
        found = find_runs(Path(path).expanduser()) or [existing_run(path)]
        runs |= {run.path.resolve(): run for run in found}  # a run that is named twice counts once
    groups = group_runs(list(runs.values()))
    if options.out and options.out.lower().endswith(".html"):
        _refuse_choices(options, "an .html page, whose reader chooses what it shows")
        return _write_page(Path(options.out).expanduser(), groups)
    metric = options.metric or default_metric(list(runs.values()))
    scales = _scales(options.normalise, groups)
    lines = curves(groups, metric, options.x, each=options.each, line=options.line, scales=scales)
    if not lines:
        raise _no_metric(metric, list(runs.values()))
    name = NAMES.get(metric, metric) + (", normalised" if scales else "")
    ends = results(groups, metric, scales)
    settings = over_environments(ends) if scales else []
    if options.out:
        from asyncrl.show.picture import write_picture

        file = Path(options.out).expanduser()
        write_picture(file, lines, name, options.x, settings)
        print(file)
    else:
        print(_in_the_terminal(lines, ends, settings, name, options))


def _refuse_choices(options: argparse.Namespace, what: str) -> None:
    """Exit with code 2 if a flag was given that says what a plot shows: `what` does not take it."""
    parser = make_parser()
    for name in CHOICES:
        if getattr(options, name) != parser.get_default(name):
            parser.error(f"argument --{name}: does not go with {what}")


def _no_metric(metric: str, runs: Sequence[KeptRun]) -> ConfigurationError:
    """Error for a metric that no run has, with those that there are by their sections, the most similar ones first."""
    from asyncrl.show.metrics import METRIC_NAMES

    names = list(dict.fromkeys(name for run in runs for name in run.last_values()))
    misspelt = metric not in METRIC_NAMES
    near = difflib.get_close_matches(metric, names, n=3, cutoff=0.4) if misspelt else []
    sections: dict[str, list[str]] = {"nearest": near, "logged": []}
    for name in names:
        sections.setdefault("logged" if is_logged(name) else name.partition("/")[0], []).append(name)
    fix = "name one of these with --metric" if names else "wait until a run has reported"
    return ConfigurationError(
        f"no run has {metric}" if misspelt else f"no run has reported {metric}",
        facts={"runs": len(runs)} | {name: ", ".join(own) for name, own in sections.items() if own},
        fix=f"did you mean --metric {near[0]}?" if near else fix,
    )


def _in_the_terminal(
    lines: Sequence[Curve],
    ends: Sequence[GroupResult],
    settings: Sequence[SettingResult],
    name: str,
    options: argparse.Namespace,
) -> str:
    from asyncrl.show.curves import by_environment
    from asyncrl.show.text_plot import text_plot

    parts = [_results_table(ends, options.line)] if any(end.values.size > 1 for end in ends) else []
    if settings:
        parts.append(_settings_table(settings, len({end.group.env for end in ends})))
    width = min(110, shutil.get_terminal_size((80, 24)).columns - 1)
    room = SCREEN_LINES - sum(part.count("\n") + 2 for part in parts)
    plots = by_environment(lines)
    plotted = [
        text_plot(own, f"{name} over {options.x}, {env}", options.x, width=width, height=max(14, room))
        for env, own in plots.items()
    ]
    return "\n\n".join(plotted + parts)


def _results_table(ends: Sequence[GroupResult], line: str) -> str:
    rows = [
        (
            end.group.env,
            end.group.name,
            str(end.values.size),
            of_return(end.mean.value),
            of_return(end.iqm.value),
            interval(shown.low, shown.high),
        )
        for end in ends
        for shown in (end.mean if line == "mean" else end.iqm,)
    ]
    bounds = f"95% interval of the {'mean' if line == 'mean' else 'IQM'}"
    header = ("last value of", "options", "runs", "mean", "IQM", bounds)
    return text_table(header, rows, right=header[2:], whole=header[2:], apart=header[:2])


def _settings_table(settings: Sequence[SettingResult], environments: int) -> str:
    title = f"over {environments} environments" if environments > 1 else "over 1 environment"
    names = list(settings[0].estimates)
    rows = [
        (own.name, str(own.runs), *(with_interval(e.value, e.low, e.high) for e in own.estimates.values()))
        for own in settings
    ]
    return text_table((title, "runs", *names), rows, right=("runs", *names), apart=(title,))


def _scales(given: Sequence[str] | None, groups: Sequence[RunGroup]) -> dict[str, tuple[float, float]]:
    """Scale of every environment, {} if none is asked for. Raises `ConfigurationError` if one lacks."""
    from asyncrl.show.aggregates import REFERENCE_SCORES

    scales: dict[str, tuple[float, float]] = {}
    for text in given or ():
        if text == KNOWN_SCALES:
            scales = {**REFERENCE_SCORES, **scales}
        else:
            env, scale = _own_scale(text)
            scales[env] = scale
    lacking = [env for env in dict.fromkeys(group.env for group in groups) if scales and env not in scales]
    if lacking:
        raise ConfigurationError(
            f"the returns of a random and a reference policy on {lacking[0]} are not known",
            facts={"environments": ", ".join(lacking)},
            fix=f"give them: --normalise {lacking[0]}=RANDOM,REFERENCE",
        )
    return scales


def _own_scale(text: str) -> tuple[str, tuple[float, float]]:
    found = re.fullmatch(r"(.+)=([^=,]+),([^=,]+)", text)
    try:
        if found and 0 < abs(float(found[2]) - float(found[3])) < math.inf:
            return found[1], (float(found[2]), float(found[3]))
    except ValueError:
        pass
    raise ConfigurationError(
        f"--normalise must be {KNOWN_SCALES} or ENV=LOW,HIGH with two different finite numbers, got {text!r}",
        fix="for example --normalise CartPole-v1=20,500",
    )


def _write_page(file: Path, groups: Sequence[RunGroup]) -> None:
    from asyncrl.server.answers import static_page
    from asyncrl.storage.atomic_file import write_atomically
    from asyncrl.storage.disk_space import error_of_file

    paths = [run.path for group in groups for run in group.runs]
    root = Path(os.path.commonpath([path.parent.absolute() for path in paths]))
    names = {run: run.path.absolute().relative_to(root).as_posix() for group in groups for run in group.runs}
    with error_of_file("the page", file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, [static_page(str(root), groups, names)])
    print(file)


def _plot_trials(folder: Path, out: str | None) -> None:
    """Show the trials of a search: their values in order and the best ones, or in a picture each option's values."""
    import numpy as np

    from asyncrl.show.curves import Curve
    from asyncrl.show.text_plot import text_plot
    from asyncrl.tuning.result import trials_table
    from asyncrl.tuning.study import kept_trials

    trials = kept_trials(folder)
    ended = [trial for trial in trials if trial.value is not None]
    if not ended:
        raise ConfigurationError(
            f"no trial in {folder} has a return yet",
            facts={"trials begun": len(trials), "failed": sum(trial.state == "failed" for trial in trials)},
            fix=f"plot again when the first trial has ended; asyncrl ls {shlex.quote(str(folder))} shows how far it is",
        )
    numbers, values = np.array([t.number for t in ended], float), np.array([t.value for t in ended], float)
    if out:
        from asyncrl.show.picture import write_slices

        file = Path(out).expanduser()
        names = list(dict.fromkeys(name for trial in ended for name in trial.options))
        slices = {
            name: [(t.options[name], float(t.value or 0.0)) for t in ended if name in t.options]
            for name in names
        }
        write_slices(file, {"trial": list(zip(numbers, values, strict=True)), **slices}, "value", folder.name)
        return print(file)
    complete = [
        value if trial.state == "complete" else -np.inf for trial, value in zip(ended, values, strict=True)
    ]
    best = np.maximum.accumulate(np.maximum(complete, values.min()))
    curves = [
        Curve("", name, "", numbers, line, line, line, np.ones_like(line))
        for name, line in (("best so far", best), ("value", values))
    ]
    width = min(110, shutil.get_terminal_size((80, 24)).columns - 1)
    print(text_plot(curves, f"value over trials, {folder.name}", "trials", width=width, height=14))
    header, rows = trials_table(ended)
    print(f"\n{text_table(header, rows, right=('trial', 'value'))}")
