"""The cluster of a command: a connection with timeout and TLS to a running one, or local worker processes."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import click
import dask
from distributed import Client, LocalCluster, Security

from rgcss_dask.compat import connect

Say = Callable[[str], None]

ANSWER = 30.0  # default seconds for a scheduler to answer
SILENT_FOR = 2.0  # seconds before the wait is reported
GIVE = "give --tls-ca, --tls-cert and --tls-key, or set distributed.comm.tls in Dask's configuration"


@dataclass(frozen=True)
class Cluster:
    """The cluster options of a command."""

    scheduler: str | None = None
    scheduler_file: str | None = None
    workers: int | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    timeout: float | None = None

    @property
    def certificates(self) -> dict[str, str]:
        """The given TLS files, by their names in Dask."""
        given = {"tls_ca_file": self.tls_ca, "tls_client_cert": self.tls_cert, "tls_client_key": self.tls_key}
        return {name: str(Path(path).expanduser()) for name, path in given.items() if path is not None}

    @property
    def answer(self) -> float:
        """Seconds in which the scheduler must answer."""
        return ANSWER if self.timeout is None else self.timeout


@contextmanager
def connected(asked: Cluster, say: Say) -> Iterator[None]:
    """Make a Dask client current while a command runs, if one is asked for."""
    given = [x for x in (asked.scheduler, asked.scheduler_file, asked.workers) if x is not None]
    if len(given) > 1:
        raise click.UsageError("give one of --scheduler, --scheduler-file and --workers.")
    if asked.certificates and asked.scheduler is None and asked.scheduler_file is None:
        raise click.UsageError("--tls-ca, --tls-cert and --tls-key go with --scheduler or --scheduler-file.")
    if not given:
        yield
        return
    limit = {} if asked.timeout is None else {"rgcss.timeout": asked.timeout}
    with dask.config.set(limit):
        if asked.workers is None:
            with _client(asked, say):
                yield
        else:
            with _own_workers(asked.workers) as local, Client(local):  # type: ignore[no-untyped-call]
                yield


def _own_workers(count: int) -> LocalCluster:
    """Start worker processes that other users cannot reach.

    Anyone who can connect to a scheduler can run code with the rights of its user, and other users may be logged in on
    this machine. So all processes use TLS certificates, made for this command and never stored; the dashboard, which
    has no TLS, is off.
    """
    try:
        security = Security.temporary()  # type: ignore[no-untyped-call]
    except ImportError:
        raise ImportError(
            "--workers needs a package that is not installed, for TLS between the processes: pip install cryptography. "
            "Without --workers the command uses threads."
        ) from None
    return LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=count,
        threads_per_worker=1,
        host="127.0.0.1",
        protocol="tls://",
        security=security,
        dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False},
        # A worker that sends a heartbeat while all workers are being stopped would log a traceback; errors of tasks are
        # raised here.
        silence_logs=logging.CRITICAL,
    )


def _client(asked: Cluster, say: Say) -> Client:
    """Connect to the scheduler, after a test connection."""
    began = time.monotonic()
    security = _security(asked.certificates)
    address = _address(asked, say)
    if "://" not in address:
        address = f"{'tls' if asked.certificates else 'tcp'}://{address}"
    _check_encryption(address, security)
    left = max(1.0, asked.answer - (time.monotonic() - began))
    try:
        # Dask's client has a timeout for connecting, but not for the handshake after it.
        asyncio.run(_greeted(address, security, left, say))
    except TimeoutError:
        raise _silent(address, asked) from None
    except Exception as error:  # any kind of server may answer
        raise _refused(address, asked, error) from None
    return Client(address, security=security, timeout=asked.answer)  # type: ignore[no-untyped-call]


def _security(certificates: dict[str, str]) -> Security:
    """Return the TLS settings from the given files, else from Dask's configuration, after checking the files."""
    security = Security(**certificates, **({"require_encryption": True} if certificates else {}))  # type: ignore[no-untyped-call]
    ca, cert, key = _files(security)
    if certificates and (ca is None or cert is None):
        missing = "--tls-ca" if ca is None else "--tls-cert"
        raise click.UsageError(f"TLS needs an authority and a certificate with its key; {missing} is not given.")
    if ca is None or cert is None or any("\n" in file for file in (ca, cert, key or "")):
        return security  # no encryption, or certificates within the configuration itself
    for file in (ca, cert, key):
        _check_readable(file)
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise ValueError(f"a TLS authority must be a certificate in PEM form; {ca} is not ({error.reason}).") from None
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as error:
        raise ValueError(
            f"a TLS certificate and its key must be in PEM form and belong together; {cert} and {key or 'no key'} "
            f"do not ({error.reason or error}). Give the files made for this cluster."
        ) from None
    return security


def _files(security: Security) -> list[str | None]:
    """Return the authority, the certificate and the key of a client."""
    tls: dict[str, str | None] = security.get_tls_config_for_role("client")  # type: ignore[no-untyped-call]
    return [tls.get(name) for name in ("ca_file", "cert", "key")]


def _check_readable(file: str | None) -> None:
    if file is not None:
        try:
            Path(file).read_bytes()
        except OSError as error:
            raise OSError(
                f"the TLS file {file} cannot be read: {error.strerror}. Give the path of a PEM file."
            ) from None


def _no_password() -> str:
    raise ValueError("the TLS key must not have a password, which cannot be entered here; give a key without one.")


def _address(asked: Cluster, say: Say) -> str:
    """Return the given address, or wait for the address in the scheduler file."""
    if asked.scheduler is not None:
        return asked.scheduler
    file, began, said = Path(str(asked.scheduler_file)), time.monotonic(), False
    while True:
        try:
            return str(json.loads(file.read_text())["address"])
        except FileNotFoundError:
            reason = "the file does not exist"
        except (OSError, ValueError, LookupError, TypeError) as error:  # it may be being written
            reason = f"it is not a valid scheduler file ({type(error).__name__}: {error})"
        waited = time.monotonic() - began
        if waited > asked.answer:
            raise OSError(
                f"no scheduler wrote {file} within {asked.answer:g} s: {reason}. Start one with "
                f"`dask scheduler --scheduler-file {file}`, or wait longer with --timeout."
            )
        if waited > SILENT_FOR and not said:
            say(f"waiting for the scheduler file {file}, at most {asked.answer:g} s (--timeout)")
            said = True
        time.sleep(0.1)


def _check_encryption(address: str, security: Security) -> None:
    """Check encryption before connecting, to give a clear error."""
    encrypted = address.startswith(("tls://", "wss://"))
    if encrypted and None in _files(security)[:2]:
        raise ValueError(f"an encrypted address needs certificates; {address} is encrypted: {GIVE}.")
    if not encrypted and security.require_encryption:
        raise ValueError(
            f"encryption is required, by the given certificates or by Dask's configuration; {address} has none. Write "
            "the address with tls:// if the scheduler has certificates."
        )


async def _greeted(address: str, security: Security, seconds: float, say: Say) -> None:
    """Make a test connection, and close it."""

    async def meet() -> None:
        arguments = security.get_connection_args("client")  # type: ignore[no-untyped-call]
        comm = await connect(address, timeout=max(seconds / 2, seconds - 1), **arguments)  # type: ignore[no-untyped-call]
        await comm.close()

    meeting = asyncio.ensure_future(meet())
    done, _ = await asyncio.wait({meeting}, timeout=min(SILENT_FOR, seconds))
    if not done:
        say(f"waiting for the scheduler at {address}, at most {seconds:.0f} s (--timeout)")
    await asyncio.wait_for(meeting, max(0.0, seconds - SILENT_FOR))


def _silent(address: str, asked: Cluster) -> OSError:
    file = "" if asked.scheduler_file is None else f", the address in {asked.scheduler_file}"
    return OSError(
        f"no Dask scheduler answers at {address}{file}, within {asked.answer:g} s: {_why(address)}. Check that it runs "
        "and can be reached from here, or wait longer with --timeout."
    )


def _why(address: str) -> str:
    """Connect once more without Dask, to find the reason, which Dask loses when it times out."""
    place = urlsplit(address)
    try:
        socket.create_connection((place.hostname or "", place.port or 8786), timeout=1.0).close()
    except OSError as error:
        return str(error)
    return "it does not answer"


def _refused(address: str, asked: Cluster, error: Exception) -> Exception:
    """Return an error that explains in one line why the connection failed, and what to do."""
    cause = error.__cause__ or error
    reason = getattr(cause, "reason", None) or str(cause) or type(cause).__name__
    alert = re.search(r"\[SSL: (\w+)\]", reason)  # if the server closed first, Dask reports it as text
    tls = address.startswith("tls://")
    if isinstance(error, ValueError) and "IOStream" not in str(error):
        return ValueError(f"{address} is not the address of a scheduler: {error}. Write it as tls://host:8786.")
    if str(error).startswith("Timed out"):
        return _silent(address, asked)
    if (alert or isinstance(cause, ssl.SSLError)) and "WRONG_VERSION" not in reason:
        return ConnectionError(
            f"the certificates of this client and of the scheduler at {address} must come from one authority; they do "
            f"not match ({alert[1] if alert else reason}). Use those made for this cluster: {GIVE}."
        )
    if tls and "reset by peer" in reason:  # TLS 1.3 may lose the alert of the server
        return ConnectionError(
            f"the certificates of this client and of the scheduler at {address} must come from one authority; they do "
            f"not match ({reason}). Use those made for this cluster: {GIVE}. If the scheduler has no TLS, give tcp:// "
            "instead."
        )
    if tls:
        return ConnectionError(
            f"the server at {address} does not speak TLS like a Dask scheduler ({reason}). Start the scheduler with "
            "certificates, or give tcp:// if it has none."
        )
    return ConnectionError(
        f"the server at {address} closed the connection or is not a Dask scheduler ({type(cause).__name__}). If it "
        f"needs TLS, write tls://{address.split('://')[-1]} and {GIVE}."
    )
