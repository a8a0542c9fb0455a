"""Common options of replay algorithms: pace, publication and discipline, and refused values."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrl.algorithms import ALGORITHMS
from asyncrl.options import option_help

REPLAY = sorted(name for name, record in ALGORITHMS.items() if record.update_loop in ("replay", "sequences"))


@pytest.mark.parametrize("name", REPLAY)
def test_lockstep_needs_samples_per_insert(name: str) -> None:
    record: Any = ALGORITHMS[name]
    text = "samples_per_insert must be a number with discipline='lockstep', got None"
    with pytest.raises(ValueError, match=text):
        record(discipline="lockstep", samples_per_insert=None)
    assert record(discipline="lockstep", samples_per_insert=4).samples_per_insert == 4.0
    assert record(discipline="relaxed", samples_per_insert=None).samples_per_insert is None


@pytest.mark.parametrize("name", REPLAY)
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lockstep_lag": 0}, "lockstep_lag must be at least 1, got 0"),
        ({"publish_interval": 0}, "publish_interval must be at least 1, got 0"),
        ({"publish_interval": "often"}, "publish_interval"),
        ({"discipline": "synchronous"}, "discipline"),
        (
            {"samples_per_insert": float("inf")},
            "samples_per_insert must be greater than 0 and finite, got inf",
        ),
        (
            {"samples_per_insert_error": float("inf")},
            "samples_per_insert_error must be greater than 0 and finite, got inf",
        ),
        (
            {"replay_device": "cuda", "normalize_observations": True},
            "replay_device must be cpu or auto for (normalised observations|sequences|joint transitions), got cuda",
        ),
    ],
)
def test_options_outside_their_range_are_refused(name: str, options: dict[str, Any], text: str) -> None:
    record: Any = ALGORITHMS[name]
    with pytest.raises((ValueError, TypeError), match=text):
        record(**options)


@pytest.mark.parametrize("name", REPLAY)
def test_defaults_and_values_from_the_command_line(name: str) -> None:
    record: Any = ALGORITHMS[name]
    made = record()
    assert (made.publish_interval, made.lockstep_lag) == ("auto", 4)
    assert record(publish_interval="7").publish_interval == 7
    assert record(publish_interval="auto").publish_interval == "auto"
    assert record(publish_interval=1, lockstep_lag=1).lockstep_lag == 1


def test_sequences_are_gathered_on_the_cpu() -> None:
    record: Any = ALGORITHMS["r2d2"]
    with pytest.raises(ValueError, match="replay_device must be cpu or auto for sequences, got cuda"):
        record(replay_device="cuda")
    assert record(replay_device="auto").replay_device == "auto"


@pytest.mark.parametrize("precision", ["medium", "bfloat16"])
def test_a_server_in_lockstep_needs_products_of_one_precision(precision: str) -> None:
    record: Any = ALGORITHMS["dqn"]
    served = {"inference": "server", "matmul_precision": precision}
    with pytest.raises(ValueError, match=f"matmul_precision must be highest .*, got {precision}"):
        record(**served, discipline="lockstep")
    assert record(**served).matmul_precision == precision
    assert record(matmul_precision=precision, discipline="lockstep").inference == "actor"


@pytest.mark.parametrize("name", REPLAY)
def test_lockstep_promises_equal_bits_on_the_cpu_alone(name: str) -> None:
    """On a GPU torch's kernels may add in another order at every run."""
    assert option_help(ALGORITHMS[name])["discipline"].help.endswith("on the CPU to the bit.")
