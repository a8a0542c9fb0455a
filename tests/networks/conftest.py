"""Fixture of the tests of networks."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def draws_do_not_depend_on_the_tests_before() -> None:
    """Seed torch's own generator, which the inputs of many tests come from."""
    torch.manual_seed(0)
