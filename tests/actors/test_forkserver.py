"""Fork server: early start, environment of the main process, and no leftovers whichever process is killed."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import fakes
import psutil
import pytest
from actors_rig import Rig, until
from waiting import PATIENCE_SECONDS, is_running

from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.frames import FrameWriter, receive_frame
from asyncrl.actors.probe import probe
from asyncrl.envs.source import EnvSource
from asyncrl.errors import EnvironmentNotBuilt, ResourceError, UnknownEnvironment

pytestmark = pytest.mark.usefixtures("own_fork_server")

TESTS = Path(fakes.__file__).parent
ROOT = TESTS.parent


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s in vain: {what}"
        time.sleep(0.01)


def run_script(tmp_path: Path, text: str, **environ: str) -> subprocess.Popen[str]:
    """Run a user's script in its own directory, without an `if __name__ == "__main__"` guard."""
    script = tmp_path / "train_it.py"
    script.write_text(textwrap.dedent(text))
    path = os.pathsep.join([str(ROOT), str(TESTS), str(TESTS / "actors")])
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, **environ},
    )


def finish(process: subprocess.Popen[str]) -> str:
    try:
        out, err = process.communicate(timeout=2 * PATIENCE_SECONDS)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, err
    return out


RUN = """
    import asyncio
    import fakes
    from actors_rig import Rig
    from asyncrl.actors.forkserver import ForkServer

    server = ForkServer()
    server.start()

    async def story(env, then):
        async with Rig(server, env, num_actors=2, num_envs=1) as rig:
            rig.publish_weights()
            rig.grant()
            await rig.rows(3)
            await then(rig)
"""


def test_script_without_guard_defines_its_environment_in_main(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("SIZE = 2\n")
    script = (
        RUN
        + """
    import beside
    import gymnasium
    from gymnasium.spaces import Box, Discrete
    import numpy as np

    class Mine(gymnasium.Env):
        observation_space = Box(-1, 1, (beside.SIZE,), np.float32)
        action_space = Discrete(5)
        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}
        def step(self, action):
            return np.ones(2, np.float32), 1.0, False, False, {}

    async def show(rig):
        print("rows", rig.pool.rings[1].obs[0, :3, 0].tolist())

    for env in (Mine, lambda: Mine()):
        asyncio.run(story(env, show))
    server.close()
    """
    )
    assert finish(run_script(tmp_path, script)) == "rows [0.0, 1.0, 1.0]\n" * 2


def test_id_registered_in_main_is_refused_with_the_reason(tmp_path: Path) -> None:
    script = (
        RUN
        + """
    import gymnasium
    from asyncrl.errors import UnknownEnvironment
    class Mine(fakes.SimpleEnv):
        pass
    gymnasium.register("Mine-v0", entry_point=Mine)
    try:
        asyncio.run(story("Mine-v0", None))
    except UnknownEnvironment as error:
        print(error)
    server.close()
    """
    )
    assert "[ASYNC006] The environment Mine-v0 is registered in __main__ only" in finish(
        run_script(tmp_path, script)
    )


def test_main_process_imports_neither_gymnasium_nor_torch(tmp_path: Path) -> None:
    script = """
    import asyncio, sys
    from asyncrl.actors.forkserver import ForkServer
    server = ForkServer()
    server.start()
    assert "numpy" not in sys.modules, "starting the server comes before every heavy import"
    from asyncrl.actors.probe import probe
    from asyncrl.envs.source import EnvSource
    spec = asyncio.run(probe(server, EnvSource.from_user("CartPole-v1")))
    server.close()
    print(spec.name, "gymnasium" in sys.modules, "torch" in sys.modules)
    """
    assert finish(run_script(tmp_path, script)) == "CartPole-v1 False False\n"


@pytest.mark.parametrize("victims", ["main", "server", "main and server", "main, with a stopped server"])
def test_no_orphans_whoever_is_killed(tmp_path: Path, victims: str) -> None:
    """Two actors in C code with the interpreter locked and SIGTERM ignored, each with a helper in its own session."""
    script = (
        RUN
        + """
    import misbehaving

    class Stuck(fakes.HangsInC, misbehaving.DetachesHelper):
        pass

    async def report(rig):
        pids = [int(pid) for ring in rig.pool.rings for pid in ring.obs[0, 0]]
        print(server.pid, *pids, flush=True)
        await rig.failure()
        print("reported", flush=True)
        await asyncio.sleep(3600)

    asyncio.run(story(Stuck, report))
    """
    )
    # With the server the run could go on; here it shall end.
    main = run_script(tmp_path, script.replace("ForkServer()", "ForkServer(max_restarts=0)"))
    assert main.stdout is not None and main.stderr is not None
    line = main.stdout.readline()
    assert line, main.stderr.read()
    server_pid, *pids = (int(word) for word in line.split())
    try:
        if victims == "main, with a stopped server":
            os.kill(server_pid, signal.SIGSTOP)
        for victim, pid in {"main": main.pid, "server": server_pid}.items():
            if victim in victims.partition(",")[0]:
                os.kill(pid, signal.SIGKILL)
        wait_for(
            lambda: not any(is_running(pid) for pid in [server_pid, *pids]),
            f"{victims}: the end of all others",
        )
        if victims == "server":
            assert main.stdout.readline() == "reported\n"
    finally:
        for pid in filter(is_running, [main.pid, server_pid, *pids]):
            os.kill(pid, signal.SIGKILL)
        main.communicate()


def test_exception_in_main_leaves_nothing(tmp_path: Path) -> None:
    script = (
        RUN
        + """
    async def fail(rig):
        print(server.pid, *(a.pid for a in rig.pool.statistics()), flush=True)
        import os
        os._exit(3)

    asyncio.run(story(fakes.SimpleEnv, fail))
    """
    )
    main = run_script(tmp_path, script)
    out, _ = main.communicate(timeout=PATIENCE_SECONDS)
    assert main.returncode == 3
    wait_for(lambda: not any(is_running(int(word)) for word in out.split()), "the end of server and actors")


class ShowsSurroundings(fakes.SimpleEnv):
    def __init__(self) -> None:
        threads = os.environ["OMP_NUM_THREADS"]
        raise LookupError(
            f"{os.getcwd()} {os.environ.get('ASYNCRL_TEST')} {threads} {'/elsewhere' in sys.path}"
        )


def test_surroundings_of_the_main_process_are_mirrored(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The surroundings are those at the fork of an actor, not at the start of the server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASYNCRL_TEST", "seen")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.syspath_prepend("/elsewhere")
    with pytest.raises(EnvironmentNotBuilt, match=f"{tmp_path} seen 1 True"):
        asyncio.run(probe(server, EnvSource.from_user(ShowsSurroundings)))


def test_actors_are_forked_though_the_working_directory_was_removed(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    source = EnvSource.from_user("CartPole-v1")
    gone.rmdir()
    assert asyncio.run(probe(server, source)).name == "CartPole-v1"


def test_what_actors_import_is_there_before_the_fork() -> None:
    code = (
        "import sys; from asyncrl.actors.forking import _preload; _preload();"
        "names = ['actors.worker', *('acting.' + n for n in ('policies', 'box', 'stochastic', 'kernels'))];"
        "missing = [n for n in names if 'asyncrl.' + n not in sys.modules]; assert not missing, missing;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECONDS)


def test_server_has_no_torch_and_one_thread(server: ForkServer) -> None:
    with pytest.raises(UnknownEnvironment):
        asyncio.run(probe(server, EnvSource.from_user("Nothing-v9")))
    assert psutil.Process(server.pid).num_threads() == 1
    maps = Path(f"/proc/{server.pid}/maps").read_text()
    assert "libtorch" not in maps and "numpy" in maps


def test_start_and_close_may_be_repeated_and_need_no_loop() -> None:
    server = ForkServer()
    server.close()
    assert server.pid == 0
    server.start()
    first = server.pid
    server.start()
    assert server.pid == first
    server.close()
    server.close()
    assert server.pid == 0 and not is_running(first)
    with pytest.raises(ResourceError, match="The fork server is not running"):
        asyncio.run(probe(server, EnvSource.from_user("CartPole-v1")))


def test_kill_ends_everything_at_once_from_any_thread() -> None:
    async def story() -> None:
        server = ForkServer()
        server.start()
        try:
            async with Rig(server, fakes.HangsInC, num_envs=1) as rig:
                rig.publish_weights()
                rig.grant()
                await rig.rows(4)
                pids = [server.pid, *(a.pid for a in rig.pool.statistics())]
                await asyncio.to_thread(server.kill)
                await rig.failure()
                wait_for(lambda: not any(is_running(pid) for pid in pids), "the end of server and actors")
        finally:
            server.close()

    asyncio.run(story())


def closing(server: ForkServer, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario with its own server; both must end within the time limit."""
    server.start()

    async def limited() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await story()

    try:
        asyncio.run(limited())
    finally:
        server.close()


def ready_was_sent(server: ForkServer) -> bool:
    """Whether READY is in the socket, unread."""
    assert server._life is not None
    return bool(select.select([server._life._wire._socket], [], [], 0)[0])


def end_between_ready_and_the_first_fork(server: ForkServer) -> None:
    wait_for(lambda: ready_was_sent(server), "READY")
    (child,) = psutil.Process(server.pid).children()  # before READY is read, `pid` is the guardian's
    child.kill()
    wait_for(lambda: not is_running(child.pid), "its end")


@pytest.mark.parametrize("victim", ["server", "guardian"])
def test_server_that_dies_between_ready_and_the_first_fork_is_replaced(victim: str) -> None:
    server = ForkServer(max_restarts=1)

    async def story() -> None:
        if victim == "server":
            end_between_ready_and_the_first_fork(server)
        else:
            wait_for(lambda: ready_was_sent(server), "READY")
            os.kill(server.pid, signal.SIGKILL)
        first = server.pid
        assert (await probe(server, EnvSource.from_user("CartPole-v1"))).name == "CartPole-v1"
        assert server.pid not in (0, first) and not is_running(first)

    closing(server, story)


def test_server_that_dies_too_often_is_an_error_at_once() -> None:
    server = ForkServer(max_restarts=0)

    async def story() -> None:
        end_between_ready_and_the_first_fork(server)
        for _ in range(2):
            with pytest.raises(ResourceError, match="No actor could be started: the fork server ended"):
                await probe(server, EnvSource.from_user("CartPole-v1"))

    closing(server, story)


def test_server_that_cannot_import_is_not_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cloudpickle.py").write_text("raise SystemExit(5)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = ForkServer()

    async def story() -> None:
        with pytest.raises(ResourceError, match=r"(?s)the fork server ended.*exit status: 5"):
            await probe(server, EnvSource.from_user("CartPole-v1"))

    closing(server, story)


def test_server_that_is_suspended_before_it_is_ready_is_given_up() -> None:
    server = ForkServer(max_restarts=0, ready_seconds=0.3)

    async def story() -> None:
        wait_for(lambda: psutil.Process(server.pid).children(), "the guardian's fork")
        os.kill(psutil.Process(server.pid).children()[0].pid, signal.SIGSTOP)
        with pytest.raises(ResourceError, match=r"the fork server did not answer for 0\.3 s and was killed"):
            await probe(server, EnvSource.from_user("CartPole-v1"))

    closing(server, story)


@pytest.mark.parametrize("death", ["killed", "hung"])
def test_run_goes_on_though_its_server_is_suspended_and_an_actor_dies(death: str) -> None:
    """The suspended server neither reports the death nor forwards a signal; it is killed, and all begin again."""
    server = ForkServer(request_seconds=1.0)

    async def story() -> None:
        async with Rig(
            server, fakes.SimpleEnv, num_actors=2, num_slots=4096, step_timeout_seconds=2.0
        ) as rig:
            rig.publish_weights()
            rig.grant(10)
            await rig.rows(9)
            suspended, before = server.pid, [a.pid for a in rig.pool.statistics()]
            os.kill(suspended, signal.SIGSTOP)
            os.kill(before[0], signal.SIGKILL if death == "killed" else signal.SIGSTOP)
            await until(lambda: sorted(rig.deaths) == [0, 1], "the end of all actors of this server")
            rig.grant(12)
            await rig.rows(20)
            assert not any(is_running(pid) for pid in [suspended, *before])
            assert [int(ring.incarnation[15]) for ring in rig.pool.rings] == [1, 1]
            assert not rig.failures

    closing(server, story)


@pytest.mark.parametrize("deaf", [False, True])
def test_a_killed_actor_is_started_again_although_the_caller_blocks_sigchld(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, deaf: bool
) -> None:
    """A mask passes exec. With `deaf` the server cannot unblock the signal, and looks for itself."""
    if deaf:
        (tmp_path / "sitecustomize.py").write_text(
            "import signal\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])\n"
            "signal.pthread_sigmask = lambda how, mask: set()\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = ForkServer()

    async def story() -> None:
        async with Rig(server, fakes.SimpleEnv, num_envs=1, num_slots=4096) as rig:
            rig.publish_weights()
            rig.grant(10)
            await rig.rows(9)
            (pid,) = (a.pid for a in rig.pool.statistics())
            os.kill(pid, signal.SIGKILL)
            await until(lambda: rig.deaths == [0], "the news of the actor's end")
            rig.grant(12)
            await rig.rows(20)
            assert not rig.failures

    before = signal.pthread_sigmask(signal.SIG_BLOCK, [] if deaf else [signal.SIGCHLD, signal.SIGUSR1])
    try:
        closing(server, story)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_an_actor_begins_without_the_signal_mask_of_the_caller() -> None:
    """It would neither tell its stack (SIGUSR1) nor end on SIGTERM."""
    server = ForkServer()

    async def story() -> None:
        async with Rig(server, fakes.SimpleEnv, num_envs=1) as rig:
            for pid in (server.pid, *(a.pid for a in rig.pool.statistics())):
                blocked = Path(f"/proc/{pid}/status").read_text().partition("SigBlk:")[2].split()[0]
                assert int(blocked, 16) == 0, pid

    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
    try:
        closing(server, story)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_closing_a_suspended_server_takes_two_seconds_at_most() -> None:
    server = ForkServer()

    async def story() -> None:
        rig = Rig(server, fakes.SimpleEnv, num_actors=3)
        async with rig:
            pids = [server.pid, *(a.pid for a in rig.pool.statistics())]
            os.kill(server.pid, signal.SIGSTOP)
            rig.pool.rings[0].grant(8)
            for pid in pids[1:]:
                os.kill(pid, signal.SIGSTOP)  # deaf to everything but SIGKILL
        life, waits = server._life, []
        assert life is not None
        wait = life._process.wait

        def record(seconds: float) -> int:
            waits.append(seconds)
            return wait(seconds)

        life._process.wait = record  # type: ignore[method-assign,assignment]
        server.close()
        assert 1 < len(waits) <= 3 and sum(waits) < 2.2
        wait_for(lambda: not any(is_running(pid) for pid in pids), "the end of all")

    closing(server, story)


def test_fork_that_the_system_refuses_is_an_error_and_the_server_lives() -> None:
    server = ForkServer()

    async def story() -> None:
        source = EnvSource.from_user("CartPole-v1")
        await probe(server, source)
        pid, limits = server.pid, resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        held = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (held, limits[1]))
        with pytest.raises(ResourceError, match="The probe process could not be forked: too many open files"):
            await probe(server, source)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        await probe(server, source)
        assert server.pid == pid

    closing(server, story)


def test_frames_wait_where_the_peer_does_not_read_and_nothing_blocks() -> None:
    ours, theirs = socket.socketpair()
    held, beyond = os.pipe()
    writer = FrameWriter(ours)
    try:
        sent = 0
        while writer.send({"number": sent, "padding": "x" * 5_000}, [held]):
            sent += 1
        for _ in range(20):
            sent += 1
            assert not writer.send({"number": sent, "padding": ""}, [held])
        os.close(held)
        numbers = []
        while len(numbers) <= sent:
            frame, fds = receive_frame(theirs) or pytest.fail("the end of the socket")
            numbers.append(frame["number"])
            assert len(fds) == 1, "descriptors travel with their frame"
            os.close(fds[0])
            writer.flush()
        assert numbers == list(range(sent + 1))
        assert writer.flush()
        theirs.close()
        assert writer.send({"number": 0}, [beyond]), "what is sent to a peer that is gone is dropped"
    finally:
        os.close(beyond)
        writer.clear()
        ours.close()
        theirs.close()
