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

from streams.mime.headers import HEADER_FIELDS, parse_headers, parse_headers_and_identity
from streams.mime.identity import IDENTITY_FIELDS, canonical_identity
from streams.mime.message import parse_message, part_content
from streams.mime.preview import message_preview, preview
from streams.mime.structure import StructureValue, attachments_from_structure, leaves_of_structure, text_part
from streams.mime.transfer import decode_transfer
from streams.mime.values import (
    LOOP_FRIENDLY_BYTES,
    Address,
    Attachment,
    HeaderLimits,
    Headers,
    Leaf,
    MessageCaps,
    MimePart,
    ParsedMessage,
)

__all__ = [
    "HEADER_FIELDS",
    "IDENTITY_FIELDS",
    "LOOP_FRIENDLY_BYTES",
    "Address",
    "Attachment",
    "HeaderLimits",
    "Headers",
    "Leaf",
    "MessageCaps",
    "MimePart",
    "ParsedMessage",
    "StructureValue",
    "attachments_from_structure",
    "canonical_identity",
    "decode_transfer",
    "leaves_of_structure",
    "message_preview",
    "parse_headers",
    "parse_headers_and_identity",
    "parse_message",
    "part_content",
    "preview",
    "text_part",
]
