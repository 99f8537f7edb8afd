"""Retries of requests to object stores, and the errors after the last retry."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import dask

from rgcss_dask.io.safe_text import without_secrets

T = TypeVar("T")

# HTTP statuses after which a retry may succeed; of 400 only with these codes.
STATUS = (408, 409, 425, 429, 500, 502, 503, 504, 509)
CODES = ("RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "SlowDown", "InternalError")
# Errors of a missing or incomplete response, of botocore, aiohttp, urllib3 and Python.
NO_ANSWER = {"ConnectionError", "HTTPClientError", "ClientConnectionError", "ClientPayloadError", "TimeoutError"} | {
    "IncompleteRead",
    "IncompleteReadError",
    "ResponseStreamingError",
    "ResponseParserError",
}
FINAL = (FileNotFoundError, PermissionError, FileExistsError, IsADirectoryError, NotADirectoryError)
LIBRARIES = ("botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "azure", "adlfs")

_random = random.Random()  # separate, so that seeds of users are not affected


class StoreError(OSError):
    """An object store did not answer a request, or not correctly, after all retries."""


@dataclass(frozen=True)
class Retry:
    """The number of tries, and the waits between them, which double each time, minus a random part."""

    tries: int = 8
    wait: float = 0.2  # seconds before the second try
    most: float = 20.0  # longest wait before a try, in seconds

    @classmethod
    def configured(cls) -> Retry:
        """Return the settings of Dask's configuration under ``rgcss.store``; tasks carry them to the workers."""
        given = {name: dask.config.get(f"rgcss.store.{name}", getattr(cls, name)) for name in ("tries", "wait", "most")}
        tries, wait, most = int(given["tries"]), float(given["wait"]), float(given["most"])
        if tries < 1 or wait < 0 or most < 0:
            raise ValueError(f"rgcss.store must have tries of 1 or more and waits of 0 or more; got {given}.")
        return cls(tries, wait, most)

    def __call__(self, verb: str, place: str, function: Callable[[], T]) -> T:
        """Call a function until it succeeds, or until the last try fails."""
        began = time.monotonic()
        for number, pause in enumerate(self._pauses(), 1):
            try:
                return function()
            except Exception as error:
                _check(error, verb, place, number, self.tries, began)
                time.sleep(pause)
        raise AssertionError("the last try returns or raises")

    async def awaited(self, verb: str, place: str, function: Callable[[], Awaitable[T]]) -> T:
        """Do the same in an event loop."""
        began = time.monotonic()
        for number, pause in enumerate(self._pauses(), 1):
            try:
                return await function()
            except Exception as error:
                _check(error, verb, place, number, self.tries, began)
                await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _pauses(self) -> Iterator[float]:
        for i in range(self.tries):
            yield min(self.most, self.wait * 2**i) * _random.uniform(0.5, 1.0)


def _check(error: Exception, verb: str, place: str, number: int, tries: int, began: float) -> None:
    """Return if a retry may succeed; otherwise raise an error with the place."""
    if isinstance(error, StoreError) or not (isinstance(error, OSError) or _library(error) in LIBRARIES):
        raise error
    if number < tries and may_pass(error):
        return
    _give_up(error, verb, place, number, time.monotonic() - began)


def _give_up(error: Exception, verb: str, place: str, number: int, seconds: float) -> NoReturn:
    text = str(error.__cause__ if str(error) in ("", "None") and error.__cause__ else error)
    place, told = without_secrets(place), f"{type(error).__name__}: {' '.join(text.split())}".rstrip(".")
    told = without_secrets(told)
    if isinstance(error, FINAL) and not isinstance(error, PermissionError):
        raise error
    if isinstance(error, PermissionError):
        raise PermissionError(
            f"{place} could not be {verb}: access was refused ({told}). Check the credentials and their permissions."
        ) from error
    often = "once" if number == 1 else f"{number} times in {seconds:.1f} s"
    way_out = "Make the same call again when the store is well: a pass with an archive resumes from its checkpoints"
    if not may_pass(error):
        way_out = "Check the address, the endpoint and the credentials"
    raise StoreError(f"{place} could not be {verb}; tried {often}, at last {told}. {way_out}.") from error


def may_pass(error: BaseException) -> bool:
    """Tell whether the same request may succeed later."""
    if {kind.__name__ for kind in type(error).__mro__} & NO_ANSWER:
        return True
    status, code = _answer(error)
    if status is not None:
        return status in STATUS or code in CODES
    return isinstance(error, OSError) and not isinstance(error, FINAL)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of the response behind an error, if there was one."""
    return _answer(error)[0]


def _answer(error: BaseException) -> tuple[int | None, str]:
    """Return the HTTP status and the error code of the response behind an error, if there was one."""
    found: BaseException | None = error
    while found is not None:
        response: Any = getattr(found, "response", None)
        if isinstance(response, dict):  # botocore
            code = str(response.get("Error", {}).get("Code", ""))
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return (int(status) if status else None), code
        for name in ("status", "status_code", "code"):  # aiohttp, azure, gcsfs
            status = getattr(found, name, None)
            if isinstance(status, int) and 100 <= status < 600:
                return status, ""
        found = found.__cause__
    return None, ""


def _library(error: Exception) -> str:
    return type(error).__module__.split(".")[0]
