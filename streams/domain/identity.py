"""Identity of a message: 80 bits that follow it through moves, copies and UIDVALIDITY changes.

The identity is the message id: `message_id` is its text form, so every event can name the message from the mirror
alone. Eighty bits keep the chance that any two of a million messages of an account share one under 10^-12. Which
basis is used is fixed for an account when it is first seen (`choose_basis`), because mixing bases would give one
message two ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Set
from datetime import datetime
from typing import Final, Literal

Basis = Literal["email_id", "gm_msgid", "content"]

IDENTITY_BYTES: Final = 10


def choose_basis(capabilities: Set[str]) -> Basis:
    """Strongest identity a server offers: EMAILID (RFC 8474), X-GM-MSGID, else what the message is made of."""
    if "OBJECTID" in capabilities:
        return "email_id"
    if "X-GM-EXT-1" in capabilities:
        return "gm_msgid"
    return "content"


def identity_from_server_id(account_id: str, basis: Basis, server_id: str) -> bytes:
    """Identity of a message whose server names it (`EMAILID` or `X-GM-MSGID`)."""
    return _digest(account_id, basis, server_id.encode())


def identity_from_content(
    account_id: str, *, size: int | None, internal_date: datetime | None, canonical_headers: bytes, fallback: str
) -> bytes:
    """Identity from size, INTERNALDATE and header fields; a message with none of the fields is told by its place.

    `canonical_headers` is the stable form of the fields (empty when the message has none of them); `fallback` names the
    first place, ``mailbox id/uidvalidity/uid``.
    """
    stamp = "" if internal_date is None else str(int(internal_date.timestamp()))
    if not canonical_headers:
        return _digest(account_id, "place", fallback.encode())
    return _digest(account_id, "content", f"{'' if size is None else size}/{stamp}/".encode() + canonical_headers)


def message_id_of(identity: bytes) -> str:
    """Text form of an identity: 20 hexadecimal digits."""
    return identity.hex()


def _digest(account_id: str, basis: str, data: bytes) -> bytes:
    return hashlib.blake2b(
        data, digest_size=IDENTITY_BYTES, key=account_id.encode()[:64], person=basis.encode()[:16]
    ).digest()
