"""Mail content, pure and bounded: headers, identity, attachments, previews, MIME trees.

Nothing in here raises on what a message holds, looks at a clock or touches a socket; every function is linear in its
input and bounded by limits that are values. Imports nothing else of this project.

=================  ==================================================================================
``headers``        the header block as typed values
``identity``       the canonical bytes of the identifying fields
``structure``      attachments and the text part, from an IMAP BODYSTRUCTURE
``message``        the MIME tree of raw message bytes, under caps
``preview``        the first readable text of a part
``fields``, ``addresses``, ``dates``, ``text``, ``charsets``, ``values``, ``defects``: what these are made of
=================  ==================================================================================
"""

from __future__ import annotations

from streams.mime.headers import HEADER_FIELDS, parse_headers
from streams.mime.identity import IDENTITY_FIELDS, canonical_identity
from streams.mime.values import Address, HeaderLimits, Headers

__all__ = [
    "HEADER_FIELDS",
    "IDENTITY_FIELDS",
    "Address",
    "HeaderLimits",
    "Headers",
    "canonical_identity",
    "parse_headers",
]
