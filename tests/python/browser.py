"""browser.py: a headless Chromium, spoken to over its DevTools pipe with the standard library alone.

Browser.open() loads an address at a width and in a colour scheme; errors and requests are recorded as they come, those
of the page's workers too. Server serves a folder to it.
"""

import base64
import functools
import http.server
import json
import os
import select
import shutil
import struct
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

SECONDS = 120  # before a browser that says nothing is taken for dead


def find_chromium() -> str | None:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    return None


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


class Server:
    """A web server on this machine, as `python3 -m http.server` is one; `address` ends in a slash."""

    def __init__(self, folder: Path) -> None:
        handler = functools.partial(QuietHandler, directory=str(folder))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Browser:
    def __init__(self, program: str, profile: Path) -> None:
        """`profile`: an empty folder for what the browser keeps."""
        to_browser, self._output = os.pipe()
        self._input, from_browser = os.pipe()
        # The pipe's ends are 3 and 4 in the browser; sh puts them there.
        command = 'in=$1; out=$2; shift 2; exec "$@" 3<&"$in" 4>&"$out"'
        flags = (
            "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --remote-debugging-pipe --no-first-run "
            "--disable-background-networking --disable-component-update --hide-scrollbars"
        )
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", str(to_browser), str(from_browser), program, *flags.split(),
             f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile), "XDG_CONFIG_HOME": str(profile)},
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._last_id = 0
        self.events: list[dict] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self._call_in(self._session, "Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=False, flatten=True)

    def close(self) -> None:
        os.close(self._output)
        os.close(self._input)
        self._process.terminate()
        self._process.wait()

    def _message(self) -> dict:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._input], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._input, 1 << 16) if ready else b""
            if not data:
                raise RuntimeError("the browser does not answer" if not ready else "the browser has ended")
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _send(self, session: str | None, method: str, parameters: dict) -> int:
        self._last_id += 1
        request = {"id": self._last_id, "method": method, "params": parameters}
        if session:
            request["sessionId"] = session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self._output, data) :]
        return self._last_id

    def _record(self, event: dict) -> None:
        self.events.append(event)
        if event.get("method") == "Target.attachedToTarget" and event["params"]["targetInfo"]["type"] == "worker":
            self._send(event["params"]["sessionId"], "Runtime.enable", {})  # answered when it may be

    def _call_in(self, session: str | None, method: str, **parameters: object) -> dict:
        request = self._send(session, method, parameters)
        while True:
            message = self._message()
            if message.get("id") == request:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._record(message)

    def call(self, method: str, **parameters: object) -> dict:
        return self._call_in(None if method.startswith("Target.") else self._session, method, **parameters)

    def open(self, page: Path | str, width: int, height: int = 844, dark: bool = False) -> None:
        """Loads a file or an address; `events` are those since then."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events = []
        self.call("Page.navigate", url=page.resolve().as_uri() if isinstance(page, Path) else page)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self._record(self._message())

    def evaluate(self, expression: str) -> object:
        """Its value, or what the promise that it gives resolves to."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Until the expression is true."""
        deadline = time.monotonic() + SECONDS
        while not self.evaluate(condition):
            if time.monotonic() > deadline:
                raise RuntimeError(f"never true: {condition}; the page: {self.evaluate('document.body.innerText')}")
            time.sleep(0.02)

    def screenshot(self, whole_page: bool = False) -> bytes:
        """PNG of what is to be seen, or of all of the page."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole_page)["data"])

    def problems(self) -> list[str]:
        """What the page and its workers said on the console, and what the browser complained of."""
        found = []
        for event in self.events:
            method, parameters = event.get("method"), event.get("params", {})
            if method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(parameters["entry"]["text"])
            elif method == "Runtime.consoleAPICalled":
                found.append(str(parameters["args"]))
            elif method == "Runtime.exceptionThrown":
                found.append(str(parameters["exceptionDetails"]))
        return found

    def requests(self) -> list[str]:
        """Addresses of all that the page asked for, itself included."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]


def png_rows(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Bytes of a pixel and row after row of an 8-bit RGB or RGBA image, which is what browsers write."""
    width, height, depth, colour_type = struct.unpack(">IIBB", data[16:26])
    channels = {2: 3, 6: 4}[colour_type]
    assert depth == 8
    packed, at = b"", 8
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        if kind == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += 12 + length
    raw, above = zlib.decompress(packed), bytes(width * channels)
    for y in range(height):
        start = y * (width * channels + 1)
        above = _unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + width * channels]), above, channels)
        yield channels, above


def _unfiltered(kind: int, row: bytearray, above: bytes, channels: int) -> bytes:
    for i in range(len(row)):
        left = row[i - channels] if i >= channels else 0
        corner = above[i - channels] if i >= channels else 0
        if kind == 1:
            predicted = left
        elif kind == 2:
            predicted = above[i]
        elif kind == 3:
            predicted = (left + above[i]) // 2
        elif kind == 4:
            estimate = left + above[i] - corner
            predicted = min((left, above[i], corner), key=lambda value: abs(estimate - value))
        else:
            break
        row[i] = (row[i] + predicted) & 255
    return bytes(row)


def has_colours(data: bytes, least: int) -> bool:
    """Has a PNG so many different ones?"""
    found: set[bytes] = set()
    for channels, row in png_rows(data):
        found.update(row[i : i + channels] for i in range(0, len(row), channels))
        if len(found) >= least:
            return True
    return False
