"""A headless Chromium for tests, driven over its DevTools protocol: real keys, sizes, dark mode, paper."""

from __future__ import annotations

import asyncio
import base64
import re
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
WAIT_SECONDS = 60


def find_browser() -> str | None:
    """Path of the browser; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One tab. `problems` collects console errors, exceptions and requests that left the page."""

    def __init__(self, profile: Path) -> None:
        binary = find_browser()
        if binary is None:
            raise RuntimeError("no browser found: apt-get install -y chromium")
        self.problems: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._process = subprocess.Popen(
            [binary, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        try:
            self._loop.run_until_complete(self._connect())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        if not self._loop.is_closed():
            if hasattr(self, "_session"):
                self._loop.run_until_complete(self._session.close())
            self._loop.close()

    def open(self, page: Path, width: int = 1200, height: int = 900, *, dark: bool = False) -> None:
        """Load a page from disk in a window of the given size and wait for its load event."""
        self.problems.clear()
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = "dark" if dark else "light"
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._loaded = False
        self.send("Page.navigate", url=page.resolve().as_uri())
        self._loop.run_until_complete(asyncio.wait_for(self._until_loaded(), WAIT_SECONDS))

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are waited for."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        self.evaluate(
            f"new Promise((done, broken) => {{ const end = performance.now() + {WAIT_SECONDS * 1000};"
            f"const look = () => ({condition}) ? done() : performance.now() > end ? "
            f"broken(new Error('never true')) : setTimeout(look, 20); look(); }})"
        )

    def press(self, key: str, times: int = 1) -> None:
        """Press a key, as a person does."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        for _ in range(times):
            for kind in ("rawKeyDown", "keyUp"):
                self.send(
                    "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key]
                )

    def hover(self, selector: str) -> None:
        """Move the mouse to the middle of the first match."""
        x, y = self.evaluate(
            f"(() => {{ const n = document.querySelector({selector!r});"
            "n.scrollIntoView({block: 'center'});"
            "const b = n.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def pdf(self) -> bytes:
        """The page on A4 paper."""
        answer = self.send("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)
        return base64.b64decode(answer["data"])

    def screenshot(self, path: Path) -> None:
        """A picture of the whole page."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One DevTools command and its answer."""
        return self._loop.run_until_complete(asyncio.wait_for(self._send(method, parameters), WAIT_SECONDS))

    async def _connect(self) -> None:
        assert self._process.stderr is not None
        address = None
        while address is None:
            line = self._process.stderr.readline()
            assert line, "the browser ended"
            address = re.search(r"ws://(\S+?)/", line)
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://{address[1]}/json/list") as answer:
            tabs = await answer.json()
        tab = next(tab for tab in tabs if tab["type"] == "page")
        self._socket = await self._session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0)
        self._last = 0
        self._loaded = False
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self._send(f"{domain}.enable", {})
        await self._send("Emulation.setFocusEmulationEnabled", {"enabled": True})

    async def _send(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._last += 1
        await self._socket.send_json({"id": self._last, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json()
            if message.get("id") == self._last:
                assert "error" not in message, message
                return message["result"]
            self._event(message)

    async def _until_loaded(self) -> None:
        while not self._loaded:
            self._event(await self._socket.receive_json())

    def _event(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.problems.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(str(parameters["entry"]["text"]))
        elif method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith("file:"):
            self.problems.append(f"request to {parameters['request']['url'][:100]}")
