"""Time to 475 on CartPole-v1: an algorithm at its preset, and Stable-Baselines3's at its zoo settings.

Both clocks: 475 over 100 greedy episodes, and 475 over the last 100 training episodes. Every run is a new process with
one torch thread; runs of the peer alternate with ours. Clocks are stopped during evaluations for which training waits.
`start-up` is the time from the start of the process to the first environment step.

    pip install "asyncrl[bench]"
    python -m benchmarks.peers.cartpole --algo ppo --seeds 10 --peer-seeds 5
    python -m benchmarks.peers.cartpole --algo dqn --only greedy --dqn.learning-rate 1e-3
"""

from __future__ import annotations

import json
import sys
from statistics import median

from benchmarks.harness import runs
from benchmarks.harness.report import Report, Side

TARGET = 475.0
WITH_PEER = ("dqn", "ppo")
GOALS = {"dqn": ("under 3", "at least 8"), "ppo": ("under 0.7", "at least 4.37"), "impala": ("under 3", "")}


def main() -> None:
    """Run both and write results/cartpole.json (dqn) or results/cartpole_<algo>.json."""
    parser = runs.flags(__doc__, runs.CLOCKS, seeds=10)
    parser.add_argument("--algo", default="dqn", help="asyncrl's algorithm; other options are given to it")
    parser.add_argument(
        "--peer-seeds", type=int, default=5, help="the peer's seeds 0 .. N-1; 0 leaves it out"
    )
    parser.add_argument(
        "--peer-python", default=sys.executable, help="interpreter that has stable-baselines3"
    )
    parser.add_argument("--max-seconds", type=float, default=15.0, help="limit of a run of ours")
    parsed, options = runs.parse(parser, "cartpole", runs.CLOCKS)
    algo, limit = parsed.algo, parsed.max_seconds
    peer_seeds = min(parsed.peer_seeds, parsed.seeds) if algo in WITH_PEER else 0
    runs.announce(parsed.seeds * len(parsed.items), limit)
    ours: dict[str, list[runs.Summary]] = {clock: [] for clock in parsed.items}
    theirs: list[runs.Summary] = []
    name = parsed.name if algo == "dqn" else parsed.name.replace("cartpole", f"cartpole_{algo}")
    report = Report(name, ["stable-baselines3", "uvloop"])
    for seed in range(parsed.seeds):
        for clock in parsed.items:
            ours[clock].append(runs.command("CartPole-v1", algo, seed, clock, TARGET, limit, options))
            print(f"asyncrl seed {seed} {clock}: {runs.line(ours[clock][-1])}", flush=True)
        if seed < peer_seeds:
            theirs.append(runs.peer("sb3_cartpole", [algo, "--seed", str(seed)], parsed.peer_python))
            print(f"stable-baselines3 seed {seed}: {json.dumps(theirs[-1])}", flush=True)
    if algo not in WITH_PEER:
        report.note("peer", f"none for {algo}")
    for clock in parsed.items:
        goal, ratio_goal = GOALS.get(algo, ("", "")) if clock == "greedy" else ("", "")
        seconds = runs.add_clock(report, "asyncrl", ours[clock], clock, limit, goal or None)
        side = Side.of(ours[clock])
        for what, unit in (("updates", "updates"), ("process_seconds", "s")):
            values = [r[what] for r in ours[clock]]
            report.add(f"asyncrl_{clock}_{what}", values, unit, sides={"asyncrl": side})
        if theirs and clock in theirs[0]["seconds"]:
            add_peer(report, "sb3", theirs, clock, seconds, side, ratio_goal)
    report.write()


def add_peer(
    report: Report,
    peer: str,
    results: list[runs.Summary],
    clock: str,
    ours: float,
    our_side: Side,
    goal: str,
) -> None:
    """Add a peer's figures of one clock; each of its runs has both. A missed target counts with the run's time."""
    times = [r["seconds"][clock] for r in results]
    report.note(f"{peer}_{clock}_reached", f"{sum(t is not None for t in times)} of {len(times)}")
    seconds = [r["train_seconds"] if t is None else t for r, t in zip(results, times, strict=True)]
    theirs = {peer: Side.of(results)}
    report.add(f"{peer}_{clock}_train_seconds", seconds, "s", sides=theirs)
    both = {**theirs, "asyncrl": our_side}
    report.add(f"{peer}_{clock}_to_asyncrl", [median(seconds) / ours], "x", goal or None, both)
    if clock == "greedy":
        rates = [r["env_steps"] / r["train_seconds"] for r in results]
        report.add(f"{peer}_env_steps_per_second", rates, "steps/s", sides=theirs)


if __name__ == "__main__":
    main()
