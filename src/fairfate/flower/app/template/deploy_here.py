"""The whole deployment on one machine, to try it out: each party in a folder that stands for its machine.

    python deploy_here.py                      starts everything, runs the app, stops everything
    python deploy_here.py -c "rounds=5"        ... with another run config
    python deploy_here.py --stay               ... and leaves it running until Ctrl-C

It needs nginx and openssl (on Debian: apt-get install nginx-light openssl). Commands are printed as they are
run; on real machines the same ones run at their places:

    deployment/authority/    ca.key signs certificates; only whoever runs the federation has it
    deployment/server/       the SuperLink, on loopback only, and nginx in front of it
    deployment/operator/     a certificate and a forwarder, to register sites, submit runs and stop them
    deployment/SITE/         a SuperNode, its keys, a certificate, a forwarder, and the study it has pinned
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any, Self

from fairfate.errors import InputError
from fairfate.flower.app.make_study import parse_changes
from fairfate.flower.app.settings import Settings

APP = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Flower calls nobody, and installs nothing, unless asked to."""
CURVE = "-newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes"


def main() -> int:
    """Run the app once in a deployment of its own; 0 if the run ended well."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-c", "--run-config", default="", help="as for flwr run")
    parser.add_argument(
        "--folder", type=Path, default=APP / "deployment", help="for certificates, keys, logs"
    )
    parser.add_argument("--stay", action="store_true", help="leave everything running until Ctrl-C")
    options = parser.parse_args()
    for stop in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, lambda *_: sys.exit("Stopped."))  # and stop everything, as Ctrl-C does
    sites = sorted((APP / "sites").glob("*.toml"))
    check_config()
    with Deployment(options.folder) as here:
        for site in sites:
            here.join(site.stem, site)
        here.start_server(options.run_config)
        here.start_operator()
        for site in sites:
            here.start_site(site.stem)
        here.wait_for_sites(len(sites))
        number = here.submit(options.run_config)
        say(f"Run {number}; what the server says:")
        here.follow(number)
        status = here.wait(number)
        say(f"The run is {status}. The other logs are in {here.folder}")
        if options.stay:
            home = here.environment["FLWR_HOME"]
            words = f"""-c "study='{here.study}'" --stream"""
            say(f"Still running; run the app again with: FLWR_HOME={home} flwr run {APP} here {words}")
            say("Ctrl-C stops everything.")
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
    return 0 if status == "finished:completed" else 1


class Local:
    """Processes on this machine, all stopped at the end, whatever happens."""

    def __init__(self, folder: Path) -> None:
        os.umask(0o077)  # what is written here is ours alone
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port, self.always = free_port(), ""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        mark = f"deployment-{secrets.token_hex(8)}"
        self.watcher = start_watcher(mark)
        self.environment = {**os.environ, **QUIET, "FAIRFATE_DEPLOYMENT": mark}
        self.environment["PATH"] = f"{BIN}:{os.environ.get('PATH', '')}:/usr/sbin"
        self.use(self.folder / "flwr-home", self.port, "insecure = true")

    def use(self, home: Path, port: int, connection: str) -> None:
        """Tell `flwr` where on this machine it finds the SuperLink, and whom to trust."""
        home.mkdir(parents=True, exist_ok=True)
        self.environment["FLWR_HOME"] = str(home)
        where = f'[superlink.here]\naddress = "127.0.0.1:{port}"\n{connection}\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n\n{where}')

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self.processes)):
            self.stop(name)
        assert self.watcher.stdin is not None
        self.watcher.stdin.close()
        self.watcher.wait()

    def start(self, name: str, *lines: str, cwd: Path | None = None, **environment: str) -> None:
        """Start a process of its own group, its output in a log."""
        say("$ " + " \\\n      ".join(filter(None, lines)))
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                shlex.split(" ".join(lines)),
                env={**self.environment, **environment},
                stdout=log,
                stderr=log,
                cwd=cwd or self.folder,
                start_new_session=True,
            )
        self.watch(self.processes[name].pid)

    def watch(self, process: int) -> None:
        """Have a process stopped if we are killed."""
        assert self.watcher.stdin is not None
        self.watcher.stdin.write(b"%d\n" % process)
        self.watcher.stdin.flush()

    def stop(self, name: str, how: int = signal.SIGTERM) -> None:
        """Stop a process and its children."""
        process = self.processes.pop(name)
        for attempt in (how, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, attempt)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
                break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # children that outlive their parent

    def wait_for_port(self, name: str, port: int, seconds: float = 60) -> None:
        """Until a process listens."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            if self.processes[name].poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit(f"{name} did not start: see {self.folder / name}.log")

    def submit(self, run_config: str = "", *extra: str, app: Path = APP) -> int:
        """Hand the app to the SuperLink; returns the run's number."""
        words = f"{self.always} {run_config}".strip()
        extra += ("-c", words) if words else ()
        answer = json.loads(self.flwr("run", str(app), "here", *extra, "--format", "json"))
        if not answer.get("success"):
            reason = answer.get("error-message", answer)
            hint = "does -c name keys of pyproject.toml only?"
            raise SystemExit(f"The SuperLink did not take the run ({hint}): {reason}")
        return int(answer["run-id"])

    def status(self, run: int) -> str:
        """What became of a run; never read from an exit code, which Flower leaves at 0."""
        listed = json.loads(self.flwr("list", "here", "--run-id", str(run), "--format", "json"))
        return str(listed["runs"][0]["status"])

    def wait(self, run: int, seconds: float = 7 * 24 * 3600) -> str:
        """Until a run has ended, or time is up; returns its status."""
        end = time.monotonic() + seconds
        while not (status := self.status(run)).startswith("finished") and time.monotonic() < end:
            time.sleep(2)
        return status

    def follow(self, run: int) -> None:
        """Print what the server's part of the app says, as it says it."""
        command = [str(BIN / "flwr"), "log", str(run), "here", "--stream"]
        self.processes["log"] = subprocess.Popen(command, env=self.environment, start_new_session=True)
        self.watch(self.processes["log"].pid)

    def log(self, run: int) -> str:
        """What the server's part of the app had to say."""
        return self.flwr("log", str(run), "here", "--show")

    def flwr(self, *words: str, well: str | None = None) -> str:
        """Call `flwr` and return what it prints; an error that says ``well`` is none."""
        finished = subprocess.run(
            [str(BIN / "flwr"), *words], env=self.environment, capture_output=True, text=True, check=False
        )
        if finished.returncode and (well is None or well not in finished.stdout + finished.stderr):
            raise SystemExit(f"flwr {' '.join(words)}: {finished.stdout}{finished.stderr}")
        return finished.stdout


class Deployment(Local):
    """The server behind a proxy, an operator, and sites: who has no certificate of ours gets nowhere."""

    def __init__(self, folder: Path) -> None:
        for program in ("nginx", "openssl"):
            if not shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
                raise SystemExit(f"{program} must be installed (Debian: apt-get install nginx-light openssl)")
        self.door = free_port()
        self.forwarders: dict[str, int] = {}
        super().__init__(folder)
        self.server, self.authority = self.folder / "server", self.folder / "authority"
        self.study = self.server / "study.toml"
        self.always = f"study='{self.study}'"

    def join(self, name: str, node_config: Path) -> None:
        """A site's settings in a folder of its own, and its keys; the public one goes to the operator."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        if not (folder / "site.toml").exists():
            shutil.copyfile(node_config, folder / "site.toml")
        if not (folder / f"{name}-study.key").exists():
            self.run("fairfate flower key --node site.toml", cwd=folder)

    def make_study(self, run_config: str, *words: str) -> None:
        """What all sites sign off; each pins its checksum."""
        sites = sorted(path.parent for path in self.folder.glob("*/site.toml"))
        parties = [
            self.server / "server-study.pub",
            *(folder / f"{folder.name}-study.pub" for folder in sites),
        ]
        amend = ""
        if self.study.exists():  # an amended study keeps what is not given anew
            amend = f"--amend {quote(self.study)} --runs 5"
            run_config = " ".join(f"{key}={json.dumps(value)}" for key, value in training(run_config).items())
        self.run(
            f"fairfate flower study {quote(APP)} --out {quote(self.study)} {amend} {' '.join(words)}"
            f" {' '.join(f'--party {quote(party)}' for party in parties)}"
            + (f" -c {shlex.quote(run_config)}" if run_config else ""),
            cwd=self.server,
        )
        for folder in sites:
            self.pin(folder)

    def pin(self, folder: Path) -> None:
        """A site's signature under the study: its checksum, in the site's own settings."""
        shutil.copyfile(self.study, folder / "study.toml")
        key = quote(folder / f"{folder.name}-study.key")
        self.run(f"fairfate flower pin study.toml --node site.toml --key {key} --sign-off", cwd=folder)

    def start_server(self, run_config: str = "", *words: str) -> None:
        """The SuperLink, which only this machine reaches, and nginx, which everybody else has to pass."""
        self.server.mkdir(exist_ok=True)
        if not (self.server / "server-study.key").exists():
            self.run("fairfate flower key server", cwd=self.server)
        self.make_study(run_config, *words)
        self.make_authority()
        self.make_certificate("server", "DNS:localhost,IP:127.0.0.1", usage="serverAuth")
        self.write_conf(self.server, "server.conf", {"listen 8443": f"listen 127.0.0.1:{self.door}"})
        if not (self.server / "allowed.conf").exists():
            shutil.copyfile(APP / "proxy" / "allowed.conf", self.server / "allowed.conf")
        self.start_superlink()
        self.start("proxy", f"nginx -p {quote(self.server)} -c server.conf", cwd=self.server)
        self.wait_for_port("proxy", self.door)

    def start_superlink(self) -> None:
        """On loopback only: whoever can reach its port directly can run code at every site."""
        self.start(
            "superlink",
            f"flower-superlink --host 127.0.0.1 --port {self.port}",
            "--ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key",
            "--enable-supernode-auth --database superlink.db --disable-runtime-dependency-installation",
            cwd=self.server,
            FLWR_HOME=str(self.server / "flwr-home"),
            FAIRFATE_SERVER_KEY=str(self.server / "server-study.key"),
        )
        self.wait_for_port("superlink", self.port)

    def start_operator(self) -> None:
        """A certificate for the Control API, and a forwarder that shows it for `flwr`."""
        self.invite("operator", "operator")
        folder = self.folder / "operator"
        trusted = f'root-certificates = "{folder / "local.crt"}"'
        self.use(folder / "flwr-home", self.forwarders["operator"], trusted)

    def start_site(self, name: str) -> None:
        """A site with a certificate for the Fleet API, a forwarder, its keys and its study."""
        self.invite(name, "site")
        self.register(self.make_key(name))
        self.start_supernode(name)

    def invite(self, name: str, role: str) -> None:
        """Sign a certificate, write it into allowed.conf, and start a forwarder that shows it."""
        self.make_certificate(name, usage="clientAuth")
        serial = self.run("openssl x509 -in client.crt -noout -serial", cwd=self.folder / name)
        line = f"{serial.strip().partition('=')[2]} {role};  # {name}\n"
        allowed = self.server / "allowed.conf"
        if line not in allowed.read_text():
            with allowed.open("a") as file:
                file.write(line)
            self.reload()
        self.start_forwarder(name)

    def expel(self, name: str) -> None:
        """Strike a party from allowed.conf."""
        allowed = self.server / "allowed.conf"
        kept = [line for line in allowed.read_text().splitlines() if not line.endswith(f"# {name}")]
        allowed.write_text("\n".join(kept) + "\n")
        self.reload()

    def reload(self) -> None:
        """Have the proxy read allowed.conf again."""
        self.run(f"nginx -p {quote(self.server)} -c server.conf -s reload", cwd=self.server)

    def start_forwarder(self, name: str) -> None:
        """What shows a client certificate for Flower's programs, which cannot."""
        folder, port = self.folder / name, free_port()
        self.forwarders[name] = port
        if not (folder / "local.crt").exists():
            self.run(
                f'openssl req -x509 {CURVE} -days 365 -keyout local.key -out local.crt -subj "/CN=localhost"'
                ' -addext "subjectAltName=IP:127.0.0.1" -addext "keyUsage=digitalSignature,keyCertSign"',
                cwd=folder,
            )
        here = {"127.0.0.1:8001": f"127.0.0.1:{port}", "fl.example.org:8443": f"127.0.0.1:{self.door}"}
        self.write_conf(folder, "forwarder.conf", {**here, "fl.example.org": "localhost"})
        self.start(f"{name}-forwarder", f"nginx -p {quote(folder)} -c forwarder.conf", cwd=folder)
        self.wait_for_port(f"{name}-forwarder", port)

    def make_key(self, site: str) -> Path:
        """A site's key pair: ``supernode`` stays there, ``supernode.pub`` goes to the operator."""
        private = self.folder / site / "supernode"
        if not private.exists():
            self.run('ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f supernode', cwd=private.parent)
        return private

    def register(self, key: Path) -> None:
        """Tell the SuperLink that the owner of this key may take part."""
        self.flwr("supernode", "register", str(key.with_suffix(".pub")), "here", well="already in use")

    def start_supernode(self, name: str, forwarder: str = "") -> None:
        """A site's Flower: speaks to its forwarder, proves who it is by its key, reads its own config."""
        folder = self.folder / name
        self.start(
            name,
            "fairfate flower site site.toml",
            f"--superlink 127.0.0.1:{self.forwarders[forwarder or name]}",
            f"--root-certificates {quote(self.folder / (forwarder or name) / 'local.crt')}",
            f"--auth-supernode-private-key supernode --host 127.0.0.1 --port {free_port()}",
            cwd=folder,
        )

    def wait_for_sites(self, number: int, seconds: float = 120) -> None:
        """Until so many sites are online."""
        end = time.monotonic() + seconds
        while (online := self.online()) < number:
            if time.monotonic() > end:
                raise SystemExit(f"Only {online} of {number} sites came online: see {self.folder}/*.log")
            time.sleep(1)
        say(f"{online} sites are online")

    def online(self) -> int:
        """How many sites are there."""
        nodes = json.loads(self.flwr("supernode", "list", "here", "--format", "json"))["nodes"]
        return sum(node["status"] == "online" for node in nodes)

    def make_authority(self) -> None:
        """A certificate authority of our own."""
        self.authority.mkdir(exist_ok=True)
        if not (self.authority / "ca.crt").exists():
            self.run(
                f'openssl req -x509 {CURVE} -days 365 -keyout ca.key -out ca.crt -subj "/CN={APP.name}"'
                ' -addext "basicConstraints=critical,CA:TRUE,pathlen:0"'
                ' -addext "keyUsage=critical,keyCertSign,cRLSign"',
                cwd=self.authority,
            )

    def make_certificate(self, name: str, alternative: str = "", *, usage: str) -> None:
        """A key that never leaves its folder, and a certificate that the authority signs for it."""
        folder, stem = self.folder / name, "server" if usage == "serverAuth" else "client"
        folder.mkdir(exist_ok=True)
        if not (folder / f"{stem}.crt").exists():
            request, extensions = self.authority / f"{name}.csr", self.authority / f"{name}.ext"
            words = f'-keyout {stem}.key -out {quote(request)} -subj "/CN={name}"'
            self.run(f"openssl req {CURVE} {words}", cwd=folder)
            lines = ["basicConstraints=critical,CA:FALSE", f"extendedKeyUsage={usage}"]
            lines += [f"subjectAltName={alternative}"] if alternative else []
            extensions.write_text("\n".join(lines) + "\n")
            self.run(
                f"openssl x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -days 365 -extfile {name}.ext"
                f" -out {quote(folder / stem)}.crt",
                cwd=self.authority,
            )
        shutil.copyfile(self.authority / "ca.crt", folder / "ca.crt")

    def write_conf(self, folder: Path, name: str, words: dict[str, str]) -> None:
        """A configuration of nginx from proxy/, with the ports of this machine."""
        text = (APP / "proxy" / name).read_text()
        for word, value in {**words, "127.0.0.1:8000": f"127.0.0.1:{self.port}"}.items():
            text = text.replace(word, value)
        (folder / name).write_text(text)

    def run(self, command: str, cwd: Path) -> str:
        """Run a command to its end and return what it prints."""
        say(f"$ {command}")
        finished = subprocess.run(
            shlex.split(command), cwd=cwd, env=self.environment, capture_output=True, text=True, check=False
        )
        if finished.returncode:
            raise SystemExit(f"{command}: {finished.stdout}{finished.stderr}")
        return finished.stdout


def read_config() -> dict[str, Any]:
    """The app's run config."""
    return dict(tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])


def training(run_config: str) -> dict[str, Any]:
    """What the run config says of training, with changes as ``flwr run -c`` takes them."""
    keys = ("strategy", "metric", "protocol", "seed", "rounds", "hidden", "epochs", "batch-size")
    config = read_config()
    known = {key: config[key] for key in (*keys, "learning-rate", "validation-from") if key in config}
    return {**known, **parse_changes(run_config)}


def check_config() -> None:
    """Find out now whether the run config makes sense, before anything is started."""
    try:
        Settings.read(read_config())
    except InputError as error:
        raise SystemExit(f"pyproject.toml: {error}") from None


WATCHER = """
import os, pathlib, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
groups = {int(line) for line in sys.stdin}     # until the script ends, however it ends

def left():
    found = set()
    for entry in pathlib.Path('/proc').glob('[0-9]*'):     # those that it had no time to tell of, too
        try:
            if sys.argv[1].encode() in (entry / 'environ').read_bytes():
                found.add(int(entry.name))
        except OSError:
            pass
    return found - {os.getpid()}

for how in (signal.SIGTERM, signal.SIGKILL):
    for group in groups:
        try:
            os.killpg(group, how)
        except OSError:
            pass
    for process in left():
        try:
            os.kill(process, how)
        except OSError:
            pass
    end = time.monotonic() + 5
    while left() and time.monotonic() < end:
        time.sleep(0.1)
"""


def start_watcher(mark: str) -> subprocess.Popen[bytes]:
    """A process that stops all that carry a mark in their environment when this one has ended."""
    command = [sys.executable, "-c", WATCHER, mark]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def quote(path: Path) -> str:
    """A path as a word of a command."""
    return shlex.quote(str(path))


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def say(text: str) -> None:
    """Tell the user."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
