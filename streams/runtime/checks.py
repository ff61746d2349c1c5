"""What must be true before a worker starts: a data directory it can write, brokers that answer."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Sequence
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError, KafkaError

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


def kafka_check(settings: Settings) -> Check:
    """Brokers answer."""

    async def probe() -> None:
        admin = AIOKafkaAdminClient(**settings.kafka_client(), request_timeout_ms=int(ATTEMPT_S * 1000))
        # The library logs by itself why each broker refused, and raises an error without the reason.
        with muted("aiokafka") as said:
            try:
                async with asyncio.timeout(ATTEMPT_S):
                    await admin.start()
                    await admin.describe_cluster()
            except (KafkaError, OSError, TimeoutError) as error:
                raise unreachable(settings, error, said) from None
            finally:
                await close_quietly(admin)

    return Check("Kafka", probe)


def unreachable(settings: Settings, error: Exception, said: Sequence[str]) -> ServiceUnavailable:
    """What to tell of brokers that do not answer; `said` is what the library has logged meanwhile."""
    reason = said[-1] if said else f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, GroupCoordinatorNotAvailableError):
        return ServiceUnavailable(
            f"Kafka at {settings.KAFKA_BOOTSTRAP_SERVERS} is not ready yet: {type(error).__name__}"
        )
    return ServiceUnavailable(f"no broker of {settings.KAFKA_BOOTSTRAP_SERVERS} answers: {reason}")


async def close_quietly(admin: AIOKafkaAdminClient) -> None:
    """Close an admin client, which may hang or fail when it never was connected."""
    with contextlib.suppress(KafkaError, OSError, TimeoutError):
        async with asyncio.timeout(2.0):
            await admin.close()
