"""Learn a game from its pixels: two frames are stacked, and a convolutional network is chosen by itself.

    python examples/pixels.py [dqn|impala|ppo] [STEPS]

`asyncrl/Catch-v0` is a game of 21 x 21 pixels that comes with the package. See docs/observations.md.
"""

import sys

from asyncrl import DQN, IMPALA, PPO, Trainer

ENV = "asyncrl/Catch-v0"
ALGORITHMS = {"dqn": DQN, "impala": IMPALA, "ppo": PPO}


def main(name: str = "dqn", steps: int = 200_000) -> float:
    """Train, play one episode; returns the mean return of the final evaluation."""
    algorithm = ALGORITHMS[name].preset(ENV, frame_stack=2)
    with Trainer(ENV, algorithm, seed=0, http="off", **algorithm.preset_options(ENV)) as trainer:
        result = trainer.learn(target_return=0.95, total_steps=int(steps), max_seconds=300)
    print(f"{result.policy.describe()}: {result.stop_reason}, {result.evaluation.return_mean:.2f}")

    env = result.policy.make_env()  # within gymnasium's FrameStackObservation
    obs, _ = env.reset(seed=1)
    done, reward = False, 0.0
    while not done:
        action, _ = result.policy.predict(obs)
        obs, reward, terminated, truncated, _ = env.step(action)
        done = terminated or truncated
    print("caught" if reward > 0 else "missed")
    return result.evaluation.return_mean


if __name__ == "__main__":
    main(*sys.argv[1:])
