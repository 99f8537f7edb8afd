"""An HTTP proxy on loopback that answers badly when told to: errors, dropped connections, half bodies, slow answers."""

import asyncio
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from fsspec.asyn import sync as fsspec_sync

from rgcss_dask.compat import sync as sync_in_zarr

S3FileSystem = pytest.importorskip(
    "s3fs", reason="needs the extra 'test-cloud': pip install -e '.[test-cloud]'"
).S3FileSystem

ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
CODES = {
    503: ("SlowDown", "Please reduce your request rate."),
    500: ("InternalError", "We encountered an internal error. Please try again."),
    403: ("AccessDenied", "Access Denied"),
    404: ("NoSuchKey", "The specified key does not exist."),
}
FOREVER = 10**9


def forget_sessions():
    """Close every connection that s3fs keeps, and forget its file systems: the next ones see new settings."""
    sync_in_zarr(_others_done())
    for fs in list(S3FileSystem._cache.values()):
        if fs._s3 is not None:
            sync_in_zarr(fs._s3.close()) if fs.asynchronous else fsspec_sync(fs.loop, fs._s3.close)
            fs._s3 = None
    S3FileSystem.clear_instance_cache()


async def _others_done():
    """Of several requests at once Zarr reports the first that fails; the others are still being tried."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=30)


@dataclass
class Fault:
    """What to do with the next requests that match.

    kind: a number (answer with this status), "drop" (close without an answer), "lost" (pass the request on and close
    without an answer), "truncate" (half of the body of the answer), "cut" (pass on half of the body of the request),
    or "slow" (wait before the answer).
    """

    kind: int | str
    method: str = "GET|PUT|POST|HEAD|DELETE"
    path: str = ""  # searched for in the path and query
    times: int = FOREVER
    after: int = 0  # so many matching requests go well first
    seconds: float = 0.0
    behind: str = ""  # wait until a PUT of such a path was answered, before anything else
    seen: int = 0
    done: int = 0

    def takes(self, method, path):
        if not re.fullmatch(self.method, method) or not re.search(self.path, path) or self.done >= self.times:
            return False
        self.seen += 1
        if self.seen <= self.after:
            return False
        self.done += 1
        return True


@dataclass
class Request:
    """What was asked, when, and the fault it met with, if any."""

    method: str
    path: str
    kind: int | str | None
    key: str  # the access key it was signed with
    at: float = field(default_factory=time.monotonic)
    answered: bool = False  # with what the server said


class FaultyProxy:
    """Stands before a server; use it as a context, and its `url` as the server's."""

    def __init__(self, upstream):
        self.upstream = upstream  # (host, port)
        self.faults, self.log = [], []
        self._open, self._ending = set(), asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="faulty-proxy")

    def __enter__(self):
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**20), self._loop
        ).result(10)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_):
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _stop(self):
        self._server.close()
        self._ending.set()
        for transport in list(self._open):
            transport.abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(others, timeout=5) if others else None

    def fail(self, kind, **how):
        """Add a fault, and return it; `done` says how often it struck."""
        self.faults.append(Fault(kind, **how))
        return self.faults[-1]

    def heal(self):
        """Answer well from now on, and forget what was asked."""
        self.faults, self.log = [], []

    def asked(self, method, path):
        """The requests so far that match."""
        return [r for r in list(self.log) if re.fullmatch(method, r.method) and re.search(path, r.path)]

    def answered(self, method, path):
        """Those that were answered well."""
        return [request for request in self.asked(method, path) if request.answered]

    async def _serve(self, reader, writer):
        self._open.add(writer.transport)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer.transport)
            writer.transport.abort()  # a reset where something is unsent: what a dropped connection looks like

    async def _one(self, reader, writer):
        """Answer one request; return whether the connection stays."""
        head = await reader.readuntil(b"\r\n\r\n")
        method, path = head.split(b" ", 2)[:2]
        request, fault = self._met(method.decode(), path.decode(), head)
        while fault is not None and fault.behind and not self.answered("PUT", fault.behind):
            await self._pause(0.02)
        if request.kind == "drop":
            return False
        if b"100-continue" in head.lower():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = re.sub(rb"(?i)\r\nexpect:[^\r]*", b"", head)
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        if isinstance(request.kind, int):
            return await self._error(writer, request.kind, request.method)
        if request.kind == "cut":
            await self._ask(head, body[: len(body) // 2], whole=False)
            return False
        answer = await self._ask(head, body)
        return await self._answer(writer, answer, request, fault)

    def _met(self, method, path, head):
        fault = next((f for f in list(self.faults) if f.takes(method, path)), None)
        key = re.search(rb"Credential=([^/]+)/", head)
        request = Request(method, path, None if fault is None else fault.kind, key[1].decode() if key else "")
        self.log.append(request)
        return request, fault

    async def _answer(self, writer, answer, request, fault):
        if request.kind == "lost":
            return False
        if request.kind == "slow":
            await self._pause(fault.seconds)
        if request.kind == "truncate":
            start = answer.index(b"\r\n\r\n") + 4
            writer.write(answer[: start + (len(answer) - start) // 2])
            await writer.drain()
            await self._pause(0.05)  # so that what was sent arrives before the end
            return False
        writer.write(answer)
        await writer.drain()
        request.answered = True
        return b"content-length" in answer.split(b"\r\n\r\n", 1)[0].lower() and answer.startswith(b"HTTP/1.1")

    async def _pause(self, seconds):
        """Wait, unless the proxy is stopped."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), seconds)
            raise ConnectionError("the proxy is stopped")

    async def _error(self, writer, status, method):
        code, message = CODES[status]
        text = ERROR.format(code=code, message=message).encode()
        content = b"" if method == "HEAD" else text
        writer.write(
            f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(text)}\r\n\r\n".encode()
            + content
        )
        await writer.drain()
        return True

    async def _ask(self, head, body, whole=True):
        """Pass a request on and return the whole answer; not whole: close before it can be answered."""
        head = re.sub(rb"(?i)\r\nconnection:[^\r]*", b"", head)
        upstream, sender = await asyncio.open_connection(*self.upstream)
        try:
            sender.write(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1) + body)
            await sender.drain()
            if not whole:
                await self._pause(0.05)
                return b""
            return await upstream.read()
        finally:
            sender.transport.abort()
