from __future__ import annotations

import resource
import threading
from pathlib import Path

import pytest

from asyncrl.actors import processes
from asyncrl.actors.processes import BESIDES, require_processes
from asyncrl.errors import ResourceError
from asyncrl.shm import control_groups


@pytest.fixture
def no_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "_MEMBERSHIPS", tmp_path / "none")


def user_limit(monkeypatch: pytest.MonkeyPatch, allowed: int, uid: int = 1000) -> None:
    monkeypatch.setattr(processes.os, "getuid", lambda: uid)
    real = resource.getrlimit
    limits = {resource.RLIMIT_NPROC: (allowed, allowed)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits.get(which) or real(which))
    monkeypatch.setattr(processes, "_running_of_user", lambda: 40)


def test_the_limit_of_the_user_is_told(no_groups: None, monkeypatch: pytest.MonkeyPatch) -> None:
    user_limit(monkeypatch, 100)
    require_processes(60 - BESIDES)
    with pytest.raises(ResourceError) as caught:
        require_processes(61 - BESIDES)
    text = str(caught.value)
    assert f"A run with {61 - BESIDES} actors needs 61 more processes and threads" in text
    assert "the limit of this user (ulimit -u) leaves 60" in text
    assert "run `ulimit -u 101` in the shell before, or lower num_actors" in text
    assert (caught.value.facts["allowed"], caught.value.facts["running already"]) == (100, 40)
    assert ResourceError.exit_code == 4


@pytest.mark.parametrize(("allowed", "uid"), [(10, 0), (resource.RLIM_INFINITY, 1000)])
def test_root_and_no_limit_are_not_refused(
    no_groups: None, monkeypatch: pytest.MonkeyPatch, allowed: int, uid: int
) -> None:
    user_limit(monkeypatch, allowed, uid)
    require_processes(10_000)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("inner", ["max", "1000"])
def test_the_smallest_limit_of_the_control_groups_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, inner: str
) -> None:
    user_limit(monkeypatch, resource.RLIM_INFINITY)
    top = tmp_path / "fs" / ("pids" if version == 1 else "")
    for group, allowed in (("box/job", inner), ("box", "64")):
        (top / group).mkdir(parents=True, exist_ok=True)
        (top / group / "pids.max").write_text(f"{allowed}\n")
        (top / group / "pids.current").write_text("30\n")
    (tmp_path / "cgroup").write_text("8:pids:/box/job\n" if version == 1 else "0::/box/job\n")
    monkeypatch.setattr(control_groups, "_MEMBERSHIPS", tmp_path / "cgroup")
    monkeypatch.setattr(control_groups, "_ROOT", tmp_path / "fs")
    require_processes(34 - BESIDES)
    with pytest.raises(ResourceError) as caught:
        require_processes(35 - BESIDES)
    text = str(caught.value)
    assert f"{top / 'box' / 'pids.max'}) leaves 34" in text and "raise it to 65" in text


def test_threads_of_this_user_are_counted() -> None:
    ends = threading.Event()
    before = processes._running_of_user()
    threads = [threading.Thread(target=ends.wait) for _ in range(200)]
    try:
        for thread in threads:
            thread.start()
        # Others start and end processes meanwhile, but not a hundred.
        assert before + 100 <= processes._running_of_user() <= before + 300
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def test_a_run_asks_before_it_starts_actors(no_groups: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from asyncrl import DQN, Trainer

    user_limit(monkeypatch, 50)
    with pytest.raises(ResourceError, match=r"needs 18 more processes and threads.*leaves 10"):
        Trainer("CartPole-v1", DQN(), num_actors=2, http="off").learn(total_steps=10)
