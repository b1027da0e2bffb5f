"""A headless Chromium, driven over a pipe by its own protocol: no port, no driver, no network."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


class Browser:
    """One tab with the network off; ``complaints`` gathers errors and whatever it tried to load."""

    def __init__(self, program: str, *, width: int = 1280, height: int = 900) -> None:
        self.complaints: list[str] = []
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._number, self._buffer, self._session = 0, b"", ""
        self._looked_at: Path | None = None
        self._process, self._write, self._read = self._launch(program)
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        off = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self.send("Network.emulateNetworkConditions", offline=True, **off)
        self.resize(width, height)

    def _launch(self, program: str) -> tuple[subprocess.Popen[bytes], int, int]:
        """Chromium reads commands on descriptor 3 and answers on 4."""
        to_browser, ours_out = os.pipe()
        ours_in, from_browser = os.pipe()
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        process = subprocess.Popen(
            ["bash", "-c", shell, "bash", program, *FLAGS, f"--user-data-dir={self._folder.name}"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        return process, ours_out, ours_in

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command's result; events that come meanwhile are looked through for complaints."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._hear(answer)

    def _receive(self, seconds: float = 300) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], seconds)
            part = os.read(self._read, 1 << 16) if ready else b""
            if not part:
                raise RuntimeError("Chromium does not answer")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def _hear(self, event: dict[str, Any]) -> None:
        method, about = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(about["exceptionDetails"])[:2000])
        elif method == "Runtime.consoleAPICalled" and about["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.complaints.append(json.dumps(about["args"])[:2000])
        elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.complaints.append(json.dumps(about["entry"])[:2000])
        elif method == "Network.requestWillBeSent":
            url = about["request"]["url"]
            if not url.startswith(("file:", "data:", "blob:", "about:")):
                self.complaints.append(f"asked the network for {url[:200]}")

    def open(self, path: Path, *, only_look: bool = False) -> None:
        """Load a file from disk and wait until its charts are drawn; ``only_look``: see `look`."""
        self._looked_at = path if only_look else None
        self.send("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + 300
        while self.run("document.documentElement?.dataset.drawn || ''") == "":
            if time.monotonic() > end:
                raise RuntimeError(f"the page was not drawn: {self.complaints}")
            time.sleep(0.05)

    def look(self, path: Path) -> None:
        """Show a page that is not touched: it is loaded where the last test did not only look at it."""
        if self._looked_at != path:
            self.open(path, only_look=True)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise."""
        result = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:2000])
        return result["result"].get("value")

    def resize(self, width: int, height: int) -> None:
        """Another window."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, scheme: str) -> None:
        """``light`` or ``dark``, as the system's setting."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def pointer(self, x: float, y: float, *, click: bool = False) -> None:
        """Move the mouse, and press its button."""
        self._looked_at = None
        for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if click else ())):
            more = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press at one place, move, and let go at another."""
        self._looked_at = None
        mouse = "Input.dispatchMouseEvent"
        held = {"button": "left", "buttons": 1, "clickCount": 1}
        self.send(mouse, type="mouseMoved", x=start[0], y=start[1])
        self.send(mouse, type="mousePressed", x=start[0], y=start[1], **held)
        for part in (0.3, 0.6, 1.0):
            x, y = (a + (b - a) * part for a, b in zip(start, end, strict=True))
            self.send(mouse, type="mouseMoved", x=x, y=y, **held)
        self.send(mouse, type="mouseReleased", x=end[0], y=end[1], **held)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """A picture of the page, or of what the window shows."""
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """End the browser that this object started."""
        try:
            self._session = ""
            self.send("Browser.close")
        except (OSError, RuntimeError):
            self._process.kill()
        self._process.wait(30)
        os.close(self._write)
        os.close(self._read)
        self._folder.cleanup()
