"""The whole deployment on one machine, to try it out: SuperLink, a SuperNode for each site, TLS, keys.

    python deploy_here.py                      starts everything, runs the app, stops everything
    python deploy_here.py -c "rounds=5"        ... with another run config
    python deploy_here.py --stay               ... and leaves it running until Ctrl-C

Certificates, keys and logs go to deployment/. On real machines the same commands run at their places; what
is run here is printed as it is run. The certificate authority's key (ca.key) signs servers and belongs
nowhere but with whoever runs the federation; a site's private key belongs to that site alone.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import ipaddress
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fairfate.errors import InputError
from fairfate.flower.settings import Settings

APP = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Flower calls nobody, and installs nothing, unless asked to."""


def main() -> int:
    """Run the app once in a deployment of its own; 0 if the run ended well."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-c", "--run-config", default="", help="as for flwr run")
    parser.add_argument(
        "--folder", type=Path, default=APP / "deployment", help="for certificates, keys, logs"
    )
    parser.add_argument("--stay", action="store_true", help="leave everything running until Ctrl-C")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped."))  # and stop everything, as Ctrl-C does
    sites = sorted((APP / "sites").glob("*.toml"))
    check_config()
    with Deployment(options.folder) as here:
        here.start_superlink()
        for site in sites:
            key = here.make_key(site.stem)
            here.register(key)
            here.start_supernode(site.stem, site, key)
        here.wait_for_sites(len(sites))
        number = here.submit(options.run_config)
        say(f"Run {number}; what the server says:")
        here.follow(number)
        status = here.wait(number)
        say(f"The run is {status}. The other logs are in {here.folder}")
        if options.stay:
            home = here.environment["FLWR_HOME"]
            say(f"Still running; run the app again with: FLWR_HOME={home} flwr run {APP} here --stream")
            say("Ctrl-C stops everything.")
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
    return 0 if status == "finished:completed" else 1


class Local:
    """A SuperLink's processes on this machine, all stopped at the end, whatever happens."""

    def __init__(self, folder: Path, connection: str) -> None:
        self.folder = folder.resolve()
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        home = self.folder / "flwr-home"
        home.mkdir(parents=True, exist_ok=True)
        self.environment = {**os.environ, **QUIET, "FLWR_HOME": str(home)}
        (home / "config.toml").write_text(  # where `flwr` finds the SuperLink, and whom it trusts
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{self.address}"\n{connection}\n'
        )

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self.processes)):
            self.stop(name)

    def start(self, name: str, *lines: str) -> subprocess.Popen[bytes]:
        """Start a process of its own group, its output in a log."""
        say("$ " + " \\\n      ".join(filter(None, lines)))
        command, *words = shlex.split(" ".join(lines))
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(BIN / command), *words],
                env=self.environment,
                stdout=log,
                stderr=log,
                cwd=APP,
                start_new_session=True,
            )
        return self.processes[name]

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

    def wait_for_superlink(self, seconds: float = 60) -> None:
        """Until it listens."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            if self.processes["superlink"].poll() is not None:
                break
            time.sleep(0.2)
        raise SystemExit(f"The SuperLink did not start: see {self.folder / 'superlink.log'}")

    def submit(self, run_config: str = "", *extra: str) -> int:
        """Hand the app to the SuperLink; returns the run's number."""
        extra += ("-c", run_config) if run_config else ()
        answer = json.loads(self.flwr("run", str(APP), "here", *extra, "--format", "json"))
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

    def log(self, run: int) -> str:
        """What the server's part of the app had to say."""
        return self.flwr("log", str(run), "here", "--show")

    def flwr(self, *words: str, well: str | None = None) -> str:
        """Call `flwr` and return what it prints; an error that says ``well`` is none."""
        done = subprocess.run(
            [str(BIN / "flwr"), *words], env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode and (well is None or well not in done.stdout + done.stderr):
            raise SystemExit(f"flwr {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout


class Deployment(Local):
    """The same with TLS, and sites that prove who they are."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, f'root-certificates = "{folder.resolve() / "ca.crt"}"')
        make_certificates(self.folder)

    def start_superlink(self) -> None:
        """The server: TLS, only registered sites, its state in a file."""
        here = shlex.quote(str(self.folder))
        self.start(
            "superlink",
            f"flower-superlink --host 127.0.0.1 --port {self.port}",
            f"--ssl-ca-certfile {here}/ca.crt --ssl-certfile {here}/server.crt",
            f"--ssl-keyfile {here}/server.key --enable-supernode-auth",
            f"--database {here}/superlink.db --disable-runtime-dependency-installation",
        )
        self.wait_for_superlink()

    def make_key(self, site: str) -> Path:
        """A site's key pair: ``keys/SITE`` stays there, ``keys/SITE.pub`` goes to the server."""
        private = self.folder / "keys" / site
        if not private.exists():
            private.parent.mkdir(exist_ok=True)
            key = ec.generate_private_key(ec.SECP384R1())
            write_private(
                private,
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.OpenSSH,
                    serialization.NoEncryption(),
                ),
            )
            public = key.public_key().public_bytes(
                serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
            )
            private.with_suffix(".pub").write_bytes(public + b"\n")
        return private

    def register(self, key: Path) -> None:
        """Tell the SuperLink that the owner of this key may take part."""
        self.flwr("supernode", "register", str(key.with_suffix(".pub")), "here", well="already in use")

    def start_supernode(self, name: str, node_config: Path, key: Path, *, trust: bool = True) -> None:
        """A site: trusts our certificate authority, proves who it is by its key, reads its own config."""
        here = shlex.quote(str(self.folder))
        self.start(
            name,
            f"flower-supernode --superlink {self.address} --host 127.0.0.1 --port {free_port()}",
            f"--root-certificates {here}/ca.crt" if trust else "",
            f"--auth-supernode-private-key {shlex.quote(str(key))}",
            f"--node-config {shlex.quote(str(node_config))}",
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


def check_config() -> None:
    """Find out now whether the run config makes sense, before anything is started."""
    config = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    try:
        Settings.read(config)
    except InputError as error:
        raise SystemExit(f"pyproject.toml: {error}") from None


def make_certificates(folder: Path) -> None:
    """A certificate authority of our own, and a certificate for the SuperLink on this machine."""
    if (folder / "server.crt").exists():
        return
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Federation test authority")])
    usage = {
        "digital_signature": False,
        "content_commitment": False,
        "key_encipherment": False,
        "data_encipherment": False,
        "key_agreement": False,
        "key_cert_sign": True,
        "crl_sign": True,
        "encipher_only": False,
        "decipher_only": False,
    }
    ca = (
        _certificate(issuer, issuer, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        _certificate(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]), issuer, server.public_key()
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
        )
        .sign(authority, hashes.SHA256())
    )
    for name, key in (("ca", authority), ("server", server)):
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_private(folder / f"{name}.key", pem)
    (folder / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (folder / "server.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365))
    )


def write_private(path: Path, content: bytes) -> None:
    """A file that only its owner can read."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)


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
