"""Time to 475 on CartPole-v1: PPO and DQN at their presets, and RLlib's at the settings of its tuned examples.

Clocks and cases as in `peers.cartpole`; every run is a new process with one torch thread, and RLlib's alternate with
ours. RLlib is installed, in the version pinned here, into an environment of its own. A run that misses its target
counts with its limit. RLlib's clock excludes the start of Ray (5 s and more), ours that of its processes.

    nice -n -5 python -m benchmarks.peers.rllib --venv /tmp/peers --seeds 3
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.harness import runs, venvs
from benchmarks.harness.report import Report, Side
from benchmarks.peers.cartpole import TARGET, add_peer

PACKAGE = "ray[rllib]==2.60.0"
ALGORITHMS = ("ppo", "dqn")
OUR_LIMIT = 60.0


def main() -> None:
    """Run both and write results/rllib.json."""
    parser = runs.flags(__doc__, ALGORITHMS, seeds=3)
    parser.add_argument("--venv", type=Path, required=True, help="environment of RLlib; made if missing")
    parser.add_argument("--max-seconds", type=float, default=90.0, help="limit of training of RLlib's runs")
    parsed, _ = runs.parse(parser, "rllib", ALGORITHMS)
    python, report = venvs.python_of(parsed.venv), Report(parsed.name, ["ray"])
    if absent := venvs.install(python, [PACKAGE]):
        report.note("rllib_absent", absent)
    for algo in parsed.items:
        ours: dict[str, list[runs.Summary]] = {clock: [] for clock in runs.CLOCKS}
        theirs: list[runs.Summary] = []
        for seed in range(parsed.seeds):
            clocks = runs.CLOCKS if algo == "ppo" else runs.CLOCKS[:1]
            for clock in clocks:
                ours[clock].append(runs.command("CartPole-v1", algo, seed, clock, TARGET, OUR_LIMIT))
                print(f"asyncrl {algo} seed {seed} {clock}: {runs.line(ours[clock][-1])}", flush=True)
            if not absent:
                flags = [algo, "--seed", str(seed), "--max-seconds", str(parsed.max_seconds)]
                theirs.append(runs.peer("rllib_cartpole", flags, python, 4 * parsed.max_seconds + 120))
                print(f"RLlib {algo} seed {seed}: {json.dumps(theirs[-1])}", flush=True)
        for clock in clocks:
            median = runs.add_clock(report, f"asyncrl_{algo}", ours[clock], clock, OUR_LIMIT)
            if theirs:
                add_peer(report, f"rllib_{algo}", theirs, clock, median, Side.of(ours[clock]), "")
    report.write()


if __name__ == "__main__":
    main()
