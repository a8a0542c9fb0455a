"""MADDPG: deterministic policy gradients of several agents, with a central critic.

    Lowe et al. 2017        Multi-agent actor-critic for mixed cooperative-competitive environments
    Lillicrap et al. 2016   Continuous control with deep reinforcement learning
    Jang et al. 2017        Categorical reparameterization with Gumbel-softmax (straight-through)

Every agent acts by its own observation, mu(o_a). The critic sees x, the observations of all agents or the environment's
state (`central_state`), and the actions of all, and has one output for each agent, Q_a(x, u_1, ..., u_N): the
discounted sum of this agent's own rewards. So agents may have a goal in common, or be opponents. The agents share one
policy; in the paper each has its own.

Discrete actions are one-hot vectors drawn from the policy's logits by Gumbel-softmax: the forward pass takes the drawn
action, the backward pass the derivative of the softmax.

Networks and the update are in `maddpg_update.py`, which imports torch; this module does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple, Self

from asyncrl.acting.images import ImageNetwork
from asyncrl.acting.noise import GaussianNoise
from asyncrl.algorithms.action_spaces import check_agents
from asyncrl.algorithms.central_state import CentralState, resolved
from asyncrl.algorithms.off_policy import OffPolicy
from asyncrl.config import TrainerConfig
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec, FieldSpec
from asyncrl.options import Coefficient, NotNegative, Positive, Range, Widths
from asyncrl.protocols import UpdateLoopName

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.acting.box import BoxLayout, DeterministicPolicy
    from asyncrl.acting.stochastic import ActorLayout, StochasticPolicy
    from asyncrl.algorithms.joint_staging import AgentsStage
    from asyncrl.algorithms.maddpg_update import MADDPGUpdate


class JointLoss(NamedTuple):
    """Result of the critic's loss: the scalar to minimise, and the errors `[B, N]`, 0 for agents that wait."""

    loss: Tensor
    td: Tensor


def critic_loss(q: Tensor, next_q: Tensor, batch: AgentsStage, bound_targets: bool) -> JointLoss:
    """Squared error of all agents' values (Lowe et al. 2017, eq. 6), a mean over agents and a weighted sum over items.

        L = sum_b w_b 1/N sum_a (Q_a(x, u_1, ..., u_N) - y_a)^2 / 2
        y_a = r_a + gamma^n Q'_a(x', mu'(o'_1), ..., mu'(o'_N))

    Args:
        q: Q_a(x, u) `[B, N]`.
        next_q: Q'_a(x', mu'(o')) `[B, N]`.
        batch: `reward` and `discount` are those of each agent.
        bound_targets: clip Q' to `batch.low` and `batch.high`.
    """
    assert q.shape == next_q.shape == batch.reward.shape == batch.acts.shape
    if bound_targets:
        next_q = next_q.clamp(batch.low, batch.high)
    td = (q - (batch.reward + batch.discount * next_q)) * batch.acts
    return JointLoss(0.5 * (batch.weight * td.square()).sum() / q.shape[1], td.detach())


@dataclass(frozen=True, kw_only=True)
class MADDPG(OffPolicy):
    """Hyper-parameters of MADDPG."""

    name: ClassVar[str] = "maddpg"
    update_loop: ClassVar[UpdateLoopName] = "joint"
    action_kinds: ClassVar[tuple[type, ...]] = (DiscreteAction, BoxAction)
    needs_bounds: ClassVar[bool] = True
    needs_agents: ClassVar[bool] = True
    team_reward: ClassVar[bool] = False
    takes_images: ClassVar[bool] = False

    tau: float = 0.01
    max_grad_norm: Positive | None = 10.0
    """Maximum norm of the policy's gradient, and of the critic's; none disables clipping."""

    cuda_graph: bool | None = False

    batch_size: int = 128
    """Joint transitions per update, each of all agents."""

    critic_hidden_sizes: Widths | None = None
    """Widths of the critic's hidden layers; none takes the policy's."""

    bound_targets: bool = True
    """Clip bootstrapped values to the range that the agents' observed rewards and gamma imply."""

    random_steps: NotNegative | None = None
    """Environment steps over all actors with uniformly random real-valued actions; none takes `learning_starts`."""

    exploration_scale: Annotated[float, Range(at_least=0, finite=True)] = 0.1
    """Standard deviation of the noise on real-valued actions, in units of half the action range."""

    temperature: Positive = 1.0
    """Temperature of the Gumbel-softmax of discrete actions."""

    logit_penalty: Coefficient = 1e-3
    """Coefficient of the mean squared logit in the loss of discrete actions, which keeps the policy from certainty."""

    central_state: CentralState = "auto"
    """What the critic sees beside all agents' actions: the environment's state or all agents' observations; auto: its
    state if it has one."""

    def for_run(self, config: TrainerConfig, spec: EnvSpec) -> Self:
        """See `OffPolicy.for_run`; `central_state` follows from the environment."""
        return replace(super().for_run(config, spec), central_state=resolved(self, spec))

    def check(self, spec: EnvSpec) -> None:
        """Refuse unsupported actions, one agent, and images, which the critic cannot see side by side.

        Raises:
            SpacesDoNotFit: ASYNC005.
        """
        super().check(spec)
        check_agents(self, spec)
        if isinstance(self.network_for(spec), ImageNetwork):
            raise SpacesDoNotFit(
                f"maddpg needs observations that its critic can see one after the other, and those of {spec.name} are "
                "images",
                facts={"observation shape": spec.observation_shape, "dtype": spec.observation_dtype},
                fix="use ppo, or vdn for discrete actions: all agents share their policy as well",
            )

    def extra_fields(self, spec: EnvSpec) -> tuple[FieldSpec, ...]:
        """Log-probability of a discrete action, which its policy gives and this algorithm ignores."""
        return (FieldSpec("log_prob", (), "float32"),) if isinstance(spec.action, DiscreteAction) else ()

    def layout(self, spec: EnvSpec) -> BoxLayout | ActorLayout:
        """Shape and weight order of the policy, shared by actors and updater. Raises `SpacesDoNotFit`."""
        self.check(spec)
        inputs, network = self.stacked_spec(spec).observation_values, self.network_for(spec)
        normalized = bool(self.normalize_observations)
        if isinstance(spec.action, BoxAction):
            from asyncrl.acting.box import BoxLayout

            return BoxLayout(inputs, self.hidden_sizes, spec.action, network=network, normalized=normalized)
        from asyncrl.acting.stochastic import ActorLayout

        return ActorLayout(
            inputs, self.hidden_sizes, spec.action, "relu", network=network, normalized=normalized
        )

    def make_policy(self, spec: EnvSpec) -> DeterministicPolicy | StochasticPolicy:
        """Make a policy with zero weights, without importing torch. Raises `SpacesDoNotFit`."""
        layout, seen = self.layout(spec), self.stacked_spec(spec)
        from asyncrl.acting.box import BoxLayout, DeterministicPolicy
        from asyncrl.acting.stochastic import StochasticPolicy

        if not isinstance(layout, BoxLayout):
            return StochasticPolicy(seen, layout)
        random_steps = self.learning_starts if self.random_steps is None else self.random_steps
        return DeterministicPolicy(seen, layout, GaussianNoise(self.exploration_scale, None), random_steps)

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> MADDPGUpdate:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.maddpg_update import MADDPGUpdate

        return MADDPGUpdate(
            self, spec, device, seed, loss=partial(critic_loss, bound_targets=self.bound_targets)
        )
