"""Groups of runs that may be averaged: runs with the same options but the seed.

Runs that differ in any other option are never averaged. It uses the standard library only, as `kept_run` does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.show.kept_run import PICKLES, KeptRun

LOCATION = ("trainer.run_dir", "trainer.env_file", "trainer.eval_env_file", "trainer.http", "trainer.host")
"""Options of where a run is kept and shown, in which any two runs may differ."""
NAMED_ALWAYS = ("trainer.env", "trainer.algo", "trainer.seed")
"""Options that a group's label has in any case, or that its runs need not share."""

ADDED = (
    *("dataset", "demonstrations", "init_from", "env_kwargs", "wrappers", "policies", "self_play"),
    *("eval_env", "eval_env_kwargs", "eval_levels", "eval_film", "on_end", "save_replay_buffer"),
    *("total_steps", "max_seconds", "target_return", "target_training_return"),
    *PICKLES.values(),
)
"""Options that add something to a run; a group's name leaves them out where there is nothing."""
LEAST_DIGITS, MOST_DIGITS, WIDEST_NUMBER = 4, 17, 8
"""Digits of floats in names; only those with more characters are shortened, such as the drawn ones of a search."""
PATHS = ("trainer.dataset", "trainer.demonstrations", "trainer.init_from")
"""Options that name a file or folder, absolute ones too."""


@dataclass(frozen=True)
class RunGroup:
    """Runs with the same options but the seed.

    Attributes:
        id: short hash of the options, the same whatever other runs there are.
        env: id of the environment.
        name: algorithm and the options in which the groups of this comparison differ, `dqn n_step=3`. Groups of
            several environments with one name are one setting.
        runs: at least one.
    """

    id: str
    env: str
    name: str
    runs: tuple[KeptRun, ...]

    @property
    def size(self) -> str:
        """Number of runs in words: `5 seeds`, `1 seed`, or `5 runs of 4 seeds` where a seed was run twice."""
        runs, seeds = len(self.runs), len({run.seed for run in self.runs})
        if runs > seeds:
            return f"{runs} runs of {_count(seeds, 'seed')}"
        return _count(seeds, "seed")

    def size_of(self, known: int) -> str:
        """`size` of a figure over the `known` runs that have it: `3 of 5 seeds`."""
        return self.size if known == len(self.runs) else f"{known} of {self.size}"


def group_runs(runs: Sequence[KeptRun]) -> list[RunGroup]:
    """Group runs by all options but the seed, in the order of each group's first run.

    A run whose options cannot be read is a group by itself.
    """
    found: dict[str, list[KeptRun]] = {}
    for run in runs:
        found.setdefault(_key(run), []).append(run)
    names = _names([members[0] for members in found.values()])
    return [
        RunGroup(key, members[0].env, name, tuple(members))
        for (key, members), name in zip(found.items(), names, strict=True)
    ]


def differing_options(runs: Sequence[KeptRun]) -> dict[str, list[Any]]:
    """Options that differ between runs, without `LOCATION`: by `table.option` each run's value, None if it has none."""
    options = [_options(run) for run in runs]
    names = dict.fromkeys(name for own in options for name in own)
    rows = {name: [own.get(name) for own in options] for name in names}
    return {name: values for name, values in rows.items() if any(value != values[0] for value in values)}


def _options(run: KeptRun) -> dict[str, Any]:
    """Every option of a run by `table.option`, without `LOCATION`; of those that are functions a digest."""
    found = {
        name: value
        for table, options in run.options.items()
        for option, value in options.items()
        if (name := f"{table}.{option}") not in LOCATION
    }
    # Without options there is nothing to group by.
    return found | {f"trainer.{name}": digest for name, digest in run.functions.items()} if found else {}


def _key(run: KeptRun) -> str:
    """Hash of all options but the seed; one that adds nothing counts as one that the run's version did not have."""
    options = {name: value for name, value in _options(run).items() if not _is_absence(name, value)}
    options.pop("trainer.seed", None)
    text = json.dumps(options, sort_keys=True, default=str) if options else f"unreadable {run.path}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _names(firsts: Sequence[KeptRun]) -> list[str]:
    """Name of each group by its first run; two groups of one environment have different names."""
    named = _distinguishing(firsts)
    short = [name.rpartition(".")[2] for name in named]
    shortest = {name: _shortest(_options(run).get(name) for run in firsts) for name in PATHS}
    digits = {name: _digits(_options(run).get(name) for run in firsts) for name in named}
    texts = []
    for run in firsts:
        options = _options(run)
        options |= {
            name: shortest[name][options[name]] for name in PATHS if isinstance(options.get(name), str)
        }
        shown = [
            f"{own if short.count(own) == 1 else name}={_text(options.get(name), digits[name])}"
            for name, own in zip(named, short, strict=True)
            if name.partition(".")[0] in run.options and not _is_absence(name, options.get(name))
        ]
        texts.append(" ".join(filter(None, [run.algo or run.path.name, ", ".join(shown)])))
    return texts


def _distinguishing(firsts: Sequence[KeptRun]) -> list[str]:
    """Options in which groups of one environment differ; an algorithm's among the groups that have its table."""
    found: dict[str, None] = {}
    for run in firsts:
        own = [other for other in firsts if other.env == run.env]
        for table in run.options:
            having = [other for other in own if table in other.options]
            for name in differing_options(having):
                if name.startswith(f"{table}.") and name not in NAMED_ALWAYS:
                    found[name] = None
    return sorted(found, key=lambda name: (name.startswith("trainer."), name))


def _shortest(paths: Iterable[object]) -> dict[str, str]:
    """Each path by its last parts, as few for all as tell them apart."""
    parts = {path: path.rstrip("/").split("/") for path in paths if isinstance(path, str)}
    for count in range(1, max(map(len, parts.values()), default=0) + 1):
        found = {path: "/".join(own[-count:]) for path, own in parts.items()}
        if len(set(found.values())) == len(found):
            return found
    return {path: path for path in parts}


def _is_absence(name: str, value: Any) -> bool:
    """Whether a run has nothing of what the option adds to it: `dataset=none`, `wrappers=[]`."""
    return name.removeprefix("trainer.") in ADDED and not value


def _digits(values: Iterable[object]) -> int:
    """Least number of significant digits, from `LEAST_DIGITS` on, that tells an option's floats apart."""
    floats = {value for value in values if isinstance(value, float)}
    enough = (
        n
        for n in range(LEAST_DIGITS, MOST_DIGITS)
        if len({_text(value, n) for value in floats}) == len(floats)
    )
    return next(enough, MOST_DIGITS)


def _text(value: Any, digits: int) -> str:
    if value is None:
        return "none"
    if isinstance(value, float) and len(text := f"{value:.{digits}g}") < len(repr(value)) > WIDEST_NUMBER:
        return text
    return value if isinstance(value, str) else json.dumps(value, default=str).replace('"', "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
