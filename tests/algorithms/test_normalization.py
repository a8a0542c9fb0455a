"""Running statistics against slow reference implementations."""

import copy
import pickle

import numpy as np
import pytest
from segment_rig import SPECS, acted, record, weights_of

from asyncrl.algorithms.normalization import REWARD_CLIP, RewardScale, RunningMoments
from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED, Segment


def segments_of(rounds: int, rings: int = 2) -> list[list[Segment]]:
    algorithm, spec = record("ppo"), SPECS["discrete"]
    weights = weights_of(algorithm.make_updater(spec, "cpu", 0))
    return [
        [acted(algorithm, spec, weights, seed=10 * i + ring, ring=ring) for ring in range(rings)]
        for i in range(rounds)
    ]


def test_moments_are_those_of_everything_seen() -> None:
    rng = np.random.default_rng(0)
    parts = [1e3 + rng.normal(size=(count, 3)) * [1, 10, 0] for count in (5, 1, 0, 40)]
    moments, other = RunningMoments(3), RunningMoments(3)
    assert (moments.variance == 1).all()
    for part in parts[:2]:
        moments.add(part.astype(np.float32))
    for part in parts[2:]:
        other.add(part.astype(np.float32))
    moments.absorb(other)
    everything = np.concatenate(parts).astype(np.float32).astype(np.float64)
    assert moments.count == len(everything) and other.count == 0
    np.testing.assert_allclose(moments.mean, everything.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance, everything.var(axis=0), rtol=1e-9, atol=1e-9)
    assert moments.variance[2] == 0
    other.load_state_dict(pickle.loads(pickle.dumps(moments.state_dict())))
    assert (other.mean == moments.mean).all() and (other.variance == moments.variance).all()


def slow_divisor(rounds: list[list[Segment]], gamma: float) -> float:
    """Divisor computed for each stream separately."""
    seen, totals = [], {}
    for segments in rounds:
        for segment in (s for s in segments if s.fresh):
            for e in range(segment.num_envs):
                total = totals.get((segment.ring, e), 0.0)
                for reward, flag in zip(segment.reward[e], segment.flags[e], strict=True):
                    if flag & RESET:
                        total = 0.0
                        continue
                    total = total * gamma + float(reward)
                    seen.append(total)
                    if flag & (TERMINATED | TRUNCATED):
                        total = 0.0
                totals[segment.ring, e] = total
    return float(np.sqrt(np.var(seen) + 1e-8))


def test_rewards_are_divided_by_the_deviation_of_the_return() -> None:
    rounds, scale = segments_of(4), RewardScale(0.9)
    rounds[2][0].fresh = False
    for segments in rounds:
        scale.observe(segments)
    assert scale.divisor == pytest.approx(slow_divisor(rounds, 0.9), rel=1e-9)
    reward = np.array([[1.0, -2.0, 1e6, -1e6]], np.float32)
    scaled = scale.scaled(reward)
    assert scaled.dtype == np.float32 and scaled[0, 2:].tolist() == [REWARD_CLIP, -REWARD_CLIP]
    np.testing.assert_allclose(scaled[0, :2], reward[0, :2] / scale.divisor, rtol=1e-6)


def rare(*rewards: float, every: int = 10) -> Segment:
    """Segment of one stream whose episodes of `every` steps have one reward each, at their ends."""
    algorithm, spec = record("ppo"), SPECS["discrete"]
    weights = weights_of(algorithm.make_updater(spec, "cpu", 0))
    segment = acted(algorithm, spec, weights, seed=0)
    length = every * len(rewards)
    segment.reward = np.zeros((1, length), np.float32)
    segment.reward[0, every - 1 :: every] = rewards
    segment.flags = np.zeros((1, length), np.uint8)
    segment.flags[0, every - 1 :: every] = TERMINATED
    return segment


@pytest.mark.parametrize(
    ("rewards", "divisor"),
    [
        ((1.0, 1.0), 0.3),  # a deviation of sqrt(0.1 x 0.9): a rare reward is enlarged
        ((-1.0, -1.0), 1.0),  # a rare penalty is not
        ((-0.02, -0.02), 0.02),  # in any unit
        ((1.0, -0.5), 0.75),  # nor is a reward beside a penalty: what is better would be another policy
        ((-1.0, 0.0), 1.0),
    ],
)
def test_a_rare_penalty_keeps_its_size(rewards: tuple[float, ...], divisor: float) -> None:
    scale = RewardScale(0.9)
    scale.observe([rare(*rewards)])
    assert scale.divisor == pytest.approx(divisor, rel=1e-6)
    again = RewardScale(0.9)
    again.load_state_dict(pickle.loads(pickle.dumps(scale.state_dict())))
    assert again.divisor == scale.divisor


def test_rewards_of_one_step_episodes_stay_apart() -> None:
    """Their returns have a deviation far below their size, and clipped rewards would all be equal."""
    segment, scale = rare(0.8, 0.9, 1.0, 1.1, every=1), RewardScale(0.99)
    scale.observe([segment])
    np.testing.assert_allclose(scale.scaled(segment.reward), segment.reward / 0.19, rtol=1e-5)
    assert scale.scaled(segment.reward).max() < REWARD_CLIP


def test_segments_of_one_ring_follow_one_another() -> None:
    rounds = segments_of(3)
    apart, together = RewardScale(0.9), RewardScale(0.9)
    for segments in rounds:
        apart.observe(segments)
    # As a relaxed batch may bring them: ring 0 is ahead.
    together.observe([rounds[0][0], rounds[1][0], rounds[0][1], rounds[2][0]])
    together.observe([rounds[1][1], rounds[2][1]])
    assert together.divisor == pytest.approx(apart.divisor, rel=1e-9)
    assert apart.divisor == pytest.approx(slow_divisor(rounds, 0.9), rel=1e-9)


def test_state_goes_on_to_the_same_numbers() -> None:
    first, second = segments_of(2)
    scale, other = RewardScale(0.9), RewardScale(0.9)
    scale.observe(first)
    state = pickle.loads(pickle.dumps(scale.state_dict()))
    kept = copy.deepcopy(state)
    other.load_state_dict(state)
    scale.observe(second)
    other.observe(second)
    assert scale.divisor == other.divisor
    assert (state["returns"][0] == kept["returns"][0]).all(), "a state is a copy"


def test_nothing_seen_divides_by_one() -> None:
    assert RewardScale(0.9).divisor == pytest.approx(1.0)
    scale = RewardScale(0.9)
    (segment,) = segments_of(1, rings=1)[0]
    segment.fresh = False
    scale.observe([segment])
    assert scale.divisor == pytest.approx(1.0)
