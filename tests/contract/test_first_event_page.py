"""docs/produce-your-first-event.md stays true: its records are valid and its keys fall where ours do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec

from streams.contracts import schemas, topics
from streams.contracts.codec import Decoder
from streams.contracts.keys import partition_for

PAGE = Path(__file__).resolve().parents[2] / "docs" / "produce-your-first-event.md"
OF_TOPIC = {message.topic: message.record for message in schemas.MESSAGES if message.direction == "in"}


def test_every_record_on_the_page_is_read_by_the_worker() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"<!-- (?P<topic>[a-z_.]+) -->\s*```json\n(?P<value>.*?)```", text, re.DOTALL)
    assert {topic for topic, _ in found} == {topics.STATE_CHANGED, topics.USER_ACTIVE, topics.COMMANDS}
    for topic, value in found:
        record: msgspec.Struct = Decoder(OF_TOPIC[topic])(value.encode())
        assert json.loads(msgspec.json.encode(record)).items() <= json.loads(value).items()


def test_page_states_the_partitions_that_we_compute() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(?P<key>[^`]+)` \| (?P<count>\d+) \| (?P<partition>\d+) \|$", text, re.MULTILINE)
    assert len(rows) >= 3
    for key, count, partition in rows:
        assert partition_for(key, int(count)) == int(partition)


def test_page_names_the_partitioner_that_librdkafka_needs() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("murmur2_random") >= 3
