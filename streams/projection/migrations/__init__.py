"""Schema migrations, run by the program itself: `await migrate(dsn)` before anything reads or writes.

Invariant: whoever starts, and however many at once, the database ends at the newest revision: one migrates under an
advisory lock, the others wait for it and find nothing to do. A database that is newer than the program is refused.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Final

import asyncpg
import psycopg
import sqlalchemy
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.script.revision import RevisionError
from alembic.util import CommandError

from streams.directory.postgres import translated
from streams.errors import ConfigurationError, ServiceUnavailable

LOCK_KEY: Final = 0x6D61696C_73747265  # "mailstre": any number that no other program of the database uses
LOCK_TIMEOUT_S: Final = 120
VERSION_SCHEMA: Final = "mailstreams"
VERSION_TABLE: Final = "schema_version"
CONNECT_TIMEOUT_S: Final = 10

_ALEMBIC_STATE = threading.Lock()  # alembic keeps the running context in module globals


def _script() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


def head() -> str:
    """The newest revision that this program knows."""
    revision = _script().get_current_head()
    assert revision is not None
    return revision


async def migrate(dsn: str) -> bool:
    """Bring the database to the newest revision. True when anything was done.

    Raises `ServiceUnavailable` when PostgreSQL does not answer, `ConfigurationError` when it refuses us or its schema
    is newer than this program.
    """
    # Ask first in a way that can be cancelled: the thread below cannot, and an unreachable host takes its time.
    with translated("connecting"):
        try:
            await (await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S)).close()
        except ValueError:
            raise ConfigurationError("POSTGRES_DSN is no usable PostgreSQL address") from None
    return await asyncio.to_thread(migrate_blocking, dsn)


def migrate_blocking(dsn: str) -> bool:
    """`migrate` for callers without an event loop."""
    script = _script()
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: _connect(dsn), poolclass=sqlalchemy.pool.NullPool
    )
    try:
        with engine.connect() as connection, connection.begin():
            # Transaction-level: released by commit, rollback, or our death.
            connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
            encoding = connection.execute(sqlalchemy.text("SHOW server_encoding")).scalar_one()
            if encoding != "UTF8":
                raise ConfigurationError(f"POSTGRES_DSN: the database's encoding is {encoding}, it must be UTF8")
            connection.execute(sqlalchemy.text("CREATE SCHEMA IF NOT EXISTS mailstreams"))
            return _upgrade(script, connection)
    except sqlalchemy.exc.DBAPIError as error:
        raise _named(error.orig) from None
    except psycopg.Error as error:
        raise _named(error) from None
    finally:
        engine.dispose()


def _connect(dsn: str) -> psycopg.Connection:
    return psycopg.connect(
        dsn,
        connect_timeout=CONNECT_TIMEOUT_S,
        client_encoding="utf8",
        application_name="mailstreams-migrate",
        options=f"-c lock_timeout={LOCK_TIMEOUT_S}s",
    )


def _upgrade(script: ScriptDirectory, connection: sqlalchemy.Connection) -> bool:
    before = MigrationContext.configure(
        connection, opts={"version_table": VERSION_TABLE, "version_table_schema": VERSION_SCHEMA}
    ).get_current_revision()
    if before == script.get_current_head():
        return False
    config = Config()
    config.set_main_option("path_separator", "os")
    try:
        with (
            _ALEMBIC_STATE,
            EnvironmentContext(config, script, fn=lambda at, _: script._upgrade_revs("head", at)) as env,
        ):
            env.configure(
                connection=connection,
                transactional_ddl=True,
                version_table=VERSION_TABLE,
                version_table_schema=VERSION_SCHEMA,
            )
            env.run_migrations()
    except (CommandError, RevisionError):
        raise ConfigurationError(
            f"the database is at revision {before}, which this version does not know: it was migrated by a newer one"
        ) from None
    return True


def _named(error: BaseException | None) -> Exception:
    """Who must act. Refusals at connect have no SQLSTATE in libpq, hence the look at the text (never passed on)."""
    state = getattr(error, "sqlstate", None)
    text = str(error).lower()
    if state == "42501":
        return ConfigurationError("POSTGRES_DSN: cannot migrate the database: permission denied")
    if state is None and "does not exist" in text:
        return ConfigurationError("POSTGRES_DSN: cannot migrate the database: no such database or role")
    if state is None and ("authentication failed" in text or "no password supplied" in text or "pg_hba" in text):
        return ConfigurationError("POSTGRES_DSN: cannot migrate the database: login refused")
    if state is None and isinstance(error, psycopg.ProgrammingError):
        return ConfigurationError("POSTGRES_DSN is no usable PostgreSQL address")
    if isinstance(error, psycopg.OperationalError):
        return ServiceUnavailable(f"PostgreSQL is not available for the migration ({type(error).__name__})")
    return error if isinstance(error, Exception) else ServiceUnavailable("the migration was interrupted")
