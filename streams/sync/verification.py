"""Verify: does the server hold what the mirror, the database and the log say? Reads everything, changes nothing.

A difference counts only when it is there twice, with a pause between: mail on its way is no finding.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from streams.domain.mirror import LABEL
from streams.errors import MailboxError
from streams.imap.session import ImapSession
from streams.sync import fetching
from streams.sync.runner import AccountRunner
from streams.sync.state import AccountState, MailboxState

Places = Mapping[tuple[str, int, int], frozenset[str]]
"""Flags by (mailbox id, uidvalidity, uid)."""


class Truths(Protocol):
    """Where the other accounts of the mail come from."""

    async def database(self, account_id: str) -> Places:
        """Places of the projection. Raises `ServiceUnavailable`."""
        ...

    async def folded_log(self, account_id: str, partition: int) -> Places:
        """Places that the committed log adds up to. Raises `ServiceUnavailable`."""
        ...


@dataclass(slots=True)
class Differences:
    """Differences by (source, kind, mailbox name, uid), at most `limit` kept, all counted."""

    limit: int
    count: int = 0
    suspects: set[tuple[str, str, str, int]] = field(default_factory=set)

    def add(self, source: str, kind: str, mailbox: str, uid: int) -> None:
        """`kind` is `missing` (the server has it), `extra` (the server has it not) or `flags`."""
        self.count += 1
        if len(self.suspects) < self.limit:
            self.suspects.add((source, kind, mailbox, uid))

    def as_json(self) -> list[dict[str, Any]]:
        """Findings in a stable order."""
        return [{"in": s, "kind": k, "mailbox": m, "uid": u} for s, k, m, u in sorted(self.suspects)]


async def compare_mailbox(
    session: ImapSession, box: MailboxState, others: Mapping[str, Places], found: Differences
) -> int:
    """Compare one mailbox, UID by UID and flag by flag; returns the messages looked at."""
    record = box.record
    epoch = box.epoch
    try:
        selected = await session.examine(record.wire_name)
    except MailboxError:
        found.add("mirror", "extra", record.name, 0)
        return 0
    if (selected.uidvalidity or 0) != epoch:
        found.add("mirror", "uidvalidity", record.name, 0)
        return 0
    server: dict[int, frozenset[str]] = {}
    items = [item for item in fetching.flag_items(session.capabilities) if item != b"MODSEQ"]
    if selected.exists:
        async with contextlib.aclosing(session.uid_fetch("1:*", items)) as chunks:
            async for chunk in chunks:
                for message in chunk.messages:
                    flags = fetching.flags_of(message)
                    if flags is not None:
                        server[message.uid] = flags
                await asyncio.sleep(0)
    expected = {
        uid: flags
        for uid, flags in server.items()
        if record.floor <= uid < record.uidnext and uid not in record.quarantined
    }
    known = box.known()
    mirror = {uid: box.flags(uid) for uid in known}
    _differences("mirror", record.name, expected, server, mirror, found, limited=record.since is not None)
    for source, places in others.items():
        mine = {
            uid: flags
            for (mailbox, validity, uid), flags in places.items()
            if (mailbox, validity) == (record.mailbox_id, epoch)
        }
        plain = {uid: _plain(flags) for uid, flags in mirror.items()}
        _differences(source, record.name, plain, plain, mine, found, limited=False)
    return len(server)


def _plain(flags: frozenset[str]) -> frozenset[str]:
    return frozenset(f for f in flags if not f.startswith(LABEL))


def _differences(
    source: str,
    name: str,
    expected: Mapping[int, frozenset[str]],
    allowed: Mapping[int, frozenset[str]],
    actual: Mapping[int, frozenset[str]],
    found: Differences,
    *,
    limited: bool,
) -> None:
    for uid, flags in expected.items():
        have = actual.get(uid)
        if have is None:
            if not limited:  # older than the limit in force: not there on purpose
                found.add(source, "missing", name, uid)
        elif have != flags:
            found.add(source, "flags", name, uid)
    for uid in actual:
        if uid not in allowed:
            found.add(source, "extra", name, uid)


class _Args(Protocol):
    @property
    def recheck_s(self) -> float: ...
    @property
    def limit(self) -> int: ...
    @property
    def deep(self) -> bool: ...


async def recheck(
    runner: AccountRunner, truths: Truths, account_id: str, first: Differences, args: _Args
) -> Differences:
    """Look again, after a pause and a regular look at the server, at the mailboxes that differed.

    What differs both times is a finding.
    """
    await asyncio.sleep(args.recheck_s)
    runner.poke()
    names = {mailbox for _, _, mailbox, _ in first.suspects}
    again = Differences(args.limit)

    async def work(session: ImapSession, state: AccountState, account_pass: object) -> None:
        del account_pass
        for box in state.iterate():
            if box.record.name in names and box.record.selectable:
                await compare_mailbox(session, box, others, again)

    shard_log = await runner.shard.running()
    others: dict[str, Places] = {"database": await truths.database(account_id)}
    if args.deep:
        others["log"] = await truths.folded_log(account_id, shard_log.partition)
    await runner.perform("command", work)
    confirmed = Differences(args.limit)
    confirmed.suspects = first.suspects & again.suspects
    confirmed.count = len(confirmed.suspects) if again.count <= args.limit else min(first.count, again.count)
    return confirmed
