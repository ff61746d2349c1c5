"""Which mailboxes there are, and in what state.

Invariants: a mailbox that is listed twice is one (case 4); a line that does not parse is counted, since the list is
then no proof of absence; a mailbox whose STATUS is refused costs only itself (case 67). What a server offers and then
refuses is left out step by step, and remembered once an answer came without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from streams.errors import HostBusy, MailboxError, MailboxUnusable, MalformedAnswer, RetryLater
from streams.imap.channel import Channel
from streams.imap.connection import Exchange
from streams.imap.errors import is_unspecific
from streams.imap.protocol.codes import During
from streams.imap.protocol.commands import Command, UnsafeArgument, astring
from streams.imap.protocol.parser import canonical_name
from streams.imap.protocol.responses import Listed, Malformed, Namespaces, Response, StatusTold
from streams.imap.values import ListAnswer, ListedMailbox, MailboxStatus

_PIPELINED: Final = 50  # STATUS commands in flight at once
_STATUS_FIELDS: Final = tuple(field.name for field in dataclasses.fields(MailboxStatus))


async def list_mailboxes(channel: Channel, *, with_status: bool) -> ListAnswer:
    """All mailboxes, one for each canonical name; with STATUS along with the list where offered."""
    richest: frozenset[str] = frozenset()
    refusal: MailboxError | None = None
    for way in _ways_to_list(channel, with_status=with_status):
        richest = richest or way.uses
        arguments: tuple[bytes, ...] = (b'""', b'"*"')
        if way.options:
            arguments += (b"RETURN", b"(" + b" ".join(way.options) + b")")
        try:
            answer = await _list(channel, arguments, status="LIST-STATUS" in way.uses)
        except MailboxError as error:
            if not channel.alive:
                raise
            refusal = error
            continue
        if refusal is not None:
            channel.refuse(*sorted(richest - way.uses), error=refusal)
        return answer
    assert refusal is not None  # the last way is LIST alone
    raise refusal


class _Way(NamedTuple):
    """A way to ask, and what it makes use of."""

    options: list[bytes]
    uses: frozenset[str]


def _ways_to_list(channel: Channel, *, with_status: bool) -> Iterator[_Way]:
    """From all that is offered down to LIST alone."""
    use = "LIST=SPECIAL-USE"
    special = channel.has("SPECIAL-USE") and channel.has("LIST-EXTENDED") and use not in channel.refused
    kinds = [_Way([b"SPECIAL-USE"], frozenset({use})), _Way([], frozenset())][0 if special else 1 :]
    if with_status and channel.has("LIST-STATUS"):
        for items in _ways_to_status(channel):
            for kind in kinds:
                status = b"STATUS (" + b" ".join(items.options) + b")"
                yield _Way([*kind.options, status], kind.uses | items.uses | {"LIST-STATUS"})
    yield from kinds


async def _list(channel: Channel, arguments: tuple[bytes, ...], *, status: bool) -> ListAnswer:
    found: dict[bytes, ListedMailbox] = {}
    statuses: dict[bytes, MailboxStatus] = {}
    unreadable = 0

    def take(response: Response) -> bool:
        nonlocal unreadable
        match response:
            case Listed(mailbox=mailbox):
                if len(found) >= channel.limits.max_list_entries and mailbox.wire_name not in found:
                    unreadable += 1
                else:
                    known = found.get(mailbox.wire_name)
                    found[mailbox.wire_name] = mailbox if known is None else _merged(known, mailbox)
            case StatusTold(wire_name=wire_name, status=told) if status:
                statuses[wire_name] = _told_later(statuses.get(wire_name), told)
            case Malformed(kind="LIST" | "XLIST" | "LSUB"):
                unreadable += 1
            case _:
                return False
        return True

    await channel.run(Command("LIST", arguments), take)
    mailboxes = tuple(_with_status(mailbox, statuses.get(name)) for name, mailbox in found.items())
    return ListAnswer(mailboxes, with_status=status, unreadable=unreadable)


def _ways_to_status(channel: Channel) -> Iterator[_Way]:
    """Items of STATUS: all that are offered, then without those that a server may not know after all."""
    modseq, ids = "STATUS=HIGHESTMODSEQ", "STATUS=MAILBOXID"
    offered: list[tuple[bytes, str]] = []
    if (channel.has("CONDSTORE") or channel.has("QRESYNC")) and modseq not in channel.refused:
        offered.append((b"HIGHESTMODSEQ", modseq))
    if channel.has("OBJECTID") and channel.status_ids and ids not in channel.refused:
        offered.append((b"MAILBOXID", ids))  # last: see `parser`
    while True:
        extra = [item for item, _ in offered]
        yield _Way([b"MESSAGES", b"UIDNEXT", b"UIDVALIDITY", *extra], frozenset(use for _, use in offered))
        if not offered:
            return
        offered.pop()


async def statuses(channel: Channel, wire_names: Sequence[bytes]) -> dict[bytes, MailboxStatus | MailboxError]:
    """STATUS of many mailboxes, many commands in flight at once. One that is refused costs only itself."""
    answers: dict[bytes, MailboxStatus | MailboxError] = {}
    for at in range(0, len(wire_names), _PIPELINED):
        batch = wire_names[at : at + _PIPELINED]
        richest: frozenset[str] = frozenset()
        refusal: MailboxError | None = None
        for way in _ways_to_status(channel):
            richest = richest or way.uses
            found: dict[bytes, MailboxStatus | MailboxError] = {}
            await _status_batch(channel, batch, way.options, found)
            errors = [answer for answer in found.values() if isinstance(answer, MailboxError) and is_unspecific(answer)]
            if len(errors) < len(found):
                if refusal is not None:
                    channel.refuse(*sorted(richest - way.uses), error=refusal)
                break
            refusal = errors[0] if errors else None  # not one was understood: it may be the items
        answers.update(found)
    return answers


async def _status_batch(
    channel: Channel,
    batch: Sequence[bytes],
    wanted_items: Sequence[bytes],
    answers: dict[bytes, MailboxStatus | MailboxError],
) -> None:
    told: dict[bytes, MailboxStatus] = {}
    wanted = {canonical_name(name) for name in batch}

    def take(response: Response) -> bool:
        if isinstance(response, StatusTold) and response.wire_name in wanted:
            told[response.wire_name] = _told_later(told.get(response.wire_name), response.status)
            return True
        return False

    items = b"(" + b" ".join(wanted_items) + b")"
    flying: list[tuple[bytes, Exchange]] = []
    for name in batch:
        try:
            command = Command("STATUS", (astring(name), items))
        except UnsafeArgument:
            answers[name] = MailboxUnusable("the mailbox's name cannot be sent", code="mailbox_name_unsafe")
            continue
        flying.append(
            (name, channel.protocol.start(command, on_untagged=take, timeout_s=channel.limits.command_timeout_s))
        )
    for name, exchange in flying:
        try:
            channel.accept(await channel.protocol.finish(exchange), During.MAILBOX)
        except MailboxError as error:
            answers[name] = error
            continue
        except RetryLater as error:
            if isinstance(error, HostBusy) or channel.protocol.failure is not None:
                raise
            answers[name] = MailboxUnusable(str(error), code=error.code, retry_after_s=error.retry_after_s)
            continue
        status = told.get(canonical_name(name))
        answers[name] = MalformedAnswer("STATUS was not told") if status is None else status


async def namespace(channel: Channel) -> Namespaces | None:
    """NAMESPACE (RFC 2342); None where it is not offered or was refused."""
    if not channel.has("NAMESPACE"):
        return None
    told: list[Namespaces] = []

    def take(response: Response) -> bool:
        if isinstance(response, Namespaces):
            told.append(response)
            return True
        return False

    well = await channel.tolerant(Command("NAMESPACE"), take)
    return told[-1] if told and well else None


def _told_later(old: MailboxStatus | None, new: MailboxStatus) -> MailboxStatus:
    """Both told of one mailbox, one of them by NOTIFY with fewer items: what is told later wins, item by item."""
    if old is None:
        return new
    told = {name: value for name in _STATUS_FIELDS if (value := getattr(new, name)) is not None}
    return dataclasses.replace(old, **told)


def _merged(old: ListedMailbox, new: ListedMailbox) -> ListedMailbox:
    """The same mailbox listed twice: attributes add up, and one line that opens it is enough to open it."""
    attributes = old.attributes | new.attributes
    return ListedMailbox(
        wire_name=old.wire_name,
        display_name=old.display_name,
        delimiter=old.delimiter or new.delimiter,
        attributes=attributes,
        special_use=old.special_use or new.special_use,
        selectable=old.selectable or new.selectable,
        old_name=old.old_name or new.old_name,
    )


def _with_status(mailbox: ListedMailbox, status: MailboxStatus | None) -> ListedMailbox:
    if status is None:
        return mailbox
    return ListedMailbox(
        wire_name=mailbox.wire_name,
        display_name=mailbox.display_name,
        delimiter=mailbox.delimiter,
        attributes=mailbox.attributes,
        special_use=mailbox.special_use,
        selectable=mailbox.selectable,
        mailbox_id=status.mailbox_id,
        status=status,
        old_name=mailbox.old_name,
    )
