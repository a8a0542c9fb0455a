"""Pursuers and prey of mpe2's simple_tag with a policy each, trained in one run: each against random opponents.

PPO with `policies=`: three adversaries share one policy, the prey has the other. Where an adversary touches the prey
each of the three gets 10; the prey loses 10 then, and more the farther it is outside of the field. Mean return of a
side per episode of 25 steps, summed over its agents, and its standard error, with greedy and with drawn actions.

    python -m benchmarks.learning.simple_tag [--seeds 3] [--first-seed 1000] [--steps 2000000] [--set NAME=VALUE]

`--set` changes an option of PPO, whose defaults are used else; the value is a Python literal.
"""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from benchmarks.harness.report import Report, markdown, script_parser
from benchmarks.learning.held_out import FIRST_SEED

POLICIES = {"adversary": "adversary_.*", "good": "agent_.*"}
SIDES = {
    "both random": (),
    "trained adversaries": ("adversary",),
    "trained prey": ("good",),
    "both trained": ("adversary", "good"),
}


def kind_of(agent: str) -> str:
    """Name of an agent's policy."""
    return "adversary" if agent.startswith("adversary") else "good"


def returns(
    policy: Any, trained: tuple[str, ...], episodes: int, deterministic: bool
) -> dict[str, list[float]]:
    """Returns of the episodes by side; the agents of `trained` use the policy, the others take random actions."""
    from mpe2 import simple_tag_v3

    env, found = simple_tag_v3.parallel_env(), {name: [0.0] * episodes for name in POLICIES}
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        for n, agent in enumerate(env.possible_agents):
            env.action_space(agent).seed(1000 * episode + n)
        while env.agents:
            actions = {agent: env.action_space(agent).sample() for agent in env.agents}
            for name in trained:
                own = {agent: seen for agent, seen in obs.items() if kind_of(agent) == name}
                actions |= policy.by_policy[name].predict(own, deterministic=deterministic)[0]
            obs, rewards, *_ = env.step(actions)
            for agent, reward in rewards.items():
                found[kind_of(agent)][episode] += float(reward)
    return found


def text(values: list[float]) -> str:
    """Mean and its standard error."""
    return f"{np.mean(values):.1f} ± {np.std(values) / len(values) ** 0.5:.1f}"


def main() -> None:
    """Train, measure, and write results/simple_tag.json after every seed."""
    from mpe2 import simple_tag_v3

    from asyncrl import PPO, Trainer

    parser = script_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--steps", type=int, default=2_000_000)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--label", default="", help="appended to the name of the result file")
    parsed = parser.parse_args()
    options: dict[str, Any] = {}
    for name, _, value in (given.partition("=") for given in parsed.set):
        options[name] = ast.literal_eval(value)
    report, rows = Report("simple_tag" + parsed.label, ["mpe2"]), []
    for seed in range(parsed.first_seed, parsed.first_seed + parsed.seeds):
        trainer = Trainer(
            simple_tag_v3.parallel_env, PPO(**options), policies=POLICIES, seed=seed, http="off"
        )
        result = trainer.learn(total_steps=parsed.steps)
        last = trainer.snapshot()
        assert last is not None
        for what, trained in SIDES.items():
            for deterministic in (True, False) if trained else (False,):
                found = returns(result.policy, trained, parsed.episodes, deterministic)
                way = "" if not trained else "greedy" if deterministic else "drawn"
                row = [str(seed), f"{last.env_steps:,}", f"{last.train_seconds:,.0f}", what, way]
                rows.append([*row, *(text(found[name]) for name in POLICIES)])
                print(*rows[-1], flush=True)
        names = ["seed", "steps", "seconds", "sides", "actions", "three adversaries", "prey"]
        report.note("table", markdown(names, rows).splitlines())
        report.write()


if __name__ == "__main__":
    main()
