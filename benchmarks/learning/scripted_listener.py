"""The return of mpe2's speaker and listener where nothing is left to learn: what MADDPG can get at most, nearly.

The listener is told the goal itself and moves by a proportional and derivative rule: along the axis on which the goal
less `--damping` times its velocity is farther away, as its five actions allow. Prints and writes the mean return of
both agents over 200 episodes by damping; the best is nearly optimal, because nothing but the way to the goal costs.

    python -m benchmarks.learning.scripted_listener [--episodes 200]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.harness.report import Report, script_parser

DAMPINGS = (0.0, 0.1, 0.2, 0.3, 0.4)
REACH = 0.03
"""Distance at which the listener stands still."""


def action(obs: Any, goal: int, damping: float) -> int:
    """The listener's action: 0 none, 1 left, 2 right, 3 down, 4 up."""
    velocity, away = obs[:2], obs[2:8].reshape(3, 2)[goal]
    error = away - damping * velocity
    axis = int(np.abs(error).argmax())
    return 0 if abs(error[axis]) < REACH else 1 + 2 * axis + int(error[axis] > 0)


def returns(env: Any, damping: float, episodes: int) -> list[float]:
    """Returns of both agents in sum."""
    found = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        total = 0.0
        while env.agents:
            goal = int(obs["speaker_0"].argmax())
            chosen = {"speaker_0": 0, "listener_0": action(obs["listener_0"], goal, damping)}
            obs, rewards, *_ = env.step(chosen)
            total += float(sum(rewards.values()))
        found.append(total)
    return found


def main() -> None:
    """Measure and write results/scripted_listener.json."""
    from mpe2 import simple_speaker_listener_v4

    parser = script_parser(__doc__)
    parser.add_argument("--episodes", type=int, default=200)
    parsed = parser.parse_args()
    report, env = Report("scripted_listener", ["mpe2"]), simple_speaker_listener_v4.parallel_env()
    for damping in DAMPINGS:
        found = returns(env, damping, parsed.episodes)
        report.add(f"damping_{damping}", [float(np.mean(found))], "")
        report.add(f"damping_{damping}_standard_error", [float(np.std(found) / len(found) ** 0.5)], "")
    report.write()


if __name__ == "__main__":
    main()
