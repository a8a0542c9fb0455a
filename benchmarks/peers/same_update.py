"""One update by asyncrl and by Stable-Baselines3, from the same weights, batch and noise: how far apart are they?

    sac, td3    the gradients of critics and actor, a tenth of the rows terminated. Three variants of the peer: `as it
                is`; `old critics`, whose critics do not move before the actor's gradient is taken, as here; and `exact
                density`, those with the exact density of a squashed action in place of its own with 1e-6 added
    a2c         the gradient of a rollout of 8 streams of 5 steps, two of which end terminated and two truncated
    ppo         the parameters after ten passes over such a rollout, with clipped gradients and the peer's defaults

Prints a JSON line each, with |ours - theirs| / |theirs| of every gradient, and for ppo of what the parameters moved
by. `--scale` multiplies the actor's weights, so that its actions are near their bounds. Nothing is trained.

    python -m benchmarks.peers.same_update Hopper-v5 --scale 4
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import math
from types import SimpleNamespace
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import stable_baselines3 as peer
import torch
from stable_baselines3.common.distributions import sum_independent_dims
from stable_baselines3.common.logger import configure
from torch import Tensor, nn

from asyncrl import A2C, PPO, SAC, TD3
from asyncrl.envs.source import EnvSource, describe
from asyncrl.interfaces import TERMINATED, TRUNCATED, Batch, EnvSpec, Segment

ROWS, STREAMS, STEPS, GAMMA = 256, 8, 5, 0.99
VARIANTS = ("as it is", "old critics", "exact density")


def linear(module: nn.Module) -> list[nn.Linear]:
    """Linear layers of a module."""
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


def gradient(parameter: Tensor) -> Tensor:
    """Gradient of a parameter that has one."""
    assert parameter.grad is not None
    return parameter.grad


def flat(layers: list[nn.Linear], gradients: bool = False) -> Tensor:
    """Weights, or their gradients, in the order of `acting.layouts`; the layers after the second are one head."""

    def part(tensor: Tensor) -> Tensor:
        return gradient(tensor) if gradients else tensor.detach()

    hidden, heads = layers[:2], layers[2:]
    parts = [p for layer in hidden for p in (part(layer.weight).T, part(layer.bias))]
    parts += [part(layer.weight) for layer in heads] + [part(layer.bias) for layer in heads]
    return torch.cat([p.reshape(-1) for p in parts])


def apart(ours: Tensor, theirs: Tensor) -> float:
    """Norm of the difference, as a share of the peer's."""
    return float((ours - theirs).norm() / theirs.norm())


def transitions(spec: EnvSpec) -> Batch:
    """Random transitions, every tenth of which is terminated."""
    rng, batch = np.random.default_rng(0), Batch.allocate(ROWS, spec)
    batch.obs[:], batch.next_obs[:] = rng.normal(size=(2, *batch.obs.shape))
    low, high = np.array(spec.action.low), np.array(spec.action.high)  # type: ignore[union-attr]
    batch.action[:] = rng.uniform(low, high, batch.action.shape)
    batch.reward[:], batch.weight[:] = rng.normal(1, 1, ROWS), 1
    batch.discount[:] = np.where(np.arange(ROWS) % 10 == 0, 0, GAMMA)
    return batch


def exact_log_prob(distribution: Any) -> Any:
    """The peer's `log_prob` of a squashed action without the 1e-6 that it adds to 1 - a^2."""

    def log_prob(_: Tensor, latent: Tensor) -> Tensor:
        slope = 2 * (math.log(2) - latent - nn.functional.softplus(-2 * latent))
        density: Tensor = sum_independent_dims(distribution.distribution.log_prob(latent))
        return density - slope.sum(dim=1)

    return log_prob


def gradients_of_peer(model: Any, batch: Batch, noise: Tensor, moves: bool) -> tuple[Tensor, Tensor]:
    """Gradients of critics and actor of one call of the peer's `train`, with this noise in place of its own.

    The critics' are read where its critics would move, as they do if `moves`: the actor's loss adds to them later.
    """
    columns = {"rewards": batch.reward, "dones": (batch.discount == 0).astype(np.float32)}
    data = {name: torch.from_numpy(values)[:, None] for name, values in columns.items()}
    named = {"observations": batch.obs, "actions": batch.action, "next_observations": batch.next_obs}
    data |= {name: torch.from_numpy(values) for name, values in named.items()}
    found = SimpleNamespace(**data, discounts=None)
    model.replay_buffer = SimpleNamespace(sample=lambda *_, **__: found)
    draws, normal = [noise[:ROWS], noise[ROWS:]], torch.Tensor.normal_

    def drawn(tensor: Tensor, mean: float = 0, std: float = 1, **options: Any) -> Tensor:
        return (
            tensor.copy_(noise * std) if tensor.shape == noise.shape else normal(tensor, mean, std, **options)
        )

    kept: list[Tensor] = []
    step = model.critic.optimizer.step

    def stepped() -> None:
        kept.append(torch.cat([flat(linear(critic), True) for critic in model.critic.q_networks]))
        if moves:
            step()

    model.critic.optimizer.step = stepped
    with (
        mock.patch("torch.distributions.normal._standard_normal", lambda *_, **__: draws.pop(0)),
        mock.patch.object(torch.Tensor, "normal_", drawn),
    ):
        model.train(1, ROWS)
    return kept[0], flat(linear(model.actor), True)


def compare_replay(name: str, env: Any, spec: EnvSpec, scale: float, variant: str) -> dict[str, Any]:
    """One update of SAC or TD3 by both."""
    delay = {} if name == "sac" else {"policy_delay": 1}
    made = {"sac": peer.SAC, "td3": peer.TD3}[name]
    model = made("MlpPolicy", env, device="cpu", seed=0, policy_kwargs={"net_arch": [256, 256]}, **delay)
    model.set_logger(configure(None, []))
    ours: Any = {"sac": SAC, "td3": TD3}[name](hidden_sizes=(256, 256), **delay).make_updater(spec, "cpu", 0)
    with torch.no_grad():
        for parameter in model.actor.parameters():
            parameter.mul_(scale)
    if name == "td3":
        model.actor_target.load_state_dict(model.actor.state_dict())
    for policy in (ours.policy, ours.target_policy):
        if policy is not None:
            policy.flat.copy_(flat(linear(model.actor)))
    ours.begin_with_critics(torch.stack([flat(linear(q)) for q in model.critic.q_networks]).numpy())
    batch = transitions(spec)
    ours.update(batch)
    if variant == "exact density" and name == "sac":
        model.actor.action_dist.log_prob = exact_log_prob(model.actor.action_dist)
    theirs, actor = gradients_of_peer(model, batch, ours._buffers.noise.clone(), variant == "as it is")
    critics = ours.critics.on(ours.critics_gradient).by_copy().reshape(-1)
    half = (
        1.0 if name == "sac" else 0.5
    )  # its TD3 minimises the squared error, ours half of it, which Adam ignores
    return {
        "critics": apart(critics, half * theirs),
        "actor": apart(ours.policy_gradient[: actor.numel()], actor),
        "critic_loss": [ours.metrics()["train/loss"], half * model.logger.name_to_value["train/critic_loss"]],
    }


def compare_a2c(env_id: str, spec: EnvSpec) -> dict[str, Any]:
    """One update of A2C: the whole gradient, and both losses."""
    env = peer.common.env_util.make_vec_env(env_id, n_envs=STREAMS)
    model = peer.A2C("MlpPolicy", env, device="cpu", seed=0, n_steps=STEPS, max_grad_norm=1e9)
    ours: Any = A2C(ent_coef=0.0, minibatches=1, max_grad_norm=None).make_updater(spec, "cpu", 0)
    layers, log_std = begin_alike(model, ours)
    ours.begin([filled_rollout(model, spec)], 0.0)
    ours.step()
    model.train()
    theirs = torch.cat([flat(layers[0], True), *(gradient(p) for p in log_std), flat(layers[1], True)])
    mine, logged = ours.metrics(), model.logger.name_to_value
    losses = {n: [mine[f"train/{n}"], float(logged[f"train/{n}"])] for n in ("policy_loss", "value_loss")}
    return {"gradient": apart(ours.nets.gradient, theirs), **losses}


def compare_ppo(env_id: str, spec: EnvSpec) -> dict[str, Any]:
    """One iteration of PPO, ten passes in one minibatch each: what the parameters moved by."""
    env = peer.common.env_util.make_vec_env(env_id, n_envs=STREAMS)
    rows = STREAMS * STEPS
    model = peer.PPO("MlpPolicy", env, device="cpu", seed=0, n_steps=STEPS, batch_size=rows)
    ours: Any = PPO(ent_coef=0.0, normalize_rewards=False, minibatch_size=rows).make_updater(spec, "cpu", 0)
    layers, log_std = begin_alike(model, ours)
    before = ours.nets.parameters.clone()
    ours.begin([filled_rollout(model, spec)], 0.0)
    while ours.step():
        pass
    model.train()
    theirs = torch.cat([flat(layers[0]), *(p.detach() for p in log_std), flat(layers[1])])
    return {"moved": apart(ours.nets.parameters - before, theirs - before)}


def begin_alike(model: Any, ours: Any) -> tuple[list[list[nn.Linear]], list[nn.Parameter]]:
    """Give ours the weights of the peer's policy; return the layers of its policy and value, and its log std."""
    model.set_logger(configure(None, []))
    policy: Any = model.policy
    layers = [
        [*linear(policy.mlp_extractor.policy_net), policy.action_net],
        [*linear(policy.mlp_extractor.value_net), policy.value_net],
    ]
    log_std = [policy.log_std] if hasattr(policy, "log_std") else []
    with torch.no_grad():
        policy.action_net.weight.mul_(30)  # far from uniform
        ours.nets.parameters.copy_(torch.cat([flat(layers[0]), *log_std, flat(layers[1])]))
    return layers, log_std


def filled_rollout(model: Any, spec: EnvSpec) -> Segment:
    """Fill the peer's rollout with drawn actions in random observations; return the same rows as a segment."""
    rng, buffer, policy = np.random.default_rng(1), model.rollout_buffer, model.policy
    shape = STREAMS, STEPS
    obs = rng.normal(size=(*shape, *spec.observation_shape)).astype(np.float32)
    last_obs = rng.normal(size=(STREAMS, *spec.observation_shape)).astype(np.float32)
    reward, flags = rng.normal(1, 1, shape).astype(np.float32), np.zeros(shape, np.uint8)
    flags[:2, -1], flags[2:4, -1] = TERMINATED, TRUNCATED
    action = np.zeros((*shape, *spec.action.shape), spec.action.dtype)
    log_prob = np.zeros(shape, np.float32)
    buffer.reset()
    with torch.no_grad():
        last_value = policy.predict_values(torch.from_numpy(last_obs))
        for t in range(STEPS):
            taken, value, density = policy(torch.from_numpy(obs[:, t]))
            paid = reward[:, t] + GAMMA * (flags[:, t] == TRUNCATED) * last_value[:, 0].numpy()
            buffer.add(obs[:, t], taken.numpy().reshape(STREAMS, -1), paid, np.zeros(STREAMS), value, density)
            action[:, t], log_prob[:, t] = taken, density
        buffer.compute_returns_and_advantage(last_value, flags[:, -1] != 0)
    rows = {"version": np.zeros(STEPS, np.int64), "policy_updates": np.zeros(STEPS, np.int64)}
    rows |= {"weight": np.ones(STEPS, np.float32), "staleness": np.zeros(STEPS, np.int64)}
    seen = {"obs": obs, "last_obs": last_obs, "action": action, "reward": reward, "flags": flags}
    return Segment(ring=0, first=0, **seen, **rows, extras={"log_prob": log_prob})  # type: ignore[arg-type]


def main() -> None:
    """Compare all of them and print the differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("env")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the actor's weights")
    options = parser.parse_args()
    torch.set_num_threads(1)
    env, spec = gymnasium.make(options.env), describe(EnvSource.from_user(options.env))
    for name in ("sac", "td3"):
        for variant in VARIANTS[: 3 if name == "sac" else 2]:
            found = compare_replay(name, env, spec, options.scale, variant)
            print(json.dumps({"algorithm": name, "peer": variant, **found}))
    print(json.dumps({"algorithm": "a2c", **compare_a2c(options.env, spec)}))
    print(json.dumps({"algorithm": "ppo", **compare_ppo(options.env, spec)}))


if __name__ == "__main__":
    main()
