"""Every algorithm refuses the action spaces that it does not support, by every way to begin."""

from typing import Any

import numpy as np
import pytest

from asyncrl.algorithms import ALGORITHMS
from asyncrl.algorithms.action_spaces import supported_algorithms
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import ActionSpec, Agent, BoxAction, DiscreteAction, EnvSpec, MultiDiscreteAction

KINDS: dict[str, ActionSpec] = {
    "Discrete": DiscreteAction(3),
    "MultiDiscrete": MultiDiscreteAction((2, 3)),
    "Box": BoxAction((-1.0, -2.0), (1.0, 6.0), (2,)),
    "unbounded": BoxAction((-1.0, -np.inf), (1.0, 1.0), (2,)),
}
SUPPORTED = {
    **dict.fromkeys(
        ("dqn", "c51", "qrdqn", "rainbow", "r2d2", "pqn", "vdn", "qmix"), frozenset({"Discrete"})
    ),
    **dict.fromkeys(("ddpg", "td3", "td7", "sac", "tqc", "crossq"), frozenset({"Box"})),
    **dict.fromkeys(("td3bc", "iql"), frozenset({"Box"})),
    "bc": frozenset({"Discrete", "MultiDiscrete", "Box"}),
    "maddpg": frozenset({"Discrete", "Box"}),
    **dict.fromkeys(("ppo", "a2c", "impala", "mappo"), frozenset(KINDS)),
}
"""Kinds by algorithm, written out: the records' own data is under test."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_an_action_space_is_supported_or_refused(name: str, kind: str) -> None:
    record: Any = ALGORITHMS[name]()
    spec = EnvSpec("Env-v0", (2,), "float32", KINDS[kind], agents=(Agent("a"), Agent("b")))
    if kind in SUPPORTED[name]:
        record.check(spec)
        named = name in supported_algorithms(spec).split(", ")
        assert named == (record.update_loop != "dataset"), "a dataset is no fix for an action space"
        return
    wanted = rf"^\[ASYNC005\] {name} needs (a .+ action space, and Env-v0 has|finite bounds, and value 1)"
    for begin in (record.check, record.make_policy, lambda spec: record.make_updater(spec, "cpu", 0)):
        with pytest.raises(SpacesDoNotFit, match=wanted) as caught:
            begin(spec)
        fit = str(caught.value).partition("algorithms that fit: ")[2].partition("\n")[0]
        assert fit and name not in fit.split(", "), "the text names algorithms that fit"
        if kind != "unbounded":
            assert ("bc" in fit.split(", ")) == (record.update_loop == "dataset"), "a dataset stays a dataset"


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (DiscreteAction(3), "Discrete(3)"),
        (DiscreteAction(3, start=1), "Discrete(3, start=1)"),
        (MultiDiscreteAction((2, 3)), "MultiDiscrete([2, 3])"),
        (MultiDiscreteAction((2, 3), (1, 0), (1, 2)), "MultiDiscrete([2, 3], start=[1, 0]) of shape (1, 2)"),
        (BoxAction((-1.0, -2.0), (1.0, 6.0), (2,)), "Box from -2 to 6 of shape (2,)"),
    ],
)
def test_an_error_names_the_space_as_check_does(action: ActionSpec, text: str) -> None:
    name = "sac" if not isinstance(action, BoxAction) else "dqn"
    with pytest.raises(SpacesDoNotFit) as caught:
        ALGORITHMS[name]().check(EnvSpec("Env-v0", (2,), "float32", action))
    assert str(caught.value).splitlines()[0].endswith(f"action space, and Env-v0 has {text}")
    assert f"  action space: {text}\n" in str(caught.value)
