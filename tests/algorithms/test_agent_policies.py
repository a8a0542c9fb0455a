"""Updates of several policies: each is that of its policy alone, trained on its own agents' streams."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from segment_rig import acted, iterate, record, weights_of

from asyncrl.acting.agent_policies import make_policy
from asyncrl.algorithms.agent_policies import check_agents, make_updater, row_fields, segment_of
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import RESET, Agent, AgentPolicy, BoxAction, DiscreteAction, EnvSpec, Segment

OWN = {
    "few": EnvSpec("own", (2,), "float32", DiscreteAction(3), agents=(Agent("b"),)),
    "many": EnvSpec("own", (4,), "float32", DiscreteAction(3), agents=(Agent("a"), Agent("c"))),
}
SPEC = EnvSpec(
    "three",
    (4,),
    "float32",
    DiscreteAction(3),
    agents=(Agent("a"), Agent("b"), Agent("c")),
    policies=(
        AgentPolicy("many", "a|c", (0, 2), OWN["many"]),
        AgentPolicy("few", "b", (1,), OWN["few"]),
    ),
)
"""Three agents; that of the policy `few` sees two values, and the row has four."""
STREAMS = {"many": [0, 2, 3, 5], "few": [1, 4]}
"""Of two environments."""
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {"normalize_observations": True, "normalize_rewards": True, "epochs": 2},
    "ppo-gru": {"recurrent": "gru", "recurrent_size": 8},
    "a2c": {},
    "impala": {},
    "pqn": {},
}


def segments_of(algorithm: Any, weights: np.ndarray, seed: int = 0) -> list[Segment]:
    """Segments of two rings with two environments each, acted by all policies."""
    found = []
    whole = replace(SPEC, policies=())
    lone = record(algorithm.name)
    for ring in range(2):
        segment = acted(
            lone, whole, weights_of(lone.make_updater(whole, "cpu", 0)), seed=seed + ring, envs=2, ring=ring
        )
        policy = make_policy(algorithm, SPEC)
        policy.load_weights(weights)
        rows = segment.num_rows
        policy.assign_streams(0, 6, 6)
        rng, drawn = np.random.default_rng(ring), []
        for t in range(rows):
            drawn.append(policy.act(segment.obs[:, t], rng, 0))
        segment.action = np.stack([action for action, _ in drawn], axis=1)
        segment.extras = {
            name: np.stack([extras[name] for _, extras in drawn], axis=1) for name in drawn[0][1]
        }
        segment.num_agents = 3
        found.append(segment)
    return found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_policy_learns_as_if_it_were_alone(name: str) -> None:
    """Bitwise: the twin is the algorithm's own updater, given the streams of the policy's agents by hand."""
    algorithm = record(name.partition("-")[0], **ALGORITHMS[name])
    core: Any = make_updater(algorithm, SPEC, "cpu", 5)
    seeds = np.random.SeedSequence(5).generate_state(2).tolist()
    alone = [
        algorithm.make_updater(p.spec, "cpu", seed) for p, seed in zip(SPEC.policies, seeds, strict=True)
    ]
    before = weights_of(core)
    assert core.weight_count == sum(twin.weight_count for twin in alone)
    for iteration in range(2):
        segments = segments_of(algorithm, weights_of(core), 10 * iteration)
        steps = iterate(core, segments, progress=0.25)
        lone_steps = 0
        for twin, policy in zip(alone, SPEC.policies, strict=True):
            values = policy.spec.observation_shape[0]
            streams = STREAMS[policy.name]
            own = [
                replace(
                    s,
                    obs=s.obs[streams][..., :values].copy(),
                    last_obs=s.last_obs[streams][..., :values].copy(),
                    action=s.action[streams],
                    reward=s.reward[streams],
                    flags=s.flags[streams],
                    extras={key: rows[streams] for key, rows in s.extras.items()},
                    num_agents=len(policy.members),
                )
                for s in segments
            ]
            lone_steps += iterate(twin, own, progress=0.25)
        assert steps == lone_steps
        np.testing.assert_array_equal(weights_of(core), np.concatenate([weights_of(twin) for twin in alone]))
        assert core.samples == sum(twin.samples for twin in alone)
    assert (weights_of(core) != before).mean() > 0.5
    metrics, own_metrics = core.metrics(), [twin.metrics() for twin in alone]
    assert metrics["train/loss/many"] == own_metrics[0]["train/loss"]
    assert metrics["train/loss"] == pytest.approx(np.mean([each["train/loss"] for each in own_metrics]))


def test_a_policy_whose_agents_take_no_part_makes_no_step() -> None:
    algorithm = record("ppo")
    core: Any = make_updater(algorithm, SPEC, "cpu", 0)
    before, segments = weights_of(core), segments_of(algorithm, weights_of(core))
    for segment in segments:
        segment.flags[STREAMS["few"]] = RESET
    iterate(core, segments)
    count = core.cores[0].weight_count
    after = weights_of(core)
    np.testing.assert_array_equal(after[count:], before[count:])
    assert (after[:count] != before[:count]).any()
    assert not [name for name in core.metrics() if name.startswith("train/loss/few")]


def test_an_iteration_goes_on_after_it_was_saved_between_two_policies() -> None:
    algorithm = record("ppo", epochs=2)
    first: Any = make_updater(algorithm, SPEC, "cpu", 0)
    segments = segments_of(algorithm, weights_of(first))
    first.begin(segments, 0.0)
    steps = 0
    while first.cores[1].samples == 0:  # one step into the second policy's iteration
        assert first.step()
        steps += 1
    assert steps > 2
    second: Any = make_updater(algorithm, SPEC, "cpu", 1)
    second.load_state_dict(first.state_dict())
    while first.step():
        pass
    while second.step():
        pass
    np.testing.assert_array_equal(weights_of(first), weights_of(second))
    with pytest.raises(ValueError, match="policies must be many, few"):
        second.load_state_dict({"policies": {"other": {}}, "unfinished": []})


def test_the_streams_of_a_policy_are_copies_without_padding() -> None:
    algorithm = record("ppo")
    core = make_updater(algorithm, SPEC, "cpu", 0)
    segment = segments_of(algorithm, weights_of(core))[0]
    own = segment_of(segment, SPEC.policies[1])
    assert own.obs.shape == (2, 24, 2) and own.obs.flags.c_contiguous and own.num_agents == 1
    np.testing.assert_array_equal(own.obs, segment.obs[[1, 4], :, :2])
    assert own.weight is segment.weight and not np.shares_memory(own.obs, segment.obs)


def test_what_policies_keep_in_a_row_must_agree() -> None:
    """The latent action of a squashed Gaussian has as many values as the action."""

    def spec_of(policy: AgentPolicy, size: int) -> AgentPolicy:
        action = BoxAction((-1.0,) * size, (1.0,) * size, (size,))
        return replace(policy, spec=replace(policy.spec, action=action))

    policies = (spec_of(SPEC.policies[0], 2), spec_of(SPEC.policies[1], 1))
    spec = replace(SPEC, policies=policies)
    assert [field.name for field in row_fields(record("ppo", squashed=False), spec)] == ["log_prob"]
    with pytest.raises(SpacesDoNotFit, match="The policies many and few of three keep different fields"):
        row_fields(record("ppo", squashed=True), spec)
    with pytest.raises(SpacesDoNotFit):
        check_agents(record("pqn"), spec)
