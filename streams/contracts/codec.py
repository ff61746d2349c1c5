"""Records to bytes and back, with the headers that travel beside them.

Values are JSON. Headers out are CloudEvents in Kafka's binary mode (`ce_*`) plus ours; headers in are optional.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

import msgspec

from streams.errors import PoisonRecord

R = TypeVar("R", bound=msgspec.Struct)
Headers = list[tuple[str, bytes]]

MAX_INBOUND_BYTES: Final = 262_144
"""Control records and commands are small; what is larger is a mistake and goes to the dead letters."""

MAX_HEADER_BYTES: Final = 16_384
"""Headers of a record that are kept when it is sent on or becomes a dead letter. Compressed, a record that Kafka took
may be larger than any that can be written again."""

MAX_KEY_BYTES: Final = 1024
"""What is kept of the key of a dead letter; ids are far shorter."""

_ENCODER: Final = msgspec.json.Encoder()


def encode(record: msgspec.Struct) -> bytes:
    """JSON bytes of a record. Raises `ValueError` for text that is not valid Unicode."""
    return _ENCODER.encode(record)


class Decoder(Generic[R]):
    """Decodes values of one record type, turning every failure into a `PoisonRecord` with its reason."""

    def __init__(self, record_type: Any, *, max_bytes: int = MAX_INBOUND_BYTES) -> None:
        self._decoder: msgspec.json.Decoder[R] = msgspec.json.Decoder(record_type)
        self._max_bytes = max_bytes

    def __call__(self, value: bytes) -> R:
        """Decode `value`. Raises `PoisonRecord` (`too_large`, `not_json`, `schema`); its text quotes no content."""
        if len(value) > self._max_bytes:
            raise PoisonRecord("too_large", f"{len(value)} bytes, at most {self._max_bytes} are allowed")
        try:
            return self._decoder.decode(value)
        except msgspec.ValidationError as error:
            raise PoisonRecord("schema", str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PoisonRecord("not_json", str(error)[:200]) from None


def cloud_event_headers(*, event_id: str, event_type: str, source: str, at: datetime) -> Headers:
    """CloudEvents 1.0 attributes, Kafka protocol binding, binary content mode."""
    return [
        _SPECVERSION,
        ("ce_id", event_id.encode()),
        _type_header(event_type),
        _source_header(source),
        ("ce_time", _rfc3339(at)),
        _CONTENT_TYPE,
    ]


_SPECVERSION: Final = ("ce_specversion", b"1.0")
_CONTENT_TYPE: Final = ("content-type", b"application/json")


@lru_cache(maxsize=64)
def _type_header(event_type: str) -> tuple[str, bytes]:
    return ("ce_type", event_type.encode())


@lru_cache(maxsize=64)
def _source_header(source: str) -> tuple[str, bytes]:
    return ("ce_source", source.encode())


def _rfc3339(at: datetime) -> bytes:
    # msgspec writes the same text as `isoformat`, with Z for UTC, in a tenth of the time.
    return _ENCODER.encode(at if at.tzinfo is UTC else at.astimezone(UTC))[1:-1]


def header(headers: Iterable[tuple[str, bytes]] | None, name: str) -> bytes | None:
    """First header of that name, if any."""
    return next((value for key, value in headers or () if key == name), None)


def dead_letter_headers(
    *, topic: str, partition: int, offset: int, reason: str, error: str, original: Sequence[tuple[str, bytes]] = ()
) -> Headers:
    """Headers of a dead letter: where it came from and why it is here, after the headers it came with (the first ones,
    where there are too many)."""
    return [
        *_kept(header for header in original if not header[0].startswith("dlq_")),
        ("dlq_topic", topic.encode()),
        ("dlq_partition", str(partition).encode()),
        ("dlq_offset", str(offset).encode()),
        ("dlq_reason", reason.encode()),
        ("dlq_error", error[:1000].encode("utf-8", "replace")),
    ]


def dead_letter_key(key: bytes | None, headers: Headers) -> bytes | None:
    """The key of a dead letter. One that is too long is cut, and a header says so."""
    if key is None or len(key) <= MAX_KEY_BYTES:
        return key
    headers.append(("dlq_key_cut_from_bytes", str(len(key)).encode()))
    return key[:MAX_KEY_BYTES]


def check_sendable(headers: Sequence[tuple[str, bytes]]) -> None:
    """Whether a record can be sent on with its headers. Raises `PoisonRecord` (`too_large`)."""
    if len(_kept(headers)) < len(headers):
        raise PoisonRecord("too_large", f"its headers are over {MAX_HEADER_BYTES} bytes, and it has to be sent on")


def _kept(headers: Iterable[tuple[str, bytes]]) -> Headers:
    kept, size = [], 0
    for name, value in headers:
        size += len(name.encode("utf-8", "replace")) + len(value or b"")
        if size > MAX_HEADER_BYTES:
            break
        kept.append((name, value or b""))
    return kept
