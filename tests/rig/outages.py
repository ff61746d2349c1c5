"""Services that refuse, in ways that need a client of their administration."""

from __future__ import annotations

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.rig.fleet import Fleet


async def largest_batch(fleet: Fleet, size: int) -> None:
    """Set `max.message.bytes` of the log: the broker refuses every batch that is larger."""
    admin = AIOKafkaAdminClient(bootstrap_servers=fleet.kafka.bootstrap)
    await admin.start()
    try:
        topic = fleet.kafka.topic("mailbox.changes")
        await admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": str(size)})]
        )
    finally:
        await admin.close()
