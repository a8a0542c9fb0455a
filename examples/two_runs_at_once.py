"""asyncio: two runs at the same time, watched while they train; the slower one is stopped when the other is done.

python examples/two_runs_at_once.py [STEPS]
"""

import asyncio
import sys

import asyncrl
from asyncrl import Trainer


async def watch(name: str, trainer: Trainer) -> str:
    """Print a line per second; returns the name when the run is done."""
    async for snapshot in trainer.stream(interval_seconds=1.0):
        print(f"{name}: {snapshot.env_steps:,} steps, return {snapshot.return_mean}")
    return name


async def race(steps: int) -> str:
    """Name of the run that was done first."""
    seeds = {f"seed {seed}": Trainer("CartPole-v1", "ppo", seed=seed, num_actors=1) for seed in (0, 1)}
    for name, trainer in seeds.items():
        trainer.start(total_steps=steps, target_return=475.0)
        print(f"{name}: {trainer.url}")
    watching = [asyncio.create_task(watch(*pair)) for pair in seeds.items()]
    done, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
    first = next(iter(done)).result()
    await asyncio.to_thread(asyncrl.stop_all)
    await asyncio.gather(*watching)
    for name, trainer in seeds.items():
        print(name, trainer.result)
    return first


def main(steps: int = 200_000) -> str:
    """Run the race."""
    return asyncio.run(race(steps))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
