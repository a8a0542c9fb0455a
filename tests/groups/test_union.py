"""Two groups with fused gradients make the updates of one learner with both batches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from group_rig import Meeting, on_ranks

from asyncrl.algorithms import ALGORITHMS
from asyncrl.groups.gradient_fusion import GradientFusion
from asyncrl.groups.messages import ENCODINGS
from asyncrl.groups.rounds import Rounds
from asyncrl.interfaces import Batch, BoxAction, DiscreteAction, EnvSpec

UPDATES, ITEMS = 1000, 16
SPECS = {
    "dqn": EnvSpec("any", (4,), "float32", DiscreteAction(3)),
    "sac": EnvSpec("any", (4,), "float32", BoxAction((-1.0,), (1.0,), (1,))),
}


def batches(spec: EnvSpec, seed: int) -> list[Batch]:
    """Ten batches of 2 * ITEMS transitions."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(10):
        batch = Batch.allocate(2 * ITEMS, spec)
        batch.obs[:], batch.next_obs[:] = rng.normal(size=(2, *batch.obs.shape))
        discrete = isinstance(spec.action, DiscreteAction)
        batch.action[:] = (
            rng.integers(0, 3, 2 * ITEMS) if discrete else rng.uniform(-1, 1, batch.action.shape)
        )
        batch.reward[:] = rng.normal(size=2 * ITEMS)
        batch.discount[:] = np.where(rng.random(2 * ITEMS) < 0.2, 0.0, 0.9)
        batch.weight[:] = rng.random(2 * ITEMS) + 0.5
        found.append(batch)
    return found


def half(batch: Batch, index: int) -> Batch:
    names = ("obs", "action", "reward", "discount", "next_obs", "weight", "ids", "version", "policy_updates")
    rows = slice(index * ITEMS, (index + 1) * ITEMS)
    return Batch(**{name: getattr(batch, name)[rows].copy() for name in (*names, "staleness")})


def replay_core(name: str) -> Any:
    options = {"learning_rate": 1e-4, "hidden_sizes": (32, 32), "adam_eps": 1e-4}
    return ALGORITHMS[name](**options).make_updater(SPECS[name], "cpu", 0)


def share_noise(core: Any, first: int, count: int) -> None:
    """Replace a core's noise by rows `first ..` of a sequence shared by all cores; `count` items of 2 * ITEMS."""
    generator = torch.Generator().manual_seed(1)

    def draw(noise: torch.Tensor) -> torch.Tensor:
        whole = torch.randn(2, 2 * ITEMS, noise.shape[-1], generator=generator)
        noise.view(2, count, -1).copy_(whole[:, first : first + count])
        return noise

    core.draw = draw


def fused(core: Any, meeting: Meeting, rank: int, learn: Callable[[], None]) -> torch.Tensor:
    rounds = Rounds(meeting.peers(rank), ENCODINGS["float32"](core.vector.parameters.numel()), tail=1)
    fusion = GradientFusion(rounds, core)
    learn()
    fusion.finish()
    assert fusion.statistics().fusions == UPDATES + 1
    parameters: torch.Tensor = core.vector.parameters
    return parameters


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_replay_updates_are_those_of_one_learner_with_both_batches(name: str) -> None:
    spec = SPECS[name]
    given = batches(spec, 3)
    one = replay_core(name)
    if name == "sac":
        share_noise(one, 0, 2 * ITEMS)
    start = one.vector.parameters.clone()
    for update in range(UPDATES):
        one.update(given[update % 10])

    def rank(index: int) -> torch.Tensor:
        core, own = replay_core(name), [half(batch, index) for batch in given]
        if name == "sac":
            share_noise(core, index * ITEMS, ITEMS)

        def learn() -> None:
            for update in range(UPDATES):
                core.update(own[update % 10])

        return fused(core, meeting, index, learn)

    meeting = Meeting(2)
    first, second = on_ranks(2, rank)
    assert torch.equal(first, second)
    assert (one.vector.parameters - start).abs().max() > 1e-2, "it has learned"
    assert (first - one.vector.parameters).abs().max() < 1e-6


@pytest.fixture
def segment_rig() -> Iterator[Any]:
    folder = str(Path(__file__).parents[1] / "algorithms")
    sys.path.insert(0, folder)
    import segment_rig

    yield segment_rig
    sys.path.remove(folder)


def test_ppos_updates_are_those_of_one_learner_with_both_segments(segment_rig: Any) -> None:
    spec = segment_rig.SPECS["discrete"]
    options = {"epochs": 10, "minibatch_size": 4096, "normalize_advantages": False, "learning_rate": 1e-4}
    algorithm = segment_rig.record("ppo", **options, adam_eps=1e-4)
    one, meeting = algorithm.make_updater(spec, "cpu", 0), Meeting(2)
    given = [segment_rig.batch_of(algorithm, spec, one, seed=seed) for seed in range(5)]
    start = one.vector.parameters.clone()
    for iteration in range(UPDATES // 10):
        assert segment_rig.iterate(one, given[iteration % 5]) == 10

    def rank(index: int) -> torch.Tensor:
        core = algorithm.make_updater(spec, "cpu", 0)

        def learn() -> None:
            for iteration in range(UPDATES // 10):
                segment_rig.iterate(core, [given[iteration % 5][index]])

        return fused(core, meeting, index, learn)

    first, second = on_ranks(2, rank)
    assert torch.equal(first, second)
    assert (one.vector.parameters - start).abs().max() > 1e-2, "it has learned"
    assert (first - one.vector.parameters).abs().max() < 1e-6
