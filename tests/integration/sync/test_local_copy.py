"""The local copy of a mirror is read anew when it may have missed a tombstone that compaction has dropped since."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.domain import mirror
from streams.observer import NoopObserver
from streams.sync import log as log_module
from streams.sync.log import Batch, ShardLog
from streams.sync.store import MirrorStore
from tests.integration.sync.conftest import Plane


async def tenure(plane: Plane, store: MirrorStore) -> ShardLog:
    log = ShardLog(0, settings=plane.settings, store=store, observer=NoopObserver(), worker="w")
    await log.fence()
    await log.restore()
    return log


async def test_a_copy_of_yesterday_is_not_trusted(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MirrorStore(tmp_path)
    try:
        log = await tenure(plane, store)
        made = Batch([])
        made.mirror["a/mailbox/kept"] = (mirror.seal(b"kept"), "test")
        await log.submit(made)
        await log.close()
        # Another owner deleted this one, and compaction dropped the tombstone before we read on.
        store.apply(0, {"a/mailbox/deleted": mirror.seal(b"deleted")}, store.position(0))
        log = await tenure(plane, store)
        assert log.read("a/mailbox/deleted") is not None, "a fresh copy is read on from where it is"
        await log.close()
        monkeypatch.setattr(log_module, "LOCAL_COPY_S", -1.0)
        log = await tenure(plane, store)
        assert log.read("a/mailbox/deleted") is None
        assert log.read("a/mailbox/kept") == mirror.seal(b"kept")
        await log.close()
    finally:
        store.close()
