"""`accounts add` and `accounts credentials`: which secret is asked for, and how."""

from __future__ import annotations

from typing import Any

import pytest

from streams.cli import accounts
from streams.imap.credentials import Secret


@pytest.mark.parametrize(
    ("provider", "prompt"),
    [(None, "Password for ada at imap.test: "), ("example", "Refresh token for ada at imap.test: ")],
)
def test_who_is_asked_for_a_secret_is_told_which(
    provider: str | None, prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def ask(**how: Any) -> Secret:
        asked.update(how)
        return Secret("x")

    monkeypatch.setattr(accounts, "ask_secret", ask)
    accounts._credential(
        "ada at imap.test", password_stdin=False, password_file=None, secret_ref=None, oauth_provider=provider
    )
    assert asked["prompt"] == prompt
