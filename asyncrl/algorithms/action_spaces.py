"""Checks of an environment's action space and number of agents against what an algorithm supports (ASYNC005)."""

from __future__ import annotations

import numpy as np

from asyncrl.acting.images import choose_network
from asyncrl.algorithms.registry import ALGORITHMS, Restricted
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import ActionSpec, BoxAction, DiscreteAction, EnvSpec, MultiDiscreteAction

_KINDS = {DiscreteAction: "discrete", MultiDiscreteAction: "MultiDiscrete", BoxAction: "Box"}


def unbounded(action: ActionSpec) -> int | None:
    """Index of the first value of a Box action without finite float32 bounds; None if all are bounded."""
    if not isinstance(action, BoxAction):
        return None
    largest = float(np.finfo(np.float32).max)
    bounds = enumerate(zip(action.low, action.high, strict=True))
    return next((i for i, (low, high) in bounds if not max(abs(low), abs(high)) <= largest), None)


def supported_algorithms(spec: EnvSpec, of_datasets: bool = False) -> str:
    """Names of the algorithms with actors (or of those on datasets) that support `spec`, or "none of this version"."""
    endless, pictures = unbounded(spec.action) is not None, choose_network("auto", spec) is not None
    together = spec.num_agents > 1 and not spec.policies  # they train all agents as one team
    names = [
        name
        for name, record in ALGORITHMS.items()
        if isinstance(spec.action, record.action_kinds)
        and _learns_from_dataset(record) == of_datasets
        and not (endless and record.needs_bounds)
        and (getattr(record, "takes_images", True) or not pictures)
        and (together or not getattr(record, "needs_agents", False))
    ]
    return ", ".join(sorted(names)) or "none of this version"


def _learns_from_dataset(record: Restricted | type[Restricted]) -> bool:
    return getattr(record, "update_loop", "") == "dataset"


def why_together(algorithm: object) -> str:
    """Why the agents of an algorithm that needs several have one policy; completes "must be none for NAME, ..."."""
    one_team = getattr(algorithm, "team_reward", False)
    return "whose agents are one team" if one_team else "whose critic sees all agents"


def check_agents(record: Restricted, spec: EnvSpec) -> None:
    """Refuse an environment of one agent for an algorithm that trains several together. Raises `SpacesDoNotFit`."""
    if spec.num_agents == 1:
        raise SpacesDoNotFit(
            f"{record.name} trains the agents of an environment together and needs at least two, and {spec.name} has "
            "one",
            facts={"algorithms that fit": supported_algorithms(spec)},
            fix="choose one of these, or an environment of several agents, with PettingZoo's parallel API",
        )


def check_action_space(record: Restricted, spec: EnvSpec, option: str | None = None) -> None:
    """Refuse an action space that `record.action_kinds` and `record.needs_bounds` do not allow.

    Args:
        record: an algorithm.
        spec: the environment.
        option: name of a set option that needs finite bounds, if there is one.

    Raises:
        SpacesDoNotFit: ASYNC005; lists the algorithms that support these actions.
    """
    action, name = spec.action, record.name
    if not isinstance(action, record.action_kinds):
        kinds = " or ".join(_KINDS[kind] for kind in record.action_kinds)
        what = f"{name} needs a {kinds} action space, and {spec.name} has {action}"
        fix = f"choose one of these, or an environment or a wrapper with a {kinds} action space"
    elif (record.needs_bounds or option) and (index := unbounded(action)) is not None:
        assert isinstance(action, BoxAction)
        bounds = f"[{action.low[index]}, {action.high[index]}]"
        who = name if record.needs_bounds else f"{name}.{option}"
        what = f"{who} needs finite bounds, and value {index} of {spec.name}'s actions lies in {bounds}"
        other = "choose one of these" if record.needs_bounds else f"leave {option} off"
        fix = f"{other}, or wrap the environment in one whose action_space has finite bounds"
    else:
        return
    fitting = supported_algorithms(spec, _learns_from_dataset(record))
    facts = {"action space": action, "algorithms that fit": fitting}
    raise SpacesDoNotFit(what, facts=facts, fix=fix)
