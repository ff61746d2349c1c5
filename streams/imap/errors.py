"""What the protocol layer raises, under the tree of `streams.errors`.

::

    ConnectionLost
    └── ProtocolViolation     the byte stream broke a bound or the grammar's frame: the connection cannot go on
        ├── LineTooLong
        ├── LiteralTooLong
        └── ResponseTooLong
    MailboxError
    └── CommandRejected       BAD, or a NO that no rule knows: a defect, not a reason to try again at once

A parser error closes the connection and nothing else: it never says anything about credentials (case 81).
"""

from __future__ import annotations

from streams.errors import ConnectionLost, MailboxError, MailboxUnusable


class ProtocolViolation(ConnectionLost):
    """The server's bytes cannot be framed, or an answer came that no state allows. The connection is thrown away."""

    code = "protocol_violation"


class LineTooLong(ProtocolViolation):
    """A line passed `Limits.max_line_bytes` without its end."""

    code = "line_too_long"


class LiteralTooLong(ProtocolViolation):
    """A literal was announced that is larger than `Limits.max_literal_bytes`."""

    code = "literal_too_long"


class ResponseTooLong(ProtocolViolation):
    """One response with all its literals passed `Limits.max_response_bytes`."""

    code = "response_too_long"


class CommandRejected(MailboxError):
    """The server answered BAD, or NO for a reason that no rule of `protocol.codes` knows."""

    code = "command_rejected"


def is_unspecific(error: MailboxError) -> bool:
    """Whether a refusal names no reason of its own, so that an option of the command may be what was not understood."""
    return isinstance(error, CommandRejected) or (
        isinstance(error, MailboxUnusable) and error.code in ("mailbox_unusable", "mailbox_damaged")
    )
