"""Pictures of the master's page: what people see of a running master, taken by a Chromium without a window.

    python -m tools.page_pictures --out pictures                                        of a busy master of its own
    python -m tools.page_pictures http://127.0.0.1:8080 --out pictures [--token TOKEN]  of one that runs

Takes the list of jobs, the newest job in each state, the newest ones side by side, the form for a new job, the pools,
the logs, and the form for the token, each in three widths, light and dark. Fails if Chromium is not there, if the
master does not answer, or if the page reports an error or is wider than its window.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

WIDTHS = (420, 1440, 2560)
SCHEMES = ("light", "dark")
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_READS, _WRITES = 3, 4
"""The descriptors on which Chromium is told what to do, and answers (`--remote-debugging-pipe`)."""
_DRAWN = "!document.querySelector('[aria-busy]') && document.querySelector('#state').textContent !== 'connecting ...'"
_STATES = "fetch('v1/jobs?page_size=200', {headers: HEADERS}).then(r => r.json()).then(a => JSON.stringify(a.jobs))"
_HEADERS = "(t => t ? {Authorization: 'Bearer ' + t} : {})(sessionStorage.getItem('token'))"
_TRIES = 600
"""A minute: a machine that is busy with other things is slow and not wrong."""
_TRY_MS = 100


class PageError(Exception):
    """The page does not do what it should."""


def chromium() -> str | None:
    """The program, if it is installed."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Browser:
    """One tab. Not thread-safe."""

    def __init__(self, answers: BinaryIO, orders: BinaryIO) -> None:
        """`answers`, `orders`: the pipes from and to Chromium, the second without a buffer."""
        self._from = answers
        self._to = orders
        self._last = 0
        self._session: str | None = None
        self.troubles: list[str] = []
        """What the page or the browser complained about."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Do one thing. Raises `PageError` if it cannot be done."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        order = json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0"
        try:
            while order:
                order = order[self._to.write(order) :]
        except BrokenPipeError as error:
            raise PageError("Chromium has ended") from error
        while True:
            told = self._read()
            if told.get("id") == self._last:
                if "error" in told:
                    raise PageError(f"{method}: {told['error']['message']}")
                answer: dict[str, Any] = told["result"]
                return answer
            self._note(told)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise PageError(str(answer["exceptionDetails"].get("exception", {}).get("description")))
        return answer["result"].get("value")

    def open(self, url: str) -> None:
        """Show this address, as if it was typed. Raises `PageError` if nothing answers there."""
        self.call("Page.navigate", url="about:blank")
        if trouble := self.call("Page.navigate", url=url).get("errorText"):
            raise PageError(f"{url}: {trouble}")
        self.wait(f"document.readyState === 'complete' && {_DRAWN}")

    def wait(self, condition: str) -> None:
        """Wait until this holds in the page. Raises `PageError` if it does not come to hold."""
        looking = f"""new Promise(done => {{ let left = {_TRIES}; const look = () => {{
            if ({condition}) return done(true);
            if (!left--) return done(false);
            setTimeout(look, {_TRY_MS}); }}; look(); }})"""
        if not self.evaluate(looking):
            raise PageError(f"does not come to hold: {condition}")

    def look(self, width: int, height: int, scheme: str) -> None:
        """Have a window of this size, in CSS pixels, and these colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self) -> bytes:
        """All of the page, as PNG."""
        height = self.evaluate("Math.max(document.documentElement.scrollHeight, innerHeight)")
        width = self.evaluate("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, 8000), "scale": 1}
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(answer["data"])

    def close(self) -> None:
        """Have Chromium end."""
        self._session = None
        self.call("Browser.close")

    def _read(self) -> dict[str, Any]:
        found = bytearray()
        while (byte := self._from.read(1)) != b"\0":
            if not byte:
                raise PageError("Chromium has ended")
            found += byte
        message: dict[str, Any] = json.loads(found)
        return message

    def _note(self, told: dict[str, Any]) -> None:
        if told.get("method") == "Runtime.exceptionThrown":
            details = told["params"]["exceptionDetails"]
            self.troubles.append(str(details.get("exception", {}).get("description", details["text"])))
        if told.get("method") == "Log.entryAdded" and told["params"]["entry"]["source"] in ("security", "violation"):
            self.troubles.append(told["params"]["entry"]["text"])


@contextmanager
def browser(program: str) -> Iterator[Browser]:
    """A Chromium without a window and with a profile of its own, for as long as it is needed.

    Raises `PageError` if it ends by itself.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        theirs_reads, ours_writes = _pipe()
        ours_reads, theirs_writes = _pipe()
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
        child = os.posix_spawn(
            program,
            [program, *options, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs_reads, _READS),
                (os.POSIX_SPAWN_DUP2, theirs_writes, _WRITES),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
        )
        os.close(theirs_reads)
        os.close(theirs_writes)
        try:
            with os.fdopen(ours_reads, "rb") as answers, os.fdopen(ours_writes, "wb", buffering=0) as orders:
                opened = Browser(answers, orders)
                yield opened
                opened.close()
        finally:  # without its pipes it ends, whatever it does
            os.waitpid(child, 0)


def _pipe() -> tuple[int, int]:
    """Its ends, which no child inherits, above the numbers that Chromium knows."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _WRITES + 1) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


def give_token(page: Browser, server: str, token: str) -> None:
    """Sign in as people do."""
    page.open(f"{server}/")
    if token:
        page.evaluate(f"sessionStorage.setItem('token', {json.dumps(token)})")


def views(page: Browser) -> dict[str, str]:
    """Name of a picture -> what stands behind the # of the address. Raises `PageError` if jobs are not told."""
    told = page.evaluate(_STATES.replace("HEADERS", _HEADERS))
    if told is None:
        raise PageError("the master does not tell its jobs; has it another --token?")
    jobs = json.loads(told)
    newest: dict[str, str] = {}
    for job in jobs:
        newest.setdefault(job["state"], job["name"])
    found = {f"job-{state}": f"#/jobs/{quote(name, safe='')}" for state, name in newest.items()}
    if len(jobs) > 1:
        found["compare"] = "#/compare/" + "+".join(quote(job["name"], safe="") for job in jobs[:3])
    return {"jobs": "#/", "new": "#/new", "pools": "#/pools", "logs": "#/logs"} | found


def take(page: Browser, url: str, name: str, out: Path) -> int:
    """The pictures of one view, and how many. Raises `PageError` if it is wider than a window."""
    for width in WIDTHS:
        for scheme in SCHEMES:
            page.look(width, 900, scheme)
            page.open(url)
            (out / f"{name}-{width}-{scheme}.png").write_bytes(page.picture())
            if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
                raise PageError(f"{name} is {wide} pixels wide in a window of {width}")
    return len(WIDTHS) * len(SCHEMES)


def main(arguments: Sequence[str]) -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(prog="python -m tools.page_pictures", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("server", nargs="?", help="URL of the master; none: a busy one is made, and an empty one")
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--token", default=os.environ.get("ESSP_API_TOKEN", ""), help="of the API (ESSP_API_TOKEN)")
    given = parser.parse_args(arguments)
    program = chromium()
    if program is None:
        raise SystemExit(f"none of {', '.join(PROGRAMS)} is installed: apt-get install chromium")
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        with browser(program) as page:
            if given.server:
                taken = _take_all(page, given.server.rstrip("/"), given.token, given.out)
            else:
                taken = _take_own(page, given.out)
            if page.troubles:
                raise PageError("; ".join(page.troubles))
    except PageError as error:
        raise SystemExit(f"the page: {error}") from error
    print(f"{taken} pictures in {given.out}")


def _take_all(page: Browser, server: str, token: str, out: Path) -> int:
    taken = take(page, f"{server}/", "token", out) if token else 0
    give_token(page, server, token)
    return taken + sum(take(page, f"{server}/{view}", name, out) for name, view in views(page).items())


def _take_own(page: Browser, out: Path) -> int:
    from tools.page_states import BUSY, EVENTS, HOUR, JOBS, busy_master

    with tempfile.TemporaryDirectory() as folder, busy_master(Path(folder), 0, 0) as server:
        taken = take(page, f"{server}/#/", "empty", out)
    with tempfile.TemporaryDirectory() as folder, busy_master(Path(folder), JOBS, EVENTS, hour=True) as server:
        taken += _take_all(page, server, "", out)
        return taken + sum(take(page, f"{server}/#/jobs/{name}", f"job-{name}", out) for name in (BUSY, HOUR))


if __name__ == "__main__":
    main(sys.argv[1:])
