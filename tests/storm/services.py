"""The services of a storm: every worker reaches Kafka, PostgreSQL and the mail servers through proxies of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from streams.local.dovecot import Dovecot, DovecotOptions
from streams.local.kafka import Kafka
from streams.local.ports import HOST, free_port
from streams.local.postgres import Postgres
from tests.rig.clock import Clock, library, sweep
from tests.rig.proxy import Proxy

SERVERS: Final = {
    "full": DovecotOptions(),
    "condstore": DovecotOptions(hidden=frozenset({"QRESYNC"})),
    "plain": DovecotOptions(hidden=frozenset({"QRESYNC", "CONDSTORE", "LIST-STATUS", "ESEARCH"})),
}


class ProxiedKafka(Kafka):
    """A broker with a listener for each worker, which it advertises at the address of that worker's proxy."""

    def __init__(self, directory: Path, doors: Sequence[tuple[int, int]]) -> None:
        """`doors`: for each worker the port the broker listens on, and the port of the proxy before it."""
        super().__init__(directory)
        self._doors = list(doors)

    def _write_settings(self) -> Path:
        path = super()._write_settings()
        lines = []
        for line in path.read_text().splitlines():
            name, _, value = line.partition("=")
            if name == "listeners":
                value += "".join(f",DOOR{n}://{HOST}:{port}" for n, (port, _) in enumerate(self._doors))
            elif name == "advertised.listeners":
                value += "".join(f",DOOR{n}://{HOST}:{proxy}" for n, (_, proxy) in enumerate(self._doors))
            elif name == "listener.security.protocol.map":
                value += "".join(f",DOOR{n}:PLAINTEXT" for n in range(len(self._doors)))
            lines.append(f"{name}={value}")
        # A busy machine must not look like a dead broker to its own controller; the last of two values counts.
        lines += ["inter.broker.listener.name=PLAINTEXT", "broker.session.timeout.ms=6000", ""]
        path.write_text("\n".join(lines))
        return path


class StormServices:
    """Everything a storm needs, started and stopped by `async with`."""

    def __init__(self, directory: Path, workers: Sequence[str], *, clock_of: str | None = None) -> None:
        """`clock_of` names the worker that has a wall clock of its own, where that can be had. One of them: whoever has
        it needs twice the processor time.
        """
        self.directory = directory
        preloaded = library() if clock_of is not None else None
        self.clocks = {
            name: Clock(directory / f"{name}.clock", preloaded) for name in workers if preloaded and name == clock_of
        }
        doors = {name: (free_port(), free_port()) for name in workers}
        self.kafka = ProxiedKafka(directory / "kafka", list(doors.values()))
        self.postgres = Postgres(directory / "postgres")
        self.mail = {kind: Dovecot(directory / kind, options=options) for kind, options in SERVERS.items()}
        self.kafka_proxies = {
            name: Proxy(there, port=here, name=f"kafka:{name}") for name, (there, here) in doors.items()
        }
        self.postgres_proxies: dict[str, Proxy] = {}
        self.mail_proxies = {kind: Proxy(server.port, name=f"imap:{kind}") for kind, server in self.mail.items()}
        self._workers = list(workers)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        services: list[Kafka | Postgres | Dovecot] = [self.kafka, self.postgres, *self.mail.values()]
        for service in services:
            self._stack.push_async_callback(service.kill)
        await asyncio.gather(*(service.start() for service in services))
        port = int(self.postgres.dsn().rpartition(":")[2].partition("/")[0])
        self.postgres_proxies = {name: Proxy(port, name=f"postgres:{name}") for name in self._workers}
        for proxy in self.proxies:
            await self._stack.enter_async_context(proxy)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        if self.clocks:
            sweep()

    @property
    def proxies(self) -> list[Proxy]:
        """All of them."""
        return [*self.kafka_proxies.values(), *self.postgres_proxies.values(), *self.mail_proxies.values()]

    def settings_of(self, worker: str) -> dict[str, str]:
        """Where this worker finds its services."""
        database = self.postgres.dsn().rpartition("/")[2]
        user = self.postgres.dsn().partition("://")[2].partition("@")[0]
        return {
            "KAFKA_BOOTSTRAP_SERVERS": f"{HOST}:{self.kafka_proxies[worker].port}",
            "POSTGRES_DSN": f"postgresql://{user}@{HOST}:{self.postgres_proxies[worker].port}/{database}",
            **(self.clocks[worker].environment if worker in self.clocks else {}),
        }
