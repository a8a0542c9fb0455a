"""Fakes of Weights & Biases, MLflow and Optuna for the examples; the libraries are no dependencies."""

from __future__ import annotations

import types
from typing import Any


class FakeWandb(types.ModuleType):
    """Fake `wandb`; also the run that `init` returns."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.options: dict[str, Any] = {}
        self.metrics: dict[str, str] = {}
        self.logged: list[dict[str, float]] = []
        self.exit_code: int | None = None

    def init(self, **options: Any) -> FakeWandb:
        self.options = options
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        self.metrics[name] = step_metric

    def log(self, values: dict[str, float]) -> None:
        self.logged.append(values)

    def finish(self, exit_code: int) -> None:
        assert self.exit_code is None
        self.exit_code = exit_code


class FakeMlflow(types.ModuleType):
    """Fake `mlflow`."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.params: dict[str, Any] = {}
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.artifacts: list[bytes] = []
        self.status = ""

    def set_experiment(self, name: str) -> None:
        self.experiment = name

    def start_run(self) -> None:
        self.status = "RUNNING"

    def log_params(self, params: dict[str, Any]) -> None:
        self.params = params

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        assert all(isinstance(value, int | float) for value in values.values())
        self.logged.append((step, values))

    def log_artifact(self, path: str) -> None:
        with open(path, "rb") as file:
            self.artifacts.append(file.read())

    def end_run(self, status: str) -> None:
        self.status = status


class FakeOptuna(types.ModuleType):
    """Fake `optuna`; also the study. The second trial is pruned at its first evaluation."""

    class TrialPruned(Exception):
        """Raised to prune a trial."""

    def __init__(self) -> None:
        super().__init__("optuna")
        self.pruners = types.SimpleNamespace(MedianPruner=lambda **_: "median")
        self.trials: list[FakeTrial] = []

    def create_study(self, direction: str, pruner: Any) -> FakeOptuna:
        assert (direction, pruner) == ("maximize", "median")
        return self

    def optimize(self, objective: Any, n_trials: int) -> None:
        for number in range(n_trials):
            trial = FakeTrial(pruned=number == 1)
            self.trials.append(trial)
            try:
                trial.value = objective(trial)
            except FakeOptuna.TrialPruned:
                trial.state = "pruned"

    @property
    def best_value(self) -> float:
        return max(trial.value for trial in self.trials if trial.value is not None)

    @property
    def best_params(self) -> dict[str, float]:
        return {}


class FakeTrial:
    def __init__(self, pruned: bool) -> None:
        self._pruned = pruned
        self.state = "complete"
        self.value: float | None = None
        self.reports: list[tuple[float, int]] = []

    def suggest_float(self, name: str, low: float, high: float, log: bool) -> float:
        return (low * high) ** 0.5

    def report(self, value: float, step: int) -> None:
        self.reports.append((value, step))

    def should_prune(self) -> bool:
        return self._pruned
