"""Train three agents by one policy that all of them share, and let them act together.

    python examples/several_agents.py [ppo|dqn|impala|vdn|qmix|mappo|maddpg] [STEPS]

`mpe2.simple_spread_v3`: three agents are to cover three landmarks without bumping into each other. The return is the
sum of theirs; random actions get about -79. Needs `pip install "asyncrl[multi-agent]"`; see docs/multi-agent.md.
"""

import sys

import mpe2.simple_spread_v3 as spread

from asyncrl import DQN, IMPALA, MADDPG, MAPPO, PPO, QMIX, VDN, Trainer

ALGORITHMS = {
    "ppo": PPO(
        gamma=0.95, learning_rate=1e-3, epochs=4, minibatch_size=400, segment_length=50, ent_coef=5e-3
    ),
    "dqn": DQN(gamma=0.95, exploration_steps=50_000),
    "impala": IMPALA(gamma=0.95),
    # Trained together:
    "vdn": VDN(gamma=0.95, n_step=3, batch_size=128, tau=0.01),
    "qmix": QMIX(gamma=0.95, n_step=3, batch_size=128, tau=0.01),
    "maddpg": MADDPG(gamma=0.95),
    "mappo": MAPPO(
        gamma=0.95, learning_rate=1e-3, epochs=4, minibatch_size=400, segment_length=50, ent_coef=5e-3
    ),
}


def main(name: str = "ppo", steps: int = 500_000) -> float:
    """Train, play one episode; returns the mean return of the final evaluation."""
    trainer = Trainer(spread.parallel_env, ALGORITHMS[name], agent_id=True, seed=0, http="off")
    result = trainer.learn(total_steps=int(steps))
    evaluation = result.evaluation
    print(f"{evaluation.return_mean:.1f} over {evaluation.episodes} episodes: {evaluation.agent_returns}")

    env = result.policy.make_env()
    observations, _ = env.reset(seed=0)
    total = 0.0
    while env.agents:
        actions, _ = result.policy.predict(observations)
        observations, rewards, *_ = env.step(actions)
        total += sum(rewards.values())
    print(f"one episode: {total:.1f}")
    return evaluation.return_mean


if __name__ == "__main__":
    main(*sys.argv[1:])
