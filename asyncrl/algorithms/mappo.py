"""MAPPO: proximal policy optimisation of a team, with a central critic.

    Yu et al. 2022          The surprising effectiveness of PPO in cooperative multi-agent games
    Schulman et al. 2017    Proximal policy optimization algorithms

Every agent acts by its own observation. One critic sees the state, the environment's or the observations of all agents
(`central_state`), and learns the return of the team: the discounted sum of the rewards of all agents. So all agents
that act in a step have the same advantage,

    A_t = sum_l (gamma lambda)^l (r_{t+l} + gamma V(s_{t+l+1}) - V(s_{t+l}))        r_t = sum_a r_t^a

and the policy's loss is PPO's over all agents and steps (Yu et al. 2022, appendix A, eq. 1). The team's episode goes on
as long as one of its agents acts; an agent that waits is not trained on.

Importing this module does not import torch; making an updater does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.images import ImageNetwork
from asyncrl.algorithms.action_spaces import check_agents
from asyncrl.algorithms.central_state import CentralState, resolved
from asyncrl.algorithms.ppo import PPO
from asyncrl.config import TrainerConfig
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import EnvSpec
from asyncrl.options import Count
from asyncrl.protocols import SegmentUpdater

if TYPE_CHECKING:
    from asyncrl.algorithms.mappo_update import JointRollout
    from asyncrl.algorithms.rollout import Part, PolicyRollout


@dataclass(frozen=True, kw_only=True)
class MAPPO(PPO):
    """Hyper-parameters of MAPPO: those of PPO.

    A minibatch consists of joint rows: all agents of an environment at a step.
    """

    name: ClassVar[str] = "mappo"
    takes_images: ClassVar[bool] = False
    needs_agents: ClassVar[bool] = True

    segment_length: Count | None = None
    """Steps of each environment in a segment; none: as many as make a batch of 1,024 steps (real-valued actions
    2,048), at least 32."""

    cuda_graph: bool | None = False

    central_state: CentralState = "auto"
    """What the critic sees: the environment's state or all agents' observations; auto: its state if it has one."""

    @property
    def batch_steps(self) -> tuple[int, int]:
        """See `SegmentLearning.batch_steps`."""
        return 1_024, 2_048

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cuda_graph is not False:
            raise ValueError(f"cuda_graph must be off for mappo, got {self.cuda_graph}")
        if self.cell is not None:
            raise ValueError(
                f"recurrent must be none for mappo, whose critic sees all agents at once, got {self.recurrent}"
            )

    def check(self, spec: EnvSpec) -> None:
        """Refuse unsupported actions, one agent, and images, which the critic cannot see side by side.

        Raises:
            SpacesDoNotFit: ASYNC005.
        """
        super().check(spec)
        check_agents(self, spec)
        if isinstance(self.network_for(spec), ImageNetwork):
            raise SpacesDoNotFit(
                f"mappo needs observations that its critic can see one after the other, and those of {spec.name} are "
                "images",
                facts={"observation shape": spec.observation_shape, "dtype": spec.observation_dtype},
                fix="use ppo, whose policy all agents share as well, or vdn",
            )

    def for_run(self, config: TrainerConfig, spec: EnvSpec) -> Self:
        """See `PPO.for_run`; `central_state` follows from the environment."""
        return replace(super().for_run(config, spec), central_state=resolved(self, spec))

    def critic_layout(self, spec: EnvSpec) -> None:
        """None: a policy sees one agent's observation, and the critic needs those of all."""

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> SegmentUpdater:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.mappo_update import MAPPOUpdate

        return MAPPOUpdate(self, spec, device, seed)

    def advantages(
        self, rollout: PolicyRollout, value: NDArray[np.float32], last_value: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Advantages and value targets `[S, T]` of the team, the same for all agents of an environment."""
        from asyncrl.algorithms.returns import gae, team_flags

        agents = _joint(rollout).num_agents
        found = gae(
            rollout.reward[::agents],
            value[::agents],
            last_value[::agents],
            team_flags(rollout.flags, agents),
            self.discount,
            self.gae_lambda,
        )
        advantage, target = (np.repeat(of_team, agents, axis=0) for of_team in found)
        return advantage, target

    def _minibatches(self, rollout: PolicyRollout, rows: int) -> int:
        joint = _joint(rollout)
        return max(1, -(-len(joint.trained_items) // self._items(joint)))

    def _items(self, rollout: JointRollout) -> int:
        """Joint rows of a minibatch."""
        return min(max(1, self.minibatch_size // rollout.num_agents), len(rollout.items))

    def divide(self, rollout: PolicyRollout, seed: Sequence[int]) -> list[Part]:
        """Divide the joint rows with an agent that acts into minibatches padded with row N."""
        from asyncrl.algorithms.rollout import Part

        joint = _joint(rollout)
        order = np.random.default_rng(seed).permutation(joint.trained_items)
        trained, parts = joint.trained.reshape(-1), []
        for chosen in np.array_split(order, self._minibatches(rollout, trained.size)):
            rows = np.full((self._items(joint), joint.num_agents), trained.size, np.int64)
            rows[: len(chosen)] = joint.items[chosen]
            own = np.flatnonzero(trained[joint.items[chosen].reshape(-1)])
            parts.append(Part(rows.reshape(-1), own, own.size))
        return parts


def _joint(rollout: PolicyRollout) -> JointRollout:
    from asyncrl.algorithms.mappo_update import JointRollout

    assert isinstance(rollout, JointRollout)
    return rollout
