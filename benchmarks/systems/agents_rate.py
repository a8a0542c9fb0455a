"""Agent steps/s of one actor in environments with several agents, against a bare loop and SuperSuit's vector.

SuperSuit, the usual way of PettingZoo into Stable-Baselines3, is installed with it, in the versions pinned here, into
an environment of its own. It takes no environments in gymnasium's form with tuples (foraging). The sides take turns.

    nice -n -5 python -m benchmarks.systems.agents_rate --venv /tmp/peers
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import runs, venvs
from benchmarks.harness.report import Report, Side, script_parser
from benchmarks.peers.agent_steps import ENVS, MAKERS, WAYS

PACKAGES = ("supersuit==3.10.0", "stable-baselines3==2.9.2")
LIMIT_SECONDS = 120.0
GOAL = "at least 0.8"


def main() -> None:
    """Measure and write results/agents_rate.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--venv", type=Path, required=True, help="environment of SuperSuit; made if missing")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured of each side in each repeat")
    parsed = parser.parse_args()
    python, report = venvs.python_of(parsed.venv), Report("agents_rate", ["pettingzoo", "mpe2", "lbforaging"])
    absent = venvs.install(python, PACKAGES)
    if absent:
        report.note("supersuit_absent", absent)
    report.note("settings", f"one process of {ENVS} environments, {parsed.seconds} s a repeat")
    rows: list[list[Any]] = []
    for env in MAKERS:
        ways = [way for way in WAYS if way != "supersuit" or (env == "spread" and not absent)]
        results: dict[str, list[runs.Summary]] = {way: [] for way in ways}
        for _ in range(parsed.repeats):
            for way in ways:
                flags = [way, env, "--seconds", str(parsed.seconds)]
                results[way].append(runs.peer("agent_steps", flags, python, LIMIT_SECONDS))
        rates = {way: [one["agent_steps_per_second"] for one in found] for way, found in results.items()}
        for way, values in rates.items():
            sides = {way: Side.of(results[way])}
            report.add(f"{env}/{way}_agent_steps_per_second", values, "steps/s", sides=sides)
            if way != "asyncrl":
                goal = GOAL if way == "bare" else None
                report.add_ratio(f"{env}/asyncrl_to_{way}", rates["asyncrl"], values, goal)
        rows.append([env, *(f"{median(rates[way]):,.0f}" if way in rates else None for way in WAYS)])
    report.add_table(["environment", *WAYS], rows)
    report.write()


if __name__ == "__main__":
    main()
