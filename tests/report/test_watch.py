"""Watching a run in the browser: who may see it, that every change is seen, and that the run comes first."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fairfate import InputError
from fairfate.cli import watch as command
from fairfate.report.watch import CONNECTIONS, STREAMS, VERSION, Pace, Pages, Watch, folder_stamp

LONG = 60.0
"""Seconds that nothing takes, unless it hangs."""


def until(condition: Callable[[], Any], what: str = "it") -> Any:
    """Wait for something."""
    end = time.monotonic() + LONG
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} has not happened"
        time.sleep(0.005)
    return found


class Answer(NamedTuple):
    code: int
    headers: dict[str, str]
    body: bytes


def connect(watch: Watch) -> socket.socket:
    return socket.create_connection(("127.0.0.1", watch.port), timeout=LONG)


def head(watch: Watch, target: str, method: str = "GET", host: str | None = None, more: str = "") -> bytes:
    name = f"127.0.0.1:{watch.port}" if host is None else host
    told = f"Host: {name}\r\n" if name else ""
    return f"{method} {target} HTTP/1.1\r\n{told}{more}\r\n".encode("latin-1")


def exchange(watch: Watch, request: bytes) -> Answer:
    """Send anything, and read all that comes back."""
    with connect(watch) as sock:
        sock.sendall(request)
        content = b""
        while part := sock.recv(65536):
            content += part
    top, _, body = content.partition(b"\r\n\r\n")
    status, *lines = top.decode("latin-1").split("\r\n")
    pairs = (line.partition(": ") for line in lines)
    return Answer(int(status.split()[1]), {name.lower(): value for name, _, value in pairs}, body)


def ask(watch: Watch, target: str | None = None, **options: str) -> Answer:
    return exchange(watch, head(watch, f"/?token={watch.token}" if target is None else target, **options))


class Stream:
    """A browser that listens to events."""

    def __init__(self, watch: Watch, last: int | None = None, query: str = "") -> None:
        more = "" if last is None else f"Last-Event-ID: {last}\r\n"
        self.sock = connect(watch)
        self.sock.sendall(head(watch, f"/events?token={watch.token}{query}", more=more))
        self.rest = b""
        self.code = int(self.until(b"\r\n").split()[1])
        self.headers = self.until(b"\r\n\r\n").decode()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.sock.close()

    def until(self, end: bytes, seconds: float = LONG) -> bytes:
        limit = time.monotonic() + seconds
        while end not in self.rest:
            self.sock.settimeout(max(0.001, limit - time.monotonic()))
            part = self.sock.recv(65536)
            if not part:
                raise EOFError
            self.rest += part
        found, _, self.rest = self.rest.partition(end)
        return found

    def event(self, seconds: float = LONG) -> tuple[str, int]:
        """The next event's name and number, heartbeats aside."""
        limit = time.monotonic() + seconds
        while True:
            lines = self.until(b"\n\n", limit - time.monotonic()).decode().split("\n")
            fields = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
            if "event" in fields:
                assert fields["id"] == fields["data"]
                return fields["event"], int(fields["id"])


class Shown:
    """What a run would tell."""

    def __init__(self) -> None:
        self.stamp, self.finished, self.renders, self.active, self.most = 0, False, 0, 0, 0
        self.problem: Exception | None = None
        self.size, self.pause = 0, 0.0

    def render(self) -> str:
        self.renders += 1
        self.active += 1
        self.most = max(self.most, self.active)
        time.sleep(self.pause)
        self.active -= 1
        if self.problem is not None:
            raise self.problem
        return f"<p>state {self.stamp}, version {VERSION}</p>" + "x" * self.size

    def watch(self, **options: Any) -> Watch:
        pace = options.pop("pace", None) or Pace(least=0.0, share=0.0)
        options.setdefault("look", 0.005)
        return Watch(self.render, lambda: self.stamp, lambda: self.finished, pace=pace, **options)


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture
def serve() -> Iterator[Callable[[Watch], Watch]]:
    """Serves, and ends it with the test: nothing listens any more, and no thread lives on."""
    ended, threads, served = threading.Event(), [], []

    def start(watch: Watch) -> Watch:
        thread = threading.Thread(target=watch.serve, args=(ended.is_set,), daemon=True)
        thread.start()
        threads.append(thread)
        served.append(watch)
        return watch

    yield start
    ended.set()
    for thread, watch in zip(threads, served, strict=True):
        thread.join(LONG)
        assert not thread.is_alive()
        watch.close()
        until(lambda watch=watch: not watch._server.connections, "the end of all connections")
        for thread in watch._threads:
            thread.join(LONG)
            assert not thread.is_alive()
        with pytest.raises(OSError):  # noqa: PT011
            connect(watch)


@pytest.fixture
def watch(shown: Shown, serve: Callable[[Watch], Watch]) -> Watch:
    return serve(shown.watch())


# -- who may see it --------------------------------------------------------------------------------------


def test_the_page_is_there_for_whoever_has_the_token(watch: Watch) -> None:
    answer = ask(watch)
    assert (answer.code, answer.body) == (200, b"<p>state 0, version 1</p>")
    assert answer.headers == {
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "x-frame-options": "DENY",
        "cross-origin-resource-policy": "same-origin",
        "content-security-policy": "default-src 'none'; script-src 'unsafe-inline';"
        " style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'",
        "content-type": "text/html; charset=utf-8",
        "content-length": str(len(answer.body)),
        "connection": "close",
    }
    assert re.fullmatch(rf"http://127\.0\.0\.1:{watch.port}/\?token=[\w-]{{32}}", watch.address)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?",
        "?token",
        "?token=",
        "?token=x",
        "?token={other}",
        "?token={token}x",
        "?token={short}",
        "?Token={token}",
        "?token={token}&token={token}",
        "?token=x&token={token}",
        "?token={token}&a=1&b=2&c=3&d=4",
        "?token=%ff%fe",
        "?token=\xe9",
        "?token={token}%00",
        "#token={token}",
    ],
)
@pytest.mark.parametrize("path", ["/", "/events", "/nothing"])
def test_without_the_token_there_is_nothing(watch: Watch, shown: Shown, path: str, query: str) -> None:
    token = watch.token
    values = {"token": token, "short": token[:-1], "other": token.swapcase()}
    answer = ask(watch, path + query.format(**values))
    assert (answer.code, answer.body) == (403, b"")
    assert "server" not in answer.headers
    assert shown.renders == 0


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:{other}",
        "127.0.0.1:{port}.evil.example",
        "localhost.evil.example:{port}",
        "evil@127.0.0.1:{port}",
        "127.0.0.2:{port}",
        "0.0.0.0:{port}",
        "127.1:{port}",
        "localhost:{port}, evil.example",
        "localhost:{port}\r\nHost: evil.example",
    ],
)
def test_a_name_that_leads_here_by_deceit_is_refused(watch: Watch, shown: Shown, host: str) -> None:
    """As of a page elsewhere whose name is made to mean this machine (DNS rebinding)."""
    answer = ask(watch, host=host.format(port=watch.port, other=watch.port ^ 1))
    assert (answer.code, answer.body) == (403, b"")
    assert shown.renders == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost", "[::1]"])
def test_names_of_this_machine_are_taken(watch: Watch, host: str) -> None:
    assert ask(watch, host=f"{host}:{watch.port}").code == 200


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "CONNECT", "get", "X"]
)
def test_nothing_can_be_done_but_reading(watch: Watch, method: str) -> None:
    answer = ask(watch, method=method, more="Content-Length: 3\r\nExpect: 100-continue\r\n")
    assert (answer.code, answer.body) == (405, b"")
    assert answer.headers["allow"] == "GET, HEAD"
    assert ask(watch, "/?token=x", method=method).code == 403


def test_head_has_no_body_and_makes_no_page(watch: Watch, shown: Shown) -> None:
    for path, kind in (("/", "text/html; charset=utf-8"), ("/events", "text/event-stream")):
        answer = ask(watch, f"{path}?token={watch.token}", method="HEAD")
        assert (answer.code, answer.body, answer.headers["content-type"]) == (200, b"", kind)
    assert shown.renders == 0


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "//etc/passwd",
        "/etc/passwd",
        "/config.toml",
        "/.",
        "/./",
        "/index.html",
        "/events/",
        "/EVENTS",
        "/;",
        "/%2f",
        "/%00",
        "*",
        "etc",
        "http://127.0.0.1/",
        "file:///etc/passwd",
    ],
)
def test_nothing_else_is_there(watch: Watch, path: str) -> None:
    answer = ask(watch, f"{path}?token={watch.token}")
    assert (answer.code, answer.body) == (404, b"")


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /" + b"a" * 5_000_000, 414),
        (b"a" * 5_000_000, 414),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 1_000_000, 431),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"GET / SPDY/1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost\r\n\r\n", 403),
    ],
)
def test_requests_beyond_all_measure_are_refused(watch: Watch, request_: bytes, code: int) -> None:
    try:
        answer = exchange(watch, request_)
    except ConnectionError:
        assert len(request_) > 100_000  # it may have been cut off while it was still sending
    else:
        assert (answer.code, answer.body) == (code, b"")
        assert "server" not in answer.headers
    assert ask(watch).code == 200


def test_nothing_is_logged(watch: Watch, capfd: pytest.CaptureFixture[str]) -> None:
    with Stream(watch) as stream:
        stream.event()
    for target in (None, "/x", f"/x?token={watch.token}", f"/events?token={watch.token}&since={'9' * 3000}"):
        if target is not None and "since" in target:
            with connect(watch) as sock:
                sock.sendall(head(watch, target))
                assert b" 200 " in sock.recv(100)
        else:
            ask(watch, target)
    until(lambda: not watch.streams)
    assert capfd.readouterr() == ("", "")


def test_other_addresses_are_refused_unless_they_are_wanted(shown: Shown) -> None:
    for host in ("0.0.0.0", "::", "0", "", "no such name", "192.0.2.1"):
        with pytest.raises(InputError, match=r"^host must be "):
            shown.watch(host=host)
    for port in (-1, 65536):
        with pytest.raises(InputError, match=r"port must be in \[0, 65535\], got"):
            shown.watch(port=port)


def test_a_port_that_is_taken_is_named(watch: Watch, shown: Shown) -> None:
    with pytest.raises(InputError, match=rf"port must be free at 127.0.0.1, got {watch.port} \(.*in use"):
        shown.watch(port=watch.port)


def test_where_others_may_connect_they_need_the_token_and_a_true_name(
    shown: Shown, serve: Callable[[Watch], Watch]
) -> None:
    watch = serve(shown.watch(host="0.0.0.0", allow_remote=True))
    port = watch.port
    assert socket.gethostname() in watch.address
    for name in (f"127.0.0.1:{port}", f"{socket.gethostname()}:{port}", f"localhost:{port}"):
        assert ask(watch, host=name).code == 200
    for name in (f"evil.example:{port}", f"192.0.2.1:{port}"):
        assert ask(watch, host=name).code == 403
    assert ask(watch, "/").code == 403


def test_it_listens_at_the_other_loopback_address_as_well(
    shown: Shown, serve: Callable[[Watch], Watch]
) -> None:
    try:
        watch = shown.watch(host="::1")
    except InputError:
        pytest.skip("no IPv6 here")
    assert watch.address.startswith(f"http://[::1]:{watch.port}/?token=")
    watch.close()


# -- how many --------------------------------------------------------------------------------------------


def test_of_fifty_streams_sixteen_are_taken_and_places_become_free(
    shown: Shown, serve: Callable[[Watch], Watch]
) -> None:
    watch = serve(shown.watch(heartbeat=1e6))
    with ExitStack() as opened:
        codes = []
        for _ in range(50):
            stream = Stream(watch)
            codes.append(stream.code)
            if stream.code == 200:
                opened.enter_context(stream)
            else:
                assert "Retry-After: 5" in stream.headers
                stream.sock.close()
        assert codes == [200] * STREAMS + [503] * (50 - STREAMS)
        assert ask(watch).code == 200
    until(lambda: watch.streams == 0, "the end of all streams")  # long before the next sign of life
    with Stream(watch) as stream:
        assert stream.code == 200


def test_fifty_that_say_nothing_hold_up_nobody(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairfate.report.watch.READING", 10 * LONG)
    with ExitStack() as opened:
        for _ in range(50):
            opened.enter_context(connect(watch)).sendall(b"GET / HTT")
        assert ask(watch).code == 200
        until(lambda: watch._server.connections == 50)
        for _ in range(CONNECTIONS - 50):
            opened.enter_context(connect(watch))
        until(lambda: watch._server.connections == CONNECTIONS)
        with connect(watch) as one_too_many:
            assert one_too_many.recv(100).startswith(b"HTTP/1.1 503 ")
    until(lambda: watch._server.connections == 0)
    assert ask(watch).code == 200


def test_who_says_nothing_is_let_go(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairfate.report.watch.READING", 0.1)
    with connect(watch) as sock:
        assert sock.recv(100) == b""


def test_a_byte_now_and_then_does_not_keep_a_connection(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairfate.report.watch.READING", 0.5)
    with connect(watch) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):  # noqa: PT012
            for _ in range(2000):
                sock.sendall(b"X")
                time.sleep(0.03)


def test_a_slow_reader_holds_up_nobody(shown: Shown, serve: Callable[[Watch], Watch]) -> None:
    shown.size = 20_000_000
    watch = serve(shown.watch())
    with ExitStack() as opened:
        for _ in range(10):
            sock = opened.enter_context(connect(watch))
            sock.sendall(head(watch, f"/?token={watch.token}"))
        with Stream(watch) as stream:
            for number in range(1, 4):
                shown.stamp = number
                while stream.event()[1] < number:
                    pass
                assert len(ask(watch).body) > shown.size
        assert watch._server.connections >= 10


# -- what is told ----------------------------------------------------------------------------------------


def test_sixty_of_sixty_changes_are_seen(watch: Watch, shown: Shown) -> None:
    with Stream(watch) as stream:
        assert stream.event() == ("changed", 1)
        for number in range(2, 62):
            shown.stamp += 1
            assert stream.event() == ("changed", number)
            assert ask(watch).body == f"<p>state {shown.stamp}, version {number}</p>".encode()


def test_changes_that_come_faster_than_pages_end_with_the_last_one(watch: Watch, shown: Shown) -> None:
    shown.pause = 0.01
    with ExitStack() as opened:
        streams = [opened.enter_context(Stream(watch)) for _ in range(5)]
        for _ in range(60):
            shown.stamp += 1
            time.sleep(0.002)
        until(lambda: f"state {shown.stamp}," in ask(watch).body.decode(), "the last page")
        last = watch.pages.shown.version
        for stream in streams:
            seen = 0
            while seen < last:
                name, number = stream.event()
                assert name == "changed"
                assert number > seen
                seen = number


def test_whoever_comes_back_is_told_what_was_missed(watch: Watch, shown: Shown) -> None:
    with Stream(watch) as stream:
        _, first = stream.event()
    shown.stamp += 1
    until(lambda: b"state 1," in ask(watch).body)  # at first the last page, if the next one is being made
    with Stream(watch, last=first) as stream:
        assert stream.event() == ("changed", first + 1)
    with Stream(watch, last=first + 1) as stream:
        with pytest.raises(TimeoutError):
            stream.event(0.3)
        shown.stamp += 1
        assert stream.event() == ("changed", first + 2)
    for last in (0, 99):  # of another server
        with Stream(watch, last=last) as stream:
            assert stream.event() == ("changed", first + 2)


def test_a_page_tells_its_stream_which_version_it_is(watch: Watch, shown: Shown) -> None:
    assert b"version 1<" in ask(watch).body
    with Stream(watch, query="&since=1") as stream:
        with pytest.raises(TimeoutError):
            stream.event(0.3)
        shown.stamp += 1
        assert stream.event() == ("changed", 2)
    with Stream(watch, query="&since=1") as stream:
        assert stream.event() == ("changed", 2)
    with Stream(watch, last=2, query="&since=1") as stream, pytest.raises(TimeoutError):
        stream.event(0.3)


def test_the_end_is_told_at_once_and_to_whoever_comes_later(
    shown: Shown, serve: Callable[[Watch], Watch]
) -> None:
    pace = Pace(least=1e6)
    watch = serve(shown.watch(pace=pace))
    with Stream(watch) as stream:
        assert stream.event() == ("changed", 1)
        shown.stamp = 1  # not shown for a long time
        shown.stamp, shown.finished = 2, True
        assert stream.event() == ("changed", 2)
        assert stream.event() == ("finished", 2)
        assert b"state 2," in ask(watch).body
        with Stream(watch, last=2) as other:
            assert other.event() == ("finished", 2)
        with pytest.raises(TimeoutError):
            stream.event(0.3)
        shown.finished = False  # it is run again
        pace.least = 0.0
        pace._next = 0.0
        until(lambda: not watch.pages.shown.finished)
        shown.finished = True
        assert stream.event() == ("finished", 2)


def test_there_are_signs_of_life(shown: Shown, serve: Callable[[Watch], Watch]) -> None:
    watch = serve(shown.watch(heartbeat=0.02))
    with Stream(watch) as stream:
        assert stream.until(b"\n\n") == b"retry: 2000"
        while stream.until(b"\n\n") != b": still there":
            pass


def test_the_end_of_watching_ends_the_streams(shown: Shown) -> None:
    watch, ended = shown.watch(), threading.Event()
    thread = threading.Thread(target=watch.serve, args=(ended.is_set,), daemon=True)
    thread.start()
    with Stream(watch) as stream:
        stream.event()
        ended.set()
        thread.join(LONG)
        watch.close()
        with pytest.raises((EOFError, ConnectionError)):
            stream.event()


def test_a_farewell_waits_for_those_who_watch_and_not_for_nobody(
    shown: Shown, serve: Callable[[Watch], Watch]
) -> None:
    watch = serve(shown.watch(look=0.5, pace=Pace(least=1e6)))
    began = time.monotonic()
    watch.farewell(LONG, LONG)
    assert time.monotonic() - began < 1
    with Stream(watch) as stream:
        stream.event()
        thread = threading.Thread(target=watch.farewell, args=(LONG, LONG))
        shown.stamp, shown.finished = 5, True
        thread.start()
        assert stream.event() == ("changed", 2)
        assert stream.event() == ("finished", 2)
    assert b"state 5," in ask(watch).body  # as the page does, once it has closed its stream
    thread.join(LONG)
    assert not thread.is_alive()


def test_a_farewell_waits_for_a_page_that_is_long_in_the_making(
    shown: Shown, serve: Callable[[Watch], Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = serve(shown.watch(look=0.05, pace=Pace(least=1e6)))
    render = watch.pages.render

    def slow() -> str:
        time.sleep(1.0)
        return render()

    with Stream(watch) as stream:
        stream.event()
        monkeypatch.setattr(watch.pages, "render", slow)
        shown.stamp, shown.finished = 5, True
        watch.farewell(0.3, LONG)  # less for fetching it than it takes to make it
        watch.close()
        assert stream.event() == ("changed", 2)
        assert stream.event() == ("finished", 2)


# -- what it costs ---------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it would be for the whole process")
def test_the_thread_that_makes_pages_steps_back_after_the_first(
    shown: Shown, serve: Callable[[Watch], Watch]
) -> None:
    seen: list[int] = []
    usual = os.nice(0)

    def render() -> str:
        seen.append(os.nice(0))
        return shown.render()

    watch = Watch(render, lambda: shown.stamp, pace=Pace(0.0, 0.0), look=0.005, steps_back=True)
    shown.problem = InputError("just begun")
    serve(watch)
    for number in range(1, 5):
        assert ask(watch).code == 200
        assert seen[-1] == (usual if number < 4 else 19)
        shown.stamp += 1
        shown.problem = None if number > 1 else shown.problem
    assert os.nice(0) == usual


def test_nothing_is_rendered_while_nobody_looks(watch: Watch, shown: Shown) -> None:
    for _ in range(20):
        shown.stamp += 1
        time.sleep(0.01)
    assert shown.renders == 0
    with Stream(watch) as stream:
        stream.event()
        for number in range(5):
            shown.stamp += 1
            assert stream.event() == ("changed", number + 2)
    until(lambda: watch.streams == 0)
    seen = shown.renders
    for _ in range(20):
        shown.stamp += 1
        time.sleep(0.01)
    assert shown.renders <= seen + 1


def test_a_page_is_made_once_however_often_it_is_fetched(watch: Watch, shown: Shown) -> None:
    assert {ask(watch).body for _ in range(50)} == {b"<p>state 0, version 1</p>"}
    assert shown.renders == 1


def test_one_page_is_made_at_a_time_and_the_last_one_is_served_meanwhile(watch: Watch, shown: Shown) -> None:
    shown.pause = 0.05
    bodies: list[bytes] = []
    with Stream(watch) as stream:
        threads = [threading.Thread(target=lambda: bodies.append(ask(watch).body)) for _ in range(20)]
        for thread in threads:
            shown.stamp += 1
            thread.start()
        for thread in threads:
            thread.join()
        stream.event()
    assert shown.most == 1
    assert len(bodies) == 20
    assert all(body.startswith(b"<p>state ") for body in bodies)


def test_who_asks_does_not_wait_long_for_a_page(
    shown: Shown, serve: Callable[[Watch], Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watch.current, "__defaults__", (0.05, False))
    shown.pause = 0.7
    watch = serve(shown.watch())
    body = ask(watch).body.decode()
    assert "The page is being made." in body
    assert 'data-version="0"' in body
    with Stream(watch, query="&since=0") as stream:
        assert stream.event() == ("changed", 1)
        assert b"state 0," in ask(watch).body
        shown.stamp += 1
        assert b"state 0," in ask(watch).body
        assert stream.event() == ("changed", 2)


class Clock:
    """A clock, and a render that takes CPU time by it."""

    def __init__(self) -> None:
        self.now, self.cpu, self.costs, self.stamp, self.finished = 0.0, 0.0, 0.0, 0, False
        self.times: list[float] = []
        self.fails = 0.0
        pace = Pace(clock=lambda: self.now, cpu=lambda: self.cpu)
        self.pages = Pages(self.render, lambda: self.stamp, lambda: self.finished, pace)

    def render(self) -> str:
        self.times.append(self.now)
        self.cpu += self.costs
        if self.now < self.fails:
            raise InputError("it has just begun")
        return f"at {self.now}"

    def run(self, seconds: float, step: float = 0.5) -> None:
        for _ in range(int(seconds / step)):
            self.stamp += 1
            self.pages.refresh()
            self.now += step


@pytest.mark.parametrize(("costs", "apart"), [(0.0, 2.0), (0.03125, 2.0), (0.25, 12.5), (1.0, 50.0)])
def test_a_render_is_followed_by_fifty_times_its_own_time(costs: float, apart: float) -> None:
    clock = Clock()
    clock.costs = costs
    clock.run(500)
    gaps = [after - before for before, after in zip(clock.times, clock.times[1:], strict=False)]
    assert gaps[0] == 2.0  # what the first one took was loading libraries
    assert set(gaps[1:]) == {apart}
    assert clock.cpu <= 500 * max(0.02, 0.01) + 2 * costs


def test_pages_that_cannot_be_made_keep_the_pace_as_well() -> None:
    clock = Clock()
    clock.costs, clock.fails = 0.25, 100.0
    clock.run(200)
    gaps = [after - before for before, after in zip(clock.times, clock.times[1:], strict=False)]
    first = next(number for number, at in enumerate(clock.times) if at >= 100)
    assert gaps[0] == gaps[first] == 2.0  # both had something to load
    assert {gap for number, gap in enumerate(gaps) if number not in (0, first)} == {12.5}


def test_the_end_is_rendered_at_once_and_once() -> None:
    clock = Clock()
    clock.costs = 3.0
    clock.run(10)
    before = len(clock.times)
    clock.finished = True
    clock.run(10)
    assert len(clock.times) == before + 1
    assert clock.pages.shown.finished


def test_what_has_not_changed_is_not_rendered() -> None:
    clock = Clock()
    for _ in range(100):
        clock.pages.refresh()
        clock.now += 10
    assert clock.times == [0.0]


def test_a_page_that_cannot_be_made_says_why_and_a_good_one_stays(watch: Watch, shown: Shown) -> None:
    shown.problem = InputError("run must be <b>begun</b>")
    body = ask(watch).body.decode()
    assert "run must be &lt;b&gt;begun&lt;/b&gt;" in body
    assert 'data-version="1"' in body
    shown.problem, shown.stamp = ZeroDivisionError("of ours"), 1
    assert "ZeroDivisionError: of ours" in ask(watch).body.decode()
    shown.problem, shown.stamp = None, 2
    good = ask(watch).body
    assert good.startswith(b"<p>state 2,")
    for problem in (InputError("just now"), FileNotFoundError("gone"), ValueError("x")):
        shown.problem, shown.stamp = problem, shown.stamp + 1
        assert ask(watch).body == good
    shown.problem = None
    shown.stamp += 1
    assert f"state {shown.stamp}," in ask(watch).body.decode()


def test_a_folders_stamp_differs_with_its_files_and_with_nothing_else(tmp_path: Path) -> None:
    run = tmp_path / "o"
    seen = {folder_stamp(run)}
    for name in (
        "config.toml",
        "live/seed-1.jsonl",
        "cells/a.parquet",
        "clients/seed-1.parquet",
        "summary.csv",
    ):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("a")
        assert folder_stamp(run) not in seen
        seen.add(folder_stamp(run))
    (run / "live" / "seed-1.jsonl").write_text("ab")
    assert folder_stamp(run) not in seen
    last = folder_stamp(run)
    (run / ".lock").write_text("process 1")
    (run / "live" / ".seed.unfinished").write_text("x")
    (run / "models").mkdir()
    assert folder_stamp(run) == last


# -- the command -----------------------------------------------------------------------------------------

STARTED = re.compile(r"Watching (.*) at http://127\.0\.0\.1:(\d+)/\?token=([\w-]+)(.*)")


class There(NamedTuple):
    """Where a command listens, as far as `ask` and `Stream` need to know."""

    port: int
    token: str


def told(line: str) -> There:
    match = STARTED.match(line)
    assert match, line
    return There(int(match[2]), match[3])


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def start(*words: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fairfate", *words],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Commands, none of which outlives the test."""
    processes = []

    def begin(*words: str) -> subprocess.Popen[str]:
        processes.append(start(*words, cwd=tmp_path))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["o", "--host", "0.0.0.0"],
            "host must be a loopback address such as 127.0.0.1 (or give --allow-remote",
        ),
        (["o", "--host", "::"], "host must be a loopback address"),
        (["o", "--port", "70000"], "port must be in [0, 65535], got 70000"),
        (["no/such/o"], "run must be a folder, or one to come in a folder that exists, got 'no/such/o'"),
        (["file"], "run must be a folder, got 'file' (a file)"),
    ],
)
def test_the_command_says_what_is_wrong(fairfate: Any, tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "file").touch()
    done = fairfate("watch", *words)
    assert done.code == 2
    assert done.err.startswith(f"Error: {said}"), done.err
    assert done.out == ""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_the_command_ends_at_once(started: Any, tmp_path: Path, number: int, code: int) -> None:
    process = started("watch", "o")
    line = process.stdout.readline()
    there = told(line)
    assert line.startswith("Watching o at http://127.0.0.1:")
    assert line.endswith("  (Ctrl-C ends watching, not the run)\n")
    assert process.stderr.readline() == "o is not there yet: waiting for it\n"
    assert ask(there).code == 200
    with Stream(there) as stream:
        stream.event()
        began = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=LONG)
        assert time.monotonic() - began < 10  # much less where nothing else goes on
    assert (process.returncode, out) == (code, "")
    assert err == ("" if code == 0 else "Interrupted.\n")
    assert not listens(there.port)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_once_there_is_a_page_others_go_first(started: Any) -> None:
    process = started("watch", "o")
    there = told(process.stdout.readline())

    def nice() -> dict[int, int]:
        tasks = Path(f"/proc/{process.pid}/task").glob("*/stat")
        return {int(task.parent.name): int(task.read_text().rpartition(")")[2].split()[16]) for task in tasks}

    assert set(nice().values()) == {os.nice(0)}
    assert ask(there).code == 200
    assert set(nice().values()) == {os.nice(0)}  # there is no run to show yet
    finish = ["run", "--data", "synthetic:rows=300", "--rounds", "2", "--seeds", "1", "--out", "o"]
    assert started(*finish).wait(LONG) == 0
    with Stream(there) as stream:
        while stream.event()[0] != "finished":
            pass
        if importlib.util.find_spec("fairfate.report.page") is not None:
            until(lambda: 19 in nice().values(), "stepping back")
    assert nice()[process.pid] == os.nice(0)  # signals and browsers are answered at once


def test_the_command_waits_for_a_run_and_sees_its_end(started: Any, tmp_path: Path) -> None:
    there = told(started("watch", "o").stdout.readline())
    with Stream(there) as stream:
        assert stream.event()[0] == "changed"
        run = started("run", "--data", "synthetic:rows=300", "--rounds", "2", "--seeds", "1", "--out", "o")
        while stream.event()[0] != "finished":
            pass
        assert run.wait(LONG) == 0
        assert ask(there).code == 200
    assert (tmp_path / "o" / "summary.csv").exists()


LIVE = ["run", "--live", "--data", "synthetic:rows=2000", "--jobs", "1", "--out", "new/o"]


def test_a_live_run_can_be_watched_to_its_end(started: Any, tmp_path: Path) -> None:
    run = started(*LIVE, "--rounds", "60", "--seeds", "4")
    there = told(run.stderr.readline())
    with Stream(there) as stream:
        while stream.event()[0] != "finished":
            pass
        assert ask(there).code == 200
    out, err = run.communicate(timeout=LONG)
    assert (run.returncode, err) == (0, "")
    assert "Saved to new/o/" in out
    assert not listens(there.port)
    assert not (tmp_path / "new" / "o" / "live").exists()


def test_a_live_run_that_nobody_watches_ends_as_soon(started: Any) -> None:
    run = started(*LIVE, "--rounds", "2", "--seeds", "1")
    there = told(run.stderr.readline())
    run.communicate(timeout=LONG)
    assert run.returncode == 0
    assert not listens(there.port)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_watching_ends_with_a_run_that_is_stopped(started: Any, number: int, code: int) -> None:
    run = started(*LIVE, "--rounds", "5000", "--seeds", "50")
    there = told(run.stderr.readline())
    with Stream(there) as stream:
        stream.event()
        run.send_signal(number)
        _, err = run.communicate(timeout=LONG)
        assert run.returncode == code, err
        assert "Traceback" not in err
        until(lambda: not listens(there.port), "the end of watching")


def test_a_live_run_that_is_refused_leaves_nothing_behind(started: Any, tmp_path: Path) -> None:
    (tmp_path / "new" / "o").mkdir(parents=True)
    (tmp_path / "new" / "o" / "summary.csv").write_text("mine")
    run = started(*LIVE)
    there = told(run.stderr.readline())
    _, err = run.communicate(timeout=LONG)
    assert run.returncode == 2
    assert err.startswith("Error: out must be a folder without results")
    assert not listens(there.port)


def test_a_live_run_goes_on_where_it_cannot_be_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    done = False
    with command.watched(tmp_path):
        done = True
    assert done
    assert capsys.readouterr().err == "Note: the run cannot be watched: no answer\n"


def test_the_browser_is_opened_without_telling_all_users_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str, int]] = []

    def browse(address: str) -> bool:
        file = Path(address.removeprefix("file://"))
        seen.append((address, file.read_text(), file.parent.stat().st_mode & 0o77))
        return True

    monkeypatch.setattr("webbrowser.open", browse)
    with command._opened("http://127.0.0.1:1/?token=secret"):
        pass
    with command._opened(None):
        pass
    ((address, content, others),) = seen
    assert "secret" not in address
    assert "url=http://127.0.0.1:1/?token=secret" in content
    assert others == 0
    assert not Path(address.removeprefix("file://")).exists()
