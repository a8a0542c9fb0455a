"""Reference implementations of SAC, TD3 and DDPG with modules, autograd and torch's Adam; and batches for them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.acting.box import LOG_STD_MAX, LOG_STD_MIN
from asyncrl.interfaces import Batch, BoxAction, EnvSpec

SPEC = EnvSpec("box", (4,), "float32", BoxAction((-1.0, -1.0), (1.0, 1.0), (2,)))
LOPSIDED = EnvSpec("lopsided", (3,), "float32", BoxAction((-2.0, 0.0, 1.0), (2.0, 10.0, 1.5), (3,)))
BYTES = EnvSpec("bytes", (2, 3), "uint8", BoxAction((-3.0,), (5.0,), (1, 1)))
SPECS = {spec.name: spec for spec in (SPEC, LOPSIDED, BYTES)}
SIZE = 20


def filled_batch(size: int = SIZE, seed: int = 0, spec: EnvSpec = SPEC) -> Batch:
    rng = np.random.default_rng(seed)
    batch = Batch.allocate(size, spec)
    bytes_ = spec.observation_dtype == "uint8"
    for obs in (batch.obs, batch.next_obs):
        obs[:] = rng.integers(0, 256, obs.shape) if bytes_ else rng.normal(size=obs.shape)
    assert isinstance(spec.action, BoxAction)
    batch.action[:] = rng.uniform(spec.action.low, spec.action.high, (size, 1, len(spec.action.low))).reshape(
        batch.action.shape
    )
    batch.reward[:] = rng.normal(0, 2, size)
    batch.discount[:] = np.where(rng.random(size) < 0.3, 0.0, 0.9)
    batch.weight[:] = rng.random(size)
    return batch


def permuted(batch: Batch, order: np.ndarray) -> Batch:
    names = ("obs", "action", "reward", "discount", "next_obs", "weight", "ids", "version", "policy_updates")
    names += ("staleness",)
    return Batch(**{name: getattr(batch, name)[order] for name in names})


def written(core: Any) -> np.ndarray:
    out = np.full(core.weight_count, np.nan, np.float32)
    core.write_weights(out)
    assert np.isfinite(out).all(), "every weight is written"
    return out


def module_of(named: dict[str, Tensor], prefix: str = "") -> nn.Sequential:
    layers: list[nn.Module] = []
    for i in range(sum(name.startswith(prefix) for name in named) // 2):
        weight, bias = named[f"{prefix}{i}.weight"], named[f"{prefix}{i}.bias"]
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": bias})
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def critics_of(named: dict[str, Tensor]) -> nn.ModuleList:
    count = len({name.split(".")[0] for name in named})
    return nn.ModuleList([module_of(named, f"{c}.") for c in range(count)])


class Twin:
    """Reference with copies of a core's networks as modules, and the same update by autograd.

    All gradients are taken before anything moves; `policy_delay` is for whoever calls `update`.
    """

    def __init__(self, core: Any) -> None:
        self.config, self.spec, state = core.config, core.spec, core.state_dict()
        self.policy, self.critics = module_of(state["policy"]), critics_of(state["critics"])
        self.target_critics = critics_of(state["target_critics"])
        self.log_alpha = nn.Parameter(state.get("log_alpha", torch.zeros(())))
        self.target_policy = module_of(state["target_policy"]) if "target_policy" in state else None
        rate, eps = self.config.learning_rate, self.config.adam_eps
        self.groups = {
            "policy": list(self.policy.parameters()),
            "temperature": [self.log_alpha],
            "critics": list(self.critics.parameters()),
        }
        slow = self.config.actor_learning_rate or rate
        rates = {"policy": slow, "temperature": slow, "critics": rate}
        self.adam = {
            name: torch.optim.Adam(group, lr=rates[name], eps=eps) for name, group in self.groups.items()
        }

    def tensors(self, batch: Batch) -> dict[str, Tensor]:
        scale = 1 / 255 if batch.obs.dtype == np.uint8 else 1.0
        rows = {n: torch.from_numpy(getattr(batch, n).reshape(batch.size, -1)) for n in ("obs", "next_obs")}
        low, high = (torch.tensor(bound) for bound in (self.spec.action.low, self.spec.action.high))
        action = torch.from_numpy(batch.action.reshape(batch.size, -1))
        columns = {n: torch.from_numpy(getattr(batch, n))[:, None] for n in ("reward", "discount", "weight")}
        normalised = 2 * (action - low) / (high - low) - 1
        return {n: x.float() * scale for n, x in rows.items()} | columns | {"action": normalised}

    def judge(self, critics: Iterable[nn.Module], obs: Tensor, action: Tensor) -> Tensor:
        return torch.stack([critic(torch.cat((obs, action), dim=1)) for critic in critics])

    def critic_loss(self, batch: dict[str, Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of the critics, and the priorities."""
        td = self.judge(self.critics, batch["obs"], batch["action"]) - y
        return (batch["weight"] * td.square()).mean(dim=1).sum() / 2, td.abs().mean(dim=0)[:, 0].detach()

    def step(self, losses: dict[str, Tensor]) -> None:
        grads = {
            name: torch.autograd.grad(loss, self.groups[name], retain_graph=True)
            for name, loss in losses.items()
        }
        for name, group in self.groups.items():
            if name not in losses:
                continue
            for parameter, grad in zip(group, grads[name], strict=True):
                parameter.grad = grad
            if self.config.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(group, self.config.max_grad_norm)
            self.adam[name].step()

    @torch.no_grad()
    def follow(self, slow: nn.Module, fast: nn.Module) -> None:
        for a, b in zip(slow.parameters(), fast.parameters(), strict=True):
            a.lerp_(b, self.config.tau)

    def assert_same(self, core: Any, **tolerance: float) -> None:
        """Assert that every network of the core equals the reference's."""
        other = Twin(core)
        pairs = [(self.policy, other.policy), (self.critics, other.critics)]
        pairs.append((self.target_critics, other.target_critics))
        if self.target_policy is not None and other.target_policy is not None:
            pairs.append((self.target_policy, other.target_policy))
        for mine, theirs in pairs:
            for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(b, a, **tolerance)
        torch.testing.assert_close(other.log_alpha, self.log_alpha, **tolerance)


class SACTwin(Twin):
    def drawn(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.policy(obs).chunk(2, dim=1)
        std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).exp()
        u = mean + std * noise
        density = torch.distributions.Normal(mean, std).log_prob(u)
        change = 2 * (math.log(2) - u - nn.functional.softplus(-2 * u))
        return u.tanh(), (density - change).sum(dim=1, keepdim=True)

    def update(self, filled: Batch, noise: Tensor, acting: bool) -> Tensor:
        config, batch = self.config, self.tensors(filled)
        alpha = self.log_alpha.detach().exp()
        here, there = noise.split(filled.size)
        with torch.no_grad():
            next_action, next_log_prob = self.drawn(batch["next_obs"], there)
            next_q = self.judge(self.target_critics, batch["next_obs"], next_action).min(dim=0).values
            y = batch["reward"] + batch["discount"] * (next_q - alpha * next_log_prob)
        loss, priorities = self.critic_loss(batch, y)
        losses = {"critics": loss}
        if acting:
            action, log_prob = self.drawn(batch["obs"], here)
            own_q = self.judge(self.critics, batch["obs"], action).min(dim=0).values
            losses["policy"] = (alpha * log_prob - own_q).mean()
            wanted = -action.shape[1] if config.target_entropy is None else config.target_entropy
            if config.ent_coef is None:
                losses["temperature"] = -self.log_alpha * (log_prob.detach() + wanted).mean()
        self.losses = {name: float(loss.detach()) for name, loss in losses.items()}
        self.step(losses)
        self.follow(self.target_critics, self.critics)
        return priorities


class TD3Twin(Twin):
    def update(self, filled: Batch, noise: Tensor, acting: bool) -> Tensor:
        config, batch = self.config, self.tensors(filled)
        assert self.target_policy is not None
        with torch.no_grad():
            scale, clip = getattr(config, "target_noise", 0.0), getattr(config, "target_noise_clip", 0.0)
            moved = (noise * scale).clamp(-clip, clip)
            next_action = (self.target_policy(batch["next_obs"]).tanh() + moved).clamp(-1, 1)
            next_q = self.judge(self.target_critics, batch["next_obs"], next_action).min(dim=0).values
            y = batch["reward"] + batch["discount"] * next_q
        loss, priorities = self.critic_loss(batch, y)
        losses = {"critics": loss}
        if acting:
            own_q = self.judge(self.critics[:1], batch["obs"], self.policy(batch["obs"]).tanh())  # type: ignore[index]
            losses["policy"] = -own_q.mean()
        self.losses = {name: float(loss.detach()) for name, loss in losses.items()}
        self.step(losses)
        if acting:
            self.follow(self.target_critics, self.critics)
            self.follow(self.target_policy, self.policy)
        return priorities
