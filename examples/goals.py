"""Hindsight experience replay on a goal environment: flip bits until they are those desired.

DQN relabels goals without being asked where observations hold them.
"""

from asyncrl import DQN, Trainer

STEPS = 8_000


def main() -> None:
    algorithm = DQN(
        gamma=0.98, samples_per_insert=32.0, exploration_steps=2_000, learning_starts=500, tau=0.05
    )
    with Trainer("asyncrl/BitFlip-v0", algorithm, env_kwargs={"bits": 8}, num_actors=1, seed=0) as trainer:
        result = trainer.learn(total_steps=STEPS)
    print(result.summary["eval"]["return_mean"])


if __name__ == "__main__":
    main()
