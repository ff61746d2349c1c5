"""The wall clock of one worker process, which may be set wrong while it runs; its monotonic clock goes on.

Debian's libfaketime stands between the process and the C library. Where it is missing there is no such clock.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

_WHERE: Final = Path("/usr/lib")
_NAME: Final = "*/faketime/libfaketimeMT.so.1"
_PATCHES: Final = Path(__file__).parent / "wrong_clock"
_SHARED: Final = Path("/dev/shm")


def library() -> Path | None:
    """The library, for programs with threads; None when it is not installed."""
    return next(iter(sorted(_WHERE.glob(_NAME))), None)


def sweep() -> None:
    """Remove the shared memory that the library made for processes which were killed."""
    for path in (*_SHARED.glob("faketime_shm_*"), *_SHARED.glob("sem.faketime_sem_*")):
        pid = path.name.rpartition("_")[2]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            with suppress(OSError):
                path.unlink()


class Clock:
    """Read by the process once a second, so that a change holds soon, and over a restart."""

    def __init__(self, file: Path, preloaded: Path) -> None:
        self._file = file
        self._preloaded = preloaded
        self.set(0)

    @property
    def environment(self) -> dict[str, str]:
        """What the process has to be started with."""
        return {
            "LD_PRELOAD": str(self._preloaded),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            # Reading the file at each look at the time costs a worker half of its processor time.
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
            "PYTHONPATH": str(_PATCHES),
        }

    def set(self, ahead_s: int) -> None:
        """From now on the clock is so far ahead of the right time; behind it when negative."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{ahead_s:+d}\n")
        new.replace(self._file)  # never seen half-written
