"""Names of files and directories for mailboxes, whatever a server calls them.

Pure. Invariants: a name is one path segment, never `.` or `..`, hidden or empty; different mailboxes have different
names, also where upper and lower case are one; names are at most 120 bytes.
"""

from __future__ import annotations

import hashlib
import unicodedata
from typing import Final

MAX_BYTES: Final = 120
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_ ,()+@&=")


def directory_name(mailbox: str) -> str:
    """The directory of a mailbox: readable where the name is plain, marked by a digest where it had to be changed.

    The hierarchy is flattened (`Work/2024` becomes `Work.2024` and a digest): a mailbox then never lies within the
    directory of another, where its name could be taken for a message's.
    """
    readable = "".join(_readable(character) for character in unicodedata.normalize("NFC", mailbox))
    readable = readable.strip(" .") or "mailbox"
    if readable == mailbox and mailbox == mailbox.lower() and len(mailbox.encode()) <= MAX_BYTES:
        return readable
    if mailbox == "INBOX":
        return mailbox  # the one name that is the same on every server (RFC 3501 section 5.1)
    digest = hashlib.sha256(mailbox.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    cut = readable.encode()[: MAX_BYTES - len(digest) - 1].decode("utf-8", "ignore").rstrip(" .")
    return f"{cut}~{digest}"


def _readable(character: str) -> str:
    if character in _PLAIN or (ord(character) > 127 and unicodedata.category(character)[0] in "LN"):
        return character
    return "." if character in "./\\" else "_"
