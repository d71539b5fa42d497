"""Flower's own runtime: one simulation and one deployment with TLS and keys, on this machine, offline."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("flwr")

from fairfate.engine.checkpoint import read_checkpoint
from ready_app import ReadyApp, assert_same_as_fairfate_run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups")
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
needs_nginx = pytest.mark.skipif(not NGINX and "CI" not in os.environ, reason="nginx is not installed")


def wait_for(what: Callable[[], bool], seconds: float, said: str) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, said
        time.sleep(0.3)


def processes_of(folder: Path) -> list[int]:
    """Processes whose command line or environment names a folder."""
    results = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in text and int(entry.name) != os.getpid():
            results.append(int(entry.name))
    return results


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[ReadyApp]:
    """An app of two sites; nothing that it has started is left at the end."""
    app = ReadyApp(tmp_path / "three-wards")
    for index in ("sites/west.toml", "data/sites/west.csv"):
        (app.folder / index).unlink()
    yield app
    end = time.monotonic() + 20
    while (left := processes_of(tmp_path)) and time.monotonic() < end:
        time.sleep(0.5)
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert not left, "processes were left behind"


def test_a_simulation_gives_what_fairfate_run_gives(ready: ReadyApp, tmp_path: Path) -> None:
    """As `flwr run` does it, but with a SuperLink on a port of our own instead of a fixed one."""
    deploy = ready.module("deploy_here.py")
    with deploy.Local(tmp_path / "simulation") as here:
        superlink = f"flower-superlink --simulation --insecure --host 127.0.0.1 --port {here.port}"
        here.start("superlink", superlink)
        here.wait_for_port("superlink", here.port)
        nodes = ("--federation-config", "num-supernodes=2 client-resources-num-cpus=1")
        run = here.submit("rounds=3 per-round=1 strategy='fedavg_gr'", *nodes)
        assert here.wait(run, 120) == "finished:completed", here.log(run)
    assert_same_as_fairfate_run(ready.result(), tmp_path)


def rounds_done(result: Path) -> int:
    file = result / "checkpoint.safetensors"
    return read_checkpoint(file).round if file.exists() else -1


@needs_nginx
def test_a_deployment_keeps_strangers_out_and_survives_its_faults(ready: ReadyApp, tmp_path: Path) -> None:
    deploy = ready.module("deploy_here.py")
    deploy.check_config()
    with deploy.Deployment(tmp_path / "deployment") as here:
        for site in ("north", "south"):
            here.join(site, ready.folder / "sites" / f"{site}.toml")
        here.start_server("rounds=3", "--strategy fedavg")
        here.start_operator()
        for site in ("north", "south"):
            here.start_site(site)
        only_the_proxy_is_open(here)
        refuse_requests(here, tmp_path)
        refuse_strangers(here, ready)
        refuse_a_site_as_operator(here, ready)
        here.wait_for_sites(2)
        survive_a_killed_superlink(here, ready)
        assert_same_as_fairfate_run(ready.result(), tmp_path)
        refuse_foreign_code(here, ready, tmp_path)
        refuse_to_run_without_a_study(here)
        survive_a_killed_supernode(here, ready)
        come_back_after_a_kill(here)
        refuse_a_site_that_was_struck_off(here, ready)
        everything_is_private(here.folder)


FLEET = ("activate-node", "pull-messages", "push-messages", "get-fab", "pull-object", "send-node-heartbeat")
CONTROL = (
    "register-node",
    "start-run",
    "list-runs",
    "stream-logs",
    "stop-run",
    "unregister-node",
    "list-nodes",
)
ELSEWHERE = (
    "/",
    "/docs",
    "/openapi.json",
    "/health",
    "/v1/runtime/pull-task-input",
    "/v1/control/create-federation",
    "/v1/fleet/register-node",
    "/v1/control/start-run/",
)
DETOURS = (
    "/v1/fleet/../control/start-run",
    "/v1/fleet/%2e%2e/control/start-run",
    "/v1/fleet/pull-messages%2f..%2f..%2fcontrol%2fstart-run",
    "//v1//control//start-run",
    "/v1/fleet/pull-messages/../../control/start-run",
)


def ask(port: int, path: str, authority: Path, certificate: Path | None) -> int:
    """The proxy's answer to a request with some party's certificate, or none."""
    context = ssl.create_default_context(cafile=str(authority))
    if certificate is not None:
        context.load_cert_chain(certificate / "client.crt", certificate / "client.key")
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=20)
    with contextlib.closing(connection):
        connection.request("POST", path, b"", {"content-type": "application/protobuf"})
        return connection.getresponse().status


def refuse_requests(here: Any, tmp_path: Path) -> None:
    """Whoever has no certificate, a foreign one, one that was not allowed, or one for something else."""
    authority, north, operator = here.authority / "ca.crt", here.folder / "north", here.folder / "operator"
    fleet, control = [f"/v1/fleet/{name}" for name in FLEET], [f"/v1/control/{name}" for name in CONTROL]
    plain = http.client.HTTPConnection("localhost", here.door, timeout=20)
    with contextlib.closing(plain):
        plain.request("POST", control[0], b"")
        assert plain.getresponse().status == 400
    foreign = foreign_certificate(here, tmp_path / "foreign")
    here.make_certificate("guest", usage="clientAuth")  # ours, but nobody has let it in
    everywhere = [*fleet, *control, *ELSEWHERE, *DETOURS]
    expected = [
        (None, everywhere, 400),
        (foreign, everywhere, 400),
        (here.folder / "guest", everywhere, 403),
        (north, [*control, *ELSEWHERE, *DETOURS], 403),
        (operator, [*fleet, *ELSEWHERE], 403),
    ]
    for certificate, paths, status in expected:
        for path in paths:
            assert ask(here.door, path, authority, certificate) == status, (certificate, path)
    for path in fleet:  # lets a site in: what comes back is the SuperLink's own word
        assert ask(here.door, path, authority, north) not in (400, 403), path
    for path in ("/v1/control/list-runs", "/v1/control/list-nodes"):
        assert ask(here.door, path, authority, operator) == 200


def foreign_certificate(here: Any, folder: Path) -> Path:
    """One that says the same as the operator's, signed by another authority."""
    ours, here.authority = here.authority, folder / "authority"
    own, here.folder = here.folder, folder
    folder.mkdir()
    here.make_authority()
    here.make_certificate("operator", usage="clientAuth")
    here.authority, here.folder = ours, own
    return folder / "operator"


def only_the_proxy_is_open(here: Any) -> None:
    """The SuperLink, the forwarders and the SuperNodes listen to this machine alone."""
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    own = {here.port, *here.forwarders.values()}
    for words in listening:
        address, _, port = words[1].partition(":")
        if words[3] == "0A" and int(port, 16) in own:
            assert address == "0100007F", "on loopback only"
            own.remove(int(port, 16))
    assert not own


def refuse_strangers(here: Any, ready: ReadyApp) -> None:
    """A SuperNode with a key that nobody has registered, though it comes through a site's own forwarder."""
    folder = here.folder / "stranger"
    folder.mkdir()
    own = f'state = "{folder / "state"}"\n'
    (folder / "site.toml").write_text((here.folder / "north" / "site.toml").read_text() + own)
    here.make_key("stranger")
    here.start_supernode("stranger", forwarder="north")
    assert here.processes["stranger"].wait(60) != 0
    log = (here.folder / "stranger.log").read_text()
    assert "Exit Code: 305" in log
    assert "[code: 2004]" in log.lower(), log


def refuse_a_site_as_operator(here: Any, ready: ReadyApp) -> None:
    """Flower's own commands with a site's certificate: register, run, list, log, stop."""
    operator = dict(here.environment)
    local = here.folder / "north" / "local.crt"
    here.use(here.folder / "north" / "attack", here.forwarders["north"], f'root-certificates = "{local}"')
    public = str(here.make_key("north").with_suffix(".pub"))
    attempts = [
        ("supernode", "register", public, "here"),
        ("supernode", "list", "here"),
        ("run", str(ready.folder), "here"),
        ("list", "here"),
        ("log", "1", "here", "--show"),
        ("stop", "1", "here"),
    ]
    calls = [
        subprocess.Popen(
            [str(Path(sys.executable).parent / "flwr"), *words],
            env=here.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for words in attempts
    ]
    for words, call in zip(attempts, calls, strict=True):
        text, _ = call.communicate(timeout=60)
        assert call.returncode != 0, (words, text)
        assert "403" in text, (words, text)
    here.environment = operator
    assert here.flwr("list", "here", "--format", "json").count("run-id") == 0


def survive_a_killed_superlink(here: Any, ready: ReadyApp) -> None:
    """Killed after the first round, started again: the sites come back, and the run goes on."""
    settings = "rounds=3 max-wait=60.0"
    first = here.submit(settings)
    wait_for(lambda: rounds_done(ready.result()) >= 1, 90, "the first round did not end")
    here.stop("superlink", signal.SIGKILL)
    last_round = rounds_done(ready.result())
    assert 1 <= last_round < 3
    here.start_superlink()
    here.wait_for_sites(2)
    run = here.submit(settings)
    here.follow(run)
    status = here.wait(run, 150)
    here.stop("log")
    log = here.log(run)
    assert status == "finished:completed", log
    assert f"Continuing after round {last_round}" in log
    assert here.status(first) != "finished:completed"
    assert not ready.result(2).exists()


def refuse_foreign_code(here: Any, ready: ReadyApp, tmp_path: Path) -> None:
    """An app that the sites do not know, submitted by the operator: no line of it runs at a site."""
    app, marker = tmp_path / "attack" / ready.name, tmp_path / "was-here"
    shutil.copytree(ready.folder, app, ignore=shutil.ignore_patterns("deployment", "runs"))
    client = app / ready.package / "client_app.py"
    client.write_text(client.read_text() + f"\nopen({str(marker)!r}, 'w').close()\n")
    run = here.submit("rounds=1 max-wait=5.0", app=app)
    assert here.wait(run, 120) == "finished:failed"
    assert not marker.exists()
    assert "this site does not run the app with the checksum" in here.log(run)


def refuse_to_run_without_a_study(here: Any) -> None:
    """A server whose study is not there, or not named: it asks nobody anything."""
    known = here.always
    for here.always, text in (
        ("study='/nowhere'", "study must be a file"),
        ("study=''", "unless the run is"),
    ):
        run = here.submit("rounds=1 max-wait=5.0")
        assert here.wait(run, 120) == "finished:failed"
        assert text in " ".join(here.log(run).split())
    here.always = known
    for site in ("north", "south"):
        finished_run = here.run(f"fairfate flower log {site}/site.toml --refused", cwd=here.folder)
        assert "no sealed message" not in " ".join(finished_run.split())


def survive_a_killed_supernode(here: Any, ready: ReadyApp) -> None:
    """Killed after the first round: the run ends with the other site, and says who was missing."""
    run = here.submit("rounds=2 min-sites=2 min-replies=1 timeout=60.0 strategy='fedavg'")
    wait_for(lambda: rounds_done(ready.result(2)) >= 1, 90, "the first round did not end")
    here.stop("south", signal.SIGKILL)
    status = here.wait(run, 180)
    assert status == "finished:completed", here.log(run)
    clients = pd.read_csv(ready.result(2) / "clients.csv")
    second = clients[clients["round"] == 2].set_index("name")
    assert second.loc["north", "outcome"] == "used", clients
    assert second.loc["south", "outcome"] == "dropped", clients
    reason = second.loc["south", "reason"]
    assert reason == "no reply within 60 s" or reason.startswith("error 5:")


def come_back_after_a_kill(here: Any) -> None:
    """Started again at once, while Flower still takes the old SuperNode to be there and refuses it."""
    here.start_supernode("south")
    here.wait_for_sites(2, 180)
    here.stop("south", signal.SIGKILL)


def refuse_a_site_that_was_struck_off(here: Any, ready: ReadyApp) -> None:
    """Its certificate opens nothing any more, its SuperNode does not come back, and the others go on."""
    here.expel("south")
    wait_for(
        lambda: (
            ask(here.door, "/v1/fleet/pull-messages", here.authority / "ca.crt", here.folder / "south") == 403
        ),
        15,
        "it was let in",
    )
    here.start_supernode("south")
    run = here.submit("rounds=1 min-sites=1 strategy='fedavg'")
    assert here.wait(run, 120) == "finished:completed", here.log(run)
    clients = pd.read_csv(ready.result(3) / "clients.csv")
    assert list(clients["name"]) == ["north"]
    assert here.online() == 1
    assert "403" in (here.folder / "south.log").read_text()


def everything_is_private(folder: Path) -> None:
    """Keys, certificates, the database and logs are for their owner alone."""
    open_to_others = [
        path for path in folder.rglob("*") if path.stat().st_mode & 0o077 and not path.is_symlink()
    ]
    assert not open_to_others


@needs_nginx
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_script(ready: ReadyApp, number: signal.Signals) -> None:
    script = subprocess.Popen(
        [sys.executable, str(ready.folder / "deploy_here.py")], stdout=subprocess.PIPE, text=True
    )
    assert script.stdout is not None
    sites = 0
    for line in script.stdout:
        sites += "fairfate flower site" in line
        if sites == 2:
            break
    wait_for(lambda: len(processes_of(ready.folder)) >= 5, 60, "it did not start")
    script.send_signal(number)
    script.communicate()
    wait_for(lambda: not processes_of(ready.folder), 30, "processes were left behind")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--nonsense"], 2, "unrecognized arguments: --nonsense"),
        ([], 1, "pyproject.toml: unknown key in the run config 'ronds'; did you mean 'rounds'"),
    ],
)
def test_the_script_finds_mistakes_before_it_starts_anything(
    ready: ReadyApp, words: list[str], code: int, message: str
) -> None:
    project = ready.folder / "pyproject.toml"
    project.write_text(project.read_text().replace("rounds = 20", "ronds = 20"))
    script = str(ready.folder / "deploy_here.py")
    process = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False)
    assert process.returncode == code
    assert message in process.stderr
    assert not (ready.folder / "deployment").exists()
