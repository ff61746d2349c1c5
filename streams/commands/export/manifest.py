"""What an export holds: `export.json` says of what, `manifest/*.jsonl` lists every message, `manifest.json` the end.

A part of the manifest is written after everything it lists, and counts as a whole: an export that goes on reads the
parts, and knows what it need not fetch again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from pyroaring import BitMap

from streams.commands.export.destination import Destination

HEADER: Final = ("export.json",)
SUMMARY: Final = ("manifest.json",)
PARTS: Final = "manifest"


class Header(msgspec.Struct, frozen=True):
    """`export.json`."""

    account_id: str
    digest: str
    format: str
    arguments: dict[str, Any]
    version: int = 1


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. `path` is below the export; `problem` says why there is none."""

    mailbox: str
    uidvalidity: int
    uid: int
    size: int = 0
    path: str | None = None
    sha256: str | None = None
    internal_date: datetime | None = None
    flags: tuple[str, ...] = ()
    problem: str | None = None


class Summary(msgspec.Struct, frozen=True):
    """`manifest.json`: written last; an export without it is not complete."""

    account_id: str
    command_id: str
    format: str
    messages: int
    bytes: int
    skipped: int
    mailboxes: dict[str, int]
    parts: int
    completed_at: datetime


class DestinationTaken(Exception):
    """The directory holds an export of something else."""


class ManifestDamaged(Exception):
    """A part of the manifest cannot be read; what it listed is unknown."""


_LINE: Final = msgspec.json.Decoder(Line)
_ENCODER: Final = msgspec.json.Encoder()


class Manifest:
    """The manifest of one export. Blocking; called in threads."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._done: dict[tuple[str, int], BitMap] = defaultdict(BitMap)
        self._by_mailbox: dict[str, int] = defaultdict(int)
        self._parts = 0
        self.messages = 0
        self.bytes = 0
        self.skipped = 0

    def begin(self, header: Header) -> None:
        """Take up what is there, or begin. Raises `DestinationTaken`, `ManifestDamaged`, or what `Destination` does."""
        found = self._destination.read(HEADER)
        if found is None:
            self._destination.write(HEADER, _ENCODER.encode(header), durable=True)
            return
        try:
            other = msgspec.json.decode(found, type=Header)
        except msgspec.MsgspecError:
            raise DestinationTaken("the directory holds something else") from None
        if (other.account_id, other.digest) != (header.account_id, header.digest):
            raise DestinationTaken("the directory holds an export with other arguments")
        for name in self._destination.names((PARTS,)):
            if not name.endswith(".jsonl"):
                continue
            self._parts = max(self._parts, int(name.removesuffix(".jsonl")))
            content = self._destination.read((PARTS, name)) or b""
            try:
                for line in content.splitlines():
                    self._note(_LINE.decode(line))
            except msgspec.MsgspecError:
                raise ManifestDamaged(f"{PARTS}/{name} cannot be read") from None

    @property
    def next_part(self) -> int:
        """Number of the part that is written next: what belongs to it may carry the number in its name."""
        return self._parts + 1

    def done(self, mailbox: str, uidvalidity: int) -> BitMap:
        """UIDs that need not be fetched again."""
        return self._done[mailbox, uidvalidity]

    def add(self, lines: Sequence[Line]) -> None:
        """Write a part; what it lists is there already. Raises what `Destination` does."""
        number = self.next_part
        content = b"\n".join(_ENCODER.encode(line) for line in lines) + b"\n"
        self._destination.write((PARTS, f"{number:06d}.jsonl"), content, durable=True)
        self._parts = number
        for line in lines:
            self._note(line)

    def finish(self, account_id: str, command_id: str, kind: str, at: datetime) -> Summary:
        """Write the end. Raises what `Destination` does."""
        summary = Summary(
            account_id=account_id,
            command_id=command_id,
            format=kind,
            messages=self.messages,
            bytes=self.bytes,
            skipped=self.skipped,
            mailboxes=dict(self._by_mailbox),
            parts=self._parts,
            completed_at=at,
        )
        self._destination.write(SUMMARY, _ENCODER.encode(summary), durable=True)
        return summary

    def _note(self, line: Line) -> None:
        self._done[line.mailbox, line.uidvalidity].add(line.uid)
        if line.problem is None:
            self.messages += 1
            self.bytes += line.size
            self._by_mailbox[line.mailbox] += 1
        else:
            self.skipped += 1
