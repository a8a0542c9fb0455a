"""MLflow: a callback that logs options, reports, evaluations and the best policy.

It needs `pip install mlflow`.

python examples/mlflow_logging.py [STEPS]
"""

import sys
import tempfile
from pathlib import Path

import mlflow

import asyncrl


class MlflowCallback(asyncrl.Callback):
    """Logs a run to MLflow."""

    def __init__(self, experiment):
        self.experiment = experiment

    def on_start(self, trainer):
        """Begin, with every option of the run as parameter."""
        mlflow.set_experiment(self.experiment)
        mlflow.start_run()
        mlflow.log_params(trainer.options)

    def on_report(self, trainer, snapshot):
        """Log the report's numbers by the names of Stable-Baselines3."""
        mlflow.log_metrics(asyncrl.flat(snapshot), step=snapshot.env_steps)

    def on_evaluation(self, trainer, evaluation):
        """Log an evaluation at the step at which its weights were copied."""
        mlflow.log_metrics(asyncrl.flat(evaluation), step=evaluation.env_steps)

    def on_end(self, trainer, result):
        """Keep the best policy and close; called after an error too."""
        if result is not None and result.best is not None:
            with tempfile.TemporaryDirectory() as folder:
                mlflow.log_artifact(str(result.best.policy.save(Path(folder) / "best.policy")))
        failed = result is None or result.stop_reason == "failed"
        mlflow.end_run("FAILED" if failed else "FINISHED")


def main(steps: int = 50_000) -> None:
    """Train with the callback."""
    trainer = asyncrl.Trainer("CartPole-v1", "dqn", seed=0, http="off")
    print(trainer.learn(total_steps=steps, callbacks=[MlflowCallback("asyncrl")]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
