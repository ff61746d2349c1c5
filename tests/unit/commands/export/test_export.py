"""The job `export` against an IMAP server of the tests: filters, formats, going on after an interruption."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mailbox
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from streams.commands.export.handler import Exporter
from streams.contracts.commands import CommandFailure, CommandProgress, CommandSuccess
from streams.errors import AccountError
from streams.imap.addresses import AddressPolicy
from streams.imap.connecting import connect
from streams.imap.credentials import Password, Secret
from streams.imap.session import ImapSession
from streams.imap.values import Endpoint
from tests.scripted_imap.bending import Drop
from tests.scripted_imap.model import Account
from tests.scripted_imap.server import QRESYNC, ImapServer, Profile
from tests.unit.commands.rig import ACCOUNT, Rig, conclusions, running


class ServerSessions:
    """Sessions with a server of the tests."""

    def __init__(self, port: int, refuse: AccountError | None = None) -> None:
        self._port = port
        self._refuse = refuse

    @contextlib.asynccontextmanager
    async def open(self, account_id: str) -> AsyncIterator[ImapSession]:
        if self._refuse is not None:
            raise self._refuse
        session = await connect(
            Endpoint("127.0.0.1", self._port, "plain"), address_policy=AddressPolicy(allow_private=True)
        )
        try:
            await session.login(Password("user", Secret("secret")))
            yield session
        finally:
            await session.close()


def account(count: int = 5) -> Account:
    made = Account()
    for number in range(count):
        made.mailboxes["INBOX"].deliver(
            b"Subject: %d\r\n\r\nFrom here to there %d\r\n" % (number, number),
            internal_date=datetime(2024, 1, 1, 12, tzinfo=UTC) + timedelta(days=number),
            flags=["\\Seen"] if number % 2 else [],
        )
    made.create("Work/Größe".encode("utf-7").decode()).deliver(b"Subject: other\r\n\r\nx")
    return made


@contextlib.asynccontextmanager
async def exporting(server: ImapServer, directory: Path | str | None, **limits: Any) -> AsyncIterator[Rig]:
    exporter = Exporter(ServerSessions(server.port), str(directory) if directory else None, max_message_bytes=100_000)
    async with running(Rig(exporter.handlers(), **limits)) as rig:
        yield rig


async def export(rig: Rig, **args: Any) -> CommandSuccess | CommandFailure:
    command_id = rig.send("export", **args)
    await rig.finish()
    (conclusion,) = conclusions(rig.events(command_id))
    return conclusion


def lines(directory: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for part in sorted((directory / "manifest").iterdir())
        for line in part.read_bytes().splitlines()
    ]


@pytest.mark.parametrize("format_name", ["eml", "maildir", "mbox"])
async def test_every_format_holds_every_message_once(tmp_path: Path, format_name: str) -> None:
    async with ImapServer([account()], Profile(QRESYNC)) as server, exporting(server, tmp_path) as rig:
        success = await export(rig, format=format_name, to="out")
        assert isinstance(success, CommandSuccess), success
        assert (success.result["messages"], success.result["skipped"]) == (6, 0)
        directory = tmp_path / ACCOUNT / "out"
        listed = lines(directory)
        assert len(listed) == 6
        inbox = directory / "mail" / "INBOX"
        raws = {b"Subject: %d\r\n\r\nFrom here to there %d\r\n" % (number, number) for number in range(5)}
        if format_name == "eml":
            assert {path.read_bytes() for path in inbox.iterdir()} == raws
        elif format_name == "maildir":
            box = mailbox.Maildir(str(inbox), create=False)
            assert {box.get_bytes(key) for key in box.keys()} == raws  # noqa: SIM118
            assert sum("S" in item.get_flags() for item in box) == 2
        else:
            (path,) = inbox.iterdir()
            stored = mailbox.mbox(str(path), create=False)
            assert len(stored) == 5
            stored.close()
        digests = {hashlib.sha256(raw).hexdigest() for raw in raws}
        assert {line["sha256"] for line in listed if line["mailbox"] == "INBOX"} == digests
        assert json.loads((directory / "manifest.json").read_bytes())["messages"] == 6
        assert [event for event in rig.events() if isinstance(event, CommandProgress)]


async def test_mail_is_only_read(tmp_path: Path) -> None:
    async with ImapServer([account()], Profile(QRESYNC)) as server, exporting(server, tmp_path) as rig:
        await export(rig)
        said = " ".join(str(command) for command in server.commands)
        assert "SELECT" not in said.replace("UNSELECT", "")
        assert "BODY[" not in said
        assert " STORE" not in said


async def test_filters_add_up(tmp_path: Path) -> None:
    async with ImapServer([account()], Profile(QRESYNC)) as server, exporting(server, tmp_path) as rig:
        success = await export(rig, mailboxes=["inbox"], since="2024-01-02", before="2024-01-05", uids="1:3", to="some")
        assert isinstance(success, CommandSuccess), success
        assert sorted(line["uid"] for line in lines(tmp_path / ACCOUNT / "some")) == [2, 3]


async def test_an_interrupted_export_goes_on_where_it_was(tmp_path: Path) -> None:
    model = account(1000)
    async with ImapServer([model], Profile(QRESYNC)) as server, exporting(server, tmp_path) as rig:
        server.bend(r"UID FETCH .*BODY\.PEEK", lambda answer: [*answer[:50], Drop()], times=1, skip=2)
        success = await export(rig, mailboxes=["INBOX"], to="big")
        assert isinstance(success, CommandSuccess), success
        assert success.attempt == 2
        assert (success.result["messages"], success.result["fetched"]) == (1000, 600)
        uids = [line["uid"] for line in lines(tmp_path / ACCOUNT / "big")]
        assert sorted(uids) == list(range(1, 1001))
        assert len(list((tmp_path / ACCOUNT / "big/mail/INBOX").iterdir())) == 1000


async def test_the_same_export_again_fetches_only_what_is_new(tmp_path: Path) -> None:
    model = account()
    async with ImapServer([model], Profile(QRESYNC)) as server, exporting(server, tmp_path) as rig:
        await export(rig, to="kept")
        model.mailboxes["INBOX"].deliver(b"Subject: new\r\n\r\n")
        success = await export(rig, to="kept")
        assert isinstance(success, CommandSuccess)
        assert (success.result["messages"], success.result["fetched"]) == (7, 1)
        model.mailboxes["INBOX"].new_epoch()
        success = await export(rig, to="kept")
        assert isinstance(success, CommandSuccess)
        assert success.result["fetched"] == 6


async def test_messages_that_cannot_be_had_are_listed_with_the_reason(tmp_path: Path) -> None:
    model = account(2)
    model.mailboxes["INBOX"].deliver(b"x" * 200_000)
    async with ImapServer([model], Profile(QRESYNC)) as server, exporting(server, tmp_path) as rig:
        success = await export(rig, mailboxes=["INBOX"], to="some")
        assert isinstance(success, CommandSuccess)
        assert (success.result["messages"], success.result["skipped"]) == (2, 1)
        problems = [line["problem"] for line in lines(tmp_path / ACCOUNT / "some") if "problem" in line]
        assert problems == ["too_large"]


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ({"mailboxes": ["Nowhere"]}, "mailbox_unknown"),
        ({"mailboxes": ["INBOX"], "uidvalidity": 999}, "uidvalidity_mismatch"),
        ({"to": "taken", "format": "mbox"}, "destination_taken"),
    ],
)
async def test_case_15_what_does_not_hold_is_refused_with_its_code(
    tmp_path: Path, args: dict[str, Any], code: str
) -> None:
    async with ImapServer([account()], Profile(QRESYNC)) as server, exporting(server, tmp_path) as rig:
        await export(rig, to="taken")
        failure = await export(rig, **args)
        assert isinstance(failure, CommandFailure)
        assert (failure.code, failure.attempts) == (code, 1)


async def test_without_a_place_nothing_is_exported() -> None:
    async with ImapServer([account()], Profile(QRESYNC)) as server, exporting(server, None) as rig:
        failure = await export(rig)
        assert isinstance(failure, CommandFailure)
        assert failure.code == "export_off"
        assert not server.logins
