"""What the mail server knows of who is connected."""

from __future__ import annotations

from streams.local.dovecot import Dovecot


async def sessions(server: Dovecot, user: str) -> int:
    """Open IMAP sessions of a user, as the server counts them."""
    lines = (await server.doveadm("who", "-1", user)).splitlines()
    return sum(line.startswith(user) for line in lines)
