"""Flags of a message as the mirror keeps them and as events show them; remembered forms are the ones made anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streams.imap.values import FetchedMessage
from streams.sync.fetching import LABEL, flags_of, split_labels

names = st.sampled_from(
    [b"\\Seen", b"\\seen", b"\\Recent", b"\\FLAGGED", b"$forwarded", b"Label", b"x" * 300, b"\xff", b""]
)


@given(st.frozensets(names), st.none() | st.frozensets(st.sampled_from([b"\\Inbox", b"Work"])))
def test_flags_and_labels(flags: frozenset[bytes], labels: frozenset[bytes] | None) -> None:
    message = FetchedMessage(uid=1, flags=flags, gm_labels=None if labels is None else tuple(labels))
    for _ in range(2):  # the second time from memory
        found = flags_of(message)
        assert found is not None
        assert {f for f in found if f.startswith(LABEL)} == {LABEL + label.decode() for label in labels or ()}
        plain, told = split_labels(found, labelled=labels is not None)
        assert plain == tuple(sorted(f for f in found if not f.startswith(LABEL)))
        assert told == (None if labels is None else tuple(sorted(label.decode() for label in labels)))
        assert ("\\Seen" in plain) is bool(flags & {b"\\Seen", b"\\seen"})
        assert ("\\Flagged" in plain) is (b"\\FLAGGED" in flags)
        assert "\\Recent" not in plain
        assert "" not in plain


def test_no_flags_told_is_not_none_set() -> None:
    assert flags_of(FetchedMessage(uid=1, flags=None)) is None
    assert flags_of(FetchedMessage(uid=1, flags=frozenset())) == frozenset()
