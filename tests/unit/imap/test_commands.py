"""What we send: cases 57, 103, 104 and 107."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.imap.credentials import OAuthToken, Password, Secret
from streams.imap.protocol.commands import (
    Command,
    Literal,
    LiteralMode,
    UnsafeArgument,
    astring,
    encode,
    fetch_item,
    quoted,
    sequence_set,
)
from streams.imap.protocol.tokens import Cursor

names = st.binary(min_size=1, max_size=60)


@given(names)
def test_case_107_an_argument_is_one_argument_or_is_refused(name: bytes) -> None:
    if set(name) & set(b"\r\n\x00"):
        with pytest.raises(UnsafeArgument):
            astring(name)
        with pytest.raises(UnsafeArgument):
            Command("EXAMINE", (name,))
        return
    part = astring(name)
    (chunk,) = encode(b"T1", Command("EXAMINE", (part,)), LiteralMode.PLUS)
    assert chunk.startswith(b"T1 EXAMINE ")
    assert chunk.endswith(b"\r\n")
    if isinstance(part, Literal):
        assert chunk == b"T1 EXAMINE {%d+}\r\n%b\r\n" % (len(name), name)
    else:
        assert chunk.count(b"\r\n") == 1
        assert Cursor(chunk.removesuffix(b"\r\n"), 11).string() == name


@pytest.mark.parametrize("text", [b"*star", b"%", b"a b", b"", b'"', b"\\", b"{3}", b"(x)", b"NIL"])
def test_case_57_arguments_are_always_quoted(text: bytes) -> None:
    part = astring(text)
    assert isinstance(part, bytes)
    assert part.startswith(b'"')
    assert part.endswith(b'"')


def test_literals_wait_for_the_server_unless_it_takes_them_unasked() -> None:
    long, short = Literal(b"\xe9" * 5000), Literal(b"\xe9")
    command = Command("LOGIN", (short, long))
    assert encode(b"T", command, LiteralMode.SYNCHRONISING) == [
        b"T LOGIN {1}\r\n",
        b"\xe9 {5000}\r\n",
        long.data + b"\r\n",
    ]
    assert encode(b"T", command, LiteralMode.MINUS) == [b"T LOGIN {1+}\r\n\xe9 {5000}\r\n", long.data + b"\r\n"]
    assert encode(b"T", command, LiteralMode.PLUS) == [b"T LOGIN {1+}\r\n\xe9 {5000+}\r\n" + long.data + b"\r\n"]


@pytest.mark.parametrize("uids", ["1", "1:5", "1:*", "*", "1,5:7,*:9"])
def test_sets_that_may_be_sent(uids: str) -> None:
    assert sequence_set(uids) == uids.encode()


@pytest.mark.parametrize("uids", ["", "1,", "a", "1:2:3", "1 LOGOUT", "1\r\nA LOGOUT", "1\n", "-1", "١"])
def test_sets_that_may_not(uids: str) -> None:
    with pytest.raises(UnsafeArgument):
        sequence_set(uids)


@pytest.mark.parametrize(
    "item",
    [b"FLAGS", b"BODY.PEEK[]", b"BODY.PEEK[HEADER.FIELDS (FROM TO)]", b"BODY.PEEK[1.2.MIME]<0.2048>", b"RFC822.SIZE"],
)
def test_items_that_may_be_fetched(item: bytes) -> None:
    assert fetch_item(item) == item


@pytest.mark.parametrize(
    "item",
    [
        b"BODY[]",
        b"body[TEXT]",
        b"RFC822",
        b"RFC822.TEXT",
        b"BINARY[1]",
        b"FLAGS)",
        b"FLAGS UID",
        b"X\r\n",
        b"BODY.PEEK[\r\n]",
        b"",
    ],
)
def test_items_that_would_set_seen_or_are_none(item: bytes) -> None:
    with pytest.raises(UnsafeArgument):
        fetch_item(item)


def test_cases_103_104_nothing_shows_a_secret() -> None:
    canary = 'ca"na\\ry'
    secret = Secret(canary)
    for thing in (
        secret,
        Password("u", secret),
        OAuthToken("u", secret),
        Command("LOGIN", (quoted(canary.encode()),)),
    ):
        for text in (repr(thing), str(thing), f"{thing}", f"{thing!r:>30}"):
            assert "na" not in text.replace("username", "").replace("name", "")
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(UnsafeArgument) as caught:
        astring(b"canary\r\n")
    assert "canary" not in str(caught.value)
    assert secret != Secret(canary)
