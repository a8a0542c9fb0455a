"""Action masks in the rollouts of on-policy algorithms: where they lie, and what they leave alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from segment_rig import batch_of, iterate, record, weights_of
from torch import nn

from asyncrl.interfaces import DiscreteAction, EnvSpec, Leaf

MASKED = EnvSpec(
    "masked",
    (5,),
    "float32",
    DiscreteAction(3),
    leaves=(Leaf(("action_mask",), "values", (3,)), Leaf(("x",), "values", (2,))),
)
for_all = pytest.mark.parametrize("name", ["ppo", "impala", "pqn"])


@for_all
def test_a_rollout_lies_on_the_device_of_the_indices_that_select_its_rows(name: str) -> None:
    rollout = record(name).make_updater(MASKED, "meta", 0)._rollout_of(3, 24)
    kinds = {
        key: value.device.type for key, value in vars(rollout).items() if isinstance(value, torch.Tensor)
    }
    public = {key: kind for key, kind in kinds.items() if not key.startswith("_")}
    assert public == dict.fromkeys(("x", "action", "mask", "columns"), "meta")


class Normalised(nn.Module):
    """Network whose backward pass reads its own outputs."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).log_softmax(dim=1)


@for_all
def test_masks_leave_alone_the_outputs_that_a_backward_pass_reads(name: str) -> None:
    algorithm = record(name, network=Normalised)
    core = algorithm.make_updater(MASKED, "cpu", 0)
    before = weights_of(core)
    iterate(core, batch_of(algorithm, MASKED, core))
    assert not np.array_equal(weights_of(core), before)
