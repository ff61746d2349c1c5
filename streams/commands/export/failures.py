"""What an error of a file system or an object store means for an export: never again, or later perhaps.

Object stores raise whatever their client libraries raise (`botocore`, `azure.core`, `gcsfs`, ...), most of it no
`OSError`. None of them is imported here: an error is judged by the HTTP status it carries, by its built-in type and by
its name. Invariants: every error gets a verdict, and no text of a foreign one leaves this module,
since it may quote addresses with signatures or keys in them.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping
from typing import Any, Final

import structlog

log = structlog.get_logger(__name__)

_LATER_STATUS: Final = frozenset({408, 409, 423, 425, 429})
"""Of the statuses 4xx (RFC 9110, RFC 6585) those which time alone may cure."""
_REFUSED_ERRNO: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP}
)
_REFUSED_KINDS: Final = (PermissionError, NotImplementedError, ValueError, ImportError)
_REFUSED_NAMES: Final = ("credential", "authentication", "authorization", "permission", "forbidden", "paramvalidation")
"""Parts of the names that libraries give to errors about rights, keys, and arguments that cannot be sent."""
_CHAIN_LIMIT: Final = 10


class DestinationRefused(Exception):
    """Nothing can be written until somebody changes something: rights, credentials, a bucket, a name."""


class DestinationFailed(Exception):
    """It does not work now; it may later."""


@contextlib.contextmanager
def destination_errors() -> Iterator[None]:
    """Whatever is raised inside comes out as `DestinationRefused` or `DestinationFailed`."""
    try:
        yield
    except (DestinationRefused, DestinationFailed):
        raise
    except Exception as error:  # whatever foreign libraries raise
        raise judged(error) from None


def judged(error: Exception) -> DestinationRefused | DestinationFailed:
    """The verdict on an error."""
    reason, refused = _reason(error), _refused(error)
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    log.warning("the destination of an export fails", kind=kind, reason=reason, final=refused)
    if refused:
        return DestinationRefused(f"the destination may not be written ({reason})")
    return DestinationFailed(f"the destination cannot be written ({reason})")


def _refused(error: Exception) -> bool:
    """A status decides, wherever in the chain of causes it is; else the first that is known for what it is."""
    chain = list(_chain(error))
    for link in chain:
        if (status := http_status(link)) is not None:
            return 400 <= status < 500 and status not in _LATER_STATUS
    for link in chain:
        if isinstance(link, OSError):
            return isinstance(link, PermissionError) or link.errno in _REFUSED_ERRNO
        if isinstance(link, _REFUSED_KINDS) or any(part in type(link).__name__.lower() for part in _REFUSED_NAMES):
            return True
    return False


def http_status(error: BaseException) -> int | None:
    """The HTTP status an error carries, in one of the ways in which libraries carry it."""
    response = getattr(error, "response", None)
    candidates = [getattr(error, "status", None), getattr(error, "status_code", None), getattr(error, "code", None)]
    if isinstance(response, Mapping):  # botocore.exceptions.ClientError
        metadata = response.get("ResponseMetadata")
        candidates.append(metadata.get("HTTPStatusCode") if isinstance(metadata, Mapping) else None)
    elif response is not None:
        candidates += [getattr(response, "status", None), getattr(response, "status_code", None)]
    return next((status for candidate in candidates if (status := _status(candidate)) is not None), None)


def _status(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 400 <= value < 600 else None


def _reason(error: Exception) -> str:
    """Words of the system, or the names of what was raised: nothing of a text that somebody else has written."""
    status = next((status for link in _chain(error) if (status := http_status(link)) is not None), None)
    if status is not None:
        return f"{type(error).__name__}, status {status}"
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return f"{type(error).__name__}, {errno.errorcode[error.errno]}"
    return type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(_CHAIN_LIMIT):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__
