"""Exports: arguments, names, formats, groups, and where files may go."""

from __future__ import annotations

import mailbox
import string
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.commands.export.arguments import Export, parse_uids
from streams.commands.export.destination import Destination
from streams.commands.export.failures import DestinationRefused
from streams.commands.export.formats import ExportedMessage, eml_name, maildir_name, mbox_file
from streams.commands.export.handler import Exporter
from streams.commands.export.names import MAX_BYTES, directory_name
from streams.commands.export.planning import groups, uid_set
from streams.errors import ConfigurationError

AT = datetime(2024, 2, 3, 4, 5, 6, tzinfo=UTC)


def message(raw: bytes, uid: int = 7, flags: frozenset[bytes] = frozenset()) -> ExportedMessage:
    return ExportedMessage(3, uid, AT, flags, raw)


# --- arguments ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "arguments",
    [
        {"uids": "1:5"},
        {"uids": "0", "mailboxes": ["INBOX"]},
        {"uids": "1:99999999999", "mailboxes": ["INBOX"]},
        {"uids": "1:*", "mailboxes": ["INBOX"]},
        {"uidvalidity": 3},
        {"since": "2024-02-02", "before": "2024-02-02"},
        {"to": "../elsewhere"},
        {"to": ".hidden"},
        {"to": "a/b"},
        {"format": "pst"},
        {"mailbx": "INBOX"},
    ],
)
def test_arguments_that_mean_nothing_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(arguments, Export)


def test_criteria_are_in_the_language_of_imap() -> None:
    assert (
        Export(since=date(2024, 2, 1), before=date(2024, 12, 31)).criteria() == b"SINCE 1-Feb-2024 BEFORE 31-Dec-2024"
    )
    assert Export().criteria() == b"ALL"


def test_the_digest_is_of_what_is_exported_and_not_of_where_to() -> None:
    assert Export(to="a").digest() == Export(to="b").digest() != Export(format="mbox").digest()


def test_uid_sets_are_read_either_way_round() -> None:
    assert list(parse_uids("5:3,9,1")) == [1, 3, 4, 5, 9]


# --- names ----------------------------------------------------------------------------------------------------------
@given(st.text(min_size=1, max_size=300))
def test_property_a_mailboxs_directory_is_one_harmless_segment(name: str) -> None:
    made = directory_name(name)
    assert 0 < len(made.encode()) <= MAX_BYTES
    assert not set(made) & set("/\\\0\r\n")
    assert not made.startswith((".", " "))
    assert made not in ("", ".", "..")


@given(st.lists(st.text(string.ascii_letters + "./ ~_é", min_size=1, max_size=8), min_size=2, unique=True))
def test_property_different_mailboxes_have_different_directories_even_without_case(names: list[str]) -> None:
    made = [directory_name(name).casefold() for name in names]
    assert len(set(made)) == len(made)


def test_names_stay_readable() -> None:
    assert directory_name("INBOX") == "INBOX"
    assert directory_name("receipts 2024") == "receipts 2024"
    assert directory_name("../../etc/passwd").startswith("etc.passwd~")


# --- formats --------------------------------------------------------------------------------------------------------
bodies = st.lists(st.sampled_from([b"From me", b">From me", b"", b"x", b"\xff\x00", b"From: a"]), max_size=8).map(
    b"\r\n".join
)


@given(st.lists(bodies, min_size=1, max_size=5))
def test_property_mbox_is_read_back_by_the_standard_library(
    tmp_path_factory: pytest.TempPathFactory, texts: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("mbox") / "box.mbox"
    path.write_bytes(mbox_file(message(b"Subject: s\r\n\r\n" + text) for text in texts))
    box = mailbox.mbox(str(path), create=False)
    try:
        read = [box.get_bytes(key) for key in box.keys()]  # noqa: SIM118 - not a dictionary
    finally:
        box.close()
    assert len(read) == len(texts)
    for raw, text in zip(read, texts, strict=True):
        body = raw.split(b"\n\n", 1)[1] if b"\n\n" in raw else b""
        unquoted = b"\n".join(
            line[1:] if line.lstrip(b">").startswith(b"From ") and line.startswith(b">") else line
            for line in body.split(b"\n")
        )
        assert unquoted.rstrip(b"\n") == text.replace(b"\r\n", b"\n").rstrip(b"\n")


def test_mbox_separators_have_the_date_of_arrival() -> None:
    assert mbox_file([message(b"A: b\r\n\r\nx")]) == b"From MAILER-DAEMON Sat Feb  3 04:05:06 2024\nA: b\n\nx\n\n"


def test_maildir_names_carry_flags_in_order_and_size() -> None:
    flags = frozenset({b"\\Seen", b"\\Answered", b"\\Flagged", b"$Label1"})
    assert maildir_name(message(b"abc", flags=flags)) == "1706933106.V3U7.mailstreams,S=3:2,FRS"
    assert eml_name(message(b"abc")) == "3.7.eml"


# --- groups ---------------------------------------------------------------------------------------------------------
@given(
    sizes=st.lists(st.integers(0, 30), max_size=60),
    max_messages=st.integers(1, 10),
    max_bytes=st.integers(1, 40),
)
def test_property_groups_keep_order_and_limits(sizes: list[int], max_messages: int, max_bytes: int) -> None:
    numbered = list(enumerate(sizes, 1))
    made = list(groups(numbered, max_messages=max_messages, max_bytes=max_bytes))
    assert [uid for group in made for uid in group] == [uid for uid, _ in numbered]
    for group in made:
        assert 0 < len(group) <= max_messages
        assert len(group) == 1 or sum(sizes[uid - 1] for uid in group) <= max_bytes


@given(st.sets(st.integers(1, 60)))
def test_property_uid_sets_say_what_they_are_made_of(uids: set[int]) -> None:
    text = uid_set(sorted(uids))
    assert set(parse_uids(text) if text else ()) == uids


# --- destination ----------------------------------------------------------------------------------------------------
def test_files_are_written_whole_below_the_root(tmp_path: Path) -> None:
    destination = Destination.below(str(tmp_path), ("account", "export"))
    assert destination.write(("box", "1.eml"), b"one", durable=True) == "box/1.eml"
    assert (tmp_path / "account/export/box/1.eml").read_bytes() == b"one"
    assert destination.names(("box",)) == ["1.eml"]
    assert destination.read(("box", "1.eml")) == b"one"
    assert destination.read(("box", "2.eml")) is None
    assert destination.names(("nothing",)) == []


def test_object_stores_work_the_same() -> None:
    destination = Destination.below("memory://bucket/exports", ("account", "export"))
    destination.write(("box", "1.eml"), b"one")
    assert destination.read(("box", "1.eml")) == b"one"
    assert destination.names(("box",)) == ["1.eml"]
    assert destination.shown == "memory:///bucket/exports/account/export"


@pytest.mark.parametrize("segments", [("..", "x"), ("a/b",), ("",), (".",), ("a\\b",), ("a\0b",)])
def test_nothing_leads_out_of_the_directory(tmp_path: Path, segments: tuple[str, ...]) -> None:
    destination = Destination.below(str(tmp_path), ("account",))
    with pytest.raises(ValueError, match="no name of a file"):
        destination.write(segments, b"")


def test_a_link_that_leads_out_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "root/account").mkdir(parents=True)
    (tmp_path / "root/account/box").symlink_to(tmp_path / "outside")
    destination = Destination.below(str(tmp_path / "root"), ("account",))
    with pytest.raises(DestinationRefused):
        destination.write(("box", "1.eml"), b"")
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("url", ["ftp://user:s3cr3t/mail", "ftp://user:s3cr3t/9@host/mail", "github://"])
def test_w1_an_address_that_is_none_is_a_configuration_error_without_its_password(url: str) -> None:
    """A password with a slash in it ends the host's part of the address."""
    with pytest.raises(ConfigurationError, match="EXPORT_DIR") as caught:
        Exporter(cast(Any, None), url, max_message_bytes=1)
    assert "s3cr3t" not in str(caught.value)


def test_w1_a_destination_that_may_not_be_used_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="EXPORT_DIR"):
        Exporter(cast(Any, None), f"zip://{tmp_path}", max_message_bytes=1)


def test_s16_a_store_that_is_away_does_not_keep_the_process_from_starting() -> None:
    Exporter(cast(Any, None), "ftp://127.0.0.1:1/mail", max_message_bytes=1)


def test_w1_a_destination_nobody_knows_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="EXPORT_DIR"):
        Destination.below("nosuchprotocol://bucket", ())
