"""Noise of deterministic policies: the ladder of scales by hand, statistics, and correlation in time."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest

from asyncrl.acting.noise import GaussianNoise, OrnsteinUhlenbeckNoise


class Scripted:
    """Generator with given standard normal draws."""

    def __init__(self, *draws: list[list[float]]) -> None:
        self._draws = iter(np.array(draws, np.float32))

    def standard_normal(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        drawn = next(self._draws)
        assert drawn.shape == shape and drawn.dtype == dtype
        return drawn.copy()


def course(process: Any, rng: Any, steps: int) -> np.ndarray:
    """Noise `[steps, count, size]` in float64."""
    return np.array([process.draw(rng) for _ in range(steps)], np.float64)


def test_ladder_by_hand() -> None:
    """From 0.4 down to 0.1 in logarithmic steps: the middle one of three is their geometric mean, 0.2."""
    noise = GaussianNoise(0.4, 0.1)
    assert noise.scales(0, 3, 3) == pytest.approx([0.4, 0.2, 0.1])
    assert noise.scales(1, 2, 3) == pytest.approx([0.2, 0.1])
    assert noise.scales(0, 1, 1) == pytest.approx([0.4])
    assert noise.scales(0, 4, 4) == pytest.approx([0.4 * 4 ** (-i / 3) for i in range(4)])
    assert OrnsteinUhlenbeckNoise(0.1, 0.4).scales(0, 3, 3) == pytest.approx([0.1, 0.2, 0.4]), "upwards too"
    same = GaussianNoise(0.3).scales(2, 3, 9)
    assert same == pytest.approx([0.3] * 3) and same.dtype == noise.scales(0, 1, 1).dtype == np.float32
    assert GaussianNoise(0.4, 0.1).process(1, 2, 3, 5).mean_scale == pytest.approx(0.15)


@pytest.mark.parametrize("kind", [GaussianNoise, OrnsteinUhlenbeckNoise])
def test_what_does_not_fit_is_refused(kind: type[GaussianNoise]) -> None:
    for bad in (-0.1, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"scale must be finite and at least 0, got {bad}"):
            kind(bad)
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"scale_last must be finite and above 0, or None, got {bad}"):
            kind(0.1, bad)
    with pytest.raises(ValueError, match="scale must be above 0 where scale_last is given"):
        kind(0.0, 0.1)
    for first, count in ((-1, 1), (0, 0), (2, 2)):
        with pytest.raises(ValueError, match="must lie in the 3 of all actors"):
            kind(0.1).process(first, count, 3, 1)
    for theta in (0.0, -0.1, 1.01, math.nan):
        with pytest.raises(ValueError, match=f"theta must be above 0 and at most 1, got {theta}"):
            OrnsteinUhlenbeckNoise(0.1, theta=theta)


@pytest.mark.parametrize("kind", [GaussianNoise, OrnsteinUhlenbeckNoise])
def test_scale_zero_is_no_noise(kind: type[GaussianNoise]) -> None:
    process = kind(0.0).process(0, 2, 2, 3)
    assert (course(process, np.random.default_rng(0), 5) == 0).all() and process.mean_scale == 0


def test_gaussian_by_hand() -> None:
    process = GaussianNoise(0.5, 2.0).process(0, 2, 2, 2)
    drawn = course(process, Scripted([[1, -2], [3, 0.5]], [[0, 1], [1, 0]]), 2)
    assert drawn.tolist() == [[[0.5, -1], [6, 1]], [[0, 0.5], [2, 0]]]
    assert process.draw(np.random.default_rng(0)).dtype == np.float32 and process.count == 2


def test_ornstein_uhlenbeck_by_hand() -> None:
    """theta = 0.4: keep 0.6, drive 0.8. From 1: 0.6 + 0.8 * 1 = 1.4, then 0.84 - 0.8 * 0.5 = 0.44; times 0.5."""
    process = OrnsteinUhlenbeckNoise(0.5, theta=0.4).process(0, 1, 1, 2)
    drawn = course(process, Scripted([[1, 0]], [[1, 0]], [[-0.5, 2]]), 3)
    np.testing.assert_allclose(drawn[:, 0], [[0.5, 0], [0.7, 0], [0.22, 0.8]], rtol=1e-6)


def test_draws_are_fresh_and_do_not_reach_into_the_course() -> None:
    noise = OrnsteinUhlenbeckNoise(1.0)
    touched, left = noise.process(0, 1, 1, 2), noise.process(0, 1, 1, 2)
    one, other = np.random.default_rng(1), np.random.default_rng(1)
    for _ in range(3):
        drawn = touched.draw(one)
        assert np.array_equal(drawn, left.draw(other))
        drawn[:] = 99


def test_gaussian_streams_have_their_scale_and_no_memory() -> None:
    noise = GaussianNoise(0.8, 0.05)
    drawn = course(noise.process(1, 4, 6, 2), np.random.default_rng(2), 20_000)
    np.testing.assert_allclose(drawn.std(axis=0), np.repeat(noise.scales(1, 4, 6)[:, None], 2, 1), rtol=0.02)
    assert np.abs(drawn.mean(axis=0) / drawn.std(axis=0)).max() < 0.03
    flat = drawn.reshape(len(drawn), -1)
    assert np.abs(np.corrcoef(flat.T) - np.eye(8)).max() < 0.03, "streams and values are independent"
    assert np.abs([np.corrcoef(x[:-1], x[1:])[0, 1] for x in flat.T]).max() < 0.03


@pytest.mark.parametrize("theta", [0.15, 0.6, 1.0])
def test_ornstein_uhlenbeck_has_its_scale_from_the_first_draw_on(theta: float) -> None:
    """Many streams at a few moments, and their correlation k steps apart: `(1 - theta)^k`."""
    noise = OrnsteinUhlenbeckNoise(0.8, 0.1, theta)
    rng, count = np.random.default_rng(3), 4
    drawn = np.stack([course(noise.process(0, count, count, 5000), rng, 41)], 0)[0]
    for t in (0, 1, 2, 5, 40):
        np.testing.assert_allclose(drawn[t].std(axis=1), noise.scales(0, count, count), rtol=0.04)
    unit = drawn / noise.scales(0, count, count)[:, None]
    for k in (1, 2, 5):
        assert (unit[k:] * unit[:-k]).mean() == pytest.approx((1 - theta) ** k, abs=0.015)


def test_one_stream_in_time_is_what_the_paper_says() -> None:
    """Lillicrap et al. 2016: theta 0.15, sigma 0.2, which is a scale of 0.2 / sqrt(0.2775) = 0.3797."""
    sigma, theta = 0.2, 0.15
    scale = sigma / math.sqrt(2 * theta - theta**2)
    assert scale == pytest.approx(0.3797, abs=1e-4)
    x = course(OrnsteinUhlenbeckNoise(scale).process(0, 1, 1, 1), np.random.default_rng(4), 60_000)[:, 0, 0]
    assert x.std() == pytest.approx(scale, rel=0.03)
    assert np.corrcoef(x[:-1], x[1:])[0, 1] == pytest.approx(1 - theta, abs=0.01)
    driving = x[1:] - (1 - theta) * x[:-1]
    assert driving.std() == pytest.approx(sigma, rel=0.02)


@pytest.mark.parametrize("noise", [GaussianNoise(0.3, 0.1), OrnsteinUhlenbeckNoise(0.3, 0.1)])
def test_pickling_goes_on_in_the_middle_of_the_course(noise: GaussianNoise) -> None:
    assert pickle.loads(pickle.dumps(noise)) == noise
    process, rng = noise.process(0, 3, 3, 2), np.random.default_rng(5)
    process.draw(rng)
    other = pickle.loads(pickle.dumps(process))
    one, two = np.random.default_rng(6), np.random.default_rng(6)
    assert np.array_equal(course(process, one, 4), course(other, two, 4))
