"""What a storm looks at besides the checker."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.rig.worker import Worker
from tests.storm.storm import ended


def test_a_worker_that_ended_at_rest_is_told(tmp_path: Path) -> None:
    worker = Worker("one", tmp_path, {})
    worker.log.write_text("a last word\n")
    assert [(f.rule, f.got) for f in ended([worker])] == [("worker_died", "one: a last word")]
    with subprocess.Popen(["sleep", "5"]) as process:
        worker._popen = process
        assert ended([worker]) == []
        process.kill()
