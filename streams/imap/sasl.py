"""SASL mechanisms (RFC 4422) and the choice among them.

Invariants: a secret is revealed here and nowhere else of the session; no exception and no `repr` of this module holds
it, encoded or not. A refused bearer token is answered, so that the refusal arrives instead of a time-out.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from scramp import ScramClient, ScramException  # type: ignore[import-untyped]

from streams.errors import AccessDenied, CredentialsRefused, InsecureConnection, MailstreamsError
from streams.imap.credentials import Credential, OAuthToken, Password
from streams.imap.protocol.codes import clean_text

_CONTROL = re.compile(r"[\x00\x01\r\n]")
MAX_CHALLENGE_BYTES: Final = 16 << 10
MAX_SCRAM_ITERATIONS: Final = 600_000  # what a server may make us compute; OWASP asks for this many of PBKDF2-SHA256


class Mechanism(Protocol):
    """One try at AUTHENTICATE. `refusal` holds what the server told about it apart from its tagged answer; `satisfied`
    is false as long as the server owes us a proof.
    """

    name: str
    refusal: str
    satisfied: bool

    def initial(self) -> bytes | None:
        """The initial response, None where the server speaks first."""
        ...

    def step(self, challenge: bytes) -> bytes:
        """The answer to a challenge."""
        ...


class Plain:
    """PLAIN (RFC 4616)."""

    name = "PLAIN"
    refusal = ""
    satisfied = True

    def __init__(self, credential: Password) -> None:
        self._credential = credential

    def initial(self) -> bytes:
        """User name and password."""
        return f"\0{self._credential.username}\0{self._credential.password.reveal()}".encode()

    def step(self, challenge: bytes) -> bytes:
        """No server asks again; an empty answer ends it."""
        return b""


class Login:
    """LOGIN, as draft-murchison-sasl-login has it: asked for a name, then for a password."""

    name = "LOGIN"
    refusal = ""
    satisfied = True

    def __init__(self, credential: Password) -> None:
        self._credential = credential
        self._asked = 0

    def initial(self) -> None:
        """The server speaks first."""

    def step(self, challenge: bytes) -> bytes:
        """Name first, then password, whatever the server's words are."""
        self._asked += 1
        return (self._credential.username if self._asked == 1 else self._credential.password.reveal()).encode()


class ScramSha256:
    """SCRAM-SHA-256 (RFC 7677) without channel binding. The server has to prove that it knows the password too."""

    name = "SCRAM-SHA-256"
    refusal = ""

    def __init__(self, credential: Password) -> None:
        self.satisfied = False
        try:
            self._client: Any = ScramClient([self.name], credential.username, credential.password.reveal())
        except ScramException:
            # SASLprep (RFC 4013) knows characters that no name and no password may hold
            raise CredentialsRefused(
                "a user name or password with characters that are not allowed", code="credentials_malformed"
            ) from None
        self._stage = 0

    def initial(self) -> bytes:
        """The client's first message."""
        return bytes(self._client.get_client_first().encode())

    def step(self, challenge: bytes) -> bytes:
        """The client's final message, then nothing once the server has proved itself."""
        self._stage += 1
        try:
            if self._stage == 1:
                text = challenge.decode()
                iterations = re.search(r"(?:^|,)i=(\d{1,12})", text)
                if iterations is None or int(iterations[1]) > MAX_SCRAM_ITERATIONS:
                    raise InsecureConnection("the server asks for an unreasonable SCRAM computation")
                self._client.set_server_first(text)
                return bytes(self._client.get_client_final().encode())
            self._client.set_server_final(challenge.decode())
            self.satisfied = True
        except (ScramException, ValueError):
            raise InsecureConnection("the server could not prove that it knows the password") from None
        return b""


class Bearer:
    """XOAUTH2 and OAUTHBEARER (RFC 7628)."""

    def __init__(self, name: str, credential: OAuthToken, host: str, port: int) -> None:
        self.name = name
        self.refusal = ""
        self.satisfied = True
        self._credential = credential
        self._where = (host, port)

    def initial(self) -> bytes:
        """User name and token."""
        user, token = self._credential.username, self._credential.token.reveal()
        if _CONTROL.search(user + token) is not None:
            raise AccessDenied("a user name or token with control characters", code="credentials_malformed")
        if self.name == "XOAUTH2":
            return f"user={user}\x01auth=Bearer {token}\x01\x01".encode()
        gs2_user = user.replace("=", "=3D").replace(",", "=2C")
        host, port = self._where
        return f"n,a={gs2_user},\x01host={host}\x01port={port}\x01auth=Bearer {token}\x01\x01".encode()

    def step(self, challenge: bytes) -> bytes:
        """The server only goes on to refuse: keep its status, and answer so that the tagged NO follows."""
        try:
            told = json.loads(challenge)
            self.refusal = clean_text(str(told.get("status", "")), limit=40) if isinstance(told, dict) else ""
        except (ValueError, RecursionError):
            self.refusal = ""
        return b"" if self.name == "XOAUTH2" else b"\x01"  # RFC 7628 section 3.2.3


def mechanisms(
    credential: Credential, capabilities: frozenset[str], *, encrypted: bool, host: str, port: int
) -> Iterable[Mechanism]:
    """The mechanisms to try, best first. LOGIN as a command is the session's last resort and not among them.

    Over TLS a password goes by PLAIN, in one round trip; without TLS by SCRAM where the server has it.
    """
    if isinstance(credential, OAuthToken):
        wanted = [credential.mechanism] if credential.mechanism is not None else ["OAUTHBEARER", "XOAUTH2"]
        offered = [name for name in wanted if f"AUTH={name}" in capabilities]
        return [Bearer(name, credential, host, port) for name in offered or wanted[-1:]]
    by_name: dict[str, Callable[[Password], Mechanism]] = {
        "SCRAM-SHA-256": ScramSha256,
        "PLAIN": Plain,
        "LOGIN": Login,
    }
    order = ("PLAIN", "LOGIN", "SCRAM-SHA-256") if encrypted else ("SCRAM-SHA-256", "PLAIN", "LOGIN")
    # A mechanism is made when its turn comes: SCRAM draws a nonce.
    return (by_name[name](credential) for name in order if f"AUTH={name}" in capabilities)


class Dialogue:
    """Answers the continuations of one AUTHENTICATE. A step that fails cancels it and keeps the reason in `error`."""

    __slots__ = ("_initial", "_mechanism", "error")

    def __init__(self, mechanism: Mechanism, initial: bytes | None, *, sent: bool) -> None:
        self._mechanism = mechanism
        self._initial = None if sent else initial
        self.error: MailstreamsError | None = None

    def answer(self, text: bytes) -> bytes:
        """The line to send for a continuation."""
        initial, self._initial = self._initial, None
        try:
            if initial is not None:
                return encoded(initial) + b"\r\n"
            if len(text) > MAX_CHALLENGE_BYTES:
                raise InsecureConnection("the server's challenge is too long")
            return encoded(self._mechanism.step(base64.b64decode(text))) + b"\r\n"
        except MailstreamsError as error:
            self.error = error
        except binascii.Error:
            self.error = InsecureConnection("the server's challenge is no base64")
        return b"*\r\n"  # RFC 3501 section 6.2.2: cancels


def encoded(message: bytes) -> bytes:
    """A message in base64, as AUTHENTICATE carries it."""
    return base64.b64encode(message)
