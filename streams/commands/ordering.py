"""Who is next: deliveries of one account in order, accounts side by side, in turns.

Pure bookkeeping without a clock. Invariants: of one account at most one item is out at a time, and items of an account
come out in the order they went in; an account that has just been served goes to the end of the line, so that one with a
long queue delays no other by more than one item.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

A = TypeVar("A", bound=Hashable)
T = TypeVar("T")


class AccountQueues(Generic[A, T]):
    """Queues by account with one line of accounts that have something to do."""

    __slots__ = ("_line", "_out", "_queues", "_waiting")

    def __init__(self) -> None:
        self._queues: dict[A, deque[T]] = {}
        self._line: deque[A] = deque()  # accounts with waiting items and none out
        self._out: set[A] = set()
        self._waiting = 0

    def __len__(self) -> int:
        """Items waiting (not those that are out)."""
        return self._waiting

    @property
    def ready(self) -> bool:
        """Whether `take` would give something."""
        return bool(self._line)

    def put(self, account: A, item: T) -> None:
        """Add behind everything the account has waiting."""
        queue = self._queues.get(account)
        if queue is None:
            queue = self._queues[account] = deque()
        if not queue and account not in self._out:
            self._line.append(account)
        queue.append(item)
        self._waiting += 1

    def take(self) -> tuple[A, T] | None:
        """The next item whose account has none out; it is out until `done` or `back`."""
        if not self._line:
            return None
        account = self._line.popleft()
        self._out.add(account)
        self._waiting -= 1
        return account, self._queues[account].popleft()

    def done(self, account: A) -> None:
        """The account's item that was out is settled; the next one may come."""
        self._out.remove(account)
        if self._queues.get(account):
            self._line.append(account)
        else:
            self._queues.pop(account, None)

    def back(self, account: A, item: T) -> None:
        """The account's item that was out has to come out once more, before anything else of the account."""
        self._out.remove(account)
        self._queues.setdefault(account, deque()).appendleft(item)
        self._waiting += 1
        self._line.append(account)

    def drop(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Take out every waiting item that is unwanted; what is out stays out."""
        dropped: list[T] = []
        for account in list(self._queues):
            queue = self._queues[account]
            kept = deque(item for item in queue if not unwanted(item))
            if len(kept) == len(queue):
                continue
            dropped.extend(item for item in queue if unwanted(item))
            if kept or account in self._out:
                self._queues[account] = kept
            else:
                del self._queues[account]
        self._waiting -= len(dropped)
        self._line = deque(account for account in self._line if self._queues.get(account))
        return dropped

    def __iter__(self) -> Iterator[T]:
        """Everything that waits, account by account."""
        for queue in self._queues.values():
            yield from queue
