"""Which mailboxes there are: the list of the server, and what it means for those we know."""

from __future__ import annotations

import logging

from streams.contracts import mailbox as events
from streams.domain.mirror import MailboxRecord
from streams.domain.plan import ListingPlan, ServerMailbox, attributes_differ, plan_listing
from streams.errors import MailboxError
from streams.imap.session import ImapSession
from streams.imap.values import ListedMailbox, MailboxStatus
from streams.sync.context import PassContext, remove, remove_previous
from streams.sync.state import MailboxState

log = logging.getLogger(__name__)

GMAIL = "X-GM-EXT-1"
_GMAIL_BOXES = frozenset({"\\all", "\\junk", "\\trash"})
_SAYS_GONE = frozenset(
    {
        "mailbox_gone",
        "mailbox_unusable",
        "mailbox_not_selectable",
        "mailbox_permission",
        "mailbox_name_unsafe",
        "command_rejected",
    }
)
"""Refusals of STATUS after which a mailbox that is not listed either is believed to be gone: most servers have no code
for it. What only says that the server cannot tell now is not among them.
"""


async def list_server(ctx: PassContext, session: ImapSession) -> tuple[list[ServerMailbox], bool]:
    """What the server lists, and whether it may be believed that there is nothing else.

    A mailbox that is missing is asked for by name: while its index is made anew, Dovecot lists a part of the mailboxes.
    """
    answer = await session.list_mailboxes(with_status=True)
    statuses: dict[bytes, MailboxStatus | MailboxError] = {}
    asked = [m.wire_name for m in answer.mailboxes if m.selectable and m.status is None]
    if asked:
        statuses = await session.statuses(asked)
    listed = []
    for m in answer.mailboxes:
        status = m.status or statuses.get(m.wire_name)
        listed.append(_server_mailbox(m, status if isinstance(status, MailboxStatus) else None))
    complete = answer.unreadable == 0 and bool(answer.mailboxes)
    return listed + await _there_though_not_listed(ctx, session, listed, complete), complete


async def _there_though_not_listed(
    ctx: PassContext, session: ImapSession, listed: list[ServerMailbox], complete: bool
) -> list[ServerMailbox]:
    boxes = ctx.state.mailboxes
    names = {m.wire_name for m in listed}
    deleted = plan_listing([b.record for b in boxes.values()], listed, complete=complete).deleted
    missing = {m.wire_name: m for m in deleted if m.wire_name not in names}
    asked = [name for name, record in missing.items() if record.selectable]
    found = []
    for name, status in (await session.statuses(asked)).items() if asked else ():
        record = missing[name]
        if not _is_gone(record, status):
            log.warning("mailbox %s may be there, though it is not listed (%s)", record.mailbox_id, status)
            found.append(_unlisted(record, status if isinstance(status, MailboxStatus) else None))
    if found:  # the list lacks what is there: a container, which has no STATUS, may be so as well
        found += [_unlisted(record, None) for record in missing.values() if not record.selectable]
    return found


def _is_gone(record: MailboxRecord, status: MailboxStatus | MailboxError) -> bool:
    """Whether the answer about a mailbox that is not listed proves that it is not there. "Later" proves nothing, and
    an answer without UIDVALIDITY tells of no other mailbox.
    """
    if isinstance(status, MailboxStatus):
        return status.uidvalidity is not None and status.uidvalidity != (record.uidvalidity or 0)
    return status.code in _SAYS_GONE


def _unlisted(record: MailboxRecord, status: MailboxStatus | None) -> ServerMailbox:
    return ServerMailbox(
        wire_name=record.wire_name,
        name=record.name,
        delimiter=record.delimiter,
        special_use=record.special_use,
        attributes=record.attributes,
        selectable=record.selectable,
        object_id=record.object_id,
        uidvalidity=status.uidvalidity if status else None,
        uidnext=status.uidnext if status else None,
        messages=status.messages if status else None,
        highestmodseq=status.highestmodseq if status else None,
    )


def views_among(ctx: PassContext, session: ImapSession, listed: list[ServerMailbox]) -> set[bytes]:
    """Wire names of mailboxes that only show mail of others: with Gmail all but All Mail, Spam and Trash (case 97)."""
    if not session.has(GMAIL) or not any(m.special_use == "\\all" and m.selectable for m in listed):
        return set()
    return {m.wire_name for m in listed if m.selectable and m.special_use not in _GMAIL_BOXES}


async def apply_listing(
    ctx: PassContext, listed: list[ServerMailbox], complete: bool
) -> tuple[ListingPlan, list[MailboxState]]:
    state = ctx.state
    plan = plan_listing([b.record for b in state.mailboxes.values()], listed, complete=complete)
    ids_told = any(server.object_id for server in listed)
    for record, server in plan.same:
        box = state.mailboxes[record.mailbox_id]
        if attributes_differ(record, server):
            _rename(ctx, box, server)
        elif record.object_id != server.object_id and (server.object_id or not ids_told):
            record.object_id = server.object_id
            box.dirty = True
    ctx.result.listing += len(plan.renamed) + len(plan.discovered) + len(plan.deleted)
    for record, server in plan.renamed:
        _rename(ctx, state.mailboxes[record.mailbox_id], server)
    for server in plan.discovered:
        box = state.add_mailbox(
            MailboxRecord(
                mailbox_id=state.new_mailbox_id(),
                wire_name=server.wire_name,
                name=server.name,
                delimiter=server.delimiter,
                special_use=server.special_use,
                selectable=server.selectable,
                attributes=server.attributes,
                object_id=server.object_id,
                # Not 0: a server tells 0 of a mailbox that it will make when it is first opened.
                uidvalidity=(server.uidvalidity or None) if server.selectable else None,
            )
        )
        plan.same.append((box.record, server))
        state.emit(
            events.MailboxDiscovered,
            mailbox_id=box.record.mailbox_id,
            mailbox=server.name,
            wire_name=server.wire_name.decode("ascii", "backslashreplace"),
            selectable=server.selectable,
            uidvalidity=box.record.uidvalidity,
            delimiter=server.delimiter,
            special_use=server.special_use,
            attributes=server.attributes,
        )
    await ctx.reader.flush()
    return plan, [state.mailboxes[m.mailbox_id] for m in plan.deleted]


def _rename(ctx: PassContext, box: MailboxState, server: ServerMailbox) -> None:
    record = box.record
    previous = record.name
    record.wire_name, record.name, record.delimiter = server.wire_name, server.name, server.delimiter
    record.special_use, record.attributes = server.special_use, server.attributes
    record.object_id = server.object_id or record.object_id
    record.aside, record.aside_until = None, None  # whatever was wrong was wrong with the other name
    box.dirty = True
    ctx.memory.checked.discard(record.mailbox_id)
    ctx.state.emit(
        events.MailboxRenamed,
        mailbox_id=record.mailbox_id,
        mailbox=server.name,
        previous=previous,
        wire_name=server.wire_name.decode("ascii", "backslashreplace"),
        delimiter=server.delimiter,
        special_use=server.special_use,
        selectable=server.selectable,
    )


async def show_views(ctx: PassContext, views: set[bytes]) -> None:
    """Mailboxes that became views, or ceased to be: a view holds no places of its own."""
    for box in ctx.state.mailboxes.values():
        record = box.record
        view = record.wire_name in views
        if view == record.view:
            continue
        record.view = view
        box.dirty = True
        if view and record.visited:
            await remove_previous(ctx, box)
            await remove(ctx, box, box.known().copy(), box.epoch)
            ctx.state.unread_gone(box, list(record.quarantined))
            record.visited, record.backfill_done, record.aside, record.aside_until = False, False, None, None


def _server_mailbox(listed: ListedMailbox, status: MailboxStatus | None) -> ServerMailbox:
    return ServerMailbox(
        wire_name=listed.wire_name,
        name=listed.display_name,
        delimiter=listed.delimiter,
        special_use=listed.special_use,
        attributes=tuple(sorted(listed.attributes)),
        selectable=listed.selectable,
        object_id=listed.mailbox_id or (status.mailbox_id if status else None),
        uidvalidity=status.uidvalidity if status else None,
        uidnext=status.uidnext if status else None,
        messages=status.messages if status else None,
        highestmodseq=status.highestmodseq if status else None,
    )
