"""Cost of a publication of weights, against the memcpy that it contains.

A publication is `Publisher.publish`: the network's flat parameters are copied into the mailbox's back buffer and
checked there. The memcpy copies the same parameters into the same two buffers. They alternate call by call, with warm
caches; each repeat is the median of its calls. The requirement: at most twice the memcpy plus 3 microseconds.

    python -m benchmarks.systems.publication
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import numpy as np
import torch

from asyncrl.errors import TrainingDiverged
from asyncrl.learning.publication import Publisher
from asyncrl.networks.parameters import HostCopy
from asyncrl.shm.weights import WeightMailbox
from benchmarks.harness.report import Report, script_parser

COUNTS = (17_410, 70_000, 300_000)
"""Numbers of weights; the first is the CartPole preset of DQN."""
FACTOR, EXTRA_MICROSECONDS = 2.0, 3.0


class Network:
    """Flat parameters, published like every algorithm's."""

    def __init__(self, count: int) -> None:
        self.weight_count = count
        self.parameters = torch.from_numpy(np.random.default_rng(0).standard_normal(count, np.float32))
        self._to_host = HostCopy(self.parameters)

    def write_weights(self, out: np.ndarray) -> None:
        """Copy the parameters into `out`."""
        self._to_host(out)

    def metrics(self) -> Mapping[str, float]:
        """Nothing."""
        return {}

    def state_dict(self) -> Mapping[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing."""


def measure(count: int, calls: int, repeats: int) -> tuple[list[float], list[float], list[float]]:
    """Microseconds of a publication, of its memcpy, and of the first, cold publication, one of each per repeat."""
    published, copied, cold = [], [], []
    for _ in range(repeats):
        network, mailbox = Network(count), WeightMailbox.create(count)
        publisher = Publisher(network, mailbox, lambda what: TrainingDiverged(what))
        source, buffers = network.parameters.numpy(), mailbox.segment["values"]
        ours, plain = np.empty(calls), np.empty(calls)
        for call in range(-20, calls):
            started = time.perf_counter()
            publisher.publish()
            between = time.perf_counter()
            np.copyto(buffers[(mailbox.version + 1) & 1], source)  # the buffer without readers
            ended = time.perf_counter()
            if call == -20:
                cold.append((between - started) * 1e6)
            if call >= 0:
                ours[call], plain[call] = (between - started) * 1e6, (ended - between) * 1e6
        published.append(float(median(ours)))
        copied.append(float(median(plain)))
        mailbox.close()
    return published, copied, cold


def main() -> None:
    """Measure and write results/publication.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--trial", action="store_true", help="write no result file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report = Report("publication")
    report.note("calls", arguments.calls)
    for count in COUNTS:
        published, copied, cold = measure(count, arguments.calls, arguments.repeats)
        report.add(f"{count}_weights_memcpy", copied, "us")
        report.add(f"{count}_weights_publication", published, "us")
        report.add(f"{count}_weights_first_publication", cold, "us")
        over = [p - FACTOR * c - EXTRA_MICROSECONDS for p, c in zip(published, copied, strict=True)]
        report.add(f"{count}_weights_over_twice_memcpy_plus_3_us", over, "us", "at most 0")
    if not arguments.trial:
        report.write()


if __name__ == "__main__":
    main()
