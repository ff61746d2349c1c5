"""Failures of PostgreSQL by who must act."""

from __future__ import annotations

import asyncpg
import pytest

from streams.directory.postgres import translated
from streams.errors import ConfigurationError, ServiceUnavailable


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("gone"),
        TimeoutError(),
        asyncpg.InterfaceError("pool is closing"),
        asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress"),
        asyncpg.CannotConnectNowError("starting up"),
        asyncpg.TooManyConnectionsError("too many"),
        asyncpg.DeadlockDetectedError("deadlock"),
    ],
)
def test_what_passes_by_itself(error: Exception) -> None:
    with pytest.raises(ServiceUnavailable, match=r"storing it: PostgreSQL is not available"), translated("storing it"):
        raise error


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InvalidPasswordError("password 's3cret' refused"),
        asyncpg.InvalidCatalogNameError("no such database"),
        asyncpg.UndefinedTableError("no such table"),
    ],
)
def test_what_an_operator_must_change(error: Exception) -> None:
    with pytest.raises(ConfigurationError) as caught, translated("storing it"):
        raise error
    assert "s3cret" not in str(caught.value)


def test_a_defect_passes_as_it_is() -> None:
    with pytest.raises(asyncpg.NotNullViolationError), translated("storing it"):
        raise asyncpg.NotNullViolationError("null")
