"""A headless Chromium spoken to through its DevTools pipe: no driver, no package between test and browser."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE = 1800.0


def executable() -> str | None:
    """Where a Chromium is, if there is one; STEADYQ_CHROMIUM overrides."""
    given = os.environ.get("STEADYQ_CHROMIUM")
    return given or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of one browser. `console` collects errors and warnings, `requests` every address that was asked for."""

    def __init__(self, program: str) -> None:
        self.profile = tempfile.mkdtemp(prefix="steadyq-browser-")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()

        def at_3_and_4() -> None:  # where Chromium expects the pipe; first out of the way of 3 and 4 themselves
            spare_in, spare_out = os.dup(theirs_in), os.dup(theirs_out)
            for spare, place in ((spare_in, 3), (spare_out, 4)):
                os.dup2(spare, place)
                os.set_inheritable(place, True)  # which `dup2` leaves undone where the spare one is that very place

        self.process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=at_3_and_4,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer, self._count = b"", 0
        self.console: list[str] = []
        self.requests: list[str] = []
        self._seen: set[str] = set()
        page = next(t for t in self("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    _session: str | None = None

    def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a DevTools method and return its result."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._read()
            if reply.get("id") == self._count:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']['message']}")
                result: dict[str, Any] = reply["result"]
                return result

    def open(self, file: Path, width: int = 1280, height: int = 900, dark: bool = False, phone: bool = False) -> None:
        """Load a file at a size and wait until it is drawn."""
        self.console, self.requests, self._seen = [], [], set()
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", media="", features=[scheme])
        self("Page.navigate", url=file.resolve().as_uri())
        while "Page.loadEventFired" not in self._seen:
            self._read()

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        reply = self("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            raise RuntimeError(reply["exceptionDetails"].get("exception", {}).get("description", "script failed"))
        return reply["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, button: str = "none", buttons: int = 0, clicks: int = 0) -> None:
        """Send a mouse event."""
        self("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=buttons, clickCount=clicks)

    def click(self, selector: str) -> None:
        """Click the middle of an element, as a person would: it must be there, in view, and not covered."""
        x, y = self.centre(selector)
        self.mouse("mousePressed", x, y, "left", 1, 1)
        self.mouse("mouseReleased", x, y, "left", 0, 1)

    def drag(self, selector: str, start: float, end: float) -> None:
        """Drag across an element, from and to given shares of its width."""
        _, y = self.centre(selector)
        box = self.run(
            f"(b => [b.left, b.width])(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        at = [box[0] + share * box[1] for share in (start, (start + end) / 2, end)]
        self.mouse("mouseMoved", at[0], y)
        self.mouse("mousePressed", at[0], y, "left", 1, 1)
        for x in at[1:]:
            self.mouse("mouseMoved", x, y, "left", 1)
        self.mouse("mouseReleased", at[-1], y, "left", 0, 1)

    def key(self, name: str) -> None:
        """Press a key."""
        text = {"text": name} if len(name) == 1 else {}
        self("Input.dispatchKeyEvent", type="keyDown", key=name, **text)
        self("Input.dispatchKeyEvent", type="keyUp", key=name)

    def centre(self, selector: str) -> tuple[float, float]:
        """The middle of an element, scrolled into view."""
        x, y = self.run(
            f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            e.scrollIntoView({{block: "center", behavior: "instant"}}); const b = e.getBoundingClientRect();
            return [b.left + b.width / 2, b.top + b.height / 2]; }})()"""
        )
        return x, y

    def screenshot(self, file: Path) -> None:
        """Write the whole page as PNG."""
        size = self("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        picture = self("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        file.write_bytes(base64.b64decode(picture))

    def close(self) -> None:
        """End the browser and remove its profile."""
        try:
            self._session = None
            self("Browser.close")
            self.process.wait(PATIENCE)
        except (OSError, RuntimeError, TimeoutError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        finally:
            os.close(self._out)
            os.close(self._in)
            shutil.rmtree(self.profile, ignore_errors=True)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], PATIENCE)
            if not ready:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise RuntimeError("the browser ended")
            self._buffer += part
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method", ""), message.get("params", {})
        self._seen.add(method)
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.console.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.console.append(" ".join(str(argument.get("value")) for argument in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.console.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
