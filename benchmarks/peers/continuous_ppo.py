"""PPO with continuous actions: returns of Pendulum-v1 and HalfCheetah-v5, and steps/s against Stable-Baselines3's PPO.

pendulum        fixed steps, then 100 greedy episodes (at least -250); and the seconds to -250 on both clocks
cheetah         HalfCheetah-v5 until 2000 over 10 greedy episodes, at most 500,000 steps (needs the mujoco extra)
throughput      both environments, two actors against Stable-Baselines3 with one environment, at the same rollout,
                minibatch and passes, so that both do the same work for a step; runs alternate

python -m benchmarks.peers.continuous_ppo --peer-python /path/to/python/with/stable-baselines3
"""

from __future__ import annotations

import importlib.util
import sys

from asyncrl import PPO
from benchmarks.harness import runs
from benchmarks.harness.report import Report, Side

ITEMS = ("pendulum", "cheetah", "throughput")
PENDULUM, CHEETAH = "Pendulum-v1", "HalfCheetah-v5"
PENDULUM_TARGET, CHEETAH_TARGET = -250.0, 2000.0
PENDULUM_STEPS, CHEETAH_STEPS = 150_000, 500_000
OURS_STEPS, PEER_STEPS = 60_000, 8_192


def main() -> None:
    """Run everything and write results/continuous_ppo.json."""
    parser = runs.flags(__doc__, ITEMS)
    parser.add_argument("--max-seconds", type=float, default=60.0, help="limit of a run")
    parser.add_argument(
        "--peer-python", default=sys.executable, help="interpreter that has stable-baselines3"
    )
    parsed, options = runs.parse(parser, "continuous_ppo", ITEMS)
    report = Report(parsed.name, ["mujoco", "stable-baselines3"])
    mujoco = importlib.util.find_spec("mujoco") is not None
    if not mujoco:
        report.note(CHEETAH, "left out: mujoco is not installed (pip install 'asyncrl[mujoco]')")
    if "pendulum" in parsed.items:
        pendulum(report, parsed.seeds, parsed.max_seconds, options)
    if "cheetah" in parsed.items and mujoco:
        cheetah(report, parsed.seeds, parsed.max_seconds, options)
    if "throughput" in parsed.items:
        for env in (PENDULUM, CHEETAH) if mujoco else (PENDULUM,):
            throughput(report, env, parsed.seeds, parsed.peer_python, options)
    report.write()


def pendulum(report: Report, seeds: int, limit: float, options: list[str]) -> None:
    """Measure fixed steps and both clocks."""
    runs.announce(3 * seeds, 15.0)
    fixed: list[runs.Summary] = []
    clocks: dict[str, list[runs.Summary]] = {clock: [] for clock in runs.CLOCKS}
    rules = ["--steps", str(PENDULUM_STEPS), "--eval-interval-steps", "none"]
    for seed in range(seeds):
        fixed.append(runs.cli(PENDULUM, "ppo", seed, [*rules, *options], limit + 120))
        print(f"{PENDULUM} seed {seed} fixed: {runs.line(fixed[-1])}", flush=True)
        for clock, summaries in clocks.items():
            summaries.append(runs.command(PENDULUM, "ppo", seed, clock, PENDULUM_TARGET, limit, options))
            print(f"{PENDULUM} seed {seed} {clock}: {runs.line(summaries[-1])}", flush=True)
    goal = f"mean at least {PENDULUM_TARGET:g}"
    returns = [s["eval"]["return_mean"] for s in fixed]
    sides = {"asyncrl": Side.of(fixed)}
    report.add("pendulum_fixed_steps_return", returns, "", goal, sides)
    mean = sum(returns) / len(returns)
    report.add("pendulum_fixed_steps_return_mean_of_seeds", [mean], "", goal, sides)
    seconds = [s["train_seconds"] for s in fixed]
    report.add("pendulum_fixed_steps_train_seconds", seconds, "s", sides=sides)
    report.note("pendulum_fixed_steps", PENDULUM_STEPS)
    for clock, summaries in clocks.items():
        runs.add_clock(report, "pendulum", summaries, clock, limit)


def cheetah(report: Report, seeds: int, limit: float, options: list[str]) -> None:
    """Train until the target within a number of steps. All episodes have 1,000 steps, so 10 decide instead of 100."""
    runs.announce(seeds, limit)
    rules = ["--steps", str(CHEETAH_STEPS), "--eval-episodes", "5", "--target-eval-episodes", "10"]
    summaries = []
    for seed in range(seeds):
        flags = [*rules, *options]
        summaries.append(runs.command(CHEETAH, "ppo", seed, "greedy", CHEETAH_TARGET, limit, flags))
        print(f"{CHEETAH} seed {seed}: {runs.line(summaries[-1])}", flush=True)
    runs.add_clock(report, "cheetah", summaries, "greedy", limit)
    steps = [s["env_steps"] for s in summaries if runs.reached(s, "greedy")]
    if steps:
        sides = {"asyncrl": Side.of(summaries)}
        report.add("cheetah_steps_to_target", steps, "steps", f"at most {CHEETAH_STEPS:,}", sides)


def throughput(report: Report, env: str, seeds: int, python: str, options: list[str]) -> None:
    """Measure steps/s of whole runs, learning included."""
    algorithm, trainer = PPO.preset(env), PPO.preset_options(env)
    actors = 2
    envs = trainer.get("envs_per_actor", 16)
    segments = algorithm.segments_per_batch or actors
    rollout = segments * envs * algorithm.segment_length
    work = ["--rollout", str(rollout), "--minibatch", str(algorithm.minibatch_size)]
    work += ["--epochs", str(algorithm.epochs), "--learning-rate", str(algorithm.learning_rate)]
    work += ["--gamma", str(algorithm.gamma), "--steps", str(max(PEER_STEPS, 2 * rollout))]
    if algorithm.normalize_observations:
        work.append("--normalize")
    rules = ["--steps", str(OURS_STEPS), "--eval-interval-steps", "none"]
    rules += ["--num-actors", str(actors), "--max-seconds", "60", "--target-eval-episodes", "1"]
    results: dict[str, list[runs.Summary]] = {"asyncrl": [], "sb3": []}
    for seed in range(seeds):
        results["asyncrl"].append(runs.cli(env, "ppo", seed, [*rules, *options], 180))
        peer = runs.peer("sb3_ppo_throughput", [env, "--seed", str(seed), *work], python)
        results["sb3"].append(peer)
        words = [
            f"{name} {found[-1]['env_steps_per_second']:,.0f} steps/s" for name, found in results.items()
        ]
        print(f"{env} seed {seed}: {', '.join(words)}", flush=True)
    sides = {name: Side.of(found) for name, found in results.items()}
    ours, theirs = ([r["env_steps_per_second"] for r in found] for found in results.values())
    key = env.split("-")[0].lower()
    report.note(f"throughput_{key}_work", work)
    of_ours, of_theirs = ({name: side} for name, side in sides.items())
    report.add(f"throughput_{key}_steps_per_second", ours, "steps/s", sides=of_ours)
    report.add(f"throughput_{key}_sb3_steps_per_second", theirs, "steps/s", sides=of_theirs)
    report.add_ratio(f"throughput_{key}_to_sb3", ours, theirs, "at least 3", sides)


if __name__ == "__main__":
    main()
