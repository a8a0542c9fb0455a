"""Identity environments of every kind of observation are solved; the benchmark runs all algorithms on all of them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from benchmarks.learning import identity

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("dqn", "discrete"), ("rainbow", "image"), ("c51", "tuple"), ("qrdqn", "masked")),
        *(("ppo", "multi_discrete"), ("a2c", "multi_binary"), ("impala", "dict"), ("td3", "box")),
    ],
)
def test_identity_is_solved(name: str, kind: str) -> None:
    result = identity.solve(name, partial(identity.Identity, kind), 0.9 * identity.LENGTH)
    assert result.stop_reason == "target_return", result.summary


@pytest.mark.parametrize("name", ["rainbow", "sac"])
def test_random_images_in_colour_go_through(name: str) -> None:
    result = identity.look(name, identity.FakeImages)
    assert result.stop_reason == "total_steps" and result.summary["updates"] > 0
    action, _ = result.policy.predict(np.zeros((2, 40, 40, 3), np.uint8))
    assert result.policy.make_env().action_space.contains(action)


def test_the_benchmark_has_every_algorithm_and_kind() -> None:
    assert {name for name, _ in identity.CASES} == set(identity.ALGORITHMS)
    assert {kind for _, kind in identity.CASES} == set(identity.ACTIONS)
