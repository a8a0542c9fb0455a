"""R2D2: the loss by hand, the update against cells run row by row, actors' states against the learner's."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import fakes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from test_contract import filled_batch
from torch import Tensor, nn

from asyncrl.actors.actor import Actor
from asyncrl.actors.streams import PlainStreams
from asyncrl.algorithms.r2d2 import R2D2, r2d2_loss, rescale, rescale_inverse
from asyncrl.envs.checks import spec_of
from asyncrl.interfaces import DiscreteAction, EnvSpec, SequenceBatch
from asyncrl.networks.module import ModuleGradient
from asyncrl.networks.recurrent import state_behind
from asyncrl.replay import SequenceReplay
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment, WeightMailbox

SPEC = EnvSpec("test", (4,), "float32", DiscreteAction(3))
SMALL: dict[str, Any] = {
    "hidden_sizes": (6,),
    "recurrent_size": 5,
    "sequence_length": 4,
    "burn_in": 3,
    "n_step": 2,
    "max_grad_norm": None,
}


def columns(**values: Any) -> Any:
    """Columns of a batch of two sequences of two rows that the loss reads."""
    fields = {name: torch.tensor(value).double().unsqueeze(1) for name, value in values.items()}
    fields["action"] = fields["action"].long()
    return SimpleNamespace(size=2, low=torch.tensor(-9.0), high=torch.tensor(6.0), **fields)


def test_value_rescaling_by_hand() -> None:
    x = torch.tensor([0.0, 3.0, -8.0, 99.0]).double()
    wanted = [0.0, 1.0 + 0.003, -2.0 - 0.008, 9.0 + 0.099]
    torch.testing.assert_close(rescale(x), torch.tensor(wanted).double())
    values = torch.linspace(-300, 300, 1001)
    torch.testing.assert_close(rescale_inverse(rescale(values)), values, rtol=1e-4, atol=1e-5)
    formula = [
        math.copysign(((math.sqrt(1 + 0.004 * (abs(v) + 1.001)) - 1) / 0.002) ** 2 - 1, v) for v in wanted[1:]
    ]
    torch.testing.assert_close(rescale_inverse(torch.tensor(wanted[1:]).double()).tolist(), formula)


def test_loss_and_priorities_by_hand() -> None:
    q = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [0.0, 1.0]]).double()
    next_q = torch.tensor([[8.0, 0.0]] * 4).double()
    batch = columns(
        action=[1, 0, 1, 0],
        reward=[0.5, 10.0, 1.0, 0.0],
        discount=[0.25, 0.0, 1.0, 0.0],
        weight=[0.25, 0.25, 0.5, 0.0],
        trained=[1, 1, 1, 0],
    )
    chosen = torch.tensor([[0], [0], [1], [0]])
    plain = r2d2_loss(q, next_q, chosen, batch, None, bound_targets=False, value_rescaling=False, eta=0.75)
    # errors 2.5 - 2 = 0.5, 10 - 3 = 7 | 1 - 6 = -5, and a row that is not trained
    assert plain.loss.item() == 0.25 * (0.125 + 24.5) + 0.5 * 12.5
    assert plain.priorities[:, 0].tolist() == [0.75 * 7 + 0.25 * 3.75, 5.0]
    bound = r2d2_loss(q, next_q, chosen, batch, 1.0, bound_targets=True, value_rescaling=False, eta=1.0)
    # 8 is clipped to 6: 0.5 + 1.5 - 2 = 0
    assert bound.loss.item() == 0.25 * 6.5 + 0.5 * 4.5
    scaled = r2d2_loss(q, next_q, chosen, batch, None, bound_targets=False, value_rescaling=True, eta=0.0)
    inverse = rescale_inverse(next_q[0, 0])
    errors = [rescale(0.5 + 0.25 * inverse) - 2, rescale(torch.tensor(10.0).double()) - 3]
    mean = (abs(errors[0]) + abs(errors[1])) / 2
    torch.testing.assert_close(scaled.priorities[0, 0], mean)


def slow_step(module: Any, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One row of one stream by torch's cell: `[1, outputs]` and the next state."""
    cell, made = module.cell, (nn.GRUCell if isinstance(module.cell, nn.GRU) else nn.LSTMCell)
    one = made(cell.input_size, cell.hidden_size)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        delattr(one, name)
        setattr(one, name, getattr(cell, f"{name}_l0"))
    if isinstance(one, nn.GRUCell):
        h = state = one(module.encoder(x), state)
    else:
        h, c = one(module.encoder(x), tuple(state.chunk(2, dim=1)))
        state = torch.cat((h, c), dim=1)
    return module.head(h), state


def slow_values(
    module: Any, obs: Tensor, begins: Any, state: Tensor, burn_in: int, stop: bool
) -> list[Tensor]:
    """Outputs `[1, A]` of every row of one sequence; rows of the burn-in have no graph if `stop`."""
    outputs = []
    for row in range(obs.shape[0]):
        if begins[row]:
            state = torch.zeros_like(state)
        with torch.set_grad_enabled(row >= burn_in or not stop):
            out, state = slow_step(module, obs[row : row + 1], state)
        outputs.append(out)
    return outputs


def slow_update(
    config: R2D2, online: Any, target: Any, batch: SequenceBatch, stop: bool = True
) -> tuple[list[Tensor], list[float]]:
    """Gradients of the loss and priorities, sequence by sequence and row by row, in the paper's notation."""
    loss = torch.zeros(())
    priorities = []
    for b in range(batch.size):
        obs, state = torch.from_numpy(batch.obs[b]), torch.from_numpy(batch.extras["state"][b : b + 1])
        q, q_minus = (
            slow_values(module, obs, batch.begins[b], state, config.burn_in, stop)
            for module in (online, target)
        )
        deltas = []
        for t in range(config.sequence_length):
            if not batch.trained[b, t]:
                continue
            later = int(batch.bootstrap[b, t])
            best = int(q[later].argmax()) if config.double else int(q_minus[later].argmax())
            value = rescale_inverse(q_minus[later][0, best].detach())
            y = rescale(float(batch.reward[b, t]) + float(batch.discount[b, t]) * value)
            delta = y - q[config.burn_in + t][0, int(batch.action[b, t])]
            deltas.append(abs(delta.item()))
            loss = loss + float(batch.weight[b]) * nn.functional.huber_loss(delta, torch.zeros(()))
        priorities.append(config.eta * max(deltas) + (1 - config.eta) * sum(deltas) / len(deltas))
    loss = loss / batch.trained.size
    return list(torch.autograd.grad(loss, list(online.parameters()))), priorities


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(
    "options", [{}, {"double": False, "burn_in": 0}, {"burn_in": 1, "n_step": 4}], ids=str
)
def test_update_is_the_slow_unrolled_one(kind: str, options: dict[str, Any]) -> None:
    config = R2D2(**{**SMALL, "recurrent": kind, "bound_targets": False, "prioritized": True, **options})
    core = config.make_updater(SPEC, "cpu", 0)
    for seed in range(3):  # so that online and target network differ
        core.update(filled_batch(config, SPEC, seed, size=5))
    batch = filled_batch(config, SPEC, 7, size=5)
    online, target = (copy.deepcopy(net.modules[0]) for net in (core._online, core._target))
    wanted, priorities = slow_update(config, online, target, batch)
    found = core.update(batch).priorities
    assert found is not None
    np.testing.assert_allclose(found, priorities, rtol=1e-4)
    for ours, theirs in zip(
        ModuleGradient((core._online.modules, core._gradient)).views, wanted, strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    if config.burn_in > 1:
        through, _ = slow_update(config, online, target, batch, stop=False)
        inner = zip(wanted[2:], through[2:], strict=True)
        assert any(not torch.allclose(a, b, rtol=1e-3) for a, b in inner), "burn-in stops the gradient"


def test_the_loss_is_computed_in_float32_whatever_the_precision_of_products() -> None:
    config = R2D2(**SMALL, matmul_precision="bfloat16")
    core = config.make_updater(SPEC, "cpu", 0)
    core.update(filled_batch(config, SPEC, 0, size=5))
    assert core._buffers is not None
    out, next_out, selector, _ = core._buffers.loss_arguments()
    assert {out.dtype, next_out.dtype, selector.dtype, core._buffers.grad.dtype} == {torch.float32}


def test_adam_steps_and_the_target_follows() -> None:
    config = R2D2(**SMALL, tau=0.25)
    core = config.make_updater(SPEC, "cpu", 0)
    before = core._target.flat.clone()
    core.update(filled_batch(config, SPEC, 0, size=4))
    torch.testing.assert_close(core._target.flat, before.lerp(core._online.flat, 0.25))
    assert not torch.equal(core._online.flat, before)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_state_behind_is_that_of_the_slow_recursion(kind: str, share: float) -> None:
    core = R2D2(**SMALL, recurrent=kind).make_updater(SPEC, "cpu", 0)
    (module,), rng = core._online.modules, np.random.default_rng(1)
    begins = rng.random((6, 7)) < share
    x = torch.randn(6, 7, 4, generator=torch.Generator().manual_seed(0))
    state = torch.randn(6, core.layout.cell.state_size)
    found = state_behind(module, x, state, begins)
    for b in range(6):
        own = state[b : b + 1]
        for row in range(7):
            own = torch.zeros_like(own) if begins[b, row] else own
            _, own = slow_step(module, x[b, row : row + 1], own)
        torch.testing.assert_close(found[b : b + 1], own, rtol=1e-4, atol=1e-6)
    assert not found.requires_grad


@pytest.mark.parametrize("kind", ["bytes", "normalised", "frames"])
def test_observations_are_staged_as_actors_see_them(kind: str) -> None:
    config = R2D2(
        **SMALL, normalize_observations=kind == "normalised", frame_stack=2 if kind == "frames" else 1
    )
    shape, dtype = ((3, 4), "uint8") if kind == "bytes" else ((4,), "float32")
    spec = EnvSpec("test", shape, dtype, DiscreteAction(3))
    seen = config.stacked_spec(spec)
    core, policy = config.make_updater(spec, "cpu", 0), config.make_policy(spec)
    batch = filled_batch(config, seen, 0, size=4)
    if kind == "normalised":
        batch.obs[:] = 50.0 + 9.0 * batch.obs
    core.update(batch)
    core.write_weights(policy.weights)
    rows = torch.cat((core._buffers.batch.burn_in, core._buffers.batch.x.unflatten(0, (4, -1))), dim=1)
    assert rows.abs().max() < 6.0 and rows.std() > 0.2
    policy.assign_streams(0, 4 * rows.shape[1], 4 * rows.shape[1])
    acted = policy.q_values(batch.obs.reshape(-1, *seen.observation_shape))
    learned = core.action_values(rows.flatten(0, 1).numpy())
    np.testing.assert_allclose(acted, learned, rtol=1e-3, atol=1e-5)


def test_untrained_rows_change_nothing() -> None:
    config = R2D2(**SMALL)
    first, second = (filled_batch(config, SPEC, 0, size=4) for _ in range(2))
    second.action[~first.trained] = (first.action[~first.trained] + 1) % 3
    cores = [config.make_updater(SPEC, "cpu", 0) for _ in range(2)]
    priorities = [
        core.update(batch).priorities.copy() for core, batch in zip(cores, (first, second), strict=True)
    ]
    assert np.array_equal(*priorities) and torch.equal(cores[0]._online.flat, cores[1]._online.flat)


@pytest.mark.parametrize("frames", [1, 3])
def test_states_of_actors_are_those_that_the_learner_computes(frames: int) -> None:
    """From any stored state, across episode ends and frame stacks, to the state stored k rows later."""
    config = R2D2(**{**SMALL, "sequence_length": 12, "frame_stack": frames, "sequence_period": 1})
    envs = [fakes.CountingEnv() for _ in range(2)]
    for index, env in enumerate(envs):
        env.index = index
    spec = spec_of("fake", envs[0])
    layout = RingLayout(2, 64, spec, config.extra_fields(spec))
    memory, mailbox = Segment.create("ring", layout.arrays()), None
    core = config.make_updater(spec, "cpu", 0)
    try:
        mailbox = WeightMailbox.create(core.weight_count)
        weights = np.empty(core.weight_count, np.float32)
        core.write_weights(weights)
        mailbox.publish(weights, 0)
        writer, reader = RingWriter(memory, layout), RingReader(memory, layout)
        replay = SequenceReplay(
            [reader], shape=config.sequence_shape, frame_stack=frames, rng=np.random.default_rng(0)
        )
        replay.grant(0, 64)
        policy = config.make_policy(spec)
        actor = Actor(PlainStreams(envs, spec), policy, writer, mailbox, index=0, num_actors=1, seed=5)
        actor.begin()
        while actor.step():
            pass
        replay.ingest()
        seen = config.stacked_spec(spec)
        batch = SequenceBatch.allocate(16, config.sequence_shape, seen, layout.extra_fields)
        replay.sample(batch, 0.0)
        check_states(core, batch, reader.extras["state"], seen)
        assert batch.begins.any() and not batch.trained.all(), "sequences must cross ends of episodes"
        del replay, actor, writer, reader
    finally:
        memory.close()
        if mailbox is not None:
            mailbox.close()


def check_states(core: Any, batch: SequenceBatch, stored: NDArray[np.float32], spec: EnvSpec) -> None:
    (module,) = core._online.modules
    positions, streams = (batch.ids >> 1) % 64, batch.ids & 1
    x = torch.from_numpy(batch.obs.reshape(*batch.begins.shape, -1).astype(np.float32))
    assert spec.observation_dtype != "uint8"
    assert np.array_equal(batch.extras["state"], stored[streams, positions])
    for k in range(1, batch.begins.shape[1]):
        found = state_behind(module, x[:, :k], torch.from_numpy(batch.extras["state"]), batch.begins[:, :k])
        found[torch.from_numpy(batch.begins[:, k])] = 0.0  # an episode begins in row k
        np.testing.assert_allclose(found.numpy(), stored[streams, positions + k], rtol=1e-3, atol=1e-5)


class OwnEncoder(nn.Module):
    """Encoder with a parameter without gradient, and a buffer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.unused, self.linear = nn.Parameter(torch.ones(2)), nn.Linear(inputs, outputs)
        self.register_buffer("scale", torch.full((outputs,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.linear(x)  # type: ignore[no-any-return]


def test_an_encoder_of_the_users_own_acts_as_it_learns() -> None:
    config = R2D2(**SMALL, network=OwnEncoder, value_rescaling=False)
    core, policy = config.make_updater(SPEC, "cpu", 0), config.make_policy(SPEC)
    core.update(filled_batch(config, SPEC, 0, size=4))
    core.write_weights(policy.weights)
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    policy.assign_streams(0, 5, 5)
    np.testing.assert_allclose(policy.q_values(obs), core.action_values(obs), rtol=1e-4, atol=1e-6)


def test_options() -> None:
    assert R2D2().sequence_shape.period == 20 and R2D2(sequence_length=1).sequence_shape.period == 1
    assert R2D2(sequence_period=3).sequence_shape.period == 3
    shape = R2D2(burn_in=3, sequence_length=4, n_step=2).sequence_shape
    assert (shape.rows, shape.ahead) == (9, 8)
    for options, text in (
        ({"recurrent": "none"}, "recurrent must be one of gru, lstm"),
        ({"noisy": True}, "noisy must be off for r2d2"),
        ({"cuda_graph": None}, "cuda_graph must be off for r2d2"),
        ({"sequence_length": 0}, "sequence_length must be at least 1, got 0"),
        ({"sequence_period": 0}, "sequence_period must be at least 1, got 0"),
        ({"burn_in": -1}, "burn_in must be at least 0, got -1"),
        ({"eta": 1.5}, r"eta must be from 0 to 1, got 1\.5"),
    ):
        with pytest.raises(ValueError, match=text):
            R2D2(**options)  # type: ignore[arg-type]


def test_dueling_acts_as_it_learns() -> None:
    config = R2D2(**SMALL, dueling=True, value_rescaling=False)
    core, policy = config.make_updater(SPEC, "cpu", 0), config.make_policy(SPEC)
    core.write_weights(policy.weights)
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    policy.assign_streams(0, 5, 5)
    np.testing.assert_allclose(policy.q_values(obs), core.action_values(obs), rtol=1e-4, atol=1e-6)
