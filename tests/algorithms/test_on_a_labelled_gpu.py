"""Every algorithm's updates on a labelled GPU: the numbers of the CPU, no mixed devices, and no wait but one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import segment_rig
import torch
from labelled_device import LabelledDevice
from segment_rig import batch_of, iterate
from test_contract import SPECS, filled_batch, weights_of
from test_contract import record as replay_record
from test_recurrent_update import batch_of as recurrent_batch_of
from torch import nn

from asyncrl.algorithms import ALGORITHMS
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec, Leaf, MultiDiscreteAction

UPDATES, UPDATES_OF_A_GRAPH = 3, 6
"""The first one makes the buffers. A CUDA graph is captured by the fourth one, and replayed by those that follow; an
update with a delayed actor has a graph of its own."""
MASK = Leaf(("action_mask",), "values", (3,))
SPECS = SPECS | {
    "frames": EnvSpec("frames", (21, 21), "uint8", DiscreteAction(3)),
    "box_frames": EnvSpec("box_frames", (21, 21), "uint8", BoxAction((-2.0,) * 2, (2.0,) * 2, (2,))),
    "masked": EnvSpec(
        "masked", (7,), "float32", DiscreteAction(3), leaves=(MASK, Leaf(("x",), "values", (4,)))
    ),
    "multi": EnvSpec("multi", (3,), "float32", MultiDiscreteAction((2, 4))),
}


def perceptron(inputs: int, outputs: int) -> nn.Module:
    """A network of the user's own."""
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def normalised(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs))


Q_SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("vector", {"prioritized": True}),
    "uniform": ("shifted", {"prioritized": False, "double": False}),
    "bytes": ("image", {"prioritized": True, "dueling": True}),
    "frames": ("frames", {"frame_stack": 2}),
    "normalised": ("frames", {"normalize_observations": True}),
    "masked": ("masked", {"target_update": "hard", "target_update_interval": 2}),
    "noisy": ("vector", {"noisy": True, "max_grad_norm": None}),
    "noisy frames": ("frames", {"noisy": True}),
    "own": ("vector", {"network": perceptron, "dueling": False, "noisy": False}),
    "bfloat16": ("frames", {"matmul_precision": "bfloat16"}),
    "medium": ("vector", {"matmul_precision": "medium", "reward_scale": 0.1}),
}
GRAPHS = {
    f"graph of {name}": (kind, {**options, "cuda_graph": True})
    for name, (kind, options) in Q_SETTINGS.items()
}
Q_SETTINGS = {name: (kind, {**options, "cuda_graph": False}) for name, (kind, options) in Q_SETTINGS.items()}
BOX_SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("box", {}),
    "prioritized": ("box", {"prioritized": True, "max_grad_norm": 1.0}),
    "bytes": ("image_box", {"policy_delay": 2}),
    "frames": ("box_frames", {}),
    "normalised": ("box", {"normalize_observations": True}),
    "own": ("box", {"network": perceptron}),
    "batch norm": ("box", {"network": normalised}),
    "bfloat16": ("box", {"matmul_precision": "bfloat16"}),
    "two rates": ("box", {"actor_learning_rate": 1e-4, "reward_scale": 0.1}),
}
BOX_ONLY: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "sac": {
        "fixed temperature": ("box", {"ent_coef": 0.2}),
        "single operations": ("box", {"cuda_graph": False, "prioritized": True}),
        "graph of own": ("box", {"cuda_graph": True, "network": perceptron}),
    },
    "ddpg": {"unbounded": ("box", {"bound_targets": False})},
    "td7": {"unbounded": ("box", {"bound_targets": False})},
}
SEGMENT_SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("discrete", {}),
    "bytes": ("image", {}),
    "frames": ("frames", {}),
    "separate trunks": ("frames", {"shared_trunk": False}),
    "multi": ("multi", {"epochs": 2}),
    "squashed": ("box", {}),
    "wide": ("wide", {}),
    "masked": ("masked", {}),
    "own": ("discrete", {"network": perceptron}),
    "gru": ("discrete", {"recurrent": "gru", "recurrent_size": 8}),
    "lstm": ("frames", {"recurrent": "lstm", "recurrent_size": 8}),
}
SEGMENT_ONLY: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "ppo": {
        "clipped values": ("discrete", {"value_clip_range": 0.2, "target_kl": 0.5}),
        "single operations": ("frames", {"cuda_graph": False}),
    },
    "a2c": {"minibatches": ("discrete", {"minibatches": 2, "normalize_advantages": True})},
    "impala": {"past": ("discrete", {"past_segments": 4, "past_per_batch": 1})},
    "pqn": {
        "without a norm": ("discrete", {"layer_norm": False}),
        "normalised": ("discrete", {"normalize_observations": True, "epochs": 2}),
    },
}
SEQUENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("vector", {}),
    "gru": ("vector", {"recurrent": "gru", "prioritized": False, "double": False}),
    "frames": ("frames", {"dueling": True}),
    "bytes": ("image", {"normalize_observations": True}),
    "bfloat16": ("frames", {"matmul_precision": "bfloat16"}),
    "hard": ("vector", {"target_update": "hard", "target_update_interval": 2, "value_rescaling": False}),
}


ALL = {"dqn", "sac", "ppo"}
"""Algorithms that run in every setting of their family; the others in those that reach code of their own."""
SHARED = {
    "noisy",
    "medium",
    "bfloat16",
    "uniform",
    "normalised",
    "two rates",
    "separate trunks",
    "multi",
    "wide",
}
SHARED |= {f"graph of {name}" for name in ("uniform", "bytes", "normalised", "own", "medium", "bfloat16")}

REPRESENTED = {"c51", "qrdqn", "rainbow", "ddpg", "td3bc", "tqc", "a2c", "impala"}
"""Algorithms whose updater's class is DQN's, TD3's, SAC's or PPO's, or adds a loss to it."""
OF_A_CLASS = {"frames", "noisy frames", "bytes", "own", "batch norm", "lstm", "graph of masked"}
OF_A_CLASS |= {f"graph of {name}" for name in ("frames", "noisy", "noisy frames")}
"""Settings of networks and inputs, which no loss sees."""


def settings(name: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Settings of an algorithm, by name: a kind of environment, and options."""
    record = ALGORITHMS[name]
    if record.needs_agents:
        return {"plain": ("vector" if record.update_loop == "joint" else "discrete", {})}
    if record.update_loop == "sequences":
        return SEQUENCES
    if record.update_loop == "segments":
        found, own = SEGMENT_SETTINGS, SEGMENT_ONLY.get(name, {})
        if name == "pqn":
            found = {key: found[key] for key in ("plain", "bytes", "frames", "masked", "own")}
    elif BoxAction in record.action_kinds:
        found, own = BOX_SETTINGS, BOX_ONLY.get(name, {})
        if name == "crossq":  # it refuses images
            found = {setting: kind for setting, kind in found.items() if setting != "frames"}
        if name == "td7":  # it takes no network
            found = {key: found[key] for key in ("plain", "prioritized", "bytes", "normalised", "two rates")}
    else:
        found, own = Q_SETTINGS | GRAPHS, {}
    left_out = set() if name in ALL else SHARED | (OF_A_CLASS if name in REPRESENTED else set())
    return {key: value for key, value in found.items() if key not in left_out} | own


CASES = [(name, setting) for name in sorted(ALGORITHMS) for setting in settings(name)]


def algorithm_of(name: str, setting: str) -> tuple[Any, EnvSpec]:
    """A small algorithm; with a large epsilon, Adam does not enlarge the rounding of gradients near zero."""
    kind, options = settings(name)[setting]
    options = {"hidden_sizes": (8, 8), "adam_eps": 1e-3, "learning_rate": 1e-3, **options}
    if ALGORITHMS[name].update_loop == "segments":
        spec = (segment_rig.SPECS | SPECS)[kind] if kind != "box" else segment_rig.SPECS[kind]
        made = segment_rig.record(name, kind, **{"segment_length": 12, **options})
        return made, segment_rig.spec_of(name, spec)
    small = {"num_atoms": 7, "num_quantiles": 6, "top_quantiles_to_drop_per_critic": 1}
    fields = ALGORITHMS[name].__dataclass_fields__
    options |= {option: value for option, value in small.items() if option in fields}
    return replay_record(name, **options), segment_rig.spec_of(name, SPECS[kind])


@pytest.mark.parametrize(("name", "setting"), CASES)
def test_updates_are_those_of_the_cpu(name: str, setting: str, labelled_device: LabelledDevice) -> None:
    algorithm, spec = algorithm_of(name, setting)
    on_host, on_device = (algorithm.make_updater(spec, device, 3) for device in ("cpu", "cuda"))
    assert on_device.vector.parameters.device == torch.device("cuda:0")
    update = iterate_both if algorithm.update_loop == "segments" else update_both
    update(algorithm, spec, on_host, on_device, labelled_device)
    rough = "bfloat16" in setting
    np.testing.assert_allclose(
        weights_of(on_device), weights_of(on_host), rtol=0.02 if rough else 1e-3, atol=2e-3 if rough else 2e-5
    )
    assert on_device.metrics().keys() == on_host.metrics().keys()
    copy = algorithm.make_updater(spec, "cuda", 4)
    copy.load_state_dict(on_device.state_dict())
    assert np.array_equal(weights_of(copy), weights_of(on_device))


def update_both(algorithm: Any, spec: EnvSpec, on_host: Any, on_device: Any, device: LabelledDevice) -> None:
    spec = algorithm.stacked_spec(spec)
    graph = getattr(algorithm, "cuda_graph", False) is not False
    delay = getattr(algorithm, "policy_delay", 1)
    for number in range(delay * UPDATES_OF_A_GRAPH if graph else UPDATES):
        batch = filled_batch(algorithm, spec, number)
        expected = on_host.update(batch).priorities
        expected = None if expected is None else expected.copy()
        found: list[Any] = []
        waits = device.waits_of(lambda b=batch, f=found: f.append(on_device.update(b).priorities))
        if number:  # the first one makes the buffers
            if algorithm.update_loop in (
                "sequences",
                "joint",
            ):  # staged anew for every batch, in a few small copies
                waits = [wait for wait in waits if not wait.startswith("copy from pageable memory")]
            assert len(waits) == algorithm.prioritized, waits
        if expected is None:
            assert found == [None]
        else:
            np.testing.assert_allclose(
                found[0], expected, rtol=0.05 if "bfloat16" in str(algorithm) else 2e-3, atol=1e-3
            )


def test_cells_leave_the_settings_of_the_process_alone(
    labelled_device: LabelledDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the same time other threads may run convolutions by cuDNN, with settings of the user's."""
    algorithm, spec = algorithm_of("r2d2", "lstm")
    core, changes = algorithm.make_updater(spec, "cuda", 0), list[str]()
    for name in ("enabled", "benchmark", "deterministic"):
        monkeypatch.setattr(torch._C, f"_set_cudnn_{name}", lambda value, name=name: changes.append(name))
    core.update(filled_batch(algorithm, spec))
    assert not changes


def iterate_both(algorithm: Any, spec: EnvSpec, on_host: Any, on_device: Any, device: LabelledDevice) -> None:
    make = batch_of if algorithm.cell is None else recurrent_batch_of
    for number in range(3):
        segments = make(algorithm, spec, on_host, number)
        iterate(on_host, segments)
        iterate(on_device, segments)
