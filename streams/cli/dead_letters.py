"""`faust -A streams dead-letters`: look at records that could not be handled, send them again, set them aside.

Exit codes: 0 done; 1 failed or no such letter; 2 wrong usage or configuration.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.table import Table

from streams.cli.frame import Invocation, asynchronous
from streams.commands.dead_letters import SOURCES, DeadLetter, LetterDesk, LetterUnknown, Resolution, read_letters

SHOWN_BYTES: Final = 4096


@click.group("dead-letters")
def group() -> None:
    """Look at records that could not be handled, and send them again."""


_topic = click.argument("topic", type=click.Choice(SOURCES))
_json = click.option("--json", "as_json", is_flag=True, help="JSON, one object a line.")


@group.command("list")
@click.option("--topic", type=click.Choice(SOURCES), help="Only those of this topic.")
@click.option("--reason", help="Only those with this reason.")
@click.option("--all", "everything", is_flag=True, help="Also those that were dealt with.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Newest shown, per topic.")
@_json
@asynchronous
async def list_letters(
    current: Invocation, /, topic: str | None, reason: str | None, everything: bool, limit: int, as_json: bool
) -> None:
    """List dead letters."""
    as_json = as_json or current.json
    table = Table("topic", "id", "reason", "since", "key", "error", box=None, pad_edge=False)
    counts: Counter[tuple[str, str]] = Counter()
    for name in [topic] if topic else SOURCES:
        letters = _matching(await read_letters(current.settings, name), reason, everything)
        counts.update((name, letter.reason) for letter in letters)
        for letter in sorted(letters, key=lambda letter: letter.at)[-limit:]:
            if as_json:
                click.echo(msgspec.json.encode(_plain(letter)).decode())
            else:
                state = f" ({letter.resolution})" if letter.resolution else ""
                table.add_row(
                    name,
                    letter.letter_id,
                    letter.reason + state,
                    letter.at.isoformat(timespec="seconds"),
                    _shown(letter.key, 40),
                    letter.error[:80],
                )
    if not as_json:
        console = Console(markup=False, highlight=False)
        if counts:
            console.print(table)
        for (name, why), count in sorted(counts.items()):
            console.print(f"{count:,} {why} in {name}")
        if not counts:
            console.print("no dead letters")


@group.command("show")
@_topic
@click.argument("letter_id")
@click.option("--raw", is_flag=True, help="Only the value, byte by byte.")
@_json
@asynchronous
async def show(current: Invocation, /, topic: str, letter_id: str, raw: bool, as_json: bool) -> None:
    """Show one dead letter."""
    letters = {letter.letter_id: letter for letter in await read_letters(current.settings, topic)}
    letter = letters.get(letter_id)
    if letter is None:
        raise LetterUnknown(f"{topic} has no dead letter {letter_id}")
    if raw:
        click.get_binary_stream("stdout").write(letter.value or b"")
        return
    if as_json or current.json:
        click.echo(msgspec.json.encode(_plain(letter)).decode())
        return
    click.echo(f"id: {letter.letter_id}\nreason: {letter.reason}\nerror: {letter.error}\nfrom: {letter.origin}")
    click.echo(f"since: {letter.at.isoformat()}\nkey: {_shown(letter.key, 200)}")
    if letter.resolution:
        click.echo(f"dealt with: {letter.resolution}")
    for name, value in letter.headers:
        if not name.startswith("dlq_"):
            click.echo(f"header {name}: {_shown(value, 200)}")
    click.echo(f"value ({len(letter.value or b''):,} bytes):\n{_shown(letter.value, SHOWN_BYTES)}")


@group.command("redrive")
@_topic
@click.argument("letter_ids", nargs=-1)
@click.option("--reason", help="All with this reason.")
@click.option("--all", "everything", is_flag=True, help="All of the topic.")
@asynchronous
async def redrive(
    current: Invocation, /, topic: str, letter_ids: tuple[str, ...], reason: str | None, everything: bool
) -> None:
    """Send dead letters again. A command gets a new id: under the old one its failure is published."""
    await _resolve(current, topic, letter_ids, reason, everything, "redriven")


@group.command("discard")
@_topic
@click.argument("letter_ids", nargs=-1)
@click.option("--reason", help="All with this reason.")
@click.option("--all", "everything", is_flag=True, help="All of the topic.")
@asynchronous
async def discard(
    current: Invocation, /, topic: str, letter_ids: tuple[str, ...], reason: str | None, everything: bool
) -> None:
    """Set dead letters aside. They stay in the topic until it forgets them, and are not listed any more."""
    await _resolve(current, topic, letter_ids, reason, everything, "discarded")


async def _resolve(
    current: Invocation,
    topic: str,
    letter_ids: tuple[str, ...],
    reason: str | None,
    everything: bool,
    resolution: Resolution,
) -> None:
    if sum((bool(letter_ids), reason is not None, everything)) != 1:
        raise click.UsageError("name letters by id, or by --reason, or give --all")
    async with LetterDesk.opened(current.settings) as desk:
        if not letter_ids:
            letters = _matching(await read_letters(current.settings, topic), reason, everything=False)
            cut = [letter for letter in letters if letter.cut]
            if resolution == "redriven" and cut:
                click.echo(f"{len(cut)} are not whole and are left", err=True)
                letters = [letter for letter in letters if not letter.cut]
            letter_ids = tuple(letter.letter_id for letter in letters)
        done = await desk.resolve(topic, letter_ids, resolution)
    click.echo(f"{resolution} {len(done)}")


def _matching(letters: list[DeadLetter], reason: str | None, everything: bool) -> list[DeadLetter]:
    return [
        letter
        for letter in letters
        if (everything or letter.resolution is None) and (reason is None or letter.reason == reason)
    ]


def _plain(letter: DeadLetter) -> dict[str, Any]:
    return {
        "topic": letter.topic,
        "id": letter.letter_id,
        "reason": letter.reason,
        "error": letter.error,
        "from": letter.origin,
        "since": letter.at,
        "resolution": letter.resolution,
        "key": _shown(letter.key, 1000),
        "value": _shown(letter.value, 1_000_000),
        "headers": {name: _shown(value, 1000) for name, value in letter.headers if not name.startswith("dlq_")},
    }


def _shown(value: bytes | None, limit: int) -> str:
    """Bytes for a terminal: no control characters, however they came there."""
    if value is None:
        return "(none)"
    text = value[:limit].decode("utf-8", "backslashreplace")
    clean = "".join(character if character.isprintable() or character in "\n\t" else "�" for character in text)
    return clean + (" …" if len(value) > limit else "")
