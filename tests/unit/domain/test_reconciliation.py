"""S7: the comparison itself, as a table."""

from __future__ import annotations

import pytest

from streams.domain.lifecycle import Life
from streams.domain.reconciliation import Finding, compare

LIVE_3 = Life("u", "live", 3)


@pytest.mark.parametrize(
    ("row", "known", "finding"),
    [
        (LIVE_3, None, Finding.ANNOUNCE),
        (Life("u", "disabled", 3), None, Finding.SAME),
        (LIVE_3, LIVE_3, Finding.SAME),
        (LIVE_3, Life("u", "live", 2), Finding.ANNOUNCE),
        (LIVE_3, Life("u", "disabled", 2), Finding.ANNOUNCE),
        (LIVE_3, Life("u", "disabled", 3), Finding.ANNOUNCE),
        (LIVE_3, Life("other", "live", 3), Finding.ANNOUNCE),
        (LIVE_3, Life("u", "live", None), Finding.ANNOUNCE),
        (LIVE_3, Life("u", "disabled", 4), Finding.AHEAD),
        (Life("u", "disabled", 4), LIVE_3, Finding.ANNOUNCE),
        (None, LIVE_3, Finding.ABSENT),
        (None, Life("u", "error", 3), Finding.ABSENT),
        (None, Life("u", "deleted", 3), Finding.SAME),
        (None, None, Finding.SAME),
    ],
)
def test_s7_comparison(row: Life | None, known: Life | None, finding: Finding) -> None:
    assert compare(row, known) is finding
