"""Names of what was wrong with a message, as they stand in ``Headers.defects`` and in the events built from it.

A defect never stops a message: the value that could be saved is delivered and the name says what was lost. The names
are part of the public contract of the log, so they are only ever added to.
"""

from __future__ import annotations

from typing import Final

NUL: Final = "nul"
"""A NUL was found (raw or inside an encoded word) and replaced by U+FFFD; PostgreSQL cannot store it."""
CONTROL: Final = "control"
"""A control character other than white space was replaced by U+FFFD."""
CHARSET: Final = "charset"
"""A charset is unknown, or the bytes are not valid in it; undecodable bytes became U+FFFD."""
EIGHT_BIT: Final = "eight_bit"
"""Raw bytes above 127 that are not UTF-8 (RFC 6532) were decoded by a guess."""
ENCODED_WORD: Final = "encoded_word"
"""Something that starts like an RFC 2047 encoded word is not one, or its base64 is damaged."""
DATE: Final = "date"
"""A Date field is present but names no moment in time; the date is null."""
ADDRESS: Final = "address"
"""An address list has unbalanced quotes, comments or brackets; it was read as well as it could be."""
COMMENT_DEPTH: Final = "comment_depth"
"""Comments are nested deeper than the limit; parentheses of that field were read as plain text."""
DUPLICATE_FIELD: Final = "duplicate_field"
"""A field that may occur once (RFC 5322 3.6) occurs again; the first one counts."""
HEADER_BYTES: Final = "header_bytes"
"""The header block is longer than the limit; what lies beyond it was not read."""
HEADER_FIELDS: Final = "header_fields"
"""The header block has more lines than the limit; what lies beyond it was not read."""
TOO_MANY_ADDRESSES: Final = "too_many_addresses"
"""More addresses than the limit; the rest was left out."""
TOO_MANY_REFERENCES: Final = "too_many_references"
"""More references than the limit; the first and the newest were kept."""
VALUE_LENGTH: Final = "value_length"
"""A value was longer than the limit and was cut."""
PART_COUNT: Final = "part_count"
"""The message has more MIME parts than the limit; the rest was not read."""
PART_DEPTH: Final = "part_depth"
"""Multiparts are nested deeper than the limit; what lies deeper was kept as one opaque part."""
MESSAGE_BYTES: Final = "message_bytes"
"""The message is longer than the limit; the parts beyond it were not read."""
PARSE_TIME: Final = "parse_time"
"""Parsing took longer than allowed; the parts found until then were kept."""
BOUNDARY: Final = "boundary"
"""A multipart without a usable boundary, or one that is never closed."""
