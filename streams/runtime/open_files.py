"""How many files this process may have open. Every connection is one, and so are the files of the local stores.

Service managers start processes with a soft limit of 1,024 for the sake of programs that use `select`, which ours does
not, and a hard limit far above it. Invariant: whatever the hard limit allows is ours before the first connection.
"""

from __future__ import annotations

import resource
from typing import Final

import structlog

from streams.settings import Settings

log = structlog.get_logger(__name__)

FILES_PER_PARTITION: Final = 40
"""Two tables, each active and standby, with up to 16 table files and some of RocksDB's own; the producer's socket."""
OTHER_FILES: Final = 256


def wanted_files(settings: Settings) -> int:
    """What a full worker uses: each account with a session holds a connection, and some are polled beside that."""
    return settings.MAX_ACCOUNTS_PER_WORKER * 5 // 4 + settings.PARTITIONS * FILES_PER_PARTITION + OTHER_FILES


def allow_open_files(wanted: int) -> int:
    """Raise the soft limit to the hard one and return it; one line in the log when that is less than `wanted`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError) as error:
            # Some systems refuse an unlimited one.
            log.warning("the limit of open files stays as it is", limit=soft, error=str(error))
    if soft != resource.RLIM_INFINITY and soft < wanted:
        log.warning(
            "few files may be open: raise `ulimit -n`, or lower MAX_ACCOUNTS_PER_WORKER", limit=soft, may_need=wanted
        )
    return soft
