"""Logging in, and what is switched on right after it.

Invariants: credentials are asked for when they are needed and not kept; capabilities told before the login count no
more (case 61); a server that repeats the secret in its refusal does not get it into our errors (cases 103 and 104).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Final

from streams.errors import CredentialsRefused, InsecureConnection, MalformedAnswer
from streams.imap.channel import Channel
from streams.imap.credentials import Credential, CredentialSource, OAuthToken, Password
from streams.imap.protocol.codes import During, classify
from streams.imap.protocol.commands import Command, UnsafeArgument, astring, quoted
from streams.imap.protocol.responses import Response, ServerId, Tagged
from streams.imap.sasl import Dialogue, Mechanism, encoded, mechanisms

# Cyrus 3.6.1 (Debian 12) tells stray memory as MAILBOXID in STATUS, at times one that looks like an id.
_STRAY_STATUS_IDS: Final = re.compile(r"Cyrus\b.* (?:[12]\.|3\.[0-7]\b)", re.IGNORECASE)
_ID_FIELD_BYTES: Final = 1024  # RFC 2971 section 3.3


async def log_in(channel: Channel, source: CredentialSource | Credential) -> None:
    """Authenticate, ask anew for the capabilities, and switch on what we use."""
    if not channel.authenticated:
        if isinstance(source, Password | OAuthToken):
            await _authenticate(channel, source)
        else:
            await _authenticate_from(channel, source)
    channel.protocol.state = "AUTH"
    if not channel.capabilities_told:
        await _ask_capabilities(channel)
    await _introduce(channel)
    await _enable(channel)
    if channel.options.compress and channel.has("COMPRESS=DEFLATE"):
        await _compress(channel)


async def _authenticate_from(channel: Channel, source: CredentialSource) -> None:
    credential = await source.current()
    try:
        await _authenticate(channel, credential)
    except CredentialsRefused:
        if not isinstance(credential, OAuthToken) or not channel.alive:
            raise
    else:
        return
    await _authenticate(channel, await source.current(force_refresh=True))


async def _authenticate(channel: Channel, credential: Credential) -> None:
    channel.capabilities_told = False  # whatever was told before counts no more (case 61)
    channel.protocol.redact = partial(scrubbed, credential)
    try:
        await _offer(channel, credential)
    finally:
        channel.protocol.redact = None


async def _offer(channel: Channel, credential: Credential) -> None:
    encrypted = channel.endpoint.tls != "plain"
    offers = mechanisms(
        credential, channel.capabilities, encrypted=encrypted, host=channel.endpoint.host, port=channel.endpoint.port
    )
    tagged: Tagged | None = None
    detail = ""
    for mechanism in offers:
        tagged = await _try_mechanism(channel, mechanism, at_once=channel.has("SASL-IR"))
        if tagged.condition == "BAD" and channel.has("SASL-IR") and isinstance(credential, OAuthToken):
            # a password has the LOGIN command yet, a token only this
            error = classify(During.LOGIN, "BAD", tagged.code, scrubbed(credential, tagged.text))
            if error.code == "login_rejected":  # its grammar was refused, nothing was said about the account
                tagged = await _try_mechanism(channel, mechanism, at_once=False)
                if tagged.condition != "BAD":
                    channel.refuse("SASL-IR", error=error)
        detail = mechanism.refusal
        if tagged.condition != "BAD":  # BAD: offered, but not understood; another way may work
            break
    if isinstance(credential, Password) and (tagged is None or tagged.condition == "BAD"):
        tagged = await _login_command(channel, credential)
    assert tagged is not None  # a token always has a mechanism to try
    if tagged.condition != "OK":
        text = scrubbed(credential, tagged.text) + (f" ({detail})".encode() if detail else b"")
        raise classify(During.LOGIN, tagged.condition, tagged.code, text)
    channel.authenticated = True
    channel.accept(tagged, During.LOGIN)


async def _try_mechanism(channel: Channel, mechanism: Mechanism, *, at_once: bool) -> Tagged:
    initial = mechanism.initial()
    parts: tuple[bytes, ...] = (mechanism.name.encode(),)
    at_once = initial is not None and at_once
    if at_once and initial is not None:
        parts += (encoded(initial) or b"=",)  # RFC 4959 section 3
    dialogue = Dialogue(mechanism, initial, sent=at_once)
    tagged = await channel.protocol.execute(
        Command("AUTHENTICATE", parts), on_continuation=dialogue.answer, timeout_s=channel.limits.login_timeout_s
    )
    if dialogue.error is not None:
        raise dialogue.error
    if tagged.condition == "OK" and not mechanism.satisfied:
        raise InsecureConnection("the server accepted the login without proving that it knows the password")
    return tagged


async def _login_command(channel: Channel, credential: Password) -> Tagged:
    if channel.has("LOGINDISABLED"):  # RFC 3501 section 7.2.1
        raise InsecureConnection("the server takes no password on this connection", code="login_disabled")
    try:
        command = Command(
            "LOGIN", (astring(credential.username.encode()), astring(credential.password.reveal().encode()))
        )
    except UnsafeArgument:
        raise CredentialsRefused(
            "a user name or password with control characters", code="credentials_malformed"
        ) from None
    return await channel.protocol.execute(command, timeout_s=channel.limits.login_timeout_s)


async def _ask_capabilities(channel: Channel) -> None:
    channel.capabilities_told = False
    await channel.run(Command("CAPABILITY"))
    if not channel.capabilities_told:
        raise MalformedAnswer("the server told no capabilities")


async def _introduce(channel: Channel) -> None:
    """ID (RFC 2971): some hosts open no mailbox for a client that does not say its name."""
    if not channel.options.send_id or not channel.has("ID"):
        return
    told: dict[str, str] = {}

    def take(response: Response) -> bool:
        if isinstance(response, ServerId):
            told.update(response.fields)
            return True
        return False

    name = quoted(channel.options.client_name.encode("ascii", "replace")[:_ID_FIELD_BYTES])
    await channel.tolerant(Command("ID", (b'("name" ' + name + b")",)), take)
    channel.status_ids = not _STRAY_STATUS_IDS.match(f"{told.get('name', '')} {told.get('version', '')}")


async def _enable(channel: Channel) -> None:
    """ENABLE before the first mailbox is opened (case 12). What it confirms is not relied on."""
    if not channel.has("ENABLE"):
        return
    wanted = [name for name in ("CONDSTORE", "QRESYNC") if channel.has(name)]
    if channel.options.utf8 and channel.has("UTF8=ACCEPT"):
        wanted.append("UTF8=ACCEPT")
    if wanted and await channel.tolerant(Command("ENABLE", tuple(name.encode() for name in wanted))):
        channel.enabled = frozenset(wanted)


async def _compress(channel: Channel) -> None:
    tagged = await channel.protocol.execute(
        Command("COMPRESS", (b"DEFLATE",)), timeout_s=channel.limits.command_timeout_s, pauses=True
    )
    if tagged.condition == "OK":
        channel.protocol.start_compression()
    channel.protocol.unhalt()
    if tagged.condition == "BAD":
        error = classify(During.COMMAND, "BAD", tagged.code, tagged.text)
        channel.refuse("COMPRESS=DEFLATE", error=error)


def scrubbed(credential: Credential, text: bytes) -> bytes:
    """A server's words about a login without the secret, in case it repeats it."""
    secret = (credential.password if isinstance(credential, Password) else credential.token).reveal().encode()
    for form in (secret, secret.replace(b"\\", b"\\\\").replace(b'"', b'\\"')):
        if len(form) > 2:
            text = text.replace(form, b"***")
            for inside in _in_base64(form):
                text = re.sub(rb"[A-Za-z0-9+/]?" + re.escape(inside) + rb"[A-Za-z0-9+/]?=*", b"***", text)
    return text


def _in_base64(secret: bytes) -> Iterator[bytes]:
    """What base64 makes of a secret within a longer message, such as PLAIN's: it may begin at three places of a group,
    and shares its first and last character with what stands beside it.
    """
    for before, shared in ((0, 0), (1, 2), (2, 3)):
        yield encoded(bytes(before) + secret)[shared : (before + len(secret)) * 8 // 6]
