"""Options: help from docstrings, accepted spellings, ranges, and the configuration file with its errors."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from asyncrl.config import TrainerConfig, usable_cores, with_final_episodes
from asyncrl.errors import ConfigurationError
from asyncrl.options import (
    Coefficient,
    Count,
    Range,
    check_options,
    coerce,
    describe,
    near_miss,
    option_help,
    parse_count,
)
from asyncrl.storage.config_file import TRAINER, dump_config, make_record, read_config


@dataclass(frozen=True, kw_only=True)
class Toy:
    learning_rate: Coefficient = 1e-3
    """Step size of
    the optimiser."""

    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer."""

    dueling: bool = True
    """Whether the head is split."""

    kind: Literal["hard", "soft"] = "soft"
    """How targets follow."""

    clip: float | None = None
    """Largest norm of the gradient."""

    def __post_init__(self) -> None:
        check_options(self)


ALGORITHMS = {"toy": Toy}


def load(file: Path) -> tuple[TrainerConfig, Toy]:
    """Both records of a file, made as on the command line."""
    tables = read_config(file, ALGORITHMS)
    run = make_record(TrainerConfig, tables.get(TRAINER, {}), file=file, path=TRAINER)
    return run, make_record(Toy, tables.get("toy", {}), file=file, path="toy")


def config(**changes: object) -> TrainerConfig:
    return TrainerConfig(**{"env": "CartPole-v1", "algo": "toy", **changes})  # type: ignore[arg-type]


def test_help_is_the_docstring_under_the_field() -> None:
    options = option_help(Toy)
    assert options["learning_rate"].text == "Step size of the optimiser."
    assert options["learning_rate"].help == "Step size of the optimiser. At least 0."
    assert options["learning_rate"].default == 1e-3
    assert options["learning_rate"].type is float
    assert list(options) == [field.name for field in dataclasses.fields(Toy)]
    assert option_help(TrainerConfig)["env"].required
    assert not option_help(TrainerConfig)["seed"].required


@dataclass(frozen=True, kw_only=True)
class Ranged:
    count: Count | Literal["auto"] = 1
    """Count."""

    share: Annotated[float | None, Range(above=0, below=1)] = None
    """Share."""

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class Narrower(Ranged):
    count: Annotated[int, Range(at_least=2, at_most=8)] = 2
    share: float | None = 0.5


@pytest.mark.parametrize(
    ("record", "values", "rule"),
    [
        (Ranged, {"count": 1, "share": 0.5}, None),
        (Ranged, {"count": "auto", "share": None}, None),
        (Ranged, {"count": "3"}, None),
        (Ranged, {"count": 0}, "count must be at least 1, got 0"),
        (Ranged, {"share": 0}, "share must be greater than 0 and below 1, got 0.0"),
        (Ranged, {"share": 1.0}, "share must be greater than 0 and below 1, got 1.0"),
        (Narrower, {"count": 8}, None),
        (Narrower, {"count": 1}, "count must be from 2 to 8, got 1"),
        (Narrower, {"share": 1.0}, "share must be greater than 0 and below 1, got 1.0"),
    ],
)
def test_the_range_of_a_field_or_its_base_is_checked(
    record: type, values: dict[str, object], rule: str | None
) -> None:
    if rule is None:
        made = record(**values)
        assert made.count in (1, 2, 3, 8, "auto")
        return
    with pytest.raises(ValueError) as error:
        record(**values)
    assert str(error.value) == rule


def test_every_option_of_a_run_has_help() -> None:
    for option in option_help(TrainerConfig).values():
        assert option.help.endswith("."), option.name
        assert describe(option.type)


def test_an_option_without_help_is_refused() -> None:
    @dataclass
    class Silent:
        said: int = 1
        """Said."""
        unsaid: int = 2

    with pytest.raises(ValueError, match=r"Silent\.unsaid must have a docstring under it, got none"):
        option_help(Silent)
    with pytest.raises(TypeError, match="record must be a dataclass"):
        option_help(int)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("200000", 200_000),
        ("200_000", 200_000),
        ("200k", 200_000),
        ("1.5M", 1_500_000),
        ("1e6", 1_000_000),
        ("2G", 2_000_000_000),
        ("1.0005k", None),
        ("0.5", None),
        ("k", None),
        ("many", None),
        ("inf", None),
        ("nan", None),
        ("1e999999999", None),
        ("1e30", None),
        ("", None),
    ],
)
def test_counts_as_people_write_them(text: str, value: int | None) -> None:
    if value is not None:
        assert parse_count(text) == value
        return
    with pytest.raises(ValueError, match=r"is not a|is 2\*\*63 or larger"):
        parse_count(text)


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (int, 3, 3),
        (int, 3.0, 3),
        (int, "3k", 3000),
        (int, np.int64(3), 3),
        (float, 1, 1.0),
        (float, "1e-3", 1e-3),
        (float, np.float32(0.5), 0.5),
        (bool, "false", False),
        (bool, True, True),
        (str, "x", "x"),
        (int | None, "none", None),
        (int | None, None, None),
        (float | None, "2", 2.0),
        (int | Literal["auto", "off"], "8080", 8080),
        (int | Literal["auto", "off"], "off", "off"),
        (str | int, "8080", 8080),
        (tuple[int, ...], [64, 64], (64, 64)),
        (tuple[int, ...], "64,32", (64, 32)),
    ],
)
def test_values_are_converted(kind: object, given: object, value: object) -> None:
    got = coerce("option", kind, given)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        (int, "many", "n must be a whole number, got 'many'"),
        (int, 1.5, "n must be a whole number, got 1.5"),
        (int, True, "n must be a whole number, got True"),
        (float, True, "n must be a number, got True"),
        (float, float("nan"), "n must be a number, got nan"),
        (bool, 1, "n must be true or false, got 1"),
        (bool, "maybe", "n must be true or false, got 'maybe'"),
        (str, 1, "n must be a text, got 1"),
        (int | None, "some", "n must be a whole number or none, got 'some'"),
        (Literal["a", "b"], "c", "n must be one of a, b, got 'c'"),
        (Literal["a", "b"], [], "n must be one of a, b, got []"),
        (tuple[int, ...], 64, "n must be a list, each item a whole number, got 64"),
        (tuple[int, ...], "64,x", "n must be a list, each item a whole number, got '64,x'; write 64,64"),
        (
            tuple[int, ...],
            "[64,64]",
            "n must be a list, each item a whole number, got '[64,64]'; write 64,64",
        ),
    ],
)
def test_wrong_types_are_named(kind: object, given: object, text: str) -> None:
    with pytest.raises(ValueError) as error:
        coerce("n", kind, given)
    assert str(error.value) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("num_actors", 0, "num_actors must be at least 1, got 0"),
        ("envs_per_actor", 0, "envs_per_actor must be at least 1, got 0"),
        ("seed", -1, "seed must be at least 0, got -1"),
        ("total_steps", 0, "total_steps must be at least 1, got 0"),
        ("max_seconds", 0, "max_seconds must be greater than 0, got 0.0"),
        ("report_interval_seconds", 0, "report_interval_seconds must be greater than 0, got 0.0"),
        ("report_interval_steps", 0, "report_interval_steps must be at least 1, got 0"),
        ("eval_interval_steps", 0, "eval_interval_steps must be at least 1, got 0"),
        ("torch_threads", 0, "torch_threads must be from 1 to 1024, got 0"),
        ("http", 0, "http must be auto, off or a port from 1 to 65535, got 0"),
        ("http", "on", "http must be a whole number or one of auto, off, got 'on'"),
        ("device", "tpu", "device must be one of auto, cpu, cuda, got 'tpu'"),
        ("env", "", "env must not be empty, got ''"),
        ("num_actors", "two", "num_actors must be a whole number or none, got 'two'"),
    ],
)
def test_ranges_are_named(name: str, value: object, text: str) -> None:
    with pytest.raises(ValueError) as error:
        config(**{name: value})
    assert str(error.value) == text


def test_a_target_needs_evaluations_while_it_trains() -> None:
    rule = "target_return must come with eval_interval_steps, got none"
    with pytest.raises(ValueError) as error:
        config(target_return=475, eval_interval_steps=None)
    assert str(error.value) == rule
    assert config(eval_interval_steps="none").eval_interval_steps is None


@pytest.mark.parametrize("fusion", ["gradients", "async"])
@pytest.mark.parametrize(("name", "value"), [("learning_rate", 0.7), ("momentum", 0.9), ("moments", True)])
def test_the_outer_step_is_of_average_alone(fusion: str, name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^fusion_{name} must be .* with fusion='{fusion}', got {value}$"):
        config(fusion=fusion, **{f"fusion_{name}": value})
    config(fusion="average", **{f"fusion_{name}": value})


def test_a_velocity_decays() -> None:
    with pytest.raises(ValueError, match=r"^fusion_momentum must be at least 0 and below 1, got 1"):
        config(fusion="average", fusion_momentum=1.0)


def test_a_path_is_a_directory_and_a_count_a_number() -> None:
    made = config(run_dir=Path("runs") / "x", total_steps="200k")
    assert made.run_dir == "runs/x"
    assert made.total_steps == 200_000


def test_actors_follow_the_cores() -> None:
    assert config(num_actors=3).actors == 3
    assert config().actors == max(1, usable_cores() - 1)


@pytest.mark.parametrize(
    ("actors", "each"), [(1, 16), (2, 8), (3, 5), (4, 4), (6, 3), (9, 2), (15, 1), (31, 1), (63, 1)]
)
def test_all_actors_together_have_about_16_environments_whatever_their_number(actors: int, each: int) -> None:
    assert config(num_actors=actors).envs == each
    assert config(num_actors=actors, envs_per_actor=7).envs == 7
    assert config(num_actors=actors, self_play="newest").envs == max(2, each)


def test_a_run_on_a_dataset_has_no_actors_to_share_environments() -> None:
    assert config(dataset="d").envs == 16


def test_a_file_holds_every_option_and_reads_back(tmp_path: Path) -> None:
    run = config(seed=7, target_return=475, http=8080, run_dir="runs/ü\n'\"")
    toy = Toy(learning_rate=2e-3, hidden=(32,), dueling=False, kind="hard")
    text = dump_config(run, toy)
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    assert load(file) == (run, toy)
    for record, table in ((run, "trainer"), (toy, "toy")):
        written = tomllib.loads(text)[table]
        for name, option in option_help(type(record)).items():
            assert f"# {option.help}\n" in text
            assert (name in written) == (getattr(record, name) is not None)


def test_an_option_that_is_none_stays_so_in_the_file(tmp_path: Path) -> None:
    run = config(eval_interval_steps=None, report_interval_steps=None, target_eval_episodes=None)
    file = tmp_path / "config.toml"
    file.write_text(dump_config(run, Toy()), encoding="utf-8")
    assert load(file)[0] == run


@pytest.mark.parametrize(
    ("given", "below", "episodes"),
    [
        ({}, {}, (100, 100)),
        ({"eval_episodes": 5}, {}, (5, 100)),
        ({"eval_episodes": 5, "target_return": 475}, {}, (100, 100)),
        ({"eval_episodes": 5, "target_eval_episodes": 20}, {}, (20, 20)),
        ({"eval_episodes": 5}, {"target_eval_episodes": 20}, (20, 20)),
        ({"eval_episodes": 5}, {"target_eval_episodes": 100, "eval_episodes": 10}, (5, 100)),
    ],
)
def test_the_final_evaluation_has_the_episodes_that_were_asked_for(
    given: dict[str, Any], below: dict[str, Any], episodes: tuple[int, int]
) -> None:
    made = config(**{**below, **with_final_episodes(given, below)})
    assert (made.final_episodes, made.confirming_episodes) == episodes


def fails(tmp_path: Path, text: str) -> ConfigurationError:
    file = tmp_path / "run.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as error:
        load(file)
    assert error.value.code == "ASYNC017"
    assert error.value.exit_code == 1
    assert error.value.facts["file"] == file
    return error.value


HEAD = '[trainer]\nenv = "CartPole-v1"\nalgo = "toy"\n'


@pytest.mark.parametrize(
    ("text", "what", "key", "miss"),
    [
        (HEAD + "num_actor = 2", "trainer.num_actor", "trainer.num_actor", "trainer.num_actors"),
        (HEAD + "[toy]\nlearning_rat = 1.0", "toy.learning_rat", "toy.learning_rat", "toy.learning_rate"),
        (HEAD + "learning_rate = 1.0", "trainer.learning_rate", "trainer.learning_rate", "toy.learning_rate"),
        ("[trainr]", "trainr", "trainr", "trainer"),
        ("seed = 1", "seed", "seed", "trainer.seed"),
        (HEAD + "learning_rat = 1.0", "trainer.learning_rat", "trainer.learning_rat", "toy.learning_rate"),
        (HEAD + "bogus = 1", "trainer.bogus", "trainer.bogus", None),
        (HEAD + "[zzz]", "zzz", "zzz", None),
    ],
)
def test_unknown_keys_name_file_path_and_near_miss(
    tmp_path: Path, text: str, what: str, key: str, miss: str | None
) -> None:
    error = fails(tmp_path, text)
    assert error.what == f"run.toml sets an option that does not exist: {what}"
    assert error.facts["key"] == key
    assert error.facts.get("did you mean") == miss
    assert (f"write {miss}" in error.fix) == (miss is not None)


@pytest.mark.parametrize(
    ("text", "what", "key"),
    [
        (HEAD + "num_actors = 0", "run.toml: num_actors must be at least 1, got 0", "trainer.num_actors"),
        (HEAD + "seed = 'x'", "run.toml: seed must be a whole number, got 'x'", "trainer.seed"),
        (
            HEAD + "[toy]\nlearning_rate = -1.0",
            "run.toml: learning_rate must be at least 0, got -1.0",
            "toy.learning_rate",
        ),
        (HEAD + "[toy]\ndueling = 1", "run.toml: dueling must be true or false, got 1", "toy.dueling"),
        ("trainer = 3", "run.toml: trainer must be a table, got 3", "trainer"),
        ('[trainer]\nenv = "x"', "run.toml: algo must be given, got nothing", "trainer.algo"),
    ],
)
def test_wrong_values_name_file_and_key(tmp_path: Path, text: str, what: str, key: str) -> None:
    error = fails(tmp_path, text)
    assert error.what == what
    assert error.facts["key"] == key
    assert error.fix == f"change {key}"


def test_a_file_that_is_not_there_or_not_toml(tmp_path: Path) -> None:
    assert "run.toml is not a TOML file: " in fails(tmp_path, "a = = 1").what
    (tmp_path / "latin.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(ConfigurationError, match=r"latin\.toml is not a TOML file"):
        read_config(tmp_path / "latin.toml", ALGORITHMS)
    with pytest.raises(ConfigurationError, match="cannot be read: No such file") as error:
        read_config(tmp_path / "none.toml", ALGORITHMS)
    assert error.value.facts == {"file": tmp_path / "none.toml"}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").touch()
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory") as error:
        read_config(tmp_path / "run", ALGORITHMS)
    assert error.value.fix == f"name the file in it: {tmp_path / 'run' / 'config.toml'}"


def test_near_miss() -> None:
    assert near_miss("leraning-rate", ["learning-rate", "seed"]) == "learning-rate"
    assert near_miss("xyz", ["learning-rate", "seed"]) is None
