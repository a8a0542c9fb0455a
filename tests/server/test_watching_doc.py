"""Names in docs/watching.md exist: paths, series, fields of the terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from serving import TOKEN, ServerThread
from snapshots import make_snapshot

from asyncrl.show.group_statistics import GroupStatistics
from asyncrl.show.readout import LINE_LENGTH, readout

TEXT = (Path(__file__).parents[2] / "docs" / "watching.md").read_text()
NAMES = sorted(set(re.findall(r"`(asyncrl_[a-z_]+)", TEXT)) - {"asyncrl_train_"})


@pytest.mark.parametrize("shared", ["uvloop"], indirect=True)
def test_every_path_is_served(server: ServerThread) -> None:
    named = re.findall(r"`(GET|POST) (/[a-z]*)`", TEXT)
    assert len(named) == 9
    for method, path in named:
        if path not in ("/events", "/film"):  # a film is there after an evaluation
            assert server.ask(path, method=method, token=TOKEN).status < 300, path


@pytest.mark.parametrize("shared", ["uvloop"], indirect=True)
def test_every_series_is_exported(server: ServerThread) -> None:
    server.show(make_snapshot(train_metrics={"train/td_error": 0.5, "rollout/ep_rew_mean/first": 1.0}))
    text = server.ask("/metrics").body.decode()
    assert len(NAMES) > 12 and "asyncrl_train_td_error" in text
    for name in NAMES:
        assert re.search(rf"^{name}(_bucket)?[ {{]", text, flags=re.M), name


def test_the_terminal_has_every_field_and_the_lines_are_as_shown() -> None:
    words = readout(make_snapshot())
    labels = {field.label for _, fields in words.groups for field in fields} | {"final evaluation 37/100"}
    for fusion in ("gradients", "async"):
        away = GroupStatistics(1, fusion=fusion, state="ended")
        groups = GroupStatistics(0, fusion=fusion, state="training"), away
        labels |= {field.label for field in readout(make_snapshot(groups=groups)).fusion}
    table = TEXT[TEXT.index("| field |") : TEXT.index("The first Ctrl-C")]
    cells = [row.split("|")[1].strip() for row in table.splitlines()[2:] if row]
    named = {name.strip() for cell in cells for name in cell.split(",")}
    assert named - labels == {"first line", "nearest stop", "heard"}
    assert words.line() in TEXT and len(words.line()) <= LINE_LENGTH
