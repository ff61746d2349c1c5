"""The local store works again when the disk has room again. In a process of its own: the limit is a process's."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

SCRIPT = """
import os, resource, sys
from pathlib import Path
from streams.sync.store import MirrorStore

store = MirrorStore(Path(sys.argv[1]))
store.apply(1, {"before": b"kept"}, 7)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard))
written, refused = 0, 0
for number in range(40):
    try:
        store.apply(1, {f"m{number}": os.urandom(16 << 10)}, 8 + number)
        written += 1
        last = number
    except Exception:
        refused += 1
        if refused == 3:
            break
assert written and refused, (written, refused)
# Opening it anew fails as long as there is no room, and the first to ask afterwards may be a reader.
store._handle = None
store._open, works = lambda: store._path.joinpath("x").write_bytes(bytes(1 << 20)), store._open
try:
    store.position(1)
    raise SystemExit("read without a database")
except OSError:
    pass
store._open = works
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
assert store.position(1) >= 8
store.apply(2, {"after": b"works"}, 3)
store.forget(3)
assert store.get(2, "after") == b"works" and store.position(2) == 3
assert store.get(1, "before") == b"kept" and store.position(1) >= 8
assert len(list(store.scan(1, "m"))) >= 1
store.close()
print("fine")
"""


def test_writes_work_again_once_there_is_room(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("fine", 0), done.stderr
