"""Three things about aiokafka's clients that everybody who starts or awaits one must know.

* A broker that has just started answers before the cluster has registered it: its metadata name no broker. A consumer
  that starts with them looks alive, and the routine that would join its group has ended with an assertion.
* Its futures are cancelled now and then when a connection or a client ends. Whoever awaits one then sees the same
  exception as when somebody stops him, and a task that takes it for that ends without a word.
* uvloop refuses to write to a connection that is closed (a broker has reset it, and its reader has yet to be told) with
  a `RuntimeError`, which no part of aiokafka expects: the routine that fetches ends, and the consumer looks alive and
  reads nothing any more; the one that coordinates ends as well. `mend_connections` has it raised as what it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from aiokafka import conn
from aiokafka.errors import KafkaConnectionError


class MendedConnection(conn.AIOKafkaConnection):  # type: ignore[misc]
    """A connection to a broker; one that is closed already is a lost connection to whoever writes to it."""

    def send(self, request: Any, expect_response: bool = True) -> Any:
        """See `AIOKafkaConnection`."""
        with self._closed_is_lost():
            return super().send(request, expect_response=expect_response)

    def _send_sasl_token(self, payload: bytes, expect_response: bool = True) -> Any:
        with self._closed_is_lost():
            return super()._send_sasl_token(payload, expect_response=expect_response)

    @contextlib.contextmanager
    def _closed_is_lost(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self.close(reason=conn.CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"Connection at {self.host}:{self.port} closed") from error


def mend_connections() -> None:
    """Have every client of this process use `MendedConnection`."""
    conn.AIOKafkaConnection = MendedConnection


async def start_with_brokers(client: Any) -> None:
    """Start a consumer or producer. Raises `KafkaConnectionError` when the cluster names no brokers (yet), and what the
    client raises; the caller stops it then.
    """
    await client.start()
    require_brokers(client)


def require_brokers(client: Any) -> None:
    """Raises `KafkaConnectionError` when a client that was started knows of no broker."""
    kafka = getattr(client, "client", None) or client._client
    if not kafka.cluster.brokers():
        raise KafkaConnectionError("the cluster names no brokers yet")


def cancelled_from_elsewhere(error: BaseException) -> bool:
    """Whether this is a cancellation that nobody sent to the current task: what it awaited was cancelled by others."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() == 0
