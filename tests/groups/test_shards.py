"""Shards of one prioritized replay: groups with fused gradients equal one learner with the whole replay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from group_rig import Meeting, on_ranks

from asyncrl.algorithms import ALGORITHMS
from asyncrl.groups.gradient_fusion import GradientFusion
from asyncrl.groups.messages import ENCODINGS
from asyncrl.interfaces import Batch, BoxAction, DiscreteAction, EnvSpec
from asyncrl.networks.flat_vector import Drawn

UPDATES, ITEMS, GROUPS, BETA = 200, 12, 3, 0.6
ROWS = (40, 90, 25)
"""Rows of each group's shard."""
SPECS = {
    "dqn": EnvSpec("any", (4,), "float32", DiscreteAction(3)),
    "td3": EnvSpec("any", (4,), "float32", BoxAction((-1.0,), (1.0,), (1,))),
}


class Shard:
    """Rows with priorities, drawn by cumulated priority; slow reference."""

    def __init__(self, rows: int, seed: int, scale: float) -> None:
        self.rng = np.random.default_rng(seed)
        self.priorities = scale * self.rng.uniform(0.1, 3.0, rows)
        self.obs, self.next_obs = self.rng.normal(size=(2, rows, 4))
        self.reward, self.action = self.rng.normal(size=rows), self.rng.integers(0, 3, rows)

    def draw(self) -> np.ndarray:
        masses = (np.arange(ITEMS) + self.rng.random(ITEMS)) / ITEMS * self.priorities.sum()
        return np.searchsorted(np.cumsum(self.priorities), masses)

    def fill(self, batch: Batch, at: slice, rows: np.ndarray) -> None:
        batch.obs[at], batch.next_obs[at] = self.obs[rows], self.next_obs[rows]
        batch.reward[at], batch.discount[at] = self.reward[rows], 0.9
        if batch.action.ndim == 1:
            batch.action[at] = self.action[rows]
        else:
            batch.action[at] = 0.5 * (self.action[rows, None] - 1)


def shards(name: str) -> list[Shard]:
    equal = name == "td3"  # its actor's loss has no weights, so one learner cannot count shards differently
    found = [Shard(rows, seed, 1.0 + 4 * seed) for seed, rows in enumerate(ROWS)]
    if equal:
        for shard in found:
            shard.priorities *= 60.0 / shard.priorities.sum()
    return found


def make_core(name: str) -> Any:
    options = {"learning_rate": 1e-3, "hidden_sizes": (16, 16), "adam_eps": 1e-4, "prioritized": True}
    return ALGORITHMS[name](**options).make_updater(SPECS[name], "cpu", 0)


def without_noise(core: Any) -> Any:
    core.draw = lambda noise: noise.zero_()
    return core


def one_learner(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """One learner with all shards, stratified over them; weights by the formula for one replay."""
    core, replay = without_noise(make_core(name)), shards(name)
    start = core.vector.parameters.clone()
    total, count = sum(s.priorities.sum() for s in replay), sum(ROWS)
    batch = Batch.allocate(GROUPS * ITEMS, SPECS[name])
    for _ in range(UPDATES):
        weights = []
        for group, shard in enumerate(replay):
            rows = shard.draw()
            shard.fill(batch, slice(group * ITEMS, (group + 1) * ITEMS), rows)
            weights.append((count * shard.priorities[rows] / total) ** -BETA)
        largest = max(w.max() for w in weights)
        # Each shard gives the same number of items, so its items stand for its share of the priority.
        shares = [GROUPS * shard.priorities.sum() / total for shard in replay]
        batch.weight[:] = np.concatenate([w / largest * s for w, s in zip(weights, shares, strict=True)])
        core.update(batch)
    return start, core.vector.parameters


@pytest.mark.parametrize("name", ["dqn", "td3"])
def test_importance_weights_are_those_of_one_replay_over_all_shards(name: str) -> None:
    start, expected = one_learner(name)
    meeting = Meeting(GROUPS)

    def rank(index: int) -> torch.Tensor:
        core, shard = without_noise(make_core(name)), shards(name)[index]
        size = core.vector.parameters.numel()
        fusion = GradientFusion(core, meeting.peers(index), ENCODINGS["float32"](size))
        batch = Batch.allocate(ITEMS, SPECS[name])
        for _ in range(UPDATES):
            rows = shard.draw()
            shard.fill(batch, slice(None), rows)
            drawn = shard.priorities[rows]
            batch.weight[:] = (drawn / drawn.min()) ** -BETA
            core.vector.drawn = Drawn(shard.priorities.sum(), drawn.min() ** -BETA)
            core.update(batch)
        fusion.finish()
        parameters: torch.Tensor = core.vector.parameters
        return parameters

    found = on_ranks(GROUPS, rank)
    assert (expected - start).abs().max() > 1e-2, "it has learned"
    for own in found:
        assert torch.equal(own, found[0])
        assert (own - expected).abs().max() < 1e-5
