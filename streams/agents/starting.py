"""The start of Kafka clients inside Faust, patient with brokers that go away while a worker starts.

A broker was there a moment ago, else the start would not have come so far. Faust takes the loss of it for a failure of
the app, which ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiokafka.errors import KafkaError
from faust.transport.drivers.aiokafka import Producer

from streams.runtime.clients import require_brokers

RETRY_S: Final = 1.0

STOP_WITHIN_S: Final = 3.0
"""For a client that did not start; without a broker stopping may hang."""

_LOGGER: Final = logging.getLogger(__name__)


async def patiently(service: Any, start: Callable[[], Awaitable[None]], client: Callable[[], Any]) -> None:
    """Repeat `start` until a broker answers, or the service is to stop. Raises what is no matter of waiting.

    `client` gives what `start` made, so that it can be closed before the next try.
    """
    while True:
        try:
            await start()
            require_brokers(client())
        except KafkaError as error:
            if service.should_stop or not error.retriable:
                raise
            _LOGGER.warning("no broker to start with, trying again: %s", error)
            if client() is not None:
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(STOP_WITHIN_S):
                        await client().stop()
            await asyncio.sleep(RETRY_S)
        else:
            return


class PatientProducer(Producer):
    """Faust's producer, started `patiently`."""

    async def on_start(self) -> None:
        """See `mode.Service`."""
        await patiently(self, super().on_start, lambda: self._producer)
