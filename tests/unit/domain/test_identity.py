"""Identity: the same message has the same id wherever it is, others have others, and it never leaves its account."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.domain.identity import (
    IDENTITY_BYTES,
    choose_basis,
    identity_from_content,
    identity_from_server_id,
    message_id_of,
)

A, B = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
WHEN = datetime(2026, 11, 30, 10, 0, tzinfo=UTC)


def content(account: str = A, size: int | None = 10, when: datetime | None = WHEN, headers: bytes = b"h") -> bytes:
    return identity_from_content(account, size=size, internal_date=when, canonical_headers=headers, fallback="m/7/1")


@pytest.mark.parametrize(
    ("capabilities", "basis"),
    [
        ({"OBJECTID", "X-GM-EXT-1"}, "email_id"),
        ({"X-GM-EXT-1", "CONDSTORE"}, "gm_msgid"),
        ({"CONDSTORE"}, "content"),
        (set(), "content"),
    ],
)
def test_the_strongest_basis_on_offer(capabilities: set[str], basis: str) -> None:
    assert choose_basis(capabilities) == basis


def test_zones_do_not_matter_and_everything_else_does() -> None:
    """INTERNALDATE is a moment; a server may show it in another zone after a move."""
    assert content(when=WHEN.astimezone(timezone(timedelta(hours=5, minutes=30)))) == content()
    others = [content(B), content(size=11), content(size=None), content(when=None), content(headers=b"i")]
    assert len({content(), *others}) == 6


def test_case_46_a_message_without_headers_is_told_by_its_place() -> None:
    one = identity_from_content(A, size=0, internal_date=WHEN, canonical_headers=b"", fallback="m/7/1")
    two = identity_from_content(A, size=0, internal_date=WHEN, canonical_headers=b"", fallback="m/7/2")
    assert one != two


def test_bases_do_not_meet() -> None:
    """An EMAILID that reads like an X-GM-MSGID is another identity."""
    assert identity_from_server_id(A, "email_id", "17") != identity_from_server_id(A, "gm_msgid", "17")
    assert identity_from_server_id(A, "email_id", "17") != identity_from_server_id(B, "email_id", "17")


@given(st.binary(min_size=IDENTITY_BYTES, max_size=IDENTITY_BYTES))
def test_the_text_form_is_short_and_unique(identity: bytes) -> None:
    text = message_id_of(identity)
    assert len(text) == 2 * IDENTITY_BYTES
    assert bytes.fromhex(text) == identity


@given(st.lists(st.tuples(st.integers(0, 2**40), st.binary(min_size=1, max_size=40)), unique=True, max_size=50))
def test_different_messages_differ(messages: list[tuple[int, bytes]]) -> None:
    found = {content(size=size, headers=headers) for size, headers in messages}
    assert len(found) == len(messages)
    assert all(len(identity) == IDENTITY_BYTES and any(identity) for identity in found)
