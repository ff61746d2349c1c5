"""What can go wrong with a service of the local stack. All of it is for the person at the keyboard to act on."""

from __future__ import annotations

from streams.errors import MailstreamsError


class LocalStackError(MailstreamsError):
    """A service of the local stack is not to be had; nothing that was started is left running."""

    code = "local_stack"


class ServiceFailed(LocalStackError):
    """A service ended, or was not ready in time. Carries the last lines of its log.

    The message is more than one line on purpose: the log's end is what tells the reader what to do.
    """

    code = "local_service_failed"

    def __init__(self, service: str, reason: str, log_tail: str = "") -> None:
        self.service = service
        self.reason = reason
        self.log_tail = log_tail
        ending = f"\n--- last lines of its log ---\n{log_tail}" if log_tail else ""
        super().__init__(f"{service}: {reason}{ending}")


class DirectoryInUse(LocalStackError):
    """Another stack runs on the same data. Two brokers on one directory destroy it."""

    code = "local_directory_in_use"


class Unavailable(LocalStackError):
    """A piece that the service is made of is not installed or cannot be downloaded."""

    code = "local_service_unavailable"
