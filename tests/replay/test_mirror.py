"""Mirror of the rings' observations: its batches equal the CPU's bitwise; rows being copied are not granted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from labelled_device import LabelledDevice
from replay_rig import FRAMES_SPEC, Rig, check_against_twin, random_operation, rig
from replay_world import World, world

from asyncrl import DQN, TrainerConfig
from asyncrl.errors import ConfigurationError, ResourceError
from asyncrl.interfaces import Batch, DiscreteAction, EnvSpec
from asyncrl.learning import lockstep_replay
from asyncrl.learning import mirror as mirror_module
from asyncrl.learning.make_loop import make_loop, mirror_of
from asyncrl.learning.mirror import ObservationMirror, make_mirror
from asyncrl.replay import PrioritizedReplay
from asyncrl.replay.replay import find_frames
from asyncrl.replay.replay_state import priorities_of
from asyncrl.shm import RingReader, WeightMailbox

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
IMAGES = EnvSpec("images", (12, 12), "uint8", DiscreteAction(3))


def follow_ingests(r: Rig, mirror: ObservationMirror) -> None:
    """Copy rows into the mirror whenever the rig ingests."""
    ingest = r.ingest

    def followed() -> None:
        ingest()
        mirror.follow(r.replay.published_rows())

    r.ingest = followed  # type: ignore[method-assign]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("rings", "envs", "slots", "n_step", "frames"), [(2, 3, 16, 3, 1), (2, 2, 16, 3, 4), (1, 5, 64, 2, 2)]
)
def test_random_operations_give_the_rows_that_actors_wrote(
    seed: int, rings: int, envs: int, slots: int, n_step: int, frames: int, device: str
) -> None:
    shape = {"rings": rings, "envs": envs, "slots": slots, "n_step": n_step, "frame_stack": frames}
    with rig(seed, **shape, spec=FRAMES_SPEC) as r:  # type: ignore[arg-type]
        mirror, batch = ObservationMirror(r.replay, device, 16), r.batch(16)
        follow_ingests(r, mirror)
        rows, check, checked = torch.empty(32, 15 * frames, device=device), r.check_batch, []

        def check_gathered(batch: Batch) -> None:
            batch.obs[:], batch.next_obs[:] = 7, 7
            mirror.locate(batch)
            mirror.gather(rows)
            for name, values in mirror.arrays(batch).items():
                getattr(batch, name)[:] = values
            both = np.concatenate((batch.obs, batch.next_obs)).reshape(32, -1)
            assert np.array_equal(rows.cpu().numpy(), both * np.float32(1 / 255))
            check(batch)
            checked.append(batch.ids.copy())

        r.check_batch = check_gathered  # type: ignore[method-assign]
        old: list[Any] = []
        for _ in range(400):
            random_operation(r, batch, old)
        check_against_twin(r)
        assert len(checked) > 20
        assert max(len(written) for written in r.twin.rows) > 2 * slots, "the rings must wrap"
        mirror.close()


def test_places_interpreted() -> None:
    with rig(1, rings=2, envs=3, slots=16, n_step=2, frame_stack=3, spec=FRAMES_SPEC) as r:
        batch = r.batch(16)
        for _ in range(5):
            for ring, actor in enumerate(r.actors):
                actor.write(7)
                r.ingest()
                r.grant(ring, max(actor.writer.granted, actor.writer.published + 8))
        r.replay.sample(batch, 0.0)
        compiled, interpreted = np.zeros((2, 16, 3), np.int64), np.zeros((2, 16, 3), np.int64)
        r.replay.find_frames(batch, compiled)
        work = r.replay._batches[id(batch)][1].work
        find_frames.py_func(r.replay._table, r.replay._state, batch.ids, work, interpreted)
        assert np.array_equal(compiled, interpreted) and compiled.any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("spec", [IMAGES, replace(IMAGES, observation_kind="grid")], ids=["image", "grid"])
def test_updates_equal_those_on_batches_of_the_cpu(device: str, spec: EnvSpec) -> None:
    with rig(3, rings=2, envs=4, slots=64, n_step=3, frame_stack=2, spec=IMAGES) as r:
        for _ in range(12):
            for ring, actor in enumerate(r.actors):
                actor.write(9)
                r.ingest()
                r.grant(ring, max(actor.writer.granted, actor.writer.published + 12))
        algorithm = DQN(frame_stack=2, batch_size=8, prioritized=False)
        weights = []
        for mirrored in (False, True):
            replay = PrioritizedReplay(
                r.replay.rings, n_step=3, gamma=0.5, frame_stack=2, rng=np.random.default_rng(5)
            )
            for ring, actor in enumerate(r.actors):
                replay.retire(ring, actor.writer.granted)
            replay.ingest()
            batch, core = Batch.allocate(8, spec.stacked(2)), algorithm.make_updater(spec, device, 0)
            mirror = ObservationMirror(replay, device, 8, spec.byte_factor) if mirrored else None
            batch.source = mirror
            for _ in range(5):
                batch.obs[:], batch.next_obs[:] = 7, 7
                replay.sample(batch, 1.0)
                batch.action %= 3  # the rig's are any numbers, and the update's kernel takes them as indices
                if mirror is not None:
                    mirror.follow(replay.published_rows())
                    mirror.locate(batch)
                core.update(batch)
            assert (batch.obs == 7).all() == mirrored, "nobody gathers twice"
            weights.append(np.empty(core.weight_count, np.float32))
            core.write_weights(weights[-1])
            if mirror is not None:
                mirror.close()
        if device == "cpu":
            assert np.array_equal(*weights)
        else:
            np.testing.assert_allclose(*weights, rtol=1e-4, atol=1e-5)


class SlowCopies:
    """Fake mirror that answers every second query about safe rows with no."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.refused: dict[int, int] = {}
        self.refusals = 0

    def follow(self, published: np.ndarray[Any, Any]) -> None:
        for ring, position in self.refused.items():
            assert self.world is not None
            reader = self.world.readers[ring]
            assert reader.granted < position + reader.num_slots, "granted while it was copied"

    def locate(self, batch: Batch) -> None:
        pass

    def is_safe(self, ring: int, position: int) -> bool:
        if position <= 0 or self.refused.pop(ring, None) is not None:
            return True
        self.refused[ring] = position
        self.refusals += 1
        return False


@pytest.mark.parametrize(
    "setting",
    [{"discipline": "relaxed"}, {}, {"samples_per_insert": 16.0, "rows": 2, "lag": 20}],
    ids=["relaxed", "lockstep", "lockstep, granted between two updates"],
)
def test_a_grant_waits_for_the_copy_and_is_not_forgotten(
    setting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockstep_replay, "TICK_SECONDS", 1e9)
    copies, batches = SlowCopies(), []
    for mirror in (copies, None):
        with world(**setting, slots=16, total_steps=600, mirror=mirror) as w:
            copies.world = w
            w.finish(np.random.default_rng(0))
            batches.append(w.core.batches)
            assert w.learning.inserted_steps >= 600
    assert copies.refusals > 20
    if setting.get("discipline") != "relaxed":
        assert batches[0] == batches[1]


@pytest.mark.parametrize("with_rows", [True, False])
def test_a_lockstep_run_that_had_ended_is_resumed_with_a_new_mirror(with_rows: bool) -> None:
    """Its first grant is over rows of the earlier run, before any row is ingested or any update made."""
    with world(slots=16, total_steps=200) as w:
        w.finish(np.random.default_rng(0))
        state, ended = w.learning.state_dict(), [ring.granted for ring in w.readers]
        priorities = [(first_of(ring), rows_of(w, index)) for index, ring in enumerate(w.readers)]
        assert min(ended) > 2 * 16, "the rings have wrapped"
        w.setting = replace(w.setting, total_steps=400)
        w.mailbox.close()
        w.mailbox = WeightMailbox.create(3)
        w.core.load_state_dict = lambda state: None  # type: ignore[assignment, method-assign, misc]
        w.learning = w._learning(w.learning._batch)
        w.learning._mirror = w.learning._batch.source = ImagesOfCounters(w)
        w.learning.restore(state, priorities if with_rows else None)
        w.learning.prepare()
        for _ in range(3):
            w.tick()
        assert all(ring.granted > before for ring, before in zip(w.readers, ended, strict=True))


def first_of(ring: RingReader) -> int:
    """First row that was not retired by the last grant of a run."""
    return max(0, ring.granted - ring.num_slots)


def rows_of(made: World, index: int) -> np.ndarray[Any, Any]:
    """Priorities of the published rows of a ring that its replay keeps."""
    ring = made.readers[index]
    rows = np.arange(first_of(ring), ring.published()) & (ring.num_slots - 1)
    return priorities_of(made.learning._replay)[index, rows].copy()


def test_a_run_from_the_mirror_is_the_run_from_the_cpu() -> None:
    """The update loop in lockstep, with observations gathered from a mirror on the CPU."""
    batches = []
    for mirrored in (True, False):
        with world(discipline="lockstep", slots=16, total_steps=400) as w:
            if mirrored:
                mirror = ImagesOfCounters(w)
                w.learning._mirror = w.learning._batch.source = mirror  # type: ignore[assignment]
            w.finish(np.random.default_rng(0))
            batches.append(w.core.batches)
    assert len(batches[0]) > 50
    assert batches[0] == batches[1]


class ImagesOfCounters(ObservationMirror):
    """Mirror of the world's observations as bytes, which fills the batch for a core without networks."""

    def __init__(self, made: World) -> None:
        replay = made.learning._replay
        assert isinstance(replay, PrioritizedReplay)
        super().__init__(replay, "cpu", made.setting.batch)

    def locate(self, batch: Batch) -> None:
        super().locate(batch)
        self.gather(torch.empty(2 * batch.size, self._rows.shape[-1]))
        for name, values in self.arrays(batch).items():
            getattr(batch, name)[:] = values


def fed(r: Rig, rounds: int = 6) -> None:
    """Let the actors write rows, which the replay ingests."""
    for _ in range(rounds):
        for ring, actor in enumerate(r.actors):
            actor.write(9)
            r.ingest()
            r.grant(ring, max(actor.writer.granted, actor.writer.published + 12))


@pytest.mark.parametrize("slow", [False, True])
def test_batches_from_a_labelled_gpu_are_those_of_the_cpu(
    slow: bool, labelled_device: LabelledDevice
) -> None:
    """Also: no access to the mirror races with a copy, and no row is overwritten under one."""
    labelled_device.slow = slow
    batches = []
    for device in ("cpu", "cuda"):
        with rig(3, rings=2, envs=2, slots=32, n_step=2, frame_stack=2, spec=IMAGES) as r:
            mirror, batch = ObservationMirror(r.replay, device, 8), r.batch(8)
            follow_ingests(r, mirror)
            rows = torch.zeros(16, 2 * 144, device=device)
            for number in range(8):
                for ring, actor in enumerate(r.actors):
                    actor.write(9)
                    r.ingest()
                    granted = max(actor.writer.granted, actor.writer.published + 12)
                    while not mirror.is_safe(ring, granted - 32):
                        assert slow and device == "cuda"
                    r.grant(ring, granted)
                r.replay.sample(batch, 1.0)
                mirror.locate(batch)
                mirror.gather(rows)
                batches.append((device, number, rows.cpu().numpy().copy()))
            mirror.close()
    half = len(batches) // 2
    for (_, _, expected), (_, _, found) in zip(batches[:half], batches[half:], strict=True):
        assert np.array_equal(found, expected) and found.any()


def test_following_and_gathering_never_wait_for_the_device(labelled_device: LabelledDevice) -> None:
    with rig(3, rings=2, envs=2, slots=64, n_step=2, spec=IMAGES) as r:
        mirror, batch = ObservationMirror(r.replay, "cuda", 8), r.batch(8)
        fed(r, 4)
        rows = torch.zeros(16, 144, device="cuda")

        def update() -> None:
            mirror.follow(r.replay.published_rows())
            r.replay.sample(batch, 1.0)
            mirror.locate(batch)
            mirror.gather(rows)

        assert labelled_device.waits_of(update) == []
        mirror.close()


def test_a_mirror_lies_on_the_gpu_of_its_learner(labelled_device: LabelledDevice) -> None:
    """Also where that is not the present GPU of the thread that makes it."""
    algorithm = DQN(replay_device="cuda", batch_size=8, hidden_sizes=(8,))
    core = algorithm.make_updater(IMAGES, "cuda:1", 0)
    with rig(0, spec=IMAGES, slots=64) as r:
        mirror = mirror_of(algorithm, IMAGES, core, r.replay)
        assert mirror is not None
        fed(r, 3)
        mirror.follow(r.replay.published_rows())
        batch, rows = r.batch(8), torch.zeros(16, 144, device="cuda:1")
        r.replay.sample(batch, 1.0)
        mirror.locate(batch)
        mirror.gather(rows)
        seen = mirror.arrays(batch)["obs"].reshape(8, 144)
        assert np.array_equal(rows[:8].cpu().numpy(), seen * np.float32(1 / 255)) and seen.any()
        mirror.close()


def test_a_closed_mirror_leaves_no_registered_memory(labelled_device: LabelledDevice) -> None:
    """CUDA refuses to register memory twice, so the next run over the same addresses would get no mirror."""
    with rig(0, rings=2, spec=IMAGES) as r:
        for _ in range(2):
            mirror = make_mirror("cuda", r.replay, "cuda", 4, IMAGES, False)
            assert mirror is not None and len(labelled_device.registered) == 2
            mirror.close()
            mirror.close()
            assert not labelled_device.registered


@pytest.mark.parametrize("accepted", [0, 1])
def test_a_refused_registration_leaves_nothing_behind(accepted: int, labelled_device: LabelledDevice) -> None:
    """Neither registered memory nor an error, which CUDA would report at the next launch."""
    labelled_device.refuses_pinning = accepted
    with rig(0, rings=2, spec=IMAGES) as r:
        assert make_mirror("auto", r.replay, "cuda", 4, IMAGES, False) is None
        torch.ones(1, device="cuda")
        assert not labelled_device.registered
        with pytest.raises(ResourceError, match="cannot be made: CUDA error 801"):
            make_mirror("cuda", r.replay, "cuda", 4, IMAGES, False)
        torch.ones(1, device="cuda")
        assert not labelled_device.registered


def test_a_loop_that_is_refused_leaves_no_registered_memory(
    labelled_device: LabelledDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        assert len(labelled_device.registered) == 2
        raise ValueError("the pace would deadlock")

    monkeypatch.setattr("asyncrl.learning.make_loop.RelaxedReplayLoop", refused)
    algorithm = DQN(replay_device="cuda", batch_size=8, hidden_sizes=(8,))
    core, config = algorithm.make_updater(IMAGES, "cuda", 0), TrainerConfig(env="images", algo="dqn")
    mailbox: Any = None
    options: Any = {}
    with rig(0, rings=2, spec=IMAGES) as r:
        with pytest.raises(ValueError, match="would deadlock"):
            make_loop(algorithm, config, IMAGES, core, tuple(r.replay.rings), mailbox, **options)
        assert not labelled_device.registered


def test_who_gets_a_mirror() -> None:
    with rig(0, spec=IMAGES) as r, rig(0) as vectors:
        for choice in ("cpu", "auto"):
            assert make_mirror(choice, r.replay, "cpu", 4, IMAGES, False) is None  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="replay_device cuda needs a learner on cuda"):
            make_mirror("cuda", r.replay, "cpu", 4, IMAGES, False)
        spec = vectors.replay.rings[0].layout.spec
        assert make_mirror("auto", vectors.replay, "cuda", 4, spec, False) is None
        with pytest.raises(ConfigurationError, match="images that are not normalised"):
            make_mirror("cuda", vectors.replay, "cuda", 4, spec, False)


def test_a_mirror_that_cuda_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("cudaHostRegister: operation not supported")

    monkeypatch.setattr(mirror_module, "ObservationMirror", refuse)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 40, 1 << 40))
    with rig(0, spec=IMAGES) as r:
        assert make_mirror("auto", r.replay, "cuda", 4, IMAGES, False) is None
        with pytest.raises(
            ResourceError, match="cannot be made: cudaHostRegister: operation not supported"
        ) as raised:
            make_mirror("cuda", r.replay, "cuda", 4, IMAGES, False)
        assert "replay_device to auto" in raised.value.fix
