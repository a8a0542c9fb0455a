"""A headless Chromium driven over its DevTools protocol: pages, keys, accessibility, pictures. No package needed.

One process serves all tests of a worker; each test has a tab in a browser context of its own.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import PATIENCE_SECONDS, wait_until

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
"""Path of the browser, None where there is none."""
FLAGS = (
    *(
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--no-first-run",
        "--mute-audio",
    ),
    *("--disable-extensions", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--disable-breakpad", "--disable-dev-shm-usage", "--remote-debugging-port=0"),
    *("--no-startup-window", "--disable-features=SpareRendererForSitePerProcess"),
)


class NoBrowser(Exception):
    """The browser has ended before it listened; the text says how."""


class Chromium:
    """The browser's processes, a process group of their own; it has no page.

    Args:
        program: path of the browser.

    Attributes:
        kept: the browser that the tests of this worker share, or None.
        program: see above.
        pid: process id of the first process, and id of the group.
    """

    kept: Chromium | None = None

    def __init__(self, program: str) -> None:
        self.program = program
        self._profile = Path(tempfile.mkdtemp(prefix="asyncrl-chromium-"))
        self._errors = self._profile / "stderr"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [program, *FLAGS, f"--user-data-dir={self._profile}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._address: str | None = None

    @property
    def running(self) -> bool:
        """Whether the first process has not ended."""
        return self._process.poll() is None

    @property
    def has_crashed(self) -> bool:
        """Whether the browser has listened and has ended since."""
        return self._address is not None and not self.running

    def address(self) -> str:
        """Wait until the browser listens, for as long as it lives, and return the address of its protocol.

        Raises:
            NoBrowser: it has ended.
        """
        told = self._profile / "DevToolsActivePort"
        while self._address is None:
            if told.exists() and told.read_text().count("\n"):
                port, path = told.read_text().splitlines()
                self._address = f"ws://127.0.0.1:{port}{path}"
            elif not self.running:
                lines = self._errors.read_text(errors="replace").splitlines()
                last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
                raise NoBrowser(
                    f"Chromium ended with exit code {self._process.returncode} as it started: {last}"
                )
            else:
                time.sleep(0.02)
        return self._address

    def close(self) -> None:
        """Kill the browser; returns when no process of its group is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        wait_until(lambda: not self.processes(), f"the end of Chromium's processes {self.processes()}")
        shutil.rmtree(self._profile, ignore_errors=True)

    def processes(self) -> list[int]:
        """Processes of the group that have not ended; those without a parent wait for the system to reap them."""
        return [pid for pid in psutil.pids() if _in_group(pid, self.pid)]


def _in_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


@pytest.fixture(scope="session")
def chromium() -> Iterator[None]:
    """Own the browser that the tests of this worker share; ends it after the last test."""
    if CHROMIUM is not None:
        Chromium.kept = Chromium(CHROMIUM)
    yield
    if Chromium.kept is not None:
        Chromium.kept.close()
        Chromium.kept = None


@pytest.fixture
def browser(chromium: None) -> Iterator[Browser]:
    """A new tab; the test is skipped where no browser starts."""
    opened = new_tab()
    yield opened
    opened.close()


def new_tab() -> Browser:
    """Open a tab of the shared browser, which is started anew if it has crashed; skip the test where there is none."""
    if Chromium.kept is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    if Chromium.kept.has_crashed:
        Chromium.kept.close()
        Chromium.kept = Chromium(Chromium.kept.program)
    try:
        return Browser(Chromium.kept.address())
    except NoBrowser as error:
        pytest.skip(str(error))


class Browser:
    """One tab in a browser context of its own; used from one thread, with a separate thread for its protocol.

    Args:
        address: address of the browser's protocol.
    """

    def __init__(self, address: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-browser", daemon=True)
        self._thread.start()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self._tab: dict[str, str] = {}
        self.console: list[str] = []
        try:
            self._call(self._connect(address))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the tab with its context, and end the thread."""
        with contextlib.suppress(Exception):
            self._call(self._disconnect())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- what a test asks for ---------------------------------------------------------------------------

    def open(self, url: str, *, width: int = 1280, height: int = 900) -> None:
        """Load `url` in a window of this size, in CSS pixels."""
        self.resize(width, height)
        self.console.clear()
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def resize(self, width: int, height: int) -> None:
        """Change the window's size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, **features: str) -> None:
        """Set media features: `prefers_color_scheme="dark"`, `prefers_reduced_motion="reduce"`."""
        given = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.send("Emulation.setEmulatedMedia", features=given)

    def evaluate(self, script: str) -> Any:
        """Value of a JavaScript expression; a promise is awaited."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"waited in vain for {condition}; {self.console}"
            time.sleep(0.03)

    def text(self, selector: str = "body") -> str:
        """Visible text of the first element that matches."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def press(self, key: str) -> None:
        """Press and release a key: `Tab`, `Enter`, ..."""
        codes = {"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowRight": 39, "Escape": 27}
        common = {"key": key, "windowsVirtualKeyCode": codes[key]}
        typed = {"text": "\r"} if key == "Enter" else {"text": " "} if key == " " else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **common, **typed)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the mouse at `start` and release it at `end`."""
        for kind, (x, y) in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1, buttons=1)

    def accessible(self) -> list[tuple[str, str]]:
        """Role and name of every node of the accessibility tree that is not ignored."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        return [
            (str(n["role"]["value"]), str(n.get("name", {}).get("value", "")))
            for n in nodes
            if not n["ignored"] and "role" in n
        ]

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write a PNG of the page."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command of the protocol and return its result."""
        return dict(self._call(self._send(method, parameters)))

    # --- the protocol -----------------------------------------------------------------------------------

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _connect(self, address: str) -> None:
        import aiohttp  # here, so that tests without a browser do not load it

        self._session = aiohttp.ClientSession()
        async with asyncio.timeout(PATIENCE_SECONDS):
            self._socket = await self._session.ws_connect(address, max_msg_size=0)
        self._reader = asyncio.create_task(self._read())
        self._context = await self._send("Target.createBrowserContext", {"disposeOnDetach": True})
        target = await self._send("Target.createTarget", {"url": "about:blank", **self._context})
        attached = await self._send("Target.attachToTarget", {**target, "flatten": True})
        self._tab = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Accessibility", "Log"):
            await self._send(f"{domain}.enable", {})

    async def _disconnect(self) -> None:
        self._tab = {}
        try:
            await self._send("Target.disposeBrowserContext", self._context)
        finally:
            self._reader.cancel()
            await asyncio.wait([self._reader])
            await self._socket.close()
            await self._session.close()

    async def _read(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if told.get("id") in self._answers:
                self._answers.pop(told["id"]).set_result(told)
            elif told.get("method") == "Runtime.exceptionThrown":
                self.console.append(json.dumps(told["params"]["exceptionDetails"])[:500])
            elif told.get("method") == "Log.entryAdded":
                self.console.append(str(told["params"]["entry"]["text"]))

    async def _send(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        number = self._count
        self._answers[number] = asyncio.get_running_loop().create_future()
        sent = {"id": number, "method": method, "params": parameters, **self._tab}
        await self._socket.send_str(json.dumps(sent))
        told = await asyncio.wait_for(self._answers[number], PATIENCE_SECONDS)
        assert "error" not in told, told
        return dict(told["result"])
