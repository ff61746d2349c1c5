"""What the log adds up to, account by account, and every event that makes no sense where it stands.

An event makes no sense when it names a place that is not there, adds one that is, changes what does not change, or
speaks of an epoch (uidvalidity) that is not the mailbox's. Such an event is either doubled, or follows one that was
lost, or was invented.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tests.storm.checker.findings import Finding
from tests.storm.checker.log import Event
from tests.storm.checker.server import canonical_flags, wire_key

PlaceKey = tuple[str, int, int]
"""mailbox_id, uidvalidity, uid."""


@dataclass(slots=True)
class FoldedMailbox:
    """A mailbox as the log tells it."""

    mailbox_id: str
    name: str
    wire_name: str
    selectable: bool
    uidvalidity: int | None
    delimiter: str | None = None
    special_use: str | None = None
    backfilled: bool = False

    @property
    def key(self) -> str:
        """The name by which it is compared with the server's."""
        return wire_key(self.wire_name)


@dataclass(frozen=True, slots=True)
class FoldedPlace:
    """A message in a place as the log tells it."""

    message: str
    flags: frozenset[str]


@dataclass(slots=True)
class FoldedAccount:
    """Everything the log says of one account."""

    account: str
    mailboxes: dict[str, FoldedMailbox] = field(default_factory=dict)
    places: dict[PlaceKey, FoldedPlace] = field(default_factory=dict)
    unreadable: set[PlaceKey] = field(default_factory=set)
    sequence: int = 0
    caught_up: int = 0
    nonsense: list[Finding] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    told: dict[str, Event] = field(default_factory=dict)
    """The last `message.added` of each message."""

    ended: list[tuple[Event, FoldedMailbox]] = field(default_factory=list)
    """Each deletion and reset of a mailbox, and the mailbox as it was before."""

    def of_mailbox(self, mailbox_id: str) -> dict[int, FoldedPlace]:
        """UID → place, of the mailbox's present epoch."""
        epoch = self.mailboxes[mailbox_id].uidvalidity
        return {uid: place for (box, era, uid), place in self.places.items() if box == mailbox_id and era == epoch}

    def around(self, *, mailbox_id: str | None = None, uid: int | None = None, most: int = 12) -> tuple[str, ...]:
        """The last events that speak of this mailbox or place."""
        return tuple(str(event) for event in self.events if _speaks_of(event, mailbox_id, uid))[-most:]


def _speaks_of(event: Event, mailbox_id: str | None, uid: int | None) -> bool:
    spots: Iterable[dict[str, Any]] = (event.body, event.body.get("from") or {}, event.body.get("to") or {})
    for spot in spots:
        if (mailbox_id is None or spot.get("mailbox_id") == mailbox_id) and (
            uid is None or spot.get("uid") in (uid, None)
        ):
            return True
    return False


class Folder:
    """Folds the events of one account in log order."""

    def __init__(self, account: str) -> None:
        self.state = FoldedAccount(account)
        self._left: set[PlaceKey] = set()
        """Places told as given up since their mailbox was discovered, renamed or reset: UIDs are given once."""
        self._renumbered: set[str] = set()
        """Mailboxes whose UIDs came to mean other messages under the same UIDVALIDITY: there they are given again."""

    def wrong(self, event: Event, rule: str, expected: Any, got: Any) -> None:
        body = event.body
        spot = body["from"] if isinstance(body.get("from"), dict) else body
        near = self.state.around(mailbox_id=spot.get("mailbox_id"), uid=spot.get("uid"), most=6)
        self.state.nonsense.append(
            Finding(
                rule,
                self.state.account,
                spot.get("mailbox"),
                spot.get("uid"),
                expected,
                got,
                around=near if str(event) in near else (*near, str(event)),
            )
        )

    def take(self, event: Event) -> None:
        """Apply one event."""
        self.state.events.append(event)
        self.state.sequence = event.sequence
        handler = getattr(self, "_" + event.kind.replace(".", "_"), None)
        if handler is None:
            self.wrong(event, "unknown_event", "a documented type", event.kind)
            return
        try:
            handler(event, event.body)
        except (KeyError, TypeError, AttributeError) as error:
            # Found instead of raised: the checker goes on, and tells everything else that is wrong.
            self.wrong(event, "incomplete_event", "an event with all that its type needs", repr(error))

    # --- mailboxes

    def _mailbox_discovered(self, event: Event, body: dict[str, Any]) -> None:
        if body["mailbox_id"] in self.state.mailboxes:
            self.wrong(event, "mailbox_twice", "a mailbox that is not there", body["mailbox"])
        self.state.mailboxes[body["mailbox_id"]] = FoldedMailbox(
            body["mailbox_id"],
            body["mailbox"],
            body["wire_name"],
            body.get("selectable", True),
            body.get("uidvalidity"),
            body.get("delimiter"),
            body.get("special_use"),
        )

    def _forget_left(self, mailbox_id: str) -> None:
        self._left = {key for key in self._left if key[0] != mailbox_id}

    def _known(self, event: Event, mailbox_id: str) -> FoldedMailbox | None:
        mailbox = self.state.mailboxes.get(mailbox_id)
        if mailbox is None:
            self.wrong(event, "mailbox_unknown", "a mailbox that is there", mailbox_id)
        return mailbox

    def _mailbox_renamed(self, event: Event, body: dict[str, Any]) -> None:
        mailbox = self._known(event, body["mailbox_id"])
        if mailbox is not None:
            if mailbox.name != body["previous"]:
                self.wrong(event, "renamed_from_elsewhere", mailbox.name, body["previous"])
            mailbox.name = body["mailbox"]
            mailbox.wire_name = body["wire_name"]
            mailbox.selectable = body.get("selectable", True)
            mailbox.delimiter, mailbox.special_use = body.get("delimiter"), body.get("special_use")
            self._forget_left(mailbox.mailbox_id)

    def _mailbox_deleted(self, event: Event, body: dict[str, Any]) -> None:
        mailbox = self._known(event, body["mailbox_id"])
        if mailbox is not None:
            self.state.ended.append((event, mailbox))
            del self.state.mailboxes[body["mailbox_id"]]
            self._forget_left(mailbox.mailbox_id)
            self.state.places = {key: place for key, place in self.state.places.items() if key[0] != body["mailbox_id"]}
            self.state.unreadable = {key for key in self.state.unreadable if key[0] != body["mailbox_id"]}

    def _mailbox_reset(self, event: Event, body: dict[str, Any]) -> None:
        mailbox = self._known(event, body["mailbox_id"])
        if mailbox is not None:
            if mailbox.uidvalidity is not None and mailbox.uidvalidity != body["previous_uidvalidity"]:
                self.wrong(event, "reset_of_other_epoch", mailbox.uidvalidity, body["previous_uidvalidity"])
            self.state.ended.append((event, replace(mailbox)))
            if mailbox.uidvalidity == body["uidvalidity"]:
                self._renumbered.add(mailbox.mailbox_id)
            mailbox.uidvalidity = body["uidvalidity"]
            self._forget_left(mailbox.mailbox_id)
            self.state.unreadable = {key for key in self.state.unreadable if key[0] != body["mailbox_id"]}

    # --- messages

    def _epoch(self, event: Event, spot: dict[str, Any]) -> None:
        mailbox = self._known(event, spot["mailbox_id"])
        if mailbox is None:
            return
        if mailbox.uidvalidity is None:
            mailbox.uidvalidity = spot["uidvalidity"]
        if mailbox.uidvalidity != spot["uidvalidity"]:
            self.wrong(event, "other_epoch", mailbox.uidvalidity, spot["uidvalidity"])
        if mailbox.name != spot["mailbox"]:
            self.wrong(event, "other_name", mailbox.name, spot["mailbox"])

    def _enter(self, event: Event, spot: dict[str, Any], place: FoldedPlace) -> None:
        self._epoch(event, spot)
        key = _key(spot)
        if key in self.state.places:
            self.wrong(event, "place_twice", "a place that is free", self.state.places[key])
        elif key in self._left:
            self.wrong(event, "place_back", "a UID that was not given before", key)
        self.state.places[key] = place
        self.state.unreadable.discard(key)

    def _leave(self, event: Event, spot: dict[str, Any], message: str) -> FoldedPlace | None:
        key = _key(spot)
        place = self.state.places.pop(key, None)
        if place is None:
            if key in self.state.unreadable:
                self.state.unreadable.discard(key)
            else:
                self.wrong(event, "place_unknown", "a place that is there", key)
            return None
        if place.message != message:
            self.wrong(event, "other_message", place.message, message)
        if key[0] not in self._renumbered:
            self._left.add(key)
        return place

    def _message_added(self, event: Event, body: dict[str, Any]) -> None:
        if not body.get("truncated") or body["message_id"] not in self.state.told:
            self.state.told[body["message_id"]] = event
        self._enter(event, body, FoldedPlace(body["message_id"], canonical_flags(body.get("flags", ()))))

    def _message_moved(self, event: Event, body: dict[str, Any]) -> None:
        self._leave(event, body["from"], body["message_id"])
        self._enter(event, body["to"], FoldedPlace(body["message_id"], canonical_flags(body.get("flags", ()))))

    def _message_removed(self, event: Event, body: dict[str, Any]) -> None:
        self._leave(event, body, body["message_id"])

    def _message_flags_changed(self, event: Event, body: dict[str, Any]) -> None:
        self._epoch(event, body)
        key = _key(body)
        before = self.state.places.get(key)
        flags = canonical_flags(body["flags"])
        if before is None:
            self.wrong(event, "place_unknown", "a place that is there", key)
            return
        if before.message != body["message_id"]:
            self.wrong(event, "other_message", before.message, body["message_id"])
        added, removed = canonical_flags(body.get("added", ())), canonical_flags(body.get("removed", ()))
        if (added, removed) != (flags - before.flags, before.flags - flags):
            self.wrong(
                event,
                "flags_do_not_add_up",
                (sorted(flags - before.flags), sorted(before.flags - flags)),
                (sorted(added), sorted(removed)),
            )
        if flags == before.flags and body.get("labels") is None:
            self.wrong(event, "no_change", "other flags than before", sorted(flags))
        self.state.places[key] = FoldedPlace(before.message, flags)

    def _message_unreadable(self, event: Event, body: dict[str, Any]) -> None:
        self._epoch(event, body)
        key = _key(body)
        if key in self.state.places:
            self.wrong(event, "unreadable_but_there", "a place that is not known", key)
        self.state.unreadable.add(key)

    # --- milestones

    def _account_caught_up(self, event: Event, body: dict[str, Any]) -> None:
        self.state.caught_up += 1
        if self.state.caught_up > 1:
            self.wrong(event, "caught_up_twice", 1, self.state.caught_up)

    def _backfill_completed(self, event: Event, body: dict[str, Any]) -> None:
        mailbox = self._known(event, body["mailbox_id"])
        if mailbox is not None:
            mailbox.backfilled = True


def _key(spot: dict[str, Any]) -> PlaceKey:
    return spot["mailbox_id"], spot["uidvalidity"], spot["uid"]


def fold(events: Iterable[Event]) -> dict[str, FoldedAccount]:
    """Every account of the log, folded in the order of the log."""
    folders: dict[str, Folder] = {}
    for event in events:
        folders.setdefault(event.account, Folder(event.account)).take(event)
    return {account: folder.state for account, folder in folders.items()}


def by_partition(events: Iterable[Event]) -> Iterator[tuple[int, list[Event]]]:
    """Events of each partition in offset order."""
    grouped: defaultdict[int, list[Event]] = defaultdict(list)
    for event in events:
        grouped[event.partition].append(event)
    for partition, of_it in sorted(grouped.items()):
        yield partition, sorted(of_it, key=lambda event: event.offset)
