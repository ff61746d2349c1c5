"""What a script did to one account, so that every event can be explained by a change that was.

Places are named by (uidvalidity, uid): a server gives each mailbox of an account its own UIDVALIDITY, and a rename
keeps it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.storm.checker.findings import Finding
from tests.storm.checker.fold import FoldedAccount
from tests.storm.checker.server import ServerMailbox, canonical_flags

Spot = tuple[int, int]


@dataclass(slots=True)
class Journal:
    """Everything that ever was in an account. Written before or after each action, always before the check."""

    created: set[Spot] = field(default_factory=set)
    destroyed: set[Spot] = field(default_factory=set)
    flags: defaultdict[Spot, list[frozenset[str]]] = field(default_factory=lambda: defaultdict(list))
    """All that a place ever had, in the order of time; each change of flags is looked at before the next is made."""

    now: dict[Spot, frozenset[str]] = field(default_factory=dict)
    """What the client last saw of each place that is still there."""

    renamed: set[int] = field(default_factory=set)
    """Epochs of mailboxes that changed their name: their places left one name and came under another."""

    deleting: set[int] = field(default_factory=set)
    """Epochs of mailboxes that were to be deleted: a server which is stopped meanwhile may go either way."""

    def observe(self, server: Mapping[str, ServerMailbox]) -> None:
        """Take over all that the server shows: also settles what an interrupted action may have done."""
        present: set[Spot] = set()
        for mailbox in server.values():
            for uid, message in mailbox.messages.items():
                spot = (mailbox.uidvalidity, uid)
                present.add(spot)
                self._has(spot, message.flags)
        self.created |= present
        self._gone(self.created - present)

    def observe_mailbox(self, uidvalidity: int, present: Mapping[int, frozenset[str]]) -> None:
        """Take over one mailbox: UID → flags. What was there and is not has been destroyed."""
        for uid, flags in present.items():
            spot = (uidvalidity, uid)
            self.created.add(spot)
            self._has(spot, flags)
        self._gone({spot for spot in self.created if spot[0] == uidvalidity and spot[1] not in present})

    def _has(self, spot: Spot, flags: frozenset[str]) -> None:
        self.now[spot] = flags
        if self.flags[spot][-1:] != [flags]:
            self.flags[spot].append(flags)

    def _gone(self, spots: Iterable[Spot]) -> None:
        for spot in spots:
            self.destroyed.add(spot)
            self.now.pop(spot, None)


def explained(account: FoldedAccount, journal: Journal) -> Iterator[Finding]:
    """No event for a change that never was. The flags of a place are told in the order in which it had them, too: a
    change that is told late, after the one that took it back, never was.
    """
    told: dict[Spot, int] = {}
    for event in account.events:
        body = event.body
        match event.kind:
            case "message.added":
                arrived, left, flags = [body], [], canonical_flags(body.get("flags", ()))
            case "message.moved":
                arrived, left, flags = [body["to"]], [body["from"]], canonical_flags(body.get("flags", ()))
            case "message.removed":
                arrived, left, flags = [], [body], frozenset()
            case "message.flags_changed":
                arrived, left, flags = [body], [], canonical_flags(body["flags"])
            case _:
                continue
        for spot in arrived:
            where = (spot["uidvalidity"], spot["uid"])
            if where not in journal.created:
                yield _unexplained(account, "invented_place", spot["mailbox"], where, str(event))
            elif flags not in journal.flags[where]:
                yield _unexplained(account, "invented_flags", spot["mailbox"], where, str(event), sorted(flags))
            elif flags not in journal.flags[where][told.get(where, 0) :]:
                history = [sorted(each) for each in journal.flags[where]]
                yield Finding(
                    "flags_went_back", account.account, spot["mailbox"], where[1], history, sorted(flags), (str(event),)
                )
            else:
                told[where] = journal.flags[where].index(flags, told.get(where, 0))
        for spot in left:
            where = (spot["uidvalidity"], spot["uid"])
            if where not in journal.destroyed and where[0] not in journal.renamed:
                yield _unexplained(account, "invented_removal", spot["mailbox"], where, str(event))


def ended(account: FoldedAccount, journal: Journal, server: Mapping[str, ServerMailbox]) -> Iterator[Finding]:
    """No mailbox was told as deleted, or as numbered anew, that is still there under its name and numbering.

    What is deleted or numbered anew never comes back with the same UIDVALIDITY. Mailboxes that were renamed are left
    out: one that is seen under its new name first may be told as a new one and a deleted one, there and back again.
    """
    moving = journal.renamed | journal.deleting
    for event, mailbox in account.ended:
        there = server.get(mailbox.key)
        if there is None or mailbox.uidvalidity != there.uidvalidity or mailbox.uidvalidity in moving:
            continue
        rule = "invented_deletion" if event.kind == "mailbox.deleted" else "invented_reset"
        near = account.around(mailbox_id=mailbox.mailbox_id, most=6)
        yield Finding(
            rule,
            account.account,
            mailbox.name,
            expected=f"still there, uidvalidity {there.uidvalidity}",
            got=str(event),
            around=near,
        )


def _unexplained(
    account: FoldedAccount, rule: str, mailbox: str, where: Spot, event: str, got: object = "an event"
) -> Finding:
    return Finding(rule, account.account, mailbox, where[1], "a change that the script made", got, (event,))


def untouched(account: str, journal: Journal, server: Mapping[str, ServerMailbox]) -> Iterator[Finding]:
    """Syncing never changes mail: the server holds what the script left, place by place and flag by flag."""
    present = {
        (mailbox.uidvalidity, uid): (mailbox.wire_name, message.flags)
        for mailbox in server.values()
        for uid, message in mailbox.messages.items()
    }
    for spot, flags in journal.now.items():
        name, found = present.get(spot, (None, None))
        if found != flags:
            yield Finding("mail_was_changed", account, name, spot[1], sorted(flags), found and sorted(found))
    for spot in present.keys() - journal.now.keys():
        yield Finding("mail_was_changed", account, present[spot][0], spot[1], "no message", sorted(present[spot][1]))
