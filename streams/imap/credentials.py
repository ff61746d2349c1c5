"""Secrets in memory and the shapes credentials have.

Invariant: no secret is shown by `repr`, `str`, a format string, a traceback or a pickle. `Secret.reveal` is the only
way to the text, and only `sasl` and `oauth` call it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn, Protocol


class Secret:
    """Text that does not show itself. Compares by identity, so that no test for equality can leak it by timing."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself: for the wire, never for a message."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not serialised")


@dataclass(frozen=True, slots=True)
class Password:
    """User name and password; PLAIN, LOGIN or SCRAM, as the server offers."""

    username: str
    password: Secret


@dataclass(frozen=True, slots=True)
class OAuthToken:
    """User name and bearer token for XOAUTH2 or OAUTHBEARER (RFC 7628). `mechanism` None: as the server offers."""

    username: str
    token: Secret
    mechanism: Literal["XOAUTH2", "OAUTHBEARER"] | None = None


Credential = Password | OAuthToken


class CredentialSource(Protocol):
    """Where a login gets its credentials. Asked anew for each AUTHENTICATE, so that a token is never an old one."""

    async def current(self, *, force_refresh: bool = False) -> Credential:
        """The credentials to use now; `force_refresh` after the server refused the last token."""
        ...
