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
from asyncrl.interfaces import Batch, BoxAction, DiscreteAction, EnvSpec

UPDATES, ITEMS = 1000, 16
ITERATIONS = 20
SPECS = {
    "dqn": EnvSpec("any", (4,), "float32", DiscreteAction(3)),
    "sac": EnvSpec("any", (4,), "float32", BoxAction((-1.0,), (1.0,), (1,))),
}
SPECS["td7"] = SPECS["sac"]


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
    options: dict[str, Any] = {"learning_rate": 1e-4, "hidden_sizes": (32, 32), "adam_eps": 1e-4}
    if name == "td7":  # its noise, and the range of the targets that it saw, are each learner's own
        options |= {"target_noise": 0.0, "bound_targets": False}
    return ALGORITHMS[name](**options).make_updater(SPECS[name], "cpu", 0)


def share_noise(core: Any, first: int, count: int) -> None:
    """Replace a core's noise by rows `first ..` of a sequence shared by all cores; `count` items of 2 * ITEMS."""
    generator = torch.Generator().manual_seed(1)

    def draw(noise: torch.Tensor) -> torch.Tensor:
        whole = torch.randn(2, 2 * ITEMS, noise.shape[-1], generator=generator)
        noise.view(2, count, -1).copy_(whole[:, first : first + count])
        return noise

    core.draw = draw


def fused(
    core: Any, meeting: Meeting, rank: int, learn: Callable[[], None], rounds: int = UPDATES
) -> torch.Tensor:
    encoding = ENCODINGS["float32"](core.vector.parameters.numel())
    fusion = GradientFusion(core, meeting.peers(rank), encoding)
    learn()
    fusion.finish()
    assert fusion.statistics()["fusions"] == rounds + 1
    parameters: torch.Tensor = core.vector.parameters
    return parameters


def test_an_update_that_does_not_move_the_policy_says_so() -> None:
    core = ALGORITHMS["td3"](hidden_sizes=(8,), policy_delay=2).make_updater(SPECS["sac"], "cpu", 0)
    parts: list[slice] = []
    core.vector.on_step = lambda samples, ends, part: bool(parts.append(part))
    for batch in batches(SPECS["sac"], 0)[:4]:
        core.update(half(batch, 0))
    assert parts == [core.vector.weighted, slice(None)] * 2


def test_td7_moves_all_but_the_actors_head_in_every_update() -> None:
    core = ALGORITHMS["td7"](hidden_sizes=(8,)).make_updater(SPECS["sac"], "cpu", 0)
    parts: list[tuple[int, int | None]] = []
    core.vector.on_step = lambda samples, ends, part: bool(parts.append((part.start, part.stop)))
    for batch in batches(SPECS["sac"], 0)[:4]:
        before = core.vector.parameters.clone()
        core.update(half(batch, 0))
        moved = (core.vector.parameters != before).nonzero()
        assert moved.min() >= parts[-1][0]
    head = core._slices["policy"].stop
    assert parts == [(head, None), (0, None)] * 2


@pytest.mark.parametrize("name", ["dqn", "sac", "td7"])
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


@pytest.mark.parametrize(("name", "normalize"), [("ppo", False), ("ppo", True), ("impala", True)])
def test_on_policy_updates_are_those_of_one_learner_with_both_segments(
    segment_rig: Any, name: str, normalize: bool
) -> None:
    spec = segment_rig.SPECS["discrete"]
    options = {"epochs": 10, "normalize_advantages": normalize, "learning_rate": 1e-4, "adam_eps": 1e-4}
    options["normalize_rewards"] = False  # by statistics of a group's own
    whole = {"minibatch_size": 4096} if name == "ppo" else {"minibatches": 1}
    algorithm = segment_rig.record(name, **options, **whole)
    one, meeting = algorithm.make_updater(spec, "cpu", 0), Meeting(2)
    given = [segment_rig.batch_of(algorithm, spec, one, seed=seed) for seed in range(5)]
    start = one.vector.parameters.clone()
    for iteration in range(ITERATIONS):
        assert segment_rig.iterate(one, given[iteration % 5]) == 10

    def rank(index: int) -> torch.Tensor:
        core = algorithm.make_updater(spec, "cpu", 0)

        def learn() -> None:
            for iteration in range(ITERATIONS):
                segment_rig.iterate(core, [given[iteration % 5][index]])

        standardising = {"ppo": ITERATIONS, "impala": 10 * ITERATIONS}[name] if normalize else 0
        return fused(core, meeting, index, learn, 10 * ITERATIONS + standardising)

    first, second = on_ranks(2, rank)
    assert torch.equal(first, second)
    assert (one.vector.parameters - start).abs().max() > 1e-2, "it has learned"
    assert (first - one.vector.parameters).abs().max() < 1e-6


def test_groups_whose_passes_differ_in_length_keep_the_same_weights(segment_rig: Any) -> None:
    spec = segment_rig.SPECS["discrete"]
    algorithm = segment_rig.record("ppo", epochs=3, minibatch_size=30)
    first = algorithm.make_updater(spec, "cpu", 0)
    given = [segment_rig.batch_of(algorithm, spec, first, seed=seed, count=3) for seed in range(8)]

    def rank(index: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        core = algorithm.make_updater(spec, "cpu", 0)
        encoding = ENCODINGS["float32"](core.vector.parameters.numel())
        fusion = GradientFusion(core, meeting.peers(index), encoding)
        seen = []
        for segments in given[: 8 - 3 * index]:  # of one segment, and of three, which have more steps
            segment_rig.iterate(core, segments[: 1 + 2 * index])
            seen.append(core.vector.parameters.clone())
        fusion.finish()
        return core.vector.parameters, seen

    meeting = Meeting(2)
    (one, _), (other, seen) = on_ranks(2, rank)
    assert torch.equal(one, other)
    assert torch.isfinite(one).all() and not torch.equal(one, seen[0])
