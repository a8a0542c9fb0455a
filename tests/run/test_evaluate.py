"""Schedule of evaluations: which weights, when, and which evaluation ends a run; evaluator and learner are fakes."""

import asyncio
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from waiting import PATIENCE_SECONDS

from asyncrl.config import TrainerConfig
from asyncrl.errors import EnvironmentRaised, EvaluationIncomplete
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.weight_snapshots import WeightSnapshot, WeightSnapshots
from asyncrl.run import evaluate
from asyncrl.run.evaluate import (
    CONFIRMATION,
    FAILURES_IN_A_ROW,
    FINAL,
    REGULAR,
    EvaluationSchedule,
)

INTERVAL = 100


class Script:
    """Evaluator with given means that records its calls and whether training was paused."""

    success_rate = None
    levels, level_returns = ("",), {}
    agents, policies = (), ()

    def __init__(self, trainee, means):
        self.trainee, self.means, self.asked = trainee, list(means), []
        self.during = lambda number: None  # called while evaluation `number`, from 1, is played

    async def evaluate(self, weights, episodes, key=()):
        self.asked.append((float(weights[0]), episodes, key, self.trainee.held))
        if not self.means:
            await asyncio.Event().wait()  # the script is over
        await asyncio.sleep(0)
        self.during(len(self.asked))
        self.trainee.clock_now[0] += 1.0
        self.trainee.updates += 1
        if isinstance(mean := self.means.pop(0), Exception):
            raise mean
        return np.full(episodes, mean), np.full(episodes, 7)


class Learner:
    """Learner whose weights are the number of their update."""

    def __init__(self):
        self.inserted_steps, self.held, self.clock_now = 50, False, [0.0]
        self.updates = 1
        self.looked = self.holds = 0
        self.ended = False

    async def current_weights(self):
        return np.array([self.updates], np.float32), self.updates

    async def critics(self):
        return np.array([[self.updates]], np.float32)

    @property
    def reward_scale(self):
        return 1.0 / (1 + self.updates)

    async def hold(self):
        assert not self.ended, "a learner that has ended answers nobody"
        self.held = True
        self.holds += 1

    def resume(self):
        self.held = False

    def data_arrived(self):
        self.looked += 1


async def nothing():
    """No change of keyword arguments is tried."""


class Rig:
    """A run with fakes around its schedule."""

    def __init__(self, means, target=10.0, capacity=8, only_stop=False, other_steps=lambda own: 0):
        self.learner = Learner()
        self.clock = TrainClock(lambda: self.learner.clock_now[0])
        self.clock.start()
        self.evaluator = Script(self.learner, means)
        loop = asyncio.get_running_loop()
        self.snapshots = self.learner.snapshots = WeightSnapshots(
            INTERVAL, capacity, arrived=lambda: loop.call_soon_threadsafe(self.schedule.copy_arrived)
        )
        self.best, self.seen, self.states = [], [], []
        rules = {"target_return": target, "total_steps": None if only_stop else 1_000_000}
        self.config = TrainerConfig(env="any", algo="any", eval_episodes=3, target_eval_episodes=20, **rules)
        self.env_kwargs = SimpleNamespace(settle=nothing)
        self.group = SimpleNamespace(other_steps=other_steps)
        self.schedule = EvaluationSchedule(self)

    async def evaluated(self, result, weights, key, *, best):
        assert self.schedule.last is result
        if best:
            self.best.append((result.return_mean, float(weights[0])))
        self.seen.append((result.env_steps, result.updates, result.policy_version, result.return_mean))
        self.states.append(self.schedule.holds_training)

    def put(self, *env_steps):
        """Add copies as the learner's thread does; the weights are the hundreds of steps."""

        def learn():
            for steps in env_steps:
                weights = np.array([steps // INTERVAL], np.float32)
                self.snapshots.put(WeightSnapshot(weights, steps // 50, steps // 10, steps))

        thread = threading.Thread(target=learn)
        thread.start()
        thread.join()

    def end_training_in(self, number):
        def end(played):
            if played == number:
                self.learner.ended = True
                self.schedule.training_ended()

        return end

    def run(self):
        return asyncio.create_task(self.schedule.run())


async def until(condition, seconds=60.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)


async def cancelled(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_every_copy_is_evaluated_in_order_with_the_counters_of_its_own_moment():
    async def scenario():
        rig = Rig([1.0, 2.0, 3.0])
        rig.learner.inserted_steps = rig.learner.updates = 999_999  # training is far ahead
        task = rig.run()
        rig.put(104, 208)
        await until(lambda: len(rig.seen) == 2)
        rig.put(300)
        await until(lambda: len(rig.seen) == 3)
        assert rig.seen == [(104, 10, 2, 1.0), (208, 20, 4, 2.0), (300, 30, 6, 3.0)]
        assert [w for w, *_ in rig.evaluator.asked] == [1, 2, 3]
        assert [r.return_mean for r in rig.schedule.evaluations] == [1.0, 2.0, 3.0]
        assert rig.learner.looked == 3, "a learner that waits for room looks again"
        await cancelled(task)

    asyncio.run(scenario())


def test_an_evaluation_waits_for_a_copy_without_looking_again_and_again():
    async def scenario():
        rig = Rig([1.0])
        task = rig.run()
        loop, turns = asyncio.get_running_loop(), []
        call_later, loop.call_later = loop.call_later, lambda *a, **k: turns.append(a) or call_later(*a, **k)
        await asyncio.sleep(0)
        assert not turns and not task.done(), "no timer runs while there is nothing to evaluate"
        loop.call_later = call_later
        rig.put(100)
        await until(lambda: rig.seen)
        await cancelled(task)

    asyncio.run(scenario())


def test_the_best_evaluation_has_its_own_weights_though_the_run_ends_as_it_is_recorded():
    async def scenario():
        rig = Rig([1.0, 2.0])
        task = rig.run()
        rig.put(100)
        await until(lambda: rig.seen)
        asked = asyncio.Event()

        async def never():
            asked.set()
            await asyncio.Event().wait()

        rig.learner.critics = never
        rig.put(200)
        await asked.wait()
        await cancelled(task)
        assert rig.schedule.last.return_mean == 2.0
        assert (rig.schedule.best.return_mean, rig.schedule.best_weights.acting[0]) == (1.0, 1.0)

    asyncio.run(scenario())


def test_the_clock_is_that_of_the_copy():
    async def scenario():
        rig = Rig([1.0, 1.0, 1.0])
        rig.learner.clock_now[0] = 0.25
        rig.put(100, 200)
        await asyncio.sleep(0)  # the two arrive
        rig.learner.clock_now[0] = 5.0
        task = rig.run()
        await until(lambda: len(rig.seen) == 2)
        assert [r.train_seconds for r in rig.schedule.evaluations] == [0.25, 0.25]
        await cancelled(task)

    asyncio.run(scenario())


def test_steps_are_those_of_all_groups_when_the_copy_was_made():
    async def scenario():
        others = [7]
        rig = Rig([1.0] * 4, target=None, other_steps=lambda own: others[0] + own // 100)
        rig.put(100, 200)
        await asyncio.sleep(0)  # the two arrive
        others[0] = 5_000
        task = rig.run()
        rig.put(300)
        await until(lambda: len(rig.seen) == 3)
        assert [r.env_steps for r in rig.schedule.evaluations] == [100 + 8, 200 + 9, 300 + 5_003]
        rig.learner.inserted_steps, others[0] = 400, 6_000
        assert (await rig.schedule.evaluate_now(3)).env_steps == 400 + 6_004
        await cancelled(task)

    asyncio.run(scenario())


def test_the_first_copy_in_order_that_is_confirmed_ends_the_run():
    async def scenario():
        # below; a hint that is not confirmed; a hint that is; the fourth is never asked for
        rig = Rig([4.0, 11.0, 9.0, 12.0, 10.0, 99.0])
        rig.put(100, 200, 300, 400)
        weights = await asyncio.wait_for(rig.schedule.run(), PATIENCE_SECONDS)
        assert rig.evaluator.asked == [
            (1, 3, (REGULAR, 0), False),
            (2, 3, (REGULAR, 1), False),
            (2, 20, (CONFIRMATION, 1), True),
            (3, 3, (REGULAR, 2), False),
            (3, 20, (CONFIRMATION, 2), True),
        ]
        assert weights[0] == 3
        assert [timed.copy.env_steps for timed in rig.schedule.pending()] == [400], "300 has its result"
        assert rig.schedule.rounds == 3
        assert rig.schedule.last.return_mean == 10.0
        assert (rig.schedule.last.episodes, rig.schedule.last.updates) == (20, 30)
        assert rig.learner.held  # training does not go on behind a reached target
        # each evaluation took a second; the two confirmations stood outside the clock
        assert rig.clock.train_seconds == 3.0
        assert rig.schedule.last.train_seconds == 0.0  # when the weights that passed were copied
        # the hint of 11.0 counts for what its confirmation says
        assert [mean for *_, mean in rig.seen] == [4.0, 9.0, 10.0]
        assert rig.best == [(4.0, 1.0), (9.0, 2.0), (10.0, 3.0)]
        kept = rig.schedule.best_weights
        assert kept.critics is not None, "those of the learner at that time, for the result's values"
        assert kept.reward_scale == 1.0 / (1 + kept.critics[0, 0])

    asyncio.run(scenario())


def test_which_episodes_are_played_depends_on_the_number_of_the_evaluation_only():
    async def keys(means, late):
        rig = Rig(means)
        task = rig.run()
        if late:
            rig.put(100, 200, 300)
        else:
            for steps in (100, 200, 300):
                rig.put(steps)
                await until(lambda steps=steps: len(rig.seen) == steps // INTERVAL)
        await until(lambda: len(rig.seen) == 3)
        rig.schedule.training_ended()
        assert await task is None
        rig.evaluator.means = [1.0]
        await rig.schedule.evaluate_now(20)
        return [key for _, _, key, _ in rig.evaluator.asked]

    async def scenario():
        plain = await keys([1.0, 2.0, 3.0], late=False)
        assert plain == [(REGULAR, 0), (REGULAR, 1), (REGULAR, 2), (FINAL,)]
        assert await keys([1.0, 2.0, 3.0], late=True) == plain
        hinted = await keys([1.0, 11.0, 2.0, 3.0], late=True)
        assert [key for key in hinted if key[0] != CONFIRMATION] == plain

    asyncio.run(scenario())


def test_what_waits_when_training_ends_is_evaluated_first_while_the_clock_stands():
    async def scenario():
        rig = Rig([1.0, 2.0, 3.0])
        rig.evaluator.during = rig.end_training_in(1)
        rig.put(100, 200, 300)
        assert await asyncio.wait_for(rig.schedule.run(), PATIENCE_SECONDS) is None
        assert [steps for steps, *_ in rig.seen] == [100, 200, 300]
        assert rig.clock.train_seconds == 0.0
        assert rig.schedule.holds_training

    asyncio.run(scenario())


def test_a_target_that_is_found_after_the_end_of_training_counts_and_one_that_is_not_starts_nothing():
    async def scenario():
        # a hint that is not confirmed, then one that is: the learner, which has ended, is asked for nothing
        rig = Rig([11.0, 9.0, 12.0, 10.0])
        rig.put(100, 200)
        await asyncio.sleep(0)
        rig.learner.ended = True
        rig.schedule.training_ended()
        weights = await asyncio.wait_for(rig.schedule.run(), PATIENCE_SECONDS)
        assert weights[0] == 2
        assert not rig.clock.running
        assert rig.learner.holds == 0

    asyncio.run(scenario())


def test_training_that_ends_while_a_hint_is_confirmed_does_not_start_the_clock_again():
    async def scenario():
        rig = Rig([11.0, 9.0, 1.0])
        rig.evaluator.during = rig.end_training_in(2)
        rig.put(100, 200)
        assert await asyncio.wait_for(rig.schedule.run(), PATIENCE_SECONDS) is None
        assert rig.learner.holds == 1
        assert not rig.clock.running
        assert len(rig.seen) == 2

    asyncio.run(scenario())


def test_without_evaluations_it_waits_for_the_end_of_training():
    async def scenario():
        rig = Rig([1.0], target=None)
        task = rig.run()
        await asyncio.sleep(0)
        assert not task.done()
        rig.schedule.training_ended()
        assert await asyncio.wait_for(task, PATIENCE_SECONDS) is None
        assert rig.evaluator.asked == []
        result = await rig.schedule.evaluate_now(7)
        assert rig.schedule.evaluations == (result,)
        assert (result.episodes, result.env_steps, result.updates) == (7, 50, 1)

    asyncio.run(scenario())


def test_training_goes_on_before_an_unconfirmed_result_is_saved():
    async def scenario():
        rig = Rig([11.0, 9.0])
        states = []

        async def evaluated(result, weights, key, *, best):
            states.append((rig.learner.held, rig.clock.running, rig.schedule.holds_training))

        rig.evaluated = evaluated
        task = rig.run()
        rig.put(100)
        await until(lambda: states)
        assert states == [(False, True, False)]
        await cancelled(task)

    asyncio.run(scenario())


# --- evaluations that fail --------------------------------------------------------------------------------


def fell():
    return EnvironmentRaised("greedy actions fell off the table")


def test_an_evaluation_that_fails_is_told_once_and_the_next_is_made():
    async def scenario():
        rig = Rig([1.0, fell(), fell(), 2.0])
        rig.put(100, 200, 300, 400)
        task = rig.run()
        with pytest.warns(EvaluationIncomplete, match=r"ASYNC041.*fell off the table") as caught:
            await until(lambda: len(rig.seen) == 2 or task.done())
        assert len(caught) == 1
        assert [steps for steps, *_ in rig.seen] == [100, 400]
        assert [key for _, _, key, _ in rig.evaluator.asked] == [(REGULAR, n) for n in range(4)]
        rig.schedule.training_ended()
        assert await task is None

    asyncio.run(scenario())


def test_training_goes_on_after_a_confirmation_that_fails():
    async def scenario():
        rig = Rig([11.0, fell(), 1.0])
        rig.put(100, 200)
        task = rig.run()
        with pytest.warns(EvaluationIncomplete):
            await until(lambda: rig.seen or task.done())
        assert rig.learner.holds == 1 and not rig.learner.held
        assert rig.clock.running and not rig.schedule.holds_training
        assert [mean for *_, mean in rig.seen] == [1.0], "an unconfirmed hint is no result"
        await cancelled(task)

    asyncio.run(scenario())


@pytest.mark.parametrize("only_stop", [True, False])
def test_a_run_that_only_an_evaluation_can_end_is_given_up_when_all_of_them_fail(only_stop):
    async def scenario():
        failures = [fell() for _ in range(FAILURES_IN_A_ROW - 1)]
        rig = Rig([*failures, 1.0, *failures, fell()], only_stop=only_stop, capacity=99)
        rig.put(*range(100, 100 * (2 * FAILURES_IN_A_ROW + 1), 100))
        task = rig.run()
        with pytest.warns(EvaluationIncomplete) as caught:
            await until(lambda: not rig.evaluator.means)
            rig.schedule.training_ended()
            if only_stop:
                with pytest.raises(EnvironmentRaised):
                    await task
            else:
                assert await task is None
        assert len(caught) == 1
        assert len(rig.seen) == 1

    asyncio.run(scenario())


def test_what_waits_after_the_end_of_training_has_a_limit_of_time(monkeypatch):
    monkeypatch.setattr(evaluate, "EVALUATION_SECONDS", 0.01)

    async def scenario():
        rig = Rig([1.0])  # the second evaluation never ends
        rig.put(100, 200, 300)
        task = rig.run()
        await until(lambda: len(rig.evaluator.asked) == 2)
        assert not task.done()
        with pytest.warns(EvaluationIncomplete, match=r"ASYNC041.*longer than 0 s after the end of training"):
            rig.schedule.training_ended(limited=True)
            assert await asyncio.wait_for(task, PATIENCE_SECONDS) is None
        assert [steps for steps, *_ in rig.seen] == [100]
        assert len(rig.evaluator.asked) == 2, "the third is not begun"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("updates", "episodes", "best"),
    [(2, 20, (6.0, 2.0)), (2, 3, (9.0, 2.0)), (3, 20, (9.0, 2.0))],
    ids=["same weights, more episodes", "same weights, as many episodes", "other weights"],
)
def test_more_episodes_of_the_best_weights_replace_their_return(updates, episodes, best):
    async def scenario():
        rig = Rig([4.0, 9.0, 6.0], target=None)
        task = rig.run()
        rig.put(100, 200)
        await until(lambda: len(rig.seen) == 2)
        rig.schedule.training_ended()
        await task
        rig.learner.updates = updates  # its weights are this number
        last = await rig.schedule.evaluate_now(episodes)
        assert last.return_mean == 6.0
        assert (rig.schedule.best.return_mean, float(rig.schedule.best_weights.acting[0])) == best
        assert rig.best[-1] == best, "the saved one"
        assert rig.schedule.best is last or best[0] == 9.0

    asyncio.run(scenario())


def test_evaluations_of_a_long_run_are_thinned_and_all_are_told(monkeypatch):
    monkeypatch.setattr(evaluate, "MOST_EVALUATIONS", 4)

    async def scenario():
        rig = Rig(range(9), target=None)
        task = rig.run()
        rig.put(*range(INTERVAL, 10 * INTERVAL, INTERVAL))
        await until(lambda: len(rig.seen) == 9)
        assert [mean for *_, mean in rig.seen] == [*range(9)]
        assert [result.return_mean for result in rig.schedule.evaluations] == [0, 6, 8]
        assert rig.schedule.best is rig.schedule.last
        await cancelled(task)

    asyncio.run(scenario())
