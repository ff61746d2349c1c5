"""What end-to-end tests stand on: the client and its journal, the checker's readers, against real services."""

from __future__ import annotations

import asyncio
import shutil

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from streams.local.dovecot import Dovecot
from tests.fixtures.services import Broker, MailUser
from tests.rig.letters import ODD, odd, ordinary
from tests.rig.mailer import Mailer
from tests.rig.watch import LogWatch
from tests.storm.checker.log import Kafka, read_events
from tests.storm.checker.server import Login, listed, read_server

ACCOUNT = "6f1c1f0e-6d0a-4b0c-9c1e-2f6f5d1c7a11"


def login(user: MailUser) -> Login:
    return Login(ACCOUNT, user.host, user.port, user.name, user.password)


def test_journal_holds_what_the_client_did(mail_user: MailUser) -> None:
    mailer = Mailer(login(mail_user))
    one, two, three = (mailer.append("INBOX", ordinary(number)) for number in (1, 2, 3))
    assert one and two and three
    mailer.flag("INBOX", [one], add=["\\Seen", "$Work"], remove=["\\Seen"])
    mailer.create("Präsente/Unter")
    mailer.move("INBOX", [two], "Präsente/Unter")
    mailer.copy("INBOX", [one], "Präsente/Unter")
    mailer.expunge("INBOX", [three])
    mailer.rename("Präsente/Unter", "Andere")
    found = read_server(mailer.login)
    assert found["Andere"].name == "Andere"
    assert set(found["INBOX"].messages) == {one}
    assert found["INBOX"].messages[one].flags == {"$Work"}
    assert len(found["Andere"].messages) == 2
    copies = {found["INBOX"].messages[one].content} & {m.content for m in found["Andere"].messages.values()}
    assert len(copies) == 1
    inbox, other = found["INBOX"].uidvalidity, found["Andere"].uidvalidity
    assert mailer.journal.created == {(inbox, one), (inbox, two), (inbox, three), (other, 1), (other, 2)}
    assert mailer.journal.destroyed == {(inbox, two), (inbox, three)}
    assert frozenset({"\\seen", "$Work"}) in mailer.journal.flags[inbox, one]
    mailer.delete("Andere")
    assert {(other, 1), (other, 2)} <= mailer.journal.destroyed
    mailer.observe_all()
    mailer.close()


def test_a_mailbox_half_deleted_is_listed_and_not_read(mail_user: MailUser, dovecot: Dovecot) -> None:
    """What a server leaves behind that is stopped in the middle of a deletion."""
    mailer = Mailer(login(mail_user))
    mailer.create("Half")
    mailer.close()
    shutil.rmtree(dovecot.home(mail_user.name) / "mail" / "Half" / "tmp")
    assert "Half" in listed(mailer.login)
    assert "Half" not in read_server(mailer.login)


def test_odd_letters_are_accepted_by_a_server(mail_user: MailUser) -> None:
    mailer = Mailer(login(mail_user))
    mailer.append_many("INBOX", [odd(kind, number) for number, kind in enumerate(ODD)])
    found = read_server(mailer.login)["INBOX"].messages
    assert len(found) == len(ODD)
    assert len({message.content for message in found.values()}) == len(ODD)
    mailer.close()


async def test_watch_and_reader_see_committed_events_only(kafka: Broker, topic_prefix: str) -> None:
    place = Kafka(kafka.bootstrap, topic_prefix)
    changes = place.topic("mailbox.changes")
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(changes, 2, 1)])
    await admin.close()

    def event(sequence: int) -> bytes:
        return (
            b'{"type": "mailbox.discovered", "account_id": "%s", "sequence": %d, "mailbox_id": "b%d", "mailbox": "B%d",'
            b' "wire_name": "B%d"}' % (ACCOUNT.encode(), sequence, sequence, sequence, sequence)
        )

    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=f"{topic_prefix}writer")
    await producer.start()
    try:
        async with LogWatch(place) as watch:
            for sequence in (1, 2):
                async with producer.transaction():
                    headers = [("writer", b"w/1.0")]
                    await producer.send(changes, event(sequence), key=ACCOUNT.encode(), headers=headers)
            await producer.begin_transaction()
            await producer.send_and_wait(changes, event(3), key=ACCOUNT.encode())
            await producer.abort_transaction()
            await watch.until(lambda: watch.account(ACCOUNT).sequence == 2, within_s=20, what="two events")
            events, strange = await asyncio.wait_for(read_events(place), 30)
            assert [(e.sequence, e.writer) for e in events] == [(1, "w/1.0"), (2, "w/1.0")]
            assert strange == []
            assert len(watch.events) == 2
    finally:
        await producer.stop()
