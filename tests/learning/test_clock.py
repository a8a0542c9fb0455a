"""Training clock with a time set by the test."""

from asyncrl.learning.clock import TrainClock


def test_clock_counts_from_the_first_step_and_not_while_paused():
    now = [100.0]
    clock = TrainClock(lambda: now[0])
    now[0] = 103.0
    assert (clock.train_seconds, clock.startup_seconds) == (0.0, 3.0)
    clock.start()
    now[0] = 104.0
    clock.start()  # changes nothing
    assert (clock.train_seconds, clock.startup_seconds) == (1.0, 3.0)
    clock.pause()
    now[0] = 110.0
    clock.pause()
    assert clock.train_seconds == 1.0
    clock.resume()
    now[0] = 110.5
    assert (clock.train_seconds, clock.wall_seconds) == (1.5, 10.5)


def test_resume_before_the_first_step_does_not_start_it():
    now = [0.0]
    clock = TrainClock(lambda: now[0])
    clock.resume()
    now[0] = 1.0
    assert clock.train_seconds == 0.0
