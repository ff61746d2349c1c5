"""What must be true before a worker starts: a data directory it can write, keys, brokers and PostgreSQL that answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from typing import Final

import asyncpg
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from streams.errors import ConfigurationError, ServiceUnavailable
from streams.runtime.logs import muted
from streams.runtime.services import Check
from streams.settings import Settings

ATTEMPT_S: Final = 10.0
"""Time limit of one attempt to reach a service."""


def check_data_directory(settings: Settings) -> None:
    """Make the data directory and write a file in it. Raises `ConfigurationError`."""
    try:
        settings.DATA_DIR.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=settings.DATA_DIR) as file:
            file.write(b"x")
    except OSError as error:
        raise ConfigurationError(f"DATA_DIR: cannot write in {settings.DATA_DIR}: {error.strerror or error}") from None


def check_encryption_keys(settings: Settings) -> None:
    """See that a worker has keys to open credentials with. Raises `ConfigurationError`; shows no key."""
    if settings.ENCRYPTION_KEYS_FILE is not None:
        if not os.access(settings.ENCRYPTION_KEYS_FILE, os.R_OK):
            raise ConfigurationError(f"ENCRYPTION_KEYS_FILE: cannot read {settings.ENCRYPTION_KEYS_FILE}")
    elif settings.ENCRYPTION_KEYS is None or not settings.ENCRYPTION_KEYS.get_secret_value().strip():
        raise ConfigurationError(
            "ENCRYPTION_KEYS or ENCRYPTION_KEYS_FILE must be set; `faust -A streams keys generate` makes a key"
        )


def kafka_check(settings: Settings) -> Check:
    """Brokers answer."""

    async def probe() -> None:
        admin = AIOKafkaAdminClient(**settings.kafka_client(), request_timeout_ms=int(ATTEMPT_S * 1000))
        try:
            # The library logs every refused connection by itself; a retry is to be one line.
            with muted("aiokafka"):
                async with asyncio.timeout(ATTEMPT_S):
                    await admin.start()
                    await admin.describe_cluster()
        except (KafkaError, OSError, TimeoutError) as error:
            raise ServiceUnavailable(
                f"no broker of {settings.KAFKA_BOOTSTRAP_SERVERS} answers ({type(error).__name__})"
            ) from None
        finally:
            await close_quietly(admin)

    return Check("Kafka", probe)


async def close_quietly(admin: AIOKafkaAdminClient) -> None:
    """Close an admin client, which may hang or fail when it never was connected."""
    with contextlib.suppress(KafkaError, OSError, TimeoutError):
        async with asyncio.timeout(2.0):
            await admin.close()


def postgres_check(settings: Settings) -> Check:
    """PostgreSQL answers and lets us in."""

    async def probe() -> None:
        try:
            connection = await asyncpg.connect(settings.POSTGRES_DSN.get_secret_value(), timeout=ATTEMPT_S)
        except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError) as error:
            raise ConfigurationError(f"POSTGRES_DSN: PostgreSQL refuses us ({type(error).__name__})") from None
        except asyncpg.InvalidCatalogNameError:
            raise ConfigurationError("POSTGRES_DSN: the database does not exist") from None
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise ServiceUnavailable(f"PostgreSQL does not answer ({type(error).__name__})") from None
        except ValueError as error:
            raise ConfigurationError(f"POSTGRES_DSN: not a PostgreSQL address ({type(error).__name__})") from None
        await connection.close(timeout=ATTEMPT_S)

    return Check("PostgreSQL", probe)
