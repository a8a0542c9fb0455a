"""Metrics that an updater reports are those that its page in docs/ lists."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import segment_rig
import test_contract

from asyncrl.algorithms import ALGORITHMS
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.show.metrics import RUN_METRICS

ROOT = Path(__file__).parents[2]
OWN = sorted(name for name, made in ALGORITHMS.items() if made.__module__.startswith("asyncrl."))
UPDATES = 3
OF_EVERY_RUN = {metric.name for metric in RUN_METRICS}


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    """The script that writes the pages."""
    loader = SourceFileLoader("write_docs", str(ROOT / "scripts" / "write-docs"))
    spec = spec_from_loader("write_docs", loader)
    assert spec is not None
    module = sys.modules["write_docs"] = module_from_spec(spec)
    loader.exec_module(module)
    return module


def environment(name: str) -> EnvSpec:
    return test_contract.spec_of(name, "vector" if DiscreteAction in ALGORITHMS[name].action_kinds else "box")


def reported(name: str, **options: Any) -> set[str]:
    """Names of the metrics after the updates; CrossQ trains its actor at every third one."""
    spec = environment(name)
    if ALGORITHMS[name].update_loop == "segments":
        algorithm = segment_rig.record(name, **options)
        core = algorithm.make_updater(spec, "cpu", 0)
        segment_rig.iterate(core, segment_rig.batch_of(algorithm, spec, core))
        return set(core.metrics())
    replayed: Any = test_contract.record(name, **options)
    core = replayed.make_updater(spec, "cpu", 0)
    for seed in range(UPDATES):
        core.update(test_contract.filled_batch(replayed, spec, seed))
    return set(core.metrics())


@pytest.mark.parametrize("name", OWN)
def test_the_page_lists_what_the_updater_reports(name: str, docs: ModuleType) -> None:
    found = reported(name)
    if "train/noise" in docs.LOGGED[name]:
        found |= reported(name, noisy=True)
    assert {"train/loss", "train/learning_rate"} <= found & OF_EVERY_RUN
    assert found - OF_EVERY_RUN == set(docs.LOGGED[name])
