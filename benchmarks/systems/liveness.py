"""Latency of `/healthz`, which the event loop answers, while a 256x256 network learns.

One client in another process sends requests over a persistent connection.

    python -m benchmarks.systems.liveness
"""

from __future__ import annotations

import json
import subprocess
import sys

from asyncrl import DQN, Trainer
from benchmarks.harness.report import Report, script_parser
from benchmarks.harness.runs import when_updated

CLIENT = """
import http.client, json, sys, time
host, port = sys.argv[1].removeprefix("http://").split(":")
end, latencies = time.perf_counter() + float(sys.argv[2]), []
connection = http.client.HTTPConnection(host, int(port), timeout=10)
while time.perf_counter() < end:
    before = time.perf_counter()
    connection.request("GET", "/healthz")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200
    latencies.append(time.perf_counter() - before)
    time.sleep(0.005)
print(json.dumps(latencies))
"""


def latencies(seconds: float) -> list[float]:
    """Sorted latencies of all requests during one run, in seconds."""
    algorithm = DQN(hidden_sizes=(256, 256), batch_size=256, samples_per_insert=256.0)
    with Trainer("CartPole-v1", algorithm, num_actors=1, eval_interval_steps=10_000) as trainer:
        trainer.start()
        when_updated(trainer, 10)
        command = [sys.executable, "-c", CLIENT, str(trainer.url), str(seconds)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        result: list[float] = sorted(json.loads(done.stdout))
        return result


def main() -> None:
    """Measure and write results/liveness.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    runs = [latencies(arguments.seconds) for _ in range(arguments.repeats)]
    report = Report("liveness", packages=["uvloop", "aiohttp"])
    report.note("requests", [len(run) for run in runs])
    report.add("healthz_p50_milliseconds", [1e3 * run[len(run) // 2] for run in runs], "ms")
    report.add(
        "healthz_p99_milliseconds", [1e3 * run[len(run) * 99 // 100] for run in runs], "ms", "under 20"
    )
    report.add("healthz_max_milliseconds", [1e3 * run[-1] for run in runs], "ms")
    report.write()


if __name__ == "__main__":
    main()
