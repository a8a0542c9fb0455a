"""Updates of recurrent PPO and IMPALA against slow row-by-row references, and the composition of their minibatches."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from segment_rig import SPECS, flags_of, iterate, observations, record, weights_of
from slow_recurrence import slow_features
from torch import nn
from torch.distributions import Categorical, Normal

from asyncrl.acting.recurrent_module import RecurrentModule
from asyncrl.algorithms.returns import gae, vtrace
from asyncrl.algorithms.rollout import RecurrentRollout
from asyncrl.interfaces import RESET, EnvSpec, Segment

OPTIONS: dict[str, Any] = {
    "hidden_sizes": (6, 5),
    "recurrent_size": 4,
    "segment_length": 11,
    "max_grad_norm": None,
}
for_all = pytest.mark.parametrize(
    ("name", "cell", "kind"),
    [
        ("ppo", "gru", "discrete"),
        ("ppo", "lstm", "wide"),
        ("impala", "lstm", "discrete"),
        ("impala", "gru", "wide"),
    ],
)


def made(name: str, cell: str, kind: str = "discrete", **options: Any) -> tuple[Any, EnvSpec, Any]:
    plain = {"normalize_observations": False, "normalize_rewards": False}
    algorithm = record(name, kind, recurrent=cell, **{**OPTIONS, **plain, **options})
    return algorithm, SPECS[kind], algorithm.make_updater(SPECS[kind], "cpu", 0)


class Streams:
    """Successive segments, with actions of a policy that carries its state from row to row."""

    def __init__(self, algorithm: Any, spec: EnvSpec, weights: np.ndarray, seed: int, envs: int = 3) -> None:
        self.algorithm, self.spec, self.envs, self.rng = algorithm, spec, envs, np.random.default_rng(seed)
        self.policy = algorithm.make_policy(spec)
        self.policy.load_weights(weights)
        self.policy.assign_streams(0, envs, envs)
        self.obs, self.ring = observations(spec, (envs,), self.rng), seed

    def segment(self) -> Segment:
        rows, envs, spec = self.algorithm.segment_length, self.envs, self.spec
        flags = flags_of(envs, rows, self.rng)
        obs, actions, extras = [], [], []
        for t in range(rows):
            action, stamped = self.policy.act(self.obs, self.rng, 0)
            obs.append(self.obs)
            actions.append(action)
            extras.append(stamped)
            for e in np.flatnonzero(flags[:, t] & RESET):
                self.policy.memory.begin(e)
            self.obs = observations(spec, (envs,), self.rng)
        return Segment(
            ring=self.ring,
            first=0,
            obs=np.stack(obs, axis=1),
            last_obs=self.obs.copy(),
            action=np.stack(actions, axis=1),
            reward=self.rng.normal(size=(envs, rows)).astype(np.float32),
            flags=flags,
            version=np.zeros(rows, np.int64),
            policy_updates=np.zeros(rows, np.int64),
            extras={name: np.stack([e[name] for e in extras], axis=1) for name in extras[0]},
            weight=np.linspace(0.5, 1.5, rows).astype(np.float32),
            staleness=np.zeros(rows, np.int64),
        )


def batch_of(algorithm: Any, spec: EnvSpec, core: Any, seed: int = 0) -> list[Segment]:
    """Second segment of each of two actors, so that they begin in the middle of episodes."""
    streams = [Streams(algorithm, spec, weights_of(core), seed + ring) for ring in (0, 1)]
    return [(own.segment(), own.segment())[1] for own in streams]


class Twin:
    """The networks of a core as separate modules, run row by row."""

    def __init__(self, core: Any) -> None:
        layout, state = core.nets.layout, core.nets.state_dict()
        self.config, self.gaussian = core.config, layout.gaussian
        activation = layout.activation
        self.trunk = RecurrentModule(layout.cell, layout.sizes, activation)
        self.trunk.load_state_dict(state["policy"])
        self.value = nn.Linear(layout.cell.size, 1)
        self.value.load_state_dict(state["value"])
        self.log_std = state["log_std"].clone().requires_grad_()
        self.parameters = [*self.trunk.parameters(), self.log_std, *self.value.parameters()]

    def run(self, segments: list[Segment]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log-probability, entropy and value `[S, T]`, and the value after the last rows `[S]`."""
        found = []
        for segment in segments:
            obs = np.concatenate((segment.obs, segment.last_obs[:, None]), axis=1)
            begins = np.zeros(obs.shape[:2], np.bool_)
            begins[:, 1:] = (segment.flags & RESET) != 0
            x = torch.from_numpy(obs.reshape(*begins.shape, -1).astype(np.float32))
            state = torch.from_numpy(segment.extras["state"][:, 0].copy())
            features = slow_features(self.trunk, x, state, begins)
            out, value = self.trunk.head(features)[:, :-1], self.value(features).squeeze(2)
            taken = torch.from_numpy(segment.action)
            if self.gaussian:
                normal = Normal(out, self.log_std.exp())
                log_prob = normal.log_prob(taken.view(out.shape)).sum(dim=2)
                entropy = normal.entropy().sum(dim=2)
            else:
                choice = Categorical(logits=out)
                log_prob, entropy = choice.log_prob(taken), choice.entropy()
            found.append((log_prob, entropy, value[:, :-1], value[:, -1]))
        log_prob, entropy, value, last = (torch.cat(parts) for parts in zip(*found, strict=True))
        return log_prob, entropy, value, last

    def flat(self) -> np.ndarray:
        return torch.cat([p.detach().reshape(-1) for p in self.parameters]).numpy()


def joined(segments: list[Segment]) -> dict[str, np.ndarray]:
    """`[S, T]` arrays of all segments."""
    return {
        "flags": np.concatenate([s.flags for s in segments]),
        "reward": np.concatenate([s.reward for s in segments]),
        "behaviour": np.concatenate([s.extras["log_prob"] for s in segments]),
        "weight": np.concatenate([np.tile(s.weight, (s.num_envs, 1)) for s in segments]),
    }


@for_all
def test_the_learner_sees_what_the_actor_saw(name: str, cell: str, kind: str) -> None:
    """Log-probabilities of the acting weights, from the stored states on, equal the stored ones."""
    algorithm, spec, core = made(name, cell, kind)
    iterate(core, batch_of(algorithm, spec, core))
    segments = batch_of(algorithm, spec, core, seed=5)
    flags = np.concatenate([s.flags for s in segments])
    assert (flags & RESET).any() and any(s.extras["state"][:, 0].any() for s in segments)
    with torch.no_grad():
        rollout = RecurrentRollout(core.nets, 6, algorithm.segment_length, ())
        rollout.stage(segments)
        _, _, found = rollout.evaluate(log_prob=True)
    np.testing.assert_allclose(found, joined(segments)["behaviour"], atol=1e-5)
    for segment in segments:  # the comparison can fail
        segment.extras["state"][...] = 0
    with torch.no_grad():
        rollout.stage(segments)
        _, _, found = rollout.evaluate(log_prob=True)
    assert np.abs(found - joined(segments)["behaviour"]).max() > 1e-4


@for_all
def test_an_evaluation_in_chunks_is_the_whole(
    name: str, cell: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm, spec, core = made(name, cell, kind)
    segments = batch_of(algorithm, spec, core)
    rollout = RecurrentRollout(core.nets, 6, algorithm.segment_length, ())
    found = []
    for size in (2048, 30, 5):  # all streams, some, one by one
        monkeypatch.setattr("asyncrl.algorithms.rollout.CHUNK", size)
        with torch.no_grad():
            rollout.stage(segments)
            found.append([array.copy() for array in rollout.evaluate(log_prob=True)])
    for other in found[1:]:
        for first, second in zip(found[0], other, strict=True):
            np.testing.assert_allclose(first, second, atol=1e-6)


@for_all
def test_a_gradient_step_is_the_slow_twins(name: str, cell: str, kind: str) -> None:
    """One step over all streams: the gradient, and for PPO two epochs from the stored states."""
    several = {"epochs": 2, "minibatch_size": 1000} if name == "ppo" else {"epochs": 1, "minibatches": 1}
    algorithm, spec, core = made(name, cell, kind, ent_coef=0.05, learning_rate=1e-2, **several)
    old = batch_of(algorithm, spec, core)  # of a policy that has changed since
    for seed in (10, 20, 30):
        iterate(core, batch_of(algorithm, spec, core, seed))
    state = core.state_dict()
    fresh = {k: torch.zeros_like(t) for k, t in state["nets"]["optimizer"].items()}
    core.load_state_dict({**state, "nets": {**state["nets"], "optimizer": fresh}})
    twin = Twin(core)
    before = twin.flat()
    assert iterate(core, old) == several["epochs"]
    (slow_ppo if name == "ppo" else slow_impala)(twin, old)
    after = core.nets.parameters.numpy()
    assert np.abs(after - before).max() > 0.005
    np.testing.assert_allclose(after, twin.flat(), atol=2e-4)


def slow_ppo(twin: Twin, segments: list[Segment]) -> None:
    config, arrays = twin.config, joined(segments)
    adam = torch.optim.Adam(twin.parameters, lr=config.learning_rate, eps=config.adam_eps)
    flags, valid = arrays["flags"], torch.from_numpy((arrays["flags"] & RESET) == 0)
    with torch.no_grad():
        proximal, _, old_value, last = twin.run(segments)
    advantage, target = gae(
        arrays["reward"], old_value.numpy(), last.numpy(), flags, config.discount, config.gae_lambda
    )
    own = advantage[valid.numpy()]
    a = torch.from_numpy((advantage - own.mean()) / (own.std() + 1e-8))
    rho = (proximal - torch.from_numpy(arrays["behaviour"])).exp().clamp(max=config.rho_bar)
    weight = torch.from_numpy(arrays["weight"]) * valid / valid.sum()
    for _ in range(config.epochs):
        log_prob, entropy, value, _ = twin.run(segments)
        ratio = (log_prob - proximal).exp()
        clipped = ratio.clamp(1 - config.clip_range, 1 + config.clip_range)
        policy = -rho * torch.minimum(ratio * a, clipped * a)
        error = config.vf_coef * (value - torch.from_numpy(target)) ** 2
        adam.zero_grad()
        (weight * (policy + error - config.ent_coef * entropy)).sum().backward()
        adam.step()


def slow_impala(twin: Twin, segments: list[Segment]) -> None:
    config, arrays = twin.config, joined(segments)
    adam = torch.optim.Adam(twin.parameters, lr=config.learning_rate, eps=config.adam_eps)
    log_prob, entropy, value, last = twin.run(segments)
    ratio = log_prob.detach().numpy() - arrays["behaviour"]
    target, advantage = vtrace(
        ratio,
        arrays["reward"],
        value.detach().numpy(),
        last.detach().numpy(),
        arrays["flags"],
        config.discount,
    )
    valid = torch.from_numpy((arrays["flags"] & RESET) == 0)
    weight = torch.from_numpy(arrays["weight"]) * valid / valid.sum()
    error = config.vf_coef * (value - torch.from_numpy(target)) ** 2
    (weight * (-torch.from_numpy(advantage) * log_prob + error - config.ent_coef * entropy)).sum().backward()
    adam.step()


def test_minibatches_are_of_whole_streams() -> None:
    algorithm, spec, core = made("ppo", "gru", minibatch_size=25, epochs=2)  # two segments of 11 rows fit
    segments = batch_of(algorithm, spec, core)
    core.begin(segments, 0.0)
    flags = np.concatenate([s.flags for s in segments])
    for _ in range(2):
        parts = [part for part, _ in core._parts]
        seen = []
        for part in parts:
            streams = part.rows[-2:] - flags.size
            assert (part.rows[:22].reshape(2, 11) == streams[:, None] * 11 + np.arange(11)).all()
            assert part.samples == np.count_nonzero((flags[streams] & RESET) == 0) == part.trained.size
            seen += streams.tolist()
        assert len(parts) == 3 and sorted(seen) == list(range(6))
        for _ in parts:
            core.step()
    one, _, other = made("ppo", "gru", minibatch_size=4)  # less than a segment
    other.begin(batch_of(one, spec, other), 0.0)
    assert len(other._parts) == 6


@for_all
@pytest.mark.parametrize("at", [1, None])
def test_state_round_trips_to_the_same_numbers(name: str, cell: str, kind: str, at: int | None) -> None:
    normalized = {"normalize_observations": True, "reuse_epochs": 1}
    several = {"minibatch_size": 25} if name == "ppo" else {"minibatches": 3}
    algorithm, spec, core = made(name, cell, kind, epochs=2, **several, **normalized)
    first, second = batch_of(algorithm, spec, core), batch_of(algorithm, spec, core, 7)
    iterate(core, first)
    if at is not None:
        core.begin(second, 0.1)
        core.step()
    other = algorithm.make_updater(spec, "cpu", 99)
    other.load_state_dict(pickle.loads(pickle.dumps(core.state_dict())))
    for one in (core, other):
        if at is not None:
            while one.step():
                pass
            assert one.reuse()
            while one.step():
                pass
        iterate(one, first)
    assert (weights_of(core) == weights_of(other)).all() and core.metrics() == other.metrics()


def test_value_hidden_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="value_hidden_sizes must be none where the policy is recurrent"):
        record("ppo", recurrent="gru", value_hidden_sizes=(8,))
    with pytest.raises(ValueError, match="recurrent_size must be at least 1"):
        record("ppo", recurrent="gru", recurrent_size=0)
    with pytest.raises(ValueError, match="recurrent must be"):
        record("ppo", recurrent="rnn")
