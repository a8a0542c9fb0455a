"""When evaluations run, and which of them ends a run, with an evaluator and a learner driven by hand."""

import asyncio

import numpy as np
import pytest

from asyncrl.clock import TrainClock
from asyncrl.evaluate import EvaluationPlan, EvaluationSchedule


class Script:
    """An evaluator that plays the means it is given, and notes what was asked and whether training stood still."""

    def __init__(self, trainee, means):
        self.trainee, self.means, self.asked = trainee, list(means), []

    async def evaluate(self, weights, episodes):
        if not self.means:
            await asyncio.Event().wait()  # the script is over
        self.asked.append((float(weights[0]), episodes, self.trainee.held))
        self.trainee.clock_now[0] += 1.0
        self.trainee.updates += 1
        return np.full(episodes, self.means.pop(0)), np.full(episodes, 7)


class Learner:
    """Weights that say which update they are of."""

    def __init__(self):
        self.updates, self.inserted_steps, self.held, self.clock_now = 1, 50, False, [0.0]

    async def current_weights(self):
        return np.array([self.updates], np.float32), self.updates

    async def hold(self):
        self.held = True

    def resume(self):
        self.held = False


def schedule(means, target=10.0):
    learner = Learner()
    clock = TrainClock(lambda: learner.clock_now[0])
    clock.start()
    best = []

    async def on_best(result, weights):
        best.append((result.return_mean, float(weights[0])))

    evaluator = Script(learner, means)
    plan = EvaluationPlan(interval_seconds=0.0, episodes=3, target_return=target, target_episodes=20)
    return EvaluationSchedule(plan, evaluator, learner, clock, on_best), evaluator, learner, clock, best


async def until(task, condition):
    while not condition() and not task.done():
        await asyncio.sleep(0.001)


def test_target_needs_fresh_episodes_of_the_same_weights_while_training_is_held():
    async def scenario():
        plan, evaluator, learner, clock, best = schedule([4.0, 11.0, 9.0, 12.0, 10.0])
        weights = await asyncio.wait_for(plan.run_until_target(), 10)
        # below; a hint that is not confirmed; a hint that is
        assert evaluator.asked == [(1, 3, False), (2, 3, False), (2, 20, True), (4, 3, False), (4, 20, True)]
        assert weights[0] == 4
        assert plan.last.return_mean == 10.0
        assert plan.last.episodes == 20
        assert learner.held  # training does not go on behind a reached target
        # each evaluation took a second; the two confirmations stood outside the clock
        assert clock.train_seconds == 3.0
        assert plan.last.train_seconds == 2.0  # when the weights that passed were taken
        # the hint of 11.0 counts for what its confirmation says
        assert best == [(4.0, 1.0), (9.0, 2.0), (10.0, 4.0)]

    asyncio.run(scenario())


def test_without_a_target_it_only_watches():
    async def scenario():
        plan, evaluator, learner, _, best = schedule([5.0, 50.0, 20.0], target=None)
        task = asyncio.create_task(plan.run_until_target())
        await until(task, lambda: not evaluator.means)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [episodes for _, episodes, _ in evaluator.asked] == [3, 3, 3]
        assert not learner.held
        assert best == [(5.0, 1.0), (50.0, 2.0)]

    asyncio.run(scenario())


def test_the_same_weights_are_not_evaluated_twice():
    async def scenario():
        plan, evaluator, learner, _, _ = schedule([1.0, 2.0], target=None)
        evaluator.trainee = Learner()  # playing does not count as an update of this learner
        task = asyncio.create_task(plan.run_until_target())
        await until(task, lambda: len(evaluator.asked) == 1)
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert len(evaluator.asked) == 1
        learner.updates += 1
        await until(task, lambda: len(evaluator.asked) == 2)
        task.cancel()

    asyncio.run(scenario())
