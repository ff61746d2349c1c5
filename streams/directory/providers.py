"""OAuth2 providers out of `OAUTH_PROVIDERS_FILE`.

The file is a JSON object, provider name to registration::

    {"google": {"client_id": "...", "client_secret": "..."},
     "corp": {"client_id": "...", "client_secret_file": "/run/secrets/corp", "token_endpoint": "https://...",
              "scopes": ["..."], "mechanism": "OAUTHBEARER", "grant": "client_credentials"}}

For `google` and `microsoft` endpoint, scopes and mechanism are known. Invariant: no error shows a value of the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from streams.errors import ConfigurationError
from streams.imap.credentials import Secret
from streams.imap.oauth import KNOWN_PROVIDERS, OAuthProvider


class _Registration(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    client_id: str
    client_secret: str | None = None
    client_secret_file: str | None = None
    token_endpoint: str | None = None
    scopes: tuple[str, ...] | None = None
    mechanism: Literal["XOAUTH2", "OAUTHBEARER"] | None = None
    client_authentication: Literal["post", "basic"] = "post"
    grant: Literal["refresh_token", "client_credentials"] = "refresh_token"

    def __repr__(self) -> str:
        return "_Registration(***)"


def load_providers(path: Path | None) -> dict[str, OAuthProvider]:
    """Providers by name; none without a file. Raises `ConfigurationError`."""
    if path is None:
        return {}
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, _Registration])
    except OSError as error:
        raise ConfigurationError(f"OAUTH_PROVIDERS_FILE cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error) if isinstance(error, msgspec.ValidationError) else "it is no JSON"
        raise ConfigurationError(f"OAUTH_PROVIDERS_FILE: {reason}") from None
    return {name: _provider(name, registration) for name, registration in found.items()}


def _provider(name: str, registration: _Registration) -> OAuthProvider:
    known = KNOWN_PROVIDERS.get(name)
    endpoint = registration.token_endpoint or (known.token_endpoint if known else None)
    if endpoint is None:
        raise ConfigurationError(f"OAUTH_PROVIDERS_FILE: {name} needs token_endpoint")
    return OAuthProvider(
        name=name,
        token_endpoint=endpoint,
        client_id=registration.client_id,
        client_secret=_secret(name, registration),
        scopes=registration.scopes if registration.scopes is not None else known.scopes if known else (),
        mechanism=registration.mechanism or (known.mechanism if known else None),
        client_authentication=registration.client_authentication,
        grant=registration.grant,
    )


def _secret(name: str, registration: _Registration) -> Secret | None:
    if registration.client_secret is not None:
        return Secret(registration.client_secret)
    if registration.client_secret_file is None:
        return None
    try:
        return Secret(Path(registration.client_secret_file).read_text("utf-8").strip())
    except (OSError, UnicodeDecodeError):
        raise ConfigurationError(f"OAUTH_PROVIDERS_FILE: client_secret_file of {name} cannot be read") from None
