"""What the event loop says of errors that nobody awaited.

A producer that is lost leaves futures of its own behind, which asyncio reports one by one as "never retrieved"; the
loss itself is reported where it happens. Everything else is an error of ours and is logged as one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiokafka.errors import KafkaError

log = logging.getLogger(__name__)


def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Exception handler of the loop (`loop.set_exception_handler`)."""
    error = context.get("exception")
    if isinstance(error, KafkaError) and isinstance(context.get("future"), asyncio.Future):
        log.debug("left behind by a Kafka client: %s", type(error).__name__)
        return
    loop.default_exception_handler(context)
