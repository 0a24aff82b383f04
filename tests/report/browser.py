"""Chromium over its debugging pipe: pages opened, clicked, typed at and looked at by tests.

with Browser.start("/usr/bin/chromium", folder) as browser:
    tab = browser.open(page, width=390, dark=True)
    tab.click("#tasks .open button")
    tab.value("document.title")
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
    "--remote-debugging-pipe",
)
SECONDS = 60
KEYS = {
    "j": 74,
    "k": 75,
    "Enter": 13,
    "Escape": 27,
    "Tab": 9,
    " ": 32,
    "ArrowDown": 40,
    "ArrowRight": 39,
}
TEXTS = {"Enter": "\r", " ": " ", "j": "j", "k": "k"}


def installed() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


@dataclass
class Browser:
    """One process for all pages: each is a tab of its own, so that none sees another's state."""

    asked: int
    answered: int
    rest: bytes = b""
    count: int = 0

    @staticmethod
    @contextmanager
    def start(program: str, profile: Path) -> Iterator[Browser]:
        # The browser reads commands from 3 and writes to 4, which may be ours for something else.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (*os.pipe(), *os.pipe())]
        commands, asked, answered, answers = ends
        quiet = os.open(os.devnull, os.O_RDWR)
        moved = [(os.POSIX_SPAWN_DUP2, commands, 3), (os.POSIX_SPAWN_DUP2, answers, 4)]
        moved += [(os.POSIX_SPAWN_DUP2, quiet, 1), (os.POSIX_SPAWN_DUP2, quiet, 2)]
        arguments = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = os.posix_spawn(program, arguments, os.environ, file_actions=moved, setpgroup=0)
        for end in (commands, answers, quiet):
            os.close(end)
        browser = Browser(asked, answered)
        try:
            yield browser
        finally:
            with suppress(OSError):
                browser.ask("Browser.close")
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os.close(asked)
            os.close(answered)

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self.count += 1
        message: dict[str, Any] = {"id": self.count, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self.asked, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == message["id"]:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.answered], [], [], SECONDS)
            read = os.read(self.answered, 1 << 20) if ready else b""
            if not read:
                raise OSError("the browser says nothing")
            self.rest += read
        text, _, self.rest = self.rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def open(
        self,
        page: Path,
        hash: str = "",
        width: int = 1440,
        height: int = 900,
        dark: bool = False,
        still: bool = True,
    ) -> Tab:
        """The page in a tab whose script has run. `still`: as for who wants no motion."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session, target)
        tab.resize(width, height)
        wanted = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce" if still else "no-preference",
        }
        features = [{"name": name, "value": value} for name, value in wanted.items()]
        tab.ask("Emulation.setEmulatedMedia", features=features)
        tab.ask("Page.navigate", url=page.as_uri() + hash)
        told = "document.documentElement?.dataset"
        tab.wait(f"{told}?.ready || {told}?.error")
        return tab


@dataclass
class Tab:
    browser: Browser
    session: str
    target: str

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.ask(method, self.session, **params)

    def close(self) -> None:
        self.browser.ask("Target.closeTarget", targetId=self.target)

    def resize(self, width: int, height: int) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def value(self, script: str) -> Any:
        """What an expression gives, promises awaited."""
        given = {"expression": script, "returnByValue": True, "awaitPromise": True}
        answer = self.ask("Runtime.evaluate", **given)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script: str) -> Any:
        end = time.monotonic() + SECONDS
        while not (found := self.value(script)):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.02)
        return found

    def settle(self) -> None:
        """Until what was asked for is drawn."""
        self.value("new Promise((f) => requestAnimationFrame(() => requestAnimationFrame(f)))")

    def box(self, selector: str) -> Mapping[str, float]:
        found = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()"
        box: Mapping[str, float] = self.value(found)
        return box

    def click(self, selector: str) -> None:
        """With the pointer, in the middle of what the selector finds, scrolled into sight."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{found}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        self.settle()
        box = self.box(selector)
        self.point(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    def point(self, x: float, y: float) -> None:
        given = {"x": x, "y": y, "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, **given)
        self.settle()

    def press(self, key: str) -> None:
        given: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": KEYS[key]}
        if key in TEXTS:
            given["text"] = TEXTS[key]
        self.ask("Input.dispatchKeyEvent", type="keyDown", **given)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **given)
        self.settle()

    def type(self, text: str) -> None:
        self.ask("Input.insertText", text=text)
        self.settle()

    def picture(self, file: Path, whole: bool = False) -> None:
        """A screenshot, of the whole page if `whole`."""
        self.settle()
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))
