"""A place for something that is made when the process starts, and a stand-in to hand around before."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Later(Generic[T]):
    """Holds a value from the moment it is set. `what` says in errors what was asked for too early."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._value: T | None = None

    @property
    def is_set(self) -> bool:
        """Whether there is a value."""
        return self._value is not None

    @property
    def value(self) -> T:
        """The value. Raises `RuntimeError` before there is one."""
        if self._value is None:
            raise RuntimeError(f"{self._what} is made when the process starts")
        return self._value

    def set(self, value: T) -> None:
        """Put the value in its place."""
        self._value = value

    def stand_in(self) -> T:
        """An object that passes every use of an attribute on to the value."""
        return cast("T", _StandIn(self))


class _StandIn:
    def __init__(self, later: Later[Any]) -> None:
        self._later = later

    def __getattr__(self, name: str) -> Any:
        return getattr(self._later.value, name)
