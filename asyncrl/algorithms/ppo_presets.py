"""Tuned settings of PPO for a few environments, with the figures they were chosen by.

All were found in one process, with every segment acted by the weights of one iteration before (as where an actor works
while the learner does), on constant learning rates; "seconds" are those of the learner on a core of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from asyncrl.algorithms.presets import Preset

PRESETS: Mapping[str, Preset] = {
    # A mean of 475 over 20 greedy episodes, looked for after every iteration: 10 of 10 seeds, median 8,000 and worst
    # 13,000 steps, 0.17 seconds; a mean of 300 over the last 100 training episodes: 10 of 10, median 36,200 and worst
    # 37,200 steps (36,000 is what a hundred such episodes after the first greedy success cost). Two greedy successes in
    # a row, 5 or 6 seeds each; median and worst environment steps, median seconds:
    #     this preset                                  7,561    13,157    0.19
    #     epochs 3                                     9,079    18,235    0.20
    #     minibatch_size 128, epochs 6                10,106    12,650    0.26
    #     the same with epochs 10                     10,636    14,725    0.36
    #     the same with gamma 0.98                    10,602    21,837    0.24
    #     the same with activation relu               11,606    24,362    0.26
    #     the same with hidden_sizes 32, 32           13,664    17,232    0.23
    #     entropy_coefficient 0.01                    10,633    14,212    0.34
    #     max_grad_norm 2                             10,363    14,192    0.31
    #     segment_length 64, gae_lambda 0.95          13,130    20,240    0.25
    #     learning_rate 5e-3, minibatch 128, 3 epochs 17,231    29,405    0.32
    #     hidden_sizes 64 (one layer)                 27,090    36,519    0.60
    "CartPole-v1": Preset(
        algorithm={
            "learning_rate": 3e-3,
            "segment_length": 32,
            "epochs": 4,
            "minibatch_size": 64,
            "gae_lambda": 0.9,
        },
        trainer={"num_actors": 1, "envs_per_actor": 16, "eval_interval_seconds": 0.1},
    ),
}
