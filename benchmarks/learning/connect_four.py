"""Connect Four by self-play: win rates of the greedy policy against a random player and one that looks a move ahead.

PPO against past versions, drawn in each of the three ways, and against itself alone (`none`). The player with
look-ahead makes a move that wins at once, else one that keeps the other from it, else a random one. The policy begins
every second game; a draw counts half.

    python -m benchmarks.learning.connect_four [--seeds 3] [--only prioritized,uniform,newest,none] [--steps 5000000]

The options are those of PPO's preset. `--set NAME=VALUE` changes one of them; the value is a Python literal.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.report import Report, markdown
from benchmarks.harness.runs import flags, parse
from benchmarks.learning.held_out import FIRST_SEED

ENV, STEPS, GAMES = "asyncrl/ConnectFour-v0", 500_000, 400
Player = Callable[[dict[str, NDArray[Any]], np.random.Generator], int]


def random_player(seen: dict[str, NDArray[Any]], rng: np.random.Generator) -> int:
    """A random legal move."""
    return int(rng.choice(np.flatnonzero(seen["action_mask"])))


def look_ahead_player(seen: dict[str, NDArray[Any]], rng: np.random.Generator, length: int = 4) -> int:
    """A move that wins at once, else one that keeps the other from it, else a random one."""
    mask = seen["action_mask"]
    boards = seen["observation"].transpose(2, 1, 0)[:2]
    heights, legal = boards.sum(axis=(0, 2)), np.flatnonzero(mask)
    for board in boards:
        for column in legal:
            if makes_line(board, int(column), int(heights[column]), length):
                return int(column)
    return int(rng.choice(legal))


def makes_line(board: NDArray[Any], column: int, row: int, length: int) -> bool:
    """Whether a stone at an empty place makes a line with those in `board` `[columns, rows]` of one player."""
    columns, rows = board.shape
    for right, up in ((1, 0), (0, 1), (1, 1), (1, -1)):
        stones = 1
        for way in (1, -1):
            for n in range(1, length):
                x, y = column + way * n * right, row + way * n * up
                if not (0 <= x < columns and 0 <= y < rows and board[x, y]):
                    break
                stones += 1
        if stones >= length:
            return True
    return False


def win_rate(policy: Any, other: Player, games: int, seed: int) -> float:
    """Win rate of the greedy policy against a player; a draw counts half."""
    rng, env, points = np.random.default_rng(seed), policy.make_env(), 0.0
    for game in range(games):
        seen, _ = env.reset()
        names = list(env.agents)
        own, returned = names[game % 2], 0.0
        while env.agents:
            actions = {name: other(seen[name], rng) for name in names}
            actions[own] = policy.predict({own: seen[own]}, deterministic=True)[0][own]
            seen, rewards, *_ = env.step(actions)
            returned += rewards[own]
        points += (returned + 1) / 2
    return points / games


def main() -> None:
    """Run everything and write results/connect_four.json."""
    from asyncrl import PPO, Trainer

    ways = ["prioritized", "uniform", "newest", "none"]
    parser = flags(__doc__, ways, seeds=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--label", default="", help="appended to the name of the result file")
    parsed, _ = parse(parser, "connect_four", ways)
    options: dict[str, Any] = {}
    run = {**PPO.preset_options(ENV), "http": "off", "eval_interval_steps": None}
    for name, _, value in (text.partition("=") for text in parsed.set):
        (run if name in run else options)[name] = ast.literal_eval(value)
    report, rows = Report(parsed.name + parsed.label), []
    for way in parsed.items:
        for seed in range(FIRST_SEED, FIRST_SEED + parsed.seeds):
            trainer = Trainer(ENV, PPO.preset(ENV, **options), seed=seed, **{**run, "self_play": way})
            result = trainer.learn(total_steps=20_000 if parsed.quick else parsed.steps)
            last = trainer.snapshot()
            assert last is not None
            rates = [
                win_rate(result.policy, player, GAMES, seed) for player in (random_player, look_ahead_player)
            ]
            elo = "" if last.elo is None else f"{last.elo:,.0f}"
            row = [way, seed, f"{rates[0]:.3f}", f"{rates[1]:.3f}", elo, f"{last.env_steps:,}"]
            rows.append([*row, f"{last.train_seconds:,.0f}"])
            print(*rows[-1], flush=True)
            names = ["opponents", "seed", "random player", "looks ahead", "Elo", "steps", "seconds"]
            report.note("table", markdown(names, rows).splitlines())
            report.write()


if __name__ == "__main__":
    main()
