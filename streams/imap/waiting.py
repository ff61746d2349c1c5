"""Waiting for what the server has to say: IDLE and NOTIFY.

Invariants: nothing that came before IDLE began is slept over (case 28); both ends of IDLE have a deadline (case 78);
the session is out of IDLE afterwards, or ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from streams.errors import ConnectionLost, MalformedAnswer
from streams.imap.channel import Channel
from streams.imap.connection import Exchange
from streams.imap.errors import CommandRejected
from streams.imap.protocol.codes import During, classify
from streams.imap.protocol.commands import Command, fetch_item
from streams.imap.values import IdleOutcome


async def idle(channel: Channel, timeout_s: float | None, wake: asyncio.Event | None) -> IdleOutcome:
    """IDLE (RFC 2177) until something comes, `wake` is set, or the time is up; at once where it is refused, which shows
    in `has("IDLE")` from then on.
    """
    if channel.changes.pending:
        return IdleOutcome.DATA
    channel.stirred.clear()
    begun: asyncio.Future[None] = channel.protocol.loop.create_future()

    def on_continuation(_: bytes) -> bytes | None:
        if not begun.done():
            begun.set_result(None)
        return None

    exchange = channel.protocol.start(
        Command("IDLE"), on_continuation=on_continuation, timeout_s=channel.limits.idle_answer_timeout_s
    )
    try:
        waits: set[asyncio.Future[Any]] = {begun, exchange.done}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if exchange.done.done():  # refused, or the connection ended
            try:
                channel.accept(exchange.done.result(), During.COMMAND)
            except CommandRejected as error:
                channel.refuse("IDLE", error=error)
                return IdleOutcome.DATA if channel.has_changes() else IdleOutcome.RENEW
            raise MalformedAnswer("IDLE ended without having begun")
        exchange.deadline = None
        channel.protocol.arm()
        renew_s = channel.limits.idle_renew_s if timeout_s is None else min(timeout_s, channel.limits.idle_renew_s)
        await _first_of(channel, exchange, wake, renew_s)
        exchange.deadline = channel.protocol.loop.time() + channel.limits.idle_answer_timeout_s
        channel.protocol.arm()
        if not exchange.done.done():
            channel.protocol.send(b"DONE\r\n")
        channel.accept(await exchange.done, During.COMMAND)
    except asyncio.CancelledError:
        channel.protocol.fail(ConnectionLost("IDLE was given up", code="cancelled"))
        raise
    if channel.has_changes():
        return IdleOutcome.DATA
    return IdleOutcome.WAKE if wake is not None and wake.is_set() else IdleOutcome.RENEW


async def _first_of(channel: Channel, exchange: Exchange, wake: asyncio.Event | None, renew_s: float) -> None:
    """Wait for data, the caller's event, the end of IDLE, or the time."""
    tasks = [asyncio.ensure_future(channel.stirred.wait())]
    if wake is not None:
        tasks.append(asyncio.ensure_future(wake.wait()))
    waits: list[asyncio.Future[Any]] = [exchange.done, *tasks]
    try:
        await asyncio.wait(waits, timeout=renew_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def notify(channel: Channel, selected_items: Sequence[bytes]) -> bool:
    """NOTIFY (RFC 5465) for all personal mailboxes. False: not offered, refused.

    A server that does not know one of the events (BADEVENT) is asked for the two that tell
    of messages alone.
    """
    items = b" (" + b" ".join(fetch_item(item) for item in (b"UID", *selected_items)) + b")"
    new = b"MessageNew" + (items if selected_items else b"")
    selected = b"(selected (" + new + b" MessageExpunge FlagChange))"
    for events in (b"MessageNew MessageExpunge FlagChange MailboxName", b"MessageNew MessageExpunge"):
        if not channel.has("NOTIFY"):
            return False
        tagged = await channel.protocol.execute(
            Command("NOTIFY", (b"SET STATUS", selected, b"(personal (" + events + b"))")),
            timeout_s=channel.limits.command_timeout_s,
        )
        if tagged.condition == "OK":
            return True
        if tagged.condition == "BAD":
            channel.refuse("NOTIFY", error=classify(During.COMMAND, "BAD", tagged.code, tagged.text))
        elif tagged.code is None or tagged.code.name != "BADEVENT":
            return False
    return False
