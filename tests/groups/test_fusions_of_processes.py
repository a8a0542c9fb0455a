"""Fusions of three processes that are killed, suspended and restarted, each checked to the bit; see the benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(400)


def test_every_fusion_is_what_its_definition_says(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.groups.fusions", "--fusions", "100", "--kills", "1"]
    command += ["--only", "average", "--only", "async"]  # gradients: test_union.py, and the benchmark
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads((tmp_path / "groups_fusions.json").read_text())["figures"]
    for mode in ("average", "async"):
        assert figures[f"{mode}_fusions"]["median"] >= 100
        assert figures[f"{mode}_vectors"]["median"] > 3 * figures[f"{mode}_fusions"]["median"] * 0.9
        assert figures[f"{mode}_kills"]["median"] == 1
