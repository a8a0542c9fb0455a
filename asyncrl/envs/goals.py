"""Goal environments: the goals in a row of observations, and the rewards of batches of goals.

A goal environment has a Dict of `observation`, `achieved_goal` and `desired_goal` (Plappert et al. 2018, arXiv
1802.09464), and a method `compute_reward(achieved_goal, desired_goal, info)`. The learner calls it for goals that were
not desired when the step was taken, so one environment is built in the learner's process for this method; it is never
reset or stepped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.envs import checks as env_checks
from asyncrl.errors import NonFiniteStep, SpacesDoNotFit, environment_calls
from asyncrl.interfaces import EnvSpec, Leaf

if TYPE_CHECKING:
    from asyncrl.envs.source import EnvSource

GoalReward = Callable[[NDArray[Any], NDArray[Any], Any], Any]
"""`(achieved, desired, info)`: goals `[n, *goal_shape]` and a list of n empty dicts; returns rewards `[n]`."""

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
"""Keys of the goals in a Dict observation."""


@dataclass(frozen=True)
class Goals:
    """Places of the two goals in a row of observations.

    Attributes:
        leaf: array of a goal; both goals have the same.
        achieved, desired: first byte of each goal in a row.
        row_bytes: bytes of a goal in a row.
        as_bytes: whether rows are of bytes, as they hold an image.
    """

    leaf: Leaf
    achieved: int
    desired: int
    row_bytes: int
    as_bytes: bool

    def arrays(self, rows: NDArray[np.uint8]) -> NDArray[Any]:
        """Goals `[n, *goal_shape]` of their bytes `[n, row_bytes]`: uint8 images, int64 choices, else float32."""
        shape = (rows.shape[0], *self.leaf.shape)
        if self.leaf.kind == "image" and self.as_bytes:
            return rows.reshape(shape)
        values = np.ascontiguousarray(rows).view(np.float32)
        if self.leaf.kind != "choices":
            return values.reshape(shape)
        ends = np.cumsum(self.leaf.choices)[:-1]
        chosen = [part.argmax(axis=1) for part in np.split(values, ends, axis=1)]
        whole: NDArray[Any] = np.stack(chosen, axis=1) + np.array(self.leaf.first)
        return whole.reshape(shape)


def goals_of(spec: EnvSpec) -> Goals | None:
    """Places of the goals in the observations of `spec`; None unless it has two goals of one shape."""
    as_bytes = spec.observation_dtype == "uint8"
    found, start = {}, 0
    for leaf in spec.leaves:
        size = leaf.row_bytes if as_bytes else 4 * leaf.values
        found[leaf.path] = (leaf, start, size)
        start += size
    if (ACHIEVED,) not in found or (DESIRED,) not in found:
        return None
    (leaf, achieved, size), (other, desired, _) = found[ACHIEVED,], found[DESIRED,]
    alike = (leaf.kind, leaf.shape, leaf.choices, leaf.first) == (
        other.kind,
        other.shape,
        other.choices,
        other.first,
    )
    return Goals(leaf, achieved, desired, size, as_bytes) if alike else None


def require_goals(spec: EnvSpec, function: GoalReward | None) -> None:
    """Raise `SpacesDoNotFit` (ASYNC005) unless observations hold goals, and rewards can be computed for them."""
    facts = {"observation": ", ".join(".".join(leaf.path) for leaf in spec.leaves) or spec.observation_shape}
    if goals_of(spec) is None:
        option, fix = (
            "n_sampled_goal",
            "set n_sampled_goal to auto, which relabels goals where there are some",
        )
        if function is not None:
            option, fix = "goal_reward", f"leave goal_reward out, and {fix}"
        raise SpacesDoNotFit(
            f"{option} needs a Dict with {ACHIEVED} and {DESIRED} of one space, which {spec.name} does not have.",
            facts=facts,
            fix=fix,
        )
    if function is None and not spec.has_goal_reward:
        raise SpacesDoNotFit(
            f"n_sampled_goal needs the rewards of other goals, and {spec.name} has no compute_reward.",
            facts=facts,
            fix="give it compute_reward(achieved_goal, desired_goal, info), or the algorithm a goal_reward",
        )


def goals_text(spec: EnvSpec, algorithm: Any) -> str:
    """Sentence about the goals of a run; "" without goals, or for an algorithm that does not relabel any."""
    count = getattr(algorithm, "n_sampled_goal", None)
    if count is None or goals_of(spec) is None:
        return ""
    if count == 0:
        return "goals are not relabelled (n_sampled_goal 0)"
    return f"goals relabelled in hindsight: {count} {algorithm.goal_selection_strategy} per own goal"


class GoalRewards:
    """Rewards of batches of goals, with the result of every call checked.

    Args:
        name: the environment's name, for errors.
        goals: places of the goals.
        function: computes the rewards.
        env: environment to close with this object, or None.

    Raises:
        SpacesDoNotFit: the function does not return one real number for each of two goals (ASYNC005).
        EnvironmentRaised: it raised (ASYNC002).
    """

    def __init__(self, name: str, goals: Goals, function: GoalReward, env: Any = None) -> None:
        self._name, self.goals, self._function, self._env = name, goals, function, env
        self._compute(*np.zeros((2, 2, goals.row_bytes), np.uint8))  # may be NaN: such goals need not exist

    def __call__(self, achieved: NDArray[np.uint8], desired: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Rewards float32 `[n]` of goals given by their bytes `[n, row_bytes]`.

        Raises what the constructor raises, and NonFiniteStep for a reward that is NaN or infinite (ASYNC011).
        """
        rewards = self._compute(achieved, desired)
        if not np.isfinite(rewards).all():
            at = int(np.flatnonzero(~np.isfinite(rewards))[0])
            pair = {"achieved_goal": achieved, "desired_goal": desired}
            raise NonFiniteStep(
                f"compute_reward of {self._name} returned {rewards[at]} for relabelled goals.",
                facts={name: self.goals.arrays(of[at : at + 1]).tolist() for name, of in pair.items()},
                fix="return a finite reward for every pair of goals, or give a goal_reward",
            )
        return rewards

    def _compute(self, achieved: NDArray[np.uint8], desired: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Rewards, whose shape and type are checked."""
        count = achieved.shape[0]
        goals = self.goals.arrays(achieved), self.goals.arrays(desired)
        facts = {"goals": f"{goals[0].dtype} {list(goals[0].shape)}"}
        with environment_calls(
            f"compute_reward of {self._name}",
            f"for {count} goals",
            "let it take batches of goals and an empty info, or give a goal_reward that does",
            lambda: facts,
        ):
            rewards = np.asarray(self._function(*goals, [{}] * count))
        if rewards.shape != (count,):
            raise SpacesDoNotFit(
                f"compute_reward of {self._name} must return a reward per goal, {[count]}, got {list(rewards.shape)}.",
                facts=facts,
                fix="compute over the last axis (np.linalg.norm(achieved - desired, axis=-1)), or give a goal_reward",
            )
        if rewards.dtype.kind not in "biuf":
            raise SpacesDoNotFit(
                f"compute_reward of {self._name} must return real numbers, got dtype {rewards.dtype}.",
                facts=facts,
                fix="return an array of floats, or give a goal_reward",
            )
        with np.errstate(over="ignore"):
            return rewards.astype(np.float32)

    def close(self) -> None:
        """Close the environment that was built for its method."""
        if self._env is not None:
            env_checks.close_env(self._env)


def goal_rewards(source: EnvSource, spec: EnvSpec, function: GoalReward | None) -> GoalRewards:
    """Rewards by `function`, or else by the method of an environment built here for it.

    Raises:
        AsyncRLError: see `GoalRewards` and `EnvSource.build`.
    """
    goals = goals_of(spec)
    assert goals is not None, "relabelling was chosen for goals"
    if function is not None:
        return GoalRewards(spec.name, goals, function)
    env: Any = source.build()
    try:
        return GoalRewards(spec.name, goals, env.get_wrapper_attr("compute_reward"), env)
    except BaseException:
        env_checks.close_env(env)
        raise
