"""TLS settings, one context for the whole process.

Invariants: certificates and names are verified, always; a context is shared, since one per connection costs 900 KB; the
buffer that asyncio keeps for each TLS connection is cut from 256 KiB to 16 KiB, the size of a TLS record, so that
thousands of idle connections fit into memory.
"""

from __future__ import annotations

import asyncio.sslproto
import ssl
from pathlib import Path
from typing import Final

from streams.errors import ConfigurationError

TLS_BUFFER_BYTES: Final = 16 << 10


def client_tls_context(ca_file: Path | None = None) -> ssl.SSLContext:
    """A verifying context. With `ca_file` only the certificate authorities in it are trusted.

    Raises:
        ConfigurationError: the file cannot be read or holds no certificate.
    """
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError):
        raise ConfigurationError(f"{ca_file} holds no certificate authorities that can be read") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def shrink_tls_buffers() -> None:
    """Make asyncio's TLS connections small from now on. Does nothing to uvloop's, which are small already."""
    protocol = asyncio.sslproto.SSLProtocol
    if protocol.max_size > TLS_BUFFER_BYTES:
        protocol.max_size = TLS_BUFFER_BYTES
