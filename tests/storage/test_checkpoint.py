"""Checkpoints: everything is restored, damage is detected, and a kill leaves the old file or the new one."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import math
import os
import random
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from waiting import PATIENCE_SECONDS

from asyncrl.errors import CheckpointError
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec, MultiDiscreteAction
from asyncrl.storage import tensor_file
from asyncrl.storage.checkpoint import CheckpointFolder, CheckpointMeta, load, read_policy, save

SPEC = EnvSpec("CartPole-v1", (4,), "float32", DiscreteAction(2), 500, 475.0)
META = CheckpointMeta(
    env="CartPole-v1",
    algo="dqn",
    spec=SPEC,
    options={"learning_rate": 1e-3, "hidden": [64, 64], "clip": None, "dueling": True},
    seed=3,
    env_steps=1200,
    updates=99,
    episodes=12,
    policy_version=5,
    train_seconds=1.25,
    return_mean=480.5,
)


def small_state() -> dict[str, Any]:
    return {"weights": np.arange(8, dtype=np.float32), "core": {"w": torch.arange(6.0).reshape(2, 3)}}


def test_every_kind_of_state_comes_back_equal(tmp_path: Path) -> None:
    net = torch.nn.Linear(4, 2)
    optimiser = torch.optim.Adam(net.parameters())
    net(torch.ones(3, 4)).sum().backward()
    optimiser.step()
    rng = np.random.default_rng(1)
    state = {
        "net": net.state_dict(),
        "optimiser": optimiser.state_dict(),
        "rng": rng.bit_generator.state,
        "arrays": [np.int64(3), np.zeros((0, 2), np.int32), np.array(2.5), np.arange(6).reshape(2, 3).T],
        "plain": (1, 2.5, "x", None, True, b"bytes", (), [], {}, 1 << 127, -0.0, float("inf")),
        "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "view": net.weight.T,
        7: "int key",
    }
    save(tmp_path / "latest", state, META)
    got, meta = load(tmp_path / "latest", expect_env="CartPole-v1", expect_algo="dqn")
    assert meta == META
    assert all(torch.equal(got["net"][name], value) for name, value in net.state_dict().items())
    torch.optim.Adam(torch.nn.Linear(4, 2).parameters()).load_state_dict(got["optimiser"])
    assert torch.equal(got["optimiser"]["state"][0]["exp_avg"], optimiser.state_dict()["state"][0]["exp_avg"])
    fresh = np.random.default_rng(2)
    fresh.bit_generator.state = got["rng"]
    assert fresh.random() == rng.random()
    assert got["arrays"][0] == 3
    for mine, theirs in zip(got["arrays"][1:], state["arrays"][1:], strict=True):
        assert isinstance(mine, np.ndarray)
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert (mine == theirs).all()
        mine[...] = 0  # the caller's own, writable
    assert got["plain"] == state["plain"]
    assert math.copysign(1.0, got["plain"][-2]) == -1
    assert got["half"].dtype == torch.bfloat16
    assert torch.equal(got["half"], state["half"])
    assert torch.equal(got["view"], net.weight.T)
    assert got[7] == "int key"


def test_there_is_no_pickle_in_the_file_and_any_reader_of_safetensors_opens_it(tmp_path: Path) -> None:
    save(tmp_path / "latest", small_state(), META)
    data = (tmp_path / "latest").read_bytes()
    arrays = safetensors.numpy.load(data)
    assert {name: array.shape for name, array in arrays.items()} == {"0": (8,), "1": (2, 3)}
    assert arrays["0"].tolist() == list(range(8))
    with pytest.raises(TypeError, match="a state may hold tensors, arrays, numbers and texts, got object"):
        save(tmp_path / "latest", {"core": object()}, META)
    with pytest.raises(TypeError, match=r"keys of a state must be text or integers, got \(1, 2\)"):
        save(tmp_path / "latest", {"core": {(1, 2): 3}}, META)
    assert (tmp_path / "latest").read_bytes() == data


@pytest.mark.parametrize(
    "action",
    [
        DiscreteAction(3, start=-1),
        MultiDiscreteAction((2, 3)),
        BoxAction((-1.0, -np.inf), (1.0, np.inf), (2,)),
    ],
)
def test_the_environment_comes_back(tmp_path: Path, action: Any) -> None:
    meta = CheckpointMeta(env="e", algo="a", spec=EnvSpec("e", (84, 84, 4), "uint8", action))
    save(tmp_path / "c", {}, meta)
    assert load(tmp_path / "c")[1] == meta


def test_a_policy_is_weights_and_what_builds_it(tmp_path: Path) -> None:
    save(tmp_path / "best", small_state(), META)
    policy = read_policy(tmp_path / "best")
    assert policy.meta == META
    assert policy.weights.dtype == np.float32
    assert policy.weights.tolist() == list(range(8))
    save(tmp_path / "empty", {"core": {}}, META)
    with pytest.raises(CheckpointError, match="the checkpoint holds no policy weights"):
        read_policy(tmp_path / "empty")


def refusal(path: Path, **expect: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as error:
        load(path, **expect)
    assert error.value.code == "ASYNC019"
    assert error.value.facts["file"] == path
    assert error.value.fix
    return error.value


def test_another_environment_or_algorithm_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latest"
    save(path, small_state(), META)
    env = refusal(path, expect_env="Acrobot-v1")
    assert env.what == "the checkpoint is of another environment: CartPole-v1, not Acrobot-v1"
    assert env.facts["failed check"] == "environment"
    algo = refusal(path, expect_algo="ppo")
    assert algo.what == "the checkpoint is of another algorithm: dqn, not ppo"
    assert algo.facts["failed check"] == "algorithm"


def test_another_format_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "latest"
    with monkeypatch.context() as patched:
        patched.setattr(tensor_file, "FORMAT_VERSION", "3")
        save(path, small_state(), META)
    error = refusal(path)
    assert error.what.startswith("the checkpoint has format version 3, this asyncrl ")
    assert error.facts["failed check"] == "format version"
    for start in (b"ASYNCRL\0", b"ASYNCRR\0"):
        path.write_bytes(start + bytes(200))
        error = refusal(path)
        assert error.what.startswith("the checkpoint has format version 1, this asyncrl ")
        assert error.fix == "load it with the asyncrl that wrote it"


def test_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latest"
    save(path, small_state(), META)
    whole = path.read_bytes()
    for data, check in (
        (b"", "length"),
        (whole[:20], "length"),
        (whole[:-1], "length"),
        (whole + b"x", "length"),
        (b"PK\x03\x04" + whole[4:], "length"),
        (whole[:9] + b"?" + whole[10:], "header"),
        (whole[:40] + b"?" + whole[41:], "SHA-256"),
        (whole.replace(b"CartPole", b"CartPale"), "SHA-256"),
        (whole.replace(b"cartPole-v1"[1:], b"artPole-v\\"), "header"),
        (whole.replace(b'env\\"', b'anv\\"', 1), "SHA-256"),
        (whole[:-5] + b"?" + whole[-4:], "SHA-256"),
    ):
        path.write_bytes(data)
        error = refusal(path)
        assert error.what.startswith("the checkpoint is damaged: ")
        assert error.facts["failed check"] == check
    missing = refusal(tmp_path / "nothing")
    assert missing.what == "the checkpoint cannot be read: No such file or directory"
    assert missing.facts["failed check"] == "open"


def test_single_bit_flips_are_all_seen(tmp_path: Path) -> None:
    path = tmp_path / "latest"
    save(path, small_state(), META)
    whole = path.read_bytes()
    rng = random.Random(0)
    # Every bit of the length and of the digest, and 300 anywhere.
    bits = [*range(100 * 8), *(rng.randrange(len(whole) * 8) for _ in range(300))]
    for bit in bits:
        data = bytearray(whole)
        data[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(data)
        with pytest.raises(CheckpointError):
            load(path)
    path.write_bytes(whole)
    load(path)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_without_fsync_keeps_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refused)
    save(tmp_path / "file", {"weights": np.ones(2, np.float32)}, META)
    assert load(tmp_path / "file")[0]["weights"].tolist() == [1, 1]


def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "latest"
    save(path, small_state(), META)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(path, {"weights": np.zeros(3, np.float32)}, META)
    assert [entry.name for entry in tmp_path.iterdir()] == ["latest"]
    assert read_policy(path).weights.size == 8


KILLER = """
import contextlib, itertools, os, random, signal, sys, time
from pathlib import Path
import numpy as np
from asyncrl.storage import checkpoint, tensor_file
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.errors import CheckpointError

directory, rounds, in_place = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "in_place"
if in_place:
    # The negative control: the same bytes, written straight to their name.
    @contextlib.contextmanager
    def write(path):
        with path.open("wb", buffering=4096) as file:
            yield file
    tensor_file.replaced_atomically = write
spec = EnvSpec("e", (4,), "float32", DiscreteAction(2))
path = directory / "latest"

def write(step):
    meta = checkpoint.CheckpointMeta(env="e", algo="a", spec=spec, env_steps=step)
    checkpoint.save(path, {"weights": np.full(200_000, step, np.float32)}, meta)

began = time.perf_counter()
write(0)
one_save = time.perf_counter() - began
rng, last, unreadable, moved = random.Random(0), 0, 0, 0
for _ in range(rounds):
    child = os.fork()
    if child == 0:
        try:
            for step in itertools.count(last + 1):  # until it is killed
                write(step)
        finally:
            os._exit(1)
    time.sleep(one_save * rng.uniform(0.1, 3.0))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        policy = checkpoint.read_policy(path)
    except CheckpointError:
        unreadable += 1
        write(last)
        continue
    assert (policy.weights == policy.meta.env_steps).all() and policy.weights.size == 200_000
    assert policy.meta.env_steps >= last, "a saved checkpoint went back"
    moved += policy.meta.env_steps > last
    last = policy.meta.env_steps
print(unreadable, moved)
"""


def kill_during_saves(tmp_path: Path, rounds: int, how: str) -> tuple[int, int]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLER), str(tmp_path), str(rounds), how],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    unreadable, moved = map(int, done.stdout.split())
    return unreadable, moved


def test_a_kill_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    unreadable, moved = kill_during_saves(tmp_path, 100, "rename")
    assert unreadable == 0
    assert moved > 0, "no save ever ended, so the kills proved nothing"


def test_a_kill_while_writing_in_place_is_seen(tmp_path: Path) -> None:
    unreadable, _ = kill_during_saves(tmp_path, 40, "in_place")
    assert unreadable > 0


def test_a_folder_names_latest_and_best_and_keeps_a_few(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=2)
    assert folder.steps() == []
    for step in (100, 200, 300, 1000):
        meta = CheckpointMeta(env="CartPole-v1", algo="dqn", spec=SPEC, env_steps=step)
        assert folder.save(small_state(), meta, best=step == 100).name == str(step)
    assert folder.steps() == [300, 1000]
    assert load(folder.directory / "latest")[1].env_steps == 1000
    assert load(folder.directory / "best")[1].env_steps == 100
    assert {entry.name for entry in folder.directory.iterdir()} == {"300", "1000", "latest", "best"}
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        CheckpointFolder(tmp_path, keep=0)


def test_a_run_that_goes_on_from_an_earlier_checkpoint_keeps_its_own_files(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=3)
    for step in (50, 80, 90, 100, 60, 70, 75):
        meta = CheckpointMeta(env="CartPole-v1", algo="dqn", spec=SPEC, env_steps=step)
        assert folder.save(small_state(), meta).exists()
    assert folder.steps() == [60, 70, 75]


def test_a_folder_keeps_no_rows_of_a_run_that_saves_none_any_more(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    rows = tmp_path / "100.replay"
    rows.touch()
    folder.save(
        {"weights": np.zeros(2), "run": {"rows": rows.name}}, dataclasses.replace(META, env_steps=100)
    )
    folder.save(
        {"weights": np.zeros(2), "run": {}}, dataclasses.replace(META, env_steps=150), best=True, latest=False
    )
    assert rows.exists(), "the latest checkpoint still has its rows"
    folder.save({"weights": np.zeros(2), "run": {}}, dataclasses.replace(META, env_steps=200))
    assert not rows.exists()


def test_a_folder_works_without_hard_links_and_clears_what_a_kill_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(source: Path, target: Path) -> None:
        raise OSError(1, "Operation not permitted")

    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        events.append("sync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name.split(".")[1])
        fsync(descriptor)

    def renamed(source: Path, target: Path) -> Path:
        events.append(f"rename {target.name}")
        return replace(source, target)

    monkeypatch.setattr(os, "link", no_links)
    (tmp_path / ".latest.1.tmp").write_bytes(b"half")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: synced(fd) if stat.S_ISREG(os.fstat(fd).st_mode) else fsync(fd))
        patch.setattr(Path, "replace", renamed)
        CheckpointFolder(tmp_path).save(small_state(), META)
    assert events == ["sync 1200", "rename 1200", "sync latest", "rename latest"]
    digests = {hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("1200", "latest")}
    assert len(digests) == 1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["1200", "latest"]
