"""What the owner of an account can be asked: look now, compare anew, fetch older history, verify.

Each runs with a connection of its own beside the runner's and under the account's lock, so that a command and the
schedule never work on half a state. Results count the events that the work led to.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any, Final, Protocol

from streams.errors import AccountError, MailboxGone, MailboxUnusable, RetryLater
from streams.imap.session import ImapSession
from streams.sync.hosting import Host
from streams.sync.passes import AccountPass
from streams.sync.runner import AccountRunner
from streams.sync.state import AccountState, MailboxState
from streams.sync.verification import Differences, Truths, compare_mailbox, recheck

PROGRESS_SHARE: Final = 0.98
"""Where progress ends before the outcome is known."""


class NotLiveHere(AccountError):
    """The account is disabled, deleted or in error: nothing was done."""

    code = "not_live"


class UidValidityMismatch(MailboxUnusable):
    """The mailbox was numbered anew since the sender looked: nothing was done."""

    code = "uidvalidity_mismatch"


class MailboxUnknown(MailboxGone):
    """There is no such mailbox."""

    code = "mailbox_unknown"


class Reporter(Protocol):
    """How an operation says how far it is."""

    def __call__(
        self, fraction: float, *, counts: Mapping[str, int] | None = None, message: str | None = None
    ) -> None: ...


class MailboxArgs(Protocol):
    """A mailbox by name (None: all), and the uidvalidity that the sender believes it has."""

    @property
    def mailbox(self) -> str | None: ...
    @property
    def uidvalidity(self) -> int | None: ...


class BackfillArgs(MailboxArgs, Protocol):
    """How far back: a day, a count per mailbox, or everything."""

    @property
    def since(self) -> date | None: ...
    @property
    def count(self) -> int | None: ...


class VerifyArgs(Protocol):
    """What to compare, and how long to wait before a difference is looked at again."""

    @property
    def mailbox(self) -> str | None: ...
    @property
    def deep(self) -> bool: ...
    @property
    def recheck_s(self) -> float: ...
    @property
    def limit(self) -> int: ...


class Operations:
    """Implements the commands' `AccountOperations` for the accounts of this worker."""

    def __init__(self, host: Host, truths: Truths) -> None:
        self._host = host
        self._truths = truths

    def _runner(self, account_id: str) -> AccountRunner:
        runner = self._host.runner(account_id)
        if runner is not None:
            return runner
        if self._host.is_live(account_id):
            raise RetryLater("the account is live and not served here at the moment", code="not_owned")
        raise NotLiveHere("the account is not live")

    async def sync_now(self, account_id: str, args: MailboxArgs, progress: Reporter) -> Mapping[str, Any]:
        """Look at the server now; answers with what changed."""
        return await self._look(account_id, args, progress, full=False)

    async def resync(self, account_id: str, args: MailboxArgs, progress: Reporter) -> Mapping[str, Any]:
        """Compare everything anew: every flag and every UID, with the mirror as baseline and nothing else of it
        trusted.
        """
        return await self._look(account_id, args, progress, full=True)

    async def _look(self, account_id: str, args: MailboxArgs, progress: Reporter, *, full: bool) -> Mapping[str, Any]:
        runner = self._runner(account_id)
        progress(0.05, message="connecting")

        async def work(session: ImapSession, state: AccountState, account_pass: AccountPass) -> Mapping[str, Any]:
            box = await self._mailbox(session, state, args)
            progress(0.2, message="comparing" if full else "looking")
            before = dict(state.emitted)
            result = await account_pass.run(
                session,
                full=full,
                only=box.record.mailbox_id if box else None,
                always=box.record.wire_name if box else None,
            )
            await account_pass.reader.settle()
            progress(PROGRESS_SHARE)
            changes = {k: v - before.get(k, 0) for k, v in state.emitted.items() if v != before.get(k, 0)}
            return {
                "changes": changes,
                "mailboxes_visited": result.visited,
                "set_aside": dict(list(result.failed.items())[:20]),
            }

        return await runner.perform("command", work)

    async def _mailbox(self, session: ImapSession, state: AccountState, args: MailboxArgs) -> MailboxState | None:
        """The mailbox that was named. Raises `MailboxUnknown`, `UidValidityMismatch`."""
        if args.mailbox is None:
            return None
        box = self._find(state, args.mailbox)
        if args.uidvalidity is not None:
            selected = await session.examine(box.record.wire_name)
            if (selected.uidvalidity or 0) != args.uidvalidity or box.epoch != args.uidvalidity:
                raise UidValidityMismatch(
                    f"the mailbox has uidvalidity {selected.uidvalidity or 0}, not {args.uidvalidity}"
                )
        return box

    @staticmethod
    def _find(state: AccountState, name: str) -> MailboxState:
        wanted = "INBOX" if name.upper() == "INBOX" else name
        for box in state.mailboxes.values():
            if wanted in (box.record.name, box.record.mailbox_id) and box.record.selectable:
                return box
        raise MailboxUnknown(f"there is no mailbox {name[:200]!r}")

    async def backfill(self, account_id: str, args: BackfillArgs, progress: Reporter) -> Mapping[str, Any]:
        """Fetch older history, newest first; takes up where an earlier attempt was interrupted."""
        runner = self._runner(account_id)
        since = (
            None
            if args.since is None
            else datetime(args.since.year, args.since.month, args.since.day, tzinfo=UTC).timestamp()
        )

        async def prepare(session: ImapSession, state: AccountState, account_pass: AccountPass) -> dict[str, int]:
            box = await self._mailbox(session, state, args)
            boxes = [box] if box else [b for b in state.mailboxes.values() if b.record.selectable]
            wanted: dict[str, int] = {}
            for each in boxes:
                record = each.record
                if not record.visited:
                    continue
                changed = (record.since, record.limit_count) != (since, args.count) or record.floor > 1
                if changed or not record.backfill_done:
                    record.since, record.limit_count = since, args.count
                    if args.count is not None:
                        record.backfilled = 0
                        record.floor = record.uidnext
                    elif record.backfill_done:
                        record.floor = record.uidnext
                    record.backfill_done = False
                    each.dirty = True
                wanted[record.mailbox_id] = record.count
            await account_pass.reader.settle()
            return wanted

        progress(0.02, message="connecting")
        before: dict[str, int] = await runner.perform("command", prepare)
        added = 0

        def report(state: AccountState, read: int) -> None:
            boxes = [state.mailboxes[m] for m in before if m in state.mailboxes]
            done = sum(1 for b in boxes if b.record.backfill_done)
            fraction = 0.05 + (PROGRESS_SHARE - 0.05) * done / max(len(boxes), 1)
            counts = {"messages": sum(b.record.count - before[b.record.mailbox_id] for b in boxes), "read": read}
            progress(fraction, counts=counts, message=f"{done} of {len(boxes)} mailboxes")

        added = await runner.read_history(frozenset(before), report)
        return {"messages_added": added, "mailboxes": len(before)}

    async def verify(self, account_id: str, args: VerifyArgs, progress: Reporter) -> Mapping[str, Any]:
        """Compare server, mirror and database (`deep`: and the log). Differences are looked at again; changes
        nothing.
        """
        runner = self._runner(account_id)
        progress(0.02, message="connecting")
        shard_log = await runner.shard.running()
        others: dict[str, Mapping[tuple[str, int, int], frozenset[str]]] = {
            "database": await self._truths.database(account_id)
        }
        if args.deep:
            progress(0.1, message="folding the log")
            others["log"] = await self._truths.folded_log(account_id, shard_log.partition)
        found = Differences(args.limit)
        checked = 0

        async def work(session: ImapSession, state: AccountState, account_pass: AccountPass) -> None:
            nonlocal checked
            boxes = [self._find(state, args.mailbox)] if args.mailbox else list(state.iterate())
            boxes = [b for b in boxes if b.record.selectable and b.record.visited]
            for count, box in enumerate(boxes):
                checked += await compare_mailbox(session, box, others, found)
                progress(0.2 + 0.6 * (count + 1) / max(len(boxes), 1), counts={"messages": checked})

        await runner.perform("command", work)
        if found.suspects:
            progress(0.85, message=f"looking again at {found.count} differences")
            found = await recheck(runner, self._truths, account_id, found, args)
        progress(PROGRESS_SHARE)
        return {
            "messages": checked,
            "differences": found.count,
            "findings": found.as_json(),
            "compared": ["server", "mirror", *others],
        }
