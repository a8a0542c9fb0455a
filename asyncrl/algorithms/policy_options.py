"""Options of the algorithm that one of several policies of the agents has for itself: the option `policy_options`.

A policy's record is the algorithm's with its own options in place of the common ones (`own_record` of
`acting/agent_policies.py`). Its network, loss, optimiser and exploration, and on replay its returns and priorities,
follow that record. Rings, pace and update loop are those of all policies and follow the common one, so that what they
read may not differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from asyncrl.config import TrainerConfig
from asyncrl.interfaces import EnvSpec
from asyncrl.options import near_miss, option_help

ROWS = "it shapes the rows, which all policies share"
PACE = "actors and learner have one pace for all policies"
LOOP = "one update loop uses the samples of all policies"

COMMON = {
    "frame_stack": ROWS,
    "n_step": ROWS,
    "replay_capacity": ROWS,
    "segment_length": ROWS,
    "sequence_length": ROWS,
    "sequence_period": ROWS,
    "burn_in": ROWS,
    "recurrent": ROWS,
    "recurrent_size": ROWS,
    "squashed": ROWS,
    "n_sampled_goal": ROWS,
    "goal_selection_strategy": ROWS,
    "past_segments": ROWS,
    "past_per_batch": ROWS,
    "past_newest": ROWS,
    "discipline": PACE,
    "lockstep_lag": PACE,
    "batch_size": PACE,
    "epochs": PACE,
    "value_epochs": PACE,
    "reuse_epochs": PACE,
    "segments_per_batch": PACE,
    "queue_batches": PACE,
    "learning_starts": PACE,
    "samples_per_insert": PACE,
    "samples_per_insert_error": PACE,
    "publish_interval": PACE,
    "max_staleness": LOOP,
    "staleness_correction": LOOP,
    "staleness_rate": LOOP,
    "beta_start": LOOP,
    "beta_end": LOOP,
    "matmul_precision": "the learner has one",
    "replay_device": "the rows of all policies are on one device",
    "inference": "one process of an actor acts for all policies",
}
"""Options that all policies have in common, with the reason."""


def require_policy_options(algorithm: Any, config: TrainerConfig) -> None:
    """Check the options of single policies.

    Raises:
        ValueError: a policy does not exist, or an option does not exist, must be common, or has a wrong value.
    """
    for policy, options in config.policy_options.items():
        if policy not in config.policies:
            known = ", ".join(config.policies) or "none"
            raise ValueError(f"policy_options must name policies of the run ({known}), got {policy}")
        if not isinstance(options, Mapping):
            raise ValueError(
                f"policy_options must have options of the algorithm for {policy}, such as "
                f"{policy}.learning_rate:1e-4, got {options!r}"
            )
        for name, value in options.items():
            _require_own(algorithm, policy, name, value)
        try:
            dataclasses.replace(algorithm, **options)
        except ValueError as error:
            raise ValueError(f"policy_options of {policy}: {error}") from None


def _require_own(algorithm: Any, policy: str, name: str, value: Any) -> None:
    known = option_help(type(algorithm))
    if name not in known:
        miss = near_miss(name, known)
        hint = f"; did you mean {miss}?" if miss else ""
        raise ValueError(f"policy_options of {policy}: {algorithm.name} has no option {name!r}{hint}")
    if name in COMMON:
        raise ValueError(
            f"policy_options of {policy}: {name} must be that of all policies, for {COMMON[name]}, got {value!r}; set "
            f"it for the run: {type(algorithm).__name__}({name}=...), --{algorithm.name}.{name.replace('_', '-')}"
        )


def with_policy_options(spec: EnvSpec, options: Mapping[str, Mapping[str, Any]]) -> EnvSpec:
    """Spec whose policies have these options of their own."""
    if not options:
        return spec
    own = (
        dataclasses.replace(policy, options=dict(options.get(policy.name, {}))) for policy in spec.policies
    )
    return dataclasses.replace(spec, policies=tuple(own))
