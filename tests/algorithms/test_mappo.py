"""MAPPO against a slow reference with autograd, with agents that end before the others; flags and returns of a team."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from asyncrl import MAPPO
from asyncrl.algorithms.returns import gae, team_flags, team_rewards
from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED, Agent, DiscreteAction, EnvSpec, Segment

AGENTS, ENVS, ROWS = 3, 4, 7
SPEC = EnvSpec("team", (4,), "float32", DiscreteAction(3), agents=tuple(map(Agent, "abc")))
BOTH_FLAGS = TERMINATED | TRUNCATED


def test_a_team_is_cut_off_only_where_an_agent_goes_on_beyond_the_end() -> None:
    """Columns are rows of one environment: how its agents end, and what that is for the team."""
    rows = [
        ((0, 0, 0), 0),
        ((TERMINATED, 0, TRUNCATED), 0),
        ((RESET, TERMINATED, RESET), TERMINATED),
        ((RESET, TRUNCATED, RESET), TRUNCATED),
        ((TERMINATED, TRUNCATED, RESET), TRUNCATED),
        ((TRUNCATED, TRUNCATED, TRUNCATED), TRUNCATED),
        ((BOTH_FLAGS, BOTH_FLAGS, BOTH_FLAGS), TERMINATED),
        ((BOTH_FLAGS, TERMINATED, RESET), TERMINATED),
        ((BOTH_FLAGS, TRUNCATED, RESET), TRUNCATED),
        ((RESET, RESET, RESET), RESET),
    ]
    flags = np.array([agents for agents, _ in rows], np.uint8).T
    assert team_flags(flags, AGENTS).tolist() == [[team for _, team in rows]]


def test_a_goal_in_the_last_allowed_step_is_worth_nothing_beyond() -> None:
    """An agent that is terminated and truncated at once is terminated, as in replay: 1 + 0, and not 1 + 9 / 2."""
    reward, value, last = np.ones((1, 1), np.float32), np.zeros((1, 1), np.float32), np.full(1, 9, np.float32)
    for flag, wanted in ((BOTH_FLAGS, 1.0), (TERMINATED, 1.0), (TRUNCATED, 5.5)):
        flags = team_flags(np.full((AGENTS, 1), flag, np.uint8), AGENTS)
        assert gae(reward, value, last, flags, 0.5, 1.0)[0].item() == wanted


# --- the update ---


def flags_of(rng: np.random.Generator) -> np.ndarray:
    """`[ENVS AGENTS, ROWS]`: agents end one after the other and wait; then all are reset."""
    flags = np.zeros((ENVS, AGENTS, ROWS), np.uint8)
    for env in flags:
        live = np.ones(AGENTS, bool)
        for t in range(ROWS):
            if not live.any():
                env[:, t], live = RESET, np.ones(AGENTS, bool)
                continue
            env[~live, t] = RESET
            ends = live & (rng.random(AGENTS) < 0.4)
            env[ends, t] = rng.choice([TERMINATED, TRUNCATED, BOTH_FLAGS], ends.sum())
            live &= ~ends
    return flags.reshape(-1, ROWS)


def segment_of(policy: Any, seed: int, *, ring: int) -> Segment:
    rng, streams = np.random.default_rng(seed), ENVS * AGENTS
    obs = rng.normal(size=(streams, ROWS + 1, 4)).astype(np.float32)
    policy.assign_streams(0, streams * ROWS, streams * ROWS)
    action, extras = policy.act(obs[:, :-1].reshape(-1, 4), rng, 0)
    flags = flags_of(rng)
    reward = rng.normal(size=(streams, ROWS)) * ((flags & RESET) == 0)
    return Segment(
        ring=ring,
        first=0,
        obs=obs[:, :-1],
        last_obs=obs[:, -1],
        action=action.reshape(streams, ROWS),
        reward=reward.astype(np.float32),
        flags=flags,
        version=np.zeros(ROWS, np.int64),
        policy_updates=np.zeros(ROWS, np.int64),
        extras={name: values.reshape(streams, ROWS) for name, values in extras.items()},
        weight=rng.random(ROWS).astype(np.float32),
        staleness=np.zeros(ROWS, np.int64),
        num_agents=AGENTS,
    )


class Twin:
    """Loss of the module's docstring, float64, one environment, agent and row after the other."""

    def __init__(self, core: Any) -> None:
        state = core.nets.state_dict()
        self.policy, self.value = (
            {name: tensor.double().requires_grad_() for name, tensor in state[part].items()}
            for part in ("policy", "value")
        )
        self.config = core.config

    @staticmethod
    def run(net: dict[str, Tensor], x: np.ndarray) -> Tensor:
        hidden = torch.tanh(net["0.weight"] @ torch.tensor(x).double() + net["0.bias"])
        return net["1.weight"] @ hidden + net["1.bias"]

    def critic(self, obs: np.ndarray) -> Tensor:
        """Value of the observations `[AGENTS, 4]`."""
        return self.run(self.value, obs.reshape(-1))[0]

    def returns(self, segment: Segment) -> tuple[np.ndarray, np.ndarray]:
        """Advantages and targets `[ENVS, ROWS]`."""
        config, obs = self.config, segment.obs.reshape(ENVS, AGENTS, ROWS, 4)
        last, advantage = segment.last_obs.reshape(ENVS, AGENTS, 4), np.zeros((ENVS, ROWS))
        target = np.zeros((ENVS, ROWS))
        for e in range(ENVS):
            own = segment.flags.reshape(ENVS, AGENTS, ROWS)[e]
            values = [self.critic(obs[e, :, t]).item() for t in range(ROWS)] + [self.critic(last[e]).item()]
            carried = 0.0
            for t in reversed(range(ROWS)):
                acts = [n for n in range(AGENTS) if own[n, t] != RESET]
                if not acts:
                    carried = 0.0
                    continue
                over = all(own[n, t] for n in acts)
                goes_on = not over or any(own[n, t] == TRUNCATED for n in acts)
                paid = sum(float(segment.reward[e * AGENTS + n, t]) for n in acts)
                delta = paid + config.discount * values[t + 1] * goes_on - values[t]
                carried = delta + config.discount * config.gae_lambda * (0.0 if over else carried)
                advantage[e, t], target[e, t] = carried, carried + values[t]
        return advantage, target

    def loss(self, segments: list[Segment], rows: list[int], share: float) -> Tensor:
        """Sum over the agents' rows, counted over all segments, each with the weight of its row times `share`."""
        config, total = self.config, torch.zeros((), dtype=torch.float64)
        columns = [self.returns(segment) for segment in segments]
        acting = [(segment.flags & RESET) == 0 for segment in segments]
        chosen = np.concatenate(
            [np.repeat(a, AGENTS, axis=0)[w] for (a, _), w in zip(columns, acting, strict=True)]
        )
        for row in rows:
            which, within = divmod(row, ENVS * AGENTS * ROWS)
            stream, t = divmod(within, ROWS)
            segment, e = segments[which], stream // AGENTS
            assert segment.flags[stream, t] != RESET
            log_p = torch.log_softmax(self.run(self.policy, segment.obs[stream, t]), 0)
            advantage = (columns[which][0][e, t] - chosen.mean()) / chosen.std()
            ratio = (log_p - log_p.detach())[segment.action[stream, t]].exp()
            entropy = -(log_p.exp() * log_p).sum()
            joint = segment.obs[e * AGENTS : (e + 1) * AGENTS, t]
            error = (self.critic(joint) - columns[which][1][e, t]) ** 2
            item = -ratio * advantage + config.vf_coef * error - config.ent_coef * entropy
            total = total + float(segment.weight[t]) * share * item
        return total


@pytest.mark.parametrize("kernel", [True, False])
def test_a_step_is_the_slow_twins(kernel: bool) -> None:
    config = MAPPO(
        hidden_sizes=(8,),
        segment_length=ROWS,
        minibatch_size=60,
        epochs=1,
        ent_coef=0.02,
        normalize_rewards=False,
        max_grad_norm=None,
        target_kl=None if kernel else 1e9,
    )
    core: Any = config.make_updater(SPEC, "cpu", 0)
    policy = config.make_policy(SPEC)
    weights = np.empty(core.weight_count, np.float32)
    core.write_weights(weights)
    policy.load_weights(weights)
    segments = [segment_of(policy, seed, ring=seed) for seed in (1, 2)]
    flags = np.concatenate([segment.flags for segment in segments])
    waits = (flags == RESET).reshape(-1, AGENTS, ROWS)
    assert (waits.any(axis=1) & ~waits.all(axis=1)).sum() > 5 and waits.all(axis=1).any(), (
        "the cases are there"
    )
    twin = Twin(core)
    core.begin(segments, 0.0)
    parts = [part for part, _ in core._parts]
    trained = [row for part in parts for row in part.rows[part.trained].tolist()]
    assert sorted(trained) == np.flatnonzero(flags.reshape(-1) != RESET).tolist(), "each once in an epoch"
    assert len(parts) > 1
    core.step()
    own = parts[0].rows[parts[0].trained].tolist()
    twin.loss(segments, own, len(parts) / len(trained)).backward()
    found = core.nets.gradient.numpy()
    wanted = [
        net[f"{i}.{name}"].grad
        for net in (twin.policy, twin.value)
        for i in (0, 1)
        for name in ("weight", "bias")
    ]
    wanted[0], wanted[4] = wanted[0].T, wanted[4].T  # of hidden layers the flat vector has the transposed
    np.testing.assert_allclose(
        found, torch.cat([g.reshape(-1) for g in wanted]).numpy(), rtol=2e-3, atol=2e-5
    )


def test_rewards_of_a_team() -> None:
    reward = np.arange(12, dtype=np.float32).reshape(6, 2)
    assert team_rewards(reward, 3).tolist() == [[6.0, 9.0]] * 3 + [[24.0, 27.0]] * 3
