"""Running statistics of batch normalisation under fusion: mixed, exact in every message, and never below zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from group_rig import Meeting, all_joined, on_ranks
from torch import Tensor, nn

from asyncrl.algorithms import ALGORITHMS
from asyncrl.groups.async_fusion import AsyncClient, AsyncServer, FusedWeights
from asyncrl.groups.messages import ENCODINGS, encoding_of
from asyncrl.groups.rounds import Rounds
from asyncrl.groups.shared_statistics import SharedStatistics
from asyncrl.groups.weight_fusion import AverageFuser, BackgroundFusion, Deltas
from asyncrl.interfaces import Batch, BoxAction, DiscreteAction, EnvSpec
from asyncrl.networks.flat_vector import FlatVector

BOX = EnvSpec("any", (3,), "float32", BoxAction((-2.0,), (2.0,), (1,)))
DISCRETE = EnvSpec("any", (3,), "float32", DiscreteAction(2))
SMALL: dict[str, Any] = {"hidden_sizes": (8,), "batch_size": 16}
UPDATES = 48


def own_network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, outputs))


def core_of(name: str = "crossq", spec: EnvSpec = BOX, **options: Any) -> Any:
    own: dict[str, Any] = {"norm_momentum": 0.8, "critic_hidden_sizes": (8,)} if name == "crossq" else {}
    return ALGORITHMS[name](**SMALL, **own, **options).make_updater(spec, "cpu", 0)


def learn(core: Any, rank: int) -> None:
    """Updates whose batches shrink, so that variances decay, and differ between ranks."""
    rng, batch = np.random.default_rng(rank), Batch.allocate(16, BOX)
    for update in range(UPDATES):
        scale = 0.8**update + 1e-3 + rank
        batch.obs[:], batch.next_obs[:] = scale * rng.normal(size=(2, *batch.obs.shape))
        batch.action[:] = rng.uniform(-2, 2, batch.action.shape)
        batch.reward[:], batch.discount[:], batch.weight[:] = rng.normal(size=16), 0.9, 1.0
        core.update(batch)
        assert variances(core).min() >= 0.0, f"update {update}"


def variances(core: Any) -> Tensor:
    modules = [*core.policy.modules, *core.critics.modules]
    return torch.cat([b.flatten() for m in modules for name, b in m.named_buffers() if name.endswith("_var")])


@pytest.mark.parametrize("dtype", ["float32", "topk"])
@pytest.mark.parametrize("mode", ["average", "async"])
def test_variances_stay_above_zero_in_all_groups(mode: str, dtype: str) -> None:
    meeting = Meeting(2)

    def rank(index: int) -> Tensor:
        core = core_of()
        vector = core.vector
        deltas = Deltas(vector.buffers)
        encoding = encoding_of(dtype, vector.parameters.numel(), vector.buffers)
        fuser: Any
        if mode == "average":
            outer: dict[str, Any] = {"learning_rate": 0.7, "momentum": 0.9}
            fuser = AverageFuser(
                Rounds(meeting.peers(index), encoding), vector.parameters, deltas=deltas, **outer
            )
        elif index == 0:
            server = AsyncServer(
                FusedWeights(vector.parameters, 8, deltas=deltas),
                *(encoding, [1], lambda rank: meeting.pair(rank, 0)),
                SharedStatistics(()),
            )
            fuser = all_joined(server, 1)
        else:
            fuser = AsyncClient(meeting.pair(1, 1), encoding, SharedStatistics(()), deltas)
        fusion = BackgroundFusion(fuser, vector, 4, exact=True)
        learn(core, index)
        fusion.finish()
        fusion.close()
        assert variances(core).min() >= 0.0
        return vector.parameters[vector.buffers].clone()

    first, second = on_ranks(2, rank)
    if mode == "average":
        assert torch.equal(first, second)


def test_a_statistic_is_mixed_and_has_no_outer_step() -> None:
    meeting, places = Meeting(2), torch.tensor([1, 2])
    given = torch.tensor([[1.0, 8.0, 4.0, 5.0], [3.0, 2.0, 6.0, 7.0]])

    def rank(index: int) -> list[float]:
        rounds = Rounds(meeting.peers(index), ENCODINGS["float32"](4))
        outer: dict[str, Any] = {"learning_rate": 0.5, "momentum": 0.9}
        fuser = AverageFuser(rounds, torch.ones(4), deltas=Deltas(places), **outer)
        fuser.begin(given[index], False)
        fused: list[float] = fuser.end()[0].tolist()
        return fused

    for fused in on_ranks(2, rank):
        assert fused == pytest.approx([1.0 + 0.95 * 1.0, 5.0, 5.0, 1.0 + 0.95 * 5.0])


def test_async_mixes_a_statistic_by_the_weight_of_its_staleness() -> None:
    weights = FusedWeights(torch.ones(3), 8, deltas=Deltas(torch.tensor([2])))
    out = torch.empty(3)
    weights.take(torch.tensor([1.0, 2.0, 9.0]), 0, out)
    assert out.tolist() == [2.0, 3.0, 9.0], "of staleness 0: the value itself"
    weights.take(torch.tensor([1.0, 2.0, 1.0]), 0, out)
    mixed = 9.0 + 2**-0.5 * (1.0 - 9.0)
    assert out.tolist() == pytest.approx([2.0 + 2**-0.5, 3.0 + 2 * 2**-0.5, mixed])


def test_a_statistic_stays_between_its_present_and_its_fused_value() -> None:
    class Fuser:
        def begin(self, snapshot: Tensor, finished: bool) -> None: ...

        def end(self) -> tuple[Tensor, bool]:
            return torch.tensor([1.0, 2.0, 7.0]), False

    flat = torch.tensor([4.0, 8.0, 8.0])
    vector = FlatVector(flat, torch.zeros(3), buffers=[flat[1:]])
    fusion = BackgroundFusion(Fuser(), vector, 1, exact=True)  # type: ignore[arg-type]
    fusion._begin(finished=False)
    flat.copy_(torch.tensor([2.0, 1.0, 8.5]))
    fusion._apply()
    assert flat.tolist() == [2.0 + 1.0 - 4.0, 1.0, 7.5]


@pytest.mark.parametrize("name", ["bfloat16", "int8", "topk"])
def test_statistics_are_exact_in_a_message(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    vector, places = torch.randn(1000, generator=generator), torch.tensor([3, 500, 999])
    encoding, out = encoding_of(name, 1000, places), torch.empty(1000)
    message = torch.zeros(encoding.message_bytes, dtype=torch.uint8)
    encoding.encode(vector, message)
    encoding.decode(message, out)
    assert torch.equal(out[places], vector[places])
    assert (out - vector).abs().max() < vector.abs().max()
    assert not torch.equal(out, vector)


@pytest.mark.parametrize(
    ("name", "spec"), [("dqn", DISCRETE), ("sac", BOX), ("td3", BOX), ("ppo", DISCRETE), ("impala", BOX)]
)
def test_a_vector_knows_the_statistics_of_a_users_network(name: str, spec: EnvSpec) -> None:
    options = {"segment_length": 8} if name in ("ppo", "impala") else {"batch_size": 16}
    vector = ALGORITHMS[name](network=own_network, **options).make_updater(spec, "cpu", 0).vector
    assert vector.buffers.numel() > 0 and vector.buffers.numel() % 12 == 0
    found = vector.parameters[vector.buffers].view(-1, 2, 6)
    assert torch.equal(found[:, 0], torch.zeros_like(found[:, 0])), "means"
    assert torch.equal(found[:, 1], torch.ones_like(found[:, 1])), "variances"
    other = torch.ones_like(vector.parameters, dtype=torch.bool)
    other[vector.buffers] = False
    assert not (vector.parameters[other].view(-1)[:6] == 1.0).all()


def test_a_perceptron_has_no_statistics() -> None:
    assert core_of("sac").vector.buffers.numel() == 0
