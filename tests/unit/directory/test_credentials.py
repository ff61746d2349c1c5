"""Credentials at rest: sealed, bound to their account, never shown."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.directory.credentials import (
    CredentialBox,
    StoredOAuth2,
    StoredPassword,
    generate_key,
    read_secret_file,
)
from streams.errors import ConfigurationError, CredentialsRefused
from streams.imap.credentials import Secret
from streams.settings import load_settings

CANARY = "s3cret-canary"
ME, YOU = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"


@pytest.fixture
def box() -> CredentialBox:
    return CredentialBox.from_keys([generate_key()])


@given(st.text(min_size=1))
def test_what_is_sealed_opens_again(password: str) -> None:
    box = CredentialBox.from_keys([generate_key()])
    try:
        password.encode()
    except UnicodeEncodeError:
        return  # no text that could come over a wire
    opened = box.open(ME, box.seal(ME, StoredPassword(Secret(password))))
    assert isinstance(opened, StoredPassword)
    assert opened.password.reveal() == password


def test_tokens_open_again(box: CredentialBox) -> None:
    until = datetime(2026, 1, 1, tzinfo=UTC)
    opened = box.open(ME, box.seal(ME, StoredOAuth2("google", Secret("r"), Secret("a"), until)))
    assert isinstance(opened, StoredOAuth2)
    assert opened.access_token is not None
    assert (opened.provider, opened.refresh_token.reveal(), opened.access_token.reveal(), opened.expires_at) == (
        "google", "r", "a", until,
    )  # fmt: skip


def test_a_value_copied_to_another_account_does_not_open(box: CredentialBox) -> None:
    with pytest.raises(CredentialsRefused, match="another account"):
        box.open(YOU, box.seal(ME, StoredPassword(Secret(CANARY))))
    with pytest.raises(CredentialsRefused, match="another account"):
        box.reseal(YOU, box.seal(ME, StoredPassword(Secret(CANARY))))


def test_another_key_does_not_open_and_says_what_to_do(box: CredentialBox) -> None:
    sealed = box.seal(ME, StoredPassword(Secret(CANARY)))
    with pytest.raises(CredentialsRefused, match="ENCRYPTION_KEYS"):
        CredentialBox.from_keys([generate_key()]).open(ME, sealed)
    with pytest.raises(CredentialsRefused):
        box.open(ME, sealed[:-5])


def test_rotation_brings_old_values_under_the_first_key() -> None:
    old, new = generate_key(), generate_key()
    sealed = CredentialBox.from_keys([old]).seal(ME, StoredPassword(Secret(CANARY)))
    both = CredentialBox.from_keys([new, old])
    anew = both.reseal(ME, sealed)
    assert anew is not None
    assert both.reseal(ME, anew) is None
    assert isinstance(CredentialBox.from_keys([new]).open(ME, anew), StoredPassword)


@pytest.mark.parametrize(
    "settings",
    [{}, {"ENCRYPTION_KEYS": ""}, {"ENCRYPTION_KEYS": CANARY}, {"ENCRYPTION_KEYS_FILE": Path("/nonexistent")}],
)
def test_w1_missing_or_bad_keys_are_configuration_errors_that_show_no_key(
    settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ENCRYPTION_KEYS", "ENCRYPTION_KEYS_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MAILSTREAMS_ENV_FILE", "/dev/null")
    with pytest.raises(ConfigurationError, match="ENCRYPTION_KEYS") as caught:
        CredentialBox.from_settings(load_settings(**settings))
    assert CANARY not in str(caught.value)


def test_keys_out_of_a_file(tmp_path: Path) -> None:
    old, new = generate_key(), generate_key()
    path = tmp_path / "keys"
    path.write_text(f"# newest first\n{new}\n\n{old}\n")
    box = CredentialBox.from_settings(load_settings(ENCRYPTION_KEYS_FILE=path))
    assert box.keys == 2
    sealed = CredentialBox.from_keys([old]).seal(ME, StoredPassword(Secret("x")))
    assert isinstance(box.open(ME, sealed), StoredPassword)


def test_no_secret_is_shown(box: CredentialBox) -> None:
    """Case 103: not by repr, not by a traceback with its locals' reprs."""
    password = StoredPassword(Secret(CANARY))
    tokens = StoredOAuth2("google", Secret(CANARY), Secret(CANARY))
    sealed = box.seal(ME, password)
    shown = repr([password, tokens, box, box.open(ME, sealed)]) + f"{password} {tokens} {box}"
    assert CANARY not in shown
    try:
        box.open(YOU, sealed)
    except CredentialsRefused as error:
        told = traceback.TracebackException.from_exception(error, capture_locals=True)
        assert CANARY not in "".join(told.format())


class TestMountedSecrets:
    """`secret_ref`: a file in CREDENTIALS_DIR and nothing outside it."""

    def test_a_password(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text(CANARY + "\n")
        found = read_secret_file(tmp_path, "a")
        assert isinstance(found, StoredPassword)
        assert found.password.reveal() == CANARY

    def test_json_of_either_kind(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text('{"password": "{x"}')
        (tmp_path / "b").write_text('{"provider": "google", "refresh_token": "r"}')
        (tmp_path / "c").write_text("{no json")
        assert isinstance(read_secret_file(tmp_path, "a"), StoredPassword)
        assert isinstance(read_secret_file(tmp_path, "b"), StoredOAuth2)
        assert isinstance(read_secret_file(tmp_path, "c"), StoredPassword)

    def test_links_inside_are_followed_as_kubernetes_makes_them(self, tmp_path: Path) -> None:
        (tmp_path / "..2026").mkdir()
        (tmp_path / "..2026" / "a").write_text("x")
        (tmp_path / "..data").symlink_to("..2026")
        (tmp_path / "a").symlink_to("..data/a")
        assert isinstance(read_secret_file(tmp_path, "a"), StoredPassword)

    @pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "link", "missing", "", ".", "a\0b", "empty", "odd"])
    def test_anything_else_is_refused_and_nothing_of_it_shown(self, name: str, tmp_path: Path) -> None:
        inside = tmp_path / "inside"
        inside.mkdir()
        (tmp_path / "outside").write_text(CANARY)
        (inside / "link").symlink_to(tmp_path / "outside")
        (inside / "empty").write_text("")
        (inside / "odd").write_text('{"passwort": "s3cret-canary"}')
        with pytest.raises(CredentialsRefused) as caught:
            read_secret_file(inside, name)
        assert caught.value.code == "secret_ref_unreadable"
        assert CANARY not in str(caught.value)

    def test_without_a_directory_the_setting_is_named(self) -> None:
        with pytest.raises(CredentialsRefused, match="CREDENTIALS_DIR"):
            read_secret_file(None, "a")
