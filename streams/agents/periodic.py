"""Repeats a step at an interval. A step that fails is logged and comes again at its time (row S16); it ends nothing."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from streams.errors import MailstreamsError

JITTER: Final = 0.1
"""Part of the interval by which rounds vary, so that workers started together do not stay in step."""

_LOGGER: Final = logging.getLogger(__name__)


async def every(
    interval_s: float,
    name: str,
    step: Callable[[], Awaitable[None]],
    *,
    random_: Callable[[], float] = random.random,
) -> None:
    """Run `step` now and then every `interval_s` (from end to beginning), for good."""
    while True:
        try:
            await step()
        except MailstreamsError as error:
            _LOGGER.warning("%s failed, next time in %.0f s: %s", name, interval_s, error)
        except Exception:
            _LOGGER.exception("%s failed, next time in %.0f s", name, interval_s)
        await asyncio.sleep(interval_s * (1 + JITTER * (2 * random_() - 1)))
