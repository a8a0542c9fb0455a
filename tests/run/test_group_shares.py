"""Shares of a group: steps and replay are divided, seeds are spawned, rank 0 gets the remainder."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from snapshots import make_snapshot
from waiting import PATIENCE_SECONDS

from asyncrl import DQN, PPO, SAC, Trainer, TrainerConfig
from asyncrl.actors import worker
from asyncrl.actors.actor import Actor, actor_seeds
from asyncrl.actors.plans import ActorPlan, PoolPlan
from asyncrl.envs.source import EnvSource
from asyncrl.errors import ConfigurationError
from asyncrl.groups import state
from asyncrl.groups.place import Place
from asyncrl.interfaces import DiscreteAction, Distribution, EnvSpec
from asyncrl.protocols import Policy
from asyncrl.run import grouped
from asyncrl.run import run as run_module
from asyncrl.run.grouped import (
    Alone,
    Group,
    made_before,
    own_place,
    seed_of,
    share_of,
    share_of_algorithm,
    shared_options,
)
from asyncrl.run.job import Job
from asyncrl.shm.env_kwargs import EnvKwargsWriter
from asyncrl.shm.ring import RingLayout, RingWriter
from asyncrl.shm.segment import Segment
from asyncrl.shm.weights import WeightMailbox
from asyncrl.show.readout import readout
from asyncrl.storage.checkpoint import CheckpointMeta
from asyncrl.storage.resume import Resumption

SOURCE = EnvSource.from_user("CartPole-v1")
SPEC = EnvSpec("any", (4,), "float32", DiscreteAction(2))
CONFIG = TrainerConfig(
    env="CartPole-v1",
    algo="dqn",
    total_steps=10_001,
    target_return=475.0,
    max_seconds=60.0,
    eval_interval_steps=5000,
    num_actors=2,
    seed=7,
)


def test_rank_0_keeps_the_stopping_rules_and_the_others_its_part_of_the_steps() -> None:
    first, second = share_of(CONFIG, 0, 2), share_of(CONFIG, 1, 2)
    assert first.total_steps == second.total_steps == 5001
    assert (first.target_return, first.max_seconds, first.eval_interval_steps) == (475.0, 60.0, 2500)
    assert (second.target_return, second.max_seconds, second.eval_interval_steps) == (None, None, None)
    assert second.http == "off" and second.num_actors == 2


def test_seeds_of_groups_differ_and_rank_0_keeps_the_runs() -> None:
    assert share_of(CONFIG, 0, 4).seed == 7
    assert len({seed_of(7, rank) for rank in range(50)} | {seed_of(8, rank) for rank in range(50)}) == 100


@pytest.fixture
def actor_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Actor]]:
    """Make an actor of CartPole-v1 with three environments as its process does, in this process."""
    source, kept = EnvSource.from_user("CartPole-v1"), []

    def make(policy: Policy, index: int, num_actors: int, *among: tuple[int, int]) -> Actor:
        layout = RingLayout(3, 16, SPEC)
        segment, mailbox = Segment.create("ring", layout.arrays()), WeightMailbox.create(policy.weight_count)
        changes = EnvKwargsWriter()
        kept.extend((segment, mailbox, changes))
        monkeypatch.setattr(WeightMailbox, "attach", lambda *_, **__: mailbox)
        plan = PoolPlan(source, pickle.dumps(policy), layout, num_actors, 7, None, *among)
        fds = {"weights": -1, "env_kwargs": changes.fd}
        actor = worker._make_actor(ActorPlan(plan, index, 0), RingWriter(segment, layout), fds)
        kept.append(actor)
        return actor

    yield make
    while kept:
        kept.pop().close()


def among_of(rank: int, size: int) -> tuple[int, int]:
    """Place of the actors of one group, of two actors like each of the others."""
    session: Any = SimpleNamespace(place=Place(rank, size, host="here", port=1), leads=rank == 0)
    return Group(session, Job(CONFIG, DQN(), SOURCE)).among


def test_the_ladder_of_exploration_runs_over_the_actors_of_all_groups(
    actor_of: Callable[..., Actor],
) -> None:
    policy = DQN(exploration_ladder=7.0).make_policy(SPEC)
    places = [(index, 2, among_of(rank, 3)) for rank in range(3) for index in range(2)]
    exponents = [actor_of(policy, *place).policy._exponents for place in places]
    assert np.concatenate(exponents) == pytest.approx(1.0 + 7.0 * np.arange(18) / 17)


def test_one_group_counts_its_actors_and_seeds_as_without_groups(actor_of: Callable[..., Actor]) -> None:
    policy = DQN(exploration_ladder=7.0).make_policy(SPEC)
    for index in range(2):
        plain, one = actor_of(policy, index, 2), actor_of(policy, index, 2, among_of(0, 1))
        assert plain._env_seeds == one._env_seeds == actor_seeds(7, index, 0, 3)[0]
        assert plain.policy._exponents.tolist() == one.policy._exponents.tolist()


class Second:
    """The second of three groups, which has no connection to the others."""

    leads, among, max_env_steps = True, (4, 6), 100

    def __init__(self, job: Job) -> None:
        self.whole = self.job = job

    def share(self, algorithm: Any, whole: Any) -> Any:
        return share_of_algorithm(algorithm, 3, whole)

    async def attach(self, *_: object) -> None: ...

    async def leave(self) -> None: ...

    async def learn(self, learner: Any) -> None:
        await learner.run()

    def tell_stop(self, reason: str) -> None: ...

    def scheduled_elsewhere(self) -> int:
        return 0

    def other_steps(self, env_steps: int) -> int:
        return 0

    def shown(self, snapshot: Any) -> Any:
        return snapshot

    @classmethod
    async def join(cls, place: object, job: Job, *_: object) -> Second:
        return cls(job)


def test_a_run_places_its_actors_by_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[PoolPlan] = []

    def kept(*arguments: Any, **options: Any) -> PoolPlan:
        plans.append(PoolPlan(*arguments, **options))
        return plans[-1]

    monkeypatch.setattr(run_module, "PoolPlan", kept)
    options: dict[str, Any] = {"num_actors": 2, "http": "off", "target_eval_episodes": 1}
    Trainer("CartPole-v1", DQN(), total_steps=100, **options).learn()
    monkeypatch.setattr(grouped, "own_place", lambda config: object())
    monkeypatch.setattr(grouped, "Group", Second)
    Trainer("CartPole-v1", DQN(), total_steps=100, **options).learn()
    assert [plan.among for plan in plans] == [None, (4, 6)]
    explored = [pickle.loads(plan.policy).epsilon.steps for plan in plans]
    assert explored == [10_000, 3334], "a third of what is chosen for the whole run"


def test_other_groups_write_into_the_run_and_never_over_an_earlier_life(tmp_path: Path) -> None:
    config = TrainerConfig(env="any", algo="dqn", run_dir=str(tmp_path))
    assert share_of(config, 0, 2).run_dir == str(tmp_path)
    for name in ("1", "1-2", "1-3"):
        own = share_of(config, 1, 2).run_dir
        assert own == str(tmp_path / "groups" / name)
        Path(own).mkdir(parents=True)


def test_a_run_that_goes_on_divides_what_is_left() -> None:
    for rank in range(2):
        assert share_of(CONFIG, rank, 2, done=8000, counted=4000).total_steps == 4000 + 1001
    for rank in range(3):  # of two groups that were of different speed three go on
        assert share_of(CONFIG, rank, 3, done=7001, counted=5000).total_steps == 5000 + 1000


def going_on(own: int, others: list[int], updates: int, updates_of_others: list[int]) -> Resumption:
    meta = CheckpointMeta(
        env="any", algo="dqn", spec=SPEC, options={}, seed=0, env_steps=own, updates=updates
    )
    run: dict[str, Any] = {"groups": {"env_steps": others, "updates": updates_of_others}}
    run |= {"rings": {"steps": np.array([own])}, "evaluations": {}, "pending": [1]}
    return Resumption(Path("x"), meta, {}, run, {}, (b"",), {"weights": 1}, ("note",))


def test_counters_go_on_over_all_groups_whatever_their_number() -> None:
    resumed = going_on(5000, [0, 2001], 700, [0, 300])
    assert (resumed.env_steps, resumed.other_steps, resumed.other_updates) == (5000, 2001, 300)
    for groups in (2, 3):  # each counts from 5000 steps and 700 updates
        steps, updates = made_before(resumed, groups, "average")
        assert (steps + groups * 5000, updates + groups * 700) == (7001, 1000)
    assert made_before(going_on(5000, [0, 5000], 700, [0]), 2, "gradients") == (0, 0)


def test_one_group_goes_on_with_what_several_have_begun() -> None:
    job = Job(CONFIG, DQN(), SOURCE)
    alone = Alone(dataclasses.replace(job, resumed=going_on(5000, [0, 2001], 700, [0, 300])))
    assert alone.others() == {"env_steps": [2001], "updates": [300]} and alone.other_steps(7) == 2001
    assert alone.job.config.total_steps == alone.max_env_steps == CONFIG.total_steps - 2001
    snapshot = make_snapshot()
    steps, updates = snapshot.env_steps, snapshot.updates
    starting = alone.shown(snapshot)
    assert (starting.env_steps, starting.updates) == (steps + 5000 + 2001, updates + 700 + 300)
    asyncio.run(alone.attach(None, None, None))  # type: ignore[arg-type]
    shown = alone.shown(snapshot)
    assert (shown.env_steps, shown.updates, shown.total_steps) == (
        steps + 2001,
        updates + 300,
        CONFIG.total_steps,
    )
    for plain in (job, dataclasses.replace(job, resumed=going_on(5000, [], 700, []))):
        assert Alone(plain).job == plain and Alone(plain).others() == {} and Alone(plain).other_steps(7) == 0


def test_another_group_goes_on_without_what_is_rank_0s() -> None:
    resumed = going_on(5000, [0, 2001], 700, [0, 300]).for_another_group()
    assert resumed.another_group and resumed.rows is None and resumed.states is None
    assert resumed.run["pending"] == [] and resumed.best == {} and resumed.other_steps == 2001


def test_a_group_tells_its_share_and_the_policy_lag_of_all_its_steps() -> None:
    place = Place(rank=0, size=2, host="here", port=1)
    heard = {1: {"env_steps": 3, "policy_lag_mean": 4.5, "metrics": {"episodes": 7, "async/ring_fill": 0.1}}}
    session: Any = SimpleNamespace(
        place=place,
        leads=True,
        statistics=dict,
        statuses=lambda: dict(heard),
        earlier_lives=[],
    )
    group = Group(session, Job(CONFIG, DQN(), SOURCE))
    assert (group.max_env_steps, group.among) == (5001, (0, 4))
    assert group.groups()[0].policy_lag_mean == 0.0, "nothing was received yet"
    received = Distribution(mean=1.6, samples=5, sum=8, edges=(0, 1, 2), counts=(1, 0, 4))
    shown = group.shown(make_snapshot(distributions={"async/policy_lag": received}, policy_lag_mean=0.0))
    assert [one.policy_lag_mean for one in shown.groups] == [1.6, 4.5]
    assert (shown.env_steps, shown.episodes, shown.ring_fill) == (1003, 37, 0.62)


def test_steps_of_the_algorithm_are_divided_and_batches_are_not() -> None:
    dqn = share_of_algorithm(DQN(learning_starts=1000, replay_capacity=50_001, exploration_steps=8000), 4)
    assert (dqn.learning_starts, dqn.replay_capacity, dqn.exploration_steps) == (250, 12_501, 2000)
    assert dqn.batch_size == DQN().batch_size
    assert share_of_algorithm(SAC(random_steps=100), 2).random_steps == 50
    assert share_of_algorithm(SAC(random_steps=None), 2).random_steps is None
    assert share_of_algorithm(PPO(), 2) == PPO()


def test_what_the_run_has_chosen_is_divided_too() -> None:
    """A group with `async` fusion has the steps of the whole run in its options, and makes only its share of them."""
    config = TrainerConfig(env="CartPole-v1", algo="dqn", total_steps=400_000)
    whole = DQN(learning_starts=1000).for_run(config, SPEC)
    assert (whole.exploration_steps, whole.replay_capacity) == (40_000, 400_000)
    own = share_of_algorithm(share_of_algorithm(DQN(learning_starts=1000), 4), 4, whole)
    assert (own.exploration_steps, own.replay_capacity, own.learning_starts) == (10_000, 100_000, 250)
    assert own.for_run(config, SPEC).exploration_steps == 10_000
    given = share_of_algorithm(DQN(exploration_steps=8000, replay_capacity=50_000), 4)
    assert share_of_algorithm(given, 4, DQN(exploration_steps=8000, replay_capacity=50_000)) == given
    assert share_of_algorithm(PPO(), 4, PPO()) == PPO()


def test_options_of_a_machine_may_differ_between_ranks() -> None:
    shared = shared_options(CONFIG, DQN())
    assert shared["fusion_interval"] == 32 and shared["dqn.gamma"] == DQN().gamma
    assert not {"run_dir", "device", "num_actors", "http"} & set(shared)


def test_a_run_with_one_group_imports_nothing_of_groups() -> None:
    code = """
import sys
from asyncrl import Trainer
Trainer("CartPole-v1", "dqn", total_steps=200, num_actors=1, http="off", target_eval_episodes=1).learn()
print([name for name in sys.modules if name.startswith(("asyncrl.groups", "torch.distributed.elastic"))])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_groups_are_not_ignored_by_the_only_rank_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    assert own_place(CONFIG) is None
    with pytest.raises(ConfigurationError, match="groups must be how many ranks torchrun started, 1, got 2"):
        own_place(dataclasses.replace(CONFIG, groups=2))
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(ConfigurationError, match="groups must be"):
        own_place(dataclasses.replace(CONFIG, groups=2))


def test_rows_that_only_rank_0_has_kept_are_not_counted_for_the_others() -> None:
    resumed = going_on(5000, [0, 5000], 700, [0, 700])
    resumed = dataclasses.replace(resumed, run={**resumed.run, "rings": {"steps": np.array([5060])}})
    assert resumed.env_steps == 5060 and resumed.for_another_group().env_steps == 5000
    assert made_before(resumed, 2, "average") == (0, 0)


def group_of(config: TrainerConfig, resumed: Resumption | None, earlier: list[dict[str, int]]) -> Group:
    place = Place(rank=0, size=2, host="here", port=1)
    session: Any = SimpleNamespace(
        place=place,
        leads=True,
        statistics=dict,
        statuses=lambda: {1: {"env_steps": 5010, "updates": 701}},
        earlier_lives=earlier,
        heartbeat=None,
    )
    return Group(session, Job(config, DQN(), SOURCE, resumed))


def test_an_evaluation_after_three_groups_have_become_two_counts_the_steps_of_all() -> None:
    config = dataclasses.replace(CONFIG, fusion="gradients", total_steps=100_000)
    group = group_of(config, going_on(5000, [0, 5000, 5000], 700, [0]), [])
    assert group.other_steps(5000) == 10_000 and group.other_steps(6000) == 11_000


@pytest.mark.parametrize("fusion", ["gradients", "average"])
def test_no_evaluation_counts_more_steps_than_the_groups_take(fusion: str) -> None:
    """A row of several environments takes rank 0 beyond its share, and the other group has 5010 steps at its end."""
    config = dataclasses.replace(CONFIG, fusion=fusion, total_steps=10_000)
    place = Place(rank=0, size=2, host="here", port=1)
    session: Any = SimpleNamespace(
        place=place,
        leads=True,
        statistics=dict,
        statuses=lambda: {1: {"env_steps": 5010}},
        earlier_lives=[],
        finish=lambda: None,
    )

    async def run() -> None:
        await asyncio.sleep(0)

    async def call(function: Callable[[], None]) -> None:
        function()

    learner: Any = SimpleNamespace(run=run, thread=SimpleNamespace(call=call))
    group = Group(session, Job(config, DQN(discipline="lockstep"), SOURCE))
    assert [group.other_steps(steps) for steps in (4000, 5000, 5015)] == [4000, 5000, 5000]
    asyncio.run(group.learn(learner))
    assert group.other_steps(5015) == 5010, "what it has told after the last fusion"


def test_schedules_of_async_run_over_the_steps_of_all_groups() -> None:
    config = dataclasses.replace(CONFIG, fusion="async", total_steps=100_000)
    group = group_of(config, None, [])
    assert group.job.config.total_steps == 100_000 and group.max_env_steps == 100_000
    assert group.scheduled_elsewhere() == 0
    group._beat({0: {"env_steps": 60_000}, 1: {"env_steps": 5010}})
    assert group.scheduled_elsewhere() == 5010
    resumed = group_of(config, going_on(5000, [0, 2001], 700, [0, 300]), [])
    assert resumed.scheduled_elsewhere() == 2001, "beside the 5000 from which it counts on"
    resumed._beat({0: {"env_steps": 5100}})
    assert resumed.scheduled_elsewhere() == 2001, "the other group has not been heard yet"
    resumed._beat({0: {"env_steps": 5100}, 1: {"env_steps": 5010}})
    assert resumed.scheduled_elsewhere() == 2011


@pytest.mark.parametrize("fusion", ["average", "gradients"])
def test_other_schedules_run_over_a_groups_share(fusion: Any) -> None:
    group = group_of(dataclasses.replace(CONFIG, fusion=fusion, total_steps=100_000), None, [])
    group._beat({0: {"env_steps": 60_000}, 1: {"env_steps": 5010}})
    assert group.job.config.total_steps == 50_000 and group.scheduled_elsewhere() == 0


def test_steps_of_a_group_that_was_started_again_are_not_lost() -> None:
    config = dataclasses.replace(CONFIG, fusion="async", total_steps=100_000)
    resumed = going_on(5000, [0, 5000], 700, [0, 700])
    group = group_of(config, resumed, [{"env_steps": 5400, "updates": 750}])
    assert sum(group.others()["env_steps"]) == 5010 + 400
    assert sum(group.others()["updates"]) == 701 + 50
    stops: list[str] = []
    group._stop = stops.append
    group._beat({0: {"env_steps": 94_589}, 1: {"env_steps": 5010}})
    assert stops == []
    group._beat({0: {"env_steps": 94_590}, 1: {"env_steps": 5010}})
    assert stops == ["total_steps"]


def test_groups_count_more_often_shortly_before_their_steps_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, often = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(grouped.time, "monotonic", lambda: clock.now)
    group = group_of(dataclasses.replace(CONFIG, fusion="async", total_steps=20_000), None, [])
    group._stop = lambda _: None
    group.session.heartbeat: Any = SimpleNamespace(beat_often=lambda: often.append(clock.now))
    for _ in range(9):  # 4,000 steps a second by both groups
        group._beat({rank: {"env_steps": round(2_000 * clock.now)} for rank in (0, 1)})
        clock.now += 0.5
    assert often == [4.0]  # at 16,000 steps, a second before the end


def test_a_learner_that_does_not_give_its_state_is_waited_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "STATE_SECONDS", 0.1)

    async def never(_: object) -> bytes:
        await asyncio.Event().wait()
        return b""

    learner: Any = SimpleNamespace(thread=SimpleNamespace(call=never), core=None)

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(state.state_of, learner, loop), 20)

    asyncio.run(ask())
    ended = asyncio.new_event_loop()
    ended.close()
    with pytest.raises(RuntimeError, match="closed"):
        state.state_of(learner, ended)


def test_groups_that_have_not_reported_yet_are_starting() -> None:
    """Of two groups the first line said 1 groups, and the page showed one."""
    session = SimpleNamespace(place=SimpleNamespace(rank=0, size=2), statuses=dict, statistics=dict)
    group: Any = SimpleNamespace(
        whole=SimpleNamespace(config=SimpleNamespace(fusion="average")),
        session=session,
        _status=lambda: {"state": "starting", "fusion": "average"},
    )
    groups = Group.groups(group)
    assert [(one.rank, one.state) for one in groups] == [(0, "starting"), (1, "starting")]
    assert " | 2 groups, 0 fusions" in readout(make_snapshot(groups=groups)).line()


def test_a_run_that_cannot_be_made_tells_the_other_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[BaseException] = []
    monkeypatch.setattr(grouped, "own_place", lambda config: object())
    monkeypatch.setattr(Second, "tell_failure", lambda self, error: told.append(error), raising=False)
    monkeypatch.setattr(grouped, "Group", Second)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ConfigurationError):
        Trainer("CartPole-v1", "dqn", run_dir=tmp_path, http="off").learn(total_steps=100)
    assert ["holds a run" in str(error) for error in told] == [True]
