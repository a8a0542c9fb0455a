"""Start-up time of a run: without any kernel in the cache, as after `pip install`, and with all of them.

    python -m benchmarks.systems.startup [--before TREE] [--repeats 3]

A wheel of this checkout, and of another one given by `--before`, is built and installed into an empty folder. Short
runs of DQN and PPO on CartPole-v1 then take turns, each first without a kernel cache (`cold`), then with the cache that
this run has left (`warm`). `seconds` are from the start of the command to its first step, as reported by the run;
`cpu_seconds` are those of all its processes to its end, which other work on the machine affects less. A warm run that
writes to the cache or reports compilation is an error. `torch_seconds` is a process that imports torch and ends.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness.report import FOLDER, Report, script_parser

ALGORITHMS = ("dqn", "ppo")
STEPS = "2k"


def install(tree: Path, folder: Path) -> Path:
    """Build a wheel of a checkout and install it without its dependencies; returns the folder of the packages."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels = folder / "wheels"
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(tree)], check=True)
    wheel = next(wheels.glob("asyncrl-*.whl"))
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


def entries(site: Path) -> list[Path]:
    """Files of the kernel cache."""
    return [path for path in site.rglob("*") if path.suffix in (".nbi", ".nbc", ".lock")]


def start(site: Path, algorithm: str) -> tuple[float, float, str]:
    """Make a short run; returns start-up seconds, CPU seconds of all processes, and standard error."""
    command = [sys.executable, "-P", "-m", "asyncrl", "train", "CartPole-v1", "--algo", algorithm]
    command += ["--steps", STEPS, "--num-actors", "1", "--http", "off", "--target-eval-episodes", "1"]
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command,
        env=environment | {"PYTHONPATH": str(site)},
        cwd=site,
        capture_output=True,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = re.search(r"start-up\s+([\d.]+) s", done.stdout)
    assert found, done.stdout
    return float(found[1]), cpu, done.stderr


def import_torch() -> float:
    """Seconds of a process that imports torch and does nothing else."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--algorithms", nargs="+", default=ALGORITHMS)
    options = parser.parse_args()
    report = Report("startup")
    trees = {"now": FOLDER.parent} | ({"before": options.before} if options.before else {})
    measured: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        sites = {name: install(tree, Path(temporary) / name) for name, tree in trees.items()}
        torch_seconds = []
        for _ in range(options.repeats):
            torch_seconds.append(import_torch())
            for algorithm in options.algorithms:
                for name, site in sites.items():
                    for path in entries(site):
                        path.unlink()
                    *cold, said = start(site, algorithm)
                    report.note(f"{name}_{algorithm}_said", said.strip())
                    kept = {path: path.stat().st_mtime_ns for path in entries(site)}
                    *warm, said = start(site, algorithm)
                    if name == "now":
                        assert {path: path.stat().st_mtime_ns for path in entries(site)} == kept
                        assert "compiling" not in said, said
                    for kind, (seconds, cpu) in (("cold", cold), ("warm", warm)):
                        measured.setdefault((name, algorithm, kind), []).append((seconds, cpu))
    report.add("torch_seconds", torch_seconds, "s")
    for (name, algorithm, kind), values in measured.items():
        report.add(f"{algorithm}_{kind}_{name}_seconds", [seconds for seconds, _ in values], "s")
        report.add(f"{algorithm}_{kind}_{name}_cpu_seconds", [cpu for _, cpu in values], "s")
    for algorithm in options.algorithms:
        warm = [seconds for seconds, _ in measured["now", algorithm, "warm"]]
        report.add_ratio(f"{algorithm}_warm_to_torch", warm, torch_seconds, "at most 1.43")
    for algorithm in options.algorithms if options.before else ():
        for kind in ("cold", "warm"):
            now, before = measured["now", algorithm, kind], measured["before", algorithm, kind]
            report.add_ratio(f"{algorithm}_{kind}", [a for a, _ in now], [b for b, _ in before])
            report.add_ratio(f"{algorithm}_{kind}_cpu", [a for _, a in now], [b for _, b in before])
    report.write()


if __name__ == "__main__":
    main()
