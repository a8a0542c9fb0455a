"""Identity environments of every kind of observation are solved; the benchmark runs all algorithms on all of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The benchmark; removed from the imported modules afterwards."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    yield importlib.import_module("identity")
    for name in ("identity", "harness"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("dqn", "discrete"), ("rainbow", "image"), ("c51", "tuple"), ("qrdqn", "masked")),
        *(("ppo", "multi_discrete"), ("a2c", "multi_binary"), ("impala", "dict"), ("td3", "box")),
    ],
)
def test_identity_is_solved(script: Any, name: str, kind: str) -> None:
    result = script.solve(name, partial(script.Identity, kind), 0.9 * script.LENGTH)
    assert result.stop_reason == "target_return", result.summary


@pytest.mark.parametrize("name", ["rainbow", "sac"])
def test_random_images_in_colour_go_through(script: Any, name: str) -> None:
    result = script.look(name, script.FakeImages)
    assert result.stop_reason == "total_steps" and result.summary["updates"] > 0
    action, _ = result.policy.predict(np.zeros((2, 40, 40, 3), np.uint8))
    assert result.policy.make_env().action_space.contains(action)


def test_the_benchmark_has_every_algorithm_and_kind(script: Any) -> None:
    assert {name for name, _ in script.CASES} == set(script.ALGORITHMS)
    assert {kind for _, kind in script.CASES} == set(script.ACTIONS)
