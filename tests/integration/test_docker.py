"""The image without Docker: its files are read, and its commands are run on this machine's own ports."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
ENTRYPOINT = str(ROOT / "docker" / "entrypoint")


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's lines: a word and what follows it."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.splitlines() if line.strip()]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def given(word: str) -> list[str]:
    return [rest for result, rest in instructions() if result == word]


def environment() -> dict[str, str]:
    """What the Dockerfile's ENV says, but for places."""
    words = dict(pair.split("=", 1) for line in given("ENV") for pair in shlex.split(line))
    assert words.pop("HOME") == "/state"
    assert words.pop("PATH") == "/opt/fairfate/bin:$PATH"
    return words


COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def test_the_image_is_of_a_slim_debian_with_a_python_that_is_tested() -> None:
    """Numba has no wheels for Alpine's C library."""
    tested = re.findall(r"Python :: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text())
    for base in given("FROM"):
        match = re.fullmatch(r"python:(3\.\d+)-slim-bookworm( AS build)?", base)
        assert match is not None, base
        assert match[1] in tested


def test_containers_do_not_run_as_root() -> None:
    user = given("USER")[-1]
    assert user.isdecimal()
    assert int(user) > 0
    after = [word for word, _ in instructions()]
    assert "RUN" not in after[after.index("USER") :]


def test_nothing_but_programs_goes_into_the_image() -> None:
    copied = [
        source
        for line in given("COPY")
        if "--from=" not in line
        for source in [word for word in line.split() if not word.startswith("--")][:-1]
    ]
    assert copied
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    for source in copied:
        assert (ROOT / source).exists(), source
        assert f"!{Path(source).parts[0]}" in ignored, source
    assert not given("ADD")
    assert not [word for word in environment() if re.search("KEY|SECRET|TOKEN|PASS", word)]
    inside = [path for path in (ROOT / "docker").rglob("*") if path.is_file()]
    assert sorted(path.name for path in inside) == ["entrypoint", "try-keys"]
    assert all(path.stat().st_mode & 0o111 for path in inside)


def test_the_entrypoint_is_one_that_the_image_has() -> None:
    assert any(line.endswith("docker/entrypoint docker/try-keys /usr/local/bin/") for line in given("COPY"))
    assert given("ENTRYPOINT") == ['["entrypoint"]']
    assert given("HEALTHCHECK")[0].endswith('CMD ["entrypoint", "healthy"]')


@pytest.mark.parametrize("name", sorted(COMPOSE))
def test_every_container_reads_its_keys_and_writes_its_own_folder_only(name: str) -> None:
    party: dict[str, Any] = COMPOSE[name]
    for volume in party["volumes"]:
        source, target, *how = volume.split(":")
        assert (target == "/state") != (how == ["ro"]), volume
        assert source == "./myfed" or source.startswith(f"./federation/{name}/"), volume
    assert party["read_only"] is True
    assert party["init"] is True
    assert party["cap_drop"] == ["ALL"]
    assert party["security_opt"] == ["no-new-privileges:true"]
    assert "ports" not in party
    assert "privileged" not in party


def test_only_the_server_meets_others() -> None:
    meets = {name: set(party["networks"]) for name, party in COMPOSE.items()}
    everybody = meets.pop("server")
    assert everybody == set.union(*meets.values())
    assert sum(len(networks) for networks in meets.values()) == len(everybody)


@pytest.mark.parametrize("script", ["entrypoint", "try-keys"])
def test_scripts_are_ones_that_bash_understands(script: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / "docker" / script)], check=True)


def test_any_other_command_is_run_as_it_is(tmp_path: Path) -> None:
    words = [ENTRYPOINT, sys.executable, "-c", "import sys; sys.exit(7)"]
    assert subprocess.run(words, check=False, cwd=tmp_path).returncode == 7


def test_the_servers_certificate_is_for_its_own_loopback_too() -> None:
    """The SuperLink's helper calls it by 127.0.0.1 and checks that name; without it a run never starts."""
    for index in ("docs/flower.md", "docker/try-keys"):
        names = re.findall(r"subjectAltName=(DNS:\S+)", (ROOT / index).read_text())
        assert len(names) == 1, index
        assert "IP:127.0.0.1" in names[0], index


def free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def end_all(process: subprocess.Popen[Any]) -> None:
    """A container's end is the end of all in it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class Containers:
    """The entrypoint's roles as processes: each in a session of its own, with a party's folders and ports."""

    def __init__(self, folder: Path, app: Path) -> None:
        self.folder, self.app = folder, app
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.link, self.door, *rest = free_ports(8)
        self.ports = {name: rest[2 * n : 2 * n + 2] for n, name in enumerate(("north", "south", "operator"))}

    def settle(self) -> None:
        """What is alike in all containers must differ on one machine: ports, and the place of /data."""
        server = self.folder / "server" / "keys" / "server.conf"
        text = server.read_text().replace("listen 8443", f"listen 127.0.0.1:{self.door}")
        server.write_text(text.replace("127.0.0.1:8000", f"127.0.0.1:{self.link}"))
        for name, (forwarder, _) in self.ports.items():
            file = self.folder / name / "keys" / "forwarder.conf"
            text = file.read_text().replace("127.0.0.1:8001", f"127.0.0.1:{forwarder}")
            file.write_text(text.replace("server fl.example.org:8443", f"server 127.0.0.1:{self.door}"))
        for name in ("north", "south"):
            file = self.folder / name / "keys" / "site.toml"
            assert f'data = "/data/{name}.csv"' in file.read_text()
            text = file.read_text()
            for volume in ("data", "keys", "state"):
                text = text.replace(f'"/{volume}/', f'"{self.folder / name / volume}/')
            file.write_text(text)

    def mounted(self) -> dict[Path, bytes]:
        """What containers only read."""
        indices = [*self.folder.glob("*/keys/**/*"), *self.folder.glob("*/data/**/*"), *self.app.rglob("*")]
        return {
            path: path.read_bytes() if path.is_file() else b""
            for path in indices
            if "__pycache__" not in path.parts  # which Python leaves out where it may not write
        }

    def environment(self, name: str) -> dict[str, str]:
        forwarder, node = self.ports.get(name, (0, 0))
        bin_folder, path = Path(sys.executable).parent, os.environ.get("PATH", "")
        home = self.folder / name / "state"
        return {
            **{key: value for key, value in os.environ.items() if key in ("PYTHONPATH", "LANG")},
            **environment(),
            "HOME": str(home),
            "PATH": f"{bin_folder}:{path}:/usr/sbin",
            "FAIRFATE_KEYS": str(self.folder / name / "keys"),
            "FAIRFATE_STATE": str(home),
            "FAIRFATE_LINK_PORT": str(self.link),
            "FAIRFATE_DOOR_PORT": str(self.door),
            "FAIRFATE_FORWARDER_PORT": str(forwarder),
            "FAIRFATE_NODE_PORT": str(node),
        }

    def start(self, name: str, role: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [ENTRYPOINT, role],
                env=self.environment(name),
                cwd=self.folder / name / "state",
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        process = subprocess.Popen(
            [ENTRYPOINT, *words],
            env=self.environment(name),
            cwd=self.folder / name / "state",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=300)
        finally:
            end_all(process)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def wait_until_healthy(self, name: str) -> None:
        end = time.monotonic() + 120
        while self.run(name, "healthy").returncode:
            assert self.processes[name].poll() is None, (self.folder / f"{name}.log").read_text()
            assert time.monotonic() < end, (self.folder / f"{name}.log").read_text()
            time.sleep(0.3)

    def operator(self, *words: str) -> str:
        run = self.run("operator", "operator", *words)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    def stop(self, name: str) -> int:
        process = self.processes.pop(name)
        process.terminate()
        try:
            return process.wait(30)
        finally:
            end_all(process)


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[Containers]:
    pytest.importorskip("flwr")
    if not NGINX and "CI" not in os.environ:
        pytest.skip("nginx is not installed")
    if sys.platform != "linux":
        pytest.skip("a container is Linux")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = [[sys.executable, "-m", "fairfate", "flower", "init", "myfed"]]
    words += [[str(ROOT / "docker" / "try-keys"), "myfed", "federation", "north", "south"]]
    for command in words:
        subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "PATH": path}, check=True, capture_output=True
        )
    here = Containers(tmp_path / "federation", tmp_path / "myfed")
    here.settle()
    yield here
    for name in reversed(list(here.processes)):
        here.stop(name)


def test_a_federation_of_containers_on_this_machine(containers: Containers) -> None:
    """One round with the keys, folders and commands of the docs; then a program dies, and all stop."""
    here = containers
    mounted = here.mounted()
    here.start("server", "server")
    here.wait_until_healthy("server")
    for site in ("north", "south"):
        here.operator("flwr", "supernode", "register", str(here.folder / f"operator/keys/{site}.pub"))
        here.start(site, "site")
    for site in ("north", "south"):
        here.wait_until_healthy(site)
    server = here.folder / "server"
    config = (
        f"validation='{server}/data/validation.csv' test='{server}/data/test.csv' out='{server}/state/runs'"
    )
    config += f" rounds=1 study='{server}/keys/study.toml'"
    here.operator("flwr", "run", str(here.app), "federation", "--stream", "-c", config)
    listed = here.operator("flwr", "list", "federation", "--format", "json")
    assert '"finished:completed"' in listed, listed
    clients = pd.read_csv(server / "state" / "runs" / "myfed-1" / "clients.csv")
    assert list(clients["name"]) == ["north", "south"]
    assert set(clients["outcome"]) <= {"fair", "used"}
    assert here.stop("south") == 143
    proxy = int((server / "state" / "nginx.pid").read_text())
    os.kill(proxy, signal.SIGTERM)
    assert here.processes["server"].wait(30) == 0
    assert here.run("server", "healthy").returncode == 1
    assert here.mounted() == mounted
    inside = [path for path in here.folder.glob("*/*/**/*") if path.is_file()]
    readable = [path for path in inside if path.stat().st_mode & 0o077]
    assert inside
    assert not readable, "keys, tables and results are for their owner alone"


def test_a_site_without_a_study_does_not_start(containers: Containers) -> None:
    (containers.folder / "north" / "keys" / "study.toml").unlink()
    run = containers.run("north", "site")
    assert run.returncode == 2
    assert "study must be a file" in run.stderr
