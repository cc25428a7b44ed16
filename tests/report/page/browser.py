"""A headless Chromium driven through its DevTools protocol over a pipe: no driver, no package, no network.

The browser reads commands from its descriptor 3 and answers on 4, each message a JSON text that a zero byte ends.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE_S = 60.0

# Becomes the browser, with its two pipes where it looks for them.
_START = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""

# The browser compiles no second time what it has seen under the same address, to which what follows `#` counts,
# and there pages keep what was chosen. So it is taken away while the page adds Plotly, whose 4 MB take a second.
_UNDER_ONE_ADDRESS = """
const append = Element.prototype.append, {replaceState} = History.prototype;
Element.prototype.append = function (...nodes) {
    if (!location.hash || nodes[0]?.localName !== 'script') return append.apply(this, nodes);
    const {href} = location;
    replaceState.call(history, history.state, '', href.split('#')[0]);
    append.apply(this, nodes);
    replaceState.call(history, history.state, '', href);
};
"""


def find() -> str | None:
    """The browser that EVALUATOR_BROWSER names, else the first that is installed."""
    named = os.environ.get("EVALUATOR_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a headless browser; ``errors`` are what its scripts threw or logged as errors."""

    def __init__(self, program: str, profile: Path) -> None:
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        options = (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
            "--no-first-run", "--disable-extensions", "--disable-background-networking", f"--user-data-dir={profile}",
        )  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(commands), str(answers), program, *options, "about:blank"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._rest, self._number, self.errors, self.requests = b"", 0, [], []
        profile.mkdir(parents=True, exist_ok=True)
        self._shown = profile / "page.html"
        target = self._call("Target.createTarget", url="about:blank", session=None)["targetId"]
        self._session: str | None = self._call("Target.attachToTarget", targetId=target, flatten=True, session=None)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self.before(_UNDER_ONE_ADDRESS)

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._write)
        os.close(self._read)

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False, fragment: str = "") -> None:
        """Open a file at a size of the window and wait until its table is there; ``fragment`` ends its address.

        All files are opened under one address (``_UNDER_ONE_ADDRESS``): two thirds of the time that a page takes.
        """
        self.errors, self.requests = [], []
        shutil.copyfile(path, self._shown)
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url="about:blank")  # else another fragment of the same page is no new page
        self._call("Page.navigate", url=self._shown.resolve().as_uri() + fragment)
        self.wait("document.documentElement?.dataset.ready || document.querySelector('#failure')?.hidden === false")

    def before(self, script: str) -> str:
        """Run a script before those of every page that is opened from now on; ``after`` takes it back by its name."""
        return self._call("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]

    def after(self, name: str) -> None:
        """Take back what ``before`` gave this name."""
        self._call("Page.removeScriptToEvaluateOnNewDocument", identifier=name)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + PATIENCE_S
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"waited in vain for {condition}; errors: {self.errors}"
            time.sleep(0.02)

    def show(self, selector: str) -> None:
        """Scroll to an element, and wait until the chart in it, if there is one that is seen, is drawn."""
        self.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'start', behavior: 'instant'}})")
        chart = f"document.querySelector({selector!r}).querySelector('.chart')"
        self.wait(f"!{chart} || {chart}.hidden || {chart}.dataset.drawn")

    def click(self, selector: str) -> None:
        """Click the middle of an element with the mouse."""
        x, y = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, selector: str, right: float = 0.0, down: float = 0.0) -> None:
        """Move the mouse to the middle of an element, or beside it by so many pixels."""
        x, y = self._middle(selector)
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x + right, y=y + down)

    def type(self, text: str) -> None:
        """Type a text into what has the focus."""
        self._call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press a key such as Tab or Enter."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def picture(self, path: Path, whole: bool = False) -> Path:
        """A screenshot of the window, or of the whole page, as PNG."""
        picture = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))
        return path

    def printed(self) -> bytes:
        """The page as PDF, on sheets as its style says."""
        return base64.b64decode(self._call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])

    def _middle(self, selector: str) -> tuple[float, float]:
        box = f"document.querySelector({selector!r}).getBoundingClientRect()"
        self.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center', behavior: 'instant'}})")
        return tuple(self.run(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({box})"))  # type: ignore[return-value]

    def _call(self, method: str, session: str | None = "own", **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], PATIENCE_S)[0]:
                raise AssertionError(f"the browser says nothing for {PATIENCE_S:g} s")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise AssertionError("the browser has gone")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def _note(self, event: dict[str, Any]) -> None:
        """Keep errors, and what the page asks of a network."""
        method, about = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(about["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif method == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.errors.append(about["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"][:200])
