"""State by `STATE` names: copies are saved, restored in place, and nothing is written of a state that does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.networks.optimizer import FlatAdam
from asyncrl.saved_state import Stateful, restore, saved


class Part:
    STATE: tuple[str, ...] = ("_count", "values")

    def __init__(self) -> None:
        self._count, self.values = 0, np.zeros(3)


class Whole(Stateful):
    STATE = ("part", "_parts", "named", "tensor", "noise", "_rng", "table", "pair", "missing", "start")

    def __init__(self, seed: int, size: int = 4) -> None:
        self.part, self._parts = Part(), [Part(), Part()]
        self.tensor = torch.zeros(size)
        self.named = {"all": FlatAdam(self.tensor, torch.zeros(size))}
        self.noise, self._rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
        self.table: dict[int, Any] = {}
        self.pair, self.missing = (1, np.zeros(2)), None
        self.start: int | None = None
        self.restorations = 0

    def change(self) -> None:
        self.part._count, self._parts[1].values[:] = 3, 7.0
        self.tensor += 1
        self.named["all"].moments[0].fill_(0.5)
        self.table[4], self.pair, self.start = np.ones(2), (2, np.ones(2)), 9
        torch.rand(3, generator=self.noise)
        self._rng.random(3)

    def _restored(self) -> None:
        self.restorations += 1


def flat(value: Any) -> Any:
    """A state as values that compare by `==`."""
    if isinstance(value, dict):
        return {name: flat(own) for name, own in value.items()}
    if isinstance(value, list | tuple):
        return [flat(own) for own in value]
    return value.tolist() if hasattr(value, "tolist") else value


def test_everything_comes_back_in_place() -> None:
    whole, other = Whole(0), Whole(1)
    whole.change()
    state = whole.state_dict()
    places = other.tensor.data_ptr(), other.part.values
    other.load_state_dict(state)
    assert flat(saved(other)) == flat(state)
    assert (other.tensor.data_ptr(), other.restorations) == (places[0], 1) and other.part.values is places[1]
    assert other._rng.random() == whole._rng.random()
    assert torch.rand(1, generator=other.noise) == torch.rand(1, generator=whole.noise)
    assert set(state) == {name.lstrip("_") for name in Whole.STATE} - {"missing"}


def test_a_state_is_a_copy_both_ways() -> None:
    whole, other = Whole(0), Whole(1)
    whole.change()
    state = whole.state_dict()
    before = flat(state)
    whole.change()
    whole.table[4][:] = 5.0
    other.load_state_dict(state)
    other.change()
    other.table[4][:] = 6.0
    assert flat(state) == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: state.pop("part"), r"state must hold \[.*'part'.*\], got"),
        (lambda state: state.update(more=1), "state must hold"),
        (lambda state: state.update(missing={"a": 1}), r"state\.missing must be nothing, got \['a'\]"),
        (
            lambda state: state["part"].pop("count"),
            r"state\.part must hold \['count', 'values'\], got \['values'\]",
        ),
        (
            lambda state: state["part"].update(values=np.zeros(4)),
            r"state\.part\.values must have shape \(3,\)",
        ),
        (lambda state: state["part"].update(values=np.zeros(3, np.int64)), "must be float64, got int64"),
        (lambda state: state["named"].pop("all"), r"state\.named must hold \['all'\]"),
        (
            lambda state: state["named"]["all"].update(step=torch.zeros(1)),
            r"state\.named\.all\.step must have shape",
        ),
        (lambda state: state["parts"].pop(), r"state\.parts must hold 2 parts, got 1"),
        (lambda state: state.update(noise=torch.zeros(3)), r"state\.noise must have shape"),
    ],
)
def test_a_state_that_does_not_fit_is_named_and_nothing_is_written(change: Any, says: str) -> None:
    whole, other = Whole(0), Whole(1)
    whole.change()
    state, before = whole.state_dict(), flat(saved(other))
    change(state)
    with pytest.raises(ValueError, match=says):
        restore(other, state)
    assert flat(saved(other)) == before and other.restorations == 0


class OfData(Part):
    STATE = (*Part.STATE, "data")

    def __init__(self, data: int, size: int) -> None:
        super().__init__()
        self.data, self.values = data, np.zeros(size)

    def _refuse(self, state: dict[str, Any]) -> None:
        if state["data"] != self.data:
            raise LookupError(f"{state['data']} in place of {self.data}")


def test_a_part_refuses_a_state_before_its_shapes_are_compared_and_nothing_is_written() -> None:
    whole = Whole(0)
    whole.part = OfData(1, size=3)
    state = whole.state_dict()
    other = Whole(1)
    other.part = OfData(2, size=5)
    other.tensor += 4
    with pytest.raises(LookupError, match="1 in place of 2"):
        other.load_state_dict(state)
    assert other.tensor.tolist() == [4.0] * 4 and other.restorations == 0
    other.part = OfData(1, size=5)
    with pytest.raises(ValueError, match=r"state\.part\.values must have shape \(5,\), got \(3,\)"):
        other.load_state_dict(state)
