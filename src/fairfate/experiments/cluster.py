"""Many machines: jobs run by the workers of a Dask cluster (``pip install "fairfate[cluster]"``).

Whoever reaches a Dask scheduler can run code on it, so one elsewhere must be reached by TLS, with the
certificates that Dask's own settings name (``distributed.comm.tls``); plain TCP is for this machine alone.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from fairfate._version import __version__
from fairfate.errors import InputError, check, listing
from fairfate.experiments.workers import cores

LOCAL = "dask"
"""Stands for a cluster of processes on this machine."""


class DaskExecutor(Executor):
    """A Dask cluster as an executor of `concurrent.futures`."""

    def __init__(self, client: Any) -> None:
        from distributed.scheduler import KilledWorker

        self._client, self._executor = client, client.get_executor(pure=False)
        self.lost = (KilledWorker,)
        """What a job ends with whose worker is gone."""

    def share(self, value: Any) -> Any:
        """Send what all jobs need to the workers, once; what is returned stands for it among arguments."""
        return self._client.scatter(value, broadcast=True, hash=False)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a worker call a function."""
        future: Future[Any] = self._executor.submit(fn, *args, **kwargs)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let go of the cluster, which goes on."""
        self._executor.shutdown(wait=wait)


@contextmanager
def open_cluster(address: str | None) -> Iterator[Executor | None]:
    """The executor of an address, ``tls://HOST:PORT``, or of ``dask``, which starts a cluster here.

    None stands for none: jobs then run in this machine's own processes.
    """
    if address is None:
        yield None
        return
    check_address(address)
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise InputError('--cluster needs Dask: pip install "fairfate[cluster]"') from None
    cluster = None
    if address == LOCAL:
        cluster = LocalCluster(
            n_workers=cores(), threads_per_worker=1, host="127.0.0.1", dashboard_address=None
        )
    try:
        try:
            client = Client(cluster or address, timeout=30, set_as_default=False)
        except (OSError, TimeoutError) as error:
            raise InputError(f"cluster must be one that answers, got '{address}' ({error})") from None
        with client:
            check_versions(client.run(installed_version))
            executor = DaskExecutor(client)
            try:
                yield executor
            finally:
                executor.shutdown(wait=False)
    finally:
        if cluster is not None:
            cluster.close()


def check_address(address: str) -> None:
    """InputError for what is no address, and for one that others could listen to.

    >>> check_address("tcp://example.org:8786")
    Traceback (most recent call last):
    fairfate.errors.InputError: cluster must be tls://HOST:PORT beyond this machine, got 'tcp://example.org:8786'
    """
    if address == LOCAL:
        return
    parts = urlsplit(address)
    check(
        parts.scheme in ("tls", "tcp") and parts.hostname is not None,
        f"cluster must be {LOCAL} or tls://HOST:PORT",
        f"'{address}'",
    )
    if parts.scheme == "tcp" and not _is_here(str(parts.hostname)):
        raise InputError(f"cluster must be tls://HOST:PORT beyond this machine, got '{address}'")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def installed_version() -> str:
    """Of this package, at a worker."""
    return __version__


def check_versions(versions: dict[str, str]) -> None:
    """InputError unless there are workers, and all have this version: numbers may depend on it."""
    check(len(versions) > 0, "cluster must have workers")
    others = sorted({version for version in versions.values() if version != __version__})
    check(not others, f"cluster must have workers with fairfate {__version__}", listing(others))
