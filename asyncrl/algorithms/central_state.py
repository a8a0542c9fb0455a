"""The option `central_state`: what a central critic or a mixer sees, which is more than any agent.

    observations    the observations of all agents, one after the other
    state           the environment's state (`state()` and `state_space` of PettingZoo's parallel API)
    auto            the state if the environment has one, else the observations

The state is a field of the row: the actor writes it once for each environment and step, beside the observations, into
the array `global_state` of its ring, so that replay and segments read it in place. So the state after an episode's last
step, which is bootstrapped where the episode was truncated, is that of the row with the final observations. Rings hold
it, and actors compute it, only if the algorithm reads it. No policy sees it.
"""

from __future__ import annotations

from typing import Any, Literal

from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import EnvSpec

CentralState = Literal["auto", "state", "observations"]


def resolved(algorithm: Any, spec: EnvSpec) -> Literal["state", "observations"]:
    """What `central_state` stands for in this environment; observations for an algorithm without the option."""
    chosen = getattr(algorithm, "central_state", "observations")
    if chosen == "auto":
        return "state" if spec.state_values else "observations"
    return "state" if chosen == "state" else "observations"


def state_values(algorithm: Any, spec: EnvSpec) -> int:
    """Number of values of the state that the learner reads; 0 if it reads none.

    Raises:
        SpacesDoNotFit: `central_state` is state, and the environment has none (ASYNC005).
    """
    if resolved(algorithm, spec) == "observations":
        return 0
    if not spec.state_values:
        raise SpacesDoNotFit(
            f"central_state is state, and {spec.name} has no state that is an array of numbers.",
            facts={"algorithm": algorithm.name},
            fix="give the environment PettingZoo's state() and a state_space that is a Box (not of images), or write "
            "central_state='observations'",
        )
    return spec.state_values
