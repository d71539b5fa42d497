"""Serve the page of a run to browsers on this machine; the page asks for news and replaces itself.

Whoever asks must know the token in the address and must call this machine by a name of its own: other users
of the machine and other pages in the browser see nothing. There is one page and no file, nothing is written.
"""

from __future__ import annotations

import hmac
import html
import ipaddress
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Any

from fairfate.errors import InputError, check

LEAST, SHARE = 2.0, 50.0
"""Seconds between two renderings: at least so many, and so many times the CPU time that one took."""
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline';"
    " img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
WAITING = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<title>fairfate: waiting</title><body><main><h1>Nothing to see yet</h1><p>{}</p></main></body></html>
"""


class LivePage:
    """The page of a run's folder, made again when files have changed, and not too often."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shown = (0, False, WAITING.format("").encode())
        """The version, 0 before there is a page of the run; whether the run has finished; the page."""
        self._lock, self._next = threading.Lock(), 0.0
        self._stamp: object = None

    def refresh(self) -> None:
        """Render if the folder has changed and it is time; the last page stays while another is made."""
        if not self._lock.acquire(blocking=self.shown[0] == 0):
            return
        try:
            finished = (self.folder / "summary.csv").is_file()
            stamp = folder_stamp(self.folder)  # first: what changes during the rendering is seen next time
            if stamp != self._stamp and (time.monotonic() >= self._next or finished != self.shown[1]):
                began = time.thread_time()
                self._make(finished)
                self._stamp = stamp
                self._next = time.monotonic() + max(LEAST, SHARE * (time.thread_time() - began))
        finally:
            self._lock.release()

    def _make(self, finished: bool) -> None:
        from fairfate.report.page import render  # loads much: not before somebody watches

        version = self.shown[0] + 1
        if version > 1 and not finished and hasattr(os, "nice"):
            os.nice(10)  # this thread (elsewhere than on Linux, this process) lets the run go first
        try:
            self.shown = version, finished, render([self.folder], live=version).encode("utf-8", "replace")
        except Exception as error:  # the last page stays; a bug of ours ends neither the run nor the watching
            if version == 1:
                text = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
                self.shown = 0, False, WAITING.format(html.escape(text)).encode("utf-8", "replace")


def folder_stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of the files in a run's folder and in the folders there."""
    files = []
    for parent, folders, names in os.walk(folder):  # unlike `glob`, passes over what is gone meanwhile
        for path in (Path(parent, name) for name in (*folders, *names)):
            with suppress(OSError):
                stat = path.stat()
                files.append((str(path), stat.st_size, stat.st_mtime_ns))
        if Path(parent) != folder:
            folders.clear()
    return tuple(sorted(files))


class WatchServer(ThreadingTCPServer):
    """Listens at a loopback address (or at any, if remote ones are allowed); answers while `serve` runs."""

    daemon_threads, block_on_close, allow_reuse_address, timeout = True, False, True, 0.1

    def __init__(self, page: LivePage, host: str, port: int = 0, allow_remote: bool = False) -> None:
        check(0 <= port <= 65535, "port must be in [0, 65535]", port)
        try:
            self.address_family, *_, (address, *_) = socket.getaddrinfo(host or "?", port, type=1)[0]
            own = ipaddress.ip_address(str(address).partition("%")[0])
        except (OSError, ValueError):
            raise InputError(f"host must be an address of this machine, got '{host}'") from None
        rule = "host must be a loopback address (or give --allow-remote, and other machines can connect)"
        check(own.is_loopback or allow_remote, rule, f"'{host}'")
        try:
            super().__init__((str(address), port), _Handler)
        except OSError as error:
            raise InputError(f"port must be free at {address}, got {port} ({error.strerror})") from None
        self.page, self.token, self.last_asked = page, secrets.token_urlsafe(24), 0.0
        self.answering = 0
        self._count = threading.Lock()
        self.port = int(self.server_address[1])
        name = _bracketed(socket.gethostname() if own.is_unspecified else str(address))
        self.names = {"localhost", host.lower(), name.lower()}
        self.url = f"http://{name}:{self.port}/{self.token}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a browser that goes away is no error, and requests hold the token."""

    def serve(self, until: Callable[[], bool]) -> None:
        """Answer until a condition holds, or until an exception such as `Stopped`."""
        while not until():
            self.handle_request()

    def serve_last_page(self) -> None:
        """Answer until browsers that ask have had the page of the finished run."""
        end = time.monotonic() + 30 * LEAST

        def until() -> bool:
            now = time.monotonic()
            return now > end or (not self.answering and now > self.last_asked + 3 * LEAST)

        self.serve(until)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread."""
        with self._count:
            self.answering += 1
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer in this thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._count:
                self.answering -= 1


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class _Handler(BaseHTTPRequestHandler):
    """``/TOKEN/`` is the page and ``/TOKEN/state`` its version; everything else is refused."""

    server: WatchServer
    timeout = 10.0  # seconds for which a browser may be silent

    def do_GET(self) -> None:
        """Check who asks for what, and answer."""
        server, page = self.server, self.server.page
        names = server.names | {_bracketed(str(self.connection.getsockname()[0]).removeprefix("::ffff:"))}
        hosts = [host.lower() for host in self.headers.get_all("Host", [])]
        if len(hosts) != 1 or hosts[0] not in {f"{name}:{server.port}" for name in names}:
            self.send_error(403)  # another name that leads here: DNS rebinding
            return
        before, token, name = [*self.path.split("/", 2), "?", "?"][:3]
        is_known = hmac.compare_digest(token.encode("utf-8", "replace"), server.token.encode())
        if not is_known or before or name not in ("", "state"):
            self.send_error(404)
            return
        server.last_asked = time.monotonic()
        page.refresh()
        version, finished, content = page.shown
        if name == "state":
            content = json.dumps({"version": version, "finished": finished}).encode()
        self._answer(200, content, "application/json" if name else "text/html; charset=utf-8")
        if finished and not name:
            server.last_asked = 0.0

    def _answer(self, code: int, content: bytes = b"", kind: str = "text/plain") -> None:
        self.request_version = self.protocol_version  # else some errors would be sent without headers
        self.send_response_only(code)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with nothing of what was sent."""
        self._answer(code)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing: requests hold the token."""
