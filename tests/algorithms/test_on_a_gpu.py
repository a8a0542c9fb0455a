"""Every algorithm's updates on a real GPU; skipped without one. Whole runs are in `test_gpu_run`.

`test_on_a_labelled_gpu` says more of each update (waits, mixed devices) and runs everywhere; a real GPU adds what it
does not model: kernels of its own, asynchrony, graphs, pinned memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from segment_rig import batch_of, iterate
from test_contract import filled_batch, weights_of
from test_on_a_labelled_gpu import CASES, algorithm_of
from test_recurrent_update import batch_of as recurrent_batch_of

from asyncrl.interfaces import EnvSpec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
UPDATES = 6
"""More than the three calls before a CUDA graph is captured, and the one that captures it."""


def draw_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on draw the numbers of every generator on the CPU, from one seed: a GPU's generator has others."""
    own: dict[int, tuple[Any, torch.Generator]] = {}
    for name in ("normal_", "uniform_"):
        fill = getattr(torch.Tensor, name)

        def drawn(values: torch.Tensor, *args: Any, generator: Any = None, fill: Any = fill) -> torch.Tensor:
            _, host = own.setdefault(id(generator), (generator, torch.Generator().manual_seed(0)))
            return values.copy_(fill(torch.empty(values.shape), *args, generator=host))

        monkeypatch.setattr(torch.Tensor, name, drawn)


@pytest.mark.parametrize(("name", "setting"), CASES)
def test_updates_are_those_of_the_cpu(name: str, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, spec = algorithm_of(name, setting)
    on_host, on_device = (algorithm.make_updater(spec, device, 3) for device in ("cpu", "cuda"))
    assert on_device.vector.parameters.is_cuda
    begun = weights_of(on_host).copy()
    np.testing.assert_allclose(weights_of(on_device), begun, rtol=1e-5, atol=1e-7)
    draw_on_the_host(monkeypatch)
    if algorithm.update_loop == "segments":
        make = batch_of if algorithm.cell is None else recurrent_batch_of
        for number in range(3):
            segments = make(algorithm, spec, on_host, number)
            iterate(on_host, segments)
            iterate(on_device, segments)
    else:
        update_both(algorithm, spec, on_host, on_device, rough="bfloat16" in setting)
    host, device = weights_of(on_host), weights_of(on_device)
    # Convolutions of cuDNN and products of `medium` and `bfloat16` round as the processor's do not.
    tolerance = 0.2 if setting.endswith(("bfloat16", "medium")) else 0.05 if setting == "frames" else 0.02
    assert 0 < np.linalg.norm(device - host) < tolerance * np.linalg.norm(host - begun)
    assert on_device.metrics().keys() == on_host.metrics().keys()
    copy = algorithm.make_updater(spec, "cuda", 4)
    copy.load_state_dict(on_device.state_dict())
    assert np.array_equal(weights_of(copy), device)


def update_both(algorithm: Any, spec: EnvSpec, on_host: Any, on_device: Any, rough: bool) -> None:
    for number in range(UPDATES):
        batch = filled_batch(algorithm, algorithm.stacked_spec(spec), number)
        expected = on_host.update(batch).priorities
        expected = None if expected is None else expected.copy()
        found = on_device.update(batch).priorities
        assert (found is None) == (expected is None)
        if expected is not None:
            np.testing.assert_allclose(
                found, expected, rtol=0.1 if rough else 0.01, atol=0.05 if rough else 5e-3
            )
