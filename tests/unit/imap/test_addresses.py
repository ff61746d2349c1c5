"""Which addresses may be dialled: case 105."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any

import pytest

from streams.errors import AddressRefused, ConnectionLost
from streams.imap.addresses import AddressPolicy, resolve
from streams.imap.connecting import connect
from streams.imap.values import Endpoint
from tests.scripted_imap.script import LOGIN_DIALOGUE, ScriptedServer

INSIDE = [
    *("127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "198.18.0.1"),
    *("::1", "fd00::1", "fec0::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:7f00:1::"),
]
NEVER = [
    *("169.254.169.254", "fe80::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "240.0.0.1"),
    *("::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"),
]
UNIFORM = "the host cannot be used: its name does not lead to an address that may be dialled"
OUTSIDE = ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808"]


@pytest.mark.parametrize("text", INSIDE)
def test_case_105_inside_addresses_only_with_the_setting(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert not AddressPolicy().permits(address)
    assert AddressPolicy(allow_private=True).permits(address)


@pytest.mark.parametrize("text", NEVER)
def test_case_105_metadata_and_the_like_never(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert not AddressPolicy().permits(address)
    assert not AddressPolicy(allow_private=True).permits(address)


@pytest.mark.parametrize("text", ["64:ff9b:1::7f00:1", "64:ff9b:1::a9fe:a9fe", "::7f00:1", "::ffff:0:a00:1", "5f00::1"])
def test_case_105_other_ways_to_lead_to_an_inside_address(text: str) -> None:
    """Local NAT64, IPv4-compatible and IPv4-translated addresses, segment routing: none of them is global unicast."""
    assert not AddressPolicy().permits(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", OUTSIDE)
def test_public_addresses_always(text: str) -> None:
    assert AddressPolicy().permits(ipaddress.ip_address(text))


def test_a_network_can_be_allowed_by_name() -> None:
    policy = AddressPolicy(allowed=(ipaddress.ip_network("10.1.0.0/16"),))
    assert policy.permits(ipaddress.ip_address("10.1.2.3"))
    assert not policy.permits(ipaddress.ip_address("10.2.2.3"))


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "169.254.169.254",
        "[::1]",
        "no-such-name.invalid",
        "",
        "a b",
        "x" * 300,
        "a\r\nb",
        "..",
        "0x7f.1",
        "2130706433",
    ],
)
async def test_case_105_every_refusal_reads_the_same(host: str) -> None:
    with pytest.raises((AddressRefused, ConnectionLost)) as caught:
        await resolve(host, 143, AddressPolicy())
    if isinstance(caught.value, ConnectionLost):  # a machine without a resolver cannot say whether the name exists
        assert (host, caught.value.code) == ("no-such-name.invalid", "name_lookup_failed")
    else:
        assert str(caught.value) == UNIFORM


async def test_case_105_the_checked_address_is_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that leads elsewhere the second time (rebinding) is looked up once only."""
    answers = iter(["127.0.0.1"])

    async def lookup(self: Any, host: str, port: int, **_: Any) -> list[Any]:
        assert host == "mail.example.test"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    async with ScriptedServer(LOGIN_DIALOGUE) as server:
        monkeypatch.setattr(asyncio.get_running_loop().__class__, "getaddrinfo", lookup)
        session = await connect(
            Endpoint("mail.example.test", server.port, "plain"), address_policy=AddressPolicy(allow_private=True)
        )
        assert server.connections == 1
        session.abort()


async def test_mixed_answers_lead_only_to_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lookup(self: Any, host: str, port: int, **_: Any) -> list[Any]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (text, port))
            for text in ("10.0.0.1", "8.8.8.8", "169.254.169.254")
        ]

    monkeypatch.setattr(asyncio.get_running_loop().__class__, "getaddrinfo", lookup)
    assert await resolve("x.example", 143, AddressPolicy()) == [(socket.AF_INET, "8.8.8.8")]


async def test_a_refused_connection_is_tried_later() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionLost) as caught:
            await connect(
                Endpoint("127.0.0.1", taken.getsockname()[1], "plain"), address_policy=AddressPolicy(allow_private=True)
            )
    assert caught.value.code == "unreachable"
