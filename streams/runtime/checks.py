"""What must be true before a worker starts: a data directory it can write, brokers that answer."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import tempfile
from collections.abc import Sequence
from typing import Final, TextIO

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError, KafkaError

from streams.errors import ConfigurationError, ServiceUnavailable
from streams.runtime.logs import muted
from streams.runtime.services import Check
from streams.settings import Settings

ATTEMPT_S: Final = 10.0
"""Time limit of one attempt to reach a service."""


LOCK_FILE: Final = "worker.lock"


def take_data_directory(settings: Settings) -> TextIO:
    """Make the data directory, write a file in it, and take it for this process for as long as what is returned is
    open. Raises `ConfigurationError`, also when another worker has it: two would fight for their databases, each time
    after they had joined the group.
    """
    path = settings.DATA_DIR
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"x")
        lock = (path / LOCK_FILE).open("a")
    except OSError as error:
        raise ConfigurationError(f"DATA_DIR: cannot write in {path}: {error.strerror or error}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigurationError(f"DATA_DIR: another worker runs in {path}; each needs its own") from None
    except OSError:
        pass  # a file system without locks: as it was before there was this check
    return lock


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
