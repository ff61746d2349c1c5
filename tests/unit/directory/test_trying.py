"""What a person is told whose account cannot be logged in to."""

from __future__ import annotations

import pytest

from streams.directory.trying import sentence
from streams.errors import AddressRefused, ConnectionLost, CredentialsRefused, InsecureConnection, MailstreamsError


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AddressRefused("the host cannot be used"), "IMAP_ALLOW_PRIVATE"),
        (InsecureConnection("TLS could not be set up (WRONG_VERSION_NUMBER)"), "--tls starttls"),
        (CredentialsRefused("the server refused the login: NO."), "the server refused the login: NO."),
        (AddressRefused("the host cannot be used"), "check its spelling"),
        (ConnectionLost("the host could not be reached"), "try again later"),
        (ConnectionLost("the host could not be reached (ConnectionRefusedError)"), "nothing listens there"),
        (ConnectionLost("the host took the connection but did not say in time what it is"), "--tls tls"),
    ],
)
def test_it_is_one_sentence_with_the_usual_cure(error: MailstreamsError, said: str) -> None:
    text = sentence(error, "mail.example.com")
    assert said in text
    assert text.endswith(".")
    assert text.count(". ") == 0
