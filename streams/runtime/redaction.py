"""No secret reaches a log (cases 103, 104): what looks like one is blanked in whatever is written, at every level.

This is the last line of defence: our own code logs no secrets, libraries that would are pinned above the levels at
which they do (`streams.runtime.logs`). Values that are registered (passwords from settings) are blanked literally,
quoted and in base64; protocol shapes (LOGIN, AUTHENTICATE, bearer tokens, passwords in addresses) are blanked by
pattern.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import quote

BLANK: Final = "[redacted]"
MIN_LENGTH: Final = 6
"""Shorter values are not blanked literally: they would blank ordinary words."""

_Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]

_QUOTED: Final = r"""(?:"(?:[^"\\]|\\.)*"|\{\d+\+?\})"""
_ASTRING: Final = rf"""(?:{_QUOTED}|[^\s"']+)"""

_RULES: Final[tuple[_Rule, ...]] = (
    # IMAP LOGIN: both arguments, as atoms, quoted strings or literals (RFC 9051, 6.2.3).
    # Only with a tag before it or a quoted argument after it: prose about logins stays readable.
    (re.compile(rf"(?i)\b([a-z]*\d[a-z0-9]*\s+LOGIN)\s+{_ASTRING}\s+{_ASTRING}"), rf"\1 {BLANK}"),
    (re.compile(rf"(?i)\b(LOGIN)\s+(?:{_QUOTED}\s+{_ASTRING}|{_ASTRING}\s+{_QUOTED})"), rf"\1 {BLANK}"),
    # AUTHENTICATE with an initial response (RFC 4959).
    (re.compile(r"(?i)\b(AUTHENTICATE)\s+([A-Z0-9_-]+)\s+[A-Za-z0-9+/=]{4,}"), rf"\1 \2 {BLANK}"),
    # SASL XOAUTH2 and OAUTHBEARER messages, HTTP authorization headers.
    (re.compile(r"(?i)\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {BLANK}"),
    # Base64 of "user=...auth=Bearer" and "n,a=...auth=Bearer" begins so.
    (re.compile(r"\b(?:dXNlcj|bixhP)[A-Za-z0-9+/=]{8,}"), BLANK),
    # The password of an address: scheme://user:password@host
    (re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@]*:)[^\s@/]+(@)"), rf"\1{BLANK}\2"),
    # password=..., "refresh_token": "..."
    (
        re.compile(
            r"(?i)([\"']?\b(?:[a-z_]*passw(?:or)?d|passphrase|(?:client_)?secret|(?:access|refresh|id)_token|api_key)\b"
            r"[\"']?\s*[=:]\s*)"
            r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s,;&)}\]]+)"
        ),
        rf"\1{BLANK}",
    ),
    # A Fernet key or token.
    (re.compile(r"\bgAAAA[A-Za-z0-9_-]{20,}={0,2}"), BLANK),
)


class Redactor:
    """Blanks secrets in text."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms: set[str] = set()
        for secret in secrets:
            if len(secret) >= MIN_LENGTH:
                forms |= spellings(secret)
        longest_first = sorted(forms, key=len, reverse=True)
        self._literal = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def __call__(self, text: str) -> str:
        """`text` without secrets."""
        if self._literal is not None:
            text = self._literal.sub(BLANK, text)
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
        return text


def spellings(secret: str) -> set[str]:
    """Forms in which a secret appears on a wire or in an address: raw, quoted as IMAP does, percent-encoded, base64."""
    raw = secret.encode("utf-8", "surrogateescape")
    return {
        secret,
        secret.replace("\\", "\\\\").replace('"', '\\"'),
        quote(secret, safe=""),
        base64.b64encode(raw).decode().rstrip("="),
        base64.urlsafe_b64encode(raw).decode().rstrip("="),
    }
