"""Keys and partitions. Keys are bare UTF-8 text; the partitioner is Kafka's murmur2 (KIP-480's keyed rule)."""

from __future__ import annotations

from aiokafka.partitioner import murmur2


def partition_for(key: str | bytes, partitions: int) -> int:
    """Partition of `key` as the Java client and aiokafka compute it: murmur2, positive, modulo the count."""
    raw = key.encode() if isinstance(key, str) else key
    return int((murmur2(raw) & 0x7FFFFFFF) % partitions)
