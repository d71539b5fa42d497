"""A page of a run that goes on, served to a browser on this machine and made anew as the run does.

Whoever asks must know the token in the address and must call this machine by a name of its own: other users
of the machine and other pages in the browser see nothing. Nothing can be changed or asked for but the page.
"""

from __future__ import annotations

import hmac
import html
import io
import ipaddress
import os
import secrets
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from fairfate.errors import InputError, check

STREAMS, CONNECTIONS = 16, 64
"""How many may watch at once, and how many may be connected for whatever reason."""
LONGEST_LINE, LONGEST_HEAD = 4096, 65536
"""Bytes of a request's first line, and of all its lines."""
READING, WRITING = 10.0, 30.0
"""Seconds that a browser may take to ask, and to take the answer."""
WAITING = 2.0
"""Seconds that a browser waits for a page that is being made; then it gets the last one."""
HEARTBEAT, LOOK = 15.0, 0.5
"""Seconds between signs of life in a stream, and between looks at the folder."""
LEAST, SHARE = 2.0, 50.0
"""Seconds between two renderings: at least so many, and so many times the CPU time that one took."""
VERSION = "@@fairfate-version@@"
"""In a page, stands for the number of its version: ``events?...&since=NUMBER`` tells of later ones only."""
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline';"
    " img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
_PAGE, _EVENTS = "text/html; charset=utf-8", "text/event-stream"


# -- what is shown ---------------------------------------------------------------------------------------


def folder_stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Something that differs once anything in a run's folder does: names, sizes and times of its files."""
    from fairfate.experiments.live import LIVE  # these load much: not before somebody watches
    from fairfate.experiments.results import CELLS, PARTS

    found = []
    for part in ("", LIVE, CELLS, PARTS):
        with suppress(OSError), os.scandir(folder / part) as entries:
            for entry in entries:
                with suppress(OSError):  # gone meanwhile
                    if entry.is_file() and not entry.name.startswith("."):
                        about = entry.stat()
                        found.append((f"{part}/{entry.name}", about.st_size, about.st_mtime_ns))
    return tuple(sorted(found))


def is_finished(folder: Path) -> bool:
    """Whether a run is finished."""
    from fairfate.experiments.results import SUMMARY

    return (folder / SUMMARY).exists()


class Pace:
    """When to render again: seldom enough that it hardly takes any time from the run.

    Parameters
    ----------
    least : seconds from one rendering to the next
    share : the same, as a multiple of the CPU time that the last one took
    clock, cpu : tell the time and the CPU time of this process
    """

    def __init__(
        self,
        least: float = LEAST,
        share: float = SHARE,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self.least, self.share, self.clock, self.cpu = least, share, clock, cpu
        self._next = -float("inf")

    @property
    def due(self) -> bool:
        """Whether it is time."""
        return self.clock() >= self._next

    def rest(self, took: float) -> None:
        """After a rendering that took so much CPU time."""
        self._next = self.clock() + max(self.least, self.share * took)


class Shown(NamedTuple):
    """A page as it was last made."""

    version: int = 0
    """Grows with every change; 0 if there is none yet."""
    content: bytes = b""
    finished: bool = False
    """Whether it is the page of a finished run."""


class Pages:
    """The page, made anew when something has changed, and not too often. For one thread.

    Parameters
    ----------
    render : makes the page; where it cannot (InputError), the last one stays, or one that says why
    stamp : something that differs once the page would
    finished : whether the run is finished; that is shown at once
    pace : says how often
    """

    def __init__(
        self,
        render: Callable[[], str],
        stamp: Callable[[], object],
        finished: Callable[[], bool],
        pace: Pace,
    ) -> None:
        self.render, self.stamp, self.finished, self.pace = render, stamp, finished, pace
        self.shown = Shown()
        self._of: object = None
        self._text, self.is_good = "", False
        """Whether it is a page of the run, and not one that says why there is none."""

    def refresh(self) -> bool:
        """Make the page if need be and if it is time; tells whether there is a new one."""
        finished = self.finished()
        of = finished, self.stamp()  # before the page is made: what changes meanwhile is seen next time
        before = self.shown
        if before.version and (of == self._of or not (self.pace.due or finished > before.finished)):
            return False
        began, was_good = self.pace.cpu(), self.is_good
        text = self._make()
        is_loading = not before.version or self.is_good > was_good  # what all others need, once and for all
        self.pace.rest(0.0 if is_loading else self.pace.cpu() - began)
        version = before.version + (text != self._text)
        self._of, self._text = of, text
        content = text.replace(VERSION, str(version)).encode("utf-8", "replace")
        self.shown = Shown(version, content, finished)
        return self.shown != before

    def _make(self) -> str:
        try:
            text = self.render()
            self.is_good = True
        except Exception as error:  # a fault of ours ends neither the run nor the watching
            known = isinstance(error, InputError | OSError)
            why = str(error) if known else f"The page could not be made ({type(error).__name__}: {error})"
            text = self._text if self.is_good else waiting_page(why)
        return text


def waiting_page(why: str) -> str:
    """A page for the time before there is something to show; it makes way by itself."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>fairfate: waiting</title></head>
<body data-version="{VERSION}">
<main id="content"><h1>Nothing to see yet</h1><p>{html.escape(why)}</p></main>
<script>
const events = new EventSource("events" + location.search + "&since=" + document.body.dataset.version);
for (const name of ["changed", "finished"]) events.addEventListener(name, (event) => {{
  if (name === "changed" || event.lastEventId !== document.body.dataset.version) location.reload();
}});
</script>
</body>
</html>
"""


# -- who may see it --------------------------------------------------------------------------------------


def resolve_host(host: str, port: int, allow_remote: bool) -> tuple[socket.AddressFamily, str]:
    """The address to listen at; InputError for one that others can reach, unless that is wanted."""
    check(0 <= port <= 65535, "port must be in [0, 65535]", port)
    try:
        found = socket.getaddrinfo(host or "?", port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InputError(f"host must be an address of this machine, got '{host}'") from None
    addresses = [(family, str(where[0])) for family, _, _, _, where in found]
    remote = not all(ipaddress.ip_address(text.partition("%")[0]).is_loopback for _, text in addresses)
    if remote and not allow_remote:
        raise InputError(
            "host must be a loopback address such as 127.0.0.1 (or give --allow-remote, and other machines"
            f" can connect), got '{host}'"
        )
    return min(addresses, key=lambda one: one[0] != socket.AF_INET)


class Watch:
    """The server: listens from the start, answers while `serve` runs.

    Parameters
    ----------
    render, stamp, finished : see `Pages`
    host, port : where to listen; port 0 takes one that is free
    allow_remote : whether the host may be one that other machines can reach
    pace : how often to render
    heartbeat, look : seconds between signs of life in a stream, and between calls of ``stamp``
    steps_back : whether the thread that renders lets everything else go first, once there is a first page
    """

    def __init__(
        self,
        render: Callable[[], str],
        stamp: Callable[[], object],
        finished: Callable[[], bool] = lambda: False,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        allow_remote: bool = False,
        pace: Pace | None = None,
        heartbeat: float = HEARTBEAT,
        look: float = LOOK,
        steps_back: bool = False,
    ) -> None:
        family, address = resolve_host(host, port, allow_remote)
        self.pages = Pages(render, stamp, finished, pace or Pace())
        self.token, self.heartbeat, self.look = secrets.token_urlsafe(24), heartbeat, look
        self.steps_back, self.closing = steps_back, False
        self._streams: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._looking, self._looks = threading.Condition(), 0
        self._is_wanted, self._is_busy = False, False
        try:
            self._server = _Server(self, family, (address, port))
        except OSError as error:
            raise InputError(
                f"port must be free at {address}, got {port} ({error.strerror or error})"
            ) from None
        self.port = int(self._server.server_address[1])
        self.everywhere = ipaddress.ip_address(address.partition("%")[0]).is_unspecified
        self.host = socket.gethostname() if self.everywhere else address
        self._hosts = {
            "127.0.0.1",
            "localhost",
            "[::1]",
            _bracketed(host.lower()),
            _bracketed(self.host.lower()),
        }
        self._threads = [
            threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True),
            threading.Thread(target=self._look, daemon=True),
        ]

    @property
    def address(self) -> str:
        """For the browser, with the token."""
        return f"http://{_bracketed(self.host)}:{self.port}/?token={self.token}"

    @property
    def streams(self) -> int:
        """How many are watching."""
        return len(self._streams)

    def serve(self, until: Callable[[], bool] = lambda: False) -> None:
        """Answer until told to end, or until an exception such as `Stopped` ends it."""
        for thread in self._threads:
            thread.start()
        while not until():
            time.sleep(0.1)

    def _look(self) -> None:
        """Make the page anew while somebody watches, and whenever somebody asks for it."""
        pause = self.look
        while not self.closing:
            with self._looking:
                self._looking.wait_for(lambda: self._is_wanted or self.closing, pause)
                if not self._is_wanted and not self._streams:
                    pause = self.look
                    continue
                self._is_wanted, self._is_busy = False, True
            began = time.thread_time()
            was_good = self.pages.is_good
            if self.pages.refresh():
                self.notify()
            if self.steps_back and self.pages.is_good > was_good:
                step_back()
            pause = max(self.look, min(100 * (time.thread_time() - began), LEAST))
            with self._looking:
                self._looks, self._is_busy = self._looks + 1, False
                self._looking.notify_all()

    def current(self, seconds: float = WAITING, newest: bool = False) -> Shown:
        """The page as it is now; as it was, while a new one is being made or if that takes so long.

        Parameters
        ----------
        seconds : how long to wait
        newest : whether to wait for one of this moment, also while another one is being made
        """
        with self._looking:
            if self._is_busy and self.pages.shown.version and not newest:
                return self.pages.shown
            wanted = self._looks + 1 + (self._is_busy and newest)
            self._is_wanted = True
            self._looking.notify_all()
            self._looking.wait_for(lambda: self._looks >= wanted or self.closing, seconds)
            return self.pages.shown

    def farewell(self, seconds: float, making: float) -> None:
        """Tell those who watch how it ended, and let them fetch the last page.

        Parameters
        ----------
        seconds : for fetching it, at most
        making : for making it, at most
        """
        if not self._server.connections:
            return
        self.current(making, newest=True)
        quiet = time.monotonic()
        end = quiet + seconds
        while time.monotonic() < min(end, quiet + 1.0):
            if self._server.connections:
                quiet = time.monotonic()
            time.sleep(0.05)

    def notify(self) -> None:
        """Wake the streams."""
        with self._lock:
            for stream in self._streams:
                with suppress(OSError):  # full: it is awake anyway
                    stream.send(b"!")

    def close(self) -> None:
        """Listen no more, and let go of all who are connected."""
        self.closing = True
        if self._threads[0].is_alive():
            self._server.shutdown()
        self._server.server_close()
        with self._looking:
            self._looking.notify_all()
        self.notify()
        self._server.drop_all()

    @contextmanager
    def stream(self) -> Iterator[socket.socket | None]:
        """A socket that can be read when there is news; None if too many are watching."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            with self._lock:
                room = len(self._streams) < STREAMS
                self._streams |= {ours} if room else set()
            try:
                yield theirs if room else None
            finally:
                with self._lock:
                    self._streams -= {ours}

    def is_own(self, host: str, reached_at: str) -> bool:
        """Whether a request's Host header is a name of this server, and not one that leads here by deceit."""
        here = _bracketed(reached_at.removeprefix("::ffff:"))
        names = self._hosts | ({here} if self.everywhere else set())
        told = host.lower()
        return told in {f"{name}:{self.port}" for name in names} | (names if self.port == 80 else set())

    def knows(self, token: str) -> bool:
        """Whether it is the token."""
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def step_back() -> None:
    """Let everything else on this machine go before this thread (Linux) or this process, where possible."""
    if hasattr(os, "nice"):
        with suppress(OSError):
            os.nice(19)


# -- how it is asked -------------------------------------------------------------------------------------


class _Server(ThreadingHTTPServer):
    """A thread for each of a limited number of connections."""

    daemon_threads, block_on_close, request_queue_size = True, False, 64

    def __init__(self, watch: Watch, family: socket.AddressFamily, address: tuple[str, int]) -> None:
        self.watch, self.address_family = watch, family
        self._open: set[Any] = set()
        self._counting = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """As any server's; the one of HTTP looks up names, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "fairfate", int(self.server_address[1])

    @property
    def connections(self) -> int:
        return len(self._open)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._counting:
            room = len(self._open) < CONNECTIONS
            self._open |= {request} if room else set()
        if room:
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.setblocking(False)
            request.send(
                b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._counting:
            self._open -= {request}
        super().shutdown_request(request)

    def drop_all(self) -> None:
        """End all connections."""
        with self._counting:
            for request in self._open:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no error; of others nothing is told that could hold the token."""
        kind, _, _ = sys.exc_info()
        if kind is not None and not issubclass(kind, OSError):
            sys.stderr.write(f"A request ended in {kind.__name__}\n")


class _Handler(BaseHTTPRequestHandler):
    """One request, and its answer."""

    server: _Server
    protocol_version = "HTTP/1.1"
    command, request_version, requestline = "", "HTTP/1.1", ""

    def handle(self) -> None:
        """Read the request, within limits; refuse it or answer it."""
        try:
            head, problem = self._read_head()
        except OSError:
            return  # too slow, or gone
        if problem:
            self._answer(problem)
            self._drain()
            return
        self.rfile = io.BytesIO(head)
        self.raw_requestline = self.rfile.readline()
        if not head or not self.parse_request():
            return
        refusal, path, query = self._check()
        self.connection.settimeout(WRITING)
        if refusal:
            self._answer(refusal)
            self._drain()
        elif path == "/":
            self._page()
        elif path == "/events":
            self._events(query)
        else:
            self._answer(404)

    def _read_head(self) -> tuple[bytes, int]:
        """The lines up to the empty one, or the code of what is wrong with them."""
        end, head = time.monotonic() + READING, b""
        while b"\r\n\r\n" not in head and b"\n\n" not in head:
            if len(head.partition(b"\n")[0]) > LONGEST_LINE:
                return b"", 414
            if len(head) > LONGEST_HEAD:
                return b"", 431
            self.connection.settimeout(max(0.001, end - time.monotonic()))
            part = self.connection.recv(4096)
            if not part:
                return b"", 0
            head += part
        return head, 414 if len(head.partition(b"\n")[0]) > LONGEST_LINE else 0

    def _drain(self) -> None:
        """Take what is still being sent, for a moment: else the answer might be lost."""
        end = time.monotonic() + 1.0
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(0.2)
            while time.monotonic() < end and self.connection.recv(65536):
                pass

    def _check(self) -> tuple[int, str, dict[str, list[str]]]:
        """The code of a refusal or 0, and what is asked for."""
        watch = self.server.watch
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not watch.is_own(hosts[0].strip(), str(self.connection.getsockname()[0])):
            return 403, "", {}
        try:
            asked = urlsplit(self.path)
            query = parse_qs(asked.query, max_num_fields=4)
        except ValueError:
            return 403, "", {}
        tokens = query.get("token", [])
        if len(tokens) != 1 or not watch.knows(tokens[0]):
            return 403, "", {}
        if self.command not in ("GET", "HEAD"):
            return 405, "", {}
        if not self.path.startswith("/"):
            return 404, "", {}
        return 0, asked.path, query

    def _answer(self, code: int, content: bytes = b"", kind: str = "") -> None:
        self.request_version = self.protocol_version  # else some errors would be told without headers
        self.send_response_only(code)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if kind:
            self.send_header("Content-Type", kind)
        if kind != _EVENTS:
            self.send_header("Content-Length", str(len(content)))
        if code == 405:
            self.send_header("Allow", "GET, HEAD")
        if code == 503:
            self.send_header("Retry-After", "5")
        self.send_header("Connection", "close")
        self.end_headers()
        if content and self.command != "HEAD":
            self.connection.sendall(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Nothing of what was sent comes back."""
        self._answer(code)

    def handle_expect_100(self) -> bool:
        """Whoever waits to send more need not."""
        return True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing is logged: requests hold the token."""

    def _page(self) -> None:
        watch = self.server.watch
        shown = watch.current() if self.command == "GET" else watch.pages.shown
        content = shown.content or waiting_page("The page is being made.").replace(VERSION, "0").encode()
        self._answer(200, content, _PAGE)

    def _events(self, query: dict[str, list[str]]) -> None:
        if self.command == "HEAD":  # nobody watches, so no page is made
            self._answer(200, kind=_EVENTS)
            return
        watch = self.server.watch
        with watch.stream() as news:
            if news is None:
                self._answer(503)
                return
            self._answer(200, kind=_EVENTS)
            since = self.headers.get("Last-Event-ID") or query.get("since", ["0"])[-1]
            known = since.isascii() and since.isdigit() and len(since) < 16
            self._tell(news, int(since) if known else 0)

    def _tell(self, news: socket.socket, seen: int) -> None:
        """Tell of every change until the browser goes away."""
        watch, told, beat = self.server.watch, False, time.monotonic()
        self.connection.sendall(b"retry: 2000\n\n")
        while not watch.closing:
            shown = watch.pages.shown
            if shown.version != seen:
                self._send("changed", shown.version)
                seen = shown.version
            if shown.finished and not told:
                self._send("finished", shown.version)
            told = shown.finished
            left = beat + watch.heartbeat - time.monotonic()
            if left <= 0:
                self.connection.sendall(b": still there\n\n")
                beat = time.monotonic()
                continue
            ready, _, _ = select.select([self.connection, news], [], [], left)
            if self.connection in ready:
                return  # it is gone, or says what nobody has asked for
            if news in ready:
                news.recv(64)

    def _send(self, event: str, version: int) -> None:
        self.connection.sendall(f"event: {event}\nid: {version}\ndata: {version}\n\n".encode())
