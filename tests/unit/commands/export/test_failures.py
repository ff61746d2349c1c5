"""What an export makes of a destination that fails: errors of object stores are none of this program's faults."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from streams.commands.export.failures import DestinationFailed, DestinationRefused, http_status, judged
from streams.contracts.commands import CommandFailure, CommandSuccess
from tests.scripted_imap.server import QRESYNC, ImapServer, Profile
from tests.unit.commands.export.test_export import account, export, exporting
from tests.unit.commands.rig import RETRY

SECRET = "https://store.example/bucket?signature=c2VjcmV0"


def raised(name: str, base: type[Exception] = Exception, **attributes: Any) -> Exception:
    """An error as a library raises it: of a type and with attributes of its own, and a text that tells too much."""
    error: Exception = type(name, (base,), {"__module__": "store.errors"})(SECRET)
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def botocore(status: int) -> Exception:
    return raised("ClientError", response={"Error": {"Code": "X"}, "ResponseMetadata": {"HTTPStatusCode": status}})


REFUSED = {
    "botocore 403": botocore(403),
    "botocore without keys": raised("NoCredentialsError"),
    "botocore arguments": raised("ParamValidationError"),
    "s3fs, no such bucket": caused(FileNotFoundError("The specified bucket does not exist"), botocore(404)),
    "gcsfs 401": raised("HttpError", code="401"),
    "google without keys": raised("DefaultCredentialsError"),
    "azure 403": raised("HttpResponseError", status_code=403),
    "azure sign-in": raised("ClientAuthenticationError"),
    "paramiko sign-in": raised("AuthenticationException"),
    "aiohttp 405": raised("ClientResponseError", status=405),
    "a store that only reads": NotImplementedError(),
    "a system without rights": PermissionError(errno.EACCES, "Permission denied"),
    "a system that only reads": OSError(errno.EROFS, "Read-only file system"),
}
FAILED = {
    "botocore 503": botocore(503),
    "botocore without an answer": raised("EndpointConnectionError"),
    "s3fs slow down": caused(OSError(errno.EBUSY, "slow"), botocore(503)),
    "gcsfs 429": raised("HttpError", code=429),
    "google token service": raised("RefreshError"),
    "azure without an answer": raised("ServiceRequestError"),
    "aiohttp disconnected": raised("ServerDisconnectedError"),
    "fsspec": raised("FSTimeoutError", TimeoutError),
    "a full disk": OSError(errno.ENOSPC, "No space left on device"),
    "a fault of the library": TypeError(SECRET),
    "a number that is no status": raised("StoreError", code=7),
}


@pytest.mark.parametrize("what", REFUSED)
def test_w14_what_only_people_can_cure_is_refused(what: str) -> None:
    verdict = judged(REFUSED[what])
    assert isinstance(verdict, DestinationRefused), verdict
    assert "secret" not in str(verdict)
    assert SECRET not in str(verdict)


@pytest.mark.parametrize("what", FAILED)
def test_w14_what_may_pass_is_tried_again(what: str) -> None:
    verdict = judged(FAILED[what])
    assert isinstance(verdict, DestinationFailed), verdict
    assert SECRET not in str(verdict)


def test_a_status_is_found_where_libraries_put_it() -> None:
    class Response:
        status_code = 412

    assert http_status(raised("E", response=Response())) == 412
    assert http_status(raised("E", status=True)) is None
    assert http_status(raised("E", code="NoSuchKey")) is None
    assert http_status(raised("E", response={"ResponseMetadata": None})) is None


class FailingStore(MemoryFileSystem):  # type: ignore[misc]
    """A store whose first writes fail."""

    protocol = "failing"
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    errors: ClassVar[list[Exception]] = []

    def pipe_file(self, path: str, value: bytes, **rest: Any) -> None:
        """Store it, or raise the next error."""
        if self.errors:
            raise self.errors.pop(0)
        super().pipe_file(path, value, **rest)


@pytest.fixture
def failing_store() -> Iterator[type[FailingStore]]:
    fsspec.register_implementation("failing", FailingStore, clobber=True)
    FailingStore.store.clear()
    FailingStore.errors.clear()
    yield FailingStore
    FailingStore.errors.clear()


async def test_w14_an_export_outlasts_a_store_that_is_busy(failing_store: type[FailingStore]) -> None:
    failing_store.errors[:] = [botocore(503), raised("ServerDisconnectedError")]
    async with ImapServer([account()], Profile(QRESYNC)) as server, exporting(server, "failing://bucket") as rig:
        success = await export(rig, to="out")
        assert isinstance(success, CommandSuccess), success
        assert (success.attempt, success.result["messages"]) == (3, 6)
        assert rig.observer.counts["retried", "export", "destination_failed"] == 2
        assert not rig.letters()


async def test_w14_an_export_that_a_store_refuses_is_concluded_at_once(failing_store: type[FailingStore]) -> None:
    failing_store.errors[:] = [raised("HttpError", code=403)] * 9
    async with ImapServer([account()], Profile(QRESYNC)) as server, exporting(server, "failing://bucket") as rig:
        failure = await export(rig, to="out")
        assert isinstance(failure, CommandFailure)
        assert (failure.code, failure.retryable, failure.attempts) == ("destination_refused", False, 1)
        assert failure.message == "the destination may not be written (HttpError, status 403)"
        assert not rig.letters()


async def test_a_store_that_stays_away_is_told_to_the_sender(failing_store: type[FailingStore]) -> None:
    failing_store.errors[:] = [raised("EndpointConnectionError")] * 99
    async with ImapServer([account()], Profile(QRESYNC)) as server, exporting(server, "failing://bucket") as rig:
        failure = await export(rig, to="out")
        assert isinstance(failure, CommandFailure)
        assert (failure.code, failure.retryable, failure.attempts) == ("destination_failed", True, RETRY.retries + 1)
        assert not rig.letters()
