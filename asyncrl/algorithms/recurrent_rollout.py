"""Rollouts of recurrent policies: gradient steps over whole streams, starting from the stored recurrent states.

The state before a segment's first row is the state that the actor stored there, in every epoch and every gradient step.
It was computed with the weights that acted, and no gradient flows into it (truncated backpropagation through time, as
in sb3-contrib's RecurrentPPO and CleanRL). Within the segment it is reset where the actor reset it: after a RESET row,
where an episode or a new life of the actor begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.algorithms.actor_critic import ActorCritic, NetworksPass
from asyncrl.algorithms.rollout import CHUNK, Rollout, inputs_of, rows_of_streams
from asyncrl.algorithms.shared_trunk import RecurrentPass
from asyncrl.interfaces import RESET, Segment
from asyncrl.networks.recurrent import cut_pieces


class RecurrentRollout(Rollout):
    """Rollout whose streams are evaluated as sequences.

    Args:
        nets, streams, length, columns: see `Rollout`, also for further attributes.

    Attributes:
        state: `[S, state_size]` on the device, state before the first row of each stream.
    """

    def __init__(self, nets: ActorCritic, streams: int, length: int, columns: Sequence[str]) -> None:
        super().__init__(nets, streams, length, columns)
        assert nets.layout.cell is not None
        self.state = torch.zeros(streams, nets.layout.cell.state_size, device=nets.device)

    def stage(self, segments: Sequence[Segment]) -> None:
        """See `Rollout.stage`."""
        super().stage(segments)
        states = np.concatenate([segment.extras["state"][:, 0] for segment in segments])
        self.state.copy_(torch.from_numpy(states))

    def place(self, work: NetworksPass, rows: NDArray[np.int64]) -> None:
        """Set the states and pieces of a pass over `rows`, which are a result of `rows_of_streams`."""
        assert isinstance(work, RecurrentPass)
        length = self.shape[1]
        count = rows.size // (length + 1)
        streams = rows[count * length :] - self.flags.size
        begins = np.zeros((count, length + 1), np.bool_)
        begins[:, 1:] = (self.flags[streams] & RESET) != 0
        order = np.arange(rows.size)
        table = np.concatenate((order[: count * length].reshape(count, length), order[-count:, None]), axis=1)
        work.pieces = cut_pieces(begins, table, self.state.device)
        work.state = self.state[torch.from_numpy(streams).to(self.state.device)]

    def _chunks(self) -> Iterator[NDArray[np.int64]]:
        streams, length = self.shape
        chunks = -(-streams * (length + 1) // CHUNK)
        for own in np.array_split(np.arange(streams), min(streams, chunks)):
            yield rows_of_streams(own, self.shape)

    def _prepared(self, rows: slice | NDArray[np.int64]) -> RecurrentPass:
        work = self._pass
        assert isinstance(work, RecurrentPass) and not isinstance(rows, slice)
        work.x = inputs_of(self.x[torch.from_numpy(rows).to(self.x.device)])
        self.place(work, rows)
        return work

    def state_dict(self) -> dict[str, Any]:
        """See `Rollout.state_dict`."""
        return {**super().state_dict(), "state": self.state.cpu().clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Rollout.load_state_dict`."""
        super().load_state_dict(state)
        self.state.copy_(state["state"])
