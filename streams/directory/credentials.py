"""Credentials at rest: sealed with Fernet, bound to their account, never shown.

Invariants: a sealed value opens for the account it was sealed for and for no other; a secret is in memory only while a
login needs it; no error, repr or log line holds one.

A `secret_ref` account keeps no secret here: its row names a file in `CREDENTIALS_DIR` (a mounted secret), read at each
login, so that a rotated mount is picked up by itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import msgspec
from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from streams.errors import ConfigurationError, CredentialsRefused
from streams.imap.credentials import Secret
from streams.settings import Settings

AuthKind = Literal["password", "oauth2", "secret_ref"]

MAX_SECRET_FILE_BYTES: Final = 65_536
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class StoredPassword:
    """A password (or app password)."""

    password: Secret


@dataclass(frozen=True, slots=True)
class StoredOAuth2:
    """OAuth2 tokens of one account at a provider of `OAUTH_PROVIDERS_FILE`; `expires_at` is the access token's."""

    provider: str
    refresh_token: Secret
    access_token: Secret | None = None
    expires_at: datetime | None = None


StoredCredential = StoredPassword | StoredOAuth2


class _Payload(msgspec.Struct, omit_defaults=True):
    """What is encrypted. The account id inside is what binds it; `repr` is never called on it."""

    v: int
    account_id: str
    password: str | None = None
    provider: str | None = None
    refresh_token: str | None = None
    access_token: str | None = None
    expires_at: datetime | None = None

    def __repr__(self) -> str:
        return "_Payload(***)"


@dataclass(frozen=True, slots=True, repr=False)
class CredentialBox:
    """Seals and opens credentials. The first key seals; every key opens, so keys can be rotated without a stop."""

    _primary: Fernet
    _all: MultiFernet
    keys: int = field(default=1)

    def __repr__(self) -> str:
        return f"CredentialBox({self.keys} keys)"

    @classmethod
    def from_keys(cls, keys: Sequence[str], *, setting: str = "ENCRYPTION_KEYS") -> CredentialBox:
        """Raises `ConfigurationError` naming `setting` and the key's number, never the key."""
        if not keys:
            raise ConfigurationError(f"{setting} holds no key; `faust -A streams keys generate` makes one")
        fernets = []
        for number, key in enumerate(keys, 1):
            try:
                fernets.append(Fernet(key.encode("ascii")))
            except ValueError:
                raise ConfigurationError(
                    f"{setting}: key {number} is no Fernet key (32 bytes in URL-safe base64); "
                    "`faust -A streams keys generate` makes one"
                ) from None
        return cls(fernets[0], MultiFernet(fernets), len(fernets))

    @classmethod
    def from_settings(cls, settings: Settings) -> CredentialBox:
        """Keys out of `ENCRYPTION_KEYS`, else `ENCRYPTION_KEYS_FILE`. Raises `ConfigurationError` without any."""
        if settings.ENCRYPTION_KEYS is not None:
            text = settings.ENCRYPTION_KEYS.get_secret_value()
            return cls.from_keys(_split_keys(text))
        if settings.ENCRYPTION_KEYS_FILE is not None:
            try:
                text = settings.ENCRYPTION_KEYS_FILE.read_text("ascii")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not plain text"
                raise ConfigurationError(f"ENCRYPTION_KEYS_FILE cannot be read: {reason}") from None
            return cls.from_keys(_split_keys(text), setting="ENCRYPTION_KEYS_FILE")
        raise ConfigurationError(
            "ENCRYPTION_KEYS or ENCRYPTION_KEYS_FILE is needed to store credentials; "
            "`faust -A streams keys generate` makes a key"
        )

    def seal(self, account_id: str, credential: StoredCredential) -> bytes:
        """Encrypt `credential` for `account_id` with the first key."""
        match credential:
            case StoredPassword(password):
                payload = _Payload(_FORMAT, account_id, password=password.reveal())
            case StoredOAuth2(provider, refresh, access, expires_at):
                payload = _Payload(
                    _FORMAT,
                    account_id,
                    provider=provider,
                    refresh_token=refresh.reveal(),
                    access_token=access.reveal() if access else None,
                    expires_at=expires_at,
                )
        return self._primary.encrypt(msgspec.json.encode(payload))

    def open(self, account_id: str, sealed: bytes) -> StoredCredential:
        """Decrypt. Raises `CredentialsRefused` when no key opens it, or when it belongs to another account."""
        payload = self._payload(account_id, sealed)
        if payload.password is not None:
            return StoredPassword(Secret(payload.password))
        if payload.provider is not None and payload.refresh_token is not None:
            return StoredOAuth2(
                payload.provider,
                Secret(payload.refresh_token),
                Secret(payload.access_token) if payload.access_token is not None else None,
                payload.expires_at,
            )
        raise CredentialsRefused(
            "the stored credentials are incomplete; store them anew", code="credentials_unreadable"
        )

    def reseal(self, account_id: str, sealed: bytes) -> bytes | None:
        """The same under the first key; None when it is already. Raises as `open` does."""
        self._payload(account_id, sealed)
        try:
            self._primary.decrypt(sealed)
        except InvalidToken:
            return self._all.rotate(sealed)
        return None

    def _payload(self, account_id: str, sealed: bytes) -> _Payload:
        try:
            payload = msgspec.json.decode(self._all.decrypt(sealed), type=_Payload)
        except InvalidToken:
            raise CredentialsRefused(
                "the stored credentials do not open with the keys given; a key is missing from ENCRYPTION_KEYS",
                code="credentials_unreadable",
            ) from None
        except msgspec.DecodeError:
            raise CredentialsRefused("the stored credentials are damaged", code="credentials_unreadable") from None
        if payload.v != _FORMAT or payload.account_id != account_id:
            raise CredentialsRefused("the stored credentials belong to another account", code="credentials_unreadable")
        return payload


def generate_key() -> str:
    """A new Fernet key."""
    return Fernet.generate_key().decode("ascii")


def read_secret_file(directory: Path | None, name: str) -> StoredCredential:
    """Credentials out of a mounted file: a password, or JSON with `password`, or with `provider` and `refresh_token`.

    Raises `CredentialsRefused` (code `secret_ref_unreadable`) when there is no such file inside `directory`.
    """
    if directory is None:
        raise CredentialsRefused(
            "CREDENTIALS_DIR is not set, the account refers to a file in it", code="secret_ref_unreadable"
        )
    try:
        root = directory.resolve(strict=True)
        path = (root / name).resolve(strict=True)  # Kubernetes mounts are links inside the directory
        if not path.is_relative_to(root) or path.stat().st_size > MAX_SECRET_FILE_BYTES:
            raise CredentialsRefused(
                "the account's secret reference points to no file we may read", code="secret_ref_unreadable"
            )
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise CredentialsRefused(
            f"the account's secret file cannot be read ({type(error).__name__})", code="secret_ref_unreadable"
        ) from None
    return _parse_secret(text)


def _parse_secret(text: str) -> StoredCredential:
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except ValueError:
            found = None  # a password may begin with a brace
        if isinstance(found, dict):
            match found:
                case {"password": str(password)}:
                    return StoredPassword(Secret(password))
                case {"provider": str(provider), "refresh_token": str(refresh)}:
                    return StoredOAuth2(provider, Secret(refresh))
                case _:
                    raise CredentialsRefused(
                        "the account's secret file is JSON without `password` or `provider` and `refresh_token`",
                        code="secret_ref_unreadable",
                    )
    password = text.removesuffix("\n").removesuffix("\r")
    if not password:
        raise CredentialsRefused("the account's secret file is empty", code="secret_ref_unreadable")
    return StoredPassword(Secret(password))


def _split_keys(text: str) -> list[str]:
    """Keys divided by commas or lines; a line that begins with `#` is a remark."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [key.strip() for line in lines for key in line.split(",") if key.strip()]
