"""Rounds and gradient fusion over them, against their definition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from group_rig import Meeting, on_ranks, vector_of

from asyncrl.groups.gradient_fusion import GradientFusion
from asyncrl.groups.messages import ENCODINGS
from asyncrl.groups.rounds import Rounds
from asyncrl.networks.flat_vector import Drawn

SIZE, RANKS = 37, 3
ROUNDS, ABSENT = 200, slice(50, 100)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_a_round_is_the_weighted_mean_and_tells_all_ranks_the_same(name: str) -> None:
    meeting = Meeting(RANKS)
    generator = torch.Generator().manual_seed(0)
    given = torch.randint(-8, 9, (ROUNDS, RANKS, SIZE), generator=generator).float()
    weights = 2.0 ** torch.randint(0, 3, (ROUNDS, RANKS), generator=generator)
    weights[ABSENT, 1] = 0.0

    def rank(index: int) -> list[torch.Tensor]:
        rounds = Rounds(meeting.peers(index), ENCODINGS[name](SIZE), tail=1)
        found = []
        for step in range(ROUNDS):
            absent = index == 1 and step in range(ROUNDS)[ABSENT]
            vector = None if absent else given[step, index]
            round_ = rounds.exchange(
                vector, float(weights[step, index]), ends=step % 7 == index, tail=(10.0 * index,)
            )
            assert round_.ends == (step % 7 < RANKS)
            assert round_.tails.flatten().tolist() == [0.0, 10.0, 20.0]
            assert round_.table[:, 0].tolist() == weights[step].tolist()
            found.append(round_.mean(torch.empty(SIZE)))
        return found

    found = on_ranks(RANKS, rank)
    for step in range(ROUNDS):
        total = weights[step].sum()
        expected = (given[step] * weights[step, :, None]).sum(dim=0) / total
        for own in found:
            assert torch.equal(own[step], expected), f"round {step}"


@pytest.mark.parametrize("name", ["float32", "int8"])
def test_a_vector_without_weight_is_none(name: str) -> None:
    """Nobody reads it, so its error is not to be in the next message; nor is what is no number in the sum."""
    meeting = Meeting(2)

    def rank(index: int) -> list[torch.Tensor]:
        rounds, found = Rounds(meeting.peers(index), ENCODINGS[name](SIZE)), []
        for weight in (1.0, float(index), 1.0):
            vector = torch.full((SIZE,), 2.0) if weight else torch.full((SIZE,), torch.nan)
            found.append(rounds.exchange(vector, weight).mean(torch.empty(SIZE)))
        return found

    for means in on_ranks(2, rank):
        for mean in means:
            torch.testing.assert_close(mean, torch.full((SIZE,), 2.0))


class Counter:
    """A core whose state is the sum of its gradients."""

    def __init__(self) -> None:
        self.vector = vector_of(torch.zeros(SIZE))
        self.rounds_seen = 0

    def step(self, gradient: torch.Tensor) -> None:
        self.vector.begin_update()
        self.vector.gradient.copy_(gradient)
        if not self.vector.begin_step():
            self.vector.parameters.sub_(self.vector.gradient)
        self.rounds_seen += 1

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.vector.parameters.clone(), "seen": self.rounds_seen, "noise": id(self)}

    def load_state_dict(self, state: Any) -> None:
        assert state["noise"] == id(self), "random numbers stay a group's own"
        self.vector.parameters.copy_(state["weights"])
        self.rounds_seen = state["seen"]


def test_groups_that_end_early_have_the_state_of_those_that_went_on() -> None:
    meeting, updates = Meeting(RANKS), (40, 100, 70)
    given = torch.randint(-60, 61, (100, RANKS, SIZE), generator=torch.Generator().manual_seed(3)).float() * 6

    def rank(index: int) -> Counter:
        core = Counter()
        fusion = GradientFusion(core, meeting.peers(index), ENCODINGS["float32"](SIZE))
        for step in range(updates[index]):
            core.step(given[step, index])
        fusion.finish()
        assert fusion.statistics()["fusions"] == 101
        return core

    cores = on_ranks(RANKS, rank)
    expected = torch.zeros(SIZE)
    for step in range(100):
        active = [i for i in range(RANKS) if step < updates[i]]
        expected -= given[step, active].sum(dim=0) / len(active)
    for core in cores:
        assert torch.equal(core.vector.parameters, expected)
        assert core.rounds_seen == 100


def test_a_pass_ends_for_all_groups_where_it_ends_for_one() -> None:
    meeting = Meeting(2)

    def rank(index: int) -> list[bool]:
        core = Counter()
        fusion = GradientFusion(core, meeting.peers(index), ENCODINGS["float32"](SIZE))
        ends = [core.vector.begin_step(1.0, index == 1 and step == 3) for step in range(6)]
        fusion.finish()
        return ends

    assert on_ranks(2, rank) == [[step == 3 for step in range(6)]] * 2


@pytest.mark.parametrize("name", ["bfloat16", "int8", "topk"])
def test_error_feedback_keeps_its_meaning_where_importance_weights_change(name: str) -> None:
    """Batches' largest importance weights change a hundredfold; their sum of fused gradients stays that of float32."""
    meeting, size, updates = Meeting(2), 640, 150
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(2, size, generator=generator)
    noise = torch.randn(updates, 2, size, generator=generator)
    largest = 100.0 ** torch.rand(updates, 2, generator=generator)

    def run(encoding: str, index: int) -> torch.Tensor:
        vector, total = vector_of(torch.zeros(size)), torch.zeros(size)
        core: Any = SimpleNamespace(vector=vector)
        peers = meeting.peers(index, encoding)
        GradientFusion(core, peers, ENCODINGS[encoding](size))
        for step in range(updates):
            vector.gradient.copy_(mean[index] + 0.3 * noise[step, index])
            vector.drawn = Drawn(priority=1.0, largest_weight=float(largest[step, index]))
            vector.begin_step()
            total += vector.gradient
        return total

    for exact, lossy in on_ranks(2, lambda index: (run("float32", index), run(name, index))):
        error = float((lossy - exact).norm() / exact.norm())
        assert error < {"bfloat16": 4e-4, "int8": 1.5e-3, "topk": 0.4}[name], error


@pytest.mark.parametrize("name", ["bfloat16", "int8", "topk"])
def test_error_feedback_keeps_its_meaning_where_a_part_makes_fewer_steps(name: str) -> None:
    """The first half steps at every third update, as a delayed policy; what a message loses of it is not dropped."""
    meeting, size, updates, critics = Meeting(2), 640, 300, slice(320, None)
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(2, size, generator=generator)
    noise = torch.randn(updates, 2, size, generator=generator)

    def run(encoding: str, index: int) -> torch.Tensor:
        vector, total = vector_of(torch.zeros(size)), torch.zeros(size)
        core: Any = SimpleNamespace(vector=vector)
        GradientFusion(core, meeting.peers(index, encoding), ENCODINGS[encoding](size))
        for step in range(updates):
            part = critics if step % 3 else slice(None)
            before = vector.gradient[:320].clone()
            vector.gradient[part] = (mean[index] + 0.3 * noise[step, index])[part]
            vector.begin_step(part=part)
            assert part != critics or torch.equal(vector.gradient[:320], before)
            total[part] += vector.gradient[part]
        return total

    for exact, lossy in on_ranks(2, lambda index: (run("float32", index), run(name, index))):
        error = float((lossy - exact)[:320].norm() / exact[:320].norm())
        assert error < {"bfloat16": 4e-5, "int8": 2e-4, "topk": 0.1}[name], error
