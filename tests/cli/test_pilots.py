"""Pilot runs and the choice between them."""

from __future__ import annotations

import pytest
from snapshots import make_actor, make_snapshot

from asyncrl import DQN
from asyncrl.cli import pilots as module
from asyncrl.cli.pilots import Pilot, _counts, _measured, fastest, plan, run_pilot
from asyncrl.config import TrainerConfig
from asyncrl.show.metrics import Snapshot
from asyncrl.trainer.trainer import Trainer


def make(actors: int, envs: int, speed: float) -> Pilot:
    return Pilot(actors, envs, speed, 10.0, 0.1, 0.2, 1000)


@pytest.mark.parametrize(
    ("cores", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9])]
)
def test_actors_are_doubled_up_to_the_cores(cores: int, counts: list[int]) -> None:
    assert _counts(cores) == counts


def test_of_equal_speeds_the_one_with_fewest_actors_is_taken() -> None:
    assert fastest([make(1, 16, 50.0), make(4, 16, 100.0), make(2, 64, 96.0), make(2, 16, 95.5)]) == make(
        2, 16, 95.5
    )
    assert fastest([make(1, 16, 94.0), make(2, 16, 100.0)]) == make(2, 16, 100.0)


def test_rates_are_those_between_the_first_and_the_last_snapshot() -> None:
    actors = (make_actor(index=0, private_bytes=5), make_actor(index=1, private_bytes=7))
    times = [(4.0, 10, 300), (6.0, 20, 500), (8.0, 50, 1100)]

    def snapshots_of(times: list[tuple[float, int, int]]) -> list[Snapshot]:
        return [
            make_snapshot(
                state="training",
                train_seconds=seconds,
                updates=updates,
                env_steps=steps,
                learner_wait_fraction=0.5 if seconds == 6.0 else 0.25 if seconds == 8.0 else 1.0,
                actor_wait_fraction=0.0,
                actors=actors,
            )
            for seconds, updates, steps in times
        ]

    snapshots = snapshots_of(times)
    assert _measured(snapshots, 16) == Pilot(2, 16, (1100 - 300) / 4.0, (50 - 10) / 4.0, 0.375, 0.0, 12)
    assert _measured(snapshots[-1:], 16) == Pilot(2, 16, 1100 / 8.0, 50 / 8.0, 0.25, 0.0, 12)
    still = snapshots_of([(seconds, updates, 1100) for seconds, updates, _ in times])
    assert _measured(still, 16) == Pilot(2, 16, 1100 / 8.0, (50 - 10) / 4.0, 0.375, 0.0, 12)


def test_more_and_fewer_environments_are_tried_at_the_fastest_number_of_actors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speeds = {(1, 8): 10.0, (2, 8): 30.0, (3, 8): 20.0, (2, 2): 5.0, (2, 32): 60.0}
    monkeypatch.setattr(
        module,
        "run_pilot",
        lambda config, algorithm, actors, envs, _: make(actors, envs, speeds[actors, envs]),
    )
    seen: list[Pilot] = []
    config = TrainerConfig(env="CartPole-v1", algo="dqn", envs_per_actor=8)
    found = plan(config, DQN(), 1.0, cores=3, on_pilot=seen.append)
    assert found == seen == [make(*setting, speed) for setting, speed in speeds.items()]
    assert fastest(found) == make(2, 32, 60.0)


def test_a_vector_environment_sets_its_number_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "run_pilot", lambda config, algorithm, actors, envs, _: make(actors, 4, 10.0 * actors)
    )
    found = plan(TrainerConfig(env="CartPole-v1", algo="dqn"), DQN(), 1.0, cores=2)
    assert found == [make(1, 4, 10.0), make(2, 4, 20.0)]


def test_a_pilot_is_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    class MadeTrainer(Exception):
        """Raised with the options of the pilot's trainer."""

    def from_config(config: TrainerConfig, algorithm: DQN) -> Trainer:
        raise MadeTrainer(config)

    monkeypatch.setattr(Trainer, "from_config", from_config)
    with pytest.raises(MadeTrainer) as made:
        run_pilot(TrainerConfig(env="CartPole-v1", algo="dqn", groups=2), DQN(), 1, 4, 1.0)
    (config,) = made.value.args
    assert (config.groups, config.num_actors, config.envs_per_actor) == (1, 1, 4)
