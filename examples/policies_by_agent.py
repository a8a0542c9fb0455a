"""Train pursuers and prey by a policy each, in one run, and let each play against random opponents.

    python examples/policies_by_agent.py [ppo|dqn|impala] [STEPS] [EPISODES]

`mpe2.simple_tag_v3`: three adversaries get 10 each whenever one of them touches the faster prey, which loses 10. The
two kinds see and learn different things. Needs `pip install "asyncrl[multi-agent]"`; see docs/multi-agent.md.
"""

import sys

import mpe2.simple_tag_v3 as tag
import numpy as np

from asyncrl import DQN, IMPALA, PPO, Trainer

POLICIES = {"adversary": "adversary_.*", "good": "agent_.*"}
ALGORITHMS = {
    "ppo": PPO(
        gamma=0.95, learning_rate=1e-3, epochs=4, minibatch_size=400, segment_length=50, ent_coef=5e-3
    ),
    "dqn": DQN(gamma=0.95, exploration_steps=50_000),
    "impala": IMPALA(gamma=0.95),
}


def play(policy: object, trained: tuple[str, ...], episodes: int) -> dict[str, float]:
    """Mean return of each policy's agents where those of `trained` act greedily, and all others at random."""
    env = tag.parallel_env()
    totals = dict.fromkeys(POLICIES, 0.0)
    for episode in range(episodes):
        observations, _ = env.reset(seed=episode)
        for n, agent in enumerate(env.possible_agents):
            env.action_space(agent).seed(1000 * episode + n)
        while env.agents:
            actions = {agent: env.action_space(agent).sample() for agent in env.agents}
            for name in trained:
                own = {agent: obs for agent, obs in observations.items() if kind_of(agent) == name}
                actions |= policy.by_policy[name].predict(own)[0]
            observations, rewards, *_ = env.step(actions)
            for agent, reward in rewards.items():
                totals[kind_of(agent)] += reward / episodes
    return totals


def kind_of(agent: str) -> str:
    """Name of an agent's policy."""
    return "adversary" if agent.startswith("adversary") else "good"


def main(name: str = "ppo", steps: int = 500_000, episodes: int = 100) -> dict[str, float]:
    """Train, and play against random opponents; returns the mean return of each policy against the other."""
    trainer = Trainer(tag.parallel_env, ALGORITHMS[name], policies=POLICIES, seed=0, http="off")
    result = trainer.learn(total_steps=int(steps))
    sides = {"both random": (), "trained adversaries": ("adversary",), "trained prey": ("good",)}
    for what, trained in {**sides, "both trained": ("adversary", "good")}.items():
        returns = play(result.policy, trained, int(episodes))
        print(f"{what:<20}" + ", ".join(f"{side} {np.round(value, 1)}" for side, value in returns.items()))
    return result.evaluation.policy_returns


if __name__ == "__main__":
    main(*sys.argv[1:])
