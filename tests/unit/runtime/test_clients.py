"""What aiokafka's clients do when a connection or a client ends (S16, W7)."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import conn
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest

from streams.runtime.clients import cancelled_from_elsewhere, mend_connections
from streams.runtime.process import new_event_loop


async def awaiting(future: asyncio.Future[None], seen: list[bool]) -> None:
    try:
        await future
    except asyncio.CancelledError as error:
        seen.append(cancelled_from_elsewhere(error))
        if not seen[-1]:
            raise


async def test_what_was_awaited_was_cancelled() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    seen: list[bool] = []
    task = asyncio.create_task(awaiting(future, seen))
    await asyncio.sleep(0)
    future.cancel()
    await task
    assert seen == [True]


async def test_the_task_itself_was_cancelled() -> None:
    seen: list[bool] = []
    task = asyncio.create_task(awaiting(asyncio.get_running_loop().create_future(), seen))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert seen == [False]
    assert task.cancelled()


async def test_other_errors_are_none() -> None:
    assert not cancelled_from_elsewhere(TimeoutError())


@pytest.mark.parametrize(
    "write",
    [
        lambda connection: connection.send(MetadataRequest([])),
        lambda connection: connection._send_sasl_token(b"token"),
    ],
    ids=["request", "sasl"],
)
def test_s16_a_write_to_a_closed_connection_is_a_lost_connection(
    write: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker resets it. uvloop raises a `RuntimeError` then, which would end aiokafka's routines for good."""
    monkeypatch.setattr(conn, "AIOKafkaConnection", conn.AIOKafkaConnection)
    mend_connections()

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def written_to() -> None:
        async with await asyncio.start_server(reset, "127.0.0.1", 0) as server:
            connection = conn.AIOKafkaConnection("127.0.0.1", server.sockets[0].getsockname()[1])
            connection._versions = {MetadataRequest.API_KEY: (0, 1)}
            connection._reader, connection._writer = await asyncio.open_connection("127.0.0.1", connection.port)
            connection._read_task = asyncio.create_task(asyncio.sleep(0))
            while connection._reader.exception() is None:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert connection.connected(), "its own reader would tell in a moment"
            with pytest.raises(KafkaConnectionError):
                write(connection)
            assert not connection.connected()

    loop = new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(written_to(), 10))
    finally:
        loop.close()
