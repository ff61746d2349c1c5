"""The canonical form that identities are hashed from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.mime import IDENTITY_FIELDS, canonical_identity

BLOCK = (
    b"Message-ID: <one@example.org>\r\n"
    b"From: A <a@example.org>\r\n"
    b"To: b@example.org, c@example.org\r\n"
    b"Subject: hello there\r\n"
    b"References: <x@y> <z@y>\r\n"
)


def test_the_form_itself_is_fixed() -> None:
    # Stored identities are made of these bytes.
    assert canonical_identity(BLOCK) == (
        b"message-id:<one@example.org>\n"
        b"from:A <a@example.org>\n"
        b"to:b@example.org, c@example.org\n"
        b"subject:hello there\n"
        b"references:<x@y> <z@y>\n"
    )
    assert IDENTITY_FIELDS == ("message-id", "from", "to", "cc", "subject", "date", "references", "in-reply-to")


@pytest.mark.parametrize(
    "raw",
    [
        BLOCK.replace(b"\r\n", b"\n"),
        BLOCK.replace(b"\r\n", b"\r"),
        BLOCK + b"\r\nbody",
        BLOCK.replace(b" ", b"\r\n  "),
        BLOCK.replace(b" ", b"\r\n\t"),
        BLOCK.replace(b"From", b"FROM").replace(b"Message-ID", b"message-id"),
        b"".join(reversed(BLOCK.splitlines(keepends=True))),
        b"Received: from nowhere\r\n by nothing\r\nX-Spam: no\r\n" + BLOCK,
        BLOCK.replace(b"Subject: ", b"Subject :  "),
    ],
)
def test_stable_under_what_servers_do(raw: bytes) -> None:
    assert canonical_identity(raw) == canonical_identity(BLOCK)


def test_absent_is_not_empty() -> None:
    assert canonical_identity(b"From: a\r\n") != canonical_identity(b"From: a\r\nSubject:\r\n")


@pytest.mark.parametrize("raw", [b"", b"\r\n", b"  \r\n \r\n", b"\0", b"X-Other: x\r\n"])
def test_case_46_nothing_to_go_by(raw: bytes) -> None:
    assert canonical_identity(raw) == b""


def test_case_91_two_mails_without_message_id_differ_by_the_rest() -> None:
    assert canonical_identity(b"From: a\r\nSubject: 1\r\n") != canonical_identity(b"From: a\r\nSubject: 2\r\n")


def test_bytes_are_kept() -> None:
    assert canonical_identity(b"Subject: \xe9\0\xff\r\n") == b"subject:\xe9\0\xff\n"
    # Bytes that are white space as Latin-1 characters: the second ones of UTF-8 "à" and "Å".
    assert canonical_identity("Subject: à Å b".encode()) == "subject:à Å b\n".encode()
    assert canonical_identity(b"Subject: a\x1cb") == b"subject:a\x1cb\n"


NAMES = st.sampled_from(
    [b"Message-ID", b"FROM", b"to", b"Cc", b"Subject", b"Date", b"References", b"X-Other", b"junk line"]
)
BODIES = st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b"")), max_size=4)


@given(st.lists(st.tuples(NAMES, BODIES), max_size=10))
def test_idempotent_and_stable_under_refolding(fields: list[tuple[bytes, list[bytes]]]) -> None:
    flat = b"".join(name + b": " + b" ".join(body) + b"\r\n" for name, body in fields)
    folded = b"".join(name + b":\r\n  " + b"\r\n\t ".join(body) + b"\r\n" for name, body in fields)
    canonical = canonical_identity(flat)
    assert canonical_identity(canonical) == canonical
    assert canonical_identity(folded) == canonical


@given(st.binary(max_size=400))
def test_idempotent_on_anything(raw: bytes) -> None:
    canonical = canonical_identity(raw)
    assert canonical_identity(canonical) == canonical


@given(st.text(" \tab.=\xe9\xa0\x85\x7f", max_size=12))
def test_runs_of_blanks_are_one_blank(body: str) -> None:
    raw = body.encode("latin-1")
    assert canonical_identity(b"Subject:" + raw + b"\r\n") == b"subject:" + b" ".join(raw.split()) + b"\n"
