"""Sessions with servers that answer oddly: cases 3 to 84 as far as one session sees them."""

from __future__ import annotations

import pytest

from streams.errors import AccessDenied, CommandTimedOut, MailboxError, MailboxUnusable, MalformedAnswer, RetryLater
from streams.imap.errors import CommandRejected
from streams.imap.values import Limits, Options, QResync
from tests.scripted_imap.bending import Drop, Pieces
from tests.scripted_imap.model import Account
from tests.scripted_imap.script import EXAMINE_DIALOGUE, LOGIN_DIALOGUE, ScriptedServer
from tests.scripted_imap.server import BARE, CONDSTORE, FULL, QRESYNC, ImapServer, Profile
from tests.unit.imap.dialling import PATIENT, QUICK, chunks, fetch, logged_in

SEEN = frozenset({b"\\Seen"})


def account(count: int = 5) -> Account:
    made = Account()
    for number in range(1, count + 1):
        made.mailboxes["INBOX"].deliver(f"Subject: {number}\r\n\r\nbody {number}".encode())
    return made


# --- what comes unasked --------------------------------------------------------------------------------------------


async def test_case_3_every_vanished_of_any_answer_is_kept() -> None:
    async with ImapServer([account(12)], QRESYNC) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend("UID FETCH", lambda answer: [b"* VANISHED 7\r\n", *answer[:1], b"* VANISHED 9:11\r\n", *answer[1:]])
        await fetch(session, "1:6", (b"FLAGS",))
        changes = session.take_changes()
        assert list(changes.vanished) == [7, 9, 10, 11]
        assert changes.exists == 8


@pytest.mark.parametrize("command", ["noop", "status", "search", "list", "fetch"])
async def test_case_3_nothing_unasked_is_lost_whatever_is_running(command: str) -> None:
    unasked = [
        b"* 9 FETCH (UID 9 FLAGS (\\Seen))\r\n",
        b"* 2 EXPUNGE\r\n",
        b"* VANISHED 4\r\n",
        b"* 33 EXISTS\r\n",
        b"* OK [ALERT] house on fire\r\n",
        b"* 3 FETCH (FLAGS (\\Seen))\r\n",
    ]
    async with ImapServer([account()], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend(r"NOOP|STATUS|SEARCH|LIST|FETCH", lambda answer: [*unasked, *answer])
        match command:
            case "noop":
                await session.noop()
            case "status":
                assert (await session.status(b"INBOX")).messages == 5
            case "search":
                assert list((await session.uid_search()).uids) == [1, 2, 3, 4, 5]
            case "list":
                assert len((await session.list_mailboxes()).mailboxes) == 1
            case _:
                assert [message.uid for message in await fetch(session, "1:5", (b"FLAGS",))] == [1, 2, 3, 4, 5]
        changes = session.take_changes()
        assert changes.exists == 33
        assert changes.expunged == 1
        assert list(changes.vanished) == [4]
        assert changes.fetched[9].flags == SEEN
        assert changes.unidentified == 1
        assert changes.alerts == ("house on fire",)
        assert not session.take_changes()


async def test_case_30_a_fetch_before_its_exists_is_accepted() -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend("NOOP", lambda answer: [b"* 9 FETCH (UID 9 FLAGS ())\r\n* 9 EXISTS\r\n", *answer])
        await session.noop()
        changes = session.take_changes()
        assert changes.fetched[9].flags == frozenset()
        assert changes.exists == 9


async def test_case_31_only_uids_that_were_asked_come_out() -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend("UID FETCH", lambda answer: [b"* 2 FETCH (UID 99 BODY[] {3}\r\nbad FLAGS ())\r\n", *answer])
        messages = await fetch(session, "2:3", (b"FLAGS", b"BODY.PEEK[]"))
        assert [message.uid for message in messages] == [2, 3]
        changes = session.take_changes()
        assert changes.fetched[99].sections == {}  # a body nobody asked for is not kept


async def test_case_31_a_range_with_a_star_takes_nothing_below_it() -> None:
    """RFC 3501: `100:*` names the highest message even when its UID is below 100."""
    async with ImapServer([account()], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        assert await fetch(session, "100:*", (b"FLAGS",)) == []
        assert 5 in session.take_changes().fetched


async def test_case_33_items_of_one_uid_are_merged_and_absent_ones_overwrite_nothing() -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend(
            "UID FETCH",
            lambda answer: [
                b"* 4 FETCH (UID 4 FLAGS (\\Seen))\r\n",
                b"* 4 FETCH (UID 4 RFC822.SIZE 12)\r\n",
                b"* 4 FETCH (UID 4 BODY[HEADER] {2}\r\n\r\n)\r\n",
                b"* 4 FETCH (UID 4 FLAGS (\\Seen \\Flagged))\r\n",
                answer[-1],
            ],
        )
        (message,) = await fetch(session, "4", (b"FLAGS", b"RFC822.SIZE", b"BODY.PEEK[HEADER]"))
        assert (message.size, message.sections) == (12, {b"HEADER": b"\r\n"})
        assert message.flags == SEEN | {b"\\Flagged"}


async def test_case_33_data_about_a_message_that_went_out_already_waits_with_the_changes() -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend("UID FETCH", lambda answer: [*answer[:-1], b"* 1 FETCH (UID 1 FLAGS (\\Seen))\r\n", answer[-1]])
        messages = await fetch(session, "1:5", (b"FLAGS",), chunk=1)
        assert [message.uid for message in messages] == [1, 2, 3, 4, 5]
        told = session.take_changes().fetched.get(1)
        assert (told.flags if told is not None else messages[0].flags) == SEEN


async def test_case_48_a_missing_item_comes_out_as_missing() -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend(
            "UID FETCH", lambda answer: [b"* 1 FETCH (UID 1)\r\n", b"* 2 FETCH (UID 2 RFC822 NIL)\r\n", answer[-1]]
        )
        messages = await fetch(session, "1:2", (b"BODY.PEEK[]", b"FLAGS"))
        assert [(message.uid, message.sections, message.flags) for message in messages] == [
            (1, {}, None),
            (2, {}, None),
        ]


async def test_case_10_a_server_that_never_tells_modseq_is_not_waited_for() -> None:
    async with ImapServer([account(3000)], CONDSTORE) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend(
            "UID FETCH",
            lambda answer: (
                [line.split(b" MODSEQ")[0].rstrip(b"\r\n)") + b"))\r\n" for line in answer[:-1]] + answer[-1:]
            ),
        )
        parts = await chunks(session, "1:*", (b"FLAGS", b"MODSEQ"), chunk=100)
        assert [message.uid for part in parts for message in part.messages] == list(range(1, 3001))
        assert all(len(part.messages) <= 100 for part in parts)


async def test_case_52_a_fetch_that_does_not_parse_costs_only_itself() -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend("UID FETCH", lambda answer: [answer[0], b"* 2 FETCH (((\r\n", *answer[2:]])
        parts = await chunks(session, "1:5", (b"FLAGS",))
        assert [message.uid for part in parts for message in part.messages] == [1, 3, 4, 5]
        assert [bad.uid for part in parts for bad in part.unreadable] == [None]
        assert session.alive


async def test_case_84_flags_by_sequence_number_wake_and_are_not_guessed() -> None:
    async with ImapServer([account()], CONDSTORE) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend("IDLE$", lambda answer: [*answer, b"* 3 FETCH (FLAGS (\\Seen))\r\n"], times=1)
        await session.idle(timeout_s=10)
        changes = session.take_changes()
        assert changes.unidentified == 1
        assert not changes.fetched


async def test_unasked_data_is_bounded_and_says_so() -> None:
    limits = Limits(max_unasked_fetches=10)
    async with ImapServer([account()], FULL) as server, logged_in(server, limits=limits, examine=b"INBOX") as session:
        server.bend(
            "NOOP", lambda answer: [*(b"* 1 FETCH (UID %d FLAGS ())\r\n" % uid for uid in range(1, 50)), *answer]
        )
        await session.noop()
        changes = session.take_changes()
        assert len(changes.fetched) == 10
        assert changes.overflowed


# --- opening -------------------------------------------------------------------------------------------------------


async def test_case_7_highestmodseq_0_means_none_yet() -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server) as session:
        server.bend(
            "EXAMINE",
            lambda answer: [b"* OK [HIGHESTMODSEQ 0] x\r\n", *(line for line in answer if b"HIGHEST" not in line)],
        )
        assert (await session.examine(b"INBOX")).highestmodseq is None


async def test_case_9_the_capability_decides_and_not_the_response() -> None:
    async with ImapServer([account()], BARE) as server, logged_in(server) as session:
        server.bend("EXAMINE", lambda answer: [b"* OK [HIGHESTMODSEQ 50] x\r\n", *answer])
        assert (await session.examine(b"INBOX")).highestmodseq is None
        assert "CONDSTORE" not in server.commands[-1]


async def test_case_11_nothing_is_sent_that_was_not_offered() -> None:
    async with ImapServer([account()], BARE) as server, logged_in(server, options=Options(compress=True)) as session:
        await session.list_mailboxes()
        await session.status(b"INBOX")
        await session.examine(b"INBOX", qresync=QResync(1, 1))
        await session.uid_search()
        assert not await session.notify()
        assert await session.namespace() is None
        sent = " ".join(server.commands)
        for word in (
            "RETURN",
            "HIGHESTMODSEQ",
            "MAILBOXID",
            "QRESYNC",
            "CONDSTORE",
            "ENABLE",
            "ID (",
            "COMPRESS",
            "NOTIFY",
        ):
            assert word not in sent


async def test_case_11_what_was_offered_and_is_refused_ends_no_session() -> None:
    async with ImapServer([account()], FULL) as server:
        server.bend(
            r"^(ENABLE|ID|NOTIFY|NAMESPACE)|LIST.*RETURN", lambda answer: [answer[-1].split(b" ")[0] + b" BAD no\r\n"]
        )
        async with logged_in(server) as session:
            assert session.enabled == frozenset()
            answer = await session.list_mailboxes()
            assert not answer.with_status
            assert [mailbox.wire_name for mailbox in answer.mailboxes] == [b"INBOX"]
            assert not await session.notify()
            assert await session.namespace() is None
            assert session.alive


async def test_case_12_enable_comes_before_the_first_mailbox_and_its_confirmation_is_not_needed() -> None:
    async with ImapServer([account()], FULL) as server:
        server.bend("ENABLE", lambda answer: [b"* ENABLED\r\n", answer[-1]])
        async with logged_in(server) as session:
            selected = await session.examine(b"INBOX")
            assert selected.highestmodseq == 6
            names = [line.split(" ")[0] for line in server.commands]
            assert names.index("ENABLE") < names.index("EXAMINE")


async def test_case_16_uidvalidity_0_is_accepted() -> None:
    script = (*LOGIN_DIALOGUE, "EXAMINE", b"* 3 EXISTS\r\n* OK [UIDVALIDITY 0] x\r\n%T% OK x\r\n")
    async with ScriptedServer(script) as server, logged_in(server) as session:
        assert (await session.examine(b"INBOX")).uidvalidity == 0


async def test_case_20_what_is_left_out_is_unknown_and_not_0() -> None:
    script = (
        *LOGIN_DIALOGUE,
        "EXAMINE",
        b"* 3 EXISTS\r\n%T% OK x\r\n",
        "STATUS",
        b'* STATUS "INBOX" ()\r\n%T% OK x\r\n',
    )
    async with ScriptedServer(script) as server, logged_in(server) as session:
        selected = await session.examine(b"INBOX")
        assert (selected.uidnext, selected.uidvalidity, selected.highestmodseq) == (None, None, None)
        status = await session.status(b"INBOX")
        assert (status.messages, status.uidnext) == (None, None)


async def test_an_examine_without_exists_is_no_answer() -> None:
    async with ScriptedServer((*LOGIN_DIALOGUE, "EXAMINE", b"%T% OK x\r\n")) as server, logged_in(server) as session:
        with pytest.raises(MalformedAnswer):
            await session.examine(b"INBOX")


async def test_what_came_before_closed_belongs_to_the_old_mailbox() -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        server.accounts["user"].create("Other")
        server.bend("EXAMINE", lambda answer: [b"* VANISHED 1:3\r\n* 2 EXISTS\r\n", *answer])
        selected = await session.examine(b"Other")
        assert (selected.exists, list(selected.vanished)) == (0, [])


async def test_qresync_changes_are_bounded_and_say_so() -> None:
    limits = Limits(max_unasked_fetches=10)
    async with ImapServer([account(50)], FULL) as server, logged_in(server, limits=limits) as session:
        selected = await session.examine(b"INBOX", qresync=QResync(1000, 1))
        assert len(selected.fetched) == 10
        assert selected.fetched_overflowed


# --- lists ---------------------------------------------------------------------------------------------------------


async def test_case_4_a_mailbox_listed_twice_is_one() -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server) as session:
        server.bend(
            "LIST",
            lambda answer: [
                b'* LIST (\\HasNoChildren) "/" inbox\r\n* LIST (\\Marked) "/" "INBOX"\r\n* LIST () "/" "Inbox"\r\n',
                b'* LIST (\\Noselect) "/" "p"\r\n* LIST () "/" "p"\r\n',
                answer[-1],
            ],
        )
        answer = await session.list_mailboxes()
        by_name = {mailbox.wire_name: mailbox for mailbox in answer.mailboxes}
        assert set(by_name) == {b"INBOX", b"p"}
        assert by_name[b"INBOX"].attributes == {"\\hasnochildren", "\\marked"}
        assert by_name[b"p"].selectable


async def test_a_list_line_that_does_not_parse_is_no_proof_of_absence() -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server) as session:
        server.bend("LIST", lambda answer: [b"* LIST (((\r\n", *answer])
        answer = await session.list_mailboxes()
        assert answer.unreadable == 1
        assert len(answer.mailboxes) == 1


async def test_case_67_a_mailbox_that_is_refused_is_set_aside_alone() -> None:
    profile = Profile(FULL, refused={"Bad": "[NOPERM] no", "Odd": "Internal trouble"})
    made = account()
    made.create("Bad")
    made.create("Odd")
    async with ImapServer([made], profile) as server, logged_in(server) as session:
        answers = await session.statuses([b"Bad", b"INBOX", b"Odd"])
        assert isinstance(answers[b"Bad"], MailboxUnusable)
        assert isinstance(answers[b"Odd"], MailboxUnusable)
        assert not isinstance(answers[b"INBOX"], MailboxError)
        with pytest.raises(MailboxUnusable) as caught:
            await session.examine(b"Bad")
        assert caught.value.code == "mailbox_permission"
        assert (await session.examine(b"INBOX")).exists == 5


# --- searches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capabilities", [BARE, FULL], ids=["search", "esearch"])
@pytest.mark.parametrize(
    "line",
    [
        b"* SEARCH 1 2 and so on\r\n",
        b"* SEARCH 0\r\n",
        b"* ESEARCH UID ALL 1:x\r\n",
        b'* ESEARCH (TAG "%T") UID ALL\r\n',
    ],
)
async def test_case_24_a_malformed_result_is_no_result(capabilities: frozenset[str], line: bytes) -> None:
    if capabilities is BARE and b"ESEARCH" in line:
        line = b"* SEARCH x\r\n"
    async with ImapServer([account()], capabilities) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend("SEARCH", lambda answer: [line, *answer], times=1)
        with pytest.raises(MalformedAnswer):
            await session.uid_search()
        assert list((await session.uid_search()).uids) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("capabilities", [BARE, FULL], ids=["search", "esearch"])
async def test_case_25_no_result_line_is_empty_and_says_that_it_was_not_stated(capabilities: frozenset[str]) -> None:
    async with ImapServer([account()], capabilities) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend("SEARCH", lambda answer: [answer[-1].split(b" ")[0] + b" OK SEARCH completed (took 2 ms)\r\n"])
        answer = await session.uid_search()
        assert (len(answer.uids), answer.stated) == (0, False)


async def test_case_24_a_refused_search_is_no_empty_search() -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend("SEARCH", lambda answer: [*answer[:-1], answer[-1].split(b" ")[0] + b" NO [UNAVAILABLE] later\r\n"])
        with pytest.raises(RetryLater):
            await session.uid_search()


async def test_several_search_lines_add_up_and_another_ones_esearch_is_not_ours() -> None:
    async with ImapServer([account()], BARE) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend("SEARCH", lambda answer: [b"* SEARCH 7 8\r\n", *answer])
        assert list((await session.uid_search()).uids) == [1, 2, 3, 4, 5, 7, 8]
    async with ImapServer([account()], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend("SEARCH", lambda answer: [b'* ESEARCH (TAG "else") UID ALL 99\r\n', *answer])
        assert list((await session.uid_search()).uids) == [1, 2, 3, 4, 5]


# --- failures in the middle ----------------------------------------------------------------------------------------


async def test_case_45_a_literal_that_is_cut_short_meets_the_deadline() -> None:
    script = (*EXAMINE_DIALOGUE, "UID FETCH", b"* 1 FETCH (UID 1 BODY[2] {100}\r\n123456789%T% OK done\r\n")
    async with ScriptedServer(script) as server, logged_in(server, limits=QUICK, examine=b"INBOX") as session:
        with pytest.raises(CommandTimedOut):
            await fetch(session, "1", (b"BODY.PEEK[2]",))
        assert not session.alive


async def test_a_drop_in_the_middle_gives_what_had_come_whole() -> None:
    async with ImapServer([account(20)], FULL) as server, logged_in(server, examine=b"INBOX") as session:
        server.bend("UID FETCH", lambda answer: [*answer[:7], answer[7][:20], Drop()])
        got: list[int] = []

        async def read() -> None:
            async for part in session.uid_fetch("1:*", (b"BODY.PEEK[]",)):
                got.extend(message.uid for message in part.messages)

        with pytest.raises(RetryLater):
            await read()
        assert got == [1, 2, 3, 4, 5, 6, 7]


async def test_case_40_answers_byte_by_byte() -> None:
    async with ImapServer([account()], FULL) as server:
        server.bend(".", lambda answer: [Pieces(b"".join(answer), 1)])
        async with logged_in(server, examine=b"INBOX") as session:
            messages = await fetch(session, "1:*", (b"FLAGS", b"BODY.PEEK[HEADER.FIELDS (SUBJECT)]"))
            assert [message.sections[b"HEADER.FIELDS"] for message in messages] == [
                b"Subject: %d\r\n\r\n" % number for number in range(1, 6)
            ]


async def test_case_73_authenticated_but_not_connected_is_a_permission() -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server) as session:
        server.bend(
            "EXAMINE|LIST",
            lambda answer: [answer[-1].split(b" ")[0] + b" BAD User is authenticated but not connected.\r\n"],
        )
        with pytest.raises(AccessDenied):
            await session.list_mailboxes()
        with pytest.raises(AccessDenied):
            await session.examine(b"INBOX")


async def test_case_76_throttling_in_an_ok_is_noticed() -> None:
    async with ImapServer([account()], FULL) as server, logged_in(server, limits=PATIENT, examine=b"INBOX") as session:
        server.bend("NOOP", lambda answer: [answer[-1].replace(b"OK", b"OK [THROTTLED] Success")])
        await session.noop()
        assert session.take_changes().throttled


async def test_a_refused_fetch_is_a_defect_of_the_command_and_not_of_the_session() -> None:
    async with ImapServer([account()], CONDSTORE) as server, logged_in(server, examine=b"INBOX") as session:
        with pytest.raises(CommandRejected):
            await fetch(session, "1:*", (b"EMAILID",))
        assert len(await fetch(session, "1:*", (b"FLAGS",))) == 5
