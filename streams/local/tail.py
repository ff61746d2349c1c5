"""`python -m streams.local.tail ADDRESS TOPIC`: a topic from its beginning and on, one record a line, without Java."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from datetime import UTC, datetime

from aiokafka import AIOKafkaConsumer, ConsumerRecord
from aiokafka.errors import KafkaConnectionError

VALUE_SHOWN = 2000


async def follow(address: str, topic: str) -> int:
    """Print until cancelled; 1 when the topic is not there."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    try:
        async with consumer:
            if topic not in await consumer.topics():
                print(f"no topic {topic} at {address}", file=sys.stderr)
                return 1
            consumer.subscribe([topic])  # without a group: every partition, and nothing is committed
            async for record in consumer:
                print(line_of(record), flush=True)
    except KafkaConnectionError:
        print(f"no broker answers at {address}", file=sys.stderr)
        return 1
    return 0


def line_of(record: ConsumerRecord[bytes, bytes]) -> str:
    """Time, place, key and value of a record."""
    at = datetime.fromtimestamp(record.timestamp / 1000, UTC).strftime("%H:%M:%S")
    key = "" if record.key is None else record.key.decode("utf-8", "replace")
    if record.value is None:
        value = "(tombstone)"
    else:
        try:
            value = record.value.decode()
        except UnicodeDecodeError:
            value = f"({len(record.value)} bytes)"
    return f"{at} {record.partition}/{record.offset} {key} {value[:VALUE_SHOWN]}"


def main() -> int:
    """Follow the topic of the command line until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m streams.local.tail", description=__doc__)
    parser.add_argument("address", help="broker, host:port")
    parser.add_argument("topic")
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        return asyncio.run(follow(arguments.address, arguments.topic))
    return 0


if __name__ == "__main__":
    sys.exit(main())
