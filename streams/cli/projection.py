"""`faust -A streams projection`: migrate, run, check and rebuild the projection in PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from streams.cli.frame import Invocation, asynchronous, synchronous
from streams.errors import ServiceUnavailable
from streams.projection.migrations import head, migrate
from streams.projection.reading import PROJECTED
from streams.projection.rebuild import rebuild as rebuild_projection
from streams.projection.status import StatusReader, StoredPosition
from streams.projection.topic_ids import topic_facts
from streams.settings import Settings

_KAFKA_S = 20.0
_MARKS = 16
"""So few records behind the end may be nothing but marks of transactions, which is looked up."""
_MARKS_S = 3.0
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.group()
def group() -> None:
    """Migrate, rebuild, run and check the projection in PostgreSQL."""


@group.command("migrate")
@_JSON
@asynchronous
async def migrate_command(cli: Invocation, *, as_json: bool) -> None:
    """Bring the database to the schema of this version (workers do so at their start as well)."""
    changed = await migrate(cli.settings.POSTGRES_DSN.get_secret_value())
    if cli.json or as_json:
        click.echo(json.dumps({"revision": head(), "changed": changed}))
    else:
        click.echo(f"database is at revision {head()}" + ("" if changed else ", nothing to do"))


@group.command("run")
@synchronous
def run(cli: Invocation) -> int:
    """Run the projection alone, without accounts: for installations where workers have PROJECTION=off."""
    from streams.assembly import ProjectorService
    from streams.runtime.checks import kafka_check
    from streams.runtime.hooks import Hooks
    from streams.runtime.launch import launch
    from streams.runtime.metrics import PrometheusObserver
    from streams.runtime.services import Check, Stage

    settings = cli.settings
    observer = PrometheusObserver()

    async def migrated() -> None:
        await migrate(settings.POSTGRES_DSN.get_secret_value())

    return launch(
        settings,
        stages=[Stage([ProjectorService(settings, observer)])],
        checks=[kafka_check(settings), Check("PostgreSQL", migrated)],
        hooks=Hooks(),
        observer=observer,
        exposition=observer.exposition,
    )


@group.command("status")
@_JSON
@asynchronous
async def status(cli: Invocation, *, as_json: bool) -> int:
    """Show how far the projection is behind the log. Exits with 1 when a topic is not the one that was projected."""
    settings = cli.settings
    async with StatusReader.connected(settings) as reader:
        positions = await reader.positions()
    ends, ids, away = await _ends(settings, positions)
    rows = [_judged(position, ends, ids) for position in positions]
    known = {(row["topic"], row["partition"]) for row in rows}
    unprojected = sorted(set(ends) - known) if positions or ends else []
    if cli.json or as_json:
        click.echo(
            json.dumps(
                {"kafka": away or "ok", "positions": rows, "never_projected": [list(item) for item in unprojected]},
                default=str,
            )
        )
    else:
        _show(rows, unprojected, away)
    return 1 if any(row["same_topic"] is False for row in rows) else 0


def _judged(position: StoredPosition, ends: dict[tuple[str, int], int], ids: dict[str, str]) -> dict[str, Any]:
    end = ends.get((position.topic, position.partition))
    topic_id = ids.get(position.topic)
    return {
        **asdict(position),
        "end": end,
        "lag": None if end is None else max(0, end - position.next_offset),
        "same_topic": None if topic_id is None else topic_id == position.topic_id,
    }


async def _ends(
    settings: Settings, positions: Sequence[StoredPosition]
) -> tuple[dict[tuple[str, int], int], dict[str, str], str | None]:
    """Ends of the projected partitions and ids of their topics, or why they cannot be told.

    Where no event lies between a position and the end, the position is the end: the rest are marks of transactions.
    """
    consumer = AIOKafkaConsumer(**settings.kafka_client(), isolation_level="read_committed", enable_auto_commit=False)
    try:
        async with asyncio.timeout(_KAFKA_S):
            await consumer.start()
            facts = await topic_facts(consumer, [settings.topic(name) for name in PROJECTED])
            partitions = [TopicPartition(name, number) for name, found in facts.items() for number in found.partitions]
            ends = await consumer.end_offsets(partitions)
            near = {
                partition: position.next_offset
                for position in positions
                if (partition := TopicPartition(settings.topic(position.topic), position.partition)) in ends
                and 0 < ends[partition] - position.next_offset <= _MARKS
            }
            ends |= {partition: near[partition] for partition in await _without_events(consumer, near, ends)}
    except (KafkaError, OSError, TimeoutError, ServiceUnavailable) as error:
        return {}, {}, f"Kafka does not answer ({type(error).__name__})"
    finally:
        await consumer.stop()
    prefix = settings.KAFKA_TOPIC_PREFIX
    return (
        {(partition.topic.removeprefix(prefix), partition.partition): end for partition, end in ends.items()},
        {name.removeprefix(prefix): str(found.topic_id) for name, found in facts.items()},
        None,
    )


async def _without_events(
    consumer: AIOKafkaConsumer, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int]
) -> set[TopicPartition]:
    """Partitions that hold no event from their start to their end."""
    if not starts:
        return set()
    consumer.assign(list(starts))
    for partition, offset in starts.items():
        consumer.seek(partition, offset)
    waiting, without = set(starts), set()
    deadline = time.monotonic() + _MARKS_S
    while waiting and time.monotonic() < deadline:
        waiting -= set(await consumer.getmany(*waiting, timeout_ms=200))
        passed = {partition for partition in waiting if await consumer.position(partition) >= ends[partition]}
        without |= passed
        waiting -= passed
    return without


def _show(rows: list[dict[str, Any]], unprojected: list[tuple[str, int]], away: str | None) -> None:
    console = Console(highlight=False)
    if away:
        click.echo(away, err=True)
    table = Table(box=None, header_style="bold")
    for name in ("topic", "partitions", "behind", "most behind", "last written", ""):
        table.add_column(name)
    for topic in PROJECTED:
        mine = [row for row in rows if row["topic"] == topic]
        if not mine:
            table.add_row(topic, "0", "", "", "", "never projected")
            continue
        lags = {row["partition"]: row["lag"] for row in mine if row["lag"] is not None}
        worst = max(lags, key=lambda partition: lags[partition], default=None)
        note = "NOT the topic that was projected: rebuild" if any(r["same_topic"] is False for r in mine) else ""
        table.add_row(
            topic,
            str(len(mine)),
            str(sum(lags.values())) if lags else "unknown",
            "" if worst is None or not lags[worst] else f"partition {worst}: {lags[worst]}",
            f"{max(row['updated_at'] for row in mine):%Y-%m-%d %H:%M:%S}",
            note,
        )
    console.print(table)
    if rows and unprojected:
        click.echo(f"{len(unprojected)} partitions were never projected")


@group.command("rebuild")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_JSON
@asynchronous
async def rebuild(cli: Invocation, *, yes: bool, as_json: bool) -> None:
    """Replay the log into fresh tables and put them in place of the old ones.

    Workers and readers go on meanwhile; projectors wait for about a second at the end. Refused when the log does not
    reach back to its start.
    """
    if not yes:
        click.confirm("Replay the whole log into fresh tables and replace the projection?", abort=True, err=True)
    console = Console(stderr=True)
    with Progress(
        TextColumn("[bold]replaying"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} records"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        bar = progress.add_task("replaying", total=1)
        steps = _Steps(quiet=console.is_terminal or as_json or cli.json)

        def on_progress(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=max(total, 1))
            steps(done, total)

        done = await rebuild_projection(cli.settings, on_progress)
    if cli.json or as_json:
        click.echo(json.dumps(asdict(done)))
    else:
        rate = done.events / done.seconds if done.seconds else 0
        click.echo(
            f"rebuilt from {done.records:,} records ({done.events:,} events) in {done.seconds:.1f} s "
            f"({rate:,.0f} events/s); projectors were held for {done.held_s:.2f} s"
        )


class _Steps:
    """Without a terminal: a line at each tenth of the way."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._told = 0

    def __call__(self, done: int, total: int) -> None:
        tenth = 10 * done // max(total, 1)
        if not self._quiet and tenth > self._told:
            self._told = tenth
            click.echo(f"{tenth * 10} % of {total:,} records", err=True)
