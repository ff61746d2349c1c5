"""What comes right behind the tagged answer to EXAMINE belongs to the mailbox that it opened."""

from __future__ import annotations

import pytest

from streams.errors import MailboxError, MalformedAnswer
from tests.scripted_imap.script import LOGIN_DIALOGUE, ScriptedServer
from tests.unit.imap.dialling import logged_in

OPENED = b"* 10 EXISTS\r\n* OK [UIDVALIDITY 1] x\r\n* OK [UIDNEXT 11] x\r\n%T% OK [READ-ONLY] open\r\n"
BEHIND = b"* 11 EXISTS\r\n* 11 FETCH (UID 11 FLAGS (\\Seen))\r\n* VANISHED 3\r\n* 5 EXPUNGE\r\n"


async def test_case_28_lines_in_the_same_packet_as_the_tagged_answer_are_kept() -> None:
    """EXISTS, FETCH, VANISHED and EXPUNGE behind the tagged OK, in one read with it."""
    async with ScriptedServer((*LOGIN_DIALOGUE, r"EXAMINE", OPENED + BEHIND)) as server, logged_in(server) as session:
        selected = await session.examine(b"INBOX")
        assert selected.exists == 10
        await session_told(session)
        changes = session.take_changes()
        assert changes.exists == 9
        assert set(changes.vanished) == {3}
        assert changes.expunged == 1
        assert changes.fetched[11].flags == frozenset({b"\\Seen"})


async def session_told(session: object) -> None:
    """The rest of a read is handled in the same turn of the loop as the answer; nothing has to be waited for."""
    assert session.pending_changes  # type: ignore[attr-defined]


async def test_what_was_collected_about_the_mailbox_before_is_dropped() -> None:
    """Only what follows the second tagged OK is told, and the first mailbox's EXISTS is not taken for the second's."""
    script = (*LOGIN_DIALOGUE, r"EXAMINE", OPENED + b"* 77 EXISTS\r\n", r"EXAMINE", OPENED + b"* 12 EXISTS\r\n")
    async with ScriptedServer(script) as server, logged_in(server) as session:
        await session.examine(b"INBOX")
        await session.examine(b"Work")
        assert session.take_changes().exists == 12
        assert session.exists == 12


async def test_a_refused_examine_leaves_the_session_usable() -> None:
    """NO and an answer without EXISTS: the stream goes on, nothing is selected."""
    script = (
        *LOGIN_DIALOGUE,
        r"EXAMINE",
        b"%T% NO not this one\r\n",
        r"EXAMINE",
        b"* OK [UIDVALIDITY 1] x\r\n%T% OK open\r\n",
        r"EXAMINE",
        OPENED,
    )
    async with ScriptedServer(script) as server, logged_in(server) as session:
        with pytest.raises(MailboxError):
            await session.examine(b"a")
        assert session.selected is None
        with pytest.raises(MalformedAnswer):
            await session.examine(b"b")
        assert session.selected is None
        assert (await session.examine(b"c")).exists == 10
        assert session.selected == b"c"
