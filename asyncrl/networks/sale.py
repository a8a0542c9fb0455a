"""The other networks of TD7 as torch modules, and the passes of all its networks.

    Fujimoto et al. 2023    For SALE: state-action representation learning for deep reinforcement learning

The modules are the definition, and what runs on a GPU (`ModulePasses`). `HandPasses` computes the same on the CPU by
products and kernels, without autograd. A test compares both.

B is the batch size, E the width of an embedding, C the number of critics, d that of action values, R a number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.acting.kernels import elu_in_place
from asyncrl.acting.layouts import AVG_L1_EPS
from asyncrl.acting.sale_module import Beside, StateEncoder, perceptron
from asyncrl.networks.matmul_precision import MatmulPrecision
from asyncrl.networks.module import ModuleGradient
from asyncrl.networks.products import Product, products, silent, uses_numpy
from asyncrl.shm.kernel import kernel

_ZERO, _ONE, _EPS = np.float32(0.0), np.float32(1.0), np.float32(AVG_L1_EPS)
_LINEAR, _RELU, _ELU = 0, 1, 2
"""What follows a layer's product and bias."""
Multiply = Callable[[Tensor, Tensor, Tensor], list[Product]]
"""`products` with its options."""


class PairEncoder(nn.Module):
    """g: the embedding of a state and an action, which predicts that of the next state; `[R, E]`."""

    def __init__(self, actions: int, hidden: tuple[int, ...], embedding: int) -> None:
        super().__init__()
        self.layers = perceptron((embedding + actions, *hidden, embedding), nn.ELU)

    def forward(self, z: Tensor, action: Tensor) -> Tensor:
        """Embeddings `[R, E]`; `z` `[R, E]` are those of the states."""
        pair: Tensor = self.layers(torch.cat((z, action), dim=1))
        return pair


class Encoders(nn.Module):
    """The encoders f (`states`) and g (`pairs`)."""

    def __init__(self, inputs: int, actions: int, hidden: tuple[int, ...], embedding: int) -> None:
        super().__init__()
        self.states = StateEncoder(inputs, hidden, embedding)
        self.pairs = PairEncoder(actions, hidden, embedding)


class SaleNetworks(nn.Module):
    """All networks of a learner: head of the actor, encoders, critics, in this order in a flat vector.

    Args:
        inputs, actions: values of an observation and of an action.
        hidden, embedding: widths of the hidden layers of encoders and head, and of an embedding.
        critic_hidden: widths of the critics' hidden layers.
        copies: number of critics.
    """

    def __init__(
        self,
        inputs: int,
        actions: int,
        hidden: tuple[int, ...],
        critic_hidden: tuple[int, ...],
        embedding: int,
        copies: int,
    ) -> None:
        super().__init__()
        self.head = Beside(inputs, actions, hidden, embedding, nn.ReLU)
        self.encoders = Encoders(inputs, actions, hidden, embedding)
        self.critics = nn.ModuleList(
            Beside(inputs + actions, 1, critic_hidden, 2 * embedding, nn.ELU) for _ in range(copies)
        )

    def values(self, x: Tensor, z: Tensor, pair: Tensor) -> Tensor:
        """Values `[C, R, 1]` of all critics.

        Args:
            x: `[R, inputs + d]`, observations, and behind them actions.
            z: embeddings of the observations `[R, E]`.
            pair: embeddings g(z, a) `[R, E]`.
        """
        return torch.stack([critic(x, pair, z) for critic in self.critics])


class SaleInputs(NamedTuple):
    """What the passes of an update read, and where gradients go.

    Attributes:
        networks: the trained networks.
        fixed: encoders that actor and critics read.
        target: target networks.
        rows: `[2 B, inputs]`, observations, and behind them the next ones.
        action: `[B, d]`.
        movable: `[d]`, 0 where the range of an action value is empty, else 1.
        gradients: of the trained networks' parts: `policy`, `encoders` and `critics`.
        precision: of the products.
    """

    networks: SaleNetworks
    fixed: Encoders
    target: SaleNetworks
    rows: Tensor
    action: Tensor
    movable: Tensor
    gradients: Mapping[str, ModuleGradient]
    precision: MatmulPrecision


class Passes(Protocol):
    """Passes of TD7's networks over a batch. Each `fill_...` follows the pass that it takes the gradient of."""

    def embed(self) -> tuple[Tensor, Tensor]:
        """Return g(f(s), a) and f(s') of the trained encoders, `[B, E]` each."""
        ...

    def fill_encoders(self, grad: Tensor) -> None:
        """Fill the gradient of the encoders, given that at g(f(s), a)."""
        ...

    def next_action(self) -> Tensor:
        """Return the target policy's action in s', before the smoothing, `[B, d]` in -1 .. 1."""
        ...

    def next_values(self, action: Tensor) -> Tensor:
        """Return values `[C, B, 1]` of the target critics in s'; after `next_action`."""
        ...

    def values(self) -> Tensor:
        """Return values `[C, B, 1]` of the batch's actions."""
        ...

    def fill_critics(self, grad: Tensor) -> None:
        """Fill the gradient of the critics, given that at `values`."""
        ...

    def own_values(self) -> Tensor:
        """Return values `[C, B, 1]` of the actor's own actions in s; after `values`, which embeds s."""
        ...

    def fill_actor(self, grad: Tensor) -> None:
        """Fill the gradient of the actor's head, given that at `own_values`."""
        ...


class ModulePasses:
    """`Passes` by the modules and autograd."""

    def __init__(self, inputs: SaleInputs) -> None:
        self._inputs = inputs
        self._obs, self._next_obs = inputs.rows.split(len(inputs.action))
        self._z = self._pair = self._q = self._own_q = inputs.rows.new_zeros(0)

    def embed(self) -> tuple[Tensor, Tensor]:
        """See `Passes`."""
        encoders = self._inputs.networks.encoders
        with torch.enable_grad():
            self._pair = encoders.pairs(encoders.states(self._obs), self._inputs.action)
        with torch.no_grad():
            return self._pair.detach(), encoders.states(self._next_obs)

    def fill_encoders(self, grad: Tensor) -> None:
        """See `Passes`."""
        self._inputs.gradients["encoders"].fill(self._pair, grad)

    def next_action(self) -> Tensor:
        """See `Passes`."""
        target = self._inputs.target
        self._z = target.encoders.states(self._next_obs)
        action: Tensor = target.head(self._next_obs, self._z).tanh()
        return action

    def next_values(self, action: Tensor) -> Tensor:
        """See `Passes`."""
        target = self._inputs.target
        x = torch.cat((self._next_obs, action), dim=1)
        return target.values(x, self._z, target.encoders.pairs(self._z, action))

    def values(self) -> Tensor:
        """See `Passes`."""
        self._z = self._inputs.fixed.states(self._obs)
        with torch.enable_grad():
            self._q = self._values_of(self._inputs.action)
        return self._q.detach()

    def fill_critics(self, grad: Tensor) -> None:
        """See `Passes`."""
        self._inputs.gradients["critics"].fill(self._q, grad)

    def own_values(self) -> Tensor:
        """See `Passes`."""
        with torch.enable_grad():
            action = self._inputs.networks.head(self._obs, self._z).tanh() * self._inputs.movable
            self._own_q = self._values_of(action)
        return self._own_q.detach()

    def fill_actor(self, grad: Tensor) -> None:
        """See `Passes`."""
        self._inputs.gradients["policy"].fill(self._own_q, grad)

    def _values_of(self, action: Tensor) -> Tensor:
        pair = self._inputs.fixed.pairs(self._z, action)
        return self._inputs.networks.values(torch.cat((self._obs, action), dim=1), self._z, pair)


class HandPasses:
    """`Passes` by hand, on the CPU; a returned tensor is the same buffer at every call."""

    def __init__(self, inputs: SaleInputs) -> None:
        networks, fixed, target = inputs.networks, inputs.fixed, inputs.target
        self._action, self._movable, size = inputs.action, inputs.movable, len(inputs.action)
        obs, next_obs = inputs.rows.split(size)
        multiply = partial(products, precision=inputs.precision, numpy=uses_numpy(inputs.rows.device))
        of_encoders = inputs.gradients["encoders"].views

        self._states = _States(networks.encoders.states, inputs.rows, multiply)
        self._z, self._next_z = self._states.output.split(size)
        count, embedding = len(list(networks.encoders.states.parameters())), self._z.shape[1]
        self._states.prepare_backward(size, of_encoders[:count])
        self._pair_input = torch.empty(size, embedding + self._action.shape[1])
        self._pairs = _Layers(networks.encoders.pairs.layers, self._pair_input, multiply)
        self._pairs.prepare_backward(size, of_encoders[count:], slice(embedding))

        self._next_states = _States(target.encoders.states, next_obs, multiply)
        next_z = self._next_states.output
        self._next_head = _Beside(target.head, next_obs, (next_z,), multiply)
        self._next_values = _Values(target.critics, target.encoders.pairs, next_obs, next_z, multiply)

        self._fixed_states = _States(fixed.states, obs, multiply)
        fixed_z = self._fixed_states.output
        self._values = _Values(networks.critics, fixed.pairs, obs, fixed_z, multiply)
        self._values.prepare_weights(inputs.gradients["critics"].views)
        self._own_values = _Values(networks.critics, fixed.pairs, obs, fixed_z, multiply)
        self._own_values.prepare_action()
        self._head = _Beside(networks.head, obs, (fixed_z,), multiply)
        self._head.prepare_backward(inputs.gradients["policy"].views)

    def embed(self) -> tuple[Tensor, Tensor]:
        """See `Passes`."""
        self._states.forward()
        torch.cat((self._z, self._action), dim=1, out=self._pair_input)
        return self._pairs.forward(), self._next_z

    def fill_encoders(self, grad: Tensor) -> None:
        """See `Passes`."""
        self._states.backward(self._pairs.backward(grad))

    def next_action(self) -> Tensor:
        """See `Passes`."""
        self._next_states.forward()
        return self._next_head.forward().tanh()

    def next_values(self, action: Tensor) -> Tensor:
        """See `Passes`."""
        return self._next_values.forward(action)

    def values(self) -> Tensor:
        """See `Passes`."""
        self._fixed_states.forward()
        return self._values.forward(self._action)

    def fill_critics(self, grad: Tensor) -> None:
        """See `Passes`."""
        self._values.backward(grad)

    def own_values(self) -> Tensor:
        """See `Passes`."""
        self._tanh = self._head.forward().tanh()
        return self._own_values.forward(self._tanh * self._movable)

    def fill_actor(self, grad: Tensor) -> None:
        """See `Passes`."""
        at_action = self._own_values.backward(grad) * self._movable
        self._head.backward(at_action * (1.0 - self._tanh.square()))


class _Layers:
    """Linear layers over the rows of `x`, with ELU or ReLU between them.

    Attributes:
        output: `[R, outputs]`, filled and returned by `forward`.
    """

    def __init__(self, layers: Sequence[nn.Module] | nn.Sequential, x: Tensor, multiply: Multiply) -> None:
        self._linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
        between = _ELU if any(isinstance(layer, nn.ELU) for layer in layers) else _RELU
        self._kinds = [between] * (len(self._linears) - 1) + [_LINEAR]
        self._x, self._multiply, self._silent = [x], multiply, partial(silent, uses_numpy(x.device))
        self._forward = []
        for linear, kind in zip(self._linears, self._kinds, strict=True):
            y, bias = torch.empty(len(x), linear.out_features), linear.bias.detach().numpy()
            calls = multiply(self._x[-1], linear.weight.detach().t(), y)
            self._forward.append((calls, (y.numpy(), bias, kind)))
            self._x.append(y)
        self.output = self._x[-1]

    def forward(self) -> Tensor:
        """Fill the output."""
        with self._silent():
            for calls, layer in self._forward:
                for product in calls:
                    product()
                activate(*layer)
        return self.output

    def prepare_backward(
        self, rows: int, gradients: Sequence[Tensor] = (), columns: slice | None = None
    ) -> None:
        """Make the buffers of `backward`.

        Args:
            rows: number of first rows that have a gradient.
            gradients: of weights and biases, layer by layer, filled by `backward`; none if they are not wanted.
            columns: of the input, whose gradient `backward` returns; None if it is not wanted.
        """
        grads = [torch.empty(rows, linear.out_features) for linear in self._linears]
        inner = self._linears[0].weight.detach()[:, columns or slice(0)]
        self._grad_input, self._grad_output = torch.empty(rows, inner.shape[1]), grads[-1]
        self._backward = []
        for i in reversed(range(len(grads))):
            linear, calls, bias = self._linears[i], list[Product](), torch.empty_like(grads[i][0])
            if gradients:
                bias = gradients[2 * i + 1]
                calls += self._multiply(grads[i].t(), self._x[i][:rows], gradients[2 * i])
            if i:
                calls += self._multiply(grads[i], linear.weight.detach(), grads[i - 1])
            elif columns is not None:
                calls += self._multiply(grads[i], inner, self._grad_input)
            own = grads[i].numpy(), self._x[i + 1][:rows].numpy(), bias.numpy(), self._kinds[i]
            self._backward.append((own, calls))

    def backward(self, grad_output: Tensor) -> Tensor:
        """Fill the weights' gradient, given that at the output; return that at columns of the input."""
        self._grad_output.copy_(grad_output)
        with self._silent():
            for layer, calls in self._backward:
                activation_gradient(*layer)
                for product in calls:
                    product()
        return self._grad_input


class _States:
    """Encoder f over the rows of `x`.

    Attributes:
        output: embeddings `[R, E]`, filled and returned by `forward`.
    """

    def __init__(self, encoder: StateEncoder, x: Tensor, multiply: Multiply) -> None:
        self._layers = _Layers(encoder.layers, x, multiply)
        self.output, factors = torch.empty_like(self._layers.output), torch.empty(len(x))
        self._norm = self._layers.output.numpy(), self.output.numpy(), factors.numpy()

    def forward(self) -> Tensor:
        """Fill the embeddings."""
        self._layers.forward()
        avg_l1_norm(*self._norm)
        return self.output

    def prepare_backward(self, rows: int, gradients: Sequence[Tensor]) -> None:
        """See `_Layers.prepare_backward`."""
        self._layers.prepare_backward(rows, gradients)
        self._grad = torch.empty(rows, self.output.shape[1])

    def backward(self, grad_output: Tensor) -> None:
        """Fill the weights' gradient, given that at the first embeddings."""
        avg_l1_norm_gradient(grad_output.numpy(), *self._norm[1:], self._grad.numpy())
        self._layers.backward(self._grad)


class _Beside:
    """A `Beside`, head or critic, over the rows of `x` and of embeddings, which are read at each call."""

    def __init__(self, module: Beside, x: Tensor, embeddings: Sequence[Tensor], multiply: Multiply) -> None:
        self._first, self._embeddings = _Layers([module.first], x, multiply), embeddings
        self._width, widths = module.first.out_features, [part.shape[1] for part in embeddings]
        joined, factors = torch.empty(len(x), self._width + sum(widths)), torch.empty(len(x))
        self._slots = joined[:, self._width :].split(widths, dim=1)
        self._norm = self._first.output.numpy(), joined.numpy(), factors.numpy()
        self._layers = _Layers(module.layers, joined, multiply)

    def forward(self) -> Tensor:
        """Return the outputs, the same buffer at every call."""
        self._first.forward()
        avg_l1_norm(*self._norm)
        for slot, embedding in zip(self._slots, self._embeddings, strict=True):
            slot.copy_(embedding)
        return self._layers.forward()

    def prepare_backward(
        self, gradients: Sequence[Tensor] = (), columns: slice | None = None, embeddings: int = 0
    ) -> None:
        """Make the buffers of `backward`.

        Args:
            gradients: of weights and biases, as the module's parameters; none if they are not wanted.
            columns: of x, see `_Layers.prepare_backward`.
            embeddings: values of the first embeddings, whose gradient is wanted as well.
        """
        rows = len(self._first.output)
        self._first.prepare_backward(rows, gradients[:2], columns)
        self._layers.prepare_backward(rows, gradients[2:], slice(self._width + embeddings))
        self._grad = torch.empty(rows, self._width)

    def backward(self, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        """Fill the weights' gradient, given that at the output; return those at columns of x and at embeddings."""
        inner = self._layers.backward(grad_output)
        avg_l1_norm_gradient(inner.numpy(), *self._norm[1:], self._grad.numpy())
        return self._first.backward(self._grad), inner[:, self._width :]


class _Values:
    """Critics and the encoder g over observations and actions; `z`, embeddings of the former, is read at each call."""

    def __init__(
        self, critics: nn.ModuleList, pairs: PairEncoder, obs: Tensor, z: Tensor, multiply: Multiply
    ) -> None:
        (size, inputs), first = obs.shape, pairs.layers[0]
        assert isinstance(first, nn.Linear)
        self._pair_input = torch.empty(size, first.in_features)
        x = torch.empty(size, inputs + first.in_features - z.shape[1])
        self._obs, self._z, self._x = obs, z, x
        self._pairs = _Layers(pairs.layers, self._pair_input, multiply)
        self._critics = []
        for critic in critics:
            assert isinstance(critic, Beside)
            self._critics.append(_Beside(critic, x, (self._pairs.output, z), multiply))
        self._q = torch.empty(len(critics), size, 1)

    def forward(self, action: Tensor) -> Tensor:
        """Return values `[C, B, 1]` of actions `[B, d]`."""
        torch.cat((self._obs, action), dim=1, out=self._x)
        torch.cat((self._z, action), dim=1, out=self._pair_input)
        self._pairs.forward()
        for q, critic in zip(self._q, self._critics, strict=True):
            q.copy_(critic.forward())
        return self._q

    def prepare_weights(self, gradients: Sequence[Tensor]) -> None:
        """Let `backward` fill the critics' gradient."""
        each = len(gradients) // len(self._critics)
        for i, critic in enumerate(self._critics):
            critic.prepare_backward(gradients[i * each : (i + 1) * each])

    def prepare_action(self) -> None:
        """Let `backward` return the gradient at the actions."""
        embedding = self._z.shape[1]
        for critic in self._critics:
            critic.prepare_backward((), slice(self._obs.shape[1], None), embedding)
        self._pairs.prepare_backward(len(self._obs), (), slice(embedding, None))

    def backward(self, grad: Tensor) -> Tensor:
        """Do what was prepared, given the gradient `[C, B, 1]` at the values; return that at the actions `[B, d]`."""
        found = [critic.backward(g) for critic, g in zip(self._critics, grad, strict=True)]
        if not found[0][0].numel():
            return found[0][0]
        at_pair = torch.stack([pair for _, pair in found]).sum(dim=0)
        return self._pairs.backward(at_pair) + torch.stack([action for action, _ in found]).sum(dim=0)


@kernel("void(float32[:, ::1], float32[::1], int64)", cold=True)
def activate(y, bias, kind):  # type: ignore[no-untyped-def]
    """Add `bias` to `y` `[R, W]` and apply ReLU, ELU or nothing, in place."""
    for i in range(y.shape[0]):
        row = y[i]
        for j in range(row.shape[0]):
            row[j] += bias[j]
        if kind == _ELU:
            elu_in_place(row)
        elif kind == _RELU:
            for j in range(row.shape[0]):
                row[j] = _ZERO if row[j] <= _ZERO else row[j]


@kernel("void(float32[:, ::1], float32[:, ::1], float32[::1], int64)", cold=True)
def activation_gradient(grad, y, grad_bias, kind):  # type: ignore[no-untyped-def]
    """Turn `grad` `[R, W]` at the output `y` of `activate` into that at the product, and fill that of the bias."""
    grad_bias[:] = _ZERO
    for i in range(grad.shape[0]):
        row, seen = grad[i], y[i]
        if kind == _ELU:
            for j in range(row.shape[0]):
                row[j] *= _ONE if seen[j] > _ZERO else seen[j] + _ONE
        elif kind == _RELU:
            for j in range(row.shape[0]):
                row[j] = _ZERO if seen[j] <= _ZERO else row[j]
        for j in range(row.shape[0]):
            grad_bias[j] += row[j]


@kernel("void(float32[:, ::1], float32[:, ::1], float32[::1])", fastmath={"reassoc", "contract"}, cold=True)
def avg_l1_norm(h, y, factors):  # type: ignore[no-untyped-def]
    """Fill the first W columns of `y` with rows of `h` `[R, W]` over their mean absolute value; keep the factors."""
    width = h.shape[1]
    for i in range(h.shape[0]):
        total = _ZERO
        for j in range(width):
            total += abs(h[i, j])
        mean = np.float32(total / np.float32(width))
        factors[i] = _ONE / (_EPS if mean < _EPS else mean)
        for j in range(width):
            y[i, j] = h[i, j] * factors[i]


@kernel(
    "void(float32[:, ::1], float32[:, ::1], float32[::1], float32[:, ::1])",
    fastmath={"reassoc", "contract"},
    cold=True,
)
def avg_l1_norm_gradient(grad, y, factors, out):  # type: ignore[no-untyped-def]
    """Fill `out` `[R, W]` with the gradient at `h` of `avg_l1_norm`, given `grad` at the first W columns of `y`."""
    width = out.shape[1]
    for i in range(out.shape[0]):
        total = _ZERO
        if factors[i] < _ONE / _EPS:
            for j in range(width):
                total += grad[i, j] * y[i, j]
        mean = np.float32(total / np.float32(width))
        for j in range(width):
            sign = (_ONE if y[i, j] > _ZERO else _ZERO) - (_ONE if y[i, j] < _ZERO else _ZERO)
            out[i, j] = (grad[i, j] - sign * mean) * factors[i]
