"""How we speak to PostgreSQL: a pool that needs no server to exist, and failures named by who must act.

Invariant: an error that leaves here holds no DSN, no parameter of a statement and no row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import asyncpg

from streams.errors import ConfigurationError, ServiceUnavailable

CONNECT_TIMEOUT_S: Final = 10.0
STATEMENT_TIMEOUT_S: Final = 60.0
"""No statement of ours takes longer; a rebuild raises its own."""

_UNAVAILABLE: Final = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,  # the pool or a connection is closed
    asyncpg.InternalClientError,  # a connection that ended in the middle of a statement and was reset after it
    asyncpg.PostgresConnectionError,  # class 08
    asyncpg.OperatorInterventionError,  # class 57: shutting down, starting, cancelled
    asyncpg.InsufficientResourcesError,  # class 53: too many connections, disk full
    asyncpg.TransactionRollbackError,  # class 40: deadlock, serialization
    asyncpg.LockNotAvailableError,  # 55P03: lock_timeout
    asyncpg.ReadOnlySQLTransactionError,  # 25006: we reached a standby during a failover
)
_MISCONFIGURED: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ClientConfigurationError,
)
_UNMIGRATED: Final = (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError, asyncpg.UndefinedColumnError)


async def open_pool(dsn: str, size: int, *, settings: Mapping[str, str] | None = None) -> Any:
    """A pool of up to `size` connections. Opens none, so it succeeds while PostgreSQL is down; close it with `close()`.

    `settings` are PostgreSQL's, for each session.
    Raises `ConfigurationError` for a DSN that cannot be read.
    """
    try:
        return await asyncpg.create_pool(
            dsn,
            min_size=0,
            max_size=size,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=STATEMENT_TIMEOUT_S,
            server_settings={"application_name": "mailstreams", **(settings or {})},
        )
    except (ValueError, asyncpg.InterfaceError, asyncpg.ClientConfigurationError):
        raise ConfigurationError("POSTGRES_DSN is no usable PostgreSQL address") from None


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn failures of PostgreSQL met while `doing` something into ours.

    `ServiceUnavailable` for what passes by itself, `ConfigurationError` for what an operator must change (no such
    database, no permission, schema not migrated). Everything else is a defect and passes as it is.
    """
    try:
        yield
    except _MISCONFIGURED as error:
        raise ConfigurationError(f"POSTGRES_DSN: {doing}: PostgreSQL refuses: {type(error).__name__}") from None
    except _UNMIGRATED:
        raise ConfigurationError(
            f"{doing}: the database is not migrated; run `faust -A streams projection migrate`"
        ) from None
    except _UNAVAILABLE as error:
        raise ServiceUnavailable(f"{doing}: PostgreSQL is not available ({type(error).__name__})") from None
