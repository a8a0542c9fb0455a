"""Train with a network of your own: any `torch.nn.Module`, for any algorithm.

`network(inputs, outputs)` makes every network of the algorithm: DQN's action values, PPO's policy and value function,
SAC's actor and critics. Actors act with it too; they load torch for it, with one thread.

    python examples/own_network.py [ppo|dqn|sac] [STEPS]
"""

import sys

from torch import Tensor, nn

from asyncrl import DQN, PPO, SAC, Trainer


class Residual(nn.Module):
    """Two layers whose result is added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        """`[R, width]` to `[R, width]`."""
        return x + self.layers(x).relu()


def network(inputs: int, outputs: int) -> nn.Module:
    """A module from `[R, inputs]` to `[R, outputs]`."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), Residual(64), nn.Linear(64, outputs))


EXAMPLES = {
    "dqn": ("CartPole-v1", DQN, 475.0),
    "ppo": ("CartPole-v1", PPO, 475.0),
    "sac": ("Pendulum-v1", SAC, -200.0),
}


def main(name: str = "ppo", steps: int = 300_000) -> float:
    """Train until the target is reached; returns the mean return of the final evaluation."""
    env, algorithm, target = EXAMPLES[name]
    record = algorithm.preset(env, network=network)
    with Trainer(env, record, seed=0, http="off", **algorithm.preset_options(env)) as trainer:
        result = trainer.learn(target_return=target, total_steps=int(steps), max_seconds=300)
    print(f"{name}: {result.stop_reason}, mean return {result.evaluation.return_mean:.1f}")
    return result.evaluation.return_mean


if __name__ == "__main__":
    main(*sys.argv[1:])
