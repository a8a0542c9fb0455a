"""First settings of C51, QR-DQN and Rainbow for a few classic environments: DQN's, with a support that fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.algorithms.presets import Preset

_TRAINER = {"num_actors": 1, "envs_per_actor": 16}
_CART_POLE_TRAINER = {**_TRAINER, "eval_interval_seconds": 0.1}

_CART_POLE: Mapping[str, Any] = {
    "learning_rate": 2e-3,
    "hidden_sizes": (128, 128),
    "samples_per_insert": 32.0,
    "learning_starts": 500,
    "replay_capacity": 50_000,
}

_LUNAR_LANDER: Mapping[str, Any] = {
    "learning_rate": 1e-3,
    "learning_rate_schedule": "linear",
    "learning_rate_final": 1e-4,
    "learning_rate_updates": 25_000,
    "hidden_sizes": (128, 128),
    "batch_size": 128,
    "tau": 0.01,
    "n_step": 5,
    "samples_per_insert": 16.0,
    "replay_capacity": 200_000,
    "learning_starts": 2_000,
}

# Epsilon as DQN's presets have it, and uniform replay; Rainbow brings its own of both.
_CART_POLE_PLAIN = {**_CART_POLE, "prioritized": False, "exploration_steps": 3_000}
_LUNAR_LANDER_PLAIN = {
    **_LUNAR_LANDER,
    "prioritized": False,
    "exploration_steps": 40_000,
    "exploration_repeat": 8,
    "exploration_final": 0.02,
}

# The discounted return of CartPole-v1 is below 1 / (1 - gamma) = 100. That of LunarLander-v3 lies within +-200 but for
# the worst crashes.
_CART_POLE_SUPPORT = {"v_min": 0.0, "v_max": 100.0}
_LUNAR_LANDER_SUPPORT = {"v_min": -200.0, "v_max": 200.0}

C51_PRESETS: Mapping[str, Preset] = {
    "CartPole-v1": Preset({**_CART_POLE_PLAIN, **_CART_POLE_SUPPORT}, _CART_POLE_TRAINER),
    "LunarLander-v3": Preset({**_LUNAR_LANDER_PLAIN, **_LUNAR_LANDER_SUPPORT}, _TRAINER),
}

QRDQN_PRESETS: Mapping[str, Preset] = {
    "CartPole-v1": Preset({**_CART_POLE_PLAIN, "reward_scale": 0.03}, _CART_POLE_TRAINER),
    "LunarLander-v3": Preset({**_LUNAR_LANDER_PLAIN, "reward_scale": 0.05}, _TRAINER),
}

RAINBOW_PRESETS: Mapping[str, Preset] = {
    "CartPole-v1": Preset({**_CART_POLE, **_CART_POLE_SUPPORT}, _CART_POLE_TRAINER),
    "LunarLander-v3": Preset({**_LUNAR_LANDER, **_LUNAR_LANDER_SUPPORT}, _TRAINER),
}
