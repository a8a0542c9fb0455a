"""C51, QR-DQN, Rainbow and noisy layers: the update against autograd, a known distribution and the policy."""

import dataclasses
import itertools
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from q_rig import SMALL, SPEC, filled_batch, make, written
from waiting import PATIENCE_SECONDS

from asyncrl.acting.layouts import parameter_count
from asyncrl.acting.schedules import EpsilonSchedule
from asyncrl.algorithms import ALGORITHMS, C51, QRDQN, Rainbow
from asyncrl.algorithms.preset_files import load_presets
from asyncrl.algorithms.q_learning import by_action
from asyncrl.algorithms.q_learning_update import QLearningUpdate
from asyncrl.config import TrainerConfig
from asyncrl.interfaces import Batch, DiscreteAction, EnvSpec
from asyncrl.networks.matmul_precision import MatmulPrecision


def head_outputs(core: QLearningUpdate, obs: np.ndarray) -> np.ndarray:
    """Outputs `[R, sizes[-1]]` of the online network's means, from its named tensors."""
    named = core.state_dict()["online"]
    layers, x = core.layout.hidden, torch.from_numpy(obs)
    for i in range(len(layers)):
        x = F.relu(F.linear(x, named[f"{i}.weight"], named[f"{i}.bias"]))
    i = len(layers)
    return F.linear(x, named[f"{i}.weight"], named[f"{i}.bias"]).numpy()


# --- a chain whose distribution of returns is known ---

CHAIN = EnvSpec("chain", (2,), "float32", DiscreteAction(2))


def chain_batch() -> Batch:
    """State 0 pays 1 and leads to state 1, which pays 1 in one of four cases, else -1; action 1 ends with -2."""
    rows = [(0, 0, 1.0, 0.5)] * 4 + [(1, 0, 1.0, 0.0)] + [(1, 0, -1.0, 0.0)] * 3
    rows += [(0, 1, -2.0, 0.0)] * 2 + [(1, 1, -2.0, 0.0)] * 2
    batch = Batch.allocate(len(rows), CHAIN)
    for i, (state, action, reward, discount) in enumerate(rows):
        batch.obs[i], batch.next_obs[i] = np.eye(2)[state], np.eye(2)[1]
        batch.action[i], batch.reward[i], batch.discount[i], batch.weight[i] = action, reward, discount, 1.0
    return batch


def learned(core: QLearningUpdate) -> QLearningUpdate:
    batch = chain_batch()
    for _ in range(1500):
        core.update(batch)
    return core


FALLING = {
    "learning_rate": 1e-2,
    "learning_rate_schedule": "linear",
    "learning_rate_final": 1e-5,
    "learning_rate_updates": 1500,
    "hidden_sizes": (32,),
}


@pytest.mark.parametrize("is_dueling", [False, True])
def test_c51_learns_the_distribution_of_returns(is_dueling: bool) -> None:
    config = C51(num_atoms=13, v_min=-3.0, v_max=3.0, dueling=is_dueling, **FALLING)
    core = learned(config.make_updater(CHAIN, "cpu", 0))
    out = torch.from_numpy(head_outputs(core, np.eye(2, dtype=np.float32))).unflatten(1, (-1, 13))
    logits = out[:, :1] + out[:, 1:] - out[:, 1:].mean(1, keepdim=True) if is_dueling else out
    prob, expected = torch.softmax(logits, 2), torch.zeros(2, 2, 13)
    atom = {float(z): i for i, z in enumerate(config.support())}
    expected[0, 0, atom[1.5]], expected[0, 0, atom[0.5]] = 0.25, 0.75  # 1 + 0.5 * (1 or -1)
    expected[1, 0, atom[1.0]], expected[1, 0, atom[-1.0]] = 0.25, 0.75
    expected[:, 1, atom[-2.0]] = 1.0
    torch.testing.assert_close(prob, expected, rtol=0, atol=0.02)
    np.testing.assert_allclose(
        core.action_values(np.eye(2, dtype=np.float32)), [[0.75, -2.0], [-0.5, -2.0]], atol=0.05
    )
    assert core.metrics()["train/loss"] == pytest.approx(loss_of_chain(), abs=0.01)


def loss_of_chain() -> float:
    """Mean divergence of the correct distributions: state 1's targets are single outcomes."""
    return (1 * -np.log(0.25) + 3 * -np.log(0.75)) / 12


@pytest.mark.parametrize("is_dueling", [False, True])
def test_qrdqn_learns_the_quantiles_of_returns(is_dueling: bool) -> None:
    config = QRDQN(num_quantiles=8, huber_delta=None, dueling=is_dueling, **FALLING)
    core = learned(config.make_updater(CHAIN, "cpu", 0))
    out = torch.from_numpy(head_outputs(core, np.eye(2, dtype=np.float32))).unflatten(1, (-1, 8))
    theta = out[:, :1] + out[:, 1:] - out[:, 1:].mean(1, keepdim=True) if is_dueling else out
    expected = torch.full((2, 2, 8), -2.0)
    expected[0, 0] = torch.tensor([0.5] * 6 + [1.5] * 2)  # midpoints below and above 0.75
    expected[1, 0] = torch.tensor([-1.0] * 6 + [1.0] * 2)
    torch.testing.assert_close(theta.sort(2).values, expected, rtol=0, atol=0.05)


# --- the manual path against autograd ---


class Reference:
    """Reference of the update with autograd and torch's Adam and clipping, on copies of the flat vectors."""

    def __init__(self, core: QLearningUpdate) -> None:
        self.core, self.config, self.sizes = core, core.config, core.layout.sizes
        self.online = core._online.flat.clone().requires_grad_()
        self.target = core._target.flat.clone()
        self.adam = torch.optim.Adam([self.online], lr=self.config.learning_rate, eps=self.config.adam_eps)
        self.noise = torch.Generator()
        if core._noise is not None:
            self.noise.set_state(core.state_dict()["noise"]["generator"])

    def outputs(self, flat: torch.Tensor, x: torch.Tensor, normal: torch.Tensor) -> torch.Tensor:
        """Outputs by action, layer by layer as in the paper: y = (mu + sigma f(e') f(e)^T) x + mu_b + sigma_b f(e')."""
        start, sigma_start, drawn, last = 0, parameter_count(self.sizes), 0, len(self.sizes) - 2
        for layer, (a, b) in enumerate(itertools.pairwise(self.sizes)):

            def layer_of(
                at: int, a: int = a, b: int = b, layer: int = layer
            ) -> tuple[torch.Tensor, torch.Tensor]:
                w = flat[at : at + a * b]
                return w.view(b, a) if layer == last else w.view(a, b).t(), flat[at + a * b : at + a * b + b]

            weight, bias = layer_of(start)
            start += (a + 1) * b
            if self.config.noisy and layer > 0:
                sigma, sigma_bias = layer_of(sigma_start)
                sigma_start += (a + 1) * b
                e_in, e_out = normal[drawn : drawn + a], normal[drawn + a : drawn + a + b]
                e_in, e_out = (e.sign() * e.abs().sqrt() for e in (e_in, e_out))
                drawn += a + b
                weight, bias = weight + sigma * torch.outer(e_out, e_in), bias + sigma_bias * e_out
            x = F.linear(x, weight, bias)
            x = x if layer == last else F.relu(x)
        return by_action(x, self.config.atoms(), self.config.dueling)

    def update(self, batch: Batch) -> torch.Tensor:
        config, core, size = self.config, self.core, batch.size
        obs, next_obs, action = map(torch.from_numpy, (batch.obs, batch.next_obs, batch.action))
        names = ("reward", "discount", "weight")
        staged = SimpleNamespace(
            **{name: torch.from_numpy(getattr(batch, name)).unsqueeze(1) for name in names}
        )
        staged.weight, staged.action = staged.weight / size, action.unsqueeze(1)
        own = other = torch.zeros(0)
        if config.noisy:
            count = sum(a + b for a, b in itertools.pairwise(self.sizes[1:]))
            own, other = torch.empty(2, count).normal_(generator=self.noise)
        with torch.no_grad():
            following = self.outputs(self.target, next_obs, other)
            selector = self.outputs(self.online, next_obs, own) if config.double else following
            best = core._values(selector).argmax(1, keepdim=True)
        result = core._loss(self.outputs(self.online, obs, own), following, best, staged)
        self.adam.zero_grad()
        result.loss.backward()
        self._mask()
        if config.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_([self.online], config.max_grad_norm)
        self.adam.step()
        self.target.lerp_(self.online.detach(), config.tau)
        return result.priorities.abs()[:, 0]

    def _mask(self) -> None:
        """Mask of weights that do not exist, between the streams of a dueling head."""
        if not self.config.dueling:
            return
        grad, end, (a, b) = self.online.grad, parameter_count(self.sizes), self.sizes[-2:]
        atoms = self.config.atoms() or 1
        assert grad is not None
        for stop in {end, len(grad)}:
            head = grad[stop - (a + 1) * b : stop - b].view(b, a)
            head[:atoms, a // 2 :] = 0
            head[atoms:, : a // 2] = 0


@pytest.mark.parametrize(
    ("name", "double", "is_dueling", "noisy"),
    list(itertools.product(SMALL, (False, True), (False, True), (False, True))),
)
def test_updates_are_those_of_autograd(name: str, double: bool, is_dueling: bool, noisy: bool) -> None:
    options: dict[str, Any] = {"max_grad_norm": 0.5, "adam_eps": 1e-4, "tau": 0.1}
    if name != "c51":
        options |= {"huber_delta": 0.7, "bound_targets": False}
    config = make(name, double=double, dueling=is_dueling, noisy=noisy, **options)
    core = config.make_updater(SPEC, "cpu", 3)
    reference = Reference(core)
    for seed in range(8):
        batch = filled_batch(seed=seed)
        expected = reference.update(batch)
        priorities = core.update(batch).priorities
        torch.testing.assert_close(torch.from_numpy(priorities), expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(core._online.flat.clone(), reference.online.detach(), rtol=1e-3, atol=2e-5)
    torch.testing.assert_close(core._target.flat.clone(), reference.target, rtol=1e-3, atol=2e-5)


def test_one_quantile_is_half_of_dqn() -> None:
    """tau-hat is 1/2 on both sides: the gradients are equal except for a factor, which Adam ignores."""
    one, dqn = (
        make(name, adam_eps=1e-12, max_grad_norm=None, **o).make_updater(SPEC, "cpu", 0)
        for name, o in (("qrdqn", {"num_quantiles": 1}), ("dqn", {}))
    )
    for seed in range(5):
        ours, theirs = (core.update(filled_batch(seed=seed)).priorities for core in (one, dqn))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        assert one.metrics()["train/loss"] == pytest.approx(dqn.metrics()["train/loss"] / 2, rel=1e-4)


# --- noisy layers ---


@pytest.mark.parametrize("name", ["dqn", "c51", "qrdqn"])
def test_noise_goes_on_where_it_was_saved_and_learns(name: str) -> None:
    core = make(name, noisy=True).make_updater(SPEC, "cpu", 0)
    start = core.state_dict()
    core.update(filled_batch())
    state = core.state_dict()
    assert not torch.equal(start["noise"]["generator"], state["noise"]["generator"])
    for part in ("sigma.1.weight", "sigma.1.bias", "sigma.2.weight", "sigma.2.bias"):
        assert (state["online"][part] != start["online"][part]).any(), part
    assert "sigma.0.weight" not in state["online"]
    again = make(name, noisy=True).make_updater(SPEC, "cpu", 5)
    again.load_state_dict(state)
    assert (
        core.update(filled_batch(seed=1)).priorities == again.update(filled_batch(seed=1)).priorities
    ).all()
    assert (written(core) == written(again)).all()
    with pytest.raises(ValueError, match="noise"):
        core.load_state_dict({key: value for key, value in state.items() if key != "noise"})


def test_deviations_begin_as_asked_for() -> None:
    state = make("c51", noisy=True, noisy_sigma=0.2).make_updater(SPEC, "cpu", 0).state_dict()
    for network, layer, kind in itertools.product(("online", "target"), (1, 2), ("weight", "bias")):
        sigma, inputs = state[network][f"sigma.{layer}.{kind}"], 10 - layer
        torch.testing.assert_close(sigma, torch.full_like(sigma, 0.2 / inputs**0.5))


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("hidden", [(9, 64), (64,)])
def test_a_dueling_head_is_scaled_by_the_inputs_of_one_stream(name: str, hidden: tuple[int, ...]) -> None:
    config = make(name, dueling=True, noisy=True, noisy_sigma=0.2, hidden_sizes=hidden)
    core = config.make_updater(SPEC, "cpu", 0)
    online, atoms, head = core.state_dict()["online"], core.layout.atoms, len(hidden)
    weight, sigma = online[f"{head}.weight"], online[f"sigma.{head}.weight"]
    for stream, rows, columns in ((0, slice(atoms), slice(64)), (1, slice(atoms, None), slice(64, None))):
        block = weight[rows, columns]
        assert 0.9 / 64**0.5 < block.abs().max() <= 1 / 64**0.5, f"stream {stream}"
        assert block.std() == pytest.approx(1 / (3 * 64) ** 0.5, rel=0.15)
        torch.testing.assert_close(sigma[rows, columns], torch.full_like(sigma[rows, columns], 0.2 / 64**0.5))
    bias = online[f"sigma.{head}.bias"]
    torch.testing.assert_close(bias, torch.full_like(bias, 0.2 / 64**0.5))
    assert online[f"{head}.bias"].abs().max() <= 1 / 64**0.5


def test_dueling_streams_never_mix() -> None:
    core = make("c51", dueling=True, noisy=True).make_updater(SPEC, "cpu", 0)
    for seed in range(5):
        core.update(filled_batch(seed=seed))
    for network, part in itertools.product(("online", "target"), ("2.weight", "sigma.2.weight")):
        head = core.state_dict()[network][part]
        assert head.shape == ((1 + 3) * 7, 8 + 8)
        assert (head[:7, 8:] == 0).all() and (head[7:, :8] == 0).all()
        assert (head[:7, :8] != 0).all() and (head[7:, 8:] != 0).all()


# --- what actors see ---


@pytest.mark.parametrize(
    ("name", "is_dueling", "noisy", "hidden"),
    list(itertools.product(SMALL, (False, True), (False, True), ((9, 8), (6,)))),
)
def test_policy_and_core_agree_on_the_same_weights(
    name: str, is_dueling: bool, noisy: bool, hidden: tuple[int, ...]
) -> None:
    algorithm = make(name, dueling=is_dueling, noisy=noisy, hidden_sizes=hidden)
    core, policy = algorithm.make_updater(SPEC, "cpu", 1), algorithm.make_policy(SPEC)
    for seed in range(3):
        core.update(filled_batch(seed=seed))
    policy.load_weights(written(core))
    obs = np.random.default_rng(4).normal(size=(16, 4)).astype(np.float32)
    expected = core.action_values(obs)
    assert expected.shape == (16, 3)
    np.testing.assert_allclose(policy.q_values(obs), expected, rtol=1e-4, atol=1e-5)
    assert (policy.greedy(obs) == expected.argmax(1)).mean() > 0.9  # but for ties


def test_quantiles_are_averaged_before_they_are_published() -> None:
    plain = make("dqn").make_updater(SPEC, "cpu", 0).weight_count
    assert make("qrdqn").make_updater(SPEC, "cpu", 0).weight_count == plain
    assert make("qrdqn", noisy=True).make_updater(SPEC, "cpu", 0).weight_count > 6 * plain / 2


@pytest.mark.parametrize(("name", "is_dueling"), list(itertools.product(SMALL, (False, True))))
def test_mean_and_largest_of_the_values_are_reported(name: str, is_dueling: bool) -> None:
    core, batch = make(name, dueling=is_dueling).make_updater(SPEC, "cpu", 0), filled_batch()
    expected = core.action_values(batch.obs)
    core.update(batch)
    metrics = core.metrics()
    assert metrics["train/q_mean"] == pytest.approx(expected.mean(), rel=1e-4, abs=1e-6)
    assert metrics["train/q_max"] == pytest.approx(np.abs(expected).max(), rel=1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_options_of_exploration_reach_the_policy(name: str) -> None:
    options = {"initial": 0.5, "final": 0.4, "steps": 9, "ladder": 7.0, "repeat": 3}
    policy = make(name, **{f"exploration_{key}": value for key, value in options.items()}).make_policy(SPEC)
    assert policy.epsilon == EpsilonSchedule(**options)


# --- records ---


@pytest.mark.parametrize(
    ("record", "options", "text"),
    [
        (C51, {"num_atoms": 1}, "num_atoms must be at least 2, got 1"),
        (C51, {"v_min": 2.0, "v_max": 2.0}, "v_min must be less than v_max (2.0), got 2.0"),
        (C51, {"v_min": 3.0, "v_max": 2.0}, "v_min must be less than v_max (2.0), got 3.0"),
        (
            C51,
            {"v_max": 1e39},
            "v_min and v_max must leave 51 atoms that float32 tells apart, got -10.0 and 1e+39",
        ),
        (
            C51,
            {"v_min": 1.0, "v_max": 1.0 + 1e-9},
            "v_min and v_max must leave 51 atoms that float32 tells apart, got 1.0 and 1.000000001",
        ),
        (C51, {"v_max": float("inf")}, "v_max must be finite, got inf"),
        (C51, {"noisy_sigma": 0.0}, "noisy_sigma must be greater than 0, got 0.0"),
        (Rainbow, {"num_atoms": 0}, "num_atoms must be at least 2, got 0"),
        (Rainbow, {"exploration_initial": 1.5}, "exploration_initial must be from 0 to 1, got 1.5"),
        (QRDQN, {"num_quantiles": 0}, "num_quantiles must be at least 1, got 0"),
        (QRDQN, {"huber_delta": 0.0}, "huber_delta must be greater than 0, got 0.0"),
    ],
)
def test_values_out_of_range(record: type, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        record(**options)


def test_rainbow_is_c51_with_everything() -> None:
    made = Rainbow()
    assert made.double and made.dueling and made.prioritized and made.noisy and made.n_step == 3
    assert made.exploration_initial == made.exploration_final == 0.0
    shared = {f.name: getattr(made, f.name) for f in dataclasses.fields(made)}
    assert C51(**shared).layout(SPEC) == made.layout(SPEC)


def test_rainbow_without_noise_must_explore_by_epsilon() -> None:
    config = TrainerConfig(env="any", algo="rainbow")
    silent = Rainbow(noisy=False)  # a policy that was trained so can still be loaded
    with pytest.raises(ValueError, match="exploration_initial must be above 0 where noisy is off, got 0"):
        silent.for_run(config, SPEC)
    explores: tuple[dict[str, Any], ...] = (
        {"exploration_initial": 1.0},
        {"exploration_final": 0.1},
        {"exploration": lambda progress: 0.1},
    )
    for options in explores:
        dataclasses.replace(silent, **options).for_run(config, SPEC)
    Rainbow().for_run(config, SPEC)


@pytest.mark.parametrize("record", [C51, QRDQN, Rainbow])
def test_presets_are_valid(record: Any) -> None:
    presets = load_presets(record.name)
    assert {"CartPole-v1", "LunarLander-v3"} <= set(presets)
    for env, preset in presets.items():
        assert record.preset(env) == record(**preset.algorithm) != record()
        assert record.preset_options(env) == preset.run
        TrainerConfig(env=env, algo=record.name, **preset.run)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_only_the_passes_run_in_reduced_precision(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 a mean return of atoms from -200 to 200 is off by 0.4, and actors choose by the exact one."""
    size = 128
    monkeypatch.setattr(MatmulPrecision, "reduced", property(lambda _: True))  # as on a processor with AMX
    core = make(name, matmul_precision="medium", hidden_sizes=(size, size)).make_updater(SPEC, "cpu", 0)
    inside, seen, loss = [False], [], core._loss
    monkeypatch.setattr(MatmulPrecision, "__enter__", lambda _: inside.append(True))
    monkeypatch.setattr(MatmulPrecision, "__exit__", lambda *_: inside.append(False))
    core.kernels, core._loss = False, lambda *args: (seen.append(inside[-1]), loss(*args))[1]
    core.update(filled_batch(size))
    assert True in inside and seen == [False]


@pytest.mark.parametrize("name", ["c51", "qrdqn", "rainbow"])
def test_update_never_looks_at_a_value(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Condition of a CUDA graph: on the meta device, which has no values, everything must run."""
    monkeypatch.setattr(torch, "_fused_adam_", lambda *_, **__: None)  # has no meta kernel
    core = ALGORITHMS[name](hidden_sizes=(8, 8), prioritized=False).make_updater(SPEC, "meta", 0)
    for _ in range(2):
        core.update(filled_batch())
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        core.metrics()  # does look


def test_making_a_record_does_not_import_torch() -> None:
    code = (
        "import sys, numpy as np; from asyncrl.algorithms import Rainbow, QRDQN;"
        "from asyncrl.interfaces import DiscreteAction, EnvSpec;"
        "spec = EnvSpec('t', (4,), 'float32', DiscreteAction(3));"
        "[r().make_policy(spec).greedy(np.zeros((2, 4), np.float32)) for r in (Rainbow, QRDQN)];"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECONDS)
