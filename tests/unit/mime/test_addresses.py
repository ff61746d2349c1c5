"""Address lists as people, programs and attackers write them."""

from __future__ import annotations

import pytest

from streams.mime import Address, HeaderLimits
from streams.mime.addresses import parse_addresses

LIMITS = HeaderLimits()


def read(value: str) -> tuple[list[tuple[str | None, str | None]], set[str]]:
    defects: set[str] = set()
    return [(entry.name, entry.address) for entry in parse_addresses(value, LIMITS, defects)], defects


@pytest.mark.parametrize(
    ("value", "entries"),
    [
        ("a@example.org", [(None, "a@example.org")]),
        ("<a@example.org>", [(None, "a@example.org")]),
        ("A B <a@example.org>", [("A B", "a@example.org")]),
        ('"B, A" <a@example.org>', [("B, A", "a@example.org")]),
        (r'"A \"the\" B" <a@example.org>', [('A "the" B', "a@example.org")]),
        ('A "the" B <a@example.org>', [("A the B", "a@example.org")]),
        ("\"'A B'\" <a@example.org>", [("A B", "a@example.org")]),
        ("'a@example.org' <a@example.org>", [("a@example.org", "a@example.org")]),
        ("a@example.org (A B)", [("A B", "a@example.org")]),
        ("A (the B) C <a@example.org>", [("A C", "a@example.org")]),
        ("a@example.org ((nested) comment)", [("(nested) comment", "a@example.org")]),
        ("A <a@example.org>, b@example.org", [("A", "a@example.org"), (None, "b@example.org")]),
        ("A <a@example.org>; b@example.org", [("A", "a@example.org"), (None, "b@example.org")]),
        (" , a@example.org,, ", [(None, "a@example.org")]),
        ("<@r1.example,@r2.example:a@example.org>", [(None, "a@example.org")]),
        ("a @ example . org", [(None, "a@example.org")]),
        ("A <a@ example.org>", [("A", "a@example.org")]),
        ('"quoted local"@example.org', [(None, '"quoted local"@example.org')]),
        ("a@[192.0.2.1]", [(None, "a@[192.0.2.1]")]),
        ("A <a@[IPv6:2001:db8::1]>", [("A", "a@[IPv6:2001:db8::1]")]),
        ("J. R. Smith <a@example.org>", [("J. R. Smith", "a@example.org")]),
        ("mailto:a@example.org", [(None, "a@example.org")]),
        ("just a name", [("just a name", None)]),
        ("a name a@example.org", [("a name", "a@example.org")]),
        ("dörte@exämple.org", [(None, "dörte@exämple.org")]),
        ("<>", []),
        ("", []),
        (" ", []),
    ],
)
def test_forms_of_addresses(value: str, entries: list[tuple[str | None, str | None]]) -> None:
    assert read(value) == (entries, set())


@pytest.mark.parametrize(
    ("value", "addresses"),
    [
        ("undisclosed-recipients:;", []),
        ("Undisclosed recipients: ;", []),
        ("team: a@example.org, B <b@example.org>;", ["a@example.org", "b@example.org"]),
        ("team: a@example.org;, c@example.org", ["a@example.org", "c@example.org"]),
        ("one: a@example.org; two: b@example.org;", ["a@example.org", "b@example.org"]),
        ("never closed: a@example.org", ["a@example.org"]),
    ],
)
def test_groups_are_flattened(value: str, addresses: list[str]) -> None:
    assert [address for _, address in read(value)[0]] == addresses


def test_structure_is_found_before_words_are_decoded() -> None:
    # The comma and the brackets are inside encoded words: they address nobody.
    assert read("=?utf-8?Q?Doe=2C_Joe_=3Cx=40evil.example=3E?= <joe@example.org>")[0] == [
        ("Doe, Joe <x@evil.example>", "joe@example.org")
    ]
    # And unescaped, as the RFC forbids.
    assert read("=?utf-8?Q?Doe,_Joe?= <joe@example.org>, b@example.org")[0] == [
        ("Doe, Joe", "joe@example.org"),
        (None, "b@example.org"),
    ]
    assert read('"=?utf-8?B?w4k=?= X" <e@example.org>')[0] == [("É X", "e@example.org")]


@pytest.mark.parametrize(
    "value",
    ['"never closed <a@example.org>, b@example.org', "A (never closed <a@example.org>, b@example.org"],
)
def test_what_is_never_closed_does_not_swallow_the_rest(value: str) -> None:
    assert [address for _, address in read(value)[0]] == ["a@example.org", "b@example.org"]


def test_an_angle_that_is_never_closed_ends_at_the_comma() -> None:
    assert read("A <a@example.org, b@example.org") == (
        [("A", "a@example.org"), (None, "b@example.org")],
        {"address"},
    )


def test_case_95_nested_comments_are_counted_not_recursed_into() -> None:
    entries, defects = read("(" * 60 + ")" * 60 + " a@example.org")
    assert entries[-1][1] == "a@example.org"
    assert defects == set()
    entries, defects = read("(" * 6_000 + ")" * 6_000 + " a@example.org, b@example.org")
    assert [address for _, address in entries][-1] == "b@example.org"
    assert defects == {"comment_depth", "value_length"}


def test_case_95_the_list_ends_at_the_limit() -> None:
    defects: set[str] = set()
    value = ", ".join(f"N {number} <a{number}@example.org>" for number in range(8_000))
    assert len(parse_addresses(value, LIMITS, defects)) == LIMITS.max_addresses
    assert defects == {"too_many_addresses"}
    defects.clear()
    value = ", ".join(f"N {number} (c) <a{number}@example.org>" for number in range(8_000))
    assert len(parse_addresses(value, LIMITS, defects)) == LIMITS.max_addresses
    assert defects == {"too_many_addresses"}


def test_the_fast_reader_and_the_scanner_agree() -> None:
    plain = 'A B <a@example.org>, "C, D" <c@example.org>, e@example.org'
    # A comment at the front sends all of the list to the scanner.
    assert (
        parse_addresses("()" + plain, LIMITS, set())
        == parse_addresses(plain, LIMITS, set())
        == (
            Address("A B", "a@example.org"),
            Address("C, D", "c@example.org"),
            Address(None, "e@example.org"),
        )
    )
