"""PPO against a slow reference with autograd, and its options."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from segment_rig import SPECS, Guessing, acted, batch_of, iterate, record, weights_of
from torch.distributions import Categorical, Normal

from asyncrl.algorithms import DQN, PPO
from asyncrl.algorithms.on_policy_update import OnPolicyUpdate
from asyncrl.algorithms.preset_files import load_presets
from asyncrl.config import TrainerConfig
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED, BoxAction, EnvSpec, MultiDiscreteAction, Segment


def core_of(kind: str = "discrete", seed: int = 0, **options: Any) -> OnPolicyUpdate:
    options = {"minibatch_size": 256, **options}
    made: OnPolicyUpdate = record("ppo", kind, **options).make_updater(SPECS[kind], "cpu", seed)
    return made


# --- the slow twin ---


class Twin:
    """Reference as in the papers: modules, autograd, torch's distributions, clipping and Adam, and a loop for GAE."""

    def __init__(self, core: OnPolicyUpdate, spec: EnvSpec) -> None:
        self.config, self.spec = core.config, spec
        state, self.statistics = core.nets.state_dict(), core.nets.statistics
        self.policy, self.value = (self._tensors(state[name]) for name in ("policy", "value"))
        self.log_std = state["log_std"].clone().requires_grad_(core.nets.layout.gaussian)
        self.parameters = [*self.policy.values(), *self.value.values(), self.log_std]
        self.parameters = [p for p in self.parameters if p.requires_grad]
        self.adam = torch.optim.Adam(self.parameters, lr=self.config.learning_rate, eps=self.config.adam_eps)

    def _tensors(self, named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor.clone().requires_grad_() for name, tensor in named.items()}

    def run(self, net: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        layers = len(net) // 2
        for i in range(layers):
            x = x @ net[f"{i}.weight"].T + net[f"{i}.bias"]
            if i + 1 < layers:
                x = torch.tanh(x) if self.config.activation == "tanh" else torch.relu(x)
        return x

    def evaluate(self, x: torch.Tensor, taken: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, action = self.run(self.policy, x), self.spec.action
        if isinstance(action, BoxAction):
            normal = Normal(out, self.log_std.exp())
            log_prob = normal.log_prob(taken).sum(dim=1)
            if self.config.squashed:
                log_prob = log_prob - torch.log1p(-(torch.tanh(taken.double()) ** 2)).sum(dim=1).float()
            return log_prob, normal.entropy().sum(dim=1)
        sizes = action.nvec if isinstance(action, MultiDiscreteAction) else (action.n,)
        parts = [Categorical(logits=part) for part in out.split(sizes, dim=1)]
        columns = taken.reshape(len(x), len(sizes)).T
        log_prob = sum(part.log_prob(column) for part, column in zip(parts, columns, strict=True))
        return log_prob, sum(part.entropy() for part in parts)

    def inputs(self, obs: np.ndarray) -> torch.Tensor:
        x = obs.reshape(-1, math.prod(self.spec.observation_shape)).astype(np.float32)
        if self.config.normalize_observations:
            mean, scale = self.statistics
            return torch.from_numpy(np.clip((x - mean) * scale, -10, 10))
        return torch.from_numpy(
            x * np.float32(self.spec.byte_factor) if self.spec.observation_dtype == "uint8" else x
        )

    def advantages(self, segment: Segment, divisor: float) -> tuple[np.ndarray, np.ndarray]:
        """Advantages of Schulman 2016, row by row in float64."""
        config = self.config
        with torch.no_grad():
            value = self.run(self.value, self.inputs(segment.obs)).view(segment.reward.shape).numpy()
            last = self.run(self.value, self.inputs(segment.last_obs)).view(-1).numpy()
        advantage = np.zeros(segment.reward.shape)
        for e in range(segment.num_envs):
            for t in reversed(range(segment.num_rows)):
                flag, at_end = segment.flags[e, t], t + 1 == segment.num_rows
                if flag & RESET:
                    continue
                reward = float(np.clip(segment.reward[e, t] / divisor, -10, 10)) if divisor else 0.0
                ahead = 0.0 if flag & TERMINATED else float(last[e] if at_end else value[e, t + 1])
                advantage[e, t] = reward + config.discount * ahead - value[e, t]
                if not at_end and not flag & (TERMINATED | TRUNCATED) and not segment.flags[e, t + 1] & RESET:
                    advantage[e, t] += config.discount * config.gae_lambda * advantage[e, t + 1]
        return advantage, value

    def iterate(self, segments: list[Segment], orders: list[list[np.ndarray]], divisor: float = 1.0) -> None:
        """`orders[epoch][minibatch]`: rows, counted over all segments."""
        config = self.config
        pairs = [self.advantages(segment, divisor) for segment in segments]
        advantage, old_value = (np.concatenate([pair[i] for pair in pairs]).reshape(-1) for i in (0, 1))
        flags = np.concatenate([segment.flags for segment in segments]).reshape(-1)
        target = torch.from_numpy((advantage + old_value).astype(np.float32))
        valid = (flags & RESET) == 0
        if config.normalize_advantages:
            advantage = (advantage - advantage[valid].mean()) / (advantage[valid].std() + 1e-8)
        a, old_v = torch.from_numpy(advantage.astype(np.float32)), torch.from_numpy(old_value)
        x = torch.cat([self.inputs(segment.obs) for segment in segments])
        field = [s.extras.get("latent", s.action) for s in segments]
        rows = [f.reshape(f.shape[0] * f.shape[1], -1) for f in field]
        taken = torch.from_numpy(np.concatenate(rows))
        behaviour = torch.from_numpy(np.concatenate([s.extras["log_prob"].reshape(-1) for s in segments]))
        weight = torch.from_numpy(np.concatenate([np.tile(s.weight, s.num_envs) for s in segments]))
        with torch.no_grad():
            proximal = self.evaluate(x, taken)[0]
        decoupled = config.staleness_correction == "importance"
        rho = (proximal - behaviour).exp().clamp(max=config.rho_bar) if decoupled else torch.ones_like(weight)
        old = proximal if decoupled else behaviour
        for order in orders:
            for i in (torch.from_numpy(part) for part in order):
                log_prob, entropy = self.evaluate(x[i], taken[i])
                ratio = (log_prob - old[i]).exp()
                clipped = ratio.clamp(1 - config.clip_range, 1 + config.clip_range)
                policy = -(weight * rho)[i] * torch.minimum(ratio * a[i], clipped * a[i])
                v = self.run(self.value, x[i]).squeeze(1)
                error = (v - target[i]) ** 2
                if config.value_clip_range is not None:
                    held = old_v[i] + (v - old_v[i]).clamp(-config.value_clip_range, config.value_clip_range)
                    error = torch.maximum(error, (held - target[i]) ** 2)
                rest = config.vf_coef * error - (config.ent_coef or 0.0) * entropy
                # The mean over the rows of the pass, a minibatch's share of which is one over their number.
                loss = (policy + weight[i] * rest).sum() * (len(order) / int(valid.sum()))
                self.adam.zero_grad()
                loss.backward()
                if config.max_grad_norm is not None:
                    torch.nn.utils.clip_grad_norm_(self.parameters, config.max_grad_norm)
                self.adam.step()

    def published(self) -> np.ndarray:
        layers = len(self.policy) // 2
        parts = []
        for i in range(layers):
            weight = self.policy[f"{i}.weight"]
            parts += [(weight if i + 1 == layers else weight.T).reshape(-1), self.policy[f"{i}.bias"]]
        return torch.cat((*parts, self.log_std)).detach().numpy()


def stale(segments: list[Segment], seed: int = 3) -> list[Segment]:
    """Change the segments as if an older policy had acted: other log-probabilities, and row weights."""
    rng = np.random.default_rng(seed)
    for segment in segments:
        segment.extras["log_prob"][...] += rng.normal(0, 0.5, segment.reward.shape)
        segment.weight[:] = rng.uniform(0.2, 1.0, segment.num_rows)
    return segments


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("discrete", {"staleness_correction": "none"}),
    "relu, deep value": ("image", {"activation": "relu", "value_hidden_sizes": (8, 9, 10)}),
    "choices, entropy": ("multi", {"ent_coef": 0.3, "minibatch_size": 50}),
    "gaussian": ("wide", {"initial_log_std": -0.7, "ent_coef": 0.1, "max_grad_norm": None}),
    "squashed": ("box", {"value_clip_range": 0.05, "vf_coef": 2.0}),
    "clipped": ("discrete", {"clip_range": 0.02, "value_clip_range": 0.02, "normalize_advantages": False}),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_an_iteration_is_the_slow_twins(case: str) -> None:
    kind, options = CASES[case]
    core = core_of(kind, epochs=3, gamma=0.9, gae_lambda=0.8, **{"minibatch_size": 41, **options})
    algorithm, spec = core.config, SPECS[kind]
    iterate(core, batch_of(algorithm, spec, core, 5))
    segments = stale(batch_of(algorithm, spec, core, 6))
    twin = Twin(core, spec)
    # Adam's moments are the twin's own: both begin anew.
    state = core.state_dict()
    fresh = {name: torch.zeros_like(t) for name, t in state["nets"]["optimizer"].items()}
    core.load_state_dict({**state, "nets": {**state["nets"], "optimizer": fresh}})
    before = weights_of(core)
    core.begin(segments, 0.0)
    orders: list[list[np.ndarray]] = [[] for _ in range(algorithm.epochs)]
    going = True
    while going:
        part = core._parts[core._position][0]
        orders[core._epoch].append(part.rows[part.trained])
        going = core.step()
    flags = np.concatenate([s.flags for s in segments]).reshape(-1)
    for order in orders:
        assert sorted(np.concatenate(order)) == np.flatnonzero((flags & RESET) == 0).tolist()
        assert len(order) > 1 and np.ptp([len(part) for part in order]) <= 1
    twin.iterate(segments, orders, core._rewards.divisor if algorithm.normalize_rewards else 1.0)
    acting = core.nets.layout.network_count + core.nets.layout.action_values
    moved = weights_of(core)[:acting] - before[:acting]
    assert np.abs(moved).max() > 0.01
    np.testing.assert_allclose(moved, twin.published() - before[:acting], rtol=2e-3, atol=3e-5)
    for name, tensor in core.nets.state_dict()["value"].items():
        torch.testing.assert_close(tensor, twin.value[name].detach(), rtol=2e-3, atol=3e-5)


def test_metrics_are_those_of_the_last_minibatch() -> None:
    core = core_of(epochs=1, vf_coef=0.7, ent_coef=0.1)
    segments = stale(batch_of(core.config, SPECS["discrete"], core))
    twin = Twin(core, SPECS["discrete"])
    iterate(core, segments)
    metrics = core.metrics()
    part = core._parts[0][0]
    rows = part.rows[part.trained]
    x = torch.cat([twin.inputs(segment.obs) for segment in segments])[rows]
    actions = torch.from_numpy(np.concatenate([s.action.reshape(-1) for s in segments]))[rows]
    with torch.no_grad():
        entropy = twin.evaluate(x, actions)[1]
    assert metrics["train/entropy"] == pytest.approx(float(entropy.mean()), rel=1e-5)
    total = metrics["train/policy_loss"] + 0.7 * metrics["train/value_loss"]
    weights = torch.from_numpy(np.concatenate([np.tile(s.weight, s.num_envs) for s in segments]))[rows]
    mean_entropy = float((weights * entropy).mean())
    assert metrics["train/loss"] == pytest.approx(total - 0.1 * mean_entropy, rel=1e-4)
    # Before the first step of an iteration the policy is the proximal one.
    assert (
        metrics["train/approx_kl"] == pytest.approx(0.0, abs=1e-6) and metrics["train/clip_fraction"] == 0.0
    )
    assert metrics["train/explained_variance"] <= 1.0


# --- options ---


def test_divergence_ends_the_passes() -> None:
    options = {"epochs": 10, "minibatch_size": 64, "learning_rate": 0.02}
    free, bound = core_of(**options), core_of(**options, target_kl=0.01)
    segments = batch_of(free.config, SPECS["discrete"], free)
    steps = iterate(free, segments)
    assert steps == 10 * len(free._parts)
    made = iterate(bound, segments)
    assert 1 < made < steps
    # The step that saw the divergence learned nothing.
    assert bound.metrics()["train/approx_kl"] > 0.015 and bound._updates == made - 1
    assert not bound.reuse()
    other = core_of(**options)
    other.begin(segments, 0.0)
    for _ in range(made - 1):
        other.step()
    assert (weights_of(other) == weights_of(bound)).all()


def test_value_clipping_stops_what_moved_far() -> None:
    loose, tight = (core_of(epochs=8, value_clip_range=clip, learning_rate=0.01) for clip in (1e6, 1e-3))
    plain = core_of(epochs=8, learning_rate=0.01)
    segments = batch_of(plain.config, SPECS["discrete"], plain)
    for core in (loose, tight, plain):
        iterate(core, segments)
    values = [core.nets.state_dict()["value"]["2.weight"] for core in (loose, tight, plain)]
    assert torch.equal(values[0], values[2])
    start = core_of().nets.state_dict()["value"]["2.weight"]
    assert (values[1] - start).norm() < 0.5 * (values[2] - start).norm()


def test_learning_rate_falls_with_progress() -> None:
    for schedule, expected in (
        ("linear", (0.01, 0.0075, 0.002, 0.001, 0.0)),
        ("cooldown", (0.01, 0.01, 0.01, 0.005, 0.0)),
        ("constant", (0.01,) * 5),
        (None, (0.01,) * 5),
    ):
        core = core_of(learning_rate_schedule=schedule, learning_rate=0.01)
        segments = batch_of(core.config, SPECS["discrete"], core)
        for progress, rate in zip((0.0, 0.25, 0.8, 0.9, 1.0), expected, strict=True):
            before = weights_of(core)
            iterate(core, segments, progress)
            assert core.metrics()["train/learning_rate"] == pytest.approx(rate)
            assert (weights_of(core) == before).all() == (rate == 0.0)


@pytest.mark.parametrize("kind", ["discrete", "wide"])
def test_importance_is_no_correction_where_nothing_is_stale(kind: str) -> None:
    decoupled, plain = core_of(kind), core_of(kind, staleness_correction="none")
    start = weights_of(plain)
    for seed in range(3):
        segments = batch_of(plain.config, SPECS[kind], plain, seed)
        iterate(decoupled, segments)
        iterate(plain, segments)
    moved = np.abs(weights_of(plain) - start).max()
    np.testing.assert_allclose(weights_of(decoupled), weights_of(plain), atol=0.02 * moved)


def test_importance_weighs_by_what_the_behaviour_did() -> None:
    core = core_of(epochs=1, rho_bar=3.0)
    segments = batch_of(core.config, SPECS["discrete"], core)
    for segment, shift in zip(segments, (math.log(2.0), -math.log(2.0)), strict=True):
        segment.extras["log_prob"][...] += shift
    core.begin(segments, 0.0)
    batch = core.batch()
    half = batch["flags"].size // 2
    counts = (batch["flags"] & RESET) == 0
    ratio = batch["importance"][counts]
    first = counts[:half].sum()
    np.testing.assert_allclose(ratio[:first], 0.5, rtol=1e-4)
    np.testing.assert_allclose(ratio[first:], 2.0, rtol=1e-4)
    bounded = core_of(epochs=1, rho_bar=1.0)
    bounded.begin(segments, 0.0)
    batch = bounded.batch()
    ratio = batch["importance"][counts]
    np.testing.assert_allclose(ratio[:first], 0.5, rtol=1e-4)
    np.testing.assert_allclose(ratio[first:], 1.0, rtol=1e-4)


def test_staleness_weights_enter_the_loss() -> None:
    core, other = core_of(epochs=1, max_grad_norm=None), core_of(epochs=1, max_grad_norm=None)
    segments = batch_of(core.config, SPECS["discrete"], core)
    halved = copy.deepcopy(segments)
    for segment in halved:
        segment.weight[:] = 0.5
    iterate(core, segments)
    iterate(other, halved)
    for name in ("train/loss", "train/policy_loss", "train/value_loss", "train/grad_norm"):
        assert other.metrics()[name] == pytest.approx(0.5 * core.metrics()[name], rel=1e-3, abs=1e-6), name


def test_passes_are_made_again_while_allowed() -> None:
    core = core_of(epochs=2, reuse_epochs=2, minibatch_size=50)
    assert not core.reuse()
    segments = batch_of(core.config, SPECS["discrete"], core)
    core.begin(segments, 0.0)
    assert not core.reuse(), "the passes are not over"
    once = len(core._parts)
    steps = sum(segment.steps for segment in segments)
    while core.step():
        pass
    for more in (3, 4):
        before = weights_of(core)
        assert core.reuse()
        for _ in range(once - 1):
            assert core.step()
        assert not core.step()
        assert core.samples == more * steps and (weights_of(core) != before).any()
    assert not core.reuse()
    core.begin(segments, 0.0)
    assert core.samples == 4 * steps


def test_statistics_move_between_iterations_only() -> None:
    core = core_of("wide")
    layout = core.nets.layout
    segments = batch_of(core.config, SPECS["wide"], core)
    core.begin(segments, 0.0)
    assert (weights_of(core)[layout.obs_mean] == 0).all() and (weights_of(core)[layout.obs_scale] == 1).all()
    while core.step():
        pass
    rows = np.concatenate([s.obs[(s.flags & RESET) == 0] for s in segments]).astype(np.float64)
    np.testing.assert_allclose(weights_of(core)[layout.obs_mean], rows.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(weights_of(core)[layout.obs_scale], 1 / rows.std(axis=0), rtol=1e-5)
    for segment in segments:
        segment.fresh = False
        segment.obs += 100.0
    iterate(core, segments)
    np.testing.assert_allclose(weights_of(core)[layout.obs_mean], rows.mean(axis=0), rtol=1e-5)


def test_every_pass_iteration_and_seed_shuffles_anew() -> None:
    orders = []
    for seed in (0, 1):
        core = core_of(epochs=2, seed=seed)
        segments = batch_of(core.config, SPECS["discrete"], core)
        for _ in range(2):
            core.begin(segments, 0.0)
            going = True
            while going:
                orders.append(tuple(core._parts[0][0].rows.tolist()))
                going = core.step()
    assert len(orders) == 8 == len(set(orders))


def test_numbers_do_not_depend_on_what_else_is_asked() -> None:
    core, other = core_of(minibatch_size=50), core_of(minibatch_size=50)
    segments = batch_of(core.config, SPECS["discrete"], core)
    iterate(core, segments)
    other.begin(segments, 0.0)
    going = True
    while going:
        going = other.step()
        other.metrics(), other.batch(), other.state_dict(), weights_of(other)
    assert (weights_of(core) == weights_of(other)).all()


# --- the record ---


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"segments_per_batch": 0}, "segments_per_batch must be at least 1, got 0"),
        ({"clip_range": 0.0}, "clip_range must be greater than 0, got 0.0"),
        ({"gae_lambda": 1.1}, "gae_lambda must be from 0 to 1, got 1.1"),
        ({"rho_bar": 0.5}, "rho_bar must be at least 1, got 0.5"),
        ({"hidden_sizes": ()}, "hidden_sizes must name at least one width of at least 1"),
        ({"value_hidden_sizes": (0,)}, "value_hidden_sizes must name at least one width of at least 1"),
        ({"initial_log_std": math.inf}, "initial_log_std must be finite, got inf"),
        ({"discipline": "free"}, "discipline must be one of relaxed, lockstep, synchronous"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as raised:
        PPO(**options)
    assert str(raised.value).startswith(text)


def test_squashing_needs_bounds_and_names_who_fits() -> None:
    with pytest.raises(SpacesDoNotFit, match=r"ppo\.squashed"):
        PPO(squashed=True).check(SPECS["wide"])
    PPO(squashed=True).check(SPECS["box"])
    assert not PPO(squashed=True).layout(SPECS["discrete"]).squashed
    with pytest.raises(SpacesDoNotFit) as raised:
        DQN().check(SPECS["box"])
    assert "ppo" in raised.value.facts["algorithms that fit"] and "dqn" not in str(
        raised.value.facts["algorithms that fit"]
    )


def test_row_correction_is_what_the_learner_applies() -> None:
    corrections = ("none", "power", "exponential", "importance")
    made = [PPO(staleness_correction=correction).row_correction for correction in corrections]
    assert made == ["none", "power", "exponential", "none"]
    assert PPO(epochs=7).samples_per_insert == 7.0


@pytest.mark.parametrize("env", sorted(load_presets("ppo")))
def test_presets_are_valid(env: str) -> None:
    preset = load_presets("ppo")[env]
    assert preset.algorithm or preset.run
    assert (PPO.preset(env) != PPO()) == bool(
        preset.algorithm
    )  # where the defaults suffice it has options of the run
    assert PPO.preset(env, gamma=0.5).gamma == 0.5
    TrainerConfig(env=env, algo="ppo", **PPO.preset_options(env))


def test_learning_repeats_to_the_bit() -> None:
    def learned() -> np.ndarray:
        algorithm = PPO(segment_length=8, minibatch_size=32, learning_rate=3e-3)
        spec = SPECS["discrete"]
        env = Guessing(
            spec,
            lambda obs, a: (a == 1).astype(np.float32),
            lambda s, rng: rng.normal(size=(*s, 4)).astype("f"),
        )
        core, policy, rng = (
            algorithm.make_updater(spec, "cpu", 3),
            algorithm.make_policy(spec),
            np.random.default_rng(1),
        )
        for _ in range(20):
            policy.load_weights(weights_of(core))
            iterate(core, [env.segment(policy, 8, rng)])
        return weights_of(core)

    assert (learned() == learned()).all()


def test_one_row_is_enough() -> None:
    core = core_of(segment_length=1)
    segment = acted(core.config, SPECS["discrete"], weights_of(core), envs=1)
    segment.flags[:] = 0
    iterate(core, [segment])
    assert np.isfinite(weights_of(core)).all()
    segment.flags[:] = RESET
    before = core.samples
    iterate(core, [segment])
    assert core.samples == before and np.isfinite(weights_of(core)).all()


def test_the_divergence_of_no_rows_is_zero() -> None:
    """A minibatch of RESET rows only says nothing of the policy: `target_kl` must not end the iteration."""
    from asyncrl.algorithms.ppo import _k3

    assert float(_k3(torch.empty(0))) == 0.0
