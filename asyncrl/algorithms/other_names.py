"""Option names of Stable-Baselines3, its zoo, CleanRL and RLlib, mapped to asyncrl's names (`other_names.toml`)."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.config import TrainerConfig
from asyncrl.options import near_miss, option_help

CLOSEST = {
    "a3c": ("a2c", "the actors are asynchronous there too; or impala"),
    "appo": ("ppo", "it is asynchronous"),
    "apex": ("dqn", "its replay is prioritized, and num_actors actors fill it"),
    "apexdqn": ("dqn", "its replay is prioritized, and num_actors actors fill it"),
    "trpo": ("ppo", "target_kl stops the epochs of a batch that have gone too far"),
    "acktr": ("ppo", ""),
    "vpg": ("a2c", ""),
    "reinforce": ("a2c", ""),
    "recurrentppo": ("ppo", "with recurrent lstm"),
    "ppolstm": ("ppo", "with recurrent lstm"),
    "maskableppo": ("ppo", "it reads action_mask in a Dict observation"),
    "ppomask": ("ppo", "it reads action_mask in a Dict observation"),
    "her": ("sac", "it relabels goals of goal environments by itself: n_sampled_goal"),
    "ddqn": ("dqn", "it is double by default"),
    "doubledqn": ("dqn", "it is double by default"),
    "duelingdqn": ("dqn", "with dueling"),
    "noisydqn": ("dqn", "with noisy"),
    "per": ("dqn", "its replay is prioritized"),
    "drqn": ("r2d2", ""),
    "iqn": ("qrdqn", ""),
    "fqf": ("qrdqn", ""),
    "d4pg": ("tqc", ""),
    "redq": ("crossq", "as few steps, without an ensemble"),
    "droq": ("crossq", "as few steps, without dropout"),
    "simba": ("sac", ""),
}
"""Algorithms of other libraries, without signs and in small letters: the closest one here, and a note."""

_LOG = "trainer.log(name, value), or trainer.log({name: value})"
ATTRIBUTES = {
    "Hyperparameters": {
        "learn": "Trainer(env, {own}()).learn(total_steps=...)",
        "train": "Trainer(env, {own}()).learn(total_steps=...)",
        "predict": "result = Trainer(env, {own}()).learn(total_steps=...), then result.policy.predict(obs)",
        "save": "result = Trainer(env, {own}()).learn(total_steps=...), then result.policy.save(path)",
        "load": "asyncrl.load(path), which acts by predict(obs), or Trainer.resume(run_dir), which goes on training",
        "policy": "result.policy, of the result of Trainer(env, {own}()).learn(total_steps=...)",
        "env": "Trainer(env, {own}())",
        "set_env": "Trainer(env, {own}())",
        "get_env": "result.policy.make_env(), of the result of Trainer(env, {own}()).learn(total_steps=...)",
        "logger": f"{_LOG} in a callback",
    },
    "Callback": {
        "logger": _LOG,
        "model": "trainer, the first argument of every method",
        "training_env": "trainer, the first argument of every method; its environments are in the actors' processes",
        "num_timesteps": "trainer.snapshot().env_steps",
        "n_calls": "a count of your own; on_report(trainer, snapshot) has snapshot.env_steps",
        "locals": "snapshot, the second argument of on_report",
    },
    "Trainer": {
        "load": "asyncrl.load(path), or Trainer.resume(run_dir), which goes on training",
        "logger": _LOG,
        "record": _LOG,
        "log_dict": _LOG,
        "log_metrics": _LOG,
        "add_scalar": _LOG,
        "set_env": "trainer.set_env_kwargs(...), or a new Trainer",
        "predict": "result.policy.predict(obs), of the result of learn()",
        "save": "result.policy.save(path), of the result of learn(); run_dir keeps the whole run",
        "policy": "result.policy, of the result of learn()",
        "get_env": "result.policy.make_env()",
        "env": "result.policy.make_env()",
        "num_timesteps": "trainer.snapshot().env_steps",
        "evaluate": "result.evaluation, or `asyncrl eval RUN`",
        "train": "trainer.learn(total_steps=...)",
        "fit": "trainer.learn(total_steps=...)",
    },
    "TrainResult": {
        "predict": "result.policy.predict(obs)",
        "save": "result.policy.save(path)",
        "make_env": "result.policy.make_env()",
        "env_steps": 'result.summary["env_steps"]',
        "num_timesteps": 'result.summary["env_steps"]',
        "return_mean": "result.evaluation.return_mean",
        "mean_reward": "result.evaluation.return_mean",
        "final_return": "result.evaluation.return_mean",
        "history": "result.returns and result.evaluations; a run_dir has metrics.jsonl",
        "metrics": "result.summary; a run_dir has metrics.jsonl",
    },
}
"""Attributes that users of other libraries look for, by class, and what to write here; `{own}` is the class's name."""

VALUES = {("ent_coef", "auto"): "none tunes it, which is the default"}
"""Values of other libraries, by option and the beginning of the value, and what to write here."""

TABLE = Path(__file__).with_name("other_names.toml")


@dataclass(frozen=True)
class OtherName:
    """Entry for an option name of another library.

    Attributes:
        ours: names in asyncrl, the best first; empty if there is no counterpart.
        note: difference of the values, or what to do instead; may be "".
        of_run: whether it is an option of the run, not of the algorithm.
    """

    ours: tuple[str, ...]
    note: str
    of_run: bool


@functools.cache
def other_names() -> Mapping[str, OtherName]:
    """All entries of the table by name."""
    tables = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {
        name: OtherName(tuple(entry.get("ours", ())), entry.get("note", ""), table == "run")
        for table, entries in tables.items()
        for name, entry in entries.items()
    }


def closest_algorithm(name: str) -> tuple[str | None, str]:
    """The closest algorithm here to one of another library, and a sentence that says so; None and "" if unknown."""
    plain = "".join(filter(str.isalnum, name.lower()))
    if plain not in CLOSEST:
        return None, ""
    ours, note = CLOSEST[plain]
    return ours, f"asyncrl has no {name.upper()}; closest is {ours}" + (f" ({note})" if note else "")


def answer(name: str, known: Collection[str]) -> tuple[str | None, str] | None:
    """Look up asyncrl's name for an option of another library.

    Args:
        name: the other library's name, with underscores.
        known: options that the caller accepts.

    Returns:
        `(ours, note)`, `(None, note)` if no counterpart is in `known`, or None if the table does not have the name.
    """
    other = other_names().get(name)
    if other is None:
        return None
    return next((ours for ours in other.ours if ours in known), None), other.note


def unknown_option(name: str, known: Collection[str], owner: str) -> str:
    """Error text for an unknown keyword argument: `DQN has no option 'lr'; asyncrl calls it ...`."""
    text = f"{owner} has no option {name!r}"
    if name in option_help(TrainerConfig).keys() - {*known, "algo"} and owner != "Trainer":
        given = f"{owner}()" if name == "env" else f"{owner}(), {name}=..."
        return f"{text}; it is an option of Trainer: write Trainer(env, {given})"
    other = other_names().get(name)
    if other is not None:
        ours, note = answer(name, known) or (None, "")
        if ours is not None:
            return f"{text}; asyncrl calls it {ours}" + (f" ({note})" if note else "")
        if other.ours:
            home = ", an option of Trainer" if other.of_run else f", which {owner} does not have"
            if owner == "Trainer":
                home = ", an option of the algorithm"
            return f"{text}; asyncrl calls it {other.ours[0]}{home}" + (f" ({note})" if note else "")
        return f"{text}: {note}"
    miss = near_miss(name, known)
    return text + (f"; did you mean {miss}?" if miss else "")


def unknown_attribute(thing: object, name: str) -> AttributeError:
    """Error for an attribute that an object or a class lacks, with what to write where another library has it."""
    kind = thing if isinstance(thing, type) else type(thing)
    own, bases = kind.__name__, [base.__name__ for base in kind.__mro__]
    hint = next((ATTRIBUTES[base][name] for base in bases if name in ATTRIBUTES.get(base, ())), "")
    text = f"type object {own!r}" if thing is kind else f"{own!r} object"
    text += f" has no attribute {name!r}"
    if hint:
        only = "it holds options only, " if "Hyperparameters" in bases else ""
        text += f"; {only}write {hint.replace('{own}', own)}"
    return AttributeError(text, name=name, obj=thing)


class Answering(type):
    """Type of the classes whose missing attributes are answered, `PPO.load` of Stable-Baselines3."""

    if not TYPE_CHECKING:  # a type checker would take every name

        def __getattr__(cls, name: str) -> Any:
            raise unknown_attribute(cls, name)


def refuse_other_value(name: str, value: object) -> None:
    """Raise ValueError for a value of another library that has another form here."""
    hint = VALUES.get((name, value.partition("_")[0])) if isinstance(value, str) else None
    if hint is not None:
        raise ValueError(f"{name} has no value {value!r}; {hint}")
