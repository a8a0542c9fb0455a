"""An algorithm of your own, registered without touching the package: the advantage policy gradient with GAE.

    L = mean of (-A log pi(a | s) + c_v / 2 (V(s) - target)^2 - c_e H(pi))

Actors, rings, balance, evaluation and checkpoints come with the record that it extends. `asyncrl.register` makes it
known by its name, also in a shell: asyncrl train CartPole-v1 --algo own_algorithm:VPG

    python examples/own_algorithm.py [STEPS]
"""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

import asyncrl
from asyncrl.algorithms.on_policy import OnPolicy


class Loss(NamedTuple):
    """What `loss` returns: the scalar that is minimised is called `loss`."""

    loss: Any


@asyncrl.register
@dataclass(frozen=True, kw_only=True)
class VPG(OnPolicy):
    """Hyper-parameters of the policy gradient."""

    name: ClassVar[str] = "vpg"
    rollout_columns: ClassVar[tuple[str, ...]] = ("advantage", "target", "weight")

    gae_lambda: float = 0.95
    """Lambda of the advantage estimator, from 0 to 1."""

    def make_updater(self, spec, device, seed):
        """The learner's half; everything that imports torch is imported here, so that actors stay light."""
        from asyncrl.algorithms.on_policy_update import OnPolicyUpdate

        return OnPolicyUpdate(self, spec, device, seed)

    def prepare(self, rollout):
        """Before the passes over a batch: the columns that the loss needs, `[streams, rows]` each."""
        from asyncrl.algorithms.returns import gae, standardised

        value, last_value, _ = rollout.evaluate(log_prob=False)
        advantage, target = gae(rollout.reward, value, last_value, rollout.flags, self.gamma, self.gae_lambda)
        rows = max(1, np.count_nonzero(rollout.trained))
        rollout.fill(
            advantage=standardised(advantage, rollout.trained), target=target, weight=rollout.weight / rows
        )

    def divide(self, rollout, seed):
        """One pass: a single gradient step over all rows, which need no order."""
        from asyncrl.algorithms.rollout import Part

        return [
            Part(np.arange(rollout.flags.size), np.flatnonzero(rollout.trained), int(rollout.trained.sum()))
        ]

    def gradients(self, rollout, batch):
        """Gradients of the loss at the networks' outputs; the engine continues through the networks."""
        from asyncrl.networks.gradients import output_gradients

        _, gradients = output_gradients(lambda *outputs: self.loss(batch, *outputs), batch.outputs)
        return gradients

    def loss(self, batch, out, value, log_std):
        """The formula above; `weight` is 1 over the rows, and 0 in rows that only reset an environment."""
        log_prob, entropy = batch.distribution(out, log_std)
        advantage, target, weight = batch.columns
        terms = -advantage * log_prob + self.vf_coef * (value - target).square() - self.ent_coef * entropy
        return Loss((weight * terms).sum())

    def metrics(self, rollout, batch):
        """What files, page and terminal show of the last gradient step."""
        return {"train/loss": float(self.loss(batch, *batch.outputs).loss)}


def main(steps: int = 200_000) -> float:
    """Train; returns the mean return of the final evaluation."""
    vpg = VPG(learning_rate=3e-3, segment_length=32, epochs=1)
    trainer = asyncrl.Trainer("CartPole-v1", vpg, num_actors=1, envs_per_actor=16, seed=0, http="off")
    result = trainer.learn(total_steps=steps)
    print(f"{result.stop_reason}, mean return {result.evaluation.return_mean:.1f}")
    return result.evaluation.return_mean


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
