"""What the checker has to say. A finding names the smallest thing that is wrong and shows the events around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


class UntrueError(AssertionError):
    """Server, log and database do not agree, or a rule of the log is broken."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `rule` is a stable word; `around` are lines of the log near it."""

    rule: str
    account: str | None = None
    mailbox: str | None = None
    uid: int | None = None
    expected: Any = None
    got: Any = None
    around: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = " ".join(
            f"{name} {value}"
            for name, value in (("account", self.account), ("mailbox", self.mailbox), ("uid", self.uid))
            if value is not None
        )
        head = f"[{self.rule}] {where}: expected {self.expected!r}, got {self.got!r}"
        return "\n".join([head, *(f"      {line}" for line in self.around)])


@dataclass(slots=True)
class Report:
    """All findings, and figures that show that something was looked at."""

    findings: list[Finding] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)

    def add(self, findings: Iterable[Finding]) -> None:
        """Take findings over."""
        self.findings.extend(findings)

    def count(self, name: str, number: int = 1) -> None:
        """Add to a figure."""
        self.figures[name] = self.figures.get(name, 0) + number

    @property
    def true(self) -> bool:
        """Nothing is wrong."""
        return not self.findings

    def rules(self) -> set[str]:
        """Which rules were broken."""
        return {finding.rule for finding in self.findings}

    def lines(self, *, most: int = 40) -> Iterator[str]:
        """The report as text, the first findings in full."""
        figures = ", ".join(f"{name} {number}" for name, number in sorted(self.figures.items()))
        yield f"checked: {figures}"
        for finding in self.findings[:most]:
            yield str(finding)
        if len(self.findings) > most:
            yield f"... and {len(self.findings) - most} more"

    def require_true(self, context: str = "") -> None:
        """Raise `UntrueError` with the whole report unless all is true."""
        if not self.true:
            raise UntrueError("\n".join([context, *self.lines()]).strip())
