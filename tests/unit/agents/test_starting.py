"""A broker that goes while a worker starts delays the start and does not end it (W3)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError

from streams.agents import starting
from streams.agents.starting import patiently


class Client:
    def __init__(self, brokers: int = 1) -> None:
        self.stopped = False
        self.client = SimpleNamespace(cluster=SimpleNamespace(brokers=lambda: set(range(brokers))))

    async def stop(self) -> None:
        self.stopped = True
        raise OSError("it was never connected")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "RETRY_S", 0.0)


async def test_w3_the_start_is_tried_until_a_broker_answers() -> None:
    clients: list[Client] = []

    async def start() -> None:
        clients.append(Client())
        if len(clients) < 3:
            raise KafkaConnectionError("Unable to bootstrap")

    await patiently(SimpleNamespace(should_stop=False), start, lambda: clients[-1])
    assert [client.stopped for client in clients] == [True, True, False]


async def test_w3_a_cluster_that_names_no_brokers_yet_is_waited_for() -> None:
    clients: list[Client] = []

    async def start() -> None:
        clients.append(Client(brokers=len(clients)))

    await patiently(SimpleNamespace(should_stop=False), start, lambda: clients[-1])
    assert [client.stopped for client in clients] == [True, False]


async def test_w4_a_stop_ends_it() -> None:
    service = SimpleNamespace(should_stop=False)

    async def start() -> None:
        service.should_stop = True
        raise KafkaConnectionError("Unable to bootstrap")

    with pytest.raises(KafkaConnectionError):
        await patiently(service, start, lambda: None)


async def test_what_waiting_does_not_cure_is_raised() -> None:
    async def start() -> None:
        raise TopicAuthorizationFailedError

    with pytest.raises(TopicAuthorizationFailedError):
        await patiently(SimpleNamespace(should_stop=False), start, lambda: None)
