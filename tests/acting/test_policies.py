import pickle
import subprocess
import sys

import numpy as np
import pytest
from oracles import slow_perceptron
from waiting import PATIENCE_SECONDS

from asyncrl.acting.kernels import mlp_forward
from asyncrl.acting.policies import QLayout, QPolicy, has_epsilon
from asyncrl.acting.schedules import EpsilonSchedule, ramp
from asyncrl.acting.trained_policy import TrainedPolicy
from asyncrl.algorithms import ALGORITHMS
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.protocols import Policy

SPEC = EnvSpec("test", (4,), "float32", DiscreteAction(3))
SPEC2 = EnvSpec("two", (4,), "float32", DiscreteAction(2))
WIDE = EnvSpec("wide", (4,), "float32", DiscreteAction(1000))
LAYOUT = QLayout(4, (7, 6), 3)


def policy(
    layout: QLayout = LAYOUT, spec: EnvSpec = SPEC, epsilon: EpsilonSchedule | None = None, seed: int = 0
) -> QPolicy:
    made = QPolicy(spec, layout, epsilon)
    made.load_weights(np.random.default_rng(seed).normal(size=made.weight_count).astype(np.float32))
    return made


def slow_q(layout: QLayout, flat: np.ndarray, obs: np.ndarray) -> np.ndarray:
    """Action values computed one value at a time in float64."""
    result = []
    for x in obs.reshape(len(obs), -1):
        y = slow_perceptron(layout.sizes, flat, x, lambda v: max(0.0, v))
        result.append(y[0] + y[1:] - y[1:].mean() if layout.dueling else y)
    return np.array(result)


@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize(
    "layout", [LAYOUT, QLayout(4, (8,), 3), QLayout(4, (5, 9, 4), 3), QLayout(4, (7, 6), 3, dueling=True)]
)
def test_q_values_are_those_of_the_slow_formula(layout: QLayout, rows: int) -> None:
    made, obs = policy(layout), np.random.default_rng(1).normal(size=(rows, 4)).astype(np.float32)
    weights = np.random.default_rng(0).normal(size=made.weight_count).astype(np.float32)
    expected = slow_q(layout, weights, obs)
    np.testing.assert_allclose(made.q_values(obs), expected, rtol=1e-4, atol=1e-4)
    assert (made.greedy(obs) == expected.argmax(axis=1)).all()


def test_kernel_compiled_and_interpreted_agree() -> None:
    rng = np.random.default_rng(3)
    flat = rng.normal(size=LAYOUT.weight_count).astype(np.float32)
    x, sizes = rng.normal(size=(5, 4)).astype(np.float32), np.array(LAYOUT.sizes)
    outs = []
    for kernel in (mlp_forward, mlp_forward.py_func):
        out = np.full((5, 3), np.nan, np.float32)
        kernel(x, flat, sizes, True, False, np.full((2, 5, 7), np.nan, np.float32), out)
        outs.append(out)
    np.testing.assert_allclose(*outs, rtol=1e-5, atol=1e-5)


def test_observations_may_be_strided_bytes_or_images() -> None:
    rows = np.random.default_rng(2).normal(size=(6, 9, 4)).astype(np.float32)
    made = policy()
    np.testing.assert_array_equal(made.q_values(rows[:, 3]), made.q_values(rows[:, 3].copy()))
    images = EnvSpec("bytes", (2, 2), "uint8", DiscreteAction(3))
    frames = np.random.default_rng(2).integers(0, 256, (6, 2, 2), dtype=np.uint8)
    scaled = frames.reshape(6, 4).astype(np.float32) / 255
    np.testing.assert_allclose(policy(spec=images).q_values(frames), made.q_values(scaled), rtol=1e-5)


def test_loaded_weights_are_a_copy_of_the_right_length() -> None:
    made, obs = policy(), np.ones((2, 4), np.float32)
    weights = np.ones(made.weight_count, np.float32)
    made.load_weights(weights)
    before = made.q_values(obs)
    weights[:] = 5
    np.testing.assert_array_equal(made.q_values(obs), before)
    with pytest.raises(ValueError, match=r"weights must have shape \(104,\), got \(3,\)"):
        made.load_weights(np.zeros(3, np.float32))


def test_pickle_keeps_weights_and_streams() -> None:
    made, obs = policy(epsilon=EpsilonSchedule(0.5, 0.5, 0, 7.0)), np.ones((3, 4), np.float32)
    made.assign_streams(2, 3, 8)
    made.q_values(obs)
    other = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(other.q_values(obs), made.q_values(obs))
    first, _ = made.act(obs, np.random.default_rng(5), 0)
    second, _ = other.act(obs, np.random.default_rng(5), 0)
    assert (first == second).all() and other.exploration_rate == made.exploration_rate
    assert isinstance(other, Policy)


def test_ladder_by_hand() -> None:
    ladder = EpsilonSchedule(initial=1.0, final=0.4, steps=100, ladder=7.0)
    assert ladder.exponents(0, 3, 3).tolist() == [1.0, 4.5, 8.0]
    assert ladder.exponents(2, 1, 3).tolist() == [8.0]
    assert ladder.exponents(0, 1, 1).tolist() == [1.0]
    made = policy(epsilon=ladder)
    made.assign_streams(1, 2, 3)
    made.act(np.zeros((2, 4), np.float32), np.random.default_rng(0), 100)
    assert made.exploration_rate == pytest.approx((0.4**4.5 + 0.4**8) / 2)
    for first, count in ((-1, 1), (0, 0), (2, 2)):
        with pytest.raises(ValueError, match="must lie in the 3 of all actors"):
            ladder.exponents(first, count, 3)


def test_schedule_by_hand() -> None:
    schedule = EpsilonSchedule(initial=1.0, final=0.1, steps=1000)
    assert [schedule.base(at) for at in (0, 500, 1000, 5000)] == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert EpsilonSchedule(1.0, 0.2, 0).base(0) == 0.2
    assert [ramp(2.0, 0.0, 4, at) for at in (0, 1, 4, 9)] == [2.0, 1.5, 0.0, 0.0]


def test_act_explores_at_the_rate_of_each_stream() -> None:
    made = policy(epsilon=EpsilonSchedule(0.5, 0.5, 0, ladder=3.0))
    made.assign_streams(0, 2, 2)  # rates 0.5 and 0.0625
    obs, rng = np.zeros((2, 4), np.float32), np.random.default_rng(11)
    best = made.greedy(obs)
    count = np.zeros((2, 3))
    for _ in range(20_000):
        action, extras = made.act(obs, rng, 0)
        count[[0, 1], action] += 1
    assert extras == {} and action.dtype == np.int64
    # an exploring stream draws the best action too: 1 - 2/3 eps of its actions are the best
    share = count[[0, 1], best] / 20_000
    assert share == pytest.approx([1 - 0.5 * 2 / 3, 1 - 0.0625 * 2 / 3], abs=0.01)
    others = np.delete(count[0], best[0]) / 20_000
    assert others == pytest.approx([0.5 / 3] * 2, abs=0.01)


class Scripted:
    """Generator with given draws: a row of shares to begin, a row of choices, a row of lengths."""

    def __init__(self, *rows: list[float]) -> None:
        self._rows = np.array(rows)

    def random(self, shape: tuple[int, int]) -> np.ndarray:
        assert shape == self._rows.shape
        return self._rows


def test_random_actions_run_on_by_hand() -> None:
    made = policy(epsilon=EpsilonSchedule(0.5, 0.5, 0, repeat=4))
    made.assign_streams(0, 2, 2)
    obs = np.zeros((2, 4), np.float32)
    best = int(made.greedy(obs)[0])
    first, second = (a for a in range(3) if a != best)
    pick = [(a + 0.5) / 3 for a in range(3)]
    rows = [
        # stream 0 begins a run of 3 (length draw 0.5 of 4); stream 1 is greedy
        ([0.1, 0.9], [pick[first], pick[first]], [0.5, 0.99], [first, best]),
        # stream 0 runs on, whatever is drawn for it; stream 1 begins a run of 1
        ([0.1, 0.1], [pick[second], pick[second]], [0.99, 0.0], [first, second]),
        ([0.9, 0.9], [pick[second], pick[second]], [0.99, 0.99], [first, best]),
        # both are free again; stream 1 begins a run of 4
        ([0.9, 0.1], [pick[second], pick[first]], [0.99, 0.99], [best, first]),
    ]
    for begin, choice, length, expected in rows:
        action, _ = made.act(obs, Scripted(begin, choice, length), 0)  # type: ignore[arg-type]
        assert action.tolist() == expected


def test_lengths_of_runs_are_spread_evenly() -> None:
    made = policy(epsilon=EpsilonSchedule(1.0, 1.0, 0, repeat=3), layout=QLayout(4, (3,), 1000), spec=WIDE)
    made.assign_streams(0, 1, 1)
    rng, obs = np.random.default_rng(3), np.zeros((1, 4), np.float32)
    actions = np.array([made.act(obs, rng, 0)[0][0] for _ in range(6000)])
    lengths = np.diff(np.flatnonzero(np.diff(actions)))  # of 1000 actions, neighbours hardly ever agree
    share = np.bincount(lengths, minlength=4)[1:4] / len(lengths)
    assert share == pytest.approx([1 / 3] * 3, abs=0.04)


def test_act_wants_one_row_per_stream() -> None:
    with pytest.raises(ValueError, match="obs must have 1 rows, one per assigned stream, got 2"):
        policy().act(np.zeros((2, 4), np.float32), np.random.default_rng(0), 0)


def trained(start: int = 0) -> TrainedPolicy:
    spec = EnvSpec("test", (4,), "float32", DiscreteAction(3, start))
    made = policy(spec=spec, epsilon=EpsilonSchedule(1.0, 0.5, 10))
    weights = np.random.default_rng(0).normal(size=made.weight_count).astype(np.float32)
    return TrainedPolicy(spec, made, weights, np.random.default_rng(0))


def test_predict_takes_one_observation_or_a_batch() -> None:
    model, obs = trained(), np.random.default_rng(4).normal(size=(5, 4))
    batch, state = model.predict(obs)
    assert state is None and batch.shape == (5,) and batch.dtype == np.int64
    assert (batch == model.policy.greedy(obs.astype(np.float32))).all()
    for row, action in zip(obs, batch, strict=True):
        single, state = model.predict(row, state=None, episode_start=np.array([True]), deterministic=True)
        assert np.shape(single) == () and single == action and state is None
    with pytest.raises(ValueError, match=r"obs must have shape \(4,\) or \(B, 4\), got \(5,\)"):
        model.predict(np.zeros(5))
    with pytest.raises(ValueError, match="rows of obs must have one shape, got rows of different shapes"):
        model.predict([[0.1, 0.2, 0.3, 0.4], [1.0]])
    with pytest.raises(ValueError, match="obs must hold numbers, got text: 'high'"):
        model.predict("high")
    with pytest.raises(
        ValueError, match=r"got a pair as env.reset\(\) returns it: obs, info = env.reset\(\)"
    ):
        model.predict((np.zeros(4), {}))
    with pytest.raises(ValueError, match=r"obs must be an array of shape \(4,\), got a dict of position$"):
        model.predict({"position": np.zeros(4)})


@pytest.mark.parametrize(
    ("obs", "text"),
    [
        (np.array([0.0, np.nan, 0.0, 0.0]), "obs must be finite, got nan among its values"),
        (np.array([0.0, 1.0, -np.inf, 0.0], np.float32), "obs must be finite, got -inf among its values"),
        (np.zeros(4, complex), "obs must hold real numbers, got complex128"),
        (np.array([0.0, 1, 2.0, 3], object), "obs must hold real numbers, got object"),
    ],
)
def test_predict_refuses_values_that_say_nothing(obs: np.ndarray, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        trained().predict(obs)


def test_predict_returns_actions_as_the_environment_counts_them() -> None:
    obs = np.random.default_rng(4).normal(size=(5, 4))
    assert (trained(start=-7).predict(obs)[0] == trained().predict(obs)[0] - 7).all()


def test_predict_explores_only_when_asked() -> None:
    model, obs = trained(), np.zeros((4000, 4), np.float32)
    greedy = model.predict(obs[:1])[0][0]
    assert (model.predict(obs)[0] == greedy).all()
    share = (model.predict(obs, deterministic=False)[0] == greedy).mean()
    assert share == pytest.approx(1 - 0.5 * 2 / 3, abs=0.04), "the rate at the end of the schedule"


def test_layout_must_fit_the_observation() -> None:
    with pytest.raises(ValueError, match=r"layout\.inputs must be 4, the values of one observation, got 5"):
        QPolicy(SPEC, QLayout(5, (4,), 3))


def test_acting_never_imports_torch() -> None:
    code = (
        "import sys, numpy as np\n"
        "from asyncrl.algorithms import DQN\n"
        "from asyncrl.interfaces import DiscreteAction, EnvSpec\n"
        "policy = DQN().make_policy(EnvSpec('x', (4,), 'float32', DiscreteAction(2)))\n"
        "policy.act(np.zeros((1, 4), np.float32), np.random.default_rng(0), 0)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECONDS)


def test_atoms_are_read_as_quantiles_or_as_logits_over_a_support() -> None:
    layout = QLayout(4, (6,), 2, atoms=3)
    weights = np.zeros(layout.weight_count, np.float32)
    bias = weights[-6:]  # a view: the head's biases only
    bias[:] = np.log([0.5, 0.25, 0.25, 0.1, 0.1, 0.8])
    support = np.array([-1.0, 0.0, 2.0], np.float32)
    obs = np.ones((2, 4), np.float32)
    logits, quantiles = QPolicy(SPEC2, layout, support=support), QPolicy(SPEC2, layout)
    for made in (logits, quantiles):
        made.load_weights(weights)
    np.testing.assert_allclose(logits.q_values(obs), [[-0.5 + 0.5, -0.1 + 1.6]] * 2, rtol=1e-5, atol=1e-6)
    means = bias.reshape(2, 3).mean(axis=1)
    np.testing.assert_allclose(quantiles.q_values(obs), [means] * 2, rtol=1e-5)
    bias *= 1000  # logits may be large
    logits.load_weights(weights)
    with np.errstate(all="raise"):  # as an environment may have set it
        assert np.isfinite(logits.q_values(obs)).all()


def test_dueling_atoms_are_combined_before_they_are_read() -> None:
    layout = QLayout(4, (1,), 2, dueling=True, atoms=2)
    weights = np.zeros(layout.weight_count, np.float32)
    weights[-6:] = [1.0, 2.0, 3.0, 5.0, 1.0, 1.0]  # V, A(0), A(1), an atom each
    made = QPolicy(SPEC2, layout)
    made.load_weights(weights)
    # atom 0: 1 + (3, 1) - 2 = (2, 0); atom 1: 2 + (5, 1) - 3 = (4, 0)
    np.testing.assert_allclose(made.q_values(np.ones((1, 4), np.float32)), [[3.0, 0.0]])


@pytest.mark.parametrize(
    ("name", "epsilon"), [("dqn", True), ("c51", True), ("rainbow", False), ("ppo", False), ("impala", False)]
)
def test_an_exploration_rate_is_that_of_policies_with_epsilon(name: str, epsilon: bool) -> None:
    assert has_epsilon(ALGORITHMS[name]().make_policy(SPEC)) is epsilon
