"""What an update of SAC costs: 256x256 networks, batches of 256, the shapes of HalfCheetah-v5.

Every figure is measured in a process of its own, with one thread.

bare        the core's `update` in a loop, in float32 and at "medium" precision; and the same update written plainly
            (`PlainSAC`: modules, autograd, separate critics, torch.optim.Adam, a loop over parameters for the targets)
run         whole runs with an actor beside, at both precisions, from when learning is in full swing; the learner's
            share of waiting stands in the notes
peers       Stable-Baselines3 and SBX: their whole loop (an environment step per update) and their `train` alone
profile     where the time of one bare update goes: tensor operations against the rest, matrix products by themselves,
            and the costliest operations and functions (tables in the notes)

What is measured alternates; ratios are repeat by repeat. Bare updates see batches that were drawn beforehand; those of
runs and peers also draw them. Of a profile `rest_share` is what tensor operations and compiled kernels leave of the
profiled time, and `overhead_share` the time of an update of tiny networks: two ways to see what Python takes.

    python benchmarks/sac_updates.py --peer-python /path/to/python/with/stable-baselines3 --sbx
    python benchmarks/sac_updates.py --only profile
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import cProfile
import json
import pstats
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import runs
import torch
from harness import Report
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from asyncrl.core import Batch, BoxAction, EnvSpec
from asyncrl.networks.matmul_precision import MatmulPrecision

ITEMS = ("bare", "run", "peers", "profile")
WAYS = ("plain", "highest", "medium")
ENV, OBS, ACTIONS = "HalfCheetah-v5", 17, 6
SPEC = EnvSpec(ENV, (OBS,), "float32", BoxAction((-1.0,) * ACTIONS, (1.0,) * ACTIONS, (ACTIONS,)))
HIDDEN, BATCH, BATCHES = (256, 256), 256, 8
WARM_UPDATES, PROFILED, ROUNDS = 50, 20, 7
PRODUCTS = {
    "aten::mm": 2,
    "aten::bmm": 2,
    "aten::mv": 2,
    "aten::addmm": 3,
    "aten::baddbmm": 3,
    "aten::addmv": 3,
}
"""Products, and how many operands each has."""
Update = Callable[[Batch], Any]


class PlainSAC:
    """SAC as it is commonly written (Haarnoja et al. 2018, after CleanRL): what the core's update is held against."""

    def __init__(self, hidden: tuple[int, int], learning_rate: float = 3e-4, tau: float = 0.005) -> None:
        self.actor = _perceptron(OBS, hidden, 2 * ACTIONS)
        self.critics = nn.ModuleList([_perceptron(OBS + ACTIONS, hidden, 1) for _ in range(2)])
        self.targets = nn.ModuleList([_perceptron(OBS + ACTIONS, hidden, 1) for _ in range(2)])
        self.targets.load_state_dict(self.critics.state_dict())
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=learning_rate)
        self.critic_adam = torch.optim.Adam(self.critics.parameters(), lr=learning_rate)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], lr=learning_rate)
        self.tau = tau

    def update(self, batch: Batch) -> None:
        """One gradient step of everything."""
        obs, next_obs = torch.from_numpy(batch.obs.copy()), torch.from_numpy(batch.next_obs.copy())
        action = torch.from_numpy(batch.action.copy())
        reward, discount = torch.from_numpy(batch.reward.copy()), torch.from_numpy(batch.discount.copy())
        alpha = self.log_alpha.exp().detach()
        self.learn_critics(obs, action, self.target(reward, discount, next_obs, alpha))
        log_prob = self.learn_actor(obs, alpha)
        self.learn_alpha(log_prob)
        self.move_targets()

    def draw(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Actions and their log-probabilities `[B]`."""
        mean, log_std = self.actor(obs).chunk(2, dim=1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20.0, 2.0).exp())
        drawn = normal.rsample()
        action = torch.tanh(drawn)
        log_prob = normal.log_prob(drawn) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_prob.sum(1)

    def target(self, reward: Tensor, discount: Tensor, next_obs: Tensor, alpha: Tensor) -> Tensor:
        """What the critics shall say `[B]`."""
        with torch.no_grad():
            action, log_prob = self.draw(next_obs)
            rows = torch.cat([next_obs, action], 1)
            smallest = torch.min(*(critic(rows).squeeze(1) for critic in self.targets))
            return reward + discount * (smallest - alpha * log_prob)

    def learn_critics(self, obs: Tensor, action: Tensor, target: Tensor) -> None:
        rows = torch.cat([obs, action], 1)
        loss = sum(mse_loss(critic(rows).squeeze(1), target) for critic in self.critics)
        self.critic_adam.zero_grad()
        loss.backward()
        self.critic_adam.step()

    def learn_actor(self, obs: Tensor, alpha: Tensor) -> Tensor:
        action, log_prob = self.draw(obs)
        rows = torch.cat([obs, action], 1)
        smallest = torch.min(*(critic(rows).squeeze(1) for critic in self.critics))
        loss = (alpha * log_prob - smallest).mean()
        self.actor_adam.zero_grad()
        loss.backward()
        self.actor_adam.step()
        return log_prob.detach()

    def learn_alpha(self, log_prob: Tensor) -> None:
        loss = -(self.log_alpha * (log_prob - ACTIONS)).mean()
        self.alpha_adam.zero_grad()
        loss.backward()
        self.alpha_adam.step()

    def move_targets(self) -> None:
        with torch.no_grad():
            for own, target in zip(self.critics.parameters(), self.targets.parameters(), strict=True):
                target.mul_(1 - self.tau).add_(own, alpha=self.tau)


def _perceptron(inputs: int, hidden: tuple[int, int], outputs: int) -> nn.Sequential:
    first, second = hidden
    return nn.Sequential(
        nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, outputs)
    )


def record(precision: str, **options: Any) -> Any:
    """The preset for HalfCheetah-v5, at the sizes that the peers have."""
    from asyncrl import SAC

    sizes = {"hidden_sizes": HIDDEN, "critic_hidden_sizes": None, "batch_size": BATCH, "policy_delay": 1}
    return SAC.preset(ENV, **{**sizes, "num_critics": 2, "matmul_precision": precision, **options})


def updater(way: str, hidden: tuple[int, int] = HIDDEN, size: int = BATCH) -> Update:
    """The update of a fresh learner: "plain", or the core at a precision."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as the learner's thread does
    torch.manual_seed(0)
    if way == "plain":
        return PlainSAC(hidden).update
    algorithm = record(way, hidden_sizes=hidden, batch_size=size)
    update: Update = algorithm.make_core(SPEC, "cpu", 0).update
    return update


def batches(size: int) -> list[Batch]:
    """Random transitions."""
    rng, drawn = np.random.default_rng(0), []
    for _ in range(BATCHES):
        batch = Batch.allocate(size, SPEC)
        batch.obs[:], batch.next_obs[:] = rng.standard_normal((2, size, OBS))
        batch.action[:] = rng.uniform(-1, 1, (size, ACTIONS))
        batch.reward[:] = rng.standard_normal(size)
        batch.discount[:], batch.weight[:] = 0.99, 1.0
        drawn.append(batch)
    return drawn


def repeat(update: Update, count: int, size: int = BATCH) -> float:
    """Seconds of `count` updates."""
    drawn = batches(size)
    started = time.perf_counter()
    for index in range(count):
        update(drawn[index % BATCHES])
    return time.perf_counter() - started


def bare(way: str, seconds: float) -> dict[str, Any]:
    """Updates/s in a loop."""
    update = updater(way)
    repeat(update, WARM_UPDATES)
    count = max(1, round(seconds / (repeat(update, WARM_UPDATES) / WARM_UPDATES)))
    return {"updates_per_second": count / repeat(update, count)}


def whole_run(precision: str, seconds: float) -> dict[str, Any]:
    """Updates/s of a run with one actor beside, between two looks at its counters."""
    from asyncrl import Trainer

    algorithm = record(precision, learning_starts=1_000)
    options = {**type(algorithm).preset_options(ENV), "num_actors": 1, "seed": 0, "http": "off"}
    options |= {"report_interval_seconds": 0.25, "eval_interval_seconds": runs.NO_EVALUATION}
    with Trainer(ENV, algorithm, **options) as trainer:
        trainer.start()
        while (first := trainer.snapshot()) is None or first.updates < WARM_UPDATES:
            if trainer.done:
                raise RuntimeError("the run ended before it was measured")
            time.sleep(0.05)
        waits, until = [], time.perf_counter() + seconds
        while time.perf_counter() < until:
            time.sleep(0.25)
            waits.append(trainer.snapshot().learner_wait_fraction)
        last = trainer.snapshot()
    elapsed = last.wall_seconds - first.wall_seconds
    return {
        "updates_per_second": (last.updates - first.updates) / elapsed,
        "env_steps_per_second": (last.env_steps - first.env_steps) / elapsed,
        "learner_wait_fraction": sum(waits) / len(waits),
        "samples_per_insert": algorithm.samples_per_insert,
    }


def profile(way: str, seconds: float) -> dict[str, Any]:
    """Microseconds of one update, taken apart.

    `update`, all of it without a profiler; `profiled`, with one; `operations`, what the profiler gives to tensor
    operations, its own cost for each of them included; `products`, matrix products among them; `products_alone`, the
    same products in a loop; `tiny`, the whole update of networks and batches so small that only its overhead is left:
    Python, calls of operations, autograd's bookkeeping; `kernels`, what numba compiled, by the profiler of Python.
    """
    rate = bare(way, seconds)["updates_per_second"]
    update = updater(way)
    repeat(update, WARM_UPDATES)
    watched, profiled = quietest(update)
    ops = [e for e in watched.key_averages() if e.key.startswith("aten::")]
    shaped = [e for e in watched.key_averages(group_by_input_shape=True) if e.key in PRODUCTS]
    ops.sort(key=lambda event: -event.self_cpu_time_total)
    with MatmulPrecision("highest" if way == "plain" else way):
        alone_microseconds = sum(event.count * alone(event) for event in shaped) / PROFILED
    found = functions(update)
    return {
        "update_microseconds": 1e6 / rate,
        "tiny_microseconds": tiny(way),
        "profiled_microseconds": 1e6 * profiled / PROFILED,
        "operations_microseconds": sum(e.self_cpu_time_total for e in ops) / PROFILED,
        "products_microseconds": sum(e.self_cpu_time_total for e in ops if e.key in PRODUCTS) / PROFILED,
        "products_alone_microseconds": alone_microseconds,
        "operations": [
            (e.key, e.count / PROFILED, round(e.self_cpu_time_total / PROFILED, 1)) for e in ops[:20]
        ],
        "kernels_microseconds": sum(own for name, _, own, _ in found if "_kernels.py " in name),
        "functions": found[:40],
    }


def tiny(way: str) -> float:
    """Microseconds of an update of networks of 8x8 with batches of 2."""
    update = updater(way, (8, 8), 2)
    repeat(update, WARM_UPDATES, 2)
    return 1e6 * min(repeat(update, PROFILED, 2) for _ in range(10 * ROUNDS)) / PROFILED


def quietest(update: Update) -> tuple[Any, float]:
    """Profile and seconds of the quickest round. In early ones memory is fetched page by page, which is slow."""
    best, shortest = None, float("inf")
    for _ in range(ROUNDS):
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
        ) as watched:
            seconds = repeat(update, PROFILED)
        if seconds < shortest:
            best, shortest = watched, seconds
    return best, shortest


def alone(event: Any) -> float:
    """Microseconds of one product with these shapes, contiguous and written to one place."""
    operands = [torch.randn(shape) for shape in event.input_shapes[: PRODUCTS[event.key]]]
    operation = getattr(torch, event.key.removeprefix("aten::"))
    out = torch.empty(0)
    times = []
    for _ in range(10):
        started = time.perf_counter()
        for _ in range(10):
            operation(*operands, out=out)
        times.append(1e5 * (time.perf_counter() - started))
    return min(times)


def functions(update: Update) -> list[tuple[str, float, float, float]]:
    """The costliest by name: calls, microseconds of their own and with what they call, for one update.

    The profiler of Python costs about a microsecond a call, so that small functions look larger than they are.
    """
    watched = cProfile.Profile()
    watched.runcall(repeat, update, PROFILED)
    rows = []
    for (path, _, name), (_, calls, own, total, _) in pstats.Stats(watched).stats.items():  # type: ignore[attr-defined]
        where = os.path.basename(path) + " " if path != "~" else ""
        times = (round(1e6 * seconds / PROFILED, 1) for seconds in (own, total))
        rows.append((where + name, calls / PROFILED, *times))
    return sorted(rows, key=lambda row: -row[3])


MEASURES = {"bare": bare, "run": whole_run, "profile": profile}


def fresh(kind: str, way: str, seconds: float) -> dict[str, Any]:
    """What `MEASURES[kind](way, seconds)` says in a process of its own."""
    line = [sys.executable, os.path.abspath(__file__), "--measure", f"{kind} {way} {seconds}"]
    done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True, timeout=300 + 10 * seconds)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure and write results/sac_updates.json."""
    parser = runs.flags(__doc__, ITEMS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument(
        "--peer-python", default=sys.executable, help="interpreter that has stable-baselines3"
    )
    parser.add_argument("--sbx", action="store_true", help="SBX too (sbx-rl with the peer's interpreter)")
    parser.add_argument("--measure", help="used by the script itself: one measurement, printed as JSON")
    parsed, _ = runs.parse(parser, "sac_updates", ITEMS)
    if parsed.measure:
        kind, way, seconds = parsed.measure.split()
        print(json.dumps(MEASURES[kind](way, float(seconds))))
        return
    report = Report(parsed.name, ["mujoco"])
    rates = alternate(report, parsed)
    for key in rates:
        report.add(f"{key}_updates_per_second", rates[key], "updates/s")
    add_ratios(report, rates)
    if "profile" in parsed.items:
        add_profiles(report, parsed.seconds)
    report.write()


def alternate(report: Report, parsed: Any) -> dict[str, list[float]]:
    """Updates/s of everything that was chosen, a value for each repeat."""
    rates: dict[str, list[float]] = {}
    waits: dict[str, list[float]] = {}
    peers = {"sb3": "sb3_sac.py"} | ({"sbx": "sbx_sac.py"} if parsed.sbx else {})
    for _ in range(1 if parsed.quick else parsed.repeats):
        if "bare" in parsed.items:
            for way in WAYS:
                rate = fresh("bare", way, parsed.seconds)["updates_per_second"]
                rates.setdefault(f"bare_{way}", []).append(rate)
        if "run" in parsed.items:
            for way in WAYS[1:]:
                result = fresh("run", way, parsed.seconds)
                rates.setdefault(f"run_{way}", []).append(result["updates_per_second"])
                waits.setdefault(way, []).append(result["learner_wait_fraction"])
                print(f"run {way}: {json.dumps(result)}", flush=True)
        if "peers" in parsed.items:
            for name, script in peers.items():
                options = [ENV, "--mode", "updates", "--seconds", str(parsed.seconds)]
                result = runs.peer(script, options, parsed.peer_python)
                print(f"{name}: {json.dumps(result)}", flush=True)
                report.note(f"{name}_versions", result["versions"])
                for kind in ("loop", "train"):
                    rates.setdefault(f"{name}_{kind}", []).append(result[f"{kind}_updates_per_second"])
    for way, fractions in waits.items():
        report.note(f"run_{way}_learner_wait_fraction", fractions)
    return rates


def add_ratios(report: Report, rates: dict[str, list[float]]) -> None:
    """Ours to what it is held against, where both were measured."""
    pairs = {
        ("bare_highest", "bare_plain"): "",
        ("bare_medium", "bare_plain"): "",
        ("run_highest", "bare_highest"): "",
        ("run_medium", "bare_medium"): "",
        ("run_highest", "sb3_loop"): "at least 1.5",
        ("run_highest", "sb3_train"): "",
        ("run_medium", "sb3_loop"): "at least 1.5",
        ("bare_highest", "sb3_train"): "",
        ("bare_plain", "sb3_train"): "",
        ("run_highest", "sbx_loop"): "",
        ("run_medium", "sbx_loop"): "",
        ("bare_highest", "sbx_train"): "",
        ("bare_medium", "sbx_train"): "",
    }
    for (ours, theirs), goal in pairs.items():
        if ours in rates and theirs in rates:
            report.add_ratio(f"{ours}_to_{theirs}", rates[ours], rates[theirs], goal or None)


def add_profiles(report: Report, seconds: float) -> None:
    """One update of each way, taken apart."""
    for way in WAYS:
        result = fresh("profile", way, seconds)
        for table in ("operations", "functions"):
            report.note(f"profile_{way}_{table}", result.pop(table))
        for key, value in result.items():
            report.add(f"profile_{way}_{key}", [value], "us")
        report.add(f"profile_{way}_rest_share", [rest_share(result)], "")
        overhead = result["tiny_microseconds"] / result["update_microseconds"]
        report.add(f"profile_{way}_overhead_share", [overhead], "")


def rest_share(result: dict[str, float]) -> float:
    """Share of the profiled time that is neither a tensor operation nor a compiled kernel."""
    computing = result["operations_microseconds"] + result["kernels_microseconds"]
    return 1.0 - computing / result["profiled_microseconds"]


if __name__ == "__main__":
    main()
