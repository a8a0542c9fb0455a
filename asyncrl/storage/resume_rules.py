"""Table of the options that may not change when a run is resumed, and the check of them.

All other options may change: length and speed of training, evaluation, reports, checkpoints, the live page, learning
rates and the coefficients of a loss.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from asyncrl.algorithms.policy_options import require_policy_options
from asyncrl.config import TrainerConfig
from asyncrl.errors import ConfigurationError
from asyncrl.options import option_values
from asyncrl.protocols import Algorithm

TASK = "it says what is learned"
NETWORK = "the checkpoint's weights have its shape"
VALUES = "the checkpoint's action values are in its unit"
STATISTICS = "the checkpoint's statistics belong to it"
ROWS = "the positions in the experience rings count by it"
OPTIMISER = "the checkpoint's optimiser counts the steps of its parts by it"
RANDOM = "the generators go on as they were"
BEGUN = "the run has weights of its own by now"

FIXED = {
    "env": TASK,
    "env_kwargs": TASK,
    "wrappers": TASK,
    "agent_id": TASK,
    "pad_spaces": TASK,
    "policies": TASK,
    "algo": TASK,
    "seed": RANDOM,
    "demonstration_fraction": RANDOM,
    "init_from": BEGUN,
    "initial_log_std": BEGUN,
    "ent_coef_initial": BEGUN,
    "envs_per_actor": ROWS,
    "segment_length": ROWS,
    "discipline": ROWS,
    "network": NETWORK,
    "frame_stack": NETWORK,
    "recurrent": NETWORK,
    "recurrent_size": NETWORK,
    "hidden_sizes": NETWORK,
    "value_hidden_sizes": NETWORK,
    "critic_hidden_sizes": NETWORK,
    "mixing_size": NETWORK,
    "hypernet_size": NETWORK,
    "central_state": NETWORK,
    "shared_trunk": NETWORK,
    "activation": NETWORK,
    "layer_norm": NETWORK,
    "dueling": NETWORK,
    "noisy": NETWORK,
    "num_atoms": NETWORK,
    "num_quantiles": NETWORK,
    "num_critics": NETWORK,
    "squashed": NETWORK,
    "v_min": VALUES,
    "v_max": VALUES,
    "value_rescaling": VALUES,
    "reward_scale": VALUES,
    "value_epochs": OPTIMISER,
    "normalize_observations": STATISTICS,
    "normalize_rewards": STATISTICS,
}
"""Options of the run and of all algorithms that may not change, with the reason."""
FIXED_IN_LOCKSTEP = dict.fromkeys(
    (
        *("num_actors", "inference", "torch_threads"),
        *("self_play", "self_play_fraction", "self_play_interval", "self_play_versions"),
    ),
    "in lockstep every number depends on it",
)
"""Further options that may not change if the discipline is exact (see `Algorithm.exact`), with the reason."""


KNOWN_BY_CONTENT = ("dataset", "demonstrations")
"""Folders that may have moved: the checkpoint knows their steps by a checksum."""


def check_changes(
    config: TrainerConfig, algorithm: Algorithm, new_config: TrainerConfig, new_algorithm: Algorithm
) -> None:
    """Compare the options of a run with those it is to be resumed with.

    Raises:
        ConfigurationError: an option may not change; the text names it, both values and the reason (ASYNC017).
    """
    fixed = FIXED | FIXED_IN_LOCKSTEP if algorithm.exact else FIXED
    if config.demonstrations is not None:
        fixed = fixed | {"prioritized": "the checkpoint's priorities of the demonstrations belong to it"}
    before = {**option_values(algorithm), **option_values(config)}
    after = {**option_values(new_algorithm), **option_values(new_config)}
    for name, reason in fixed.items():
        # A function, which may be the network, has no value here.
        was, asked = (values.get(name, "a function") for values in (before, after))
        if was != asked:
            raise refused_change(name, was, asked, reason)
    for name in KNOWN_BY_CONTENT:
        if (before[name] is None) != (after[name] is None):
            raise refused_change(name, before[name], after[name], TASK)
    for policy in config.policies:
        own = _own_values(algorithm, config, policy), _own_values(new_algorithm, new_config, policy)
        for name in own[0].keys() & fixed.keys():
            if own[0][name] != own[1][name]:
                raise refused_change(f"{name} of policy {policy}", own[0][name], own[1][name], fixed[name])


def _own_values(algorithm: Any, config: TrainerConfig, policy: str) -> dict[str, Any]:
    """Values of the algorithm's options for one of several policies."""
    require_policy_options(algorithm, config)
    return option_values(dataclasses.replace(algorithm, **config.policy_options.get(policy, {})))


def refused_change(name: str, before: Any, after: Any, reason: str) -> ConfigurationError:
    """Make the error ASYNC017 for an option that may not change when a run is resumed."""
    return ConfigurationError(
        f"{name} may not change when a run goes on: {reason}",
        facts={"option": name, "of the run": before, "asked for": after},
        fix=f"leave {name} as it is, or begin a new run; init_from gives it the policy, where spaces and network are "
        "the same",
    )
