"""Free loopback ports, none handed out twice by one process unless it is asked for by number."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"

_handed_out: set[int] = set()


def free_port(preferred: int = 0) -> int:
    """A port nobody listens on: `preferred` when it is free, else one that the kernel picks.

    Another process may still take it before the service does; the service then fails to start and says so.
    """
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, preferred))
            except OSError:
                if not preferred:
                    raise
                preferred = 0
                continue
            port: int = probe.getsockname()[1]
        if port not in _handed_out or preferred:
            _handed_out.add(port)
            return port
        preferred = 0
