"""From an endpoint to a session: look up, check, dial, TLS, greeting, capabilities.

Invariants: the TLS mode is the configured one, whatever the server offers (case 102); bytes that came before TLS are
never taken for bytes that came inside it (case 100); a session that is authenticated before we said who we are is
refused unless TLS told us whom we speak to (case 101). All of it has one deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Final

from streams.errors import CommandTimedOut, ConnectionLost, InsecureConnection, MailstreamsError, NotAnImapServer
from streams.imap.addresses import AddressPolicy, resolve
from streams.imap.connection import ImapProtocol
from streams.imap.errors import ProtocolViolation
from streams.imap.observer import SessionObserver, SilentObserver
from streams.imap.protocol.codes import During, classify
from streams.imap.protocol.commands import Command
from streams.imap.protocol.parser import capability_names
from streams.imap.protocol.responses import Capability, Response, Untagged
from streams.imap.session import ImapSession
from streams.imap.tls import client_tls_context, shrink_tls_buffers
from streams.imap.values import Endpoint, Limits, Options

# A dead peer is found by the kernel after about 60 + 4 * 15 s of silence, in IDLE too (case 78).
_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 60),
    ("TCP_KEEPINTVL", 15),
    ("TCP_KEEPCNT", 4),
)
_TOO_SLOW: Final = {
    "connect_timed_out": "the host did not take the connection in time",
    "greeting_timed_out": "the host took the connection but did not say in time what it is",
}
_STATES: Final = {"OK": "NONAUTH", "PREAUTH": "AUTH"}


async def connect(
    endpoint: Endpoint,
    *,
    limits: Limits | None = None,
    options: Options | None = None,
    tls_context: ssl.SSLContext | None = None,
    address_policy: AddressPolicy | None = None,
    observer: SessionObserver | None = None,
    refused: set[str] | None = None,
) -> ImapSession:
    """A session that is ready for `login`.

    `tls_context`: pass one for the whole process (`tls.client_tls_context`); without it one is made for this
    connection. `refused`: what this server offered and refused before; the session does without, and adds to it.

    Raises:
        AddressRefused, InsecureConnection, NotAnImapServer: somebody has to change the account.
        ConnectionLost, CommandTimedOut, HostBusy, RetryLater: try again later.
    """
    limits = limits if limits is not None else Limits()
    options = options if options is not None else Options()
    shrink_tls_buffers()
    context = None
    if endpoint.tls != "plain":
        context = tls_context if tls_context is not None else client_tls_context()
    protocol = ImapProtocol(asyncio.get_running_loop(), limits, observer if observer is not None else SilentObserver())
    step = "connect_timed_out"
    try:
        try:
            async with asyncio.timeout(limits.connect_timeout_s):
                await _dial(endpoint, protocol, limits, context, address_policy or AddressPolicy())
                step = "greeting_timed_out"
                greeting = await _greeting(endpoint, protocol)
                told = _told_capabilities(greeting)
                if endpoint.tls == "starttls":
                    assert context is not None
                    await _start_tls(endpoint, protocol, limits, context)
                    told = None  # what was said in the clear counts for nothing (case 61)
                capabilities = told if told is not None else await _ask_capabilities(protocol, limits)
        except TimeoutError:
            raise CommandTimedOut(_TOO_SLOW[step], code=step) from None
        if not capabilities & {"IMAP4REV1", "IMAP4REV2", "IMAP4"}:
            raise NotAnImapServer("the server does not speak IMAP4")
    except BaseException as error:
        protocol.expect_end()
        protocol.fail(
            error
            if isinstance(error, MailstreamsError)
            else ConnectionLost("connecting was given up", code="cancelled")
        )
        raise
    return ImapSession(
        protocol, endpoint, options, capabilities, authenticated=greeting.condition == "PREAUTH", refused=refused
    )


async def _dial(
    endpoint: Endpoint, protocol: ImapProtocol, limits: Limits, context: ssl.SSLContext | None, policy: AddressPolicy
) -> None:
    loop = asyncio.get_running_loop()
    sock = await _open_socket(endpoint, policy)
    try:
        if endpoint.tls == "tls":
            await loop.create_connection(
                lambda: protocol,
                sock=sock,
                ssl=context,
                server_hostname=endpoint.host,
                ssl_handshake_timeout=limits.connect_timeout_s,
                ssl_shutdown_timeout=limits.logout_timeout_s,
            )
        else:
            await loop.create_connection(lambda: protocol, sock=sock)
    except BaseException as error:
        sock.close()
        raise _tls_failure(error) from None


async def _open_socket(endpoint: Endpoint, policy: AddressPolicy) -> socket.socket:
    loop = asyncio.get_running_loop()
    failure = ""
    for family, address in await resolve(endpoint.host, endpoint.port, policy):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            await loop.sock_connect(sock, (address, endpoint.port))
        except OSError as error:
            sock.close()
            failure = type(error).__name__
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise ConnectionLost(f"the host could not be reached ({failure})", code="unreachable")


def _tls_failure(error: BaseException) -> BaseException:
    """What a failed handshake means. The texts are the library's; they name certificates and never secrets."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return InsecureConnection(f"the server's certificate is not trusted: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        return InsecureConnection(f"TLS could not be set up ({error.reason or 'handshake failed'})")
    if isinstance(error, TimeoutError):
        return error
    if isinstance(error, OSError):  # ConnectionAbortedError: handshake or its deadline cut off
        return ConnectionLost("the connection ended while TLS was set up")
    return error


async def _greeting(endpoint: Endpoint, protocol: ImapProtocol) -> Untagged:
    try:
        greeting = await asyncio.shield(protocol.greeting)
    except ProtocolViolation as error:
        raise NotAnImapServer("what answers at this address is no IMAP server") from error
    if greeting.condition not in _STATES:
        raise classify(During.GREETING, greeting.condition, greeting.code, greeting.text)
    if greeting.condition == "PREAUTH" and endpoint.tls != "tls":
        raise InsecureConnection("the server claims that we are logged in already, on a connection without TLS")
    protocol.state = _STATES[greeting.condition]
    protocol.unhalt()
    return greeting


def _told_capabilities(greeting: Untagged) -> frozenset[str] | None:
    if greeting.code is not None and greeting.code.name == "CAPABILITY":  # no other brackets count (case 59)
        return capability_names(greeting.code.arguments)
    return None


async def _ask_capabilities(protocol: ImapProtocol, limits: Limits) -> frozenset[str]:
    told: list[frozenset[str]] = []

    def take(response: Response) -> bool:
        if isinstance(response, Capability):
            told.append(response.names)
            return True
        return False

    tagged = await protocol.execute(Command("CAPABILITY"), on_untagged=take, timeout_s=limits.command_timeout_s)
    if tagged.condition == "OK" and not told and tagged.code is not None and tagged.code.name == "CAPABILITY":
        told.append(capability_names(tagged.code.arguments))
    if tagged.condition != "OK" or not told:
        raise NotAnImapServer("the server tells no capabilities")
    return told[-1]


async def _start_tls(endpoint: Endpoint, protocol: ImapProtocol, limits: Limits, context: ssl.SSLContext) -> None:
    """STARTTLS (RFC 3501 section 6.2.1), as configured and not because it is offered."""
    try:
        tagged = await protocol.execute(Command("STARTTLS"), timeout_s=limits.command_timeout_s, pauses=True)
    except ProtocolViolation as error:
        raise InsecureConnection("the server answered commands that were not sent, before TLS") from error
    if tagged.condition != "OK":
        raise InsecureConnection("the server refuses STARTTLS", code="starttls_refused")
    if protocol.leftover:
        raise InsecureConnection(
            "bytes followed the answer to STARTTLS in the clear: somebody injects", code="injection"
        )
    loop = asyncio.get_running_loop()
    old = protocol.transport
    assert old is not None
    try:
        new = await loop.start_tls(
            old,
            protocol,
            context,
            server_hostname=endpoint.host,
            ssl_handshake_timeout=limits.connect_timeout_s,
            ssl_shutdown_timeout=limits.logout_timeout_s,
        )
    except BaseException as error:
        with contextlib.suppress(OSError):
            old.abort()
        raise _tls_failure(error) from None
    if new is None:  # the connection went away meanwhile
        raise ConnectionLost("the connection ended while TLS was set up")
    protocol.replace_transport(new)
    protocol.unhalt()
