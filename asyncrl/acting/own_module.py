"""Check of a user-defined module before a run depends on it. Imports torch when called."""

from __future__ import annotations

import contextlib
import copy
import itertools
from typing import Any

from asyncrl.errors import ConfigurationError, describe_error


def check_network(network: Any, module: Any, inputs: int, outputs: int, trained: bool = True) -> None:
    """Check `module`, made by `network(inputs, outputs)`, and that another call makes the same one.

    Learner, actors and loaded policies call the factory for themselves, and are given parameters and floating-point
    buffers only: what else a call draws, such as a permutation or fixed random features, would differ between them.
    The other call draws from torch's own generator.

    Args:
        network: the user's factory.
        module: result of one call.
        inputs: first argument of that call.
        outputs: second argument of that call.
        trained: see `check_module`.

    Raises:
        ConfigurationError: see `check_module`; or the other call makes another module (ASYNC017).
    """
    check_module(module, inputs, outputs, trained)
    if not _act_alike(module, network(inputs, outputs), inputs):
        what = (
            f"network({inputs}, {outputs}) must return the same module at every call, but for the values of "
            "parameters and floating-point buffers, and two calls differ in more than these"
        )
        fix = "keep what is drawn in a buffer of floats, register_buffer(name, tensor), or draw it with a fixed seed"
        raise _refused(what, fix)


def _act_alike(module: Any, other: Any, inputs: int) -> bool:
    """Whether copies of both, with the values of `module`, have equal outputs in evaluation mode.

    Modules that draw noise in this mode, or do not take the rows that are tried, are taken to be alike.
    """
    import torch

    first, second = (copy.deepcopy(one).eval().requires_grad_(False) for one in (module, other))
    shared = [
        (t for t in itertools.chain(one.parameters(), one.buffers()) if t.is_floating_point())
        for one in (first, second)
    ]
    rows = torch.rand(2, inputs, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode(False), torch.no_grad():
        for values, place in itertools.zip_longest(*shared):
            if values is None or place is None or values.shape != place.shape:
                return False
            place.data = values
        with contextlib.suppress(Exception):
            out, again, others = first(rows), first(rows), second(rows)
            return not torch.equal(out, again) or torch.equal(out, others)
    return True


def check_module(module: Any, inputs: int, outputs: int, trained: bool = True) -> None:
    """Check that `module`, which is not changed, is one that actors and learner can run.

    Args:
        module: result of the user's factory `network(inputs, outputs)`.
        inputs: first argument of that call, the number of values of a row.
        outputs: second argument of that call.
        trained: whether the outputs must depend on a parameter that requires a gradient; an encoder before a cell may
            be frozen.

    Raises:
        ConfigurationError: it is no module, a tensor of it is not float32, it writes into its input or replaces a
            buffer, or it does not map float32 `[R, inputs]` to `[R, outputs]` (ASYNC017).
    """
    from torch import nn

    call = f"network({inputs}, {outputs})"
    if not isinstance(module, nn.Module):
        raise _refused(
            f"{call} must return a torch.nn.Module, got {type(module).__name__}", "return a module"
        )
    _check_tensors(call, module)
    out = _outputs(call, module, inputs)
    got = f"{str(out.dtype).removeprefix('torch.')} {list(out.shape)}"
    if got != (wanted := f"float32 [2, {outputs}]"):
        fix = "return one float32 value for each of the outputs, without an activation behind the last layer"
        raise _refused(f"{call} must map float32 [2, {inputs}] to {wanted}, got {got}", fix)
    if trained and not out.requires_grad:
        what = (
            f"the outputs of {call} must depend on a parameter that requires a gradient, and depend on none"
        )
        raise _refused(what, "leave the last layer at least to be trained")


def _check_tensors(call: str, module: Any) -> None:
    import torch

    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            what = f"{call} must have parameters of known shape, and {name} of it is lazy"
            raise _refused(what, "name the widths, as in nn.Linear(inputs, 64) in place of nn.LazyLinear(64)")
        must_be = isinstance(tensor, torch.nn.Parameter) or tensor.is_floating_point()
        if must_be and tensor.dtype != torch.float32:
            got = str(tensor.dtype).removeprefix("torch.")
            what = f"parameters and floating-point buffers of {call} must be float32, and {name} is {got}"
            raise _refused(what, "keep the module in float32, such as by its method float()")


def _outputs(call: str, module: Any, inputs: int) -> Any:
    """Return the outputs of a copy of the module in evaluation mode for two rows of zeros, with a graph.

    Another copy is tried in the module's own mode. Neither may write into the rows, which other passes read after it,
    and buffers must stay those that are views of the flat block.
    """
    import torch

    try:
        with torch.inference_mode(False), torch.enable_grad():
            rows, trained = torch.zeros(2, inputs), copy.deepcopy(module)
            buffers = dict(trained.named_buffers())
            out = copy.deepcopy(module).eval()(rows)
            trained(rows)
    except Exception as error:
        fix = "map float32 [R, inputs] to [R, outputs]; the rows of a critic are observations and behind them actions"
        what = f"{call} failed for two rows of {inputs} zeros: {describe_error(error)}"
        raise _refused(what, fix) from error
    if rows._version:
        fix = "write x = x - mean in place of x -= mean, and give the first layer no inplace=True"
        raise _refused(f"{call} must not write into its input, and does", fix)
    for name, tensor in trained.named_buffers():
        if tensor.is_floating_point() and tensor is not buffers.get(name):
            fix = f"write self.{name}.copy_(values) in place of self.{name} = values"
            raise _refused(f"{call} must change its buffers in place, and replaces {name}", fix)
    if not isinstance(out, torch.Tensor):
        what = f"the outputs of {call} must be one tensor, got {type(out).__name__}"
        raise _refused(what, "return the tensor alone")
    return out


def _refused(what: str, fix: str) -> ConfigurationError:
    return ConfigurationError(what, fix=fix)
