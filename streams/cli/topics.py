"""`faust -A streams topics`: create what is missing, show what is different, commit first offsets. Safe to repeat."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import click

from streams.assembly import changelog_topics, consumer_groups, create_app
from streams.cli.frame import EXIT_CONFIGURATION, Invocation, asynchronous, fail
from streams.errors import ConfigurationError, ServiceUnavailable
from streams.runtime.process import configuration_line
from streams.runtime.topics import Inspection, TopicAdmin, wanted_topics
from streams.settings import Settings


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@click.option("--alter", is_flag=True, help="Also set the configuration of existing topics to what is wanted.")
@asynchronous
async def command(cli: Invocation, *, dry_run: bool, alter: bool) -> int:
    """Create the topics with explicit settings, check those that exist, commit first offsets of our groups.

    Exits with 2 when a topic exists with another number of partitions or another cleanup policy (which --alter
    changes): neither can be repaired without thinking.
    """
    settings = cli.settings
    app = create_app(settings)
    wanted, groups = wanted_topics(settings, changelog_topics(app)), consumer_groups(app)
    async with TopicAdmin.connected(settings) as admin:
        before = await admin.inspect(wanted, groups)
        after = before
        notes: list[str] = []
        if not dry_run:
            if before.missing and not cli.json and sys.stderr.isatty():
                # A single broker may need half a minute for them all.
                click.echo(f"creating {len(before.missing)} topics of {settings.PARTITIONS} partitions", err=True)
            await admin.create(before.missing)
            if alter:
                await admin.alter(before.config)
            created = await admin.inspect(wanted, groups)
            for group, partitions in created.offsets.items():
                try:
                    await admin.commit_first_offsets(group, partitions)
                except ServiceUnavailable as error:
                    notes.append(f"offsets of {group} were not committed: {error}")
            after = await admin.inspect(wanted, groups)
    _report(cli, settings, before, after, notes, dry_run=dry_run, alter=alter)
    if dry_run:
        after = replace(after, missing=[])
    if (wrong := after.fatal()) is not None:
        fail(configuration_line(ConfigurationError(wrong)), EXIT_CONFIGURATION)
    return 0


def _report(
    cli: Invocation,
    settings: Settings,
    before: Inspection,
    after: Inspection,
    notes: list[str],
    *,
    dry_run: bool,
    alter: bool,
) -> None:
    if cli.json:
        click.echo(
            json.dumps(
                {
                    "dry_run": dry_run,
                    "created": [topic.name for topic in before.missing],
                    "partitions": [str(item) for item in after.partitions],
                    "config": [str(item) for item in after.config],
                    "offsets": {group: len(partitions) for group, partitions in before.offsets.items()},
                    "notes": notes,
                }
            )
        )
        return
    would = "would create" if dry_run else "created"
    for topic in before.missing:
        click.echo(f"{would} {topic.name} ({topic.partitions} partitions, replication {topic.replication})")
        for name, value in topic.config.items():
            click.echo(f"    {name}={value}")
    for item in before.config:
        done = "would set" if dry_run and alter else "set" if alter else "different (--alter sets it)"
        click.echo(f"{done}: {item}")
    for group, partitions in before.offsets.items():
        would = "would commit" if dry_run else "committed"
        click.echo(f"{would} first offsets of {len(partitions)} partitions for group {group}")
    for note in notes:
        click.echo(note)
    if not before.missing and not before.config and not before.offsets and not before.partitions:
        click.echo(f"all topics are as they must be ({settings.PARTITIONS} partitions each)")
