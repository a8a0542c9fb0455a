"""Environment steps/s of our actors and of Ray actors, one and two of them, on the same environments.

No network acts and none learns: actions are uniform, so that only the way of a step differs. The environments are
CartPole-v1, and one whose observations are 84x84x4 bytes and cost nothing to make (`benchmarks/peers/stepping.py`). Ray
is installed, in the version pinned here, into an environment of its own, whose packages all sides use; they take turns.

    nice -n -5 python -m benchmarks.systems.ray_actors --venv /tmp/peers
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import runs, venvs
from benchmarks.harness.report import Report, Side, script_parser
from benchmarks.peers.stepping import ENVS, MAKERS, ROWS, WAYS

PACKAGE = "ray==2.60.0"
LIMIT_SECONDS = 120.0


def main() -> None:
    """Measure and write results/ray_actors.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--venv", type=Path, required=True, help="environment of Ray; made if missing")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="measured of each side in each repeat")
    parsed = parser.parse_args()
    python, report = venvs.python_of(parsed.venv), Report("ray_actors", ["ray"])
    absent = venvs.install(python, [PACKAGE])
    if absent:
        report.note("ray_absent", absent)
    ways = [way for way in WAYS if not (absent and way.startswith("ray"))]
    report.note("settings", f"{ENVS} environments in each actor, rollouts of {ROWS} rows, {parsed.seconds} s")
    rows: list[list[Any]] = []
    for env in MAKERS:
        for actors in (1, 2):
            results: dict[str, list[runs.Summary]] = {way: [] for way in ways}
            for _ in range(parsed.repeats):
                for way in ways:
                    flags = [way, env, "--actors", str(actors), "--seconds", str(parsed.seconds)]
                    results[way].append(runs.peer("stepping", flags, python, LIMIT_SECONDS))
            rows.append([env, actors, *add_figures(report, f"{env}/{actors}", results)])
    report.add_table(["environment", "actors", *ways], rows)
    report.write()


def add_figures(report: Report, key: str, results: dict[str, list[runs.Summary]]) -> list[str]:
    """Add the steps/s of every way and their ratios to ours; returns the medians as words."""
    rates = {way: [r["steps_per_second"] for r in theirs] for way, theirs in results.items()}
    for way, values in rates.items():
        sides = {way: Side.of(results[way])}
        report.add(f"{key}/{way}_steps_per_second", values, "steps/s", sides=sides)
        if way != "asyncrl":
            report.add_ratio(f"{key}/asyncrl_to_{way}", rates["asyncrl"], values)
    return [f"{median(values):,.0f}" for values in rates.values()]


if __name__ == "__main__":
    main()
