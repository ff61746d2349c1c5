"""Which leaves of a MIME tree are attachments, and which one holds the text to read.

Invariant: one rule for trees out of a BODYSTRUCTURE and for trees out of the message itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from streams.mime.values import Attachment, Leaf

LeafT = TypeVar("LeafT", bound=Leaf)


def attachments_of(leaves: Iterable[Leaf]) -> tuple[Attachment, ...]:
    """The leaves that are attachments, in order.

    Text without a file name that is not marked as an attachment is the message's own; everything else is an attachment.
    """
    return tuple(
        Attachment(
            part=leaf.part,
            filename=leaf.filename,
            content_type=leaf.content_type,
            size=leaf.size,
            content_id=leaf.content_id,
            inline=_is_inline(leaf),
        )
        for leaf in leaves
        if not _is_own_text(leaf)
    )


def text_leaf_of(leaves: Iterable[LeafT]) -> LeafT | None:
    """The first plain text of the message's own, else the first HTML, else any other text.

    An empty one is taken only if all are empty.
    """
    best: LeafT | None = None
    best_rank = 99
    for leaf in leaves:
        if _is_own_text(leaf):
            rank = {"text/plain": 0, "text/html": 1}.get(leaf.content_type, 2) + (10 if leaf.size == 0 else 0)
            if rank < best_rank:
                best, best_rank = leaf, rank
    return best


def _is_own_text(leaf: Leaf) -> bool:
    if leaf.disposition == "attachment" or leaf.filename is not None:
        return False
    return leaf.content_type in ("text/plain", "text/html", "text/enriched", "text/richtext", "text/watch-html")


def _is_inline(leaf: Leaf) -> bool:
    if leaf.disposition == "attachment":
        return False
    return leaf.disposition == "inline" or (leaf.content_id is not None and leaf.parent == "related")
