"""Continuous control from replay: seconds to a target of SAC, TD3 and DDPG at their presets, and SAC against others.

pendulum        -200 over 100 greedy episodes of Pendulum-v1 by every algorithm, and by Stable-Baselines3's SAC at its
                zoo settings; runs alternate
cheetah         3000 over 10 greedy episodes of HalfCheetah-v5 (whose episodes all have 1,000 steps) by SAC, and by
                Stable-Baselines3's and, with --sbx, SBX's; needs the mujoco extra. A peer's run ends after
                --peer-max-seconds of training and counts with them, so that a ratio with such runs is a lower bound.
                The notes have the number of runs that reached the target. Ours that did not count with their limit too
presets         one run of each algorithm in each environment for which it has a preset

Clocks are stopped during evaluations for which training waits, and begin with the first environment step. The peer
checks its greedy returns every 250 steps (Pendulum) or 1,000 steps (HalfCheetah) with its clock stopped.

    python -m benchmarks.peers.off_policy --peer-python /path/to/python/with/stable-baselines3
    python -m benchmarks.peers.off_policy --only cheetah --seeds 3 --peer-seeds 1 --sbx
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from statistics import median

from benchmarks.harness import runs
from benchmarks.harness.report import Report, Side

ITEMS = ("pendulum", "cheetah", "presets")
ALGORITHMS = ("sac", "td3", "ddpg")
PENDULUM, CHEETAH = "Pendulum-v1", "HalfCheetah-v5"
TARGETS = {
    PENDULUM: (-200.0, 60.0),
    "MountainCarContinuous-v0": (90.0, 60.0),
    "LunarLanderContinuous-v3": (200.0, 90.0),
    "BipedalWalker-v3": (300.0, 240.0),
    CHEETAH: (3000.0, 150.0),
    "Hopper-v5": (2000.0, 150.0),
    "Walker2d-v5": (2000.0, 150.0),
    "Ant-v5": (2000.0, 300.0),
}
"""Targets, and time limits in seconds of training."""
LONG_EPISODES = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5")
DECIDED_BY_TEN = ("--eval-episodes", "3", "--target-eval-episodes", "10")
PEERS = {"sb3": "sb3_sac", "sbx": "sbx_sac"}


def main() -> None:
    """Run everything and write results/off_policy.json."""
    parser = runs.flags(__doc__, ITEMS)
    parser.add_argument("--algos", default=",".join(ALGORITHMS), help="of pendulum and presets")
    parser.add_argument("--peer-seeds", type=int, default=5, help="seeds 0 .. N-1; 0 leaves the peers out")
    parser.add_argument(
        "--peer-python", default=sys.executable, help="interpreter that has stable-baselines3"
    )
    parser.add_argument("--peer-max-seconds", type=float, default=300.0, help="limit of a run of a peer")
    parser.add_argument("--sbx", action="store_true", help="SBX too (sbx-rl with the peer's interpreter)")
    parsed, options = runs.parse(parser, "off_policy", ITEMS)
    parsed.peer_seeds = min(parsed.peer_seeds, parsed.seeds)
    report = Report(parsed.name, ["mujoco", "stable-baselines3"])
    mujoco = importlib.util.find_spec("mujoco") is not None
    if not mujoco:
        report.note(CHEETAH, "left out: mujoco is not installed (pip install 'asyncrl[mujoco]')")
    if "pendulum" in parsed.items:
        pendulum(report, parsed, options)
    if "cheetah" in parsed.items and mujoco:
        cheetah(report, parsed, options)
    if "presets" in parsed.items:
        presets(report, parsed.algos.split(","), options, mujoco)
    report.write()


def run(env: str, algo: str, seed: int, options: Sequence[str]) -> runs.Summary:
    """One run of ours to the environment's target."""
    target, limit = TARGETS[env]
    episodes = DECIDED_BY_TEN if env in LONG_EPISODES else ()
    summary = runs.command(env, algo, seed, "greedy", target, limit, [*episodes, *options])
    print(f"{env} {algo} seed {seed}: {runs.line(summary)}", flush=True)
    return summary


def run_peer(name: str, env: str, seed: int, parsed: argparse.Namespace) -> runs.Summary:
    """One run of a peer to the environment's target."""
    limit = parsed.peer_max_seconds
    options = [env, "--seed", str(seed), "--target", str(TARGETS[env][0]), "--max-seconds", str(limit)]
    result = runs.peer(PEERS[name], options, parsed.peer_python, patience_seconds=3 * limit + 300)
    print(f"{env} {name} seed {seed}: {json.dumps(result)}", flush=True)
    return result


def pendulum(report: Report, parsed: argparse.Namespace, options: Sequence[str]) -> None:
    """Run every algorithm, and Stable-Baselines3's SAC."""
    algos, limit = parsed.algos.split(","), TARGETS[PENDULUM][1]
    runs.announce(parsed.seeds * len(algos), limit)
    runs.announce(parsed.peer_seeds, parsed.peer_max_seconds)
    ours: dict[str, list[runs.Summary]] = {algo: [] for algo in algos}
    theirs = []
    for seed in range(parsed.seeds):
        for algo in algos:
            ours[algo].append(run(PENDULUM, algo, seed, options))
        if seed < parsed.peer_seeds:
            theirs.append(run_peer("sb3", PENDULUM, seed, parsed))
    seconds = {
        algo: runs.add_clock(report, f"pendulum_{algo}", found, "greedy", limit)
        for algo, found in ours.items()
    }
    if theirs:
        add_peer(report, "pendulum", "sb3", theirs, ours, seconds, "at least 4")


def cheetah(report: Report, parsed: argparse.Namespace, options: Sequence[str]) -> None:
    """Run SAC and its peers."""
    limit, peers = TARGETS[CHEETAH][1], ["sb3", "sbx"] if parsed.sbx else ["sb3"]
    runs.announce(parsed.seeds, limit)
    runs.announce(parsed.peer_seeds * len(peers), parsed.peer_max_seconds)
    ours = []
    theirs: dict[str, list[runs.Summary]] = {name: [] for name in peers}
    for seed in range(parsed.seeds):
        ours.append(run(CHEETAH, "sac", seed, options))
        if seed < parsed.peer_seeds:
            for name in peers:
                theirs[name].append(run_peer(name, CHEETAH, seed, parsed))
    seconds = {"sac": runs.add_clock(report, "cheetah_sac", ours, "greedy", limit)}
    updates = [s["updates"] for s in ours]
    report.add("cheetah_sac_updates", updates, "updates", sides={"asyncrl": Side.of(ours)})
    for name, results in theirs.items():
        if results:
            goal = "at least 3" if name == "sb3" else ""
            add_peer(report, "cheetah", name, results, {"sac": ours}, seconds, goal)


def add_peer(
    report: Report,
    key: str,
    name: str,
    results: list[runs.Summary],
    ours: dict[str, list[runs.Summary]],
    our_seconds: dict[str, float],
    goal: str,
) -> None:
    """Add a peer's figures and the ratios of medians; SAC's ratio has the goal."""
    sides = {name: Side.of(results)}
    reached = sum(r["reached"] for r in results)
    name_of_all = f"{key}_{name}_greedy"
    report.note(f"{name_of_all}_reached", f"{reached} of {len(results)}")
    if reached < len(results):
        report.note(f"{name_of_all}_bound", "runs that did not get there count with their limit: lower bound")
    seconds = [r["train_seconds"] for r in results]
    report.add(f"{name_of_all}_train_seconds", seconds, "s", sides=sides)
    report.add(f"{name_of_all}_env_steps", [r["env_steps"] for r in results], "steps", sides=sides)
    returns = [r["return_mean"] for r in results if r["return_mean"] is not None]
    if returns:
        report.add(f"{name_of_all}_last_return", returns, "", sides=sides)
    both = {algo: {**sides, "asyncrl": Side.of(found)} for algo, found in ours.items()}
    for algo, ours_seconds in our_seconds.items():
        word = goal if algo == "sac" else ""
        ratio = median(seconds) / ours_seconds
        report.add(f"{key}_{name}_to_{algo}", [ratio], "x", word or None, both[algo])
    if "compile_seconds" in results[0]:
        without = [r["train_seconds_without_compilation"] for r in results]
        compiling = [r["compile_seconds"] for r in results]
        report.add(f"{name_of_all}_compile_seconds", compiling, "s", sides=sides)
        report.add(f"{name_of_all}_train_seconds_without_compilation", without, "s", sides=sides)
        for algo, ours_seconds in our_seconds.items():
            ratio = median(without) / ours_seconds
            report.add(f"{key}_{name}_without_compilation_to_{algo}", [ratio], "x", sides=both[algo])


def presets(report: Report, algos: Sequence[str], options: Sequence[str], mujoco: bool) -> None:
    """Run each algorithm once in each environment with a preset."""
    chosen = [(algo, env) for algo in algos for env in preset_envs(algo) if mujoco or not env.endswith("-v5")]
    runs.announce(len(chosen), max(limit for _, limit in TARGETS.values()))
    for algo, env in chosen:
        summary, (target, limit) = run(env, algo, 0, options), TARGETS[env]
        report.note(f"presets_{algo}_{env}", {"target": target, "limit_seconds": limit})
        runs.add_clock(report, f"presets_{algo}_{env}", [summary], "greedy", limit)


def preset_envs(algo: str) -> list[str]:
    """Environments in `TARGETS` for which an algorithm has preset options."""
    from asyncrl.algorithms import ALGORITHMS as KNOWN

    record = KNOWN[algo]
    return [env for env in TARGETS if record.preset_options(env) or record.preset(env) != record()]


if __name__ == "__main__":
    main()
