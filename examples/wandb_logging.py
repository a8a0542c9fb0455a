"""Weights & Biases: a callback that logs every report and evaluation.

It needs `pip install wandb`.

python examples/wandb_logging.py [STEPS]
"""

import sys

import wandb

import asyncrl


class WandbCallback(asyncrl.Callback):
    """Logs a run to Weights & Biases; options go to `wandb.init`."""

    def __init__(self, **options):
        self.options = options

    def on_start(self, trainer):
        """Begin, with every option of the run as configuration."""
        self.run = wandb.init(config=trainer.options, **self.options)
        # Reports and evaluations have steps of their own: evaluated weights are older than the newest report.
        self.run.define_metric("*", step_metric="time/total_timesteps")
        self.run.define_metric("eval/*", step_metric="eval/total_timesteps")

    def on_report(self, trainer, snapshot):
        """Log the report's numbers by the names of Stable-Baselines3."""
        self.run.log(asyncrl.flat(snapshot))

    def on_evaluation(self, trainer, evaluation):
        """Log an evaluation."""
        self.run.log(asyncrl.flat(evaluation))

    def on_end(self, trainer, result):
        """Close; called after an error too."""
        failed = result is None or result.stop_reason == "failed"
        self.run.finish(exit_code=int(failed))


def main(steps: int = 50_000) -> None:
    """Train with the callback."""
    trainer = asyncrl.Trainer("CartPole-v1", "dqn", seed=0, http="off")
    print(trainer.learn(total_steps=steps, callbacks=[WandbCallback(project="asyncrl", mode="offline")]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
