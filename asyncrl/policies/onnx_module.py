"""A policy's greedy action as a torch module, from the environment's observation to the environment's action."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.acting.box import BoxPolicy
from asyncrl.acting.layouts import LAYER_NORM_EPS
from asyncrl.acting.modules import MAKING, RecurrentFactory, bind, flat_size
from asyncrl.acting.network import OBSERVATION_CLIP
from asyncrl.acting.policies import QPolicy, float32_bounds
from asyncrl.acting.stochastic import StochasticPolicy
from asyncrl.algorithms.q_learning import by_action
from asyncrl.envs.observations import FORBIDDEN, MASK_KEY, mask_of
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec, Leaf, MultiDiscreteAction


class Perceptron(nn.Module):
    """The perceptron of a flat block, `[R, inputs]` to `[R, outputs]`; see `acting.layouts`.

    Args:
        flat: the block; it may be longer than the parameters.
        sizes: widths from the input to the head.
        relu: ReLU between the layers, else tanh.
        layer_norm: the hidden layers are normalised.
    """

    def __init__(self, flat: Tensor, sizes: tuple[int, ...], relu: bool, layer_norm: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        start, last = 0, len(sizes) - 2
        for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
            layer, stop = nn.Linear(inputs, outputs), start + inputs * outputs
            weight = flat[start:stop]
            layer.weight.data = weight.view(outputs, inputs) if i == last else weight.view(inputs, outputs).T
            layer.bias.data = flat[stop : stop + outputs]
            layers.append(layer)
            start = stop + outputs
            if i == last:
                break
            if layer_norm:
                norm, stop = nn.LayerNorm(outputs, LAYER_NORM_EPS), start + outputs
                norm.weight.data, norm.bias.data = flat[start:stop], flat[stop : stop + outputs]
                layers.append(norm)
                start = stop + outputs
            layers.append(nn.ReLU() if relu else nn.Tanh())
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Values of the head."""
        out: Tensor = self.layers(x)
        return out


class GreedyModule(nn.Module):
    """The greedy action of a policy with its present weights, of which it holds a copy.

    It is called with the batch `[R, ...]` of the observation, or of each leaf of a structured one in their order, and
    with the state `[R, state_size]` of a recurrent policy. It returns the actions `[R, *action_shape]` in the
    environment's dtype, and the next state of a recurrent policy.
    """

    def __init__(self, policy: QPolicy | BoxPolicy | StochasticPolicy, spec: EnvSpec) -> None:
        super().__init__()
        layout: Any = policy.layout
        flat = torch.from_numpy(policy.weights.copy())
        cell, relu = getattr(layout, "cell", None), getattr(layout, "activation", "relu") == "relu"
        factory = (
            RecurrentFactory(cell, layout.sizes, relu, layout.network) if cell is not None else layout.network
        )
        if factory is None:
            self.network: nn.Module = Perceptron(flat, layout.sizes, relu, layout.layer_norm)
        else:
            with MAKING:
                self.network = factory(layout.inputs, layout.sizes[-1])
            bind([self.network], flat[: flat_size([self.network])])
        self._policy, self._spec = policy, spec
        self._statistics = None
        if layout.statistics is not None:
            self._statistics = flat[layout.obs_mean], flat[layout.obs_scale]
        self._recurrent = cell is not None
        self._masked = mask_of(spec) is not None
        self.eval().requires_grad_(False)

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """See the class."""
        observation, state = (inputs[:-1], inputs[-1:]) if self._recurrent else (inputs, ())
        out = self.network(self._rows(observation), *state)
        out, after = out if self._recurrent else (out, None)
        action = self._greedy(out, self._mask(observation) if self._masked else None)
        shape = getattr(self._spec.action, "space_shape", ()) or self._spec.action.shape
        action = action.reshape(-1, *shape).to(_torch_dtype(self._spec.action.space_dtype))
        return action if after is None else (action, after)

    def _rows(self, observation: tuple[Tensor, ...]) -> Tensor:
        """Inputs `[R, inputs]` of the network; see `NetworkInputs`."""
        spec = self._spec
        if spec.leaves:
            leaves = zip(observation, spec.leaves, strict=True)
            parts = [_leaf_values(part, leaf) for part, leaf in leaves]  # [R, k, values] each
            stacks = [part.reshape(-1, self._policy.frame_stack, part.shape[-1]) for part in parts]
            x = torch.cat(stacks, dim=2)
            x = x.flatten(1)
        else:
            values = self._policy.frame_stack * math.prod(spec.observation_shape)
            x = observation[0].reshape(-1, values).float()
        if self._statistics is not None:
            mean, scale = self._statistics
            return ((x - mean) * scale).clamp(-OBSERVATION_CLIP, OBSERVATION_CLIP)
        plain_bytes = spec.observation_dtype == "uint8" and not spec.leaves
        return x * spec.byte_factor if plain_bytes and spec.byte_factor != 1 else x

    def _mask(self, observation: tuple[Tensor, ...]) -> Tensor:
        """`[R, A]`, whether each choice is allowed; see `MaskReader`."""
        given = next(i for i, leaf in enumerate(self._spec.leaves) if leaf.path == (MASK_KEY,))
        leaf, frames = self._spec.leaves[given], self._policy.frame_stack
        values = _leaf_values(observation[given], leaf).reshape(-1, frames, leaf.values)[:, -1]
        action = self._spec.action
        sizes = action.nvec if isinstance(action, MultiDiscreteAction) else (leaf.values,)
        parts = [part > 0.5 for part in torch.split(values, list(sizes), dim=1)]
        return torch.cat([part | ~part.any(dim=1, keepdim=True) for part in parts], dim=1)

    def _greedy(self, out: Tensor, mask: Tensor | None) -> Tensor:
        """The action, flat, from the network's outputs; see the `greedy` of each policy."""
        policy, action = self._policy, self._spec.action
        if isinstance(policy, QPolicy):
            values = _action_values(policy, out)
            if mask is not None:
                values = values.masked_fill(~mask, -torch.inf)
            assert isinstance(action, DiscreteAction)
            return values.argmax(dim=1) + action.start
        if isinstance(action, BoxAction):
            squashed = isinstance(policy, BoxPolicy) or policy.layout.squashed
            values = _squashed(out[:, : policy.layout.action_values], action) if squashed else out
            low, high = (torch.from_numpy(bound).flatten() for bound in float32_bounds(action))
            values = values.maximum(low).minimum(high)
            return values.round() if np.dtype(action.space_dtype).kind in "iu" else values
        assert isinstance(policy, StochasticPolicy)
        if mask is not None:
            out = out.masked_fill(~mask, float(FORBIDDEN))
        best = [part.argmax(dim=1) for part in torch.split(out, list(policy.layout.choices), dim=1)]
        start = torch.as_tensor(action.start or 0, dtype=torch.int64)
        return torch.stack(best, dim=1) + start


def _leaf_values(array: Tensor, leaf: Leaf) -> Tensor:
    """Values `[N, values]` of a leaf: images scaled to 0..1, choices one-hot, else as they are."""
    flat = array.reshape(-1, max(1, int(np.prod(leaf.shape))))
    if leaf.kind == "image":
        return flat.float() * (1 / 255)
    if leaf.kind != "choices":
        return flat.float()
    columns = [
        flat[:, i : i + 1] == torch.arange(first, first + count)
        for i, (count, first) in enumerate(zip(leaf.choices, leaf.first, strict=True))
    ]
    return torch.cat(columns, dim=1).float()


def _action_values(policy: QPolicy, out: Tensor) -> Tensor:
    """Action values `[R, num_actions]`; see `QPolicy.q_values`."""
    layout = policy.layout
    if layout.atoms == 1:
        return by_action(out, None, layout.dueling)
    atoms = by_action(out, layout.atoms, layout.dueling)
    if policy.support is None:
        return atoms.mean(dim=2)
    return atoms.softmax(dim=2) @ torch.from_numpy(policy.support)


def _squashed(latent: Tensor, action: BoxAction) -> Tensor:
    """Tanh of `latent` `[R, d]`, scaled to the box; see `ActionBox.squash`."""
    low, high = torch.tensor(action.low), torch.tensor(action.high)
    share = (latent.tanh() + 1) * 0.5
    return (low * (1 - share) + high * share).maximum(low).minimum(high)


def _torch_dtype(name: str) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, name)).dtype
