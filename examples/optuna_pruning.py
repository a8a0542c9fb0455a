"""Optuna: search options, and end trials that do not look promising at an evaluation.

It needs `pip install optuna`.

python examples/optuna_pruning.py [STEPS]
"""

import sys

import optuna

from asyncrl import DQN, Callback, Trainer


class Pruning(Callback):
    """Reports every evaluation to the trial, and ends the run where Optuna prunes it.

    The exception ends the run in good order and is then raised by `learn`, as Optuna wants it.
    """

    def __init__(self, trial):
        self.trial = trial

    def on_evaluation(self, trainer, evaluation):
        """Report; raise where the trial is to be pruned."""
        self.trial.report(evaluation.return_mean, evaluation.env_steps)
        if self.trial.should_prune():
            raise optuna.TrialPruned


def objective(trial, steps):
    """Mean return of the best evaluation of a run with the trial's options."""
    dqn = DQN(
        learning_rate=trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
        samples_per_insert=trial.suggest_float("samples_per_insert", 4.0, 32.0, log=True),
        learning_starts=500,
    )
    trainer = Trainer("CartPole-v1", dqn, num_actors=1, eval_interval_steps=steps // 10, seed=0, http="off")
    return trainer.learn(total_steps=steps, callbacks=[Pruning(trial)]).best.return_mean


def main(steps: int = 30_000, trials: int = 10) -> float:
    """Search; returns the best value."""
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(n_startup_trials=3))
    study.optimize(lambda trial: objective(trial, steps), n_trials=trials)
    print(study.best_value, study.best_params)
    return study.best_value


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
