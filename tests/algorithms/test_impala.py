"""IMPALA and A2C in addition to the contract: the loss is the paper's for any acting policy."""

import pickle
from typing import Any

import numpy as np
import pytest
import segment_rig
import torch
from segment_rig import SPECS, Guessing, acted, batch_of, iterate, observations, weights_of
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

from asyncrl.algorithms.a2c import A2C
from asyncrl.algorithms.impala import IMPALA
from asyncrl.algorithms.returns import gae, vtrace
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import RESET, BoxAction, DiscreteAction, EnvSpec, Segment
from asyncrl.options import option_help


def record(name: str, kind: str = "discrete", **overrides: Any) -> Any:
    """Algorithm of the rig, by default with one gradient step per pass."""
    return segment_rig.record(name, kind, **{"minibatches": 1, **overrides})


def module_of(named: dict[str, Tensor]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i in range(len(named) // 2):
        weight = named[f"{i}.weight"]
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": named[f"{i}.bias"]})
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def flat_gradient(net: nn.Sequential) -> Tensor:
    """Gradient of a module's parameters in the order of the flat vector."""
    layers = [m for m in net if isinstance(m, nn.Linear)]
    weights = [m.weight.grad.t() for m in layers[:-1]] + [layers[-1].weight.grad]  # type: ignore[union-attr]
    both = zip(weights, (m.bias.grad for m in layers), strict=True)
    return torch.cat([part.reshape(-1) for pair in both for part in pair])  # type: ignore[union-attr]


def slow_gradient(core: Any, segments: list[Segment], targets_of: Any) -> Tensor:
    """Gradient of the whole loss by autograd through modules, flat in the order of the core's parameters.

    `targets_of(log_ratio, reward, value, last_value, flags)` gives value targets and advantages.
    """
    config, layout, state = core.config, core.nets.layout, core.nets.state_dict()
    policy, value_net = module_of(state["policy"]), module_of(state["value"])
    log_std = state["log_std"].clone().requires_grad_()
    kept, policy_terms, value_terms, entropies = [], [], [], []
    for segment in segments:
        obs = torch.from_numpy(segment.obs.reshape(*segment.reward.shape, -1).astype(np.float32))
        out, value = policy(obs), value_net(obs).squeeze(-1)
        last = value_net(torch.from_numpy(segment.last_obs.reshape(segment.num_envs, -1))).squeeze(-1)
        taken = torch.from_numpy(segment.extras.get("latent", segment.action))
        if layout.gaussian:
            made: Any = Independent(Normal(out, log_std.exp()), 1)
            taken = taken.view(out.shape)
            log_prob = made.log_prob(taken)
            if layout.squashed:
                log_prob = log_prob - torch.log1p(-(taken.double().tanh() ** 2)).sum(-1).float()
        else:
            made = Categorical(logits=out)
            log_prob = made.log_prob(taken)
        ratio = log_prob.detach().numpy() - segment.extras["log_prob"]
        v, last = value.detach().numpy(), last.detach().numpy()
        target, advantage = targets_of(ratio, segment.reward, v, last, segment.flags)
        weight = torch.from_numpy(np.where(segment.flags & RESET, 0, segment.weight).astype(np.float32))
        kept.append((weight, torch.from_numpy(advantage), (segment.flags & RESET) == 0))
        policy_terms.append(log_prob)
        value_terms.append((value - torch.from_numpy(target)).square())
        entropies.append(made.entropy())
    count = sum(int(counts.sum()) for _, _, counts in kept)
    trained = np.concatenate([a.numpy()[counts] for _, a, counts in kept])
    mean, std = (
        (float(trained.mean()), float(trained.std()) + 1e-8) if config.normalize_advantages else (0.0, 1.0)
    )
    loss = torch.zeros(())
    for (weight, a, _), log_prob, error, entropy in zip(
        kept, policy_terms, value_terms, entropies, strict=True
    ):
        each = -(a - mean) / std * log_prob + config.vf_coef * error
        loss = loss + (weight * (each - config.ent_coef * entropy)).sum() / count
    loss.backward()

    std_part = [log_std.grad] if log_std.grad is not None else [torch.zeros_like(log_std)]
    return torch.cat([flat_gradient(policy), *std_part, flat_gradient(value_net)])  # type: ignore[list-item]


@pytest.mark.parametrize("by_kernel", [True, False])
@pytest.mark.parametrize("name", ["ppo", "impala", "a2c"])
def test_mean_actions_beyond_the_bounds_are_penalised(name: str, by_kernel: bool) -> None:
    """The gradient differs by that of the mean of c |(mu - clip(mu)) / half|^2 by autograd."""
    spec = EnvSpec("box", (5,), "float32", BoxAction((-1.0, -3.0), (1.0, 1.0), (2,)))
    low, high, half = torch.tensor([-1.0, -3.0]), torch.tensor([1.0, 1.0]), torch.tensor([1.0, 2.0])
    options: dict[str, Any] = {"epochs": 1, "max_grad_norm": None, "normalize_observations": False}
    options |= {"minibatch_size": 10_000} if name == "ppo" else {"minibatches": 1}
    gradients = []
    for coefficient in (0.0, 0.7):
        algorithm = segment_rig.record(name, "box", squashed=False, bounds_coef=coefficient, **options)
        core = algorithm.make_updater(spec, "cpu", 0)
        state = core.nets.state_dict()
        state["policy"]["2.bias"] = torch.tensor([1.002, -0.5])  # of the last layer
        core.nets.load_state_dict(state)
        policy = module_of(core.nets.state_dict()["policy"])
        segments = batch_of(algorithm, spec, core)
        core.begin(segments, 0.0)
        batch = core._batch_of(core._rollout, core._parts[0][0].rows.size)
        batch.kernel = batch.kernel if by_kernel else None
        core.step()
        gradients.append(core.nets.gradient[: sum(p.numel() for p in policy.parameters())].clone())
    trained = [torch.from_numpy(s.obs[(s.flags & RESET) == 0]) for s in segments]
    mean = policy(torch.cat(trained))
    beyond = (mean - mean.clamp(low, high)) / half
    assert 0.2 < float((beyond[:, 0] != 0).float().mean()) < 0.8 and not beyond[:, 1].any()
    (0.7 * beyond.square().sum(dim=1).mean()).backward()
    torch.testing.assert_close(gradients[1] - gradients[0], flat_gradient(policy), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("kind", "squashed"), [("wide", False), ("box", True), ("discrete", False)])
def test_actions_that_are_not_clipped_have_no_penalty(kind: str, squashed: bool) -> None:
    weights = []
    for coefficient in (0.0, 10.0):
        algorithm = record("impala", kind, squashed=squashed, bounds_coef=coefficient, learning_rate=0.5)
        core = algorithm.make_updater(SPECS[kind], "cpu", 0)
        for seed in range(3):
            iterate(core, batch_of(algorithm, SPECS[kind], core, seed))
        weights.append(weights_of(core))
    assert np.array_equal(*weights)


def stale_batch(algorithm: Any, spec: EnvSpec, core: Any) -> list[Segment]:
    """Segments of an older policy, with a staleness weight per row."""
    segments = batch_of(algorithm, spec, core)
    for seed in range(6):
        iterate(core, batch_of(algorithm, spec, core, seed))
    for segment in segments:
        segment.weight[:] = np.linspace(0.5, 1.5, segment.num_rows)
    return segments


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("kind", ["discrete", "box", "wide"])
def test_gradient_is_that_of_the_papers_loss(kind: str, normalized: bool) -> None:
    options = {
        "normalize_observations": False,
        "normalize_rewards": False,
        "learning_rate": 2e-2,
        "max_grad_norm": None,
    }
    algorithm = record(
        "impala", kind, rho_bar=0.9, c_bar=0.8, pg_rho_bar=1.1, gae_lambda=0.9, ent_coef=0.05,
        normalize_advantages=normalized, **options,
    )  # fmt: skip
    core = algorithm.make_updater(SPECS[kind], "cpu", 0)
    segments = stale_batch(algorithm, SPECS[kind], core)
    ratios: list[np.ndarray] = []

    def targets_of(ratio, *rest):  # type: ignore[no-untyped-def]
        ratios.append(np.exp(ratio))
        return vtrace(ratio, *rest, algorithm.discount, 0.9, (0.9, 0.8, 1.1))

    expected = slow_gradient(core, segments, targets_of)
    iterate(core, segments)
    torch.testing.assert_close(core.nets.gradient, expected, rtol=2e-3, atol=2e-5)
    for bar in (0.8, 0.9, 1.1):
        assert 0.05 < np.mean([r > bar for r in ratios]) < 0.95, "every truncation is crossed"


def test_a2c_is_the_policy_gradient_of_gae_whoever_acted() -> None:
    algorithm = record("a2c", gae_lambda=0.7, ent_coef=0.01, learning_rate=2e-2, max_grad_norm=None)
    assert isinstance(algorithm, A2C) and algorithm.discipline == "synchronous"
    core = algorithm.make_updater(SPECS["discrete"], "cpu", 0)
    segments = stale_batch(algorithm, SPECS["discrete"], core)
    expected = slow_gradient(core, segments, lambda _, *rest: gae(*rest, algorithm.discount, 0.7)[::-1])
    iterate(core, segments)
    torch.testing.assert_close(core.nets.gradient, expected, rtol=2e-3, atol=2e-5)


def test_what_the_newest_policy_did_is_not_corrected() -> None:
    spec = SPECS["discrete"]
    cores = [
        record("impala", correction=c, learning_rate=1e-2).make_updater(spec, "cpu", 0)
        for c in ("vtrace", "none")
    ]
    segments = batch_of(cores[0].config, spec, cores[0])
    for core in cores:
        iterate(core, segments)
    torch.testing.assert_close(cores[0].nets.gradient, cores[1].nets.gradient, rtol=1e-4, atol=1e-6)
    segments = stale_batch(cores[0].config, spec, cores[0])
    cores[1].load_state_dict(cores[0].state_dict())
    for core in cores:
        iterate(core, segments)
    assert (cores[0].nets.gradient - cores[1].nets.gradient).abs().max() > 1e-3


def test_targets_are_made_anew_for_every_gradient_step() -> None:
    """Two passes over a batch equal two batches of one pass each; so does a pass repeated for lack of new segments."""
    spec = SPECS["discrete"]
    twice, once, again = (record("impala", epochs=e, reuse_epochs=r) for e, r in ((2, 0), (1, 0), (1, 1)))
    cores = [algorithm.make_updater(spec, "cpu", 0) for algorithm in (twice, once, again)]
    segments = batch_of(once, spec, cores[0])
    assert iterate(cores[0], segments) == 2
    iterate(cores[1], segments)
    iterate(cores[1], segments)
    iterate(cores[2], segments)
    assert cores[2].reuse() and not cores[2].step() and not cores[2].reuse()
    for core in cores[1:]:
        assert (weights_of(core) == weights_of(cores[0])).all() and core.samples == cores[0].samples


@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_a_value_epoch_moves_the_value_network_alone(kind: str) -> None:
    """Against Adam of torch with one state for each network."""
    algorithm = record(
        "a2c", kind, value_epochs=2, ent_coef=0.01, gae_lambda=1.0, learning_rate=2e-2, max_grad_norm=None
    )
    core = algorithm.make_updater(SPECS[kind], "cpu", 0)
    segments = batch_of(algorithm, SPECS[kind], core)
    start = core.nets.layout.statistics_start
    twins = [part.clone() for part in (core.nets.parameters[:start], core.nets.parameters[start:])]
    adams = [torch.optim.Adam([twin], lr=2e-2, eps=algorithm.adam_eps) for twin in twins]
    core.begin(segments, 0.0)
    for values_only in (True, True, False):
        found = slow_gradient(core, segments, lambda _, *rest: gae(*rest, 0.99, 1.0)[::-1])
        twins[0].grad, twins[1].grad = found[:start], found[start:]
        for adam in adams[values_only:]:
            adam.step()
        assert core.step() == values_only
        torch.testing.assert_close(core.nets.parameters, torch.cat(twins), rtol=1e-4, atol=2e-5)
    assert algorithm.samples_per_insert == 3.0 and core.samples == 3 * sum(s.steps for s in segments)


def test_a_value_epoch_of_a_shared_trunk_moves_its_value_head_alone() -> None:
    algorithm = record("impala", value_epochs=1, recurrent="gru", recurrent_size=8)
    core = algorithm.make_updater(SPECS["discrete"], "cpu", 0)
    before, start = core.nets.parameters.clone(), core.nets.layout.statistics_start
    core.begin(batch_of(algorithm, SPECS["discrete"], core), 0.0)
    assert core.step() and torch.equal(core.nets.parameters[:start], before[:start])
    assert (core.nets.parameters[start:] != before[start:]).all() and before[start:].numel() == 9
    assert not core.step() and (core.nets.parameters[:start] != before[:start]).any()


@pytest.mark.parametrize(("minibatches", "steps"), [(1, 1), (4, 4), (100, 6)])
def test_a_pass_uses_every_stream_once(minibatches: int, steps: int) -> None:
    algorithm = record("impala", minibatches=minibatches)
    core = algorithm.make_updater(SPECS["discrete"], "cpu", 0)
    segments = batch_of(algorithm, SPECS["discrete"], core)  # 2 of 3 streams
    assert iterate(core, segments) == steps
    assert core.samples == sum(segment.steps for segment in segments)
    assert np.isfinite([*core.metrics().values()]).all()


@pytest.mark.parametrize("passes", [{"epochs": 2}, {"value_epochs": 1}, {"value_epochs": 2}])
def test_minibatches_go_on_where_they_stopped(passes: dict[str, int]) -> None:
    algorithm, spec = record("impala", "wide", minibatches=3, **passes), SPECS["wide"]
    core, other = (algorithm.make_updater(spec, "cpu", seed) for seed in (0, 9))
    iterate(core, batch_of(algorithm, spec, core, 1))
    core.begin(batch_of(algorithm, spec, core, 2), 0.0)
    for _ in range(4):
        core.step()
    other.load_state_dict(pickle.loads(pickle.dumps(core.state_dict())))
    while core.step():
        assert other.step()
    assert not other.step() and (weights_of(core) == weights_of(other)).all()
    with pytest.raises(RuntimeError, match="call begin first"):
        other.step()


def test_batches_may_grow_by_segments_of_the_past() -> None:
    algorithm, spec = record("impala", past_segments=4, past_per_batch=2), SPECS["discrete"]
    core = algorithm.make_updater(spec, "cpu", 0)
    for count in (1, 2, 3, 3, 1):
        segments = batch_of(algorithm, spec, core, seed=count, count=count)
        for segment in segments[1:]:
            segment.fresh = False
        before = core.samples
        iterate(core, segments)
        assert core.samples - before == sum(segment.steps for segment in segments)
    iterate(core, batch_of(record("impala", segment_length=10), spec, core))  # nor is T taken for granted


def test_rows_of_weight_zero_teach_nothing() -> None:
    algorithm, spec = record("impala"), SPECS["discrete"]
    core, other = (algorithm.make_updater(spec, "cpu", 0) for _ in range(2))
    segments = batch_of(algorithm, spec, core)
    for segment in segments:
        segment.flags[:] = 0
        segment.weight[::2] = 0.0
    iterate(core, segments)
    gradient = core.nets.gradient.clone()
    for segment in segments:
        segment.extras["log_prob"][:, 0] = -9.0  # nothing is carried into a row that stands first
    iterate(other, segments)
    assert torch.equal(gradient, other.nets.gradient) and gradient.abs().max() > 0
    for segment in segments:
        segment.weight[:] = 0.0
    iterate(core, segments)
    assert not core.nets.gradient.any()


@pytest.mark.parametrize("name", ["impala", "a2c"])
def test_learns_what_is_right_from_old_policies(name: str) -> None:
    """A choice that is the larger input is rewarded; the acting weights are two batches old."""
    spec = EnvSpec("guess", (2,), "float32", DiscreteAction(2))
    env = Guessing(
        spec,
        lambda obs, action: (obs.argmax(axis=1) == action).astype(np.float32),
        lambda shape, rng: rng.normal(size=(*shape, 2)).astype(np.float32),
    )
    algorithm = record(name, gamma=0.5, learning_rate=1e-2, segment_length=16)
    core, policy = algorithm.make_updater(spec, "cpu", 0), algorithm.make_policy(spec)
    rng, published = np.random.default_rng(0), [weights_of(core)] * 3
    for _ in range(60):
        policy.load_weights(published[-3])
        iterate(core, [env.segment(policy, 16, rng)])
        published.append(weights_of(core))
    policy.load_weights(published[-1])
    assert env.greedy_reward(policy) > 0.9


def test_observations_behind_a_segment_are_seen() -> None:
    """The value of `last_obs` affects the targets of rows that bootstrap from it, and no others."""
    algorithm, spec = record("impala", gae_lambda=1.0), SPECS["discrete"]
    core = algorithm.make_updater(spec, "cpu", 0)
    segment = acted(algorithm, spec, weights_of(core))
    segment.flags[:] = 0
    gradients = []
    for seed in (1, 2):
        fresh = algorithm.make_updater(spec, "cpu", 0)
        segment.last_obs[:] = observations(spec, (segment.num_envs,), np.random.default_rng(seed))
        iterate(fresh, [segment])
        gradients.append(fresh.nets.gradient.clone())
    assert (gradients[0] - gradients[1]).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"past_per_batch": 1}, "past_per_batch must be at most past_segments"),
        ({"past_segments": 4}, "past_per_batch must be at least 1 where past_segments is set, got 0"),
        ({"past_newest": 0.5}, "past_newest must be None without past_segments, got 0.5"),
        (
            {"past_segments": 4, "past_per_batch": 1, "past_newest": 1.5},
            "past_newest must be from 0 to 1",
        ),
        ({"rho_bar": 0.0}, "rho_bar must be greater than 0"),
        ({"gae_lambda": 1.5}, "gae_lambda must be from 0 to 1"),
        ({"value_epochs": -1}, "value_epochs must be at least 0"),
        ({"minibatches": 0}, "minibatches must be at least 1"),
        ({"hidden_sizes": ()}, "hidden_sizes must name"),
        ({"initial_log_std": float("inf")}, "initial_log_std must be finite"),
        ({"correction": "retrace"}, "correction must be"),
    ],
)
@pytest.mark.parametrize("made", [IMPALA, A2C])
def test_what_is_out_of_range_is_refused(made: type[IMPALA], options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        made(**options)


def test_squashed_needs_bounds() -> None:
    spec = EnvSpec("wide", (2,), "float32", BoxAction((-np.inf,), (np.inf,), (1,)))
    IMPALA().check(spec)
    with pytest.raises(SpacesDoNotFit, match=r"a2c\.squashed needs finite bounds"):
        A2C(squashed=True).check(spec)


def test_a2c_has_all_options_of_impala_with_other_defaults() -> None:
    ours, theirs = option_help(A2C), option_help(IMPALA)
    assert [*ours] == [*theirs]
    others = {name for name in ours if ours[name] != theirs[name]}
    assert others == {"correction", "discipline", "segment_length", "minibatches"}
    assert A2C.preset("unknown", gamma=0.5) == A2C(gamma=0.5) and A2C.preset_options("unknown") == {}
