"""An environment of your own: a class with Gymnasium's two methods, given to the trainer as a factory.

The factory is sent to the actors by cloudpickle, so lambdas and classes of a notebook will do. Check it first, here or
in a shell: asyncrl check own_environment:Catch

    python examples/own_environment.py [STEPS]
"""

import sys
from typing import ClassVar

import gymnasium
import numpy as np

from asyncrl import DQN, Trainer


class Catch(gymnasium.Env):
    """A fruit falls down a grid of 10 rows and 5 columns; the basket in the last row catches it or does not.

    Args:
        render_mode: "rgb_array" draws the grid for films and `asyncrl enjoy`.
    """

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 5}
    rows, columns = 10, 5

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)  # left, stay, right
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        """Drop a fruit from a random column; all randomness comes from `np_random`, which the seed decides."""
        super().reset(seed=seed)
        self.row, self.basket = 0, self.columns // 2
        self.fruit = int(self.np_random.integers(self.columns))
        return self._observation(), {}

    def step(self, action):
        """Move the basket, let the fruit fall by one row."""
        self.basket = min(max(self.basket + int(action) - 1, 0), self.columns - 1)
        self.row += 1
        terminated = self.row == self.rows - 1
        reward = (1.0 if self.basket == self.fruit else -1.0) if terminated else 0.0
        return self._observation(), reward, terminated, False, {}

    def render(self):
        """The grid as an image `[320, 160, 3]`."""
        grid = np.zeros((self.rows, self.columns, 3), np.uint8)
        grid[-1, self.basket], grid[self.row, self.fruit] = (60, 120, 255), (255, 90, 60)
        return grid.repeat(32, axis=0).repeat(32, axis=1)

    def _observation(self):
        place = self.row / self.rows, self.fruit / self.columns, self.basket / self.columns
        return np.array(place, np.float32)


def main(steps: int = 30_000) -> float:
    """Train until the basket never misses; returns the mean return of the final evaluation."""
    dqn = DQN(learning_starts=500, exploration_steps=5_000, gamma=0.95)
    trainer = Trainer(Catch, dqn, num_actors=1, eval_interval_steps=1_000, seed=0, http="off")
    result = trainer.learn(total_steps=steps, target_return=1.0)
    print(result)
    return result.evaluation.return_mean


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
