"""Returns of TD7's own code (github.com/sfujim/TD7, a checkout of it) on the way, with widths as given.

One environment; random actions first, then as many updates as steps, by default at the ends of episodes with
checkpoints, as its paper has them. Evaluations of ten greedy episodes, by the checkpoint where there is one. Prints
a line per evaluation and appends a line per run to results/td7_reference.jsonl.

    python -m benchmarks.peers.td7_reference CHECKOUT Hopper-v5 --seed 1 --steps 100000 --width 128
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

RESULTS = Path(__file__).parents[1] / "results" / "td7_reference.jsonl"


def main() -> None:
    """Train one seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="folder of TD7.py and buffer.py")
    parser.add_argument("env")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--interval", type=int, default=10_000, help="steps between evaluations")
    parser.add_argument("--width", type=int, default=256, help="of layers, embeddings and batches")
    parser.add_argument("--random-steps", type=int, default=25_000, help="steps before the first update")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--checkpoints", action=argparse.BooleanOptionalAction, default=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    curve = train(given, started)
    found = {**vars(given), "curve": curve, "cpu_seconds": round(time.process_time() - started)}
    del found["checkout"]
    with RESULTS.open("a") as file:
        file.write(json.dumps(found) + "\n")


def train(given: argparse.Namespace, started: float) -> list[list[float]]:
    """Train, and return `[steps, return]` of each evaluation."""
    env, other = gymnasium.make(given.env), gymnasium.make(given.env)
    torch.manual_seed(given.seed)
    np.random.seed(given.seed)
    agent = made(given, env)
    env.action_space.seed(given.seed)
    observation, _ = env.reset(seed=given.seed)
    other.reset(seed=given.seed + 100)
    length, total, trains, curve = 0, 0.0, False, []
    for step in range(1, given.steps + 1):
        action = agent.select_action(observation) if trains else env.action_space.sample()
        then, reward, terminated, truncated, _ = env.step(action)
        length, total = length + 1, total + float(reward)
        agent.replay_buffer.add(observation, action, then, reward, float(terminated))
        observation = then
        if trains and not given.checkpoints:
            agent.train()
        if terminated or truncated:
            if trains and given.checkpoints:
                agent.maybe_train_and_checkpoint(length, total)
            trains = trains or step >= given.random_steps
            observation, length, total = env.reset()[0], 0, 0.0
        if step % given.interval == 0:
            curve.append([step, round(evaluated(agent, other, given.checkpoints), 1)])
            spent = time.process_time() - started
            print(given.env, given.seed, *curve[-1], agent.training_steps, f"{spent:.0f} CPU s", flush=True)
    return curve


def made(given: argparse.Namespace, env: gymnasium.Env[Any, Any]) -> Any:
    """An agent of the checkout."""
    sys.path.insert(0, str(given.checkout))
    import TD7  # type: ignore[import-not-found]

    width, rate = given.width, given.learning_rate
    options = TD7.Hyperparameters(
        batch_size=width,
        zs_dim=width,
        enc_hdim=width,
        critic_hdim=width,
        actor_hdim=width,
        encoder_lr=rate,
        critic_lr=rate,
        actor_lr=rate,
    )
    assert env.observation_space.shape is not None and env.action_space.shape is not None
    observation, action = env.observation_space.shape[0], env.action_space.shape[0]
    return TD7.Agent(observation, action, float(env.action_space.high[0]), hp=options)  # type: ignore[attr-defined]


def evaluated(agent: Any, env: gymnasium.Env[Any, Any], checkpoint: bool) -> float:
    """Mean return of ten greedy episodes."""
    total = 0.0
    for _ in range(10):
        observation, ended = env.reset()[0], False
        while not ended:
            action = agent.select_action(observation, checkpoint, use_exploration=False)
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            ended = terminated or truncated
    return total / 10


if __name__ == "__main__":
    main()
