"""Watching a run in the browser: who may see it, when the page is made, and how watching ends."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fairfate import InputError
from fairfate.cli import watch as command
from fairfate.report import page as report_page
from fairfate.report import watch as module
from fairfate.report.watch import HEADERS, LivePage, WatchServer, folder_stamp

LONG = 60.0
"""Seconds that nothing takes, unless it hangs."""


def wait_for(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class Answer(NamedTuple):
    code: int
    headers: dict[str, str]
    body: bytes


def ask(server: Any, path: str | None = None, method: str = "GET", hosts: tuple[str, ...] = ("",)) -> Answer:
    """Ask for a path, by default the page's, with these Host headers (by default the right one)."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LONG)
    connection.putrequest(method, f"/{server.token}/" if path is None else path, skip_host=True)
    for host in hosts:
        connection.putheader("Host", host or f"127.0.0.1:{server.port}")
    connection.endheaders()
    response = connection.getresponse()
    answer = Answer(response.status, dict(response.getheaders()), response.read())
    connection.close()
    return answer


class Renderer:
    """In place of the report: counts how often it is made, and may fail or take its time."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.error: Exception | None = None
        self.wait = threading.Event()
        self.wait.set()

    def __call__(self, folders: list[Path], live: int) -> str:
        self.versions.append(live)
        assert self.wait.wait(LONG)
        if self.error is not None:
            raise self.error
        return f"<p>version {live}</p>"


@pytest.fixture
def renderer(monkeypatch: pytest.MonkeyPatch) -> Renderer:
    renderer = Renderer()
    monkeypatch.setattr(report_page, "render", renderer)
    monkeypatch.setattr(module, "LEAST", 0.0)
    monkeypatch.setattr(module, "SHARE", 0.0)
    monkeypatch.setattr(os, "nice", lambda increment: None, raising=False)
    return renderer


@pytest.fixture
def server(tmp_path: Path, renderer: Renderer) -> Iterator[WatchServer]:
    ended = threading.Event()
    with WatchServer(LivePage(tmp_path), "127.0.0.1") as server:
        thread = threading.Thread(target=server.serve, args=(ended.is_set,))
        thread.start()
        yield server
        ended.set()
        thread.join()


# -- who may see it --------------------------------------------------------------------------------------


def test_page_is_served_at_the_token_with_security_headers(server: WatchServer, tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    answer = ask(server)
    assert (answer.code, answer.body) == (200, b"<p>version 1</p>")
    assert answer.headers.items() >= HEADERS.items()
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in HEADERS["Content-Security-Policy"]
    assert "Server" not in answer.headers
    assert re.fullmatch(rf"http://127\.0\.0\.1:{server.port}/[\w-]{{32}}/", server.url)
    state = ask(server, f"/{server.token}/state")
    assert json.loads(state.body) == {"version": 1, "finished": False}
    assert list(tmp_path.iterdir()) == [tmp_path / "config.toml"]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "//",
        "/state",
        "/{short}/",
        "/{token}x/",
        "/{other}/",
        "/{token}",
        "/{token}/state/",
        "/{token}/?a=1",
        "/{token}/config.toml",
        "/{token}/../../etc/passwd",
        "/{token}/..%2f..%2fetc/passwd",
        "/{token}//etc/passwd",
        "/%ff%fe/",
        "/etc/passwd",
        "x/{token}/",
        "http://127.0.0.1/{token}/",
    ],
)
def test_nothing_is_served_without_the_token_or_beside_the_page(
    server: WatchServer, renderer: Renderer, tmp_path: Path, path: str
) -> None:
    (tmp_path / "config.toml").write_text("secret")
    token = server.token
    answer = ask(server, path.format(token=token, short=token[:-1], other=token.swapcase()))
    assert (answer.code, answer.body) == (404, b"")
    assert answer.headers.items() >= HEADERS.items()
    assert renderer.versions == []


@pytest.mark.parametrize(
    "hosts",
    [
        (),
        ("evil.example",),
        ("evil.example:{port}",),
        ("127.0.0.1",),
        ("127.0.0.1:1",),
        ("127.0.0.1:{port}.evil.example",),
        ("evil@127.0.0.1:{port}",),
        ("127.0.0.2:{port}",),
        ("localhost:{port}", "evil.example"),
    ],
)
def test_foreign_host_header_is_refused(
    server: WatchServer, renderer: Renderer, hosts: tuple[str, ...]
) -> None:
    """As of a page elsewhere whose name is made to mean this machine (DNS rebinding)."""
    answer = ask(server, hosts=tuple(host.format(port=server.port) for host in hosts))
    assert (answer.code, answer.body) == (403, b"")
    assert renderer.versions == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost"])
def test_own_host_header_is_accepted(server: WatchServer, host: str) -> None:
    assert ask(server, hosts=(f"{host}:{server.port}",)).code == 200


def test_tokens_are_compared_in_constant_time(server: WatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: bool(compared.append((a, b))))
    assert ask(server).code == 404
    assert compared == [(server.token.encode(), server.token.encode())]


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "X"])
def test_other_methods_are_refused(server: WatchServer, method: str) -> None:
    answer = ask(server, method=method)
    assert (answer.code, answer.body) == (501, b"")


@pytest.mark.parametrize(
    "request_",
    [
        b"nonsense\r\n\r\n",
        b"GET /\r\n\r\n",
        b"a" * 70_000 + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200,
    ],
)
def test_odd_requests_get_an_error_that_repeats_nothing(
    server: WatchServer, request_: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=LONG) as connection:
        connection.sendall(request_)
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.0 4")
    assert answer.endswith(b"\r\n\r\n")
    assert ask(server).code == 200
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0", "", "no such name", "192.0.2.1"])
def test_remote_hosts_are_refused_unless_allowed(tmp_path: Path, host: str) -> None:
    with pytest.raises(InputError, match="host must be "):
        WatchServer(LivePage(tmp_path), host)


def test_remote_browsers_need_the_token_and_a_name_of_the_machine(tmp_path: Path, renderer: Renderer) -> None:
    ended = threading.Event()
    with WatchServer(LivePage(tmp_path), "0.0.0.0", allow_remote=True) as server:
        thread = threading.Thread(target=server.serve, args=(ended.is_set,))
        thread.start()
        for host, code in (("127.0.0.1", 200), (socket.gethostname(), 200), ("evil.example", 403)):
            assert ask(server, hosts=(f"{host}:{server.port}",)).code == code
        assert ask(server, "/").code == 404
        ended.set()
        thread.join()


def test_port_in_use_is_named(server: WatchServer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"port must be free at 127.0.0.1, got {server.port}"):
        WatchServer(LivePage(tmp_path), "127.0.0.1", server.port)
    with pytest.raises(InputError, match="port must be in"):
        WatchServer(LivePage(tmp_path), "127.0.0.1", 65536)


# -- when the page is made -------------------------------------------------------------------------------


def test_page_is_made_again_only_after_a_change(tmp_path: Path, renderer: Renderer) -> None:
    page = LivePage(tmp_path / "o")
    for name in ("config.toml", "live/seed-1.jsonl", "cells/a.parquet", "summary.csv"):
        (tmp_path / "o" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "o" / name).write_text("a")
        page.refresh()
        page.refresh()
    assert renderer.versions == [1, 2, 3, 4]
    assert page.shown == (4, True, b"<p>version 4</p>")


def test_pages_are_made_seldom_and_the_end_is_shown_at_once(
    tmp_path: Path, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(module, "LEAST", 2.0)
    monkeypatch.setattr(module, "SHARE", 40.0)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "thread_time", lambda: 0.125 * len(renderer.versions))  # seconds for each page
    page, made = LivePage(tmp_path), []
    for now[0] in range(20):
        (tmp_path / "rounds").write_text("x" * int(now[0]))
        page.refresh()
        made.append(len(renderer.versions))
    assert made == [1] * 5 + [2] * 5 + [3] * 5 + [4] * 5
    (tmp_path / "summary.csv").touch()
    page.refresh()
    assert page.shown[:2] == (5, True)


def test_page_that_cannot_be_made_says_why_and_a_good_one_stays(tmp_path: Path, renderer: Renderer) -> None:
    page = LivePage(tmp_path)
    renderer.error = InputError("no <b>run</b> yet")
    page.refresh()
    assert page.shown[0] == 0
    assert b"no &lt;b&gt;run&lt;/b&gt; yet" in page.shown[2]
    assert b'http-equiv="refresh"' in page.shown[2]
    for number, error in enumerate([ZeroDivisionError("ours"), None, OSError("gone"), ValueError("x")]):
        renderer.error = error
        (tmp_path / str(number)).touch()
        page.refresh()
    assert page.shown == (1, False, b"<p>version 1</p>")


def test_last_page_is_served_while_the_next_is_made(server: WatchServer, renderer: Renderer) -> None:
    folder = server.page.folder
    (folder / "a").touch()
    assert ask(server).body == b"<p>version 1</p>"
    renderer.wait.clear()
    (folder / "b").touch()
    slow = threading.Thread(target=ask, args=(server,))
    slow.start()
    wait_for(lambda: len(renderer.versions) == 2)
    assert ask(server).body == b"<p>version 1</p>"
    renderer.wait.set()
    slow.join()
    assert ask(server).body == b"<p>version 2</p>"
    assert renderer.versions == [1, 2]


def test_server_does_not_end_while_it_answers(
    tmp_path: Path, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAST", 2.0)
    (tmp_path / "summary.csv").touch()
    renderer.wait.clear()
    answers: list[Answer] = []
    with WatchServer(LivePage(tmp_path), "127.0.0.1") as server:
        browser = threading.Thread(target=lambda: answers.append(ask(server)))
        browser.start()
        server.serve(until=lambda: bool(renderer.versions))
        server.last_asked = -100.0  # nobody has asked for long
        ending = threading.Thread(target=server.serve_last_page)
        ending.start()
        ending.join(0.5)
        assert ending.is_alive()
        renderer.wait.set()
        browser.join()
        ending.join()
    assert [answer.body for answer in answers] == [b"<p>version 1</p>"]


def test_stamp_passes_over_folders_and_files_that_vanish_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    ended = threading.Event()

    def come_and_go() -> None:
        folder = tmp_path / "parts"
        while not ended.is_set():
            folder.mkdir()
            (folder / "part").touch()
            (folder / "part").unlink()
            folder.rmdir()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        stamps = [folder_stamp(tmp_path) for _ in range(3000)]
    finally:
        ended.set()
        thread.join()
    assert all(str(tmp_path / "a") in {name for name, _, _ in stamp} for stamp in stamps)


# -- the command -----------------------------------------------------------------------------------------


class Started(NamedTuple):
    process: subprocess.Popen[str]
    port: int
    token: str

    @property
    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Starts a command that prints where it listens; none outlives the test."""
    processes = []

    def begin(*words: str) -> Started:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen([sys.executable, "-m", "fairfate", *words], cwd=tmp_path, **pipes)
        processes.append(process)
        line = process.stdout.readline()
        match = re.match(r"Watching \S+ at http://127\.0\.0\.1:(\d+)/([\w-]+)/", line)
        assert match, line
        return Started(process, int(match[1]), match[2])

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("words", [["o", "--host", "0.0.0.0"], ["no/such/o"], ["file"]])
def test_command_refuses_what_it_cannot_watch(fairfate: Any, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "file").touch()
    outcome = fairfate("watch", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("Error: ")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_command_waits_for_a_run_that_is_absent_and_ends_at_once(
    start: Callable[..., Started], tmp_path: Path, number: int, code: int
) -> None:
    started = start("watch", "o")
    assert b"Nothing to see yet" in ask(started).body
    started.process.send_signal(number)
    assert started.process.wait(LONG) == code
    assert list(tmp_path.iterdir()) == []


LIVE = ["run", "--live", "--data", "synthetic:rows=2000", "--jobs", "1", "--out", "o"]


def test_live_run_can_be_watched_to_its_end(start: Callable[..., Started], tmp_path: Path) -> None:
    run = start(*LIVE, "--rounds", "60", "--seeds", "4")
    wait_for(lambda: json.loads(ask(run, f"/{run.token}/state").body)["finished"])
    assert b"Recommended" in ask(run).body
    out, _ = run.process.communicate(timeout=LONG)
    assert run.process.returncode == 0, out
    assert "Saved to o/" in out
    wait_for(lambda: not run.listens)
    assert not (tmp_path / "o" / "live").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_watching_ends_with_a_run_that_is_stopped(
    start: Callable[..., Started], number: int, code: int
) -> None:
    run = start(*LIVE, "--rounds", "5000", "--seeds", "50")
    assert ask(run).code == 200
    run.process.send_signal(number)
    assert run.process.wait(LONG) == code
    wait_for(lambda: not run.listens)


def test_live_run_continues_where_it_cannot_be_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with command.watched(tmp_path):
        pass
    assert capsys.readouterr().err == "Note: the run cannot be watched: no answer\n"


def test_browser_is_opened_without_telling_all_users_the_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened: list[tuple[str, str, int]] = []

    def browse(address: str) -> bool:
        file = Path(address.removeprefix("file://"))
        opened.append((address, file.read_text(), file.parent.stat().st_mode & 0o77))
        return True

    monkeypatch.setattr("webbrowser.open", browse)
    monkeypatch.setattr(WatchServer, "serve", lambda self, until: opened.append((self.url, "", 0)))
    command.watch(tmp_path, open_browser=True)
    (address, content, others), (url, _, _) = opened
    assert f"url={url}" in content
    assert url not in address
    assert others == 0
    assert not Path(address.removeprefix("file://")).exists()
