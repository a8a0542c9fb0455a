"""A headless Chromium driven over its DevTools protocol: pages, keys, accessibility, pictures. No package needed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import aiohttp

PATIENCE_SECONDS = 60.0
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
"""Path of the browser, None where there is none."""


class Browser:
    """One headless Chromium with one page; used from one thread, with a separate thread for its protocol."""

    def __init__(self) -> None:
        assert CHROMIUM is not None, "no Chromium here"
        self._profile = tempfile.mkdtemp(prefix="asyncrl-chromium-")
        flags = (
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
            *("--disable-extensions", "--disable-background-networking", "--remote-debugging-port=0"),
        )
        self._process = subprocess.Popen(
            [CHROMIUM, *flags, f"--user-data-dir={self._profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-browser", daemon=True)
        self._thread.start()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self.console: list[str] = []
        try:
            self._call(self._connect(self._debugging_port()))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the browser and its thread."""
        with contextlib.suppress(Exception):
            self._call(self._disconnect())
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)
        self._loop.close()
        shutil.rmtree(self._profile, ignore_errors=True)

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

    def _debugging_port(self) -> int:
        file = Path(self._profile) / "DevToolsActivePort"
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (file.exists() and file.read_text().count("\n")):
            assert self._process.poll() is None and time.monotonic() < deadline, "Chromium did not start"
            time.sleep(0.02)
        return int(file.read_text().splitlines()[0])

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_SECONDS)

    async def _connect(self, port: int) -> None:
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            page = next(target for target in await answer.json() if target["type"] == "page")
        self._socket = await self._session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0)
        self._reader = asyncio.create_task(self._read())
        for domain in ("Page", "Runtime", "Accessibility", "Log"):
            await self._send(f"{domain}.enable", {})

    async def _disconnect(self) -> None:
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
        await self._socket.send_str(json.dumps({"id": number, "method": method, "params": parameters}))
        told = await asyncio.wait_for(self._answers[number], PATIENCE_SECONDS)
        assert "error" not in told, told
        return dict(told["result"])
