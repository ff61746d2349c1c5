"""The proxy does to connections what it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from streams.local.ports import HOST
from tests.rig.proxy import Proxy

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    server = await asyncio.start_server(_echo, HOST, 0)
    async with Proxy(server.sockets[0].getsockname()[1]) as between:
        yield between
    server.close()


async def connect(proxy: Proxy) -> Connection:
    return await asyncio.open_connection(HOST, proxy.port)


async def say(connection: Connection, text: bytes) -> bytes:
    reader, writer = connection
    writer.write(text)
    await writer.drain()
    return await asyncio.wait_for(reader.read(1000), 5)


async def ended(connection: Connection) -> bytes:
    """What still comes until the connection ends."""
    try:
        return await asyncio.wait_for(connection[0].read(), 5)
    except ConnectionError:
        return b""
    finally:
        connection[1].transport.abort()


async def test_forwards_and_cuts(proxy: Proxy) -> None:
    connection = await connect(proxy)
    assert await say(connection, b"hello") == b"hello"
    proxy.cut()
    assert await ended(connection) == b""


async def test_delays(proxy: Proxy) -> None:
    connection = await connect(proxy)
    proxy.delay_s = 0.2
    began = asyncio.get_running_loop().time()
    assert await say(connection, b"hello") == b"hello"
    assert asyncio.get_running_loop().time() - began >= 0.4
    connection[1].transport.abort()


async def test_halves_an_answer(proxy: Proxy) -> None:
    connection = await connect(proxy)
    proxy.halve(7)
    connection[1].write(b"hello world")
    assert await ended(connection) == b"hello w"


async def test_goes_silent_with_the_connection_open_and_resets_when_healed(proxy: Proxy) -> None:
    connection = await connect(proxy)
    assert await say(connection, b"a") == b"a"
    proxy.silent = True
    connection[1].write(b"b")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connection[0].read(10), 0.3)
    proxy.heal()
    assert await ended(connection) == b""
    again = await connect(proxy)
    assert await say(again, b"c") == b"c"
    again[1].transport.abort()


async def test_refuses(proxy: Proxy) -> None:
    proxy.refusing = True
    assert await ended(await connect(proxy)) == b""
