"""The page "what you see in the topics" names everything that there is to see."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import pytest

from streams.agents.intake import REKEYED_HEADER
from streams.contracts.account import TierReason
from streams.contracts.codec import cloud_event_headers, dead_letter_headers
from streams.contracts.topics import TOPICS
from streams.errors import PoisonRecord

PAGE = (Path(__file__).parents[3] / "docs" / "topics.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)))


@pytest.mark.parametrize("topic", [t.name for t in TOPICS if not t.name.endswith(".dlq")])
def test_every_topic_is_named(topic: str) -> None:
    assert topic in NAMED


@pytest.mark.parametrize("reason", get_args(TierReason))
def test_every_reason_of_a_tier_is_named(reason: str) -> None:
    assert reason in NAMED


def test_every_reason_of_a_dead_letter_is_named() -> None:
    documented = re.findall(r"`(\w+)`", (PoisonRecord.__doc__ or "").split("Reasons:")[1])
    assert [reason for reason in documented if reason not in NAMED] == []


def test_every_header_is_named() -> None:
    events = cloud_event_headers(event_id="1", event_type="t", source="s", at=datetime(2026, 1, 1, tzinfo=UTC))
    dead = dead_letter_headers(topic="t", partition=0, offset=0, reason="schema", error="e")
    ours = [REKEYED_HEADER, "writer", "sequence", "dlq_truncated"]
    assert [name for name in [*(n for n, _ in events + dead), *ours] if name not in NAMED] == []
