"""Default options on environments that nobody tuned them for: asyncrl against Stable-Baselines3 and sb3-contrib.

A job is one run of one side: an algorithm by its default record (or by its peer's defaults) on one environment of
`unseen.py`, with one seed and a number of steps. Greedy episodes evaluate it at one, two, three and four fifths of its
steps (10 episodes) and at its end (30 episodes or more, by the same seeds and code for both sides). Results are
appended to `results/first_contact.jsonl`, a line per job; a job that is there is not run again. The key of a job of
ours has all its options as the run chooses them, so that a changed default is a new job; peers' results are kept.

    python -m benchmarks.peers.first_contact run --side sb3 --algo ppo --seeds 0-4          # fills in what is missing
    python -m benchmarks.peers.first_contact run --side asyncrl --algo ppo --half choose
    python -m benchmarks.peers.first_contact run --side asyncrl --algo ppo --set epochs=10   # other options
    python -m benchmarks.peers.first_contact report --algo ppo --half judge

Defaults are chosen by `--half choose` only; `--half judge` says what they are worth. `--half sparse` are environments
with rare rewards, by which PPO's start without rewards is judged, `--half fresh` and `held_out` those that were named
after the defaults were chosen. The report normalises the return
of every run of ours, (ours - random) / (theirs - random), with the means of the random policy and of the peer's seeds
on that environment. It gives the interquartile mean over runs with a stratified bootstrap interval (Agarwal et al.
2021, Deep reinforcement learning at the edge of the statistical precipice), the worst environment, and CPU seconds.
Environments whose peer does not differ from the random policy by more than two standard errors are shown and not in the
mean, because the ratio has no meaning there.

Both sides run with one torch thread. `seconds` are those of training, evaluations left out; `cpu_seconds` those of the
whole job with its children, evaluations included.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.show.aggregates import estimate, iqm
from benchmarks.harness.report import FOLDER, commit, machine, markdown, script_parser
from benchmarks.peers.unseen import UNSEEN, make

RESULTS = FOLDER / "results" / "first_contact.jsonl"
STEPS = {
    **dict.fromkeys(("ppo", "a2c", "recurrent_ppo", "impala"), 100_000),
    **dict.fromkeys(("dqn", "qrdqn"), 50_000),
    **dict.fromkeys(("sac", "td3", "td7", "ddpg", "tqc", "crossq"), 20_000),
}
"""Environment steps of a run, times the environment's `share`."""
DISCRETE_ONLY, CONTINUOUS_ONLY = ("dqn", "qrdqn"), ("sac", "td3", "td7", "ddpg", "tqc", "crossq")
POINTS = 5
"""Evaluations of a run, the last at its end."""
POINT_EPISODES = 10
EVALUATION_SEED = 1_000_000
COPIES = 10
"""Environments that an evaluation steps side by side."""
ADDED = {"goal_selection_strategy": "future"}
"""Options that came after the first results, at the value that changes nothing."""
Job = dict[str, Any]


# --- evaluation, the same for all sides ------------------------------------------------------------------------------


def greedy_returns(
    act: Callable[[Any], Any], name: str, episodes: int, seed: int = EVALUATION_SEED
) -> list[float]:
    """Returns of `episodes` episodes; `act` maps a batch of observations to a batch of actions.

    Episode i begins with `reset(seed=seed + i)`, whichever copy of the environment plays it.
    """
    copies = [make(name) for _ in range(min(COPIES, episodes))]
    returns = [0.0] * episodes
    playing = dict(enumerate(range(len(copies))))  # copy -> episode
    begun = len(copies)
    obs = {copy: copies[copy].reset(seed=seed + episode)[0] for copy, episode in playing.items()}
    while playing:
        order = list(playing)
        for copy, action in zip(order, act(_batched([obs[copy] for copy in order])), strict=True):
            obs[copy], reward, terminated, truncated, _ = copies[copy].step(action)
            returns[playing[copy]] += float(reward)
            if terminated or truncated:
                del playing[copy]
                if begun < episodes:
                    playing[copy], begun = begun, begun + 1
                    obs[copy] = copies[copy].reset(seed=seed + playing[copy])[0]
    for env in copies:
        env.close()
    return returns


def _batched(observations: Sequence[Any]) -> Any:
    if isinstance(observations[0], dict):
        return {key: np.stack([np.asarray(o[key]) for o in observations]) for key in observations[0]}
    return np.stack([np.asarray(o) for o in observations])


def random_returns(name: str, episodes: int) -> list[float]:
    """Returns of uniformly drawn actions."""
    space = make(name).action_space
    space.seed(0)

    def act(obs: Any) -> list[Any]:
        count = len(next(iter(obs.values()))) if isinstance(obs, dict) else len(obs)
        return [space.sample() for _ in range(count)]

    return greedy_returns(act, name, episodes)


# --- jobs ------------------------------------------------------------------------------------------------------------


def run_ours(job: Job) -> dict[str, Any]:
    """Train by asyncrl's options and evaluate."""
    from asyncrl import Trainer

    steps, name, points = job["steps"], job["env"], []

    class Points:
        def on_evaluation(self, trainer: Any, evaluation: Any) -> None:
            points.append([evaluation.env_steps, evaluation.return_mean])

    options = {
        "http": "off",
        "eval_interval_steps": max(1, steps // POINTS),
        "eval_episodes": min(POINT_EPISODES, UNSEEN[name].episodes),
        **job["run_options"],
    }
    trainer = Trainer(partial(make, name), record(job), seed=job["seed"], **options)
    result = trainer.learn(total_steps=steps, callbacks=[Points()])
    summary, policy = result.summary, result.policy
    returns = greedy_returns(lambda obs: policy.predict(obs)[0], name, UNSEEN[name].episodes)
    return {
        "returns": returns,
        "points": points,
        "seconds": summary["train_seconds"],
        "env_steps": summary["env_steps"],
        "updates": summary["updates"],
    }


def record(job: Job) -> Any:
    """Record of asyncrl's algorithm with the job's options, else its defaults."""
    from asyncrl.algorithms import ALGORITHMS

    name = job["algo"]
    own = {"recurrent": "lstm"} if name == "recurrent_ppo" else {}
    return ALGORITHMS["ppo" if own else name](**own, **job["options"])


def run_peer(job: Job) -> dict[str, Any]:
    """Train by the defaults of Stable-Baselines3 or sb3-contrib and evaluate."""
    import sb3_contrib
    import stable_baselines3
    import torch
    from gymnasium.spaces import Dict
    from stable_baselines3.common.callbacks import BaseCallback

    torch.set_num_threads(1)
    steps, name, points, away = job["steps"], job["env"], [], 0.0
    due = [steps * k // POINTS for k in range(1, POINTS)]

    class Points(BaseCallback):
        def _on_step(self) -> bool:
            nonlocal away
            if due and self.num_timesteps >= due[0]:
                due.pop(0)
                before = time.perf_counter()
                found = greedy_returns(act, name, min(POINT_EPISODES, UNSEEN[name].episodes))
                points.append([self.num_timesteps, float(np.mean(found))])
                away += time.perf_counter() - before
            return True

    own = {"recurrent_ppo": "RecurrentPPO", "qrdqn": "QRDQN", "tqc": "TQC"}.get(job["algo"])
    kind = getattr(sb3_contrib, own) if own else getattr(stable_baselines3, job["algo"].upper())
    env = make(name)
    family = "MultiInput" if isinstance(env.observation_space, Dict) else "Mlp"
    policy = f"{family}LstmPolicy" if job["algo"] == "recurrent_ppo" else f"{family}Policy"
    model = kind(policy, env, seed=job["seed"], device="cpu")

    def act(obs: Any) -> Any:
        return model.predict(obs, deterministic=True)[0]

    started = time.perf_counter()
    model.learn(steps, callback=Points())
    seconds = time.perf_counter() - started - away
    returns = greedy_returns(act, name, UNSEEN[name].episodes)
    return {
        "returns": returns,
        "points": points,
        "seconds": seconds,
        "env_steps": model.num_timesteps,
        "updates": model._n_updates,
        "versions": {
            "stable-baselines3": stable_baselines3.__version__,
            "sb3-contrib": sb3_contrib.__version__,
        },
    }


def run_job(job: Job) -> dict[str, Any]:
    """Run a job in this process; returns its line of the result file."""
    warnings.simplefilter("ignore")
    name = job["env"]
    if job["side"] == "random":
        found: dict[str, Any] = {"returns": random_returns(name, max(100, UNSEEN[name].episodes))}
    else:
        found = run_ours(job) if job["side"] == "asyncrl" else run_peer(job)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    returns = found.pop("returns")
    return {
        **job,
        "return": float(np.mean(returns)),
        "return_error": float(np.std(returns) / np.sqrt(len(returns))),
        **found,
        "cpu_seconds": sum(u.ru_utime + u.ru_stime for u in used),
        "commit": commit(),
        "cpu": machine()["cpu"],
    }


def jobs_of(parsed: argparse.Namespace) -> Iterator[Job]:
    """Jobs of the command line, seed by seed, so that every environment has a first result early."""
    options, run_options = dict(map(_option, parsed.set)), dict(map(_option, parsed.run_set))
    for seed in parsed.seeds:
        for name in names_of(parsed):
            unseen = UNSEEN[name]
            if parsed.side == "random":
                if seed == parsed.seeds[0]:
                    yield {"side": "random", "env": name}
                continue
            if unseen.continuous and parsed.algo in DISCRETE_ONLY:
                continue
            if not unseen.continuous and parsed.algo in CONTINUOUS_ONLY:
                continue
            steps = int((parsed.steps or STEPS[parsed.algo]) * unseen.share)
            job = {"side": parsed.side, "algo": parsed.algo, "env": name, "seed": seed, "steps": steps}
            if parsed.side == "asyncrl":
                job |= {"options": options, "run_options": run_options}
                job["record"] = digest(job)
            yield job


def names_of(parsed: argparse.Namespace) -> list[str]:
    """Environments that the command line asks for."""
    if parsed.env:
        return list(parsed.env.split(","))
    halves = ("choose", "judge") if parsed.half is None else (parsed.half,)
    return [name for name, unseen in UNSEEN.items() if unseen.half in halves]


def digest(job: Job) -> str:
    """Short digest of every option that decides what is learned, with the values that the run chooses for it.

    Options that are off (none, false, 0, empty) or as in `ADDED` are left out, so that an option added later changes no
    digest.
    """
    import dataclasses

    from asyncrl.config import TrainerConfig

    config = TrainerConfig(env="x", algo="x", total_steps=job["steps"], **job["run_options"])
    chosen = record(job).for_run(config, spec_of_env(job["env"]))
    options = dataclasses.asdict(chosen).items()
    own = {name: value for name, value in options if value and ADDED.get(name) != value}
    run = {"num_actors": config.actors, "envs_per_actor": config.envs}
    text = json.dumps([own, run], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def spec_of_env(name: str) -> Any:
    """`EnvSpec` of an environment of the study."""
    from asyncrl.envs.checks import checked_spec, close_env
    from asyncrl.envs.source import EnvSource

    env: Any = EnvSource.from_user(partial(make, name)).build()
    try:
        return checked_spec(name, env)
    finally:
        close_env(env)


def key_of(job: Job) -> tuple[Any, ...]:
    """What identifies a job."""
    return tuple(job.get(name) for name in ("side", "algo", "env", "seed", "steps", "record"))


def _option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def load(path: Path) -> list[dict[str, Any]]:
    """Lines of the result file; none without the file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(parsed: argparse.Namespace) -> None:
    """Run the missing jobs, each in a process of its own, and append their lines."""
    for job in jobs_of(parsed):
        if any(key_of(line) == key_of(job) for line in load(parsed.results)):
            continue
        command = [sys.executable, "-m", "benchmarks.peers.first_contact", "job", json.dumps(job)]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            print("failed:", job, done.stderr[-2_000:], flush=True)
            continue
        line = json.loads(done.stdout.splitlines()[-1])
        with parsed.results.open("a") as file:
            file.write(json.dumps(line) + "\n")
        words = (str(line.get(name)) for name in ("side", "algo", "env", "seed", "return", "cpu_seconds"))
        print(*words, flush=True)


# --- report ----------------------------------------------------------------------------------------------------------


def report(parsed: argparse.Namespace) -> None:
    """Print the table of one algorithm."""
    wanted = {key_of(job) for job in jobs_of(parsed)}
    lines = load(parsed.results)
    theirs_file = load(parsed.peers) if parsed.peers != parsed.results else lines
    baseline = {line["env"]: line for line in theirs_file if line["side"] == "random"}
    rows, scores = [], {}
    for name in names_of(parsed):
        own = {key_of(line): line for line in lines if line["env"] == name}  # of equal jobs the last
        ours = [line for key, line in own.items() if key in wanted]
        steps = {line["steps"] for line in ours}
        theirs = [
            line
            for line in theirs_file
            if (line["env"], line["side"], line.get("algo")) == (name, "sb3", parsed.algo)
            and line["seed"] in parsed.seeds
            and line["steps"] in steps
        ]
        if not theirs or name not in baseline:
            continue
        row, normalised = compared(name, ours, theirs, baseline[name])
        rows.append(row)
        if normalised is not None:
            scores[name] = normalised
    head = ("environment", "half", "random", "theirs", "ours", "normalised", "seeds", "CPU s theirs / ours")
    print(markdown(head, rows))
    if scores:
        found = estimate(list(scores.values()), iqm)
        interval = "" if found.low is None else f" [{found.low:.3f}, {found.high:.3f}]"
        worst = min(scores, key=lambda name: float(scores[name].mean()))
        print(
            f"\ninterquartile mean {found.value:.3f}{interval} over {len(scores)} environments;",
            end=" ",
        )
        print(f"worst {worst} {scores[worst].mean():.2f}")


def compared(
    name: str, ours: Sequence[Job], theirs: Sequence[Job], baseline: Job
) -> tuple[list[Any], np.ndarray[Any, Any] | None]:
    """Row of the table, and the normalised returns of our runs; None if the peer is no better than random."""
    mine = np.array([line["return"] for line in ours])
    peer = np.array([line["return"] for line in theirs])
    zero = float(baseline["return"])
    error = float(np.hypot(peer.std() / np.sqrt(peer.size), baseline["return_error"]))
    useful = peer.mean() - zero > 2 * error
    normalised = (mine - zero) / (peer.mean() - zero) if useful else None
    cost = [float(np.median([line["cpu_seconds"] for line in side])) for side in (theirs, ours)]
    row = [
        name,
        UNSEEN[name].half,
        zero,
        f"{peer.mean():.4g} ({_spread(peer)})",
        f"{mine.mean():.4g} ({_spread(mine)})",
        "-" if normalised is None else f"{normalised.mean():.2f}",
        f"{peer.size} / {mine.size}",
        f"{cost[0]:.0f} / {cost[1]:.0f}",
    ]
    return row, normalised


def _spread(values: np.ndarray[Any, Any]) -> str:
    return f"{values.min():.3g} .. {values.max():.3g}"


def _seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main() -> None:
    """Run one job, the missing jobs, or the report."""
    parser = script_parser(__doc__)
    parser.add_argument("command", choices=("run", "report", "job"))
    parser.add_argument("job", nargs="?", help="JSON of one job, for `job`")
    parser.add_argument("--side", choices=("asyncrl", "sb3", "random"), default="asyncrl")
    parser.add_argument("--algo", choices=tuple(STEPS), default="ppo")
    parser.add_argument(
        "--half", choices=("choose", "judge", "sparse", "fresh", "held_out"), help="default: both halves"
    )
    parser.add_argument("--env", help="comma-separated environments in place of a half")
    parser.add_argument("--seeds", type=_seeds, default=_seeds("0-4"), help="0-4, or one")
    parser.add_argument("--steps", type=int, help="steps in place of those of the algorithm")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="option of ours")
    parser.add_argument("--run-set", action="append", default=[], metavar="NAME=VALUE", help="run's option")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--peers", type=Path, default=RESULTS, help="file with the peers' and random returns")
    parsed = parser.parse_args()
    if parsed.command == "job":
        with contextlib.redirect_stdout(sys.stderr):
            line = run_job(json.loads(parsed.job))
        print(json.dumps(line))
    else:
        {"run": run, "report": report}[parsed.command](parsed)


if __name__ == "__main__":
    main()
