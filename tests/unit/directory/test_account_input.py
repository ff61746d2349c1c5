"""What people and files say about new accounts."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.cli.account_input import AccountInput, BadAccount, complete, read_file
from streams.directory.credentials import StoredOAuth2, StoredPassword
from streams.imap.credentials import Secret

PASSWORD = StoredPassword(Secret("s3cret-canary"))


def made(**more: Any) -> AccountInput:
    base: dict[str, Any] = {
        "user": "u", "host": "imap.example.test", "username": "ada", "port": None, "tls": None, "credential": PASSWORD,
    }  # fmt: skip
    return complete(**{**base, **more})


@pytest.mark.parametrize(
    ("given_", "port", "tls"),
    [
        ({}, 993, "tls"),
        ({"port": 143}, 143, "starttls"),
        ({"port": 993}, 993, "tls"),
        ({"tls": "starttls"}, 143, "starttls"),
        ({"tls": "plain"}, 143, "plain"),
        ({"tls": "tls", "port": 143}, 143, "tls"),
    ],
)
def test_port_and_tls_complete_each_other(given_: dict[str, Any], port: int, tls: str) -> None:
    account = made(**given_)
    assert (account.port, account.tls) == (port, tls)


@pytest.mark.parametrize(
    "wrong",
    [
        {"user": ""},
        {"user": "u" * 201},
        {"host": "imaps://x"},
        {"host": "x:993"},
        {"host": " "},
        {"username": "a\r\nb"},
        {"username": ""},
        {"port": 0},
        {"port": 70000},
        {"tls": "ssl"},
        {"credential": None},
        {"secret_ref": "x"},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadAccount) as caught:
        made(**wrong)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("name", ["", ".", "/etc/shadow", "../shadow", "mail/../../shadow"])
def test_a_secret_reference_names_a_file_in_the_directory(name: str) -> None:
    """It is read within CREDENTIALS_DIR only; what cannot be there is told when it is given, not by each login."""
    with pytest.raises(BadAccount, match="CREDENTIALS_DIR"):
        made(credential=None, secret_ref=name)
    assert made(credential=None, secret_ref="tenant/ada").secret_ref == "tenant/ada"


def test_nothing_shows_the_password() -> None:
    assert "canary" not in repr(made())


def test_csv_with_quotes_and_blank_lines() -> None:
    text = 'user,host,username,password,tls\n\nu1,h,a,"p,""w",starttls\n  \nu2,h,b,,\nu3,h\n'
    found = dict(read_file(io.StringIO(text)))
    assert isinstance(found[3], AccountInput)
    assert isinstance(found[3].credential, StoredPassword)
    assert (found[3].credential.password.reveal(), found[3].port) == ('p,"w', 143)
    assert isinstance(found[5], BadAccount)
    assert isinstance(found[6], BadAccount)


def test_json_lines_of_each_kind() -> None:
    text = (
        '{"user": "u", "host": "h", "username": "a", "password": " spaces stay "}\n'
        '{"user": "u", "host": "h", "username": "a", "oauth_provider": "google", "refresh_token": "r", "port": 993}\n'
        '{"user": "u", "host": "h", "username": "a", "secret_ref": "file"}\n'
        '{"user": "u", "host": "h", "username": "a", "password": 5.5}\n'
        '{"user": "u", "host": "h", "username": "a", "oauth_provider": "google"}\n'
        '{"passwort": "s3cret-canary"}\n'
        "nonsense\n"
        "[1]\n"
    )
    found = dict(read_file(io.StringIO(text)))
    first, second, third = found[1], found[2], found[3]
    assert isinstance(first, AccountInput)
    assert isinstance(first.credential, StoredPassword)
    assert first.credential.password.reveal() == " spaces stay "
    assert isinstance(second, AccountInput)
    assert isinstance(second.credential, StoredOAuth2)
    assert isinstance(third, AccountInput)
    assert third.secret_ref == "file"
    for number in range(4, 9):
        assert isinstance(found[number], BadAccount)
        assert "canary" not in str(found[number])


@pytest.mark.parametrize("field", ["user", "host", "username", "password", "secret_ref", "refresh_token"])
@pytest.mark.parametrize("wrong", ["a\0b", "a\ud800b"])
def test_a_line_with_text_that_cannot_be_stored_is_refused_alone(field: str, wrong: str) -> None:
    line = {"user": "u", "host": "h", "username": "a", field: wrong}
    line |= {"oauth_provider": "google"} if field == "refresh_token" else {}
    line |= {"password": "p"} if field in ("user", "host", "username") else {}
    good = {"user": "u", "host": "h", "username": "a", "password": "p"}
    found = dict(read_file(io.StringIO(f"{json.dumps(line)}\n{json.dumps(good)}\n")))
    assert isinstance(found[1], BadAccount)
    assert isinstance(found[2], AccountInput)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_line_that_is_no_utf_8_is_refused_alone(form: str) -> None:
    """Read with other characters in their place, it would be stored as another password."""
    values = ("user", "u"), ("host", "h"), ("username", "n"), ("password", "p\xe4ss-canary")
    text = (
        ",".join(name for name, _ in values) + "\n" + ",".join(value for _, value in values) + "\n"
        if form == "csv"
        else json.dumps(dict(values), ensure_ascii=False) + "\n"
    )
    stream = io.TextIOWrapper(io.BytesIO(text.encode("latin-1")), encoding="utf-8-sig", errors="replace")
    [(_, refused)] = read_file(stream)
    assert isinstance(refused, BadAccount)
    assert "canary" not in str(refused)


def test_a_line_with_a_port_of_thousands_of_digits_is_refused_alone() -> None:
    text = f"user,host,username,password,port\nu,h,a,p,{'9' * 5000}\nu,h,b,p,143\n"
    found = dict(read_file(io.StringIO(text)))
    assert isinstance(found[2], BadAccount)
    assert isinstance(found[3], AccountInput)


@pytest.mark.parametrize("text", ["", "user,host\n", "user,host,username,nonsense\n", "\x00\n", f'"{"a" * 200_000}"\n'])
def test_a_file_without_the_needed_fields_is_refused_as_a_whole(text: str) -> None:
    with pytest.raises(BadAccount):
        list(read_file(io.StringIO(text)))


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        for _, found in read_file(io.StringIO("user,host,username,password\n" + text)):
            assert isinstance(found, AccountInput | BadAccount)
        for _, found in read_file(io.StringIO("{" + text)):
            assert isinstance(found, AccountInput | BadAccount)
    except BadAccount:
        pass
