"""SAC's update in its common form (Haarnoja et al. 2018, after CleanRL), as a reference for the core's.

Modules, autograd, separate critics, torch.optim.Adam, and a loop over parameters for the targets.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from asyncrl.interfaces import Batch


class PlainSAC:
    """Learner of SAC with two critics and an adapted temperature, for actions in -1..1.

    Args:
        inputs: number of values of an observation.
        actions: number of values of an action; the target entropy is minus this number.
        hidden: widths of the hidden layers of the actor and of each critic.
        learning_rate: step size of every Adam.
        tau: fraction by which the targets move to the critics at every update.
    """

    def __init__(
        self,
        inputs: int,
        actions: int,
        hidden: tuple[int, int],
        learning_rate: float = 3e-4,
        tau: float = 0.005,
    ) -> None:
        self.actor = _perceptron(inputs, hidden, 2 * actions)
        self.critics = nn.ModuleList([_perceptron(inputs + actions, hidden, 1) for _ in range(2)])
        self.targets = nn.ModuleList([_perceptron(inputs + actions, hidden, 1) for _ in range(2)])
        self.targets.load_state_dict(self.critics.state_dict())
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=learning_rate)
        self.critic_adam = torch.optim.Adam(self.critics.parameters(), lr=learning_rate)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], lr=learning_rate)
        self.actions, self.tau = actions, tau

    def update(self, batch: Batch) -> None:
        """Make one gradient step of actor, critics and temperature."""
        obs, next_obs = torch.from_numpy(batch.obs.copy()), torch.from_numpy(batch.next_obs.copy())
        action = torch.from_numpy(batch.action.copy())
        reward, discount = torch.from_numpy(batch.reward.copy()), torch.from_numpy(batch.discount.copy())
        alpha = self.log_alpha.exp().detach()
        self.learn_critics(obs, action, self.target(reward, discount, next_obs, alpha))
        log_prob = self.learn_actor(obs, alpha)
        self.learn_alpha(log_prob)
        self.move_targets()

    def draw(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Actions and their log-probabilities `[B]`."""
        mean, log_std = self.actor(obs).chunk(2, dim=1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20.0, 2.0).exp())
        drawn = normal.rsample()
        action = torch.tanh(drawn)
        log_prob = normal.log_prob(drawn) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_prob.sum(1)

    def target(self, reward: Tensor, discount: Tensor, next_obs: Tensor, alpha: Tensor) -> Tensor:
        """Targets of the critics `[B]`."""
        with torch.no_grad():
            action, log_prob = self.draw(next_obs)
            rows = torch.cat([next_obs, action], 1)
            smallest: Tensor = torch.min(*(critic(rows).squeeze(1) for critic in self.targets))
            return reward + discount * (smallest - alpha * log_prob)

    def learn_critics(self, obs: Tensor, action: Tensor, target: Tensor) -> None:
        rows = torch.cat([obs, action], 1)
        loss = torch.stack([mse_loss(critic(rows).squeeze(1), target) for critic in self.critics]).sum()
        self.critic_adam.zero_grad()
        loss.backward()
        self.critic_adam.step()

    def learn_actor(self, obs: Tensor, alpha: Tensor) -> Tensor:
        action, log_prob = self.draw(obs)
        rows = torch.cat([obs, action], 1)
        smallest = torch.min(*(critic(rows).squeeze(1) for critic in self.critics))
        loss = (alpha * log_prob - smallest).mean()
        self.actor_adam.zero_grad()
        loss.backward()
        self.actor_adam.step()
        return log_prob.detach()

    def learn_alpha(self, log_prob: Tensor) -> None:
        loss = -(self.log_alpha * (log_prob - self.actions)).mean()
        self.alpha_adam.zero_grad()
        loss.backward()
        self.alpha_adam.step()

    def move_targets(self) -> None:
        with torch.no_grad():
            for own, target in zip(self.critics.parameters(), self.targets.parameters(), strict=True):
                target.mul_(1 - self.tau).add_(own, alpha=self.tau)


def _perceptron(inputs: int, hidden: tuple[int, int], outputs: int) -> nn.Sequential:
    first, second = hidden
    return nn.Sequential(
        nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, outputs)
    )
