"""The tree of errors. Each class says who must act; nothing else decides that.

::

    MailstreamsError
    ├── ConfigurationError        the operator fixes a setting; the process exits with 2
    ├── RetryLater                nobody: the same step is tried again after a backoff
    │   ├── HostBusy              the host asked us to slow down; applies to every account of the host
    │   ├── ConnectionLost        the socket ended or went silent
    │   ├── ServiceUnavailable    Kafka or PostgreSQL does not answer
    │   └── CommandTimedOut       a deadline passed; the connection is thrown away
    ├── AccountError              the owner of the account: this account stops or slows down, visibly
    │   ├── CredentialsRefused    new credentials are needed
    │   ├── AccessDenied          credentials are good, the permission is missing
    │   ├── NotAnImapServer       the address is wrong
    │   ├── AddressRefused        the address is not one we may dial
    │   ├── InsecureConnection    TLS was required and could not be had
    │   └── RecordTooLarge        what its server tells does not fit into a record of the log
    ├── MailboxError              one mailbox: it is set aside with a reason, all others go on
    │   ├── MailboxGone           it does not exist (any more)
    │   ├── MailboxUnusable       the server refuses to open it, or its identity does not hold still
    │   └── MalformedAnswer       the server's answer is incomplete or cannot be parsed; nothing is concluded from it
    ├── PoisonRecord              a Kafka record that is no valid message: dead letter, go on
    └── ShardError                the shard: drop what is in memory, fence again
        ├── ProducerLost          the producer failed or was fenced; only the assignment ends a shard
        ├── MembershipLost        proof of membership failed: close, wait for the next assignment
        └── MirrorDamaged         a mirror record cannot be read: the shard stops until a person looks

Messages are one line, meant for a person, and never hold a secret.
"""

from __future__ import annotations


class MailstreamsError(Exception):
    """Base of everything raised on purpose. `code` is stable and safe to publish."""

    code: str = "internal"

    def __init__(self, message: str, *, code: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.retry_after_s = retry_after_s


class ConfigurationError(MailstreamsError):
    """A setting, topic or key is wrong; nothing was started. Exit code 2."""

    code = "configuration"


class RetryLater(MailstreamsError):
    """Transient: the step is repeated on its schedule, `retry_after_s` when the other side named a time."""

    code = "temporary"


class HostBusy(RetryLater):
    """The mail host limits us (rate, connections, quota): every account of the host slows down."""

    code = "host_busy"


class ConnectionLost(RetryLater):
    """The connection ended, was refused, or could not be made."""

    code = "connection_lost"


class ServiceUnavailable(RetryLater):
    """Kafka, PostgreSQL or a token endpoint does not answer."""

    code = "service_unavailable"


class CommandTimedOut(RetryLater):
    """No answer within the deadline. The connection was thrown away."""

    code = "timed_out"


class AccountError(MailstreamsError):
    """This one account cannot be synchronised until somebody acts."""

    code = "account"


class CredentialsRefused(AccountError):
    """The server refuses the credentials (RFC 5530 AUTHENTICATIONFAILED, EXPIRED, or a plain NO to login)."""

    code = "credentials_refused"


class AccessDenied(AccountError):
    """Authenticated but not permitted (RFC 5530 AUTHORIZATIONFAILED, IMAP switched off for the account)."""

    code = "access_denied"


class NotAnImapServer(AccountError):
    """What answers at the address does not speak IMAP."""

    code = "not_imap"


class AddressRefused(AccountError):
    """The host resolves to an address that policy forbids. One text for all causes, so that nothing can be probed."""

    code = "address_refused"


class InsecureConnection(AccountError):
    """TLS was required and is missing, broken, or was tampered with."""

    code = "insecure_connection"


class RecordTooLarge(AccountError):
    """The server tells so much of one message or mailbox (flags, labels) that no record holds it: nothing is written,
    since a record that Kafka refuses would cost all accounts of the shard their writer.
    """

    code = "record_too_large"


class MailboxError(MailstreamsError):
    """This one mailbox is set aside; the rest of the account goes on."""

    code = "mailbox"


class MailboxGone(MailboxError):
    """The mailbox does not exist (RFC 5530 NONEXISTENT)."""

    code = "mailbox_gone"


class MailboxUnusable(MailboxError):
    """The server refuses to open the mailbox, or its UIDs do not hold still."""

    code = "mailbox_unusable"


class MalformedAnswer(MailboxError):
    """An answer is incomplete or malformed. Nothing was concluded from it."""

    code = "malformed_answer"


class PoisonRecord(MailstreamsError):
    """A record that can never be handled. Carries the reason that goes into its dead letter's headers.

    Reasons: `not_json`, `schema`, `unknown_kind`, `too_large`, `expired`, `wrong_key`, `handler_failed`.
    """

    code = "poison"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message, code=reason)
        self.reason = reason


class ShardError(MailstreamsError):
    """The shard has to start over from the log."""

    code = "shard"


class ProducerLost(ShardError):
    """The transactional producer failed, timed out or was fenced. What was not acknowledged is planned again."""

    code = "producer_lost"


class MembershipLost(ShardError):
    """We are not a member of the current group generation."""

    code = "membership_lost"


class MirrorDamaged(ShardError):
    """A mirror record is unknown, damaged or missing. It is never read as "nothing known"."""

    code = "mirror_damaged"
