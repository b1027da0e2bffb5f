"""Serves a page that follows a job: the page of ``report``, made anew as the run file grows.

For this machine alone, unless it is bound elsewhere: then the address must carry a token.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from memprof.errors import MemprofError
from memprof.live.finding_words import in_words
from memprof.live.live_run import LiveRun
from memprof.live.watched_runs import WatchedRuns
from memprof.units import format_bytes, format_count, format_duration
from memprof_dashboards import assets
from memprof_dashboards.text import escaped, visible

__all__ = ["PageServer"]

_BEAT_S = 1.0
"""How often files are looked at, and browsers told."""
_WAIT_FACTOR = 5
"""Making pages takes at most one part in so many of the time."""
_MOST_LISTENERS = 32
_TOKEN_BYTES = 16

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' blob:; "
        "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",  # the address has the token
    "X-Content-Type-Options": "nosniff",
}
_STRIP = """<style>{style}</style>
<aside id="live" data-page="{page}" data-state="on" aria-label="Live" aria-live="off">
<b data-part="state">…</b><span data-part="step"></span><span data-part="memory"></span>
<strong data-part="full"></strong><span data-part="finding"></span><span class="gap"></span>
<button type="button" data-part="renew" hidden>Newer page</button>
<label><input type="checkbox" data-part="auto" checked> follow</label></aside>
<script>{script}</script>
"""
_STYLE = """#live { position: fixed; inset: auto 0 0 0; z-index: 50; display: flex; gap: 1.2em;
align-items: baseline; padding: .45em 1em; font: 13px/1.5 system-ui, sans-serif; color: #eee;
background: #16202c; border-top: 2px solid #2a7; white-space: nowrap; overflow: hidden; }
#live[data-state=off] { border-color: #c33; } #live strong { color: #ff9d8a; }
#live > * { flex: none; } #live .gap { flex: 1; }
#live strong, #live [data-part=finding] { flex: 0 1 auto; overflow: hidden;
text-overflow: ellipsis; }
body { padding-bottom: 3.5em; }"""
_WAITING = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><link rel="icon" href="data:,">
</head><body style="font: 16px system-ui, sans-serif; margin: 3em"><h1>memprof</h1>
<p>{why}</p>
</body></html>
"""


class _Now(msgspec.Struct):
    """What the strip says."""

    page: int
    state: str
    step: str
    memory: str
    full: str
    finding: str


class PageServer:
    """One address with the page of a run or of a job, kept up to date on two threads."""

    def __init__(
        self,
        runs: WatchedRuns,
        make: Callable[[Path], str],
        folder: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        every_s: float = 10.0,
    ) -> None:
        """Bind; nothing is made before `start`.

        Args:
            runs: what is followed.
            make: writes the page into a file; returns why it could not, or nothing.
            folder: for that file.
            host: an address of this machine; of any but its own loop the token is asked.
            port: 0 takes a free one.
            every_s: the least time between two pages.

        Raises:
            MemprofError: the address is none, or is taken.
        """
        self._runs, self._make, self._file = runs, make, folder / "page.html"
        self._every_s = every_s
        self.token = "" if _is_loop(host) else secrets.token_urlsafe(_TOKEN_BYTES)
        self._page, self._why = 0, "The first page is being made …"
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._listeners = 0
        try:
            self._server = _Server((host, port), _handler(self))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise MemprofError(
                f"cannot serve on {host}:{port}: {reason}", "choose another with --port"
            ) from error
        self.host, self.port = host, int(self._server.server_address[1])
        self._threads = [
            threading.Thread(target=self._server.serve_forever, name="memprof page", daemon=True),
            threading.Thread(target=self._follow, name="memprof pages", daemon=True),
        ]

    @property
    def url(self) -> str:
        """What to open."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    def start(self) -> None:
        """Answer, and follow, in the background."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Answer no more; safe to call twice."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join(timeout=10)

    def _follow(self) -> None:
        """Look at the files, and make the page anew when there is more."""
        made_s, took_s, is_newer = float("-inf"), 0.0, True
        while not self._stopped.is_set():
            is_newer |= self._runs.poll() > 0
            wait_s = max(self._every_s, _WAIT_FACTOR * took_s)
            if is_newer and time.monotonic() - made_s >= wait_s:
                began_s = time.monotonic()
                why = self._make(self._file.with_suffix(".new"))
                if self._stopped.is_set():
                    return
                if why:
                    self._why = why
                else:
                    self._file.with_suffix(".new").replace(self._file)
                    self._page += 1
                made_s = time.monotonic()
                took_s, is_newer = made_s - began_s, False
            with self._changed:
                self._changed.notify_all()
            self._stopped.wait(_BEAT_S)

    # -- what is answered ----------------------------------------------------------------------

    def allows(self, host: str, token: str) -> bool:
        """Whether a request may be answered, by the host that it names and the token that it has.

        A page somewhere else could name its own host and mean this machine: on the loop only its
        own names are answered.
        """
        if self.token:
            return hmac.compare_digest(token.encode(), self.token.encode())
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or _is_loop(name)

    def html(self) -> bytes:
        """The page with its strip; a few words as long as there is none."""
        page = self._page
        try:
            text = self._file.read_text(encoding="utf-8") if page else ""
        except OSError:
            text = ""
        if not text:
            title = visible(self._runs.name, 100)
            text = _WAITING.format(title=escaped(title), why=escaped(self._why))
            page = 0
        strip = _STRIP.format(page=page, style=_STYLE, script=assets.script(["live.js"]))
        head, end, tail = text.rpartition("</body>")
        return f"{head}{strip}{end}{tail}".encode()

    def now(self) -> bytes:
        """What the strip says, as JSON."""
        return msgspec.json.encode(_now(self._page, self._runs))

    def wait(self) -> bool:
        """Wait for the next look at the files; False when all is over."""
        with self._changed:
            self._changed.wait(_BEAT_S * 5)
        return not self._stopped.is_set()

    def listen(self, more: int) -> bool:
        """One listener more or less; False where there are too many."""
        with self._changed:
            if more > 0 and self._listeners >= _MOST_LISTENERS:
                return False
            self._listeners += more
        return True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that goes away is no error."""


def _handler(server: PageServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "memprof"
        sys_version = ""
        timeout = 60

        def do_GET(self) -> None:
            """The page, or the events that keep its strip up to date."""
            url = urlsplit(self.path)
            token = parse_qs(url.query).get("token", [""])[0]
            if not server.allows(self.headers.get("Host", ""), token):
                self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"the address lacks its token\n")
            elif url.path == "/":
                self._answer(HTTPStatus.OK, "text/html; charset=utf-8", server.html())
            elif url.path == "/events":
                self._events()
            else:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there is only /\n")

        def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def _events(self) -> None:
            if not server.listen(1):
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", b"too many browsers\n")
                return
            try:
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", "text/event-stream")
                for name, value in _HEADERS.items():
                    self.send_header(name, value)
                self.end_headers()
                last_sent = b""
                while True:
                    now = server.now()
                    # A line that says nothing shows whether anybody still listens.
                    self.wfile.write(b"data: " + now + b"\n\n" if now != last_sent else b":\n\n")
                    self.wfile.flush()
                    last_sent = now
                    if not server.wait():
                        return
            finally:
                server.listen(-1)

        def log_message(self, *_: object) -> None:
            """Nobody reads the addresses of requests, which hold the token."""

    return Handler


def _is_loop(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _now(page: int, runs: WatchedRuns) -> _Now:
    """Of several ranks the one that is full first, else the one with the highest peak."""
    all_runs = list(runs.runs)
    full = [(one.times_to_full(), one) for one in all_runs]
    first = min(
        (pair for pair in full if pair[0]), key=lambda pair: pair[0][0].steps_left, default=None
    )
    run = first[1] if first is not None else max(all_runs, key=_peak)
    with run.lock:
        device = run.main
        last = device.last if device is not None else None
        words = ""
        if device is not None and last is not None:
            words = f"{device.device}: {format_bytes(max(last.allocated, 0))} allocated"
            words += f", peak {format_bytes(device.peak_allocated)}"
            if device.info.total_bytes:
                words += f" of {format_bytes(device.info.total_bytes)}"
        finding = run.findings[-1] if run.findings else None
        state = _state(run, len(all_runs))
        each = f", {format_duration(last.each_us)} each" if last and last.each_us > 0 else ""
        return _Now(
            page=page,
            state=state,
            step=f"step {format_count(run.step)}{each}" if run.step >= 0 else "",
            memory=words,
            full=str(first[0][0]) if first is not None else "",
            finding=visible(in_words(finding), 300) if finding is not None else "",
        )


def _peak(run: LiveRun) -> int:
    return run.main.peak_allocated if run.main is not None else -1


def _state(run: LiveRun, count: int) -> str:
    if run.header is None:
        return "waiting for the first record"
    rank = f"rank {run.rank} of {count}: " if run.rank >= 0 and count > 1 else ""
    if run.footer is None:
        return f"{rank}running"
    return (
        f"{rank}ended" if run.footer.status == "ok" else visible(f"{rank}{run.footer.status}", 120)
    )
